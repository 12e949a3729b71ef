"""Files that appear whole or not at all."""

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
