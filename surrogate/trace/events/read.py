"""Reading a trace file of either format, told apart by its first bytes, never by its name."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from surrogate.features.errors import InputError
from surrogate.features.regular_file import require_regular
from surrogate.trace.events.tables import Trace

if TYPE_CHECKING:
    from surrogate.formats.imported import Progress

_SQLITE = b"SQLite format 3\x00"


def read_trace(
    path: str | Path, *, max_bytes: int | None = None, progress: "Progress | None" = None
) -> Trace:
    """The trace in ``path``: a PyTorch profiler's JSON (plain, .gz, .bz2) or an Nsight Systems sqlite export.

    ``max_bytes`` is the most that a JSON file may unpack to (default: `foreign_file.DEFAULT_MAX_BYTES`), ``progress``
    is called with (bytes of the file read, its size) now and then. Raises `InputError` for a file that is missing,
    damaged, of another kind, too large, or holds no event.
    """
    path = Path(path)
    require_regular(path)
    try:
        with path.open("rb") as file:
            start = file.read(len(_SQLITE))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give the path of a trace") from None
    with _without_collector():
        if start == _SQLITE:
            from surrogate.trace.events.nsys import read_nsys

            trace = read_nsys(path)
        else:
            from surrogate.formats.foreign_file import DEFAULT_MAX_BYTES, read_bytes
            from surrogate.trace.events.kineto import read_kineto

            content = read_bytes(path, max_bytes=max_bytes or DEFAULT_MAX_BYTES, progress=progress)
            trace = read_kineto(content, str(path))
    if not (len(trace.ranges) or len(trace.calls) or len(trace.activities) or len(trace.frames)):
        raise InputError(
            f"{path}: holds no operators, calls or kernels; record it with torch.profiler's"
            " export_chrome_trace, or export it with nsys export --type sqlite"
        )
    return trace


@contextmanager
def _without_collector() -> Iterator[None]:
    """The garbage collector off: it would search millions of young tuples for cycles they cannot have."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
