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

COLLECTIVE_NAME = re.compile(r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter", re.I)
"""Matches the names of kernels that communicate."""

COLLECTION_NAME = re.compile(
    r"^(?:Python )?GC(?:$|[\s:#])|garbage.?collect|^<built-in function collect>$|\bgc\.collect\b", re.I
)
"""Matches the names of frames and NVTX ranges that are garbage collections."""

# Regular expressions on the lower-case name of CUDA's runtime and driver API and HIP's; the first match counts.
_CALLS = {
    r"graphlaunch": GRAPH_LAUNCH,
    r"launch(?!hostfunc)": LAUNCH,
    r"memcpy": COPY_CALL,
    r"memset": MEMSET_CALL,
    r"synchronize": SYNC_CALL,
    r"eventrecord": RECORD_CALL,
    r"waitevent|waitvalue": WAIT_CALL,
    r"malloc|free|hostalloc|memalloc|memcreate|memmap|hostregister": MEMORY_CALL,
}
_COPIES = {
    r"htod|host\W*(?:to|->)\W*device": TO_DEVICE,
    r"dtoh|device\W*(?:to|->)\W*host": TO_HOST,
    r"dtod|device\W*(?:to|->)\W*device": ON_DEVICE,
    r"ptop|peer": PEER,
    r"htoh": ON_HOST,
}
_SYNCS = {r"wait": SYNC_STREAM_WAIT, r"event": SYNC_EVENT, r"stream": SYNC_STREAM, r"context|device": SYNC_CONTEXT}


def _first_match(codes: dict[str, int], otherwise: int, name: str) -> int:
    lower = name.lower()
    return next((kind for pattern, kind in codes.items() if re.search(pattern, lower)), otherwise)


call_kind = partial(_first_match, _CALLS, OTHER_CALL)
"""Return the kind of a runtime or driver call, from its name."""
copy_kind = partial(_first_match, _COPIES, OTHER_COPY)
"""Return the direction of a copy, from its name, such as ``Memcpy HtoD (Pageable -> Device)``."""
sync_kind = partial(_first_match, _SYNCS, SYNC_UNKNOWN)
"""Return the kind of a synchronisation record, from its name, such as ``Stream Wait Event``."""
