"""Iterations of a trace: by profiler step, by optimizer, by repetition, or the whole trace."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from surrogate.trace import events
from surrogate.trace.events.parts import Iteration, find_layers, iteration_of, iterations, steady_run, trim
from surrogate.trace.events.phases import captured_calls, start_up_calls
from surrogate.trace.events.repetition import periods
from surrogate.trace.tables import summary
from tests.known import cases
from tests.trace.events import built, call, device, event


def test_profiler_steps_become_iterations(make_trace, read):
    found = iterations(read(make_trace(steps=3)))
    expected = [(f"ProfilerStep#{number}", "step", 990.0) for number in (5, 6, 7)]
    assert [(iteration.label, iteration.by, iteration.time_us) for iteration in found] == expected


def _without(trace, *prefixes):
    return {**trace, "traceEvents": [e for e in trace["traceEvents"] if not e["name"].startswith(prefixes)]}


def test_optimizer_steps_bound_iterations(make_trace, read):
    found = iterations(read(_without(make_trace(steps=3), "ProfilerStep")))
    assert [iteration.by for iteration in found] == ["optimizer"] * 3
    assert [iteration.end_ns for iteration in found] == [490_000, 1_490_000, 2_490_000]


def test_repeated_operators_become_iterations(make_trace, read):
    trace = read(_without(make_trace(steps=4), "ProfilerStep", "Optimizer"))
    found = iterations(trace)
    assert [iteration.by for iteration in found] == ["repetition"] * 4
    assert [iteration.start_ns for iteration in found] == [0, 1_000_000, 2_000_000, 3_000_000]
    assert np.bincount(iteration_of(found, trace)[2]).tolist() == [6, 6, 6, 6]


def test_repeated_kernels_become_iterations(make_trace, read):
    trace = make_trace(steps=4)
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("cat") == "kernel"]
    assert len(iterations(read(trace))) == 4


def test_trace_without_repetition_is_one_iteration(make_trace, read):
    found = iterations(read(_without(make_trace(steps=1), "ProfilerStep")))
    assert [(iteration.label, iteration.by) for iteration in found] == [("whole trace", "whole")]


@pytest.mark.parametrize("length, name", [(900, "forward"), (9, "Step 3")])
def test_repeated_layers_of_one_step_are_no_iterations(length, name, read):
    """The host launches equal layers before the device finishes them, or inside a range that is named step."""
    rows = [["user_annotation", name, -1, 99], *(["cpu_op", "aten::mm", 10 * i, 9] for i in range(9))]
    for i in range(9):
        rows += [["call", "cudaLaunchKernel", 10 * i + 1, 2, i + 1], ["device", "gemm", length * i + 4, length, i + 1]]
    assert len(iterations(read({"schemaVersion": 1, "traceEvents": built(rows)}))) == 1


@pytest.mark.parametrize("head, count, step_ms", [([], 12, 0.6), (["norm"], 1, 7.401)])
def test_a_loop_without_a_wait_has_steps_unless_other_kernels_follow(head, count, step_ms, read):
    """The host launches a kernel each 10 µs, and each takes 200 µs; a model's layers would have a head after them."""
    names = [*["mm", "relu", "mm"] * 12, *head]
    rows = [["call", "cudaDeviceSynchronize", 10 * len(names), 190 * len(names), 99]]
    for i, name in enumerate(names):
        rows += [["cpu_op", f"aten::{name}", 10 * i, 9], ["call", "cudaLaunchKernel", 10 * i, 2, i]]
        rows.append(["device", name, 200 * i + 1, 200, i])
    trace = read({"traceEvents": built(rows)})
    assert len(iterations(trace)) == count
    assert summary(trace)["step_ms"] == pytest.approx(step_ms)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=12, unique=True), st.integers(3, 6), st.integers(0, 2))
def test_period_finds_a_repeated_block_after_a_prologue(block, times, prologue):
    assert periods(np.array([*range(100, 100 + prologue), *block * times]))[0] == (prologue, len(block))


def test_activities_belong_to_the_iteration_of_their_launch(make_trace, read):
    trace = make_trace(steps=2)
    late = next(e for e in trace["traceEvents"] if e["name"] == "add_kernel")
    late["ts"] += 700  # it runs while the next step's host work is under way
    found = read(trace)
    of_activity = iteration_of(iterations(found), found)[2]
    assert of_activity[[i for i in range(12) if found.name_of(found.activities, i) == "add_kernel"]].tolist() == [0, 1]


def test_iterations_of_real_traces_have_known_counts(resnet, real):
    found = iterations(resnet)
    assert [iteration.label for iteration in found] == [f"ProfilerStep#{i}" for i in range(5, 11)]
    assert np.bincount(iteration_of(found, resnet)[2]).tolist() == [1516] * 6
    by_optimizer = iterations(real("resnet_training_2080ti_no_dims.json.gz"))
    assert len(by_optimizer) == 30 and by_optimizer[0].by == "optimizer"
    loop = iterations(real("nsys_power_iteration.sqlite"))
    assert len(loop) == 44 and loop[0].by == "repetition"


@pytest.mark.parametrize("part", [{"iterations_kept": [1]}, {"from_us": 1000.0}])
def test_trim_keeps_the_second_step(make_trace, read, part):
    trace = trim(read(make_trace(steps=2)), **part)
    tables = (trace.ranges, trace.calls, trace.activities, trace.allocations)
    assert list(map(len, tables)) == [10, 6, 6, 1]
    assert (trace.activities.call >= 0).all() and (trace.activities.range >= 0).all()
    launching = [trace.name_of(trace.ranges, r) for r in trace.activities.range]
    backward = ["ReluBackward0", "aten::convolution_backward"]
    assert launching == ["aten::cudnn_convolution", "aten::relu", *backward, "aten::add_", "aten::copy_"]


def test_trimmed_iterations_sum_to_the_trace(resnet):
    found = iterations(resnet)
    parts = [trim(resnet, iterations_kept=[i]) for i in range(len(found))]
    assert sum(len(p.activities) for p in parts) == len(resnet.activities)
    assert sum(p.activities.time_us.sum() for p in parts) == resnet.activities.time_us.sum()


def test_trimmed_trace_keeps_iteration_numbers_and_times(refused, real):
    trace = real("resnet_training_2080ti_no_dims.json.gz")
    by_index = {iteration.index: iteration for iteration in iterations(trace)}
    part = trim(trace, iterations_kept=[5, 10])
    assert iterations(part) == (by_index[5], by_index[10])
    assert iterations(trim(part, iterations_kept=[10])) == (by_index[10],)
    assert iterations(trim(part, from_us=(by_index[10].start_ns - part.span_ns[0]) / 1e3)) == (by_index[10],)
    with refused("iteration 6 is not in"):
        trim(part, iterations_kept=[6])


def test_steady_run_excludes_iterations_over_three_times_the_median():
    """30 is 3 times the median of all times, but 6 times the median of the steady ones."""
    times = [400, 5, 5, 5, 5, 30, 10, 10, 200, 90, 100, 300]
    rounds = [Iteration(i, "", 0, 1000 * time, "step") for i, time in enumerate(times)]
    kept, text = steady_run(rounds)
    assert kept == rounds[1:5] and "1 to 4 count" in text and "(0, 5, 8, 9, 10, 11)" in text
    assert steady_run(rounds[1:5]) == (rounds[1:5], "")


def test_trim_keeps_one_gpu(make_trace, read):
    trace = make_trace(steps=1)
    for record in trace["traceEvents"]:
        if record["name"] == "add_kernel":
            record["args"]["device"] = 1
    found = trim(read(trace), gpu=1)
    assert [found.name_of(found.activities, 0)] == ["add_kernel"] and len(found.activities) == 1
    assert found.name_of(found.ranges, found.activities.range[0]) == "aten::add_"


@given(st.floats(0, 2500), st.floats(1, 1500))
def test_trim_keeps_links_valid_for_any_time_range(invented_trace, start, length):
    first, _ = invented_trace.span_ns
    begun_us = (np.concatenate([invented_trace.ranges.start_ns, invented_trace.calls.start_ns]) - first) / 1e3
    # The margin of 1 ns at both ends excludes errors of rounding.
    starts_event = ((begun_us > start + 0.001) & (begun_us < start + length - 0.001)).any()
    try:
        part = trim(invented_trace, from_us=start, to_us=start + length)
    except ValueError as error:
        assert not starts_event and "no event starts at" in str(error)
        return
    ranges, calls, activities = part.ranges, part.calls, part.activities
    for links in (ranges.parent, calls.range, activities.range):
        assert ((links >= -1) & (links < max(len(ranges), 1))).all()
    launched = activities.call >= 0
    assert (activities.correlation[launched] == calls.correlation[activities.call[launched]]).all()
    assert (part.calls.kind != events.OTHER_CALL).all()


@cases(__file__)
def test_steps_count_if_they_hold_work_and_their_kernels(lost, added, counted, note, make_trace, read):
    """A step has 5 launches and 6 activities; ``lost`` activities are not in the file, ``added`` events are."""
    trace = make_trace(steps=4)
    recorded = [record for record in trace["traceEvents"] if record["cat"] in ("kernel", "gpu_memcpy")][slice(*lost)]
    kept = [record for record in trace["traceEvents"] if record not in recorded]
    extra = [each | {"ts": 1_700_000_000_000_000 + each["ts"]} for each in built(added)]
    found = read({"traceEvents": kept + extra})
    every = iterations(found)
    assert [part.index for part in every] == counted
    assert note in " ".join(found.notes) and bool(note) == bool(found.notes)
    of_activity = iteration_of(every, found)[2]
    assert (of_activity[found.activities.call < 0] == -1).all()
    assert np.bincount(of_activity[of_activity >= 0], minlength=len(every)).max() == 6
    # Steps that do not count have the layers of the others.
    assert set(find_layers(found).name) - {"detach.0"} == set(find_layers(read(make_trace(steps=1))).name)


@cases(__file__)
def test_captures_and_start_up_are_found(calls, kernels, captured, start_up, read):
    """Calls are (name, start, time, thread), in µs; kernels are (call, start, time)."""
    recorded = [call(name, start, time, i, thread) for i, (name, start, time, thread) in enumerate(calls)]
    recorded += [device("k", start, time, number) for number, start, time in kernels]
    found = read({"traceEvents": recorded})
    assert np.flatnonzero(captured_calls(found)).tolist() == captured
    assert np.flatnonzero(start_up_calls(found)).tolist() == start_up
    noted = ["stream capture" in str(found.notes), "warm-up" in str(found.notes)]
    assert noted == [bool(captured), bool(start_up)]


@cases(__file__)
def test_loops_without_ranges_are_found_by_calls(calls, length, earlier, starts, read):
    """A step has calls (name, start, time, activity's name, start and time), in µs, and is recorded four times.

    ``earlier`` are kernels that were launched before the recording, and ``starts`` the right starts of iterations. Each
    takes ``length``, the last one too, though the recording ends earlier.
    """
    recorded = [device("k", start, time, 999) for start, time in earlier]
    for number, (name, start, time, work, at, busy) in enumerate([each for _ in range(4) for each in calls]):
        begin = 10_000 + number // len(calls) * length
        recorded.append(call(name, begin + start, time, number))
        category = "gpu_memcpy" if work.startswith("Memcpy") else "kernel"
        recorded += [device(work, begin + at, busy, number, category=category)] * bool(work)
    found = read({"traceEvents": recorded})
    facts, every = summary(found), iterations(found)
    assert [part.start_ns / 1e3 + found.origin_ns / 1e3 - 10_000 for part in every] == starts
    assert [part.time_us for part in every] == [length] * len(starts)
    assert (facts["iterations"], facts["step_ms"] * 1e3) == (len(starts), pytest.approx(length, abs=0.01))
    idle_us = length - sum(busy for *_, busy in calls)
    assert facts["idle_ms"] * 1e3 == pytest.approx(idle_us * len(starts), abs=0.01)


def test_the_last_complete_step_ends_where_a_cut_one_begins(read):
    """The recording ends after the first launch of the fourth step, 8 ms after the third step's begin."""
    step = [("cudaLaunchKernel", 0, 5), ("cudaLaunchKernel", 100, 5), ("cudaDeviceSynchronize", 200, 3810)]
    begins = [(begin, each) for begin in (0, 5000, 10_000, 18_000) for each in step][:10]
    recorded = [call(name, begin + start, time, i) for i, (begin, (name, start, time)) in enumerate(begins)]
    recorded += [device("k", begin + 120, 500, i) for i, (begin, (name, *_)) in enumerate(begins) if "Launch" in name]
    assert [part.time_us for part in iterations(read({"traceEvents": recorded}))] == [5000, 5000, 8000]


def test_a_loop_that_covers_little_is_no_iteration(read):
    """Runs of 2, 5, 3 and 4 launches of one kernel, each followed by a pause of another length."""
    starts = [0, 10, 500, 510, 520, 530, 540, 1700, 1710, 1720, 3600, 3610, 3620, 3630]
    recorded = [call("cudaLaunchKernel", at, 5, i) for i, at in enumerate(starts)]
    recorded += [device("k", at + 6, 3, i) for i, at in enumerate(starts)]
    assert [part.by for part in iterations(read({"traceEvents": recorded}))] == ["whole"]


def test_an_empty_step_between_others_counts(read):
    """Five steps of 1 ms, of which step 2 launches nothing; the others run 0.6 ms. So 2.6 ms are idle."""
    recorded = [event("user_annotation", f"ProfilerStep#{i}", 1000 * i, 1000) for i in range(5)]
    for i in (0, 1, 3, 4):
        recorded += [call("cudaLaunchKernel", 1000 * i + 10, 5, i), device("k", 1000 * i + 20, 600, i)]
    facts = summary(read({"traceEvents": recorded}))
    assert (facts["iterations"], facts["step_ms"], facts["idle_ms"]) == (5, 1.0, pytest.approx(2.6))
    assert facts["notes"].startswith("without work, but counted: iteration 2")


def test_a_step_that_only_captures_does_not_count(read):
    recorded = [event("user_annotation", f"ProfilerStep#{i}", 1000 * i, 1000) for i in range(3)]
    names = ("cudaStreamBeginCapture", "cudaLaunchKernel", "cudaStreamEndCapture")
    recorded += [call(name, 100 * i, 5, 90 + i) for i, name in enumerate(names)]
    for i in (1, 2):
        recorded += [call("cudaGraphLaunch", 1000 * i + 10, 5, i), device("k", 1000 * i + 20, 600, i)]
    assert [part.index for part in iterations(read({"traceEvents": recorded}))] == [1, 2]


def test_calls_of_unified_runtime_have_kinds():
    kinds = {"urQueueFinish": events.SYNC_CALL, "urEventWait": events.SYNC_CALL, "urEnqueueKernelLaunch": events.LAUNCH}
    assert {name: events.call_kind(name) for name in kinds} == kinds
