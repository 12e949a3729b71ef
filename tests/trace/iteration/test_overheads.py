"""Overheads T1 to T5 of hand-written steps, their JSON file, and pooled overheads."""

import json

import pytest

from surrogate.trace import events
from surrogate.trace.iteration import overheads as host_overheads
from surrogate.trace.iteration.overheads import Mean, Overheads, finer_name, load_overheads, pooled, trimmed_mean


def measured(*steps, **settings):
    return host_overheads.measure_overheads(host_overheads.HostWork(tuple(steps), (), ()), **settings)


def test_five_overheads_of_one_operator(step, action):
    """Each event costs 2 µs (published code): T2 = 30 − 2·2, T4 = 4 and 6, T5 = 10 − 2, T3 = 20 − 2."""
    found = measured(step("x", 0, 70, action(30, 34, [0]), action(44, 50, [1]), events=[3, 9, 40]))
    assert {kind: found.us(kind, "x") for kind in ("t2", "t3", "t5")} == {"t2": 26.0, "t3": 18.0, "t5": 8.0}
    assert found.us("t4", "cudaLaunchKernel") == 5.0
    assert found.us("t5", "x", finer_name("x", 2, 0)) == 8.0


def test_t1_counts_sibling_gaps_from_2_to_200_us(step):
    """Three gaps count; each is reduced by 2 µs for the event of the next operator."""
    gaps = [1.0, 2.0, 100.0, 200.0, 201.0]
    start, steps = 0.0, []
    for gap in [0.0, *gaps]:
        start += gap
        steps.append(step("x", start, start + 5))
        start += 5
    found = measured(*steps)
    gap = found.means["t1", ""]
    assert (gap.mean_us, gap.samples) == (pytest.approx(302 / 3 - 2), 3)


def test_gap_between_different_parents_is_an_edge(step):
    found = measured(step("x", 0, 5, parent=1), step("y", 15, 20, parent=2), step("z", 23, 25, parent=2))
    assert found.us("edge", "y") == 10.0 and found.us("t1", "z") == 1.0
    assert ("t1", "y") not in found.means


def test_waiting_time_is_no_overhead(step, action):
    """A synchronising call after the launch and the wait of a copy belong to the device."""
    wait = action(20, 1020, (), "cudaStreamSynchronize", kind=events.SYNC_CALL)
    copy = action(10, 510, [0], "cudaMemcpyAsync", kind=events.COPY_CALL, host_waits=True, blocked_us=493.0)
    found = measured(step("x", 0, 1030, action(10, 14, [0]), wait))
    assert found.us("t3", "x") == 14.0
    assert measured(step("x", 0, 520, copy)).us("t4", "cudaMemcpyAsync") == 7.0


def test_gap_between_threads_is_a_handover(step):
    found = measured(step("f", 0, 5), step("b", 45, 50, thread=1), step("g", 110, 120))
    assert found.means["handover", ""] == Mean(50.0, 2) and ("t1", "") not in found.means


def test_only_chosen_iterations_count(step):
    steps = [step("x", 100 * at, 100 * at + 10 * (at + 1), iteration=at) for at in range(3)]
    assert measured(*steps, keep=[0, 2]).us("alone", "x") == 18.0


def test_unknown_operators_get_the_mean_of_all(step):
    found = measured(step("x", 0, 10), step("y", 20, 40))
    assert (found.us("alone", "x"), found.us("alone", "new")) == (8.0, 13.0)
    assert found.us("t2", "x") == 0.0 and found.us("t4", "cudaLaunchKernel") == 4.0
    assert found.has_samples("x") and not found.has_samples("new")


def test_annotations_do_not_count_for_operators(step):
    """A user range of 5 ms gives an overhead for its own name only."""
    found = measured(step("x", 0, 10), step("IO #", 20, 5020, is_operator=False))
    assert (found.us("alone", "IO #"), found.us("alone", "new")) == (4998.0, 8.0)


def test_trimmed_mean_drops_outliers():
    """The quartiles are 2 and 4, so the limits are −1 and 7; 100 lies outside."""
    assert trimmed_mean([1.0, 2.0, 3.0, 4.0, 100.0]) == Mean(2.5, 4)


def test_pooled_means_are_weighted_by_samples(refused):
    left = Overheads({("t1", "x"): Mean(10.0, 1)}, ("a",))
    right = Overheads({("t1", "x"): Mean(40.0, 2), ("t2", "x"): Mean(1.0, 1)}, ("b",))
    found = pooled([left, right])
    assert found.us("t1", "x") == 30.0 and found.us("t2", "x") == 1.0 and found.sources == ("a", "b")
    with refused("one trace at least"):
        pooled([])


def test_overheads_are_saved_and_loaded(step, action, tmp_path):
    found = measured(step("x", 0, 70, action(30, 34, [0])), step("y", 80, 90), source="a.json")
    found.save(tmp_path / "o.json")
    again = load_overheads(tmp_path / "o.json")
    assert again.to_dict() == found.to_dict() and again.us("t2", "x") == 30.0
    assert json.loads((tmp_path / "o.json").read_text())["overall"]["alone"] == [8.0, 1]
