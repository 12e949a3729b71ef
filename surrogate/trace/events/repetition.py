"""Find the loop of a program in a trace without profiler steps: a sequence of events that repeats on the main thread.

The events are the outermost ranges, else inner annotations. In traces of Nsight Systems, and without ranges, they are
also the calls that give the device work or wait for it, each with the name of its kernel or copy.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from surrogate.trace import events
from surrogate.trace.events.phases import Mask, call_labels, captured_calls, outermost_calls
from surrogate.trace.events.tables import Ints, Timed, Trace, grouped

_MIN_MATCH = 0.9
"""Minimum share of elements that equal the element one period later."""
_MAX_PREFIX = 0.3
"""Maximum share of a sequence before its first period."""
_MAX_DEPTH = 4
"""Number of nesting levels, from the outermost, in which repetitions are searched."""
_MAX_PERIODS = 400
"""Maximum number of periods that are tried."""
_LONG_PAUSE = 10.0
"""A pause separates two steps if it takes more than this multiple of the median pause."""
_STEP_CALLS = (events.LAUNCH, events.GRAPH_LAUNCH, events.COPY_CALL, events.MEMSET_CALL, events.SYNC_CALL)


class _Sequence(NamedTuple):
    """Events in time order. ``blocks`` masks those that wait for the device; None if a step begins with its name."""

    label: Ints
    start_ns: Ints
    end_ns: Ints
    blocks: Mask | None = None


def repetitions(trace: Trace) -> Iterator[list[int]]:
    """Yield the bounds of steps for every repetition of a trace, in ns, the best first.

    A step of calls ends before the next call after its longest synchronisation, or after its longest pause. The last
    step ends where another begins, or as long after its own last event as the median of the others.
    """
    for sequence in _sequences(trace):
        for start, length in periods(sequence.label):
            if bounds := _bounds(sequence, start, length):
                yield bounds


def _sequences(trace: Trace) -> Iterator[_Sequence]:
    """Yield the sequences that may repeat: ranges from the outermost to inner annotations, calls, kernels."""
    ranges, calls, activities = trace.ranges, trace.calls, trace.activities
    if len(ranges):
        on_thread = ranges.thread == np.bincount(ranges.thread + 1).argmax() - 1
        by_user = on_thread & np.isin(ranges.kind, (events.NVTX, events.ANNOTATION))
        # Names that differ only in numbers, such as "Step 10 to 20", count as one.
        numbers: dict[str, int] = {}
        texts = (events.NUMBER.sub("#", name) for name in trace.names)
        labels = np.array([numbers.setdefault(text, len(numbers)) for text in texts] or [0])
        for depth in range(_MAX_DEPTH):
            rows = np.flatnonzero((on_thread if depth == 0 else by_user) & (ranges.depth == depth))
            yield _sequence(ranges, rows, labels[ranges.name])
        if trace.format != "nsys":
            return
    of_step = np.isin(calls.kind, _STEP_CALLS) & (outermost_calls(trace) == np.arange(len(calls)))
    rows = np.flatnonzero(of_step & ~captured_calls(trace)) if of_step.any() else np.zeros(0, np.int64)
    rows = rows[calls.thread[rows] == np.bincount(calls.thread[rows] + 1, minlength=1).argmax() - 1]
    if np.isin(calls.kind[rows], (events.LAUNCH, events.GRAPH_LAUNCH)).any():
        labels, blocks = call_labels(trace), calls.kind[rows] == events.SYNC_CALL
        yield _sequence(calls, rows, labels)._replace(blocks=blocks)
        pause_ns = np.append(0, calls.start_ns[rows[1:]] - calls.end_ns[rows[:-1]])
        is_paused = np.append(True, pause_ns[1:] > _LONG_PAUSE * np.median(pause_ns))
        labels[rows] = 2 * labels[rows] + is_paused
        yield _sequence(calls, rows, labels)._replace(blocks=blocks)
    else:
        rows = np.flatnonzero(activities.kind == events.KERNEL)
        rows = rows[activities.stream[rows] == np.bincount(activities.stream[rows], minlength=1).argmax()]
        yield _sequence(activities, rows, activities.name)


def _sequence(table: Timed, rows: Ints, labels: Ints) -> _Sequence:
    return _Sequence(labels[rows], table.start_ns[rows], table.end_ns[rows])


def _bounds(sequence: _Sequence, start: int, length: int) -> list[int]:
    """Return the bounds of the complete steps of a repetition; [] if there are fewer than two."""
    label, start_ns, end_ns, blocks = sequence
    # A repetition may begin earlier, with the middle of a step. Ranges that all repeat begin with the first one.
    different = np.flatnonzero(label[:start] != label[length : start + length])
    if blocks is not None or not len(different):
        start = int(different[-1]) + 1 if len(different) else 0
    if blocks is not None:
        times = np.diff(start_ns[start:])[: (len(label) - start - 1) // length * length].reshape(-1, length)
        ends = blocks[start : start + length]
        start += int(np.where(ends | ~ends.any(), np.median(times, axis=0), -1).argmax() + 1) % length
    firsts = np.arange(start, len(label) - length + 1, length)
    if len(firsts) < 2:
        return []
    following = start + len(firsts) * length
    if following < len(label):  # the beginning of a step that the trace cuts off
        return start_ns[[*firsts, following]].tolist()
    tail_ns = np.median(start_ns[firsts[1:]] - end_ns[firsts[1:] - 1])
    return [*start_ns[firsts].tolist(), int(end_ns[-1] + tail_ns)]


def periods(sequence: Ints) -> list[tuple[int, int]]:
    """Return (start, period) of the repetitions of a sequence, the best agreement first, then the shortest period.

    A period p is valid under three conditions. At least 90 % of the elements from its start equal the element p
    positions later. It fits at least twice. At most 30 % of the sequence precede it. A model of equal blocks also
    agrees block by block, but not at its first and last layers.
    """
    valid = []
    for candidate, start in _candidates(sequence):
        tail = sequence[start:]
        if 2 * candidate <= len(tail) and start <= _MAX_PREFIX * len(sequence):
            agreement = round(float(np.mean(tail[candidate:] == tail[:-candidate])), 9)
            valid += [(-agreement, candidate, start)] * (agreement >= _MIN_MATCH)
    return [(start, candidate) for _, candidate, start in sorted(valid)]


def _candidates(sequence: Ints) -> list[tuple[int, int]]:
    """Return (distance of two neighbouring uses of a name, its first use), rare names and short distances first."""
    candidates: dict[tuple[int, int], None] = {}
    for uses in sorted((rows for _, rows in grouped(sequence, np.arange(len(sequence)))), key=len):
        candidates |= dict.fromkeys((distance, int(uses[0])) for distance in np.unique(uses[1:] - uses[:-1]).tolist())
        if len(candidates) > _MAX_PERIODS:
            break
    return sorted(candidates)[:_MAX_PERIODS]
