"""A file of a bundle, read only if it is what the bundle's index says: the check before any parser sees it."""

import hashlib
import stat
from pathlib import Path

from surrogate.features.errors import InputError


def checked_file(folder: Path, name: str, digest: str, *, index: str, max_bytes: int, remedy: str) -> bytes:
    """The content of ``folder / name``, whose SHA-256 must be ``digest`` (hexadecimal).

    ``index`` is the file that names both. Raises `InputError` where the file lies outside the folder, is larger than
    ``max_bytes``, is missing (with the ``remedy``) or differs from its hash.
    """
    try:
        file = (folder / name).resolve()
    except (OSError, ValueError, RuntimeError):  # a link to itself, a zero byte
        raise InputError(f"{folder}: {index} names {name!r}, which is no file's name; {remedy}") from None
    if not file.is_relative_to(folder.resolve()):
        raise InputError(f"{folder}: {index} names {name!r}, outside the bundle; do not use this bundle")
    try:
        state = file.stat()
        if not stat.S_ISREG(state.st_mode):
            raise InputError(f"{folder}: {name} is no regular file; do not use this bundle")
        if state.st_size > max_bytes:
            raise InputError(f"{folder}: {name} is larger than {max_bytes} bytes; do not use this bundle")
        content = file.read_bytes()
    except OSError:
        raise InputError(f"{folder}: {name} is missing; {remedy}") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise InputError(
            f"{folder}: {name} differs from its hash in {index}; it is truncated or was changed, do not use it"
        )
    return content
