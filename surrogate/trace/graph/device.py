"""Device activities as tasks: what they and the host wait for, the lanes of their streams, and their delays.

Profilers record what a wait was for only when asked to. Without a record the wait is derived from what CUDA defines
and from time: an awaited task was launched before the wait and had ended (within 2 µs) when the wait ended.

Three things let a device task start: its stream's previous task, its launch call, awaited tasks of other streams. The
one that came last, allowing each its typical delay, is charged with the measured delay; the others keep the typical
one, so that a changed trace waits a plausible time where it waits for something else than before.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from surrogate.trace import events
from surrogate.trace.events.tables import Ints, Trace, grouped, linked
from surrogate.trace.graph.tasks import Floats, Mask

TOLERANCE_NS = 2000
UNEXPLAINED_US = 20.0
_LONG_LAUNCH = 10.0
"""Times the typical launch, and at least `_QUEUE_US`: the launch waited for room in the queue."""
_QUEUE_US = 100.0
_IMPLICIT_US = 20.0
_EARLY_US = 20.0
_DEFAULT_LATENCY_US, _DEFAULT_GAP_US = 5.0, 1.0
Pairs = list[tuple[int, int]]


class Waits(NamedTuple):
    """Who waits for whom; how many waits the trace holds, and how many of them have no target."""

    pairs: Pairs
    seen: int
    lost: int


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
            members = np.flatnonzero((activities.stream == stream) & (activities.call >= 0))
            launch = linked(trace.calls.start_ns, activities.call[members])
            order = np.argsort(launch, kind="stable")
            rows[stream], times[stream] = members[order], launch[order]
        return Launched(rows, times)

    def last(self, stream: int, before_ns: int) -> int:
        """The last activity launched on the stream before that time, -1 for none."""
        at = int(np.searchsorted(self.launch_ns[stream], before_ns, "left")) - 1
        return int(self.rows[stream][at]) if at >= 0 else -1

    def next(self, stream: int, from_ns: int) -> int:
        """The first activity launched on the stream at that time or later, -1 for none."""
        at = int(np.searchsorted(self.launch_ns[stream], from_ns, "left"))
        return int(self.rows[stream][at]) if at < len(self.rows[stream]) else -1


def awaited_by_calls(trace: Trace, launched: Launched) -> Waits:
    """(call, activity) where the call waits for the activity; of synchronising calls how many there are."""
    calls = trace.calls
    ends = trace.activities.end_ns
    pairs: Pairs = []
    seen = lost = 0
    streams = _recorded_streams(trace, events.SYNC_STREAM)
    for call in np.flatnonzero(_may_wait(trace)).tolist():
        kind = int(calls.kind[call])
        name = trace.name_of(calls, call).lower()
        if kind == events.SYNC_CALL:
            seen += 1
            targets = _targets(trace, launched, call, name, streams)
            lost += not targets
        elif kind == events.LAUNCH:
            targets = _queue_head(trace, launched, call)
        else:  # cudaFree waits for the device
            targets = [row for row in _finished(trace, launched, call) if ends[row] > calls.start_ns[call]]
        pairs += [(call, target) for target in targets]
    return Waits(pairs, seen, lost)


def _recorded_streams(trace: Trace, kind: int) -> dict[int, int]:
    """Call → stream of the synchronisation records of a kind that name both."""
    syncs = trace.syncs
    recorded = (syncs.call >= 0) & (syncs.stream >= 0) & (syncs.kind == kind)
    return dict(zip(syncs.call[recorded].tolist(), syncs.stream[recorded].tolist(), strict=True))


def _may_wait(trace: Trace) -> Mask:
    """Synchronising calls, launches so long that they must have waited for the queue, and frees that took long."""
    calls = trace.calls
    is_launch = calls.kind == events.LAUNCH
    typical_us = float(np.median(calls.time_us[is_launch])) if is_launch.any() else 5.0
    long_launch = is_launch & (calls.time_us > max(_QUEUE_US, _LONG_LAUNCH * typical_us))
    frees = trace.name_matches(calls, lambda name: "free" in name.lower() and "async" not in name.lower())
    implicit = (calls.kind == events.MEMORY_CALL) & frees & (calls.time_us > _IMPLICIT_US)
    return (calls.kind == events.SYNC_CALL) | long_launch | implicit


def _finished(trace: Trace, launched: Launched, call: int) -> list[int]:
    """Per stream the last activity launched before the call, where it had ended when the call did."""
    start = int(trace.calls.start_ns[call])
    end = int(trace.calls.end_ns[call]) + TOLERANCE_NS
    last = [launched.last(stream, start) for stream in launched.rows]
    return [row for row in last if row >= 0 and trace.activities.end_ns[row] <= end]


def _targets(trace: Trace, launched: Launched, call: int, name: str, streams: dict[int, int]) -> list[int]:
    """What a synchronising call waits for: every stream, the latest activity (an event), or its own stream."""
    finished = _finished(trace, launched, call)
    if not finished or "device" in name or "ctx" in name or "context" in name:
        return finished
    ends = trace.activities.end_ns
    latest = max(finished, key=lambda row: int(ends[row]))
    if "event" in name:
        return [latest] if ends[latest] >= trace.calls.start_ns[call] else []
    stream = streams[call] if call in streams else _own_stream(trace, launched, call)
    return [row for row in finished if trace.activities.stream[row] == stream] or [latest]


def _own_stream(trace: Trace, launched: Launched, call: int) -> int:
    """The stream that the calling thread launched on last; -1 for none."""
    start = int(trace.calls.start_ns[call])
    thread = trace.calls.thread[call]
    best = (-1, -1)
    for stream in launched.rows:
        row = launched.last(stream, start)
        if row >= 0 and trace.calls.thread[trace.activities.call[row]] == thread:
            best = max(best, (int(trace.calls.start_ns[trace.activities.call[row]]), stream))
    return best[1]


def _queue_head(trace: Trace, launched: Launched, call: int) -> list[int]:
    """The activity whose end let a long launch go on: the last one on its own stream that ended while it waited."""
    members = np.flatnonzero(trace.activities.call == call)
    if not len(members):
        return []
    start, end = trace.calls.start_ns[call], trace.calls.end_ns[call]
    stream = int(trace.activities.stream[members[0]])
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
    pageable = trace.name_matches(activities, lambda name: "pageable" in name.lower())
    is_async = trace.name_matches(calls, lambda name: "async" in name.lower())
    blocking = {}
    for row in np.flatnonzero((activities.kind == events.COPY) & (activities.call >= 0)).tolist():
        call = int(activities.call[row])
        if calls.kind[call] != events.COPY_CALL or activities.start_ns[row] >= calls.end_ns[call]:
            continue
        to_host = activities.copy_kind[row] == events.TO_HOST
        ends_inside = activities.end_ns[row] <= calls.end_ns[call]
        if ends_inside and (to_host or pageable[row] or not is_async[call]):
            blocking[call] = (row, True)
        elif pageable[row] and not to_host:
            blocking[call] = (row, False)
    return blocking


def awaited_by_streams(trace: Trace, launched: Launched) -> Waits:
    """(activity before, activity after) across streams for cudaStreamWaitEvent.

    The wait belongs to its recorded stream, else to that of the next launch on its thread. What it awaits is the
    last activity of the other streams of the device that was launched before it and ended before its stream went on.
    """
    calls, activities = trace.calls, trace.activities
    devices = [(stream.process, stream.device) for stream in trace.streams]
    # The first activity that each call launched; written backwards, so that the first one stays.
    with_call = np.flatnonzero(activities.call >= 0)[::-1]
    first_of_call = np.full(len(calls), -1)
    first_of_call[activities.call[with_call]] = with_call
    launching = np.flatnonzero(first_of_call >= 0)
    by_thread = dict(grouped(calls.thread, launching))
    stream_of = _recorded_streams(trace, events.SYNC_STREAM_WAIT)
    pairs: dict[tuple[int, int], None] = {}
    waits = np.flatnonzero(calls.kind == events.WAIT_CALL).tolist()
    lost = 0
    for wait in waits:
        # What goes on after the wait: the next launch on the recorded stream, else the next one of the wait's thread.
        wait_ns = int(calls.start_ns[wait])
        if stream_of.get(wait, -1) in launched.rows:
            after = launched.next(stream_of[wait], wait_ns)
        else:
            later = by_thread.get(int(calls.thread[wait]), launching[:0])
            at = int(np.searchsorted(later, wait, "right"))
            after = int(first_of_call[later[at]]) if at < len(later) else -1
        if after < 0:
            lost += 1
            continue
        # What it waits for: of every other stream of the device the last one launched before, if it had ended in time.
        stream = int(activities.stream[after])
        others = [s for s in launched.rows if s != stream and devices[s] == devices[stream]]
        before = [launched.last(other, wait_ns) for other in others]
        limit = activities.start_ns[after] + TOLERANCE_NS
        awaited = [row for row in before if row >= 0 and activities.end_ns[row] <= limit]
        lost += not awaited
        pairs.update(dict.fromkeys((row, after) for row in awaited))
    return Waits(list(pairs), len(waits), lost)


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """``lane`` of every activity, ``previous`` on its lane (-1: none), ``branch``: the task of another lane of its
    stream that it follows (-1: none). Lanes from 0; ``stream`` of each lane. More than one per stream only where
    activities of one stream overlap, as those of a CUDA graph's branches do."""

    lane: Ints
    previous: Ints
    branch: Ints
    stream: tuple[int, ...]


def lanes_of(trace: Trace) -> Lanes:
    """Activities of one stream in as few lanes as hold them without overlap (beyond 2 µs of rounding)."""
    activities = trace.activities
    lane = np.full(len(activities), -1)
    previous, branch = lane.copy(), lane.copy()
    streams: list[int] = []
    for stream, rows in grouped(activities.stream, np.arange(len(activities))):
        start, end = activities.start_ns[rows], activities.end_ns[rows]
        if (start[1:] >= end[:-1] - TOLERANCE_NS).all():
            lane[rows] = len(streams)
            previous[rows[1:]] = rows[:-1]
            streams.append(stream)
            continue
        # Each activity takes the first lane that is free when it begins. Where another free lane has the later one,
        # that is what it follows; where none is free, a lane opens.
        last: list[int] = []  # the last activity of each lane of this stream
        for row in rows.tolist():
            begins = int(activities.start_ns[row]) + TOLERANCE_NS
            free = [i for i, other in enumerate(last) if activities.end_ns[other] <= begins]
            chosen = free[0] if free else len(last)
            latest = max(free, key=lambda i: int(activities.end_ns[last[i]]), default=-1)
            if latest >= 0 and latest != chosen:
                branch[row] = last[latest]
            if chosen == len(last):
                last.append(row)
            else:
                previous[row] = last[chosen]
            lane[row] = len(streams) + chosen
            last[chosen] = row
        streams += [stream] * len(last)
    return Lanes(lane, previous, branch, tuple(streams))


@dataclass(frozen=True, slots=True, eq=False)
class Delays:
    """µs per activity: ``gap_us`` after the previous of its lane (first: after the origin), ``launch_us`` after its
    launch call's start (NaN without one), ``event_us`` after the latest awaited activity (NaN without one)."""

    gap_us: Floats
    launch_us: Floats
    event_us: Floats
    latency_us: float
    typical_gap_us: float
    unexplained_us: Floats


def delays_of(trace: Trace, lanes: Lanes, awaited_end_ns: Floats) -> Delays:
    """``awaited_end_ns``: end of the latest activity of other lanes that each one waits for, NaN for none."""
    activities = trace.activities
    start = activities.start_ns.astype(float)
    launch = linked(trace.calls.start_ns, activities.call, np.nan)
    before = linked(activities.end_ns, lanes.previous, np.nan)
    gap, latency, event = ((start - other) / 1e3 for other in (before, launch, awaited_end_ns))
    typical_gap, typical_latency = _typical(trace, gap, latency)
    # Each cause with its typical delay, or with the measured one where that was shorter; shape (3, activities).
    minimum = np.stack(
        [np.minimum(gap, typical_gap), np.minimum(latency, typical_latency), np.minimum(event, typical_gap)]
    )
    ready = np.stack([before, launch, awaited_end_ns]) / 1e3 + minimum
    has_cause = ~np.isnan(ready).all(axis=0)
    # A task with nothing to wait for starts at an absolute time.
    ready[0, ~has_cause] = 0.0
    minimum[0, ~has_cause] = 0.0
    # The cause that was ready last takes the rest of the measured delay.
    filled = np.where(np.isnan(ready), -np.inf, ready)
    binding = filled.argmax(axis=0)
    residual = np.maximum(start / 1e3 - filled.max(axis=0), 0.0) if len(start) else start
    minimum[binding, np.arange(len(start))] += residual
    gap_us = np.where((lanes.previous >= 0) | ~has_cause, minimum[0], 0.0)
    unexplained = np.where(has_cause & (residual > UNEXPLAINED_US), residual, 0.0)
    return Delays(np.nan_to_num(gap_us), minimum[1], minimum[2], typical_latency, typical_gap, unexplained)


def _typical(trace: Trace, gap: Floats, latency: Floats) -> tuple[float, float]:
    """Medians of kernels: the gap where the launch came 20 µs or more before, the latency where the stream was idle."""
    kernel = trace.activities.kind == events.KERNEL
    with np.errstate(invalid="ignore"):
        early = kernel & (latency - gap > _EARLY_US) & (gap < _EARLY_US)
        idle = kernel & ((gap > latency) | (np.isnan(gap) & ~np.isnan(latency)))
    gap_us = float(np.median(gap[early])) if early.any() else _DEFAULT_GAP_US
    latency_us = float(np.median(latency[idle])) if idle.any() else _DEFAULT_LATENCY_US
    return max(gap_us, 0.0), max(latency_us, 0.0)
