"""Tests of datasheet models: half-precision kernels on GPUs without published convolution times."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from surrogate.features.conv import Conv
from surrogate.features.families import FAMILIES, operator
from surrogate.features.gpu import gpu as registered
from surrogate.features.problem import DTYPES
from surrogate.network.predict import load_predictors
from surrogate.prediction.shipped import _cached_predictor, load
from surrogate.prediction.sources.datasheet import shipped_datasheet_models
from tests.known import cases

CONV = Conv(n=64, c=128, h=28, k=128, r=3, pad_h=1, dtype="fp16", math="tensor_op", layout="NHWC")


@pytest.mark.parametrize("gpu", ["rtx-3090", "rtx-4090", "rtx-5090", "h100-sxm"])
def test_a_larger_convolution_takes_longer_and_obeys_the_roofline(gpu: str) -> None:
    predictor = load(gpu)
    times = [predictor.predict(CONV.with_batch(n)).time_us for n in (32, 64, 128)]
    assert times[0] < times[1] < times[2]
    device = predictor.target
    assert times[2] > CONV.with_batch(128).flops / (2 * device.fp16_tensor_tflops * 1e6)
    assert predictor.predict(CONV).source == "datasheet"


def test_nchw_is_slower_than_nhwc_and_bf16_takes_as_long_as_fp16() -> None:
    predictor = load("rtx-4090")
    nhwc = predictor.predict(CONV).time_us
    assert predictor.predict(replace(CONV, layout="NCHW")).time_us > nhwc
    assert predictor.predict(replace(CONV, dtype="bf16")).time_us == pytest.approx(nhwc)


def test_a_strided_gradient_takes_up_to_four_times_as_long() -> None:
    """Its TF32 kernels do up to four times the arithmetic of stride 1, over channels padded to 32."""
    wide = Conv(n=64, c=256, h=56, k=256, r=3, pad_h=1, direction="bwd_data", math="default")
    strided = replace(wide, h=112, w=112, stride_h=2, stride_w=2)  # as many products
    predictor = load("a100-sxm4-80gb")
    unstrided_us, strided_us = (predictor.predict(problem).time_us for problem in (wide, strided))
    assert strided.flops == wide.flops and unstrided_us < strided_us < 4 * unstrided_us
    few_us, many_us = (predictor.predict(replace(strided, k=k)).time_us for k in (4, 32))
    assert few_us > 0.8 * many_us


@pytest.mark.parametrize("gpu", ["v100-sxm2-16gb", "t4"])
def test_a_gradient_follows_its_measured_forward_pass(gpu: str) -> None:
    """A 1×1 filter's three directions are one product of the same sizes; only the forward pass was measured."""
    forward = Conv(n=32, c=256, h=56, k=64, r=1, dtype="fp16", math="tensor_op", layout="NHWC")
    ways = [replace(forward, direction=way) for way in ("fwd", "bwd_data", "bwd_filter")]
    measured, of_input, of_filter = (load(gpu).predict(way) for way in ways)
    analytical = shipped_datasheet_models()["half"].model
    assert of_input.time_us == pytest.approx(measured.time_us, rel=0.05)
    assert of_filter.time_us == pytest.approx(analytical.filter_gradient * of_input.time_us, rel=0.05)
    for answer in (of_input, of_filter):
        assert answer.lower_us < 0.5 * measured.time_us and not answer.in_domain
        assert any("measured forward passes" in note for note in answer.notes)
    table = load(gpu).predict(pd.DataFrame([way.to_dict() for way in ways]))
    assert table.predicted_us.tolist() == pytest.approx([measured.time_us, of_input.time_us, of_filter.time_us])


def test_a_depthwise_filter_gradient_reads_its_images_for_every_tap() -> None:
    """49 taps × 2 × 77 MB take 1.55 ms from A100's L2 (108 SMs × 32 bytes × 1.41 GHz)."""
    forward = Conv(n=128, c=96, h=56, k=96, r=7, pad_h=3, groups=96, dtype="fp16", math="tensor_op")
    predictor = load("a100-sxm4-80gb")
    forward_us, data_us, filter_us = (
        predictor.predict(replace(forward, direction=way)).time_us for way in ("fwd", "bwd_data", "bwd_filter")
    )
    assert forward_us == pytest.approx(data_us)
    assert 1550 < filter_us < forward_us + 1550


@pytest.mark.parametrize("gpu", ["rtx-3090", "a100-pcie-80gb", "a100-sxm4-80gb"])
@pytest.mark.parametrize("settings", [{"dtype": "fp16", "math": "tensor_op"}, {"math": "fma"}, {"math": "default"}])
def test_single_predictions_equal_the_batch(gpu: str, settings: dict[str, str]) -> None:
    conv = replace(CONV, **{"dtype": "fp32", "layout": "NCHW", **settings})
    problems = [replace(conv, n=n, groups=groups) for n in range(1, 9) for groups in (1, 32, 128)]
    single = [load(gpu).select(problem).estimates for problem in problems]
    assert single == [answer.estimates for answer in load(gpu).select_many(problems)]


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_batch_norm_takes_as_long_as_its_memory_traffic(dtype: str) -> None:
    predictors = load_predictors("rtx-4090")
    norm = operator("batch_norm_inference", n=256, c=64, h=56, w=56, dtype=dtype)
    min_us = 2 * 256 * 64 * 56 * 56 * DTYPES[dtype] / (predictors.gpu.dram_gbs * 1e3)
    answer = predictors.answers([norm], {})[norm]
    assert min_us < answer.time_us < 1.4 * min_us
    assert answer.lower_us < answer.time_us < answer.upper_us


@pytest.mark.parametrize(("gpu", "measured_ms"), [("h100-sxm", 8.12), ("l4", 7.93), ("t4", 9.37), ("b200", 8.98)])
def test_layer_norm_of_very_long_rows_takes_as_long_on_every_gpu(gpu: str, measured_ms: float) -> None:
    """KernelBench measured 16 rows of 4,194,304 values; more bandwidth does not help."""
    predictors = load_predictors(gpu)
    norm = operator("layer_norm", n=16, c=2**22)
    assert predictors.answers([norm], {})[norm].time_us == pytest.approx(1e3 * measured_ms, rel=0.3)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_single_half_precision_convolution_has_the_width_of_single_tf32_convolutions(dtype: str) -> None:
    """In a sum of many, the width of whole passes of timm's networks remains."""
    predictors = load_predictors("a100-sxm4-80gb")
    conv = replace(CONV, dtype=dtype)
    selections = predictors.selections([conv])
    found = predictors.answers([conv], selections)[conv]
    assert found.half_width == 0.766 and found.upper_us == pytest.approx(np.exp(0.766) * found.time_us)
    assert found.common_share * found.half_width == pytest.approx(0.282)
    assert "single convolutions in TF32 (these GPUs have no published ones" in selections[conv].notes[0]
    norm = operator("batch_norm_inference", n=256, c=64, h=56, w=56, dtype=dtype)
    assert predictors.answers([norm], {})[norm].common_share == pytest.approx(0.282 / 0.766)


@given(sizes=st.fixed_dictionaries({name: st.integers(1, 256) for name in ("n", "c", "h", "k")}))
@pytest.mark.parametrize("gpu", ["a100-sxm4-80gb", "h100-sxm", "b200"])
def test_half_precision_starts_as_late_as_tf32_and_is_as_fast_or_faster(gpu: str, sizes: dict[str, int]) -> None:
    """Its kernels move half the bytes and have twice the peak; the start and the gap to the next kernel remain."""
    problem = Conv(n=sizes["n"], c=sizes["c"], h=sizes["h"], k=sizes["k"], r=1)
    predictor = _cached_predictor(gpu, None, "")
    half = predictor.predict(replace(problem, dtype="fp16", math="tensor_op"))
    tf32 = predictor.predict(replace(problem, math="default"), half.algorithm)
    assert shipped_datasheet_models()["half"].model.start_us + 2 < half.time_us < 1.001 * tf32.time_us


def test_small_half_precision_convolutions_of_measured_gpus_are_inside_the_width(measurements: Path) -> None:
    """Up to one factor for each GPU and layout, because cuDNN 7 had slower kernels than the model's."""
    table = pd.read_parquet(measurements / "cudnn_conv_per_algorithm.parquet")
    is_half = (table["dtype"] == "fp16") & (table["math"] == "tensor_op") & (table["status"] == "ok")
    table = table[is_half & (table["groups"] == 1) & (table["algorithm"] == "IMPLICIT_PRECOMP_GEMM")]
    model, family = shipped_datasheet_models()["half"], FAMILIES["conv"]
    errors: list[np.ndarray] = []
    for (name, layout), part in table.groupby(["gpu", "layout"]):
        device, setting = registered(str(name)), ("fwd", "fp16", "tensor_op", str(layout))
        sizes = {size: part[size].to_numpy() for size in family.size_names}
        problem = family.problem(sizes, dict(zip(family.setting_names, setting, strict=True)))
        time_us = model.model.convolution_us(family.formula(setting, device).problem(problem).problem, device, "fp16")
        error = np.log(part["time_us"] / time_us)
        errors.append((error - error.median()).to_numpy()[time_us < 20])
    error = np.abs(np.concatenate(errors))
    assert len(error) > 150 and np.quantile(error, 0.9) < model.by_kind[""].half_width


@cases(__file__)
def test_the_fastest_3x3_convolution_comes_from_the_fastest_that_were_measured(gpu, source, settings) -> None:
    """cuDNN 8.9.2 took 609 µs on an A100 PCIe. Its other filters were not measured, nor a GPU of RTX 3090's kind."""
    predictor = load(gpu)
    problem = Conv(n=47, c=187, h=8, k=1622, r=3, pad_h=1)
    found = predictor.select(problem, **settings)
    assert found.candidates[0].source == source
    assert found.time_us == pytest.approx(609, rel=0.2)
    assert {each.source for each in found.candidates[1:]} == {"datasheet"}
    assert predictor.select(replace(problem, r=1, s=1, pad_h=0, pad_w=0)).candidates[0].source == "datasheet"
