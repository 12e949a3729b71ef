"""Iteration times of invented and real traces, with fake and real predictors, and the command."""

import csv
import io
import json
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from surrogate.features.conv import Conv
from surrogate.features.families import operator
from surrogate.features.gpu import gpu
from surrogate.network.predict import Predictors
from surrogate.prediction.results import KernelTime
from surrogate.prediction.shipped import load_operators
from surrogate.trace.calls import batch_size
from surrogate.trace.iteration import times as kernel_times
from surrogate.trace.iteration.overheads import host_work, measure_overheads
from surrogate.trace.iteration.predict import iteration_times
from surrogate.trace.iteration.times import DeviceTimes, PredictedTime, predicted_times
from tests.known import cases, known_answers
from tests.trace.events import call, device, event

KERNEL = device("k", 1, 2, 1)


@dataclass
class FixedConvs:
    """Every convolution takes ``time_us`` for a batch of 8; if ``none`` is set, no algorithm runs it."""

    none: bool = False
    time_us: float = 77.0

    def network_selections(self, problems: Any, **_: Any) -> Any:
        assert all(isinstance(conv, Conv) for conv in problems)
        interval = {"lower_us": 0.0, "upper_us": 1e9, "half_width": 0.1, "candidate": SimpleNamespace(mechanism="")}
        times = [SimpleNamespace(time_us=self.time_us * conv.n / 8, source="model", **interval) for conv in problems]
        return [SimpleNamespace(estimates=() if self.none else (time,)) for time in times]


@dataclass
class FixedOperators:
    """Every other operator takes 1 µs per 100,000 bytes; ``source`` is the source of the time."""

    source: str = "roofline"

    def kernel_times(self, ops: Any) -> Any:
        times = [(op, float(op.dram_bytes) / 1e5) for op in ops]
        return [KernelTime(op, "", "", "", us, us, 2 * us, us, self.source, False) for op, us in times]


@pytest.fixture
def fake():
    return Predictors(gpu("v100-sxm2-16gb"), FixedConvs(), FixedOperators())


@pytest.fixture
def trace(read, make_trace):
    return read(make_trace(steps=3))


def test_iteration_times_of_the_invented_trace(trace):
    found = iteration_times(trace)
    assert [iteration.label for iteration in found] == ["ProfilerStep#5", "ProfilerStep#6", "ProfilerStep#7"]
    for each in found:
        assert (each.measured_us, each.coverage, each.host_coverage) == (990.0, 1.0, 1.0)
    assert all(iteration.device_us == iteration.measured_device_us == 400.0 for iteration in found)
    assert all(iteration.unprofiled_us <= iteration.predicted_us <= iteration.measured_us for iteration in found)
    assert found.batch == 8 and found.gpu == "v100-sxm2-16gb" and found.unknown == ()
    calls = {row.operator: (row.calls, row.launches, row.measured_us) for row in found.operators}
    assert calls["ConvolutionBackward0"] == (1.0, 1.0, 200.0)
    assert found.operators[0].operator == "ConvolutionBackward0"


def test_one_iteration_can_be_selected(trace):
    found, selected = iteration_times(trace), iteration_times(trace, iteration=1)
    assert selected.iterations == (found.iterations[1],)


def test_result_converts_to_dict_frame_and_html(trace):
    found = iteration_times(trace, leave_one_out=True)
    answer = json.loads(json.dumps(found.to_dict()))
    assert len(answer["iterations"]) == 3 and answer["coverage"] == 1.0 and answer["times"] == "measured"
    assert list(found.to_frame()["label"]) == [iteration.label for iteration in found]
    assert "ProfilerStep#5" in repr(found) and "<table>" in found._repr_html_()
    errors = [abs(iteration.error_pct or 0.0) for iteration in found]
    assert found.error_geomean_pct == pytest.approx(np.exp(np.log(errors).mean()))


def test_surrogate_times_equal_the_operator_predictions(trace, fake):
    """A convolution takes 77 µs, its backward launch two of them; relu moves 8·16·30·30 elements of 8 bytes."""
    times = predicted_times(trace, fake)
    rows = {trace.name_of(trace.activities, row): row for row in range(7, len(trace.activities))}
    times_us = {name: float(times.time_us[row]) for name, row in rows.items()}
    assert times_us["cudnn_wgrad_kernel"] == pytest.approx(154.0)
    assert times_us["relu_kernel"] == pytest.approx(8 * 16 * 30 * 30 * 8 / 1e5)
    assert times_us["add_kernel"] == pytest.approx(16 * 3 * 3 * 3 * 12 / 1e5)
    assert times_us["Memcpy DtoH (Device -> Pageable)"] == pytest.approx(400000 / 1e5)
    lacking = {(trace.name_of(trace.activities, row), reason) for row, reason in times.reasons}
    assert lacking == {("relu_backward_kernel", "a rule for this operator")}
    assert times_us["relu_backward_kernel"] == 30.0


def transferred_us(trace, trace_predictors, predictors):
    """Return the times (µs) of the first iteration's kernels and copy on the other GPU, by name."""
    times = predicted_times(trace, predictors, trace_predictors=trace_predictors).time_us[:6]
    return {trace.name_of(trace.activities, row): float(time) for row, time in enumerate(times)}


def test_times_on_another_gpu_equal_hand_computed_values(trace, fake):
    """Convolutions take half the time, as predicted; the shortest kernel time changes from 1.6 to 3.9 µs.

    The other time scales with the copy bandwidth, 0.92·900 and 0.772·5325 GB/s; a pinned copy to the host scales with
    PCIe, 15.75 and 63 GB/s, and a pageable one keeps its time. If only the V100 was measured, the predictions count,
    which are equal."""
    predictors = Predictors(gpu("mi300x"), FixedConvs(time_us=38.5), FixedOperators())
    ratio = 0.92 * 900 / (0.772 * 5325)
    found = transferred_us(trace, fake, predictors)
    names = known_answers(__file__)["activities"]
    times_us = [50, 3.9 + 18.4 * ratio, 30 * ratio, 100, 3.9 + 8.4 * ratio, 40]
    assert found == pytest.approx(dict(zip(names, times_us, strict=True)))
    pinned = replace(trace, names=tuple(name.replace("Pageable", "Pinned") for name in trace.names))
    assert list(transferred_us(pinned, fake, predictors).values())[-1] == pytest.approx(3.9 + 38.4 / 4)
    sources = predicted_times(trace, predictors, trace_predictors=fake).source[:6]
    assert (sources[2], sources[5]) == ("rates", "measured")
    predicted = transferred_us(trace, Predictors(fake.gpu, FixedConvs(), FixedOperators("model")), predictors)
    assert predicted["relu_kernel"] == pytest.approx(3.9 + 18.4)


@cases(__file__)
def test_a_product_reaches_the_rate_that_the_power_allows_on_the_board_or_its_twin(read, target, tflops):
    """RTX A6000 reaches 94 % of its 154.8 TFLOP/s. An H800 has the chip of an H100."""
    product = {"Input Dims": [[4096, 4096]] * 2, "Input type": ["c10::Half"] * 2, "External id": 1}
    launch = call("cudaLaunchKernel", 2, 3, 1)
    trace = read({"traceEvents": [event("cpu_op", "aten::mm", 0, 9, **product), launch, device("k", 9, 1001.6, 1)]})
    own, other = (Predictors(gpu(name), FixedConvs(), FixedOperators()) for name in ("rtx-a6000", target))
    times = predicted_times(trace, other, trace_predictors=own)
    assert times.time_us == pytest.approx([1.6 + 1000 * 0.94 * 154.8 / tflops], rel=1e-3)


def test_a_long_gap_of_the_host_keeps_its_time(read):
    """Each of three steps of 7 ms has 5 ms of host work between two operators, which no event shows."""
    recorded = []
    for n in range(3):
        recorded.append(event("user_annotation", f"ProfilerStep#{n}", 7000 * n, 7000))
        for start, number in ((0, 2 * n), (6000, 2 * n + 1)):
            at = 7000 * n + start
            recorded += [event("cpu_op", "aten::mm", at, 1000), call("cudaLaunchKernel", at + 1, 3, number)]
            recorded.append(device("k", at + 9, 100, number))
    for step in iteration_times(read({"traceEvents": recorded})):
        assert step.untraced_us == 5000 and step.predicted_us == pytest.approx(7000, rel=0.01)


def test_errors_of_kernel_kinds_are_independent():
    rows = ((20.0, "rates", 0.4, "a"), (10.0, "rates", 0.1, "a"), (10.0, "model", 1.2, "b"))
    parts = tuple(PredictedTime(*row) for row in rows)
    assert DeviceTimes(np.ones(3), (), (), parts).factor_90 == pytest.approx(np.exp(np.hypot(9, 12) / 40))
    assert DeviceTimes(np.ones(3), ()).factor_90 == 1
    assert DeviceTimes(np.ones(3), (), (), parts, board_factor=3.0).factor_90 == 3


@cases(__file__)
def test_interval_between_two_chips_has_a_minimum_width(own, target, factor):
    assert kernel_times.BOARD_FACTOR[kernel_times.pair_kind(gpu(own), gpu(target))] == factor


@pytest.mark.parametrize(("factor", "answer"), [(3.0, 3.0), (100.0, 10.0), (0.01, 0.1)])
def test_prediction_that_replaces_a_measured_time_stays_near_its_transfer_by_rates(factor, answer):
    """The rates are the bandwidths that long kernels reach; the shortest kernel takes 1.6 µs on both GPUs."""
    names, fill = ("v100-sxm2-16gb", "a100-sxm4-40gb"), operator("fill", n=10**8)
    by_rates_us = 1.6 + (1000 - 1.6) * 0.92 * 900 / (0.9 * 1555)
    found = [PredictedTime(1000.0, "roofline", 2.0), PredictedTime(factor * by_rates_us, "model", 0.1)]
    times = zip(names, found, strict=True)
    each = [kernel_times.OperatorOnGpu.of(gpu(name), [fill], {fill: time}) for name, time in times]
    moved = kernel_times.transferred(1000.0, 1, *each)
    assert (moved.time_us, moved.source) == (pytest.approx(answer * by_rates_us), "model")
    assert moved.half_width == pytest.approx(max(0.1, abs(np.log(factor / answer))))


def test_operators_without_a_prediction_are_listed(trace, fake):
    found = iteration_times(trace, times="surrogate", bundle=fake, iteration=0)
    assert [(entry.operator, entry.count, entry.time_us) for entry in found.unknown] == [("ReluBackward0", 1, 30.0)]
    assert found.coverage == pytest.approx(1 - 30 / found.iterations[0].device_us)
    assert any("so kept as measured: ReluBackward0" in note for note in found.table().notes)
    found = iteration_times(trace, times="surrogate", bundle=Predictors(fake.gpu, None, fake.kernel_predictor))
    assert sum(entry.count for entry in found.unknown if entry.lacks == "a model of convolutions") == 6
    none = Predictors(fake.gpu, FixedConvs(none=True), fake.kernel_predictor)
    found = iteration_times(trace, times="surrogate", bundle=none)
    assert "an algorithm that runs it" in {entry.lacks for entry in found.unknown}


def test_batch_and_gpu_change_the_predicted_times(trace, fake):
    found = iteration_times(trace, batch=16, bundle=fake)
    unchanged = iteration_times(trace, times="surrogate", bundle=fake)
    before = {row.operator: row.predicted_us for row in unchanged.operators}
    after = {row.operator: row.predicted_us for row in found.operators}
    for name in ("aten::conv2d", "aten::relu", "ConvolutionBackward0"):
        assert after[name] == pytest.approx(2 * before[name])
    assert after["aten::add_"] == before["aten::add_"]  # the optimizer's tensors have no batch
    assert ("aten::copy_", "batch dimension") in {(entry.operator, entry.lacks) for entry in found.unknown}
    assert all(iteration.error_pct is None for iteration in found) and found.error_geomean_pct is None
    on_t4 = iteration_times(trace, gpu="t4", bundle=fake)
    assert on_t4.gpu == "t4" and on_t4.iterations[0].error_pct is None and on_t4.times == "surrogate"


def test_overheads_of_another_trace_are_used(trace, read, make_trace):
    other = measure_overheads(host_work(read(make_trace(steps=1), "other.json")), "other")
    found = iteration_times(trace, overheads=other)
    assert found.overheads.sources == ("other",) and found.iterations[0].host_coverage == 1.0
    own_us = iteration_times(trace).iterations[0].predicted_us
    assert found.iterations[0].predicted_us == pytest.approx(own_us, rel=0.05)


def test_iteration_times_refuses_invalid_arguments(refused, trace, read, make_trace):
    with refused("unknown; known: measured, surrogate"):
        iteration_times(trace, times="guessed")
    with refused("one iteration"):
        iteration_times(read(make_trace(steps=1), "one.json"), leave_one_out=True)
    with refused("choose one"):
        iteration_times(trace, overheads=iteration_times(trace).overheads, leave_one_out=True)
    with refused("no operators or launches"):
        iteration_times(read({"traceEvents": [KERNEL]}, "kernel.json"))
    bare = make_trace(steps=1)
    for each in bare["traceEvents"]:
        each.get("args", {}).pop("Input Dims", None)
    bare.pop("deviceProperties")
    with refused("batch size is not known"):
        iteration_times(read(bare, "bare.json"), batch=4)
    with refused("does not name a registered GPU"):
        iteration_times(read(bare, "bare.json"), times="surrogate")


@pytest.fixture
def iteration(seer, file):
    return partial(seer, "iteration", file)


def test_iteration_command_saves_and_reads_overheads(iteration, tmp_path):
    code, out, _ = iteration("--save-overheads", tmp_path / "o.json")
    assert code == 0 and "ProfilerStep#6" in out and "ConvolutionBackward0" in out
    answer = iteration("--overheads", tmp_path / "o.json", "--json", "--iteration", "1").succeeded().json
    assert [row["index"] for row in answer["iterations"]] == [1]
    code, out, _ = iteration("--csv", "--leave-one-out")
    assert [row["label"] for row in csv.DictReader(io.StringIO(out))] == ["ProfilerStep#5", "ProfilerStep#6"]


@pytest.mark.parametrize("leave_one_out", [False, True])
def test_resnet50_error_is_within_5_pct(resnet, leave_one_out):
    found = iteration_times(resnet, leave_one_out=leave_one_out)
    assert len(found) == 6 and all(abs(iteration.error_pct) <= 5.0 for iteration in found)  # type: ignore[arg-type]


def test_vgg13_error_is_within_2_pct(real):
    trace = real("vgg13_b128_training_h100.json.gz")
    assert abs(iteration_times(trace).iterations[0].error_pct) <= 2.0  # type: ignore[arg-type]
    # The file name contains 128, but the shapes have a batch of 512.
    assert batch_size(trace) == 512


def test_vgg13_is_partly_covered_without_a_convolution_model(real):
    """Without a convolution model, matrix products, pools and pointwise operators are still predicted."""
    trace = real("vgg13_b128_training_h100.json.gz")
    by = Predictors(gpu("h100-sxm"), None, load_operators("h100-sxm"))
    found = iteration_times(trace, times="surrogate", bundle=by)
    assert 0.2 < found.coverage < 0.5
    assert "a model of convolutions" in {entry.lacks for entry in found.unknown}


def test_trace_without_device_events_is_refused(refused, real):
    """Launch overheads do not predict operators that compute on the host."""
    with refused("record it with ProfilerActivity.CUDA"):
        iteration_times(real("edge_no_gpu_events.json.gz"))
