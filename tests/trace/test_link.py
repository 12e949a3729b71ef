"""Nesting of intervals and joins of launches, compared with brute force."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from surrogate.trace.events.raw import launched_by
from surrogate.trace.events.tables import nest

_intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20), st.integers(0, 1)), min_size=1, max_size=30)


def _nest(rows, tolerance=0):
    start = np.array([a for a, _, _ in rows], dtype=np.int64)
    end = start + np.array([b for _, b, _ in rows], dtype=np.int64)
    thread = np.array([t for _, _, t in rows], dtype=np.int64)
    order = np.full(len(rows), -1)
    nesting = nest(start, end, thread, order, tolerance)
    return start, end, thread, nesting.parent, nesting.depth


def test_nest_accepts_no_intervals():
    assert [len(column) for column in _nest([])] == [0] * 5


@given(_intervals)
def test_parent_is_the_latest_started_enclosing_interval(rows):
    """Equal intervals nest in list order."""
    start, end, thread, parent, _ = _nest(rows)
    assert len(parent) == len(rows)
    for row in range(len(rows)):
        around = [
            r
            for r in range(len(rows))
            if thread[r] == thread[row]
            and start[r] <= start[row]
            and end[row] <= end[r]
            and (start[r], -end[r], r) < (start[row], -end[row], row)
        ]
        expected = max((start[r], -end[r]) for r in around) if around else None
        found = None if parent[row] < 0 else (start[parent[row]], -end[parent[row]])
        assert found == expected


@given(_intervals)
def test_depth_counts_the_ancestors(rows):
    *_, parent, depth = _nest(rows)
    assert len(depth) == len(rows)
    for row in range(len(rows)):
        count, up = 0, parent[row]
        while up >= 0:
            count, up = count + 1, parent[up]
        assert depth[row] == count


def test_tolerance_keeps_a_rounded_child_inside_its_parent():
    rows = [(0, 10_000, 0), (5_000, 6_000, 0)]
    assert _nest(rows)[3].tolist() == [-1, -1]
    assert _nest(rows, tolerance=1000)[3].tolist() == [-1, 0]
    following = [(0, 10_000, 0), (10_000, 500, 0)]  # begins where the other ends: a neighbour
    assert _nest(following, tolerance=1000)[3].tolist() == [-1, -1]


def test_many_staggered_overlaps_take_linear_time():
    count = 200_000  # quadratic work would take hours
    start = np.arange(count, dtype=np.int64)
    nesting = nest(start, start + count, np.zeros(count, np.int64), start)
    assert (nesting.parent == -1).all()


@given(_intervals, st.lists(st.tuples(st.integers(0, 65), st.integers(0, 2)), min_size=1, max_size=20))
def test_open_at_returns_the_innermost_open_interval(rows, times):
    start, end, thread, _, _ = _nest(rows)
    nesting = nest(start, end, thread, np.arange(len(rows)))
    at = np.array([time for time, _ in times], dtype=np.int64)
    threads = np.array([number for _, number in times], dtype=np.int64)
    for (time, number), chosen in zip(times, nesting.open_at(at, threads).tolist(), strict=True):
        begun = sorted((start[r], r) for r in range(len(rows)) if thread[r] == number and start[r] <= time)
        stack: list[int] = []
        for _, row in begun:
            while stack and (end[stack[-1]] <= start[row] or end[stack[-1]] < end[row]):
                stack.pop()
            stack.append(row)
        still = [row for row in stack if end[row] > time]
        assert chosen == (still[-1] if still else -1)


def test_repeated_correlation_id_joins_the_last_call_before():
    calls = np.array([5, 5, 6])
    call_starts = np.array([0, 100, 50])
    activities, starts = np.array([5, 5, 6, 7]), np.array([20, 120, 10, 10])
    none, process = np.full(4, -1), np.array([0, 0, 0])
    assert launched_by(activities, starts, calls, call_starts, none, process).tolist() == [0, 1, 2, -1]
    owner = np.array([1, 1, -1, -1])
    assert launched_by(activities, starts, calls, call_starts, owner, np.array([0, 1, 0])).tolist() == [1, 1, 2, -1]
