"""The files of a run, written aside and moved into their folder together: two runs' files never stand side by side."""

import errno
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from surrogate.dataset.atomic import unwritable
from surrogate.features.errors import InputError


@contextmanager
def staged(directory: str | Path, stale: Iterable[str] = ()) -> Iterator[Path]:
    """An empty folder inside ``directory``, which is made; its files move into ``directory`` when the block ends well.

    Entered before long work, it says at once that nothing can be written. Where the block fails, ``directory`` is as
    it was before. ``stale``: names that an earlier run may have left; those that the block did not write are removed.
    Raises `InputError` where the folder cannot be made or written.
    """
    directory = Path(directory)
    made = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".seer-", dir=directory))
    except FileExistsError:
        raise InputError(f"{directory} is a file; a folder is needed, choose another name") from None
    except (OSError, ValueError) as error:
        _remove_empty(made)
        raise unwritable(directory, error) from None
    try:
        yield aside
        try:
            _move(aside, directory, stale)
        except OSError as error:
            raise unwritable(directory, error) from None
    except InputError as error:  # the reader knows the folder by its own name
        raise InputError(str(error).replace(str(aside), str(directory))) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        _remove_empty(made)


def _move(aside: Path, directory: Path, stale: Iterable[str]) -> None:
    files = sorted(path.relative_to(aside) for path in aside.rglob("*") if path.is_file())
    for name in files:
        if (directory / name).is_dir():  # told before anything is moved
            raise IsADirectoryError(errno.EISDIR, f"{name} is a folder")
    for name in files:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (aside / name).replace(directory / name)
    for name in set(stale).difference(map(Path.as_posix, files)):
        (directory / name).unlink(missing_ok=True)


def _remove_empty(folders: Iterable[Path]) -> None:
    """Innermost first; one that holds something stays, and so do those around it."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
