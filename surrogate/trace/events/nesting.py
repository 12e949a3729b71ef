"""Which interval of a thread holds which, and which is open when: operators inside operators, calls inside them."""

from dataclasses import dataclass

import numpy as np

from surrogate.trace.events.tables import Ints, Ranges


@dataclass(frozen=True, slots=True, eq=False)
class Nesting:
    """Intervals of threads: the ``parent`` of each, its ``depth`` and its end, cut to its parent's.

    ``rows`` are the intervals thread by thread in the order of their starts, the outer of two first.
    """

    rows: Ints
    start_ns: Ints
    end_ns: Ints
    thread: Ints
    parent: Ints
    depth: Ints

    def open_at(self, time_ns: Ints, thread: Ints) -> Ints:
        """The innermost interval that is open on a thread at each time, -1 for none."""
        if not len(self.rows) or not len(time_ns):
            return np.full(len(time_ns), -1, np.int64)
        # Intervals and times as one sorted column, in which an interval comes before a time that equals its start.
        count = len(self.rows)
        times = np.concatenate([self.start_ns[self.rows], time_ns])
        order = np.lexsort((times, np.concatenate([self.thread[self.rows], thread])))
        # The last interval that began before each time: it, or an interval around it, is the innermost open one.
        last = np.empty(len(order), np.int64)
        last[order] = np.maximum.accumulate(np.where(order < count, order, -1))
        begun = self.rows[last[count:]]
        at = np.where((last[count:] >= 0) & (self.thread[begun] == thread), begun, -1)
        over = np.flatnonzero(at >= 0)
        while len(over := over[self.end_ns[at[over]] <= time_ns[over]]):
            at[over] = self.parent[at[over]]
            over = over[at[over] >= 0]
        return at


def nest(start_ns: Ints, end_ns: Ints, thread: Ints, order: Ints, tolerance_ns: int = 0) -> Nesting:
    """The innermost interval of the same thread that holds each, -1 for none; linear time.

    ``order`` breaks ties of the start (the outer range was opened first, so it has the smaller id). Overlap without
    inclusion makes no child: a later range that outlasts an open one is its sibling. ``tolerance_ns`` forgives what
    rounding to whole µs cuts off a parent.
    """
    # Lists, for the loop reads them one by one.
    rows = np.lexsort((-end_ns, order, start_ns, thread))
    parent = [-1] * len(rows)
    depth = [0] * len(rows)
    starts, ends, threads = start_ns.tolist(), end_ns.tolist(), thread.tolist()
    stack: list[int] = []  # ends never grow towards the top
    current = None
    for row in rows.tolist():
        if threads[row] != current:
            current = threads[row]
            stack = []
        start, end = starts[row], ends[row]
        # What ends before this row does can hold neither it nor, better than this row, anything later.
        while stack and (ends[stack[-1]] + tolerance_ns < end or ends[stack[-1]] <= start):
            stack.pop()
        if stack:
            parent[row] = stack[-1]
            depth[row] = len(stack)
            ends[row] = min(end, ends[stack[-1]])
        stack.append(row)
    return Nesting(
        rows, start_ns, np.array(ends, np.int64), thread, np.array(parent, np.int64), np.array(depth, np.int64)
    )


def nest_of(ranges: Ranges) -> Nesting:
    """The nesting of ranges; of two that start together the one of the smaller id is the outer."""
    return nest(ranges.start_ns, ranges.end_ns, ranges.thread, order=ranges.external_id)
