"""Convert device activities into tasks: their waits, the waits of the host, the lanes of streams, and delays.

Profilers record the target of a wait only if configured to do so. Without a record, the target follows from CUDA's
definitions and from times: an awaited task was launched before the wait and had ended (within 2 µs) when the wait
ended.

Three events let a device task start: the end of its stream's previous task, its launch call, and the ends of awaited
tasks of other streams. Each event has a typical delay. The event that came last, including its typical delay, gets the
measured delay; the others keep their typical delays. So a task in a changed trace has a plausible delay if another
event decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from surrogate.trace import events
from surrogate.trace.events.tables import Activities, Ints, Iteration, Trace, grouped, linked, take_rows
from surrogate.trace.graph.tasks import Floats, Mask

TOLERANCE_NS = 2000
"""Tolerance in ns for comparisons of recorded times of the host and of the device."""
UNEXPLAINED_US = 20.0
"""A delay above this, in µs, in addition to the typical delay of its cause, counts as unexplained."""
_LONG_LAUNCH = 10.0
"""A launch waited for the queue if it took more than this multiple of the typical launch, and over `_QUEUE_US`."""
_QUEUE_US = 100.0
_IMPLICIT_US = 20.0
"""A call that may wait for the device did so if it took more than this, in µs."""
_EARLY_US = 20.0
"""The typical gap comes from kernels that were launched at least this long, in µs, before the previous kernel ended."""
_DEFAULT_LATENCY_US, _DEFAULT_GAP_US = 5.0, 1.0
"""Launch latency and gap between kernels in µs, if the trace has no kernel that shows them."""
Pairs = list[tuple[int, int]]


class Waits(NamedTuple):
    """Pairs of a waiting and an awaited event; the number of waits in the trace, and of waits without a target."""

    pairs: Pairs
    total: int
    without_target: int


def earlier_work(trace: Trace, iterations: Sequence[Iteration]) -> Activities:
    """Return the activities of left-out iterations that run in ``iterations`` and were launched before them.

    They begin before the first activity of their stream.
    """
    activities = trace.activities
    if trace.others is None:
        return take_rows(activities, np.arange(0))
    first_ns = np.full(len(trace.streams), activities.start_ns[:1].max(initial=0))
    for stream, rows in grouped(activities.stream, np.arange(len(activities))):
        first_ns[stream] = activities.start_ns[rows[0]]
    runs = trace.others.end_ns > min(each.start_ns for each in iterations)
    return take_rows(trace.others, runs & (trace.others.start_ns < first_ns[trace.others.stream]))


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """The activities of each stream with their launch times in ns, in launch order.

    An activity without a launch call before the first one with a call was launched before the recording. Its launch
    time is before all others. ``unlinked`` are the activities without a launch call, in order of their end.
    ``reach_ns`` is the latest end of each row of ``rows`` and of the rows before it.
    """

    rows: dict[int, Ints]
    launch_ns: dict[int, Ints]
    unlinked: dict[int, Ints]
    reach_ns: dict[int, Ints]
    end_ns: Ints

    @staticmethod
    def of(trace: Trace) -> "Launched":
        activities = trace.activities
        rows, times, unlinked, reach = {}, {}, {}, {}
        for stream, members in grouped(activities.stream, np.arange(len(activities))):
            linked_rows = members[activities.call[members] >= 0]
            launch = linked(trace.calls.start_ns, activities.call[linked_rows])
            order = np.argsort(launch, kind="stable")
            rows[stream], times[stream] = linked_rows[order], launch[order]
            reach[stream] = np.maximum.accumulate(activities.end_ns[rows[stream]])
            others = members[activities.call[members] < 0]
            unlinked[stream] = others[np.argsort(activities.end_ns[others], kind="stable")]
        return Launched(rows, times, unlinked, reach, activities.end_ns)

    def last(self, stream: int, before_ns: int) -> int:
        """Return the last activity with a call that was launched on the stream before that time, -1 for none."""
        at = int(np.searchsorted(self.launch_ns[stream], before_ns, "left")) - 1
        return int(self.rows[stream][at]) if at >= 0 else -1

    def ended(self, stream: int, before_ns: int, until_ns: int) -> int:
        """Return the last activity to end by one time that was launched on the stream before another, -1 for none.

        An activity without a launch call counts as launched before.
        """
        count = np.searchsorted(self.launch_ns[stream], before_ns, "left")
        others = self.unlinked[stream]
        columns = (self.rows[stream], self.reach_ns[stream][:count]), (others, self.end_ns[others])
        places = [(rows, int(np.searchsorted(ends, until_ns, "right")) - 1) for rows, ends in columns]
        found = [int(rows[at]) for rows, at in places if at >= 0]
        return max(found, key=lambda row: int(self.end_ns[row]), default=-1)

    def finished(self, stream: int, before_ns: int, until_ns: int) -> int:
        """Return `ended` if all activities that were launched before had ended by then, else -1."""
        last = self.last(stream, before_ns)
        return -1 if last >= 0 and self.end_ns[last] > until_ns else self.ended(stream, before_ns, until_ns)

    def next(self, stream: int, from_ns: int) -> int:
        """Return the first activity that was launched on the stream at that time or later, -1 for none."""
        at = int(np.searchsorted(self.launch_ns[stream], from_ns, "left"))
        return int(self.rows[stream][at]) if at < len(self.rows[stream]) else -1


def awaited_by_calls(trace: Trace, launched: Launched) -> Waits:
    """Return (call, awaited activity) pairs, and the number of synchronising calls."""
    ends = trace.activities.end_ns
    pairs: Pairs = []
    total = without_target = 0
    streams = _recorded_streams(trace, events.SYNC_STREAM)
    for call in np.flatnonzero(_may_wait(trace)).tolist():
        kind = int(trace.calls.kind[call])
        name = trace.name_of(trace.calls, call).lower()
        if kind in (events.SYNC_CALL, events.COPY_CALL):
            total += 1
            targets = _targets(trace, launched, call, name, streams)
            without_target += not targets
        elif kind == events.LAUNCH:
            targets = _queue_head(trace, launched, call)
        else:  # cudaFree waits for the device
            targets = [row for row in _finished(trace, launched, call) if ends[row] > trace.calls.start_ns[call]]
        pairs += [(call, target) for target in targets]
    return Waits(pairs, total, without_target)


def _recorded_streams(trace: Trace, kind: int) -> dict[int, int]:
    """Return call → stream for the synchronisation records of a kind that name both."""
    syncs = trace.syncs
    recorded = (syncs.call >= 0) & (syncs.stream >= 0) & (syncs.kind == kind)
    return dict(zip(syncs.call[recorded].tolist(), syncs.stream[recorded].tolist(), strict=True))


def _may_wait(trace: Trace) -> Mask:
    """Return a mask of the calls that may wait for the device.

    They are synchronising calls, launches so long that they waited for the queue, long calls that free memory, and
    blocking copies without an activity.
    """
    calls = trace.calls
    is_launch = calls.kind == events.LAUNCH
    typical_us = float(np.median(calls.time_us[is_launch])) if is_launch.any() else 5.0
    long_launch = is_launch & (calls.time_us > max(_QUEUE_US, _LONG_LAUNCH * typical_us))
    implicit = frees(trace) & (calls.time_us > _IMPLICIT_US)
    return (calls.kind == events.SYNC_CALL) | long_launch | implicit | copies_without_activity(trace)


def frees(trace: Trace) -> Mask:
    """Return a mask of the calls that free memory after the device has ended its work."""
    by_name = trace.name_matches(trace.calls, lambda name: "free" in name.lower())
    return by_name & (trace.calls.kind == events.MEMORY_CALL) & ~_is_async(trace)


def _is_async(trace: Trace) -> Mask:
    return trace.name_matches(trace.calls, lambda name: "async" in name.lower())


def copies_without_activity(trace: Trace) -> Mask:
    """Return a mask of the calls of blocking copies that have no activity in the trace."""
    calls = trace.calls
    blocks = (calls.kind == events.COPY_CALL) & ~_is_async(trace)
    return blocks & ~np.isin(np.arange(len(calls)), trace.activities.call)


def _finished(trace: Trace, launched: Launched, call: int, any_of: bool = False) -> list[int]:
    """Return per stream of the call's process the last activity that was launched before the call, if it had ended when
    the call ended. With ``any_of``, it is the last one of them that had ended.
    """
    start = int(trace.calls.start_ns[call])
    end = int(trace.calls.end_ns[call]) + TOLERANCE_NS
    process = trace.threads[int(trace.calls.thread[call])].process if trace.calls.thread[call] >= 0 else ""
    streams = [stream for stream in launched.rows if trace.streams[stream].process in ("", process)]
    find = launched.ended if any_of else launched.finished
    return [row for stream in streams if (row := find(stream, start, end)) >= 0]


def _targets(trace: Trace, launched: Launched, call: int, name: str, streams: dict[int, int]) -> list[int]:
    """Return the activities that a synchronising call waits for.

    A call for the device waits for every stream, a call for an event for the latest activity. Other calls wait for
    their own stream, or for another one if their own was idle and they took long.
    """
    started = trace.calls.start_ns[call]
    ends = trace.activities.end_ns
    ended = _finished(trace, launched, call, any_of=True)
    if not ended or "device" in name or "ctx" in name or "context" in name:
        return ended
    if "event" in name:
        latest = max(ended, key=lambda row: int(ends[row]))
        return [latest] if ends[latest] >= started else []
    stream = streams[call] if call in streams else _own_stream(trace, launched, call)
    own = [row for row in ended if trace.activities.stream[row] == stream]
    latest = max(_finished(trace, launched, call), key=lambda row: int(ends[row]), default=-1)
    is_other = own and call not in streams and latest >= 0 and ends[own[0]] < started < ends[latest]
    return own if own and not (is_other and trace.calls.time_us[call] > _IMPLICIT_US) else [latest] * (latest >= 0)


def _own_stream(trace: Trace, launched: Launched, call: int) -> int:
    """Return the stream that the calling thread launched on last; -1 for none."""
    start = int(trace.calls.start_ns[call])
    thread = trace.calls.thread[call]
    best = (-1, -1)
    for stream in launched.rows:
        row = launched.last(stream, start)
        if row >= 0 and trace.calls.thread[trace.activities.call[row]] == thread:
            best = max(best, (int(trace.calls.start_ns[trace.activities.call[row]]), stream))
    return best[1]


def _queue_head(trace: Trace, launched: Launched, call: int) -> list[int]:
    """Return the activity that delayed a long launch.

    It is the last activity on its stream that ended during the launch.
    """
    members = np.flatnonzero(trace.activities.call == call)
    if not len(members):
        return []
    start, end = int(trace.calls.start_ns[call]), int(trace.calls.end_ns[call])
    stream = int(trace.activities.stream[members[0]])
    row = launched.ended(stream, start, end + TOLERANCE_NS)
    return [row] if row >= 0 and trace.activities.end_ns[row] > start else []


def blocking_copies(trace: Trace) -> dict[int, tuple[int, bool]]:
    """Return call → (copy, whether the call returns after the copy's *end*) for copies that block the host.

    Otherwise the call returns after the copy's start, while it stages the data. A call without "Async" in its name, and
    a copy to pageable host memory, return after the copy's end. ROCm's names of copies do not say whether memory is
    pageable. A copy from pageable memory is staged by the call, which therefore waits for the stream.
    """
    activities, calls = trace.activities, trace.calls
    copies = np.flatnonzero((activities.kind == events.COPY) & (activities.call >= 0))
    call = activities.call[copies]
    pageable, pinned = (
        trace.name_matches(activities, lambda name, word=word: word in name.lower())[copies]
        for word in ("pageable", "pinned")
    )
    is_async = _is_async(trace)[call]
    overlaps = (calls.kind[call] == events.COPY_CALL) & (activities.start_ns[copies] < calls.end_ns[call])
    to_host = activities.copy_kind[copies] == events.TO_HOST
    at_end = ~is_async | pageable | (to_host & ~pinned)
    at_end &= overlaps & (activities.end_ns[copies] <= calls.end_ns[call] + TOLERANCE_NS)
    staged = overlaps & pageable & ~to_host & ~at_end
    blocks = at_end | staged
    values = zip(copies[blocks].tolist(), at_end[blocks].tolist(), strict=True)
    return dict(zip(call[blocks].tolist(), values, strict=True))


def awaited_by_streams(trace: Trace, launched: Launched) -> Waits:
    """Return (activity before, activity after) pairs across streams for cudaStreamWaitEvent.

    The wait belongs to its recorded stream, else to the stream of the next launch on its thread. The awaited activity
    is the last one on each other stream of the device that was launched before the wait and had ended when the stream
    continued.
    """
    calls, activities = trace.calls, trace.activities
    devices = [(stream.process, stream.device) for stream in trace.streams]
    # Find the first activity that each call launched. Writing backwards keeps the first one.
    with_call = np.flatnonzero(activities.call >= 0)[::-1]
    first_of_call = np.full(len(calls), -1)
    first_of_call[activities.call[with_call]] = with_call
    launching = np.flatnonzero(first_of_call >= 0)
    by_thread = dict(grouped(calls.thread, launching))
    stream_of = _recorded_streams(trace, events.SYNC_STREAM_WAIT)
    pairs: dict[tuple[int, int], None] = {}
    waits = np.flatnonzero(calls.kind == events.WAIT_CALL).tolist()
    without_target = 0
    for wait in waits:
        # Find the waiting activity: the next launch on the recorded stream, else the next one of the wait's thread.
        wait_ns = int(calls.start_ns[wait])
        if stream_of.get(wait, -1) in launched.rows:
            after = launched.next(stream_of[wait], wait_ns)
        else:
            later = by_thread.get(int(calls.thread[wait]), launching[:0])
            at = int(np.searchsorted(later, wait, "right"))
            after = int(first_of_call[later[at]]) if at < len(later) else -1
        if after < 0:
            without_target += 1
            continue
        # Find the awaited ones: per other stream of the device, the last one launched before, if it ended in time.
        stream = int(activities.stream[after])
        others = [s for s in launched.rows if s != stream and devices[s] == devices[stream]]
        limit_ns = int(activities.start_ns[after]) + TOLERANCE_NS
        awaited = [row for other in others if (row := launched.finished(other, wait_ns, limit_ns)) >= 0]
        without_target += not awaited
        pairs.update(dict.fromkeys((row, after) for row in awaited))
    return Waits(list(pairs), len(waits), without_target)


def unrecorded_waits(trace: Trace, unexplained_us: Floats) -> Pairs:
    """Return (activity before, activity after) pairs for unexplained waits of streams, inferred from times.

    The awaited activity is the last one of another stream of the device that was launched before the waiting one and
    ended up to `UNEXPLAINED_US` before its start.
    """
    activities = trace.activities
    device = linked(np.array([stream.device for stream in trace.streams], np.int64), activities.stream)
    launch_ns = np.where(activities.call >= 0, linked(trace.calls.start_ns, activities.call), activities.start_ns)
    by_end = np.argsort(activities.end_ns, kind="stable")
    ends_ns = activities.end_ns[by_end]
    pairs: Pairs = []
    for after in np.flatnonzero(unexplained_us > 0).tolist():
        window_ns = activities.start_ns[after] + np.array([-1e3 * UNEXPLAINED_US, TOLERANCE_NS])
        rows = by_end[slice(*np.searchsorted(ends_ns, window_ns))]
        others = (activities.stream[rows] != activities.stream[after]) & (device[rows] == device[after])
        pairs += [(row, after) for row in rows[others & (launch_ns[rows] < launch_ns[after])][-1:].tolist()]
    return pairs


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """The lanes of streams. A stream has several lanes only if its activities overlap, as the branches of CUDA graphs
    do.

    Attributes
    ----------
    lane
        The lane of every activity, from 0.
    previous
        The previous activity on the lane, -1 for none.
    branch
        The activity of another lane of the stream that it follows, -1 for none.
    stream
        The stream of each lane.
    """

    lane: Ints
    previous: Ints
    branch: Ints
    stream: tuple[int, ...]


def lanes_of(trace: Trace) -> Lanes:
    """Return the activities of each stream in as few lanes as possible without overlap above 2 µs of rounding."""
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
        # Each activity takes the first free lane, or a new lane. It follows the activity that ended last on any free
        # lane.
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
    """Delays of activities in µs.

    ``gap_us`` counts from the previous activity of the lane, or from the origin for the first one. ``launch_us`` counts
    from the start of the launch call, ``event_us`` from the end of the latest awaited activity; both are NaN without
    one. ``unexplained_us`` is time that the trace gives no cause for.
    """

    gap_us: Floats
    launch_us: Floats
    event_us: Floats
    latency_us: float
    typical_gap_us: float
    unexplained_us: Floats


def delays_of(trace: Trace, lanes: Lanes, pairs: Pairs) -> Delays:
    """Return the delays of activities. ``pairs`` are (awaited activity of another lane, waiting activity)."""
    awaited_end_ns = np.full(len(trace.activities), np.nan)
    for awaited, waiting in pairs:
        awaited_end_ns[waiting] = np.fmax(awaited_end_ns[waiting], trace.activities.end_ns[awaited])
    start = trace.activities.start_ns.astype(float)
    launch = linked(trace.calls.start_ns, trace.activities.call, np.nan)
    before = linked(trace.activities.end_ns, lanes.previous, np.nan)
    gap, latency, event = ((start - other) / 1e3 for other in (before, launch, awaited_end_ns))
    typical_gap, typical_latency = _typical(trace, gap, latency)
    # Give each cause its typical delay, or the measured one if it was shorter; shape (3, activities).
    minimum = np.minimum([gap, latency, event], [[typical_gap], [typical_latency], [typical_gap]])
    ready = np.stack([before, launch, awaited_end_ns]) / 1e3 + minimum
    has_cause = ~np.isnan(ready).all(axis=0)
    # A task without a cause starts at an absolute time.
    ready[0, ~has_cause] = 0.0
    minimum[0, ~has_cause] = 0.0
    # The cause that was ready last gets the rest of the measured delay.
    filled = np.where(np.isnan(ready), -np.inf, ready)
    binding = filled.argmax(axis=0)
    residual = np.maximum(start / 1e3 - filled.max(axis=0), 0.0) if len(start) else start
    minimum[binding, np.arange(len(start))] += residual
    gap_us = np.where((lanes.previous >= 0) | ~has_cause, minimum[0], 0.0)
    unexplained = np.where(has_cause & (residual > UNEXPLAINED_US), residual, 0.0)
    return Delays(np.nan_to_num(gap_us), minimum[1], minimum[2], typical_latency, typical_gap, unexplained)


def _typical(trace: Trace, gap: Floats, latency: Floats) -> tuple[float, float]:
    """Return the median gap and launch latency of kernels in µs.

    The gap is taken from kernels that were launched at least 20 µs earlier, the latency from kernels on an idle stream.
    """
    kernel = trace.activities.kind == events.KERNEL
    with np.errstate(invalid="ignore"):
        early = kernel & (latency - gap > _EARLY_US) & (gap < _EARLY_US)
        idle = kernel & ((gap > latency) | (np.isnan(gap) & ~np.isnan(latency)))
    gap_us = float(np.median(gap[early])) if early.any() else _DEFAULT_GAP_US
    latency_us = float(np.median(latency[idle])) if idle.any() else _DEFAULT_LATENCY_US
    return max(gap_us, 0.0), max(latency_us, 0.0)
