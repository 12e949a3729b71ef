"""Convert host threads into tasks: hand-over between threads, pieces of host time between calls, waits removed.

Profilers do not record which thread starts the work of another thread. Times show it: autograd's thread runs in bursts,
and the main thread, which called ``backward()``, begins and ends no event during a burst. The first event of a burst
then depends on the main thread's last event before it. The main thread's next event depends on the burst's last event
(Daydream, ATC 2020, section 4.2, CPU → CPU).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from surrogate.trace import events
from surrogate.trace.events.parts import Layers
from surrogate.trace.events.tables import Ints, Trace, interval_at, linked, merged, open_rows
from surrogate.trace.graph.device import blocking_copies
from surrogate.trace.graph.tasks import Mask

_ENGINE = "autograd::engine"
_LAUNCH_NS = 5000
"""Length of a launch call in ns, if the trace has no launch."""


@dataclass(frozen=True, slots=True)
class Burst:
    """Work of ``thread`` from ``start_ns`` to ``end_ns`` that the main thread starts.

    ``idle`` are the intervals in which the main thread waits for it; there are none if the main thread continues its
    own work. Autograd runs CPU operators in the thread that called ``backward()``, so the wait can have breaks.
    """

    thread: int
    start_ns: int
    end_ns: int
    idle: tuple[tuple[int, int], ...]


def main_thread(trace: Trace) -> int:
    """Return the thread of the profiler's steps, else the one with the most time outside autograd; -1 without host
    events.
    """
    ranges, calls = trace.ranges, trace.calls
    steps = np.flatnonzero(ranges.kind == events.STEP)
    if len(steps):
        return int(ranges.thread[steps[0]])
    outer = np.flatnonzero((ranges.depth == 0) & ~_of_autograd(trace))
    thread, time_us = ranges.thread[outer], ranges.time_us[outer]
    if not len(outer):
        thread, time_us = calls.thread, calls.time_us
    is_thread = thread >= 0
    return int(np.bincount(thread[is_thread], weights=time_us[is_thread]).argmax()) if is_thread.any() else -1


def bursts(trace: Trace, main: int) -> list[Burst]:
    """Return the bursts of the other threads in time order.

    A thread that the main thread neither starts nor waits for has no bursts.
    """
    if main < 0:
        return []
    ranges = trace.ranges
    autograd = _of_autograd(trace)
    on_main = autograd & (ranges.thread == main)
    engine = merged(ranges.start_ns[on_main], ranges.end_ns[on_main])
    # Times when the main thread begins or ends an event, except its own work for autograd.
    edges = np.concatenate(_intervals(trace, main))
    at = np.searchsorted(engine[0], edges, "right") - 1
    edges = np.sort(edges[(at < 0) | (linked(engine[1], at, 0) < edges)])
    result: list[Burst] = []
    for thread in _threads(trace):
        if thread != main:
            starts = np.sort(ranges.start_ns[autograd & (ranges.thread == thread)])
            result += _bursts_of_thread(trace, thread, edges, starts, engine)
    return sorted(result, key=lambda burst: burst.start_ns)


def _bursts_of_thread(
    trace: Trace, thread: int, main_edges: Ints, backward_starts: Ints, engine: tuple[Ints, Ints]
) -> list[Burst]:
    """Return the busy times of a thread as bursts, if the main thread starts them."""
    starts, ends = merged(*_intervals(trace, thread))
    if not len(starts):
        return []
    # A burst continues over an idle time in which the main thread has no event either.
    after = np.searchsorted(main_edges, ends[:-1], "left")
    breaks = np.flatnonzero(np.searchsorted(main_edges, starts[1:], "right") > after)
    firsts = starts[np.concatenate([[0], breaks + 1])]
    lasts = ends[np.concatenate([breaks, [len(ends) - 1]])]
    result = []
    for start, end in zip(firsts.tolist(), lasts.tolist(), strict=True):
        follows = int(np.searchsorted(main_edges, start, "right"))
        precedes = int(np.searchsorted(main_edges, end, "left"))
        # The main thread waits if it has events before and after the burst, but none during it.
        waits = 0 < follows == precedes < len(main_edges)
        low, high = np.searchsorted(backward_starts, [start, end])
        if waits or (follows and high > low):
            result.append(Burst(thread, start, end, _idle(start, end, engine) if waits else ()))
    return result


def _idle(start: int, end: int, engine: tuple[Ints, Ints]) -> tuple[tuple[int, int], ...]:
    """Return [start, end) without the times when the main thread itself works for autograd."""
    gaps = []
    idle_start = start
    for begins, stops in zip(engine[0].tolist(), engine[1].tolist(), strict=True):
        if stops > start and begins < end:
            gaps.append((idle_start, begins))
            idle_start = stops
    return tuple((a, b) for a, b in [*gaps, (idle_start, end)] if a < b)


def _of_autograd(trace: Trace) -> Mask:
    return (trace.ranges.forward_thread > 0) | trace.name_matches(trace.ranges, lambda name: name.startswith(_ENGINE))


def _threads(trace: Trace) -> list[int]:
    threads = np.unique(np.concatenate([trace.ranges.thread, trace.calls.thread]))
    return threads[threads >= 0].tolist()


def _intervals(trace: Trace, thread: int) -> tuple[Ints, Ints]:
    """Return the starts and ends of the ranges and calls of a thread."""
    tables = (trace.ranges, trace.calls)
    starts = np.concatenate([table.start_ns[table.thread == thread] for table in tables])
    return starts, np.concatenate([table.end_ns[table.thread == thread] for table in tables])


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Pieces of host time by thread, in time order. ``call`` is the row of the outermost call, -1 for work between
    calls.
    """

    thread: Ints
    start_ns: Ints
    end_ns: Ints
    call: Ints
    range: Ints


def host_pieces(trace: Trace, layers: Layers, main: int, every_burst: Sequence[Burst], outer: Ints) -> Pieces:
    """Return all pieces of host time: calls, and the work between them.

    Work is cut when a layer, an iteration or a burst begins or ends. A thread that works in bursts has no pieces
    between them. The main thread has no pieces while it waits for a burst.
    """
    parts = []
    for thread in _threads(trace):
        if thread == main:
            idle = [span for burst in every_burst for span in burst.idle]
            cuts = [(part.start_ns, part.end_ns) for part in (*layers.iterations, *every_burst)] + idle
        else:
            bursts = [burst for burst in every_burst if burst.thread == thread]
            idle = [(before.end_ns, after.start_ns) for before, after in pairwise(bursts)]
            cuts = [(burst.start_ns, burst.end_ns) for burst in bursts]
        parts.append(_pieces_of_thread(trace, layers, thread, outer, np.array(cuts, np.int64).ravel(), idle))
    if not parts:
        return Pieces(*[np.empty(0, np.int64)] * 5)
    thread, start, end, call = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    around = np.where(call >= 0, linked(trace.calls.range, call), open_rows(trace.ranges, start, thread))
    return Pieces(thread, start, end, call, around)


def _pieces_of_thread(
    trace: Trace, layers: Layers, thread: int, outer: Ints, cuts: Ints, idle: list[tuple[int, int]]
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return thread, start, end and call of each piece, the columns of `Pieces`."""
    rows = np.flatnonzero((trace.calls.thread == thread) & (outer == np.arange(len(outer))))
    starts, ends = trace.calls.start_ns[rows], trace.calls.end_ns[rows]
    busy = merged(*_intervals(trace, thread))
    if len(busy[0]):
        # The last of repeated steps lasts as long after its last event as the others.
        repeated_ns = [part.end_ns for part in layers.iterations if part.by == "repetition"]
        cuts = cuts[(cuts >= busy[0][0]) & (cuts <= max(busy[1][-1], *repeated_ns, 0))]
    # Between two neighbouring bounds the thread does one thing. Time inside a call is the call's own piece.
    bounds = np.unique(np.concatenate([starts, ends, _layer_bounds(trace, layers, thread), *busy, cuts]))
    low = bounds[:-1]
    high = bounds[1:]
    is_free = ~_covered(low, starts, ends)
    if idle:
        spans = np.array(sorted(idle), dtype=np.int64)
        is_free &= ~_covered(low, spans[:, 0], spans[:, 1])
    start, end = np.concatenate([starts, low[is_free]]), np.concatenate([ends, high[is_free]])
    call = np.concatenate([rows, np.full(int(is_free.sum()), -1)])
    order = np.lexsort((end, start))
    return np.full(len(start), thread), start[order], end[order], call[order]


def _covered(times: Ints, starts: Ints, ends: Ints) -> Mask:
    """Return whether each time is in one of the sorted, disjoint intervals [start, end); empty intervals contain no
    time.
    """
    full = ends > starts
    return interval_at(times, starts[full], ends[full]) >= 0


def _layer_bounds(trace: Trace, layers: Layers, thread: int) -> Ints:
    """Return the starts and ends of the ranges on a thread at which the layer changes."""
    ranges = trace.ranges
    changes = (layers.of_range >= 0) & (layers.of_range != linked(layers.of_range, ranges.parent))
    rows = np.flatnonzero((ranges.thread == thread) & changes)
    return np.concatenate([ranges.start_ns[rows], ranges.end_ns[rows]])


@dataclass(frozen=True, slots=True, eq=False)
class HostTasks:
    """The host tasks, with piece, thread and times.

    ``of_call`` and ``return_of_call`` are the tasks in which each call begins and returns. ``copies`` are the blocking
    copies, as `blocking_copies` returns them.
    """

    piece: Ints
    thread: Ints
    start_ns: Ints
    end_ns: Ints
    of_call: Ints
    return_of_call: Ints
    copies: dict[int, tuple[int, bool]]

    def __len__(self) -> int:
        return len(self.piece)


def host_tasks(trace: Trace, pieces: Pieces, outer: Ints, pairs: list[tuple[int, int]]) -> HostTasks:
    """Return the pieces as tasks: a waiting call is shortened to its time after the wait, a blocking copy is split.

    The two tasks of a blocking copy are its start and its return. ``pairs`` are (call, awaited activity).
    """
    activities = trace.activities
    start, end = pieces.start_ns.copy(), pieces.end_ns.copy()
    of_call = np.full(len(trace.calls), -1)
    rows = np.flatnonzero(pieces.call >= 0)
    of_call[pieces.call[rows]] = rows
    of_call = of_call[outer]
    # The task of a waiting call is its time after the end of the activity.
    for call, activity in pairs:
        task = of_call[call]
        start[task] = min(max(start[task], activities.end_ns[activity]), end[task])
    copies = {int(outer[call]): copy for call, copy in blocking_copies(trace).items()}
    # A piece with a blocking copy occurs twice; the second one is the call's return.
    by_piece = {int(of_call[call]): copy for call, copy in copies.items()}
    piece = np.sort(np.concatenate([np.arange(len(start)), np.array(sorted(by_piece), np.int64)]))
    is_return = np.append(False, piece[1:] == piece[:-1])[: len(piece)]
    first = np.flatnonzero(~is_return)
    start, end = start[piece], end[piece]
    launches = trace.calls.time_us[trace.calls.kind == events.LAUNCH]
    typical_ns = int(1e3 * np.median(launches)) if len(launches) else _LAUNCH_NS
    for task in np.flatnonzero(is_return).tolist():
        row, after_end = by_piece[int(piece[task])]
        called = int(start[task])
        # The return begins when the copy allows it. The start takes as long as a launch.
        start[task] = np.clip((activities.end_ns if after_end else activities.start_ns)[row], called, end[task])
        end[task - 1] = min(called + typical_ns, max(int(activities.start_ns[row]), called))
    of_call = linked(first, of_call)
    back = of_call.copy()
    back[pieces.call[piece[is_return]]] = np.flatnonzero(is_return)
    return HostTasks(piece, pieces.thread[piece], start, end, of_call, back, copies)
