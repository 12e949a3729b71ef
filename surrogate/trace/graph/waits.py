"""What host calls and streams wait for: synchronising calls, blocking copies, full launch queues, awaited events.

Profilers record what a wait was for only when asked to. Without a record the wait is derived from what CUDA defines
and from time: an awaited task was launched before the wait and had ended (within 2 µs) when the wait ended.
"""

from dataclasses import dataclass

import numpy as np

from surrogate.trace.events import kinds
from surrogate.trace.events.tables import Ints, Trace

TOLERANCE_NS = 2000
_LONG = 10.0
_QUEUE_US = 100.0
_IMPLICIT_US = 20.0


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """Per stream the activities that a call launched, in launch order (ns)."""

    rows: dict[int, Ints]
    launch_ns: dict[int, Ints]

    @staticmethod
    def of(trace: Trace) -> "Launched":
        activities = trace.activities
        rows, times = {}, {}
        for stream in np.unique(activities.stream).tolist():
            own = np.flatnonzero((activities.stream == stream) & (activities.call >= 0))
            launch = trace.calls.start_ns[activities.call[own]] if len(own) else own
            order = np.argsort(launch, kind="stable")
            rows[stream], times[stream] = own[order], launch[order]
        return Launched(rows, times)

    def last(self, stream: int, before_ns: int) -> int:
        """The last activity launched on the stream before that time, -1 for none."""
        place = int(np.searchsorted(self.launch_ns[stream], before_ns, "left")) - 1
        return int(self.rows[stream][place]) if place >= 0 else -1


def awaited_by_calls(trace: Trace, launched: Launched) -> tuple[list[tuple[int, int]], int, int]:
    """(call, activity) pairs where the call waits for the activity; synchronising calls; those without a target."""
    calls, pairs, seen, lost = trace.calls, [], 0, 0
    streams = _recorded_streams(trace)
    names = [name.lower() for name in trace.names]
    typical_us = _typical_launch_us(trace)
    for row in np.flatnonzero(_may_wait(trace, names, typical_us)).tolist():
        kind, name = int(calls.kind[row]), names[calls.name[row]]
        if kind == kinds.SYNC_CALL:
            seen += 1
            targets = _targets(trace, launched, row, name, streams)
            lost += not targets
        elif kind == kinds.LAUNCH:
            targets = _queue_head(trace, launched, row)
        else:  # cudaFree waits for the device
            targets = [
                a for a in _finished(trace, launched, row) if trace.activities.end_ns[a] > calls.start_ns[row]
            ]
        pairs += [(row, target) for target in targets]
    return pairs, seen, lost


def _may_wait(trace: Trace, names: list[str], typical_us: float) -> np.ndarray:
    calls = trace.calls
    frees = np.array(["free" in name and "async" not in name for name in names] or [False])
    long_launch = (calls.kind == kinds.LAUNCH) & (calls.time_us > max(_QUEUE_US, _LONG * typical_us))
    implicit = (calls.kind == kinds.MEMORY_CALL) & frees[calls.name] & (calls.time_us > _IMPLICIT_US)
    return (calls.kind == kinds.SYNC_CALL) | long_launch | implicit


def _typical_launch_us(trace: Trace) -> float:
    launches = trace.calls.time_us[trace.calls.kind == kinds.LAUNCH]
    return float(np.median(launches)) if len(launches) else 5.0


def _recorded_streams(trace: Trace) -> dict[int, int]:
    syncs = trace.syncs
    kept = (syncs.call >= 0) & (syncs.stream >= 0) & (syncs.kind == kinds.SYNC_STREAM)
    return dict(zip(syncs.call[kept].tolist(), syncs.stream[kept].tolist(), strict=True))


def _finished(trace: Trace, launched: Launched, call: int) -> list[int]:
    """Per stream the last activity launched before the call, where it had ended when the call did."""
    start, end = int(trace.calls.start_ns[call]), int(trace.calls.end_ns[call]) + TOLERANCE_NS
    last = [launched.last(stream, start) for stream in launched.rows]
    return [a for a in last if a >= 0 and trace.activities.end_ns[a] <= end]


def _targets(trace: Trace, launched: Launched, call: int, name: str, streams: dict[int, int]) -> list[int]:
    finished = _finished(trace, launched, call)
    if not finished or "device" in name or "ctx" in name or "context" in name:
        return finished
    ends = trace.activities.end_ns
    if "event" in name:
        latest = max(finished, key=lambda a: int(ends[a]))
        return [latest] if ends[latest] >= trace.calls.start_ns[call] else []
    stream = streams.get(call, _own_stream(trace, launched, call))
    named = [a for a in finished if trace.activities.stream[a] == stream]
    return named or [max(finished, key=lambda a: int(ends[a]))]


def _own_stream(trace: Trace, launched: Launched, call: int) -> int:
    """The stream that the calling thread launched on last; -1 for none."""
    start, thread, best = int(trace.calls.start_ns[call]), trace.calls.thread[call], (-1, -1)
    for stream in launched.rows:
        row = launched.last(stream, start)
        if row >= 0 and trace.calls.thread[trace.activities.call[row]] == thread:
            best = max(best, (int(trace.calls.start_ns[trace.activities.call[row]]), stream))
    return best[1]


def _queue_head(trace: Trace, launched: Launched, call: int) -> list[int]:
    """The activity whose end let a long launch go on: the last one on its own stream that ended while it waited."""
    own = np.flatnonzero(trace.activities.call == call)
    if not len(own):
        return []
    start, end = trace.calls.start_ns[call], trace.calls.end_ns[call]
    stream = int(trace.activities.stream[own[0]])
    rows = launched.rows[stream][launched.launch_ns[stream] < start]
    ends = trace.activities.end_ns[rows]
    inside = rows[(ends > start) & (ends <= end + TOLERANCE_NS)]
    return [int(inside[-1])] if len(inside) else []


def blocking_copies(trace: Trace) -> dict[int, tuple[int, bool]]:
    """Call → (copy, whether the call returns after the copy's *end*; else after its start, while it stages the data).

    A copy to pageable host memory ends before its call does; one from pageable memory is staged by the call, which so
    waits until the stream comes to it.
    """
    activities, calls = trace.activities, trace.calls
    pageable = np.array(["pageable" in name.lower() for name in trace.names] or [False])
    is_async = np.array(["async" in name.lower() for name in trace.names] or [False])
    found = {}
    for row in np.flatnonzero((activities.kind == kinds.COPY) & (activities.call >= 0)).tolist():
        call = int(activities.call[row])
        if calls.kind[call] != kinds.COPY_CALL or activities.start_ns[row] >= calls.end_ns[call]:
            continue
        paged = pageable[activities.name[row]]
        to_host = activities.copy_kind[row] == kinds.TO_HOST
        if activities.end_ns[row] <= calls.end_ns[call] and (
            to_host or paged or not is_async[calls.name[call]]
        ):
            found[call] = (row, True)
        elif paged and not to_host:
            found[call] = (row, False)
    return found


def awaited_by_streams(trace: Trace, launched: Launched) -> tuple[list[tuple[int, int]], int, int]:
    """(activity before, activity after) across streams for cudaStreamWaitEvent; the waits; those without a target.

    The wait belongs to its recorded stream, else to that of the next launch on its thread. What it awaits is the
    last activity of the other streams of the device that was launched before it and ended before its stream went on.
    """
    calls, activities = trace.calls, trace.activities
    devices = [(one.process, one.device) for one in trace.streams]
    first_of_call = np.full(len(calls), -1)
    first_of_call[activities.call[activities.call >= 0][::-1]] = np.flatnonzero(activities.call >= 0)[::-1]
    recorded = {
        int(c): int(s)
        for c, s, k in zip(trace.syncs.call, trace.syncs.stream, trace.syncs.kind, strict=True)
        if c >= 0 and s >= 0 and k == kinds.SYNC_STREAM_WAIT
    }
    pairs: dict[tuple[int, int], None] = {}
    waits = np.flatnonzero(calls.kind == kinds.WAIT_CALL).tolist()
    lost = 0
    for wait in waits:
        after = _next_activity(trace, launched, wait, recorded.get(wait, -1), first_of_call)
        if after < 0:
            lost += 1
            continue
        stream = int(activities.stream[after])
        others = [s for s in launched.rows if s != stream and devices[s] == devices[stream]]
        before = [launched.last(s, int(calls.start_ns[wait])) for s in others]
        limit = activities.start_ns[after] + TOLERANCE_NS
        kept = [a for a in before if a >= 0 and activities.end_ns[a] <= limit]
        lost += not kept
        pairs.update(dict.fromkeys((a, after) for a in kept))
    return list(pairs), len(waits), lost


def _next_activity(trace: Trace, launched: Launched, wait: int, stream: int, first_of_call: Ints) -> int:
    calls = trace.calls
    if stream >= 0 and stream in launched.rows:
        place = int(np.searchsorted(launched.launch_ns[stream], calls.start_ns[wait], "left"))
        return int(launched.rows[stream][place]) if place < len(launched.rows[stream]) else -1
    thread = calls.thread[wait]
    for later in range(wait + 1, len(calls)):
        if calls.thread[later] == thread and first_of_call[later] >= 0:
            return int(first_of_call[later])
    return -1
