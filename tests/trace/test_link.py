"""Nesting of intervals and joins of launches, compared with brute force."""

import numpy as np
from hypothesis import given, strategies as st

from surrogate.trace.events.launches import Keys, launched_by, launching_kind
from surrogate.trace.events.parts import iterations
from surrogate.trace.events.tables import nest
from surrogate.trace.graph import graph_of, simulate
from tests.known import cases
from tests.trace.events import call, device

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
        encloses = (thread == thread[row]) & (start <= start[row]) & (end[row] <= end)
        rest = [r for r in np.flatnonzero(encloses).tolist() if r != row]
        around = [r for r in rest if (start[r], -end[r], r) < (start[row], -end[row], row)]
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


@cases(__file__)
def test_launch_has_the_id_process_and_kind_and_begins_before(activity, calls, expected):
    """An activity is (id, start, kind, process), a call is (id, start, name, process)."""
    columns = np.array([activity], np.int64).T
    kinds = [launching_kind(name) for _, _, name, _ in calls]
    correlation, start_ns, process = (np.array([each[at] for each in calls], np.int64) for at in (0, 1, 3))
    found = launched_by(Keys(*columns), Keys(correlation, start_ns, np.array(kinds), process))
    assert found.tolist() == [expected]


@cases(__file__)
def test_kernels_without_a_usable_time_or_launch(kernels, left, launched, note, read):
    """Launches begin at 5,000, 6,000, … µs since 1970 and last 5 µs; kernels are shifted from their launch, in µs."""
    origin = 1_700_000_000_000_000
    events = [call("cudaLaunchKernel", origin + 5000 + 1000 * i, 5, i) for i in range(1, 21)]
    events += [device("gemm", origin + 5010 + 1000 * i, 100, i) for i in range(1, 21)]
    for row, changed in enumerate(kernels):
        kernel = events[20 + row]
        kernel["ts"] = changed["ts"] if "ts" in changed else kernel["ts"] + changed.get("later", 0)
        kernel["dur"] = changed.get("dur", kernel["dur"])
    trace = read({"traceEvents": events})
    assert (len(trace.activities), int((trace.activities.call >= 0).sum())) == (left, launched)
    assert note in " ".join(trace.notes) and bool(note) == bool(trace.notes)
    assert simulate(graph_of(trace)).total_us < 1e6  # no circle


@cases(__file__)
def test_one_rank_of_merged_traces_counts(renamed, kept, later, make_trace, read, refused):
    """Rank 0's kernels are twice as long, and rank 1 starts ``later``, in µs."""
    merged = []
    for rank, (pid, thread, place, number) in enumerate(renamed):
        for record in make_trace(steps=3, start=1_700_000_000_000_000 + later * rank)["traceEvents"]:
            on_device = record["cat"] in ("kernel", "gpu_memcpy")
            record["pid"], record["tid"] = (place, record["tid"]) if on_device else (pid, record["tid"] + thread)
            if on_device:
                record["args"]["device"] = number
                record["name"] += f" of rank {rank}"
                record["dur"] *= 2 - rank
            merged.append(record)
    if kept < 0:
        with refused("holds several ranks with one process number; give each rank's own file"):
            read({"traceEvents": merged})
        return
    trace = read({"traceEvents": merged})
    assert {trace.threads[i].process for i in trace.calls.thread} == {str(renamed[kept][0])}
    assert len(trace.activities) == len(trace.calls) == 18 and (trace.activities.call >= 0).all()
    assert trace.name_matches(trace.activities, lambda name: name.endswith(f"of rank {kept}")).all()
    assert len(iterations(trace)) == 3 and "holds 2 ranks; only process" in trace.notes[0]


@cases(__file__)
def test_overlong_kernels_end_at_the_next_one_or_at_a_wait(name, node, times, wait, ends, read):
    """Kernels begin every 100 µs on one stream and last ``times``; ``wait`` is a call of the host.

    ``name`` are the launches, repeated for all kernels.
    """
    launches = name.split() * len(times)
    recorded = [call(launches[i], 100 * i, 5, i) for i in range(len(times))]
    recorded += [call(waits, start, time, 99) for waits, start, time in wait]
    for i, time in enumerate(times):
        recorded.append(device("k", 100 * i + 10, time, i, 7, "kernel", **{"graph node id": node}))
    trace = read({"traceEvents": recorded})
    assert (trace.activities.end_ns / 1e3).tolist() == ends
    clipped = sum(end != 100 * i + 10 + time for i, (time, end) in enumerate(zip(times, ends, strict=True)))
    assert (f"{clipped} kernel lasted beyond" in str(trace.notes)) == (clipped == 1)
    assert bool(trace.notes) == (clipped > 0)
