"""Which range is inside which, and which call launched which device activity."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def nest(
    start_ns: Ints, end_ns: Ints, thread: Ints, order: Ints, holds: NDArray[np.bool_], tolerance_ns: int
) -> tuple[Ints, Ints]:
    """(parent, depth): the innermost row of the same thread that holds each row, -1 for none; linear time.

    ``order`` breaks ties of the start (the outer range was opened first, so it has the smaller id). Rows where
    ``holds`` is False have parents but are none. Overlap without inclusion makes no child: a later range that
    outlasts an open one is its sibling. ``tolerance_ns`` forgives what rounding to whole µs cuts off a parent.
    """
    rows = np.lexsort((-end_ns, order, start_ns, thread)).tolist()
    parent, depth = np.full(len(rows), -1, np.int64), np.zeros(len(rows), np.int64)
    starts, ends, threads, holding = start_ns.tolist(), end_ns.tolist(), thread.tolist(), holds.tolist()
    stack: list[tuple[int, int]] = []  # (row, its end, cut to its parent's); ends never grow towards the top
    current = None
    for row in rows:
        if threads[row] != current:
            current, stack = threads[row], []
        start, end = starts[row], ends[row]
        # What ends before this row does can hold neither it nor, better than this row, anything later.
        while stack and (stack[-1][1] + tolerance_ns < end or stack[-1][1] <= start):
            if not holding[row] and stack[-1][1] > start:
                break
            stack.pop()
        if stack and (stack[-1][1] + tolerance_ns >= end or not holding[row]):
            parent[row], depth[row] = stack[-1][0], len(stack)
            end = min(end, stack[-1][1])
        if holding[row]:
            stack.append((row, end))
    return parent, depth


def launched_by(
    correlation: Ints,
    start_ns: Ints,
    call_correlation: Ints,
    call_start_ns: Ints,
    process: Ints,
    call_process: Ints,
) -> Ints:
    """The call (row) that launched each activity, -1 for none, by correlation id.

    Ids can repeat in a file that several processes wrote: of the calls with the id (and the process, where the
    activity has one, not -1) the last that began before the activity counts, else the first.
    """
    found = np.full(len(correlation), -1, np.int64)
    usable = np.flatnonzero(call_correlation >= 0)
    if not len(usable) or not len(correlation):
        return found
    order = usable[np.lexsort((call_start_ns[usable], call_correlation[usable]))]
    keys = call_correlation[order]
    low, high = np.searchsorted(keys, correlation, "left"), np.searchsorted(keys, correlation, "right")
    count = np.where(correlation >= 0, high - low, 0)
    one = count == 1
    found[one] = order[low[one]]
    for row in np.flatnonzero(count > 1).tolist():
        calls = order[low[row] : high[row]]
        if process[row] >= 0:
            own = calls[call_process[calls] == process[row]]
            calls = own if len(own) else calls
        before = calls[: np.searchsorted(call_start_ns[calls], start_ns[row], "right")]
        found[row] = before[-1] if len(before) else calls[0]
    return found
