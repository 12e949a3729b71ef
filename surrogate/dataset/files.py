"""What long work needs of its machine: progress that is told, and files that appear whole or not at all.

Files and folders are written under a temporary name beside their own, then renamed.
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
"""Called as work goes on with how much is done, how much there is in all, and a word on what is done (or nothing).

No two threads call it at once."""
CLEAR_SECONDS = 2.0
"""Work that took less foretells nothing."""
TRIES = 100
"""Times that a folder is put in place while other processes replace it, too."""


class TimeLeft:
    """The time that work will take yet, from what of it was timed in this process; a rate of another machine is none.

    ``amounts``: kind of work → how much there is of it (rows to fit, say). ``at_once``: so much runs at the same time.
    """

    def __init__(self, amounts: Mapping[str, float], at_once: int = 1) -> None:
        self._left = dict(amounts)
        self._done = dict.fromkeys(amounts, 0.0)
        self._seconds = dict.fromkeys(amounts, 0.0)
        self._at_once = at_once

    def add(self, kind: str, amount: float, seconds: float | None = None) -> None:
        """So much is done, and took ``seconds``; None where an earlier run had done it."""
        self._left[kind] -= amount
        if seconds is not None:
            self._done[kind] += amount
            self._seconds[kind] += seconds

    def seconds(self) -> float | None:
        """None until some of each kind that is left was timed."""
        left = [kind for kind, amount in self._left.items() if amount > 0]
        if sum(self._seconds.values()) < CLEAR_SECONDS or not all(self._done[kind] for kind in left):
            return None
        return sum(self._left[kind] * self._seconds[kind] / self._done[kind] for kind in left) / self._at_once

    def __str__(self) -> str:
        """As ``, about 4 min left``; nothing where it is unknown."""
        seconds = self.seconds()
        if seconds is None:
            return ""
        return f", about {seconds / 60:.0f} min left" if seconds >= 90 else f", about {seconds:.0f} s left"


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary name that takes the place of ``path`` when the block ends well, and vanishes when it fails.

    A symbolic link stays and what it names is replaced; a device or pipe (``/dev/stdout``) gets the finished content.
    Raises `InputError` where the folder is missing or not writable, the disk is full, or ``path`` is a folder.
    """
    target, temporary, is_stream = _temporary(path)
    try:
        yield temporary
        if is_stream:  # behind what the stream holds already: the shell may have opened a file for appending
            if sys.stdout:
                sys.stdout.flush()
            stdout = sys.stdout.buffer if path == STDOUT and sys.stdout else None
            with temporary.open("rb") as content, nullcontext(stdout) if stdout else Path(path).open("ab") as stream:
                shutil.copyfileobj(content, stream)
        else:
            temporary.chmod(0o666 & ~_mask())  # a temporary file has fewer permissions than any new one
            temporary.replace(target)
    except BrokenPipeError:
        raise  # the reader left, which is no fault of the path
    except OSError as error:
        raise unwritable(path, error) from None
    finally:
        temporary.unlink(missing_ok=True)


def _temporary(path: str | Path) -> tuple[Path, Path, bool]:
    """The file that ``path`` names, a new empty one that will take its place, and whether it is a stream instead."""
    try:
        target = Path(os.path.realpath(path))
        if target.is_symlink():  # a link to itself
            raise OSError(0, "it is a link to itself")
        if target.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        is_stream = str(path).startswith("/dev/") or (target.exists() and not target.is_file())
        folder = Path(tempfile.gettempdir()) if is_stream else target.parent
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", dir=folder)
        os.close(handle)
    except (OSError, ValueError) as error:  # a NUL in the name is a ValueError
        raise unwritable(path, error) from None
    return target, Path(name), is_stream


def require_writable(path: str | Path, folder: Literal["", "filled", "replaced"] = "") -> None:
    """Raise `InputError` before long work where the file could not be written after it, or the folder: one that is
    ``filled`` (`staged`), or ``replaced`` by another (`write_folder`). Nothing is left behind."""
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            Path(path).stat()  # which refuses what no file can be called, and what lies in a closed folder
        if not folder:
            target, temporary, _ = _temporary(path)
            temporary.unlink()
            if target.exists() and not os.access(target, os.W_OK):
                raise PermissionError(0, "the file that is there is read-only")
            return
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_dir():
            raise InputError(f"{path} is a file; a folder is needed, choose another name")
        if folder == "replaced" and target.is_mount():
            raise OSError(0, "a mounted folder cannot be replaced; name a new one below it")
        start = target if folder == "filled" else target.parent
        existing = next(each for each in (start, *start.parents) if each.exists())
        Path(tempfile.mkdtemp(prefix=".seer-", dir=existing)).rmdir()
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from None


def write_text(path: str | Path, text: str) -> None:
    """``text`` as UTF-8 at ``path``, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_folder(path: str | Path, files: Mapping[str, bytes]) -> None:
    """A folder of just these files (name, with ``/`` for one below → content) at ``path``; an older one is replaced.

    Raises `InputError` where the folder cannot be written.
    """
    target = Path(os.path.realpath(path))
    try:
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
            if old.exists() and not target.exists():  # the second rename failed: the older folder comes back
                old.rename(target)
            shutil.rmtree(old, ignore_errors=True)
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from None


def _put(aside: Path, target: Path, old: Path) -> None:
    """``aside`` at ``target``, an older folder at ``old``; tried again where another process was faster."""
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
    """An empty folder inside ``directory`` whose files move into ``directory`` when the block ends well.

    Entered before long work, it says at once that nothing can be written. Where the block fails, the older files stay.
    ``stale``: names that an earlier run may have left; those that the block did not write are removed. Raises
    `InputError` where the folder cannot be made or written.
    """
    directory = Path(directory)
    is_new = not directory.exists()
    require_writable(directory, "filled")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".seer-", dir=directory))
    except (OSError, ValueError) as error:
        raise unwritable(directory, error) from None
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
    except InputError as error:  # the reader knows the folder by its own name
        raise InputError(str(error).replace(str(aside), str(directory))) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if is_new:
            with suppress(OSError):  # stays where something was written
                directory.rmdir()


def checked_file(folder: Path, name: str, digest: str, *, max_bytes: int, remedy: str) -> bytes:
    """The content of ``folder / name``, whose SHA-256 must be ``digest`` (hexadecimal).

    Raises `InputError` where the file lies outside the folder, is missing or larger than ``max_bytes``, or differs.
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
    """Raise `InputError` for a file of a later ``schema`` than the ``last`` one that this release reads."""
    if not isinstance(schema, int) or schema > last:
        written = f"{path}: written with schema {schema}"
        raise InputError(f"{written}, this release reads up to {last}; upgrade seer-surrogate")


def unwritable(path: str | Path, error: OSError | ValueError) -> InputError:
    """The one line for a path that cannot be written."""
    reason = (isinstance(error, OSError) and error.strerror) or str(error)
    return InputError(f"{path}: cannot be written ({reason}); choose another place")


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
