"""Families: parsing of problems, columns against hand calculations, and equal results for numbers and arrays."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from surrogate.features.algorithms import MECHANISM_CODE
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.families import CONV, FAMILIES, OPERATORS, family, family_of, parse_problem
from surrogate.features.gpu import gpu
from tests.features.known_answers import ANSWERS

GPUS = [gpu(name) for name in ("TITAN Xp", "Tesla T4", "h200", "mi210")]
SIZES: dict[str, Any] = {"n": 32, "c": 256, "h": 14, "k": 256, "r": 3, "pad_h": 1}
PROBLEMS = ANSWERS["problems"]


def _columns(problem: Any, device: Any, mechanism: str = "") -> tuple[dict[str, Any], Any]:
    kind = family_of(problem)
    formula = kind.formula(kind.setting_of(problem), device)
    terms = formula.problem(problem)
    values, workspace = formula.candidate(terms, mechanism)
    assert np.all(np.asarray(workspace) >= 0)
    return dict(zip(kind.column_names, (*terms.values, *values, *formula.constant), strict=True)), terms.roofline_us


@pytest.mark.parametrize("text", PROBLEMS)
def test_problem_survives_conversion_to_text_and_sizes(text: str) -> None:
    problem = parse_problem(text)
    kind = family_of(problem)
    assert parse_problem(str(problem)) == problem
    assert family(kind.name) is kind and family(problem.kind) is kind
    sizes = dict(zip(kind.size_names, kind.sizes_of(problem), strict=True))
    setting = dict(zip(kind.setting_names, kind.setting_of(problem), strict=True))
    assert kind.problem(sizes, setting) == problem


@pytest.mark.parametrize("kind", sorted(OPERATORS))
def test_error_for_a_bare_operator_name_gives_a_readable_example(kind: str) -> None:
    with pytest.raises(InputError) as error:
        parse_problem(kind)
    assert parse_problem(str(error.value).rpartition("as in ")[2]).kind == kind


@pytest.mark.parametrize("text", ["gemm:", "gemm:m4n4", "gemm:m4m4n4k4", "gmm:m4n4k4", "softmax:n0c4"])
def test_invalid_problem_text_is_refused(refused, text: str) -> None:
    with refused():
        parse_problem(text)


def test_attention_and_moe_texts_accept_short_names_and_settings(refused) -> None:
    short = parse_problem("attention:b8h32g8d128q1k2048", kv_dtype="fp8")
    long = "attention:batch8heads32kv_heads8head_dim128query_length1context_length2048"
    assert short == parse_problem(long, kv_dtype="fp8")
    assert FAMILIES["attention"].setting_of(short)[4:] == ("generation", "fp8")
    assert parse_problem("moe:t4h8i16k2e4tp2ep2", routing="power_law_1.2").stratum == "power_law"
    with refused("lacks a size; mla has b (batch), h (heads)"):
        parse_problem("mla:b8")
    with refused("as in attention:b2h4g1d8q4k4"):
        parse_problem("attention:b8x4")
    with refused("phase is no setting of conv"):
        parse_problem("n1c8h9k8r3", phase="context")


def test_attention_and_moe_columns_equal_the_hand_calculation() -> None:
    """8 · 32 heads · 2 query tiles on 132 SMs are 3.88 waves, rounded to 4. 64 tokens an expert fill half a tile."""
    h100 = gpu("h100-sxm")
    row, _ = _columns(parse_problem("attention:b8h32g8d128q200"), h100)
    assert row["log2_waves"] == pytest.approx(math.log2(512 / 132)) and row["wave_use"] == pytest.approx(512 / 132 / 4)
    assert (row["log2_group"], row["query_tile_use"], row["is_context"], row["is_windowed"]) == (2, 200 / 256, 1, 0)
    flops = 4 * 8 * 32 * 128 * 200 * 201 // 2
    assert row["log2_quantised_us"] == pytest.approx(math.log2(flops * 4 * 132 / 512 / (h100.bf16_tensor_tflops * 1e6)))
    row, _ = _columns(parse_problem("moe:t256h1024i512k2e8", dtype="fp8"), h100)
    assert (row["log2_pairs"], row["log2_touched"], row["row_use"], row["log2_skew"]) == (9, 3, 0.5, 0)
    assert row["log2_up_waves"] == pytest.approx(math.log2(8 * 8 / 132))
    wave_us = 2 * 128 * 128 * 1024 * 132 / (h100.fp8_tensor_tflops * 1e6)
    assert row["log2_up_quantised_us"] == pytest.approx(math.log2(wave_us))


def test_convolution_columns_equal_the_hand_calculation() -> None:
    row, roofline_us = _columns(Conv(**SIZES), GPUS[0], "implicit_gemm")
    assert row["log2_n"] == 5 and row["log2_c"] == 8 and row["pad_w"] == 1 and row["itemsize"] == 4
    assert row["log2_gemm_m"] == pytest.approx(math.log2(32 * 14 * 14))
    assert row["log2_gemm_k"] == pytest.approx(math.log2(256 * 9))
    assert row["log2_flops"] == pytest.approx(math.log2(7_398_752_256))
    # 7.398752256e9 operations at 30·128·2·1.582 GHz = 12.14976 TFLOP/s.
    assert roofline_us == pytest.approx(7398.752256 / 12.14976, rel=1e-3)
    assert row["log2_roofline_us"] == pytest.approx(math.log2(roofline_us))
    assert row["sms"] == 30 and row["compute_capability"] == 6.1
    assert row["mechanism"] == MECHANISM_CODE["implicit_gemm"]
    assert row["log2_arithmetic_ratio"] == 0 and row["log2_algorithm_roofline_ratio"] == 0
    # 6272 × 256 in tiles of 32 × 32: 196 · 8 = 1568 blocks in slots of 240: 6.5333 waves, the last 0.5333 full.
    assert row["log2_waves_small"] == pytest.approx(math.log2(1568 / 240))
    assert row["last_wave_share_small"] == pytest.approx(1568 / 240 - 6)
    assert row["tile_utilisation_small"] == 1
    remainders = [row[f"gemm_{name}"] for name in ("n_remainder_32", "n_remainder_128", "k_remainder_8")]
    assert remainders == [1, 1, 1]  # 256 columns divide by 32 and 128, 2304 by 8: no padding


def test_remainders_are_shares_of_the_padded_length() -> None:
    row, _ = _columns(Conv(n=1, c=3, h=8, k=40, r=3), GPUS[0], "gemm")
    assert row["gemm_n_remainder_32"] == 40 / 64 and row["gemm_n_remainder_128"] == 40 / 128
    assert row["gemm_k_remainder_8"] == 27 / 32


def test_gemm_columns_equal_the_hand_calculation() -> None:
    """100 × 130 needs 2 × 3 tiles of 64: one wave of 2·64·64·64·40 operations at the peak that 70 W sustain."""
    t4 = GPUS[1]
    row, roofline_us = _columns(parse_problem("gemm:m100n130k64"), t4)
    assert (row["log2_k"], row["m_remainder_4"], row["n_remainder_4"], row["k_remainder_8"]) == (6, 0, 2, 0)
    assert row["log2_tiles_per_sm_64"] == pytest.approx(math.log2(2 * 3 / t4.sms))
    peak = t4.sustained_tflops(t4.fp32_tflops)
    wave_us = 2 * 64 * 64 * 64 * t4.sms / (peak * 1e6)
    assert row["log2_quantised_us_64"] == pytest.approx(math.log2(wave_us))
    assert row["tile_utilisation_64"] == pytest.approx(100 / 128 * 130 / 192)
    moved = 4 * (100 * 64 + 64 * 130 + 100 * 130)
    assert roofline_us == pytest.approx(max(2 * 100 * 130 * 64 / (peak * 1e6), moved / (t4.dram_gbs * 1e3)))


@pytest.mark.parametrize("text", PROBLEMS[1:])
@pytest.mark.parametrize("device", GPUS, ids=lambda device: device.name)
def test_table_of_problems_has_the_columns_of_each_problem(text: str, device: Any) -> None:
    problem = parse_problem(text)
    kind = family_of(problem)
    single, roofline_us = _columns(problem, device)
    setting = dict(zip(kind.setting_names, kind.setting_of(problem), strict=True))
    sizes = {name: np.array([size, size]) for name, size in zip(kind.size_names, kind.sizes_of(problem), strict=True)}
    table, rooflines = _columns(kind.problem(sizes, setting), device)
    assert np.broadcast_to(rooflines, (2,))[1] == pytest.approx(roofline_us)
    for name, value in single.items():
        assert np.isfinite(value)
        assert np.broadcast_to(np.asarray(table[name]), (2,))[1] == pytest.approx(float(value)), name


@given(st.from_type(Conv))
def test_problems_with_equal_traits_get_equal_support(conv: Conv) -> None:
    """Support is stored by traits, so problems with equal traits must get the same verdict.

    Twice the batch and channels have the traits of the problem if a depthwise convolution stays depthwise.
    """
    groups = 2 * conv.groups if conv.groups == conv.c > 1 else conv.groups
    doubled = Conv(**{**conv.to_dict(), "n": 2 * conv.n, "c": 2 * conv.c, "k": 2 * conv.k, "groups": groups})
    assert CONV.traits(doubled) == CONV.traits(conv)
    setting = CONV.setting_of(conv)
    names = [candidate.algorithm for candidate in CONV.candidates("cudnn", setting)]
    refusal = partial(CONV.refusal, "cudnn", setting)
    verdicts = [[refusal(name, problem, "v100") for name in names] for problem in (conv, doubled)]
    assert names and verdicts[0] == verdicts[1]


@pytest.mark.parametrize(("text", "stratum"), ANSWERS["strata"])
def test_convolution_belongs_to_its_stratum(text: str, stratum: str) -> None:
    row = zip(CONV.size_names, CONV.sizes_of(parse_problem(text)), strict=True)
    sizes = {name: np.array([size]) for name, size in row}
    found = CONV.stratum(CONV.problem(sizes, CONV.setting_defaults))
    assert found.tolist() == [stratum]
    assert CONV.in_grouping(found, "all").all()
    assert CONV.in_grouping(found, "ungrouped").all() == (stratum != "grouped")


@pytest.mark.parametrize(
    ("name", "of_products", "of_convolutions"), [("t4", "default", "tensor_op"), ("p4", "fma", "fma")]
)
def test_int8_uses_tensor_cores_by_default_if_the_gpu_has_them(name, of_products, of_convolutions):
    found = FAMILIES["gemm"].default_math("int8", gpu(name)), CONV.default_math("int8", gpu(name))
    assert found == (of_products, of_convolutions)
