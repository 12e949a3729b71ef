"""Iterations of a trace: by the profiler's steps, by what repeats, or the whole trace as one."""

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from surrogate.trace.events import kinds
from surrogate.trace.events.tables import Ints, Trace

_MIN_MATCH = 0.9
_MAX_PREFIX = 0.3
_MIN_SHARE = 0.5
_MAX_DEPTH = 4
_MAX_PERIODS = 400
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration: host events that start in ``[start_ns, end_ns)`` and the device activities they launched.

    ``by`` says how it was found: ``step`` (ProfilerStep), ``optimizer``, ``repetition`` or ``whole``.
    """

    index: int
    label: str
    start_ns: int
    end_ns: int
    by: str

    @property
    def time_us(self) -> float:
        """Host time from its start to the next one's, in µs."""
        return (self.end_ns - self.start_ns) / 1e3


def iterations(trace: Trace) -> tuple[Iteration, ...]:
    """The iterations of ``trace`` in time order, never none.

    ProfilerStep ranges where there are any; else from one end of ``Optimizer.step`` to the next (the first one
    from the trace's start, later events form no iteration); else the period of the sequence of outermost ranges,
    or of kernels; else the whole trace.
    """
    ranges = trace.ranges
    steps = np.flatnonzero(ranges.kind == kinds.STEP)
    if len(steps):
        rows = [
            (trace.name_of(ranges, row), ranges.start_ns[row], ranges.end_ns[row]) for row in steps.tolist()
        ]
        return _numbered(rows, "step")
    optimizer = _named(trace, "Optimizer.step")
    first, last = trace.span_ns
    if len(optimizer) > 1:
        ends = [first, *ranges.end_ns[optimizer].tolist()]
        rows = [(f"iteration {i}", a, b) for i, (a, b) in enumerate(pairwise(ends))]
        return _numbered(rows, "optimizer")
    starts = _repeats(trace)
    if len(starts) > 1:
        ends = [*starts[1:], last + 1]
        rows = [(f"iteration {i}", a, b) for i, (a, b) in enumerate(zip(starts, ends, strict=True))]
        return _numbered(rows, "repetition")
    return (Iteration(0, "whole trace", first, last + 1, "whole"),)


def iteration_of(found: tuple[Iteration, ...], trace: Trace) -> tuple[Ints, Ints, Ints]:
    """The iteration (position in ``found``) of every range, call and device activity; -1 for those in none.

    An activity belongs where its launch call does; without one, where it starts itself.
    """
    of_range = _within(found, trace.ranges.start_ns)
    of_call = _within(found, trace.calls.start_ns)
    activities = trace.activities
    of_activity = _within(found, activities.start_ns)
    launched = activities.call >= 0
    of_activity[launched] = of_call[activities.call[launched]]
    by_range = ~launched & (activities.range >= 0)
    of_activity[by_range] = of_range[activities.range[by_range]]
    return of_range, of_call, of_activity


def period(sequence: NDArray[np.int64]) -> tuple[int, int]:
    """(start, period) of the repetition that fills most of ``sequence``; period 0 where nothing repeats.

    A period p counts if at least 90 % of the places from its start agree with the place p further on, it fits
    at least twice, and at most 30 % of the sequence precede it. The best agreement wins, then the shortest (a
    model of equal blocks agrees block by block too, but not at its first and last layers).
    """
    best = (0.0, 0, 0)
    for candidate, start in _candidates(sequence):
        tail = sequence[start:]
        if 2 * candidate > len(tail) or start > _MAX_PREFIX * len(sequence):
            continue
        agreement = float(np.mean(tail[candidate:] == tail[:-candidate]))
        if agreement >= _MIN_MATCH and agreement > best[0] + 1e-9:
            best = (agreement, start, candidate)
    return best[1], best[2]


def _candidates(sequence: NDArray[np.int64]) -> list[tuple[int, int]]:
    """(distance between two neighbouring uses of one name, its first use), rare names first, short ones first."""
    order = np.argsort(sequence, kind="stable")
    _, firsts, counts = np.unique(sequence[order], return_index=True, return_counts=True)
    found: dict[tuple[int, int], None] = {}
    for at in np.argsort(counts, kind="stable").tolist():
        if counts[at] < 2:
            continue
        places = order[firsts[at] : firsts[at] + counts[at]]
        for distance in np.unique(np.diff(places)).tolist():
            found[distance, int(places[0])] = None
        if len(found) > _MAX_PERIODS:
            break
    return sorted(found)[:_MAX_PERIODS]


def _repeats(trace: Trace) -> list[int]:
    """Starts of the repetitions: of outermost ranges, of annotations further in, of kernels where no range is."""
    ranges = trace.ranges
    if not len(ranges):
        return _repeated_kernels(trace)
    busiest = np.bincount(ranges.thread - ranges.thread.min()).argmax() + ranges.thread.min()
    own = ranges.thread == busiest
    by_user = own & np.isin(ranges.kind, (kinds.NVTX, kinds.ANNOTATION))
    labels = _numberless(trace)
    for depth in range(_MAX_DEPTH):
        rows = np.flatnonzero((own if depth == 0 else by_user) & (ranges.depth == depth))
        start, length = period(labels[ranges.name[rows]]) if len(rows) else (0, 0)
        starts = ranges.start_ns[rows[start::length]] if length else rows[:0]
        # A loop over a small part of the time is a loop inside an iteration.
        if len(starts) > 1 and ranges.end_ns[rows[-1]] - starts[0] >= _MIN_SHARE * trace.span_us * 1e3:
            return starts.tolist()
    return []


def _numberless(trace: Trace) -> Ints:
    """Name → a label that is the same for names that differ only in numbers, such as ``Step 10 to 20``."""
    labels: dict[str, int] = {}
    return np.array([labels.setdefault(_NUMBER.sub("#", name), len(labels)) for name in trace.names] or [0])


def _repeated_kernels(trace: Trace) -> list[int]:
    activities = trace.activities
    kernels = np.flatnonzero(activities.kind == kinds.KERNEL)
    if not len(kernels):
        return []
    kernels = kernels[activities.stream[kernels] == np.bincount(activities.stream[kernels]).argmax()]
    start, length = period(activities.name[kernels])
    if not length:
        return []
    firsts = kernels[start::length]
    calls = activities.call[firsts]
    host = np.where(
        calls >= 0, trace.calls.start_ns[calls] if len(trace.calls) else 0, activities.start_ns[firsts]
    )
    return np.sort(host).tolist()


def _named(trace: Trace, prefix: str) -> Ints:
    wanted = np.array([name.startswith(prefix) for name in trace.names] or [False])
    return np.flatnonzero(wanted[trace.ranges.name] & (trace.ranges.name >= 0))


def _numbered(rows: list[tuple[str, int, int]], by: str) -> tuple[Iteration, ...]:
    return tuple(Iteration(i, label, int(a), int(b), by) for i, (label, a, b) in enumerate(rows))


def _within(found: tuple[Iteration, ...], start_ns: Ints) -> Ints:
    starts, ends = np.array([one.start_ns for one in found]), np.array([one.end_ns for one in found])
    order = np.argsort(starts, kind="stable")
    at = np.searchsorted(starts[order], start_ns, "right") - 1
    row = order[np.maximum(at, 0)]
    return np.where((at >= 0) & (start_ns < ends[row]), row, -1)
