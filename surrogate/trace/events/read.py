"""One door to all trace files: the format is told by the first bytes, never by the name."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from features.errors import InputError
from surrogate.trace.events.tables import Trace

DEFAULT_MAX_BYTES = 8 << 30
"""Most bytes a packed trace may unpack to; events are read one by one, so this bounds time, not memory."""
_SQLITE = b"SQLite format 3\x00"


def read_trace(path: str | Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Trace:
    """The trace in ``path``: a PyTorch profiler's JSON (plain, .gz, .bz2) or an Nsight Systems sqlite export.

    Raises `InputError` for a file that is missing, damaged, of another kind, unpacks to more than ``max_bytes``,
    or holds no event at all.
    """
    from surrogate.formats.foreign_file import chunks

    path = Path(path)
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

            trace = read_kineto(chunks(path, max_bytes=max_bytes), str(path))
    if not (len(trace.ranges) or len(trace.calls) or len(trace.activities) or len(trace.frames)):
        raise InputError(
            f"{path}: holds no operators, calls or kernels; record it with torch.profiler's"
            " export_chrome_trace, or export it with nsys export --type sqlite"
        )
    return trace


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
