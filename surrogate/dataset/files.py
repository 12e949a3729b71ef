"""Progress of long work, and files that are written completely or not at all.

Files and folders are written under a temporary name in the same folder, then renamed.
"""

import errno
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Literal

from surrogate.features.errors import InputError

STDOUT = Path("/dev/stdout")
Progress = Callable[[int, int, str], None]
"""Callback of long work: (amount done, total amount, a word on the work or an empty text).

Two threads never call it at once."""
TRIES = 100
"""Number of tries to replace a folder while other processes replace it, too."""


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary file that replaces ``path`` if the block succeeds, and is removed if it fails.

    If ``path`` is a symbolic link, its target is replaced. A device or pipe (``/dev/stdout``) gets the finished
    content. Raises `InputError` if the folder is missing or not writable, the disk is full, or ``path`` is a folder.
    """
    target, temporary, is_stream = _temporary(path)
    try:
        yield temporary
        if is_stream:  # append: the shell may have opened a file that has content already
            if sys.stdout:
                sys.stdout.flush()
            stdout = sys.stdout.buffer if path == STDOUT and sys.stdout else None
            with temporary.open("rb") as content, nullcontext(stdout) if stdout else Path(path).open("ab") as stream:
                shutil.copyfileobj(content, stream)
        else:
            temporary.chmod(0o666 & ~_mask())  # a temporary file has fewer permissions than any new one
            temporary.replace(target)
    except BrokenPipeError:
        raise  # the reader closed the pipe; the path is not wrong
    except OSError as error:
        raise unwritable(path, error) from None
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _writing(path: str | Path) -> Iterator[None]:
    """Turn errors of the file system into the `unwritable` error of ``path``; a NUL in a name is a `ValueError`."""
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise unwritable(path, error) from None


def _temporary(path: str | Path) -> tuple[Path, Path, bool]:
    """Return the file of ``path``, a new empty file that will replace it, and whether ``path`` is a stream."""
    with _writing(path):
        target = Path(os.path.realpath(path))
        if target.is_symlink():  # a link to itself
            raise OSError(0, "it is a link to itself")
        if target.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        is_stream = str(path).startswith("/dev/") or (target.exists() and not target.is_file())
        folder = Path(tempfile.gettempdir()) if is_stream else target.parent
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", dir=folder)
        os.close(handle)
    return target, Path(name), is_stream


def require_writable(path: str | Path, folder: Literal["", "filled", "replaced"] = "") -> None:
    """Raise `InputError` before long work if the file or folder could not be written after it. Nothing is left over.

    ``folder`` is "filled" for a folder that gets files (`staged`), and "replaced" for `write_folder`.
    """
    with _writing(path):
        with suppress(FileNotFoundError, NotADirectoryError):
            Path(path).stat()  # fails for an impossible name, and for a file in a closed folder
        if not folder:
            target, temporary, _ = _temporary(path)
            temporary.unlink()
            if target.exists() and not os.access(target, os.W_OK):
                raise PermissionError(0, "the existing file is read-only")
            return
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_dir():
            raise InputError(f"{path} is a file; a folder is needed, choose another name")
        if folder == "replaced" and target.is_mount():
            raise OSError(0, "a mounted folder cannot be replaced; give a new folder inside it")
        start = target if folder == "filled" else target.parent
        existing = next(each for each in (start, *start.parents) if each.exists())
        Path(tempfile.mkdtemp(prefix=".seer-", dir=existing)).rmdir()


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` as UTF-8 to ``path`` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_folder(path: str | Path, files: Mapping[str, bytes]) -> None:
    """Write a folder with exactly these files to ``path``, and replace an older folder.

    ``files``: name → content; a name with ``/`` is a file in a subfolder. Raises `InputError` if the folder cannot be
    written.
    """
    target = Path(os.path.realpath(path))
    with _writing(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name[:40]}.", dir=target.parent))
        old = aside.with_name(f"{aside.name}.old")
        try:
            for name, content in files.items():
                (aside / name).parent.mkdir(parents=True, exist_ok=True)
                (aside / name).write_bytes(content)
            aside.chmod(0o777 & ~_mask())
            _put(aside, target, old)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
            if old.exists() and not target.exists():  # the second rename failed: restore the older folder
                old.rename(target)
            shutil.rmtree(old, ignore_errors=True)


def _put(aside: Path, target: Path, old: Path) -> None:
    """Rename ``aside`` to ``target``, and an older folder to ``old``. Try again if another process was faster."""
    for attempt in range(TRIES):
        try:
            if target.exists():
                target.rename(old)
            aside.rename(target)
            return
        except OSError as error:
            lost_race = error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST)
            if not lost_race or attempt == TRIES - 1:
                raise
            shutil.rmtree(old, ignore_errors=True)


@contextmanager
def staged(directory: str | Path, stale: Iterable[str] = ()) -> Iterator[Path]:
    """Yield an empty folder inside ``directory``. Its files move into ``directory`` if the block succeeds.

    If the block fails, the older files stay. ``stale`` lists files of earlier runs: they are removed if the block did
    not write them. Raises `InputError`, before the block begins, if the folder cannot be created or written.
    """
    directory = Path(directory)
    is_new = not directory.exists()
    require_writable(directory, "filled")
    with _writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".seer-", dir=directory))
    try:
        yield aside
        names = sorted(path.relative_to(aside) for path in aside.rglob("*") if path.is_file())
        for name in names:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (aside / name).replace(directory / name)
        for name in set(stale).difference(map(Path.as_posix, names)):
            (directory / name).unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(directory, error) from None
    except InputError as error:  # the user knows only the folder, not the temporary one
        raise InputError(str(error).replace(str(aside), str(directory))) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if is_new:
            with suppress(OSError):  # a folder with files stays
                directory.rmdir()


def checked_file(folder: Path, name: str, digest: str, *, max_bytes: int, remedy: str) -> bytes:
    """Return the content of ``folder / name``. Its SHA-256 must be ``digest`` (hexadecimal).

    Raises `InputError` if the file is outside the folder, missing, larger than ``max_bytes``, or has another hash.
    """
    file = folder / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise InputError(f"{folder}: its index names {name!r}, outside the folder; do not use it")
    try:
        if not file.is_file() or file.stat().st_size > max_bytes:
            raise InputError(f"{folder}: {name} is missing or larger than {max_bytes:,} bytes; {remedy}")
        content = file.read_bytes()
    except OSError as error:
        raise InputError(f"{folder}: {name} cannot be read ({error.strerror}); {remedy}") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise InputError(f"{folder}: {name} differs from its hash; it is truncated or was changed; {remedy}")
    return content


def require_readable(path: str | Path, schema: object, last: int) -> None:
    """Raise `InputError` if the file's ``schema`` is later than ``last``, the last one that this release reads."""
    if not isinstance(schema, int) or schema > last:
        written = f"{path}: written with schema {schema}"
        raise InputError(f"{written}, this release reads up to {last}; upgrade seer-surrogate")


def unwritable(path: str | Path, error: OSError | ValueError) -> InputError:
    """Return the error for a path that cannot be written."""
    reason = (isinstance(error, OSError) and error.strerror) or str(error)
    return InputError(f"{path}: cannot be written ({reason}); choose another place")


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
