"""Files that appear whole or not at all."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from surrogate.dataset.files import atomic_path, require_writable, write_folder, write_text


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_name_is_in_the_same_folder_and_the_old_stays_until_the_end(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "old")
    with atomic_path(tmp_path / "a.txt") as temporary:
        assert temporary.parent == tmp_path and temporary.name != "a.txt"
        temporary.write_text("new")
        assert (tmp_path / "a.txt").read_text() == "old"
    assert (tmp_path / "a.txt").read_text() == "new"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_no_other(tmp_path: Path, error: type[BaseException]) -> None:
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(error), atomic_path(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        raise error
    assert (tmp_path / "a.txt").read_text() == "old"
    assert _names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("name", ["missing/a.txt", "file/a.txt", "folder", pytest.param("x" * 300, id="long")])
def test_what_cannot_be_written_is_one_clear_line(refused, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder").mkdir()
    before = _names(tmp_path)
    with refused(name):
        write_text(tmp_path / name, "text")
    assert _names(tmp_path) == before


def test_a_link_stays_and_what_it_names_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "a.txt")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "far" / "a.txt").read_text() == "new"


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no /dev/stdout")
def test_standard_output_keeps_what_it_holds(tmp_path: Path) -> None:
    """As of ``seer … -o /dev/stdout >> log``: what the log had, what was printed, what was written."""
    log = tmp_path / "log"
    log.write_text("before\n")
    code = "from surrogate.dataset.files import write_text; print('printed'); write_text('/dev/stdout', 'written\\n')"
    with log.open("a") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert log.read_text() == "before\nprinted\nwritten\n"


def _folder(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


OLD, NEW = {"a": b"old", "below/b": b"old"}, {"a": b"new", "c": b"new"}


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_text(tmp_path / "a.txt", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o644


def test_a_folder_holds_just_its_files(tmp_path: Path) -> None:
    for files in (OLD, NEW):
        write_folder(tmp_path / "deep" / "f", files)
        assert _folder(tmp_path / "deep" / "f") == files
    assert _names(tmp_path / "deep") == ["f"]


def test_a_folder_that_fails_leaves_the_old_one(refused, tmp_path: Path) -> None:
    write_folder(tmp_path / "f", OLD)
    with refused("cannot be written"):
        write_folder(tmp_path / "f", {**NEW, "a/below-a-file": b""})
    assert _folder(tmp_path / "f") == OLD and _names(tmp_path) == ["f"]
    with refused("cannot be written"):
        write_folder(tmp_path / "f" / "a" / "g", NEW)


WRITER = """
import sys
from pathlib import Path
from surrogate.dataset.files import write_folder
mark = sys.argv[2].encode()
print("begun", flush=True)
for _ in range(int(sys.argv[3])):
    write_folder(Path(sys.argv[1]), {f"{name}-{mark.decode()}": mark * 50_000 for name in "abcdef"})
"""


def _writer(path: Path, mark: str, times: int) -> subprocess.Popen[bytes]:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), mark, str(times)], stdout=subprocess.PIPE)
    assert writer.stdout and writer.stdout.readline()
    return writer


def _is_one_writers(path: Path, marks: str) -> bool:
    found = _folder(path)
    return any(found == {f"{name}-{m}": m.encode() * 50_000 for name in "abcdef"} for m in marks)


def test_two_writers_of_one_folder_never_mix(tmp_path: Path) -> None:
    writers = [_writer(tmp_path / "f", mark, 30) for mark in "xy"]
    for writer in writers:
        with writer:
            assert writer.wait() == 0
    assert _is_one_writers(tmp_path / "f", "xy") and _names(tmp_path) == ["f"]


@pytest.mark.parametrize("folder", ["", "filled", "replaced"])
def test_what_can_be_written_is_known_before_the_work(refused, tmp_path: Path, folder: Any) -> None:
    """A check refuses what writing would refuse, and leaves nothing behind."""
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder").mkdir()
    before = _names(tmp_path)
    bad = ["file/a", "x" * 300, *(["missing/a", "folder"] if not folder else ["file"])]
    for name in bad:
        with refused(str(tmp_path / name)):
            require_writable(tmp_path / name, folder)
    for name in ("new", *(["folder", "missing/a"] if folder else ["file"])):
        require_writable(tmp_path / name, folder)
    assert _names(tmp_path) == before


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="may write everything")
@pytest.mark.parametrize("folder", ["", "filled", "replaced"])
def test_a_folder_without_permission_is_refused(refused, tmp_path: Path, folder: Any) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with refused("cannot be written"):
        require_writable(tmp_path / "closed" / "new", folder)
