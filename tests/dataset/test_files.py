"""Files and folders are written completely or not at all."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from surrogate.dataset.files import atomic_path, require_writable, write_folder, write_text
from tests.known import known_answers


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_atomic_path_keeps_the_old_file_until_the_end(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "old")
    with atomic_path(tmp_path / "a.txt") as temporary:
        assert temporary.parent == tmp_path and temporary.name != "a.txt"
        temporary.write_text("new")
        assert (tmp_path / "a.txt").read_text() == "old"
    assert (tmp_path / "a.txt").read_text() == "new"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_keeps_the_old_file_and_removes_the_temporary_one(tmp_path: Path, error: type[BaseException]) -> None:
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(error), atomic_path(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        raise error
    assert (tmp_path / "a.txt").read_text() == "old"
    assert _names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("name", ["missing/a.txt", "file/a.txt", "folder", pytest.param("x" * 300, id="long")])
def test_write_text_refuses_unwritable_paths(refused, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder").mkdir()
    before = _names(tmp_path)
    with refused(name):
        write_text(tmp_path / name, "text")
    assert _names(tmp_path) == before


def test_write_text_replaces_the_target_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target" / "a.txt")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target" / "a.txt").read_text() == "new"


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no /dev/stdout")
def test_write_text_appends_to_standard_output(tmp_path: Path) -> None:
    """``seer … -o /dev/stdout >> log`` keeps the log's earlier lines and the printed ones."""
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
def test_write_text_sets_default_permissions(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_text(tmp_path / "a.txt", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o644


def test_write_folder_replaces_all_files(tmp_path: Path) -> None:
    for files in (OLD, NEW):
        write_folder(tmp_path / "deep" / "f", files)
        assert _folder(tmp_path / "deep" / "f") == files
    assert _names(tmp_path / "deep") == ["f"]


def test_write_folder_keeps_the_old_folder_after_a_failure(refused, tmp_path: Path) -> None:
    write_folder(tmp_path / "f", OLD)
    with refused("cannot be written"):
        write_folder(tmp_path / "f", {**NEW, "a/below-a-file": b""})
    assert _folder(tmp_path / "f") == OLD and _names(tmp_path) == ["f"]
    with refused("cannot be written"):
        write_folder(tmp_path / "f" / "a" / "g", NEW)


WRITER = known_answers(__file__)["writer"]


def _writer(path: Path, mark: str, times: int) -> subprocess.Popen[bytes]:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), mark, str(times)], stdout=subprocess.PIPE)
    assert writer.stdout and writer.stdout.readline()
    return writer


def _has_a_single_writer(path: Path, marks: str) -> bool:
    files = _folder(path)
    return any(files == {f"{name}-{mark}": mark.encode() * 50_000 for name in "abcdef"} for mark in marks)


def test_write_folder_never_mixes_concurrent_writers(tmp_path: Path) -> None:
    writers = [_writer(tmp_path / "f", mark, 30) for mark in "xy"]
    for writer in writers:
        with writer:
            assert writer.wait() == 0
    assert _has_a_single_writer(tmp_path / "f", "xy") and _names(tmp_path) == ["f"]


@pytest.mark.parametrize("folder", ["", "filled", "replaced"])
def test_require_writable_refuses_what_writing_would_refuse(refused, tmp_path: Path, folder: Any) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder").mkdir()
    before = _names(tmp_path)
    unwritable = ["file/a", "x" * 300, *(["missing/a", "folder"] if not folder else ["file"])]
    for name in unwritable:
        with refused(str(tmp_path / name)):
            require_writable(tmp_path / name, folder)
    for name in ("new", *(["folder", "missing/a"] if folder else ["file"])):
        require_writable(tmp_path / name, folder)
    assert _names(tmp_path) == before


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write to every folder")
@pytest.mark.parametrize("folder", ["", "filled", "replaced"])
def test_require_writable_refuses_a_folder_without_permission(refused, tmp_path: Path, folder: Any) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with refused("cannot be written"):
        require_writable(tmp_path / "closed" / "new", folder)
