"""One door to all trace files: the format is told by the first bytes, never by the name."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from surrogate.features.errors import InputError
from surrogate.features.regular_file import require_regular
from surrogate.trace.events.tables import Trace

if TYPE_CHECKING:
    from surrogate.formats.foreign_file import Progress

DEFAULT_MAX_BYTES = 8 << 30
"""Most bytes a packed trace may unpack to; events are read one by one, so this bounds time, not memory."""
MAX_RATIO = 200
"""Most bytes that one packed byte may stand for, beyond the first `FREE_BYTES`; traces pack 10 to 40 times."""
FREE_BYTES = 64 << 20
_SQLITE = b"SQLite format 3\x00"
_TAR_MARK = slice(257, 262)


def read_trace(
    path: str | Path, *, max_bytes: int = DEFAULT_MAX_BYTES, progress: "Progress | None" = None
) -> Trace:
    """The trace in ``path``: a PyTorch profiler's JSON (plain, .gz, .bz2) or an Nsight Systems sqlite export.

    ``progress`` is told (bytes of the file read, its size) now and then. Raises `InputError` for a file that is
    missing, damaged, of another kind, unpacks to more than ``max_bytes`` or over `MAX_RATIO` times its size, holds more
    than `kineto.MAX_EVENTS` events, or none at all.
    """
    path = Path(path)
    require_regular(path)
    try:
        with path.open("rb") as file:
            start = file.read(len(_SQLITE))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give the path of a trace") from None
    with _no_collection():
        if start == _SQLITE:
            from surrogate.trace.events.nsys import read_nsys

            trace = read_nsys(path)
        else:
            from surrogate.trace.events.kineto import read_kineto

            trace = read_kineto(_pieces(path, max_bytes, progress), str(path))
    if not (len(trace.ranges) or len(trace.calls) or len(trace.activities) or len(trace.frames)):
        raise InputError(
            f"{path}: holds no operators, calls or kernels; record it with torch.profiler's"
            " export_chrome_trace, or export it with nsys export --type sqlite"
        )
    return trace


def _pieces(path: Path, max_bytes: int, progress: "Progress | None") -> Iterator[bytes]:
    """The unpacked bytes; `InputError` for an archive of several files, and for one that is all padding."""
    from surrogate.formats.foreign_file import chunks

    packed = seen = 0

    def step(done: int, total: int) -> None:
        nonlocal packed
        packed = done
        if progress:
            progress(done, total)

    for piece in chunks(path, max_bytes=max_bytes, progress=step):
        if not seen and piece[_TAR_MARK] == b"ustar":
            raise InputError(
                f"{path}: an archive of several files; unpack it (tar xf) and give one trace of it"
            )
        seen += len(piece)
        if seen > FREE_BYTES and seen > MAX_RATIO * packed:
            raise InputError(
                f"{path}: unpacks to over {MAX_RATIO} times its size, which no trace does; unpack it yourself"
                " if you trust it"
            )
        yield piece


@contextmanager
def _no_collection() -> Iterator[None]:
    """The garbage collector off: it would search millions of young tuples for cycles they cannot have."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
