"""Files that appear whole or not at all."""

import os
import stat
import threading
from pathlib import Path

import pytest

from features.errors import InputError
from surrogate.atomic import atomic_path, write_text


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_written_whole_and_nothing_beside(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "grüße")
    assert (tmp_path / "a.txt").read_bytes() == "grüße".encode()
    assert _names(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o644


def test_replaces_the_old(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "old")
    write_text(str(tmp_path / "a.txt"), "new")
    assert (tmp_path / "a.txt").read_text() == "new"


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


def test_a_failure_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), atomic_path(tmp_path / "a.txt"):
        raise RuntimeError
    assert _names(tmp_path) == []


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.txt: cannot be written \(No such file or directory\)"):
        write_text(tmp_path / "missing" / "a.txt", "text")


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "text")
    with pytest.raises(InputError, match="cannot be written"):
        write_text(tmp_path / "a" / "b.txt", "text")


def test_a_folder_of_that_name_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        write_text(tmp_path / "a.txt", "text")
    assert _names(tmp_path) == ["a.txt"]


def test_a_link_stays_and_what_it_names_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "a.txt")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "far" / "a.txt").read_text() == "new"


def test_a_link_to_itself_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError, match="cannot be written"):
        write_text(tmp_path / "loop", "text")


def test_a_device_stays_a_device() -> None:
    write_text(os.devnull, "text")
    assert not stat.S_ISREG(Path(os.devnull).stat().st_mode)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_device_is_one_clear_line() -> None:
    with pytest.raises(InputError, match=r"/dev/full: cannot be written \(No space left on device\)"):
        write_text("/dev/full", "text")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_pipe_gets_the_content(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_text(tmp_path / "pipe", "text")
    reader.join(timeout=10)
    assert got == ["text"] and _names(tmp_path) == ["pipe"]


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_text(tmp_path / "a.txt", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o600


def test_a_name_as_long_as_the_file_system_takes(tmp_path: Path) -> None:
    write_text(tmp_path / ("é" * 120), "text")
    assert _names(tmp_path) == ["é" * 120]
    with pytest.raises(InputError, match="cannot be written"):
        write_text(tmp_path / ("x" * 300), "text")


def test_a_nul_in_the_name_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_text(tmp_path / "a\0b", "text")


def test_a_disk_that_fills_leaves_the_old_file(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(InputError, match=r"a\.txt: cannot be written \(disk is full\)"):  # noqa: SIM117
        with atomic_path(tmp_path / "a.txt"):
            raise OSError(28, "disk is full")
    assert (tmp_path / "a.txt").read_text() == "old" and _names(tmp_path) == ["a.txt"]
