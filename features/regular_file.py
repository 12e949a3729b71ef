"""A user's file must be a regular one: a pipe without a writer waits for ever, a device may never end."""

import os
import stat
from pathlib import Path

from .errors import InputError

STREAM_FOLDERS = (Path("/dev/fd"), Path("/proc/self/fd"))
STDIN = Path("/dev/stdin")
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def require_regular(path: str | Path, *, streams: bool = False) -> None:
    """Raise `InputError` where ``path`` is a pipe, a socket or a device; with ``streams`` this process's own may pass.

    Those are ``/dev/stdin`` and what a shell passes for ``<(…)``: they have a writer. A missing file and a folder are
    left to the reader, which says what it wants in their place.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    except ValueError:
        raise InputError(f"{str(path)!r} is no file's name; give the path of a file") from None
    kind = next((kind for test, kind in _KINDS if test(mode)), "")
    if kind and not (streams and kind == "a pipe" and (path == STDIN or path.parent in STREAM_FOLDERS)):
        raise InputError(f"{path}: is {kind}, no regular file; save what it gives to a file first")


def read_bounded(path: str | Path, max_bytes: int, *, streams: bool = False) -> bytes:
    """The content of a regular file (see `require_regular`) of at most ``max_bytes``.

    Raises `InputError` for a larger one, and the `OSError` of opening or reading it.
    """
    require_regular(path, streams=streams)
    with Path(path).open("rb") as file:
        if os.fstat(file.fileno()).st_size <= max_bytes:
            content = file.read(max_bytes + 1)  # a file can grow, and a stream tells no size
            if len(content) <= max_bytes:
                return content
    raise InputError(
        f"{path}: larger than {max_bytes:,} bytes, the most that such a file may have; check the path"
    )
