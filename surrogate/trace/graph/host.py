"""Host threads as tasks: every runtime call, and the work between calls, cut where a layer or an iteration changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from surrogate.trace.events.build import within
from surrogate.trace.events.tables import Ints, Trace
from surrogate.trace.graph.handover import Burst, busy_spans
from surrogate.trace.layers import Layers


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Pieces of host time, per thread in time order: ``call`` is the row of the outermost call, -1 for work between."""

    thread: Ints
    start_ns: Ints
    end_ns: Ints
    call: Ints
    range: Ints

    def __len__(self) -> int:
        return len(self.start_ns)


def outermost_calls(trace: Trace) -> Ints:
    """For every call the row of the call that encloses it on its thread (a runtime call around driver calls)."""
    calls = trace.calls
    outer = np.arange(len(calls))
    for thread in np.unique(calls.thread).tolist():
        rows = np.flatnonzero(calls.thread == thread)
        reach = np.maximum.accumulate(calls.end_ns[rows])
        first = np.ones(len(rows), np.bool_)
        first[1:] = calls.start_ns[rows[1:]] >= reach[:-1]
        outer[rows] = rows[np.maximum.accumulate(np.where(first, np.arange(len(rows)), 0))]
    return outer


def host_pieces(trace: Trace, layers: Layers, main: int, found: Sequence[Burst], cuts: Ints) -> Pieces:
    """All pieces; ``cuts`` are further times (ns) where the main thread's work is cut.

    A thread that works in bursts has no pieces between them, and the main thread none while it waits for one.
    """
    outer = outermost_calls(trace)
    threads = np.unique(np.concatenate([trace.ranges.thread, trace.calls.thread]))
    parts = []
    for thread in threads[threads >= 0].tolist():
        if thread == main:
            extra = np.concatenate([cuts, [t for one in found for t in (one.start_ns, one.end_ns)]])
            idle = [span for one in found for span in one.idle]
            extra = np.concatenate([extra, np.array(idle, np.int64).ravel()])
        else:
            own = [one for one in found if one.thread == thread]
            extra = np.array([t for one in own for t in (one.start_ns, one.end_ns)])
            idle = [(a.end_ns, b.start_ns) for a, b in pairwise(own)]
        parts.append(_of_thread(trace, layers, thread, outer, extra.astype(np.int64), idle))
    if not parts:
        empty = np.empty(0, np.int64)
        return Pieces(empty, empty, empty, empty, empty)
    thread, start, end, call = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    held = within(start, end, thread, trace.ranges) if len(start) else start
    held = np.where(call >= 0, trace.calls.range[call] if len(trace.calls) else -1, held)
    return Pieces(thread, start, end, call, held)


def _of_thread(
    trace: Trace, layers: Layers, thread: int, outer: Ints, extra: Ints, idle: list[tuple[int, int]]
) -> tuple[Ints, Ints, Ints, Ints]:
    rows = np.flatnonzero((trace.calls.thread == thread) & (outer == np.arange(len(outer))))
    starts, ends = trace.calls.start_ns[rows], trace.calls.end_ns[rows]
    busy = busy_spans(trace, thread)
    if len(busy[0]):
        extra = extra[(extra >= busy[0][0]) & (extra <= busy[1][-1])]
    bounds = np.unique(np.concatenate([starts, ends, _layer_bounds(trace, layers, thread), *busy, extra]))
    low, high = bounds[:-1], bounds[1:]
    keep = ~_covered(low, starts, ends)
    if idle:
        spans = np.array(sorted(idle), dtype=np.int64)
        keep &= ~_covered(low, spans[:, 0], spans[:, 1])
    low, high = low[keep], high[keep]
    start, end = np.concatenate([starts, low]), np.concatenate([ends, high])
    call = np.concatenate([rows, np.full(len(low), -1)])
    order = np.lexsort((end, start))
    return np.full(len(start), thread), start[order], end[order], call[order]


def _covered(times: Ints, starts: Ints, ends: Ints) -> np.ndarray:
    """Whether each time lies in one of the sorted, disjoint intervals [start, end); empty ones hold nothing."""
    if not len(starts):
        return np.zeros(len(times), np.bool_)
    full = ends > starts
    starts, ends = starts[full], ends[full]
    if not len(starts):
        return np.zeros(len(times), np.bool_)
    at = np.searchsorted(starts, times, "right") - 1
    return (at >= 0) & (ends[np.maximum(at, 0)] > times)


def _layer_bounds(trace: Trace, layers: Layers, thread: int) -> Ints:
    """Starts and ends of the ranges on a thread at which the layer changes."""
    ranges = trace.ranges
    if not len(ranges):
        return np.empty(0, np.int64)
    own = layers.of_range
    around = np.where(ranges.parent >= 0, own[ranges.parent], -1)
    rows = np.flatnonzero((ranges.thread == thread) & (own >= 0) & (own != around))
    return np.concatenate([ranges.start_ns[rows], ranges.end_ns[rows]])
