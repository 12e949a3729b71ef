"""Hand-over between host threads: where one thread sets another to work, and where it waits until that is done.

No profiler records it. It shows in time: autograd's thread runs in bursts, and during a burst the main thread, which
called ``backward()``, begins and ends nothing. A burst's first event then follows the main thread's last one before
it, and the main thread's next event follows the burst's last (Daydream, ATC 2020, section 4.2, CPU → CPU).
"""

from dataclasses import dataclass

import numpy as np

from surrogate.trace.events import kinds
from surrogate.trace.events.tables import Ints, Trace

_ENGINE = "autograd::engine"


@dataclass(frozen=True, slots=True)
class Burst:
    """Work of ``thread`` from ``start_ns`` to ``end_ns`` that the main thread starts.

    ``idle`` are the times in which the main thread waits for it, none where it goes on with work of its own. Autograd
    runs operators on the CPU in the thread that called ``backward()``, so the wait can have breaks.
    """

    thread: int
    start_ns: int
    end_ns: int
    idle: tuple[tuple[int, int], ...]


def main_thread(trace: Trace) -> int:
    """The thread of the profiler's steps, else the one with the most time outside autograd; -1 without a host event."""
    ranges, calls = trace.ranges, trace.calls
    steps = np.flatnonzero(ranges.kind == kinds.STEP)
    if len(steps):
        return int(ranges.thread[steps[0]])
    outer = np.flatnonzero((ranges.depth == 0) & ~_backward(trace))
    thread, time_us = ranges.thread[outer], ranges.time_us[outer]
    if not len(outer):
        thread, time_us = calls.thread, calls.time_us
    return (
        int(np.bincount(thread[thread >= 0], weights=time_us[thread >= 0]).argmax())
        if (thread >= 0).any()
        else -1
    )


def bursts(trace: Trace, main: int) -> list[Burst]:
    """The bursts of the other threads in time order; a thread that the main one neither starts nor awaits has none."""
    if main < 0:
        return []
    backward = _backward(trace)
    engine = _merged(trace.ranges.start_ns, trace.ranges.end_ns, backward & (trace.ranges.thread == main))
    edges = _boundaries(trace, main)
    edges = np.sort(edges[~_inside(edges, *engine)])
    found = []
    for thread in np.unique(np.concatenate([trace.ranges.thread, trace.calls.thread])).tolist():
        if thread != main and thread >= 0:
            own = np.sort(trace.ranges.start_ns[backward & (trace.ranges.thread == thread)])
            found += _of_thread(trace, thread, edges, own, engine)
    return sorted(found, key=lambda one: one.start_ns)


def _of_thread(
    trace: Trace, thread: int, main_edges: Ints, backward_starts: Ints, engine: tuple[Ints, Ints]
) -> list[Burst]:
    starts, ends = busy_spans(trace, thread)
    if not len(starts):
        return []
    # A burst goes on over an idle time in which the main thread does nothing either.
    after = np.searchsorted(main_edges, ends[:-1], "left")
    before = np.searchsorted(main_edges, starts[1:], "right")
    breaks = np.flatnonzero(before > after)
    firsts = starts[np.concatenate([[0], breaks + 1])]
    lasts = ends[np.concatenate([breaks, [len(ends) - 1]])]
    found = []
    for start, end in zip(firsts.tolist(), lasts.tolist(), strict=True):
        follows = int(np.searchsorted(main_edges, start, "right"))
        precedes = int(np.searchsorted(main_edges, end, "left"))
        blocks = 0 < follows == precedes < len(main_edges)
        low, high = np.searchsorted(backward_starts, [start, end])
        if blocks or (follows and high > low):
            found.append(Burst(thread, start, end, _idle(start, end, engine) if blocks else ()))
    return found


def _idle(start: int, end: int, engine: tuple[Ints, Ints]) -> tuple[tuple[int, int], ...]:
    """[start, end) without the times when the main thread works for autograd itself."""
    found, at = [], start
    for begins, stops in zip(engine[0].tolist(), engine[1].tolist(), strict=True):
        if stops > start and begins < end:
            found.append((at, begins))
            at = stops
    return tuple((a, b) for a, b in [*found, (at, end)] if a < b)


def busy_spans(trace: Trace, thread: int) -> tuple[Ints, Ints]:
    """Starts and ends of the times when the thread is inside a range or a call, merged where they touch or overlap."""
    tables = (trace.ranges, trace.calls)
    starts = np.concatenate([t.start_ns[t.thread == thread] for t in tables])
    ends = np.concatenate([t.end_ns[t.thread == thread] for t in tables])
    return _merged(starts, ends, np.ones(len(starts), np.bool_))


def _merged(starts: Ints, ends: Ints, kept: np.ndarray) -> tuple[Ints, Ints]:
    starts, ends = starts[kept], ends[kept]
    if not len(starts):
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    new = np.flatnonzero(starts[1:] > reach[:-1]) + 1
    return starts[np.concatenate([[0], new])], reach[np.concatenate([new - 1, [len(reach) - 1]])]


def _inside(times: Ints, starts: Ints, ends: Ints) -> np.ndarray:
    if not len(starts):
        return np.zeros(len(times), np.bool_)
    at = np.searchsorted(starts, times, "right") - 1
    return (at >= 0) & (ends[np.maximum(at, 0)] >= times)


def _boundaries(trace: Trace, thread: int) -> Ints:
    tables = (trace.ranges, trace.calls)
    return np.concatenate([column[t.thread == thread] for t in tables for column in (t.start_ns, t.end_ns)])


def _backward(trace: Trace) -> np.ndarray:
    ranges = trace.ranges
    engine = np.array([name.startswith(_ENGINE) for name in trace.names] or [False])
    return (ranges.forward_thread > 0) | engine[ranges.name]
