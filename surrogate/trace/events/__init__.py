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
``allocations.range``. Codes of ``kind`` and ``copy_kind`` are constants of `surrogate.trace.events.kinds`.

``iterations(trace)`` is never empty; ``iteration_of(chosen, trace)`` gives the iteration of every range, call and
activity; ``trim(trace, …)`` returns a smaller `Trace` under the same promises. What was left out is said in
``trace.notes`` and counted by category in ``trace.ignored``.
"""
