"""Times of networks: sums with their coverage, intervals, limits, savings, classes and sweeps."""

import json
from collections.abc import Callable
from dataclasses import replace
from math import e, exp

import pytest

from surrogate.features.algorithms import algorithm
from surrogate.features.conv import Conv
from surrogate.features.families import operator
from surrogate.features.gpu import gpu
from surrogate.network.network import INTERVAL_FACTOR_3D, TIME_FACTORS_3D, Layer, Network, Work, with_settings
from surrogate.network.operators import gemm, pointwise
from surrogate.network.predict import Predictors, load_predictors
from surrogate.network.result import BOUNDS, LayerTime, NetworkTime, comparison_records

A = Conv(n=8, c=64, h=28, k=64, r=3, pad_h=1)
B = Conv(n=8, c=64, h=28, k=256, r=1)
RELU = pointwise("relu", [(8, 64, 28, 28)], (8, 64, 28, 28), "fp32")
CONVS = [Layer("a1", "Conv", A, heuristic="IMPLICIT_GEMM"), Layer("a2", "Conv", A, heuristic="DIRECT")]
CONVS += [Layer("b", "Conv", B)]
RELUS = [Layer(name, "Relu", RELU) for name in ("r1", "r2")]
MISSING = {"LSTM": Work(3 * (2 * A.flops + B.flops), 0.0), "Relu6": Work(0.0, A.dram_bytes)}
NETWORK = Network("net", (CONVS[0], RELUS[0], *CONVS[1:], RELUS[1]), 8, ignored={"Reshape": 3}, missing=MISSING)
NETWORK = replace(NETWORK, unsupported={"LSTM": 1, "Relu6": 2})


def test_total_time_is_the_sum_of_the_layers(predictors: Callable[..., Predictors]) -> None:
    """The fakes predict 5 µs + speed · FLOPs / 1e6, and for ReLU 3 µs plus 8 bytes per element; each shape once."""
    fakes = predictors()
    found = fakes.time(NETWORK)
    a_us, b_us = 5 + 0.5 * A.flops / 1e6, 5 + 0.8 * B.flops / 1e6
    relu_us = 3 + 8 * 8 * 64 * 28 * 28 / (gpu("t4").dram_share * gpu("t4").dram_gbs) / 1e3
    assert found.total_us == pytest.approx(2 * a_us + b_us + 2 * relu_us)
    assert found.lower_us == pytest.approx(found.total_us / 2)
    assert found.samples_per_s == pytest.approx(8e6 / found.total_us)
    assert found.coverage == pytest.approx(1 / 4, rel=0.01)  # the ReLUs have few FLOPs
    all_bytes = 3 * A.dram_bytes + B.dram_bytes + 2 * RELU.dram_bytes
    assert found.coverage_bytes == pytest.approx(1 - A.dram_bytes / all_bytes)
    assert f"coverage {100 * found.coverage:.1f} %, not in the sum: 1 × LSTM, 2 × Relu6" in found.headline()
    unknown = replace(found, unsupported={"LSTM": 1, "Magic": 1})
    assert (unknown.coverage, unknown.coverage_bytes, unknown.missing_flops) == (None, None, None)
    assert "coverage unknown, not in the sum: 1 × Magic, 1 × LSTM" in unknown.headline()
    assert [layer.algorithm for layer in found.layers] == ["WINOGRAD", None, "WINOGRAD", "IMPLICIT_PRECOMP_GEMM", None]
    assert (fakes.algorithm_predictor.query_count, fakes.kernel_predictor.query_count) == (2, 1)  # type: ignore[attr-defined]


def test_3d_layers_take_longer_and_have_wider_intervals(predictors: Callable[..., Predictors]) -> None:
    flat, folded = predictors().time(Network("net", (Layer("a", "Conv", A), Layer("b", "Conv.3d", A)), 8)).layers
    slower = TIME_FACTORS_3D[""]
    assert folded.time_us == pytest.approx(slower * flat.time_us)
    assert folded.lower_us == pytest.approx(slower * flat.lower_us / INTERVAL_FACTOR_3D)
    assert folded.upper_us == pytest.approx(slower * flat.upper_us * INTERVAL_FACTOR_3D)


def test_lower_bounds_respect_the_peaks_for_arithmetic_and_weights(predictors: Callable[..., Predictors]) -> None:
    """Other bytes set no lower bound, because they may be in L2."""
    product, gtx_1080 = gemm(8192, 8192, 8192), load_predictors("gtx-1080")
    layer = gtx_1080.time(Network("net", (Layer("fc", "Gemm", product),))).layers[0]
    assert layer.time_us / 2 < layer.lower_us == pytest.approx(2 * 8192**3 / (gtx_1080.gpu.fp32_tflops * 1e6))
    t4, fc = gpu("t4"), gemm(1, 16384, 16384)
    layer = predictors().time(Network("net", (Layer("fc", "Gemm", fc),))).layers[0]
    assert layer.time_us / 2 < layer.lower_us == pytest.approx((4 * 16384**2 - t4.l2_bytes) / t4.dram_gbs / 1e3)
    relu = predictors().time(NETWORK).layers[1]
    assert relu.lower_us == pytest.approx(relu.time_us / 2)


@pytest.mark.parametrize(("name", "math"), [("t4", "fma"), ("a100-sxm4-80gb", "default"), ("mi100", "fma")])
def test_convolutions_use_the_default_math_type_of_pytorch(
    predictors: Callable[..., Predictors], monkeypatch: pytest.MonkeyPatch, name: str, math: str
) -> None:
    """If the GPU has TF32, fp32 runs in TF32 unless the source gives a math type."""
    fakes, queries = predictors(name), []
    select = fakes.algorithm_predictor.network_selections
    asks = lambda problems, **limits: queries.extend(problems) or select(problems, **limits)  # noqa: E731
    monkeypatch.setattr(fakes.algorithm_predictor, "network_selections", asks)
    fakes.time(NETWORK)
    assert queries == [replace(conv, math=math) for conv in (A, B)]
    queries.clear()
    fakes.time(with_settings(NETWORK, "fma", None))
    assert queries == [A, B]


@pytest.mark.parametrize(("name", "math"), [("t4", "fma"), ("mi100", "default")])
def test_products_use_the_default_math_type_of_the_gpu(
    predictors: Callable[..., Predictors], monkeypatch: pytest.MonkeyPatch, name: str, math: str
) -> None:
    fakes, queries = predictors(name), []
    answers = fakes.kernel_predictor.kernel_times
    monkeypatch.setattr(fakes.kernel_predictor, "kernel_times", lambda works: queries.extend(works) or answers(works))
    product = gemm(64, 64, 64)
    assert fakes.time(Network("one", (Layer("fc", "Gemm", product),))).layers[0].problem == str(product)
    assert [problem.math for problem in queries] == [math]


def test_types_and_classes_add_up(predictors: Callable[..., Predictors]) -> None:
    found = predictors().time(NETWORK)
    types = {row["operator"]: row for row in found.by_type()}
    assert {name: row["count"] for name, row in types.items()} == {"Conv": 3, "Relu": 2}
    assert sum(row["share"] for row in types.values()) == pytest.approx(1)
    assert sum(row["flops"] for row in types.values()) == sum(layer.problem.flops for layer in NETWORK.layers)
    assert list(found.classes()) == list(BOUNDS)
    for measure in ("layers", "time"):
        assert sum(share[measure] for share in found.classes().values()) == pytest.approx(1)
    relus = predictors().time(replace(NETWORK, layers=tuple(RELUS)))
    assert sum(share["layers"] for share in relus.classes().values()) == pytest.approx(1)


def test_savings_are_relative_to_the_picks_of_the_library(predictors: Callable[..., Predictors]) -> None:
    """Only layer a1 has a pick that is a candidate; a file without picks has no savings."""
    heuristic = predictors().time(NETWORK).heuristic
    best_us, pick_us = 5 + 0.5 * A.flops / 1e6, 5 + A.flops / 1e6
    assert (heuristic["convs"], heuristic["unknown"]) == (1, 2)
    assert heuristic["saved_us"] == pytest.approx(pick_us - best_us)
    assert predictors().time(replace(NETWORK, layers=(Layer("b", "Conv", B),))).heuristic == {}


def test_json_has_the_documented_keys(predictors: Callable[..., Predictors]) -> None:
    """Other programs rely on these keys."""
    data = json.loads(json.dumps(predictors().time(NETWORK).to_dict()))
    assert {"total_us", "coverage", "coverage_bytes", "missing_flops", "layers", "ignored", "unsupported"} <= set(data)
    keys = "name operator problem algorithm time_us lower_us upper_us workspace_bytes flops bytes bound source"
    assert list(data["layers"][0]) == [*keys.split(), "common_share"]
    assert data["unsupported"] == {"LSTM": 1, "Relu6": 2}
    assert data["ignored"] == {"Reshape": 3}


def test_independent_errors_average_out_in_a_sum() -> None:
    """Four problems with equal times keep √(0.6² + 0.8² / 4) of their half width of 1, one problem keeps it all."""
    values = (None, 100.0, 100 / e, 100 * e, 0, 0, 0, "", "datasheet", 0.6)
    layers = [LayerTime("", "", f"problem {i}", *values) for i in range(4)]
    found = NetworkTime("n", "g", tuple(layers))
    share = (0.36 + 0.64 / 4) ** 0.5
    assert (found.lower_us, found.upper_us) == pytest.approx((400 * e**-share, 400 * e**share))
    same = NetworkTime("n", "g", (layers[0],) * 4)
    assert (same.lower_us, same.upper_us) == pytest.approx((400 / e, 400 * e))


def test_limits_exclude_algorithms_and_layers(predictors: Callable[..., Predictors]) -> None:
    """A layer without an algorithm within the limits is counted as unsupported and is in no sum."""
    back = replace(B, direction="bwd_filter", dtype="fp64")  # ALGO_0, ALGO_1 and ALGO_3 support it
    network = Network("n", (Layer("w", "Conv", back), Layer("r", "Relu", RELU)), 8)
    deterministic = predictors().time(network, deterministic=True).layers[0].algorithm
    assert algorithm(str(deterministic), direction="bwd_filter").deterministic
    needs_workspace = predictors()
    needs_workspace.algorithm_predictor.min_workspace = 1  # type: ignore[attr-defined]
    limited = needs_workspace.time(network, workspace_limit=0)
    assert [layer.name for layer in limited.layers] == ["r"]
    assert limited.unsupported == {"Conv (no algorithm within the limits)": 1}
    assert limited.coverage == RELU.flops / (RELU.flops + back.flops)
    assert limited.outside_domain == {"dtype fp64 was never measured": 1}


def test_known_problems_have_the_expected_class() -> None:
    """On a T4 a large 3×3 is compute-bound, a ReLU of 100 MB memory-bound, and one block leaves the GPU idle."""
    t4 = gpu("t4")
    assert Conv(n=64, c=256, h=56, k=256, r=3, pad_h=1).seer_class(t4, "precomp_gemm") == "compute-bound"
    assert Conv(n=1, c=16, h=4, k=16, r=1).seer_class(t4, "precomp_gemm") == "under-utilised"
    assert pointwise("relu", [(64, 64, 80, 80)], (64, 64, 80, 80), "fp32").seer_class(t4) == "memory-bound"
    assert pointwise("relu", [(1, 64)], (1, 64), "fp32").seer_class(t4) == "under-utilised"
    assert gemm(4096, 4096, 4096).seer_class(t4) == "compute-bound"
    assert operator("softmax", n=2048, c=128_256).seer_class(gpu("h100-sxm")) == "memory-bound"  # 174 FLOPs an element


def test_a_sweep_marks_the_best_and_its_rivals(predictors: Callable[..., Predictors]) -> None:
    """Calls have a fixed cost, so that throughput rises with the batch; speedups are relative to the first GPU."""

    def read(batch: int) -> Network:
        convs = (layer for layer in NETWORK.layers if isinstance(layer.problem, Conv))
        layers = tuple(replace(layer, problem=layer.problem.with_batch(batch)) for layer in convs)
        return replace(NETWORK, layers=layers, batch=batch)

    times = {batch: predictors().time(read(batch)) for batch in (1, 4, 16)}
    assert [row["best"] for row in comparison_records("batch", times)] == [False, False, True]
    assert [row["batch"] for row in comparison_records("batch", times)] == [1, 4, 16]
    # A row is a rival if its interval contains the best throughput.
    for factor, rivals in ((1.0, []), (0.1, [1, 4])):
        scaled = {
            size: replace(time, layers=tuple(replace(layer, lower_us=factor * layer.time_us) for layer in time.layers))
            for size, time in times.items()
        }
        assert [row["rivals"] for row in comparison_records("batch", scaled)] == [[], [], rivals]
    records = comparison_records("gpu", {name: predictors(name).time(NETWORK) for name in ("t4", "v100")})
    assert records[0]["speedup"] == 1 < records[1]["speedup"]  # the V100 has faster DRAM
    assert [(row["best"], row["rivals"]) for row in records] == [(False, []), (True, ["t4"])]
    # A GPU whose sum lacks its convolutions is not the fastest.
    missing = {"conv": Work(10**12, 0)}
    part = replace(times[4], layers=times[4].layers[:1], unsupported={"conv": 1}, missing=missing)
    partial = {"t4": times[4], "v100": part}
    records = comparison_records("gpu", partial)
    assert partial["v100"].coverage < 0.98 and [row["best"] for row in records] == [True, False]
    assert records[1]["speedup"] is None and partial["v100"].total_us < partial["t4"].total_us
    # The ratio of 1.16 has the width √(0.12² + 0.2²) = 0.23 in log time: e^0.23 is above 1.16 and below 1.3.
    for ratio, rivals in ((1.16, ["t4"]), (1.3, [])):
        ends = {"t4": (ratio, ratio / exp(0.12), ratio), "v100": (1.0, 1.0, exp(0.2))}
        pair = {
            name: replace(times[4], layers=(replace(times[4].layers[0], time_us=time, lower_us=low, upper_us=high),))
            for name, (time, low, high) in ends.items()
        }
        assert comparison_records("gpu", pair)[1]["rivals"] == rivals


def test_a_note_names_convolutions_not_measured_on_the_gpu() -> None:
    """On the V100 forward passes were measured and gradients were not; on the H100 no convolution was measured."""
    layers = (Layer("a", "Conv", A), Layer("b", "Conv.bwd_data", replace(A, direction="bwd_data")))
    time = load_predictors("v100").time(Network("net", layers, 8))
    (note,) = time.notes
    measured, _, others = note.partition("; not ")
    assert "fwd fp32 fma NCHW" in measured and "bwd_data fp32 fma NCHW" in others
    assert [layer.source for layer in time.layers] == ["model", "datasheet"] and time.measured_share < 1
    assert not load_predictors("v100").time(Network("net", layers[:1], 8)).notes
    assert not load_predictors("h100").time(Network("net", layers, 8)).notes


def test_products_without_matching_units_are_refused(refused) -> None:
    network = Network("net", (Layer("p", "Gemm", gemm(64, 64, 64, dtype="fp8")),), 1)
    assert load_predictors("h100").time(network).layers
    with refused("t4 has no fp8 units"):
        load_predictors("t4").time(network)
    with refused("give fp16"):  # the V100 has fp16 units
        load_predictors("v100").time(replace(network, layers=(Layer("p", "Gemm", gemm(64, 64, 64, dtype="bf16")),)))
    mixed = replace(network, layers=(*network.layers, Layer("q", "Gemm", gemm(64, 64, 64, dtype="fp16"))))
    time = load_predictors("t4").time(mixed)
    assert [layer.name for layer in time.layers] == ["q"] and time.unsupported == {"Gemm (t4 has no fp8 units)": 1}
    # fp8 was measured on the B60, although its datasheet has no peak for it.
    assert load_predictors("b60").time(network).layers
