"""Events of profiler traces as columns: what `Trace` holds, and what every table promises.

``read_trace(path) -> Trace`` reads PyTorch profiler JSON (both generations of category names, .json, .gz, .bz2) and
Nsight Systems' sqlite exports.

Tables (frozen dataclasses of int64 NumPy columns, -1 = not in the trace), each sorted by start (ties: longest first):

- ``trace.ranges``       operators, annotations, steps and NVTX ranges on host threads, with shapes and autograd ids
- ``trace.frames``       Python frames: modules (``nn.Module: …``) and lines of the program, same columns, nested apart
- ``trace.calls``        CUDA/HIP runtime and driver calls; ``kind`` tells launches, copies, synchronisations, …
- ``trace.activities``   kernels, copies, memsets, graphs on the device, with grid, block, registers, shared memory
- ``trace.syncs``        synchronisation records, where the profiler wrote them (else see ``calls.kind == SYNC_CALL``)
- ``trace.allocations``  memory records

Times are ``start_ns``, ``end_ns``: whole ns from ``trace.origin_ns`` (end ≥ start; ``time_us`` gives µs as float).
Indices: ``name`` → ``trace.names``, ``thread`` → ``trace.threads``, ``stream`` → ``trace.streams`` (device and number),
``shapes`` → ``trace.shapes`` (a tuple per argument), ``types``, ``inputs`` (values of scalar arguments, as text).
Links: ``ranges.parent`` (innermost enclosing range of the thread), ``calls.range``, ``activities.call`` (by correlation
id; kernels of one CUDA graph share the call of its launch), ``activities.range`` (the launch call's range),
``allocations.range``. Codes of ``kind`` and ``copy_kind`` are constants of this package.

``iterations(trace)`` is never empty; ``iteration_of(chosen, trace)`` gives the iteration of every range, call and
activity; ``trim(trace, …)`` returns a smaller `Trace` under the same promises. What was left out is said in
``trace.notes`` and counted by category in ``trace.ignored``.
"""

import re

OPERATOR, ANNOTATION, STEP, NVTX, FRAME = range(5)
"""Kinds of a host range: a framework operator, a user's annotation, a profiler step, an NVTX range, a Python frame."""

MODULE = "nn.Module: "
"""How names of frames that are modules begin."""

LAUNCH, GRAPH_LAUNCH, COPY_CALL, MEMSET_CALL, SYNC_CALL, RECORD_CALL, WAIT_CALL, MEMORY_CALL, OTHER_CALL = range(9)
"""Kinds of a runtime call."""
KERNEL, COPY, MEMSET, GRAPH = range(4)
"""Kinds of a device activity; `GRAPH` is a whole CUDA graph that was traced as one activity."""

TO_DEVICE, TO_HOST, ON_DEVICE, PEER, ON_HOST, OTHER_COPY = range(6)
"""Directions of a copy; -1 for what is no copy."""
COPY_KINDS = ("host to device", "device to host", "device to device", "peer to peer", "host to host", "other")

SYNC_EVENT, SYNC_STREAM_WAIT, SYNC_STREAM, SYNC_CONTEXT, SYNC_UNKNOWN = range(5)
"""Kinds of a synchronisation record."""
SYNC_KINDS = ("event", "stream waits for event", "stream", "context", "unknown")

COLLECTIVE_NAME = re.compile(r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter", re.I)
"""In the name of a kernel that communicates."""

# Regular expressions of which the first match wins, on the name in lower case: CUDA's runtime and driver API and HIP's.
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


def call_kind(name: str) -> int:
    """The kind of the runtime or driver call of that name."""
    return _first(_CALLS, name, OTHER_CALL)


def copy_kind(name: str) -> int:
    """The direction in the name of a copy, such as ``Memcpy HtoD (Pageable -> Device)``."""
    return _first(_COPIES, name, OTHER_COPY)


def sync_kind(name: str) -> int:
    """The kind of a synchronisation record by its name, such as ``Stream Wait Event``."""
    return _first(_SYNCS, name, SYNC_UNKNOWN)


def _first(codes: dict[str, int], name: str, otherwise: int) -> int:
    lower = name.lower()
    return next((kind for pattern, kind in codes.items() if re.search(pattern, lower)), otherwise)
