"""Files that appear whole or not at all: written under a temporary name in the same folder, then renamed."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from features.errors import InputError


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary name that takes the place of ``path`` when the block ends well, and vanishes when it fails.

    Raises `InputError` where the folder is missing or not writable.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: cannot be written (it is a folder); name a file in it")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); choose another place") from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """``text`` as UTF-8 at ``path``, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
