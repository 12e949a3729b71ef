"""Tables of layers, kernels, types and copies, and the summary: known answers, and totals of the trace."""

import re

import numpy as np
import pytest

from surrogate.features.kernels import uses_tensor_cores
from surrogate.trace.events.parts import BACKWARD, FORWARD, OTHER, find_layers, trim
from surrogate.trace.kernels import GROUPINGS, kernel_table, launch_use, verdict
from surrogate.trace.profiling import profile, union_us
from surrogate.trace.tables import (
    STEP_PARTS,
    batch_sweep,
    copy_table,
    idle_of_step,
    layer_table,
    step_table,
    summary,
    type_table,
)
from surrogate.trace.whatif import what_ifs
from tests.known import cases, known_answers
from tests.trace import events

CONV_FLOPS = 2 * 8 * 16 * 30 * 30 * 3 * 3 * 3
CONV_BYTES = 4 * (8 * 3 * 32 * 32 + 16 * 3 * 3 * 3 + 8 * 16 * 30 * 30)


@pytest.fixture
def invented(make_trace, read):
    return profile(read(make_trace(steps=2)))


@pytest.fixture(scope="module")
def of_resnet(resnet):
    return profile(resnet)


def _by(table, key):
    return {row[key]: row for row in table}


def test_backward_kernels_belong_to_their_forward_layer(invented):
    layers, names = invented.layers, [invented.trace.name_of(invented.trace.activities, i) for i in range(6)]
    found = [[name, layers.name[layers.of_activity[i]]] for i, name in enumerate(names)]
    assert found == known_answers(__file__)["layer_of_kernel"]
    assert layers.phase_of_activity[:6].tolist() == [FORWARD, FORWARD, BACKWARD, BACKWARD, OTHER, FORWARD]


def test_overlapping_layers_of_two_threads_are_not_mixed(make_trace, read):
    trace = make_trace(steps=1)
    other_thread = make_trace(steps=1)["traceEvents"]
    for event in other_thread:  # the same layers at the same time on another thread, numbered apart
        event["tid"] = 300 if event.get("cat") in ("cpu_op", "cuda_runtime") else event.get("tid")
        if "correlation" in event.get("args", {}):
            event["args"]["correlation"] += 5000
        if event.get("cat") == "cpu_op":
            event["args"]["External id"] += 50_000
            event["args"].pop("Sequence number", None)
    kept = [e for e in other_thread if e.get("cat") in ("cpu_op", "cuda_runtime", "kernel", "gpu_memcpy")]
    found = read({**trace, "traceEvents": trace["traceEvents"] + kept})
    layers = find_layers(found)
    for row, layer in enumerate(layers.of_activity):
        thread_of_call = found.calls.thread[found.activities.call[row]]
        if layers.phase_of_activity[row] == FORWARD:
            assert found.ranges.thread[layers.row[layer]] == thread_of_call
    assert layers.name.count("conv2d.0") == layers.name.count("conv2d.1") == 1


def test_layer_table_equals_hand_computed_values(invented):
    rows = _by(layer_table(invented), "layer")
    conv = rows["conv2d.0"]
    assert (conv["runs"], conv["total_us"], conv["per_iteration_us"]) == (2, 600.0, 300.0)
    assert (conv["forward_us"], conv["backward_us"], conv["backward_host_us"]) == (200.0, 400.0, 200.0)
    assert (conv["shape"], conv["kernels"], conv["alloc_mb"]) == ("8x3x32x32", 4, pytest.approx(0.4608))
    # Forward, and convolution_backward's two products, twice.
    assert conv["gflop"] == pytest.approx(2 * 3 * CONV_FLOPS / 1e9)
    assert rows["relu.0"]["total_us"] == 100.0 and rows["copy_.0"]["kernels"] == 0
    # idle before relu's kernel (150 → 160) and before its backward kernel (180 → 230), each step
    assert rows["relu.0"]["idle_us"] == 2 * (10 + 50)


def test_layer_table_names_the_source_line(resnet, invented):
    assert "resnet.py" in _by(layer_table(profile(resnet)), "layer")["conv2d.0"]["source"]
    assert _by(layer_table(invented), "layer")["conv2d.0"]["source"] is None


def test_kernel_table_equals_hand_computed_values(invented):
    row = _by(kernel_table(invented), "kernel")["volta_scudnn_128x64_relu_interior_nn_v1"]
    assert (row["calls"], row["total_us"]) == (2, 200.0)
    assert row["avg_us"] == row["min_us"] == row["max_us"] == 100.0
    assert row["time_pct"] == pytest.approx(100 * 100 / 360)
    assert row["gflop"] == pytest.approx(2 * CONV_FLOPS / 1e9)
    assert row["dram_mb"] == pytest.approx(2 * CONV_BYTES / 1e6)
    assert row["tflops"] == pytest.approx(CONV_FLOPS / 100 / 1e6) and row["bound"] == "latency-bound (bytes)"
    # 256 threads of 32 registers and 4 KiB shared memory on a V100: 8 blocks of 8 warps fill its 64 warps.
    assert row["occupancy_pct"] == 100.0 and row["waves"] == pytest.approx(160 / (8 * 80))
    assert row["limited_by"] == "grid (160 blocks)"
    assert (row["grid"], row["block"]) == ("160x1x1", "256x1x1")
    assert (row["registers"], row["shared_bytes"]) == (32, 4096)


def test_kernel_table_groups_by_layer_type_and_model(refused, invented):
    by_layer = _by(kernel_table(invented, "layer"), "layer")
    assert by_layer["conv2d.0"]["calls"] == 4 and by_layer["conv2d.0"]["total_us"] == 600.0
    assert _by(kernel_table(invented, "type"), "type")["relu"]["calls"] == 4
    (model,) = kernel_table(invented, "model").rows
    assert model["calls"] == 10 and model["total_us"] == 720.0 and model["time_pct"] == 100.0
    with refused("did you mean layer"):
        kernel_table(invented, "layers")


def test_copy_table_gives_the_share_of_pcie_bandwidth(invented):
    (row,) = copy_table(invented).rows
    expected = {"direction": "device to host", "calls": 2, "total_us": 80.0, "total_mb": 0.8}
    assert {name: row[name] for name in expected} == expected
    assert row["gbs"] == pytest.approx(10.0)
    assert row["pcie_pct"] == pytest.approx(100 * 10.0 / invented.gpu.pcie_gbs)


def test_summary_equals_hand_computed_values(invented):
    facts = summary(invented)
    assert (facts["iterations"], facts["iterations_by"], facts["iteration_ms"]) == (2, "step", 0.99)
    # Two steps take 1,990 µs from the start of the first to the end of the second.
    assert (facts["batch"], facts["samples_per_s"]) == (8, pytest.approx(8 / 0.995e-3))
    (answer,) = what_ifs(invented, "faster-host")
    assert answer.to_dict()["samples_per_s_before"] == pytest.approx(facts["samples_per_s"])
    assert facts["kernel_ms"] == 0.72 and facts["copy_ms"] == pytest.approx(0.08)
    assert facts["busy_ms"] == pytest.approx(0.8) and facts["rank"] == 3
    assert facts["idle_ms"] == pytest.approx(2 * 0.99 - 0.8) and facts["busy_pct"] == pytest.approx(100 * 0.8 / 1.98)
    assert facts["gpu"] == "v100-sxm2-16gb" and facts["unattributed_pct"] == 0.0
    assert (facts["compute_capability"], facts["sms"]) == (7.0, 80)


def _parts(trace):
    (row,) = step_table(profile(trace)).rows
    return [round(row[name], 3) for name in STEP_PARTS]


def test_step_parts_equal_hand_computed_values(make_trace, read):
    trace = make_trace(steps=1, start=0)
    # Kernels 50-150, 160-180, 230-260, 300-500, 510-520, a copy 640-680; launches at 30, 125, 210, 280, 420, 610-690.
    assert _parts(read(trace)) == [360, 0, 40, 470, 0, 40, 80, 0]
    copy = next(event for event in trace["traceEvents"] if event.get("cat") == "gpu_memcpy")
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    # The host synchronises for 50 µs after the copy, and a collective on another stream fills the first gap.
    wait = next(event for event in trace["traceEvents"] if event.get("cat") == "cuda_runtime")
    wait = wait | {"name": "cudaDeviceSynchronize", "ts": 700, "dur": 50, "args": {}}
    on_stream_8 = {"tid": 8, "args": kernels[0]["args"] | {"stream": 8}}
    reduce = kernels[0] | {"name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ts": 140, "dur": 30} | on_stream_8
    extended = read({**trace, "traceEvents": [*trace["traceEvents"], wait, reduce]})
    assert _parts(extended) == [360, 10, 40, 420, 50, 40, 70, 0]
    bound = "the host (largest share of the critical path). The device's time: idle until the host launches 42 %"
    assert summary(profile(extended))["bound"] == f"{bound}, kernels compute 36 %, idle though work is launched 7 %"
    del copy["args"]["correlation"]  # the gap before a copy without a launch has no known cause
    assert _parts(read(trace)) == [360, 0, 40, 390, 0, 0, 80, 120]


def test_a_device_is_not_idle_while_it_runs_kernels_of_an_earlier_iteration(read, table_events):
    """In step 1, kernels run from 100 to 150 and from 160 to 180 µs."""
    (row,) = step_table(trim(read({"traceEvents": table_events}), iterations_kept=[1])).rows
    assert (row["compute_us"], idle_of_step(row)) == (70, 30)


def test_step_parts_of_real_traces_sum_to_the_step(of_resnet, real):
    others = [profile(real(name)) for name in ("nsys_power_iteration.sqlite", "edge_no_gpu_events.json.gz")]
    for profiled in (of_resnet, *others):
        for row in step_table(profiled):
            assert min(row[name] for name in STEP_PARTS) > -1e-6
            assert sum(row[name] for name in STEP_PARTS) == pytest.approx(row["time_us"])
    assert summary(of_resnet)["bound"].startswith("the host (largest share")


def steps_of_one_kernel(count: int, period_us: float, length_us: float, call_us: float = 10) -> list[dict]:
    """Return steps, their launches of 5 µs, and their kernels of 1 µs, each of which begins 20 µs after its launch."""
    starts = [period_us * n for n in range(count)]
    steps = [events.event("user_annotation", f"ProfilerStep#{n}", at, length_us) for n, at in enumerate(starts)]
    calls = [events.call("cudaLaunchKernel", at + call_us, 5, n) for n, at in enumerate(starts)]
    return [*steps, *calls, *(events.device("gemm", at + call_us + 20, 1, n) for n, at in enumerate(starts))]


def test_parts_of_a_step_follow_the_clock_of_the_device(read):
    """The host launches a kernel of 15 ms every 10 ms, so a step of the device is its kernel, though 9 ms run late."""
    recorded = [events.event("cpu_op", "aten::mm", 10_000 * n + 100, 200) for n in range(3)]
    recorded += steps_of_one_kernel(3, 10_000, 9_999, call_us=150)
    for n, kernel in enumerate(recorded[-3:]):
        kernel |= {"ts": 15_000 * n + 200, "dur": 15_000}
    profiled = profile(read({"schemaVersion": 1, "traceEvents": recorded}))
    (row,) = type_table(profiled).rows
    assert (row["total_us"], row["per_iteration_us"]) == (45_000, 15_000)
    assert summary(profiled)["step_ms"] == pytest.approx(15.0)


def test_batch_sweep_marks_the_smallest_efficient_batch(make_trace, read):
    profiles = []
    for batch, times in ((8, 1.0), (16, 1.2), (32, 2.35)):
        trace = make_trace(steps=2, start=0)
        for event in trace["traceEvents"]:
            if "Input Dims" in event.get("args", {}):
                dims = event["args"]["Input Dims"]
                dims[:] = [[batch, *d[1:]] if len(d) == 4 and d[0] == 8 else d for d in dims]
            if "dur" in event:
                event["ts"], event["dur"] = event["ts"] * times, event["dur"] * times
        profiles.append(profile(read(trace, f"b{batch}.json")))
    rows = batch_sweep(profiles[::-1]).rows
    assert [row["batch"] for row in rows] == [8, 16, 32]
    assert [row["best"] for row in rows] == [False, True, False]  # 32 gains 2 % over 16 only
    assert [row["batch"] for row in batch_sweep(profiles, [1, 2, 3]).rows] == [1, 2, 3]


def test_figures_of_the_summary_have_no_exponents(seer, saved):
    """Four steps of 2.5 s, of which the device works 4 µs in all, so it idles 9,999.996 ms."""
    shown = seer("summary", saved({"traceEvents": steps_of_one_kernel(4, 2.5e6, 2.5e6)})).succeeded().out
    assert re.search(r"^iteration_ms +2,500 ", shown, re.M) and re.search(r"^idle_ms +10,000 ", shown, re.M)


def test_union_of_intervals_counts_overlaps_once():
    start, end = np.array([5, 0, 1, 20]) * 1000, np.array([8, 4, 3, 25]) * 1000
    assert union_us(start, end) == 12.0
    assert union_us(start[:0], end[:0]) == 0.0


def test_every_kernel_of_resnet50_has_a_layer(of_resnet):
    layers = of_resnet.layers
    assert (layers.of_activity >= 0).all() and (layers.iteration_of_activity >= 0).all()
    per_step = [{layers.name[i] for i in np.flatnonzero(layers.iteration == step)} for step in range(6)]
    assert all(names == per_step[0] for names in per_step[1:])
    types = _by(type_table(of_resnet), "type")
    layers_of = {"conv2d": 53, "batch_norm": 53, "relu_": 49, "max_pool2d": 1, "linear": 1}
    assert {name: types[name]["layers"] for name in layers_of} == layers_of


def test_table_totals_equal_the_sums_of_the_trace(of_resnet):
    total = of_resnet.trace.activities.time_us.sum()
    for table in (layer_table(of_resnet), type_table(of_resnet)):
        # The sum has 9,000 additions, each with a relative error of up to 2⁻⁵³.
        assert sum(row["total_us"] for row in table) == pytest.approx(total, rel=1e-11)
        assert sum(row["idle_us"] for row in table) == pytest.approx(of_resnet.idle_us.sum(), rel=1e-9)
    times = [row["total_us"] for row in type_table(of_resnet)]
    assert times == sorted(times, reverse=True)
    kernels = total - sum(row["total_us"] for row in copy_table(of_resnet))
    for by in GROUPINGS:
        table = kernel_table(of_resnet, by)
        assert sum(row["total_us"] for row in table) == pytest.approx(kernels, rel=1e-11)
        assert sum(row["calls"] for row in table) == 8772
        assert sum(row["time_pct"] for row in table) == pytest.approx(100)


def test_work_of_resnet50_equals_the_published_flops(of_resnet):
    """ResNet-50 has 4.09 G multiply-adds at 224×224; backward has twice as many, without the first input gradient."""
    types = _by(type_table(of_resnet), "type")
    images = 32 * 6
    forward = 2 * 4.087e9 * images
    first_input = 2 * 64 * 112 * 112 * 3 * 7 * 7 * images
    assert types["conv2d"]["gflop"] * 1e9 == pytest.approx(3 * forward - first_input, rel=2e-3)
    (model,) = kernel_table(of_resnet, "model").rows
    assert 0 < model["compute_pct"] < 100 and 0 < model["memory_pct"] < 100
    for row in kernel_table(of_resnet):
        # The minimum traffic stays below the peak bandwidth, except for expanded tensors, which repeat inputs.
        assert row["memory_pct"] is None or row["memory_pct"] < (100 if row["total_us"] > 1000 else 125)
        passes_peak = row["compute_pct"] is not None and row["compute_pct"] > 100
        # Only Winograd kernels and their matrix products exceed the peak, because they do fewer operations.
        assert not passes_peak or any(word in row["kernel"] for word in ("winograd", "sgemm"))
        assert row["occupancy_pct"] is None or 0 < row["occupancy_pct"] <= 100


def test_recorded_module_frames_become_layers(real):
    profiled = profile(real("vgg13_b128_training_h100.json.gz"))
    types = _by(type_table(profiled), "type")
    assert (types["Conv2d"]["layers"], types["Linear"]["layers"], types["MaxPool2d"]["layers"]) == (10, 3, 5)
    assert sum(row["total_us"] for row in layer_table(profiled)) == pytest.approx(profiled.total_us)
    assert types["Conv2d"]["backward_us"] > types["Conv2d"]["forward_us"] > 0
    assert summary(profiled)["unattributed_pct"] == 0.0
    assert profiled.gpu is not None and profiled.gpu.name.startswith("h100")
    units = {row["unit"]: row for row in reversed(kernel_table(profiled).rows) if row["compute_pct"]}
    peaks = {unit: round(100 * row["tflops"] / row["compute_pct"], 1) for unit, row in units.items()}
    assert peaks == {"fp32": 66.9, "tf32": 494.7}  # datasheet peak of TF32 without sparsity


def test_nvtx_ranges_become_layers_without_operators(real):
    profiled = profile(real("nsys_power_iteration.sqlite"))
    types = _by(type_table(profiled), "type")
    assert types["cub::DeviceReduce::Sum"]["runs"] == 565
    assert types["Copy #"]["runs"] == 44
    assert sum(row["total_us"] for row in type_table(profiled)) == pytest.approx(profiled.total_us)


@pytest.mark.parametrize("name", ["edge_no_gpu_events.json.gz", "edge_no_distributed_info.json.gz"])
def test_a_trace_without_device_events_still_has_layers(real, name):
    profiled = profile(real(name))
    facts = summary(profiled)
    assert facts["kernels"] == 0 and facts["busy_pct"] is None
    assert len(layer_table(profiled)) > 100 and len(kernel_table(profiled)) == 0 and len(copy_table(profiled)) == 0


def test_unknown_gpu_gives_no_bounds_until_it_is_named(refused, make_trace, read):
    trace = make_trace()
    trace["deviceProperties"][0]["name"] = "Imaginary 9000"
    nameless = profile(read(trace))
    assert nameless.gpu is None and kernel_table(nameless).rows[0]["bound"] is None
    assert "not in the registry" in kernel_table(nameless).notes[-1]
    on_t4 = profile(read(trace), gpu="t4")
    assert _by(kernel_table(on_t4), "kernel")["relu_kernel"]["bound"] == "latency-bound (blocks)"
    with refused():
        profile(read(trace), gpu="imaginary")


@cases(__file__)
def test_verdict_names_the_bound_of_a_launch(flops, dram_bytes, time_us, peaks, launch, bound):
    assert verdict(flops, dram_bytes, time_us, *peaks, **launch).get("bound") == bound


def test_launch_use_gives_occupancy_and_its_limit():
    use = launch_use(7.0, 80, 100_000, 64, 88, 3328)
    assert use["limited_by"] == "registers" and use["occupancy_pct"] == 31.25  # 10 of 32 blocks
    assert use["waves"] == pytest.approx(100_000 / (10 * 80))
    assert launch_use(7.0, 80, 4, 64, 88, 3328)["limited_by"] == "grid (4 blocks)"
    no_gpu, no_block, no_registers = ((6.3, 80, 1, 64, 32, 0), (7.0, 80, 0, 64, 32, 0), (7.0, 80, 1, 64, 999, 0))
    for bad in (no_gpu, no_block, no_registers, (7.0, 80, 1, 64, -1, -1)):
        assert set(launch_use(*bad).values()) == {None}


@cases(__file__)
def test_tensor_cores_are_recognised_by_name(name, uses):
    assert uses_tensor_cores(name) == uses
