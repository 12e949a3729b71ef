"""Events of profiler traces as columns: the tables of a `Trace` and their guarantees.

``read_trace(path) -> Trace`` reads PyTorch profiler JSON (both generations of category names, .json, .gz, .bz2) and
Nsight Systems' sqlite exports.

The tables are frozen dataclasses of int64 NumPy columns. A value that is not in the trace is -1. Each table is sorted
by start; of rows that start together, the longest comes first:

- ``trace.ranges``       operators, annotations, steps and NVTX ranges on host threads, with shapes and autograd ids
- ``trace.frames``       Python frames: modules (``nn.Module: …``) and program lines; also system calls, the
                         DataLoader's code and garbage collections, by ``kind``; columns of ranges, own nesting
- ``trace.calls``        CUDA/HIP runtime and driver calls; ``kind`` separates launches, copies, synchronisations, …
- ``trace.activities``   kernels, copies, memsets, graphs on the device, with grid, block, registers, shared memory
- ``trace.syncs``        synchronisation records, if the profiler wrote them (else use ``calls.kind == SYNC_CALL``)
- ``trace.allocations``  memory records

Times are ``start_ns`` and ``end_ns``: integer ns from ``trace.origin_ns``, with end ≥ start. ``time_us`` gives µs as
floats. Indices: ``name`` → ``trace.names``, ``thread`` → ``trace.threads``, ``stream`` → ``trace.streams`` (device and
number), ``shapes`` → ``trace.shapes`` (a tuple per argument), ``types``, ``inputs`` (values of scalar arguments, as
text).

Links between tables:

- ``ranges.parent``     innermost enclosing range of the thread
- ``calls.range``       innermost range around the call
- ``activities.call``   launch call, by correlation id; kernels of one CUDA graph share the call of its launch
- ``activities.range``  range of the launch call
- ``allocations.range`` innermost range around the allocation

The codes of ``kind`` and ``copy_kind`` are constants of this package.

``iterations(trace)`` returns at least one iteration. ``iteration_of(chosen, trace)`` gives the iteration of every
range, call and activity. ``trim(trace, …)`` returns a smaller `Trace` with the same guarantees. ``trace.notes`` lists
the events that were left out, and ``trace.ignored`` counts them by category.
"""

import re
from functools import partial
from typing import Any

from surrogate.features.caches import cached_texts
from surrogate.features.errors import InputError, read_toml

OPERATOR, ANNOTATION, STEP, NVTX, FRAME, SYSTEM_CALL, LOADER, COLLECTION = range(8)
"""Kinds of a host range: a framework operator, a user's annotation, a profiler step, an NVTX range; and of a frame: a
module or a line of the program, a call of the operating system, code of the DataLoader, a garbage collection.
"""

MODULE = "nn.Module: "
"""The prefix in the names of frames that are modules."""

LAUNCH, GRAPH_LAUNCH, COPY_CALL, MEMSET_CALL, SYNC_CALL, RECORD_CALL, WAIT_CALL, MEMORY_CALL, OTHER_CALL = range(9)
"""Kinds of a runtime call."""
KERNEL, COPY, MEMSET, GRAPH = range(4)
"""Kinds of a device activity. `GRAPH` is a CUDA graph that was traced as one activity."""
MOVES = (COPY, MEMSET)
"""Kinds of activities that copy or fill memory."""

TO_DEVICE, TO_HOST, ON_DEVICE, PEER, ON_HOST, OTHER_COPY = range(6)
"""Directions of a copy; -1 for an activity that is not a copy."""
OVER_PCIE = (TO_DEVICE, TO_HOST)
"""Directions of copies over the link between host and device."""
COPY_KINDS = ("host to device", "device to host", "device to device", "peer to peer", "host to host", "other")

SYNC_EVENT, SYNC_STREAM_WAIT, SYNC_STREAM, SYNC_CONTEXT, SYNC_UNKNOWN = range(5)
"""Kinds of a synchronisation record."""
SYNC_KINDS = ("event", "stream waits for event", "stream", "context", "unknown")

_PATTERNS: dict[str, dict[str, str]] = read_toml(__file__, "kinds.toml")

COLLECTIVE_NAME, COLLECTION_NAME, FILE_CALL, NUMBER = map(re.compile, _PATTERNS["names"].values())
"""Match the names of kernels that communicate, those of frames and NVTX ranges that are garbage collections, Python's
functions on files, and the numbers and hashes in a label.
"""


@cached_texts(4096)
def _first_match(table: str, otherwise: int, name: str) -> int:
    """Return the code of the first pattern in a table of `kinds.toml` that the lower-case name matches."""
    patterns = _PATTERNS[table].items()
    return next((globals()[code] for code, pattern in patterns if re.search(pattern, name.lower())), otherwise)


call_kind = partial(_first_match, "calls", OTHER_CALL)
"""Return the kind of a runtime or driver call, from its name."""
copy_kind = partial(_first_match, "copies", OTHER_COPY)
"""Return the direction of a copy, from its name, such as ``Memcpy HtoD (Pageable -> Device)``."""
sync_kind = partial(_first_match, "syncs", SYNC_UNKNOWN)
"""Return the kind of a synchronisation record, from its name, such as ``Stream Wait Event``."""


_TEXTS: dict[str, str] = read_toml(__file__, "texts.toml")


def text(name: str, /, *values: object, **fields: Any) -> str:
    """Return a text of `texts.toml` with its ``values`` and ``fields``. A plural's ``s`` depends on ``count``."""
    return _TEXTS[name].format(*values, s="s" * int(fields.get("count") != 1), **fields)


def refusal(name: str, /, **fields: Any) -> InputError:
    """Return the error with a `text`."""
    return InputError(text(name, **fields))
