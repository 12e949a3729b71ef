"""Files that appear whole or not at all: written under a temporary name in the same folder, then renamed."""

import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from features.errors import InputError

NAME_KEPT = 40
"""Characters of a file's name that its temporary one begins with; a file system takes 255 bytes in all."""


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary name that takes the place of ``path`` when the block ends well, and vanishes when it fails.

    A link stays and what it names is replaced; a device or a pipe (``/dev/stdout``) gets the content once it is whole.
    The file's permissions are those that the user's mask leaves to any new file.

    Raises `InputError` where the folder is missing or not writable, where the disk is full, or where ``path`` is a
    folder.
    """
    try:
        target = Path(os.path.realpath(path))
        in_place = _is_stream(path)
        folder = Path(tempfile.gettempdir()) if in_place else target.parent
        temporary = _created(folder, target.name)
    except (OSError, ValueError) as error:  # a NUL in the name is a ValueError
        raise _unwritable(path, error) from None
    try:
        yield temporary
        if in_place:
            _copy(temporary, path)
        else:
            _sync(temporary)
            temporary.replace(target)
    except BrokenPipeError:
        raise  # the reader left; that is no fault of the place
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """``text`` as UTF-8 at ``path``, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def _is_stream(path: str | Path) -> bool:
    """Whether ``path`` is a device, a pipe or one of this process's streams. Raises `OSError` for a folder."""
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(0, "it is a folder")
    return not stat.S_ISREG(mode) or Path(path).absolute().parent in (Path("/dev"), Path("/dev/fd"))


def _created(folder: Path, name: str) -> Path:
    """A new empty file in ``folder``; hidden, and named after the file that it becomes."""
    temporary = folder / f".{name[:NAME_KEPT]}.{secrets.token_hex(4)}"
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    return temporary


def _sync(path: Path) -> None:
    """Wait until the content is on the disk: a rename must not outrun it."""
    with path.open("rb") as written:
        os.fsync(written.fileno())


def _copy(source: Path, path: str | Path) -> None:
    with source.open("rb") as content, Path(path).open("wb") as stream:
        shutil.copyfileobj(content, stream)


def _unwritable(path: str | Path, error: OSError | ValueError) -> InputError:
    reason = (isinstance(error, OSError) and error.strerror) or str(error)
    return InputError(f"{path}: cannot be written ({reason}); choose another place")
