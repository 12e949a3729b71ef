"""Files and folders that appear whole or not at all: written under a temporary name beside, then renamed."""

import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from surrogate.features.errors import InputError

NAME_KEPT = 40
"""Characters of a file's name that its temporary one begins with; a file system takes 255 bytes in all."""
SAVING = "saving"
"""Ending of a folder's temporary name."""


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
        raise unwritable(path, error) from None
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
        raise unwritable(path, error) from None
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """``text`` as UTF-8 at ``path``, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_folder(path: str | Path, files: Mapping[str, bytes]) -> None:
    """A folder of just these files (name, with ``/`` for one below → content) at ``path``, old or new at any time.

    Processes that write below one parent take turns, and one that comes later sweeps what a killed one left. On Linux
    an older folder is exchanged in one step; elsewhere, for the moment between two renames, there is none. A link stays
    and what it names is replaced. Raises `InputError` where the folder cannot be written.
    """
    try:
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        with _turn(target.parent) as alone:
            stem = f".{target.name[:NAME_KEPT]}."
            if alone:
                _sweep(target.parent, stem)
            aside = target.parent / f"{stem}{secrets.token_hex(4)}.{SAVING}"
            try:
                for name, content in files.items():
                    (aside / name).parent.mkdir(parents=True, exist_ok=True)
                    (aside / name).write_bytes(content)
                    _sync(aside / name)
                _put(aside, target)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from None


@contextmanager
def _turn(folder: Path) -> Iterator[bool]:
    """Wait for other processes that write below ``folder``; False where the system has no lock for it."""
    try:
        import fcntl

        place = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield False
        return
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX)
            alone = True
        except OSError:  # a file system without locks
            alone = False
        yield alone
    finally:
        os.close(place)


def _sweep(parent: Path, stem: str) -> None:
    """Remove the temporary folders of killed processes; living ones hold the turn."""
    left = re.compile(re.escape(stem) + rf"[0-9a-f]{{8}}\.{SAVING}")
    for folder in parent.iterdir():
        if left.fullmatch(folder.name):
            shutil.rmtree(folder, ignore_errors=True)


def _put(aside: Path, target: Path) -> None:
    """``aside`` at ``target``; an older folder is then at ``aside``, or gone."""
    if not target.exists():
        aside.rename(target)
    elif not _exchanged(aside, target):
        old = aside.with_name(f"{aside.name[: -len(SAVING) - 9]}{secrets.token_hex(4)}.{SAVING}")
        target.rename(old)
        aside.rename(target)
        shutil.rmtree(old, ignore_errors=True)


def _exchanged(one: Path, other: Path) -> bool:
    """Whether the system swapped two names in one step: Linux's renameat2(2) with RENAME_EXCHANGE."""
    if sys.platform != "linux":
        return False
    import ctypes

    with suppress(OSError, AttributeError):  # another C library, or one without the call
        here, exchange = -100, 2
        rename = ctypes.CDLL(None).renameat2
        return rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0
    return False


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
    """Behind what the stream holds already: the shell may have opened a file there for appending."""
    if sys.stdout:
        sys.stdout.flush()
    with source.open("rb") as content, Path(path).open("ab") as stream:
        shutil.copyfileobj(content, stream)


def unwritable(path: str | Path, error: OSError | ValueError) -> InputError:
    """The one line for a place that cannot be written."""
    reason = (isinstance(error, OSError) and error.strerror) or str(error)
    return InputError(f"{path}: cannot be written ({reason}); choose another place")
