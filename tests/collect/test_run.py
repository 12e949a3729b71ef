"""`run` measures a plan: order, resumption, time budget, lost devices; `ReplayDevice` replays its log."""

import json
from collections import Counter
from dataclasses import replace

import pandas as pd
import pytest

from surrogate.collect import log
from surrogate.collect.device import DeviceLostError, Measurement, RepeatPolicy
from surrogate.collect.log import ReplayDevice
from surrogate.collect.merge import merge_runs
from surrogate.collect.plan import Caps
from surrogate.collect.plan_source import PlanSource
from surrogate.collect.run import MAX_LOST, TIME_UP, Budget
from surrogate.features.conv import Conv


def kinds(path):
    return [(record["kind"], record["problem"]) for record in log.read_log(path).records]


def test_a_run_measures_every_algorithm_of_every_problem(make_plan, record, fake_device):
    plan, device, progress = make_plan(6), fake_device(), []
    path = record(plan, device, progress=lambda *call: progress.append(call))
    expected = [(kind, problem.key) for problem in plan.problems for kind in ("problem", *["measure"] * 4, "done")]
    assert kinds(path) == expected
    assert [call[:2] for call in progress] == [(i + 1, 6) for i in range(6)]


def test_pace_shows_rows_per_second_and_the_time_left():
    now = [100.0]
    budget = Budget(10.0, lambda: now[0])
    now[0] += 40.0
    assert budget.pace(80, 4, 10) == "2.0 rows/s, 1:40 left"  # ten problems at ten seconds
    assert budget.pace(80, 4, 1000) == "2.0 rows/s, 9:20 left"  # the budget of 10 minutes ends first


@pytest.mark.parametrize("lines", [1, 2, 4, 6, 7, 11])
def test_an_interrupted_run_continues_where_it_ended(make_plan, record, fake_device, lines):
    plan = make_plan(4)
    path = record(plan)
    complete = path.read_text().splitlines(keepends=True)
    path.write_text("".join(complete[:lines]) + complete[lines][:10])
    device = fake_device()
    record(plan, device)
    measured = sum('"kind":"measure"' in line for line in complete[:lines])
    assert len(device.calls) == 16 - measured
    assert Counter(kinds(path)) == Counter((r["kind"], r["problem"]) for r in map(json.loads, complete[1:]))
    finished, unused = path.read_bytes(), fake_device()
    assert record(plan, unused).read_bytes() == finished and not unused.calls


class ManualClock:
    """A clock that advances only when a test says so."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s

    def passed(self, seconds, result):
        """Advance the clock and return ``result``."""
        self.now_s += seconds
        return result


def test_the_budget_is_never_overrun(make_plan, ran, fake_device):
    plan, clock, device = make_plan(20), ManualClock(), fake_device()
    device.alter = lambda result, _: clock.passed(7.0, result)
    outcome = ran(plan, device, minutes=1.0, clock=clock)
    assert 60.0 - 2 * 7.0 < clock.now_s <= 60.0
    assert outcome.stopped == TIME_UP and outcome.problems_done < outcome.problems_total == 20
    assert outcome.statuses.total() == len(device.calls) == 8
    outcome = ran(plan, fake_device())
    assert outcome.problems_done == outcome.problems_total and not outcome.stopped


def test_a_lost_device_costs_one_measurement(make_plan, record, fake_device):
    plan, device = make_plan(3), fake_device()

    def fragile(result, _):
        if len(device.calls) == 2:
            raise DeviceLostError("an illegal memory access")
        return result

    device.alter = fragile
    device.find = device.conditions = device.heuristic = lambda *_: (_ for _ in ()).throw(DeviceLostError("gone"))
    path = record(plan, device)
    results = [r["result"] for r in log.read_log(path).records if r["kind"] == "measure"]
    assert len(results) == 12
    assert results[1] == {"status": "failed", "reason": "device lost: an illegal memory access"}
    done = [r for r in log.read_log(path).records if r["kind"] == "done"]
    assert [r["problem"] for r in done] == [problem.key for problem in plan.problems[1:]]  # the first is not done
    assert all(r["find"] == [] and r["conditions"] == {} for r in done)
    assert len(merge_runs([path]).frame) == 11
    again = fake_device()
    assert len(merge_runs([record(plan, again)]).frame) == 12 and again.calls == [(str(plan.problems[0].conv), "GEMM")]


def test_repeated_losses_without_a_time_stop_the_run(make_plan, ran, tmp_path, fake_device):
    """Only a measured time resets the count of losses; a later run measures the lost pairs again."""
    plan, device, working = make_plan(9), fake_device(), fake_device()

    def mostly_lost(result, algorithm):
        if len(device.calls) <= 6:
            return result
        if algorithm in ("IMPLICIT_GEMM", "GEMM"):
            raise DeviceLostError("no answer within 30 s")
        return Measurement("not_supported", "the library refuses without the device")

    device.alter = mostly_lost
    outcome = ran(plan, device)
    assert outcome.statuses["lost"] == MAX_LOST and outcome.statuses["not_supported"] > MAX_LOST - 2
    assert f"lost {MAX_LOST} times" in outcome.stopped and "no answer within 30 s" in outcome.stopped
    assert set(merge_runs([tmp_path / "run"]).frame["status"]) == {"ok", "not_supported"}
    outcome = ran(plan, working)
    assert outcome.problems_done == len(plan) and len(merge_runs([tmp_path / "run"]).frame) == 4 * len(plan)


@pytest.mark.parametrize("call", ["candidates", "find"])
def test_losses_outside_measure_count_too(make_plan, ran, fake_device, call):
    plan, device = make_plan(9), fake_device()
    setattr(device, call, lambda *_: (_ for _ in ()).throw(DeviceLostError("gone")))
    device.alter = lambda *_: Measurement("not_supported", "nothing runs")
    assert f"lost {MAX_LOST} times" in ran(plan, device).stopped


def test_a_hanging_call_costs_one_timeout(make_plan, record, fake_device):
    """After a loss, `find` is not called, because it would run the algorithm again."""
    plan, device, clock, found = make_plan(3), fake_device(), ManualClock(), []

    def hangs_once(result, _):
        if len(device.calls) > 1:
            return clock.passed(1.0, result)
        clock.now_s += 30.0
        raise DeviceLostError("no answer within 30 s")

    device.alter, device.find = hangs_once, lambda conv: found.append(conv) or ()
    record(plan, device, minutes=0.75, clock=clock)
    assert clock.now_s == 41.0  # one timeout of 30 s and 11 measurements of 1 s
    assert found == [problem.conv for problem in plan.problems[1:]]


@pytest.mark.parametrize(("rows", "warned"), [(0, False), (1, False), (10, True)])
def test_a_run_warns_if_many_rows_were_not_timed_by_cupti(make_plan, ran, fake_device, rows, warned):
    plan, device = make_plan(60), fake_device()
    device.info = replace(device.info, properties={"timer": "cupti"})
    events = {"timer": "events", "reason": "CUPTI saw no kernel"}
    device.alter = lambda result, _: replace(result, **events if result.times_us and len(device.calls) <= rows else {})
    for _ in range(2):  # the second call finds the rows in the log
        outcome = ran(plan, device)
        assert outcome.problems_done == outcome.problems_total and bool(outcome.timer_warning) is warned


def test_replay_returns_the_recorded_results(make_plan, record):
    plan = make_plan(200)
    path = record(plan)
    device = ReplayDevice(path)
    assert device.device_info().gpu == "Fake GPU"
    assert {p.conv for p in device.problems()} == {p.conv for p in plan.problems}
    again = record(plan, device, name="again.jsonl")
    logs = ([r for r in log.read_log(p).records if r["kind"] == "measure"] for p in (path, again))
    first, second = ({(r["problem"], r["algorithm"]): r["result"] for r in records} for records in logs)
    assert first.keys() == second.keys()
    assert all(first[key] == second[key] for key in first if key[0].endswith("#0"))
    recorded, replayed = (merge_runs([p]).frame for p in (path, again))
    once = ~recorded.repeats.gt(5)
    clocks = ["sm_clock_mhz", "slow_clock", "throttled"]  # a replay has no clocks
    pd.testing.assert_frame_equal(recorded[once].drop(columns=clocks), replayed[once].drop(columns=clocks))


def test_replay_refuses_problems_that_were_not_recorded(refused, make_plan, record, tmp_path):
    device = ReplayDevice(record(make_plan(3)))
    recorded = device.problems()[0].conv
    with refused("WINOGRADE was not recorded", "did you mean WINOGRAD"):
        device.measure(recorded, "WINOGRADE", RepeatPolicy())
    with refused("was not recorded (3 problems are)"):
        device.candidates(Conv(n=1, c=1, h=5, k=1, r=1))
    (tmp_path / "empty").touch()
    with refused("no measurement"):
        ReplayDevice(tmp_path / "empty")


def test_a_truncated_recording_is_replayed_up_to_its_end(refused, make_plan, ran, record, tmp_path):
    """A killed run has measured some algorithms of its last problem, or none."""
    path = record(make_plan(4), name="complete.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    starts = [i for i, line in enumerate(lines) if json.loads(line)["kind"] == "problem"]
    for name, cut, problems, rows in (("one", starts[2] + 2, 3, 9), ("none", starts[2] + 1, 2, 8)):
        shortened = tmp_path / f"{name}.jsonl"
        shortened.write_text("".join(lines[:cut]))
        plan = PlanSource(recording=shortened).build(Caps(0))
        outcome = ran(plan, ReplayDevice(shortened), f"{name}-again.jsonl")
        assert outcome.problems_done == outcome.problems_total == problems
        assert len(merge_runs([tmp_path / f"{name}-again.jsonl"]).frame) == rows
    with refused("has no measurement"):
        shortened.write_text("".join(lines[: starts[0] + 1]))
        ReplayDevice(shortened)
