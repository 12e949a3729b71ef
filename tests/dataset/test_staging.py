"""Files that move into their folder together, or not at all."""

from pathlib import Path

import pytest

from surrogate.dataset.atomic import write_text
from surrogate.dataset.staging import staged
from surrogate.features.errors import InputError


def _names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_files_move_in_together_and_others_stay(tmp_path: Path) -> None:
    """A reader's own file is left alone; an earlier run's figure that this one did not draw goes."""
    (tmp_path / "figures").mkdir()
    for name in ("mine.txt", "results.json", "figures/old.svg", "figures/kept.svg"):
        (tmp_path / name).write_text("before")
    with staged(tmp_path, ["figures/old.svg", "figures/kept.svg", "figures/never.svg"]) as folder:
        (folder / "figures").mkdir()
        write_text(folder / "figures" / "kept.svg", "now")
        write_text(folder / "results.json", "now")
        assert (tmp_path / "results.json").read_text() == "before"
    assert _names(tmp_path) == ["figures/kept.svg", "mine.txt", "results.json"]
    assert (tmp_path / "results.json").read_text() == (tmp_path / "figures/kept.svg").read_text() == "now"
    assert (tmp_path / "mine.txt").read_text() == "before"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, InputError("no")])
def test_a_failed_block_leaves_everything_as_it_was(tmp_path: Path, stop: BaseException) -> None:
    """Neither a new folder nor a changed file."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "results.json").write_text("before")
    for name in ("old", "new/deeper"):
        with pytest.raises((KeyboardInterrupt, InputError)), staged(tmp_path / name) as folder:
            write_text(folder / "results.json", "half")
            raise stop
    assert _names(tmp_path) == ["old/results.json"]
    assert (tmp_path / "old" / "results.json").read_text() == "before"
    assert not (tmp_path / "new").exists()


def test_what_cannot_be_written_is_said_before_the_work(tmp_path: Path) -> None:
    """A file in the place of the folder, above it, and a folder in the place of a file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; a folder is needed"), staged(tmp_path / "file"):
        pytest.fail("the block must not run")
    with pytest.raises(InputError, match="cannot be written"), staged(tmp_path / "file" / "below"):
        pytest.fail("the block must not run")
    (tmp_path / "out" / "results.json").mkdir(parents=True)
    (tmp_path / "out" / "results.json" / "x").write_text("")
    with pytest.raises(InputError, match="cannot be written"), staged(tmp_path / "out") as folder:
        write_text(folder / "results.json", "now")


def test_an_error_names_the_folder_as_the_user_typed_it(tmp_path: Path) -> None:
    """Not the temporary one."""
    with pytest.raises(InputError) as raised, staged(tmp_path) as folder:
        write_text(folder / "missing" / "x.csv", "")
    assert str(tmp_path / "missing" / "x.csv") in str(raised.value)


def test_a_folder_in_the_way_is_told_before_anything_moves(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("before")
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match="b is a folder"), staged(tmp_path) as folder:
        write_text(folder / "a", "now")
        write_text(folder / "b", "now")
    assert (tmp_path / "a").read_text() == "before"
