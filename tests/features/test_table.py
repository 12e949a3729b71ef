"""The feature table: names, known answers, one row = the same row in a table, widths of integers, monotonicity."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surrogate.features.algorithms import MECHANISMS, MECHANISM_CODE, Mechanism
from surrogate.features.conv import Conv
from surrogate.features.gpu import gpu
from surrogate.features.machine import b_max, machine, machine_columns
from surrogate.features.problem import ConvColumns
from surrogate.features.table import (
    ALGORITHM_NAMES,
    DIMENSION_NAMES,
    FEATURE_NAMES,
    FEATURE_VERSION,
    MACHINE_NAMES,
    PROBLEM_NAMES,
    feature_matrix,
    feature_row,
    problem_roofline_us,
)

CONVS = st.from_type(Conv)
GPUS = [gpu(name) for name in ("TITAN Xp", "Tesla T4", "h200", "mi210")]
SIZES: dict[str, Any] = {"n": 32, "c": 256, "h": 14, "k": 256, "r": 3, "pad_h": 1}


def _row(conv: Conv, place: int, mechanism: Mechanism) -> tuple[dict[str, float], float]:
    device = GPUS[place]
    features, base_us = feature_row(
        conv, machine(device, conv.dtype, conv.uses_tensor_cores), mechanism, b_max(device, mechanism)
    )
    return dict(zip(FEATURE_NAMES, features, strict=True)), base_us


def _matrix(
    columns: ConvColumns, convs: Sequence[Conv], places: Sequence[int], codes: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    keys = [(GPUS[p], conv.dtype, conv.uses_tensor_cores) for p, conv in zip(places, convs, strict=True)]
    machines = machine_columns(keys, np.arange(len(keys)))
    return feature_matrix(columns, machines, np.array(codes), GPUS, np.array(places))


def test_names_are_unique_and_in_groups() -> None:
    assert len(set(FEATURE_NAMES)) == len(FEATURE_NAMES)
    assert (*DIMENSION_NAMES, *PROBLEM_NAMES, *MACHINE_NAMES, *ALGORITHM_NAMES) == FEATURE_NAMES
    assert isinstance(FEATURE_VERSION, int)


def test_known_answers() -> None:
    row, base_us = _row(Conv(**SIZES), 0, "implicit_gemm")
    assert row["log2_n"] == 5 and row["log2_c"] == 8 and row["pad_w"] == 1 and row["itemsize"] == 4
    assert row["log2_gemm_m"] == pytest.approx(math.log2(32 * 14 * 14))
    assert row["log2_gemm_k"] == pytest.approx(math.log2(256 * 9))
    assert row["log2_flops"] == pytest.approx(math.log2(7_398_752_256))
    # 7.398752256e9 operations at 30·128·2·1.582 GHz = 12.14976 TFLOP/s.
    assert base_us == pytest.approx(7398.752256 / 12.14976, rel=1e-3)
    assert row["log2_roofline_us"] == pytest.approx(math.log2(base_us))
    assert row["sms"] == 30 and row["compute_capability"] == 6.1
    assert row["mechanism"] == MECHANISM_CODE["implicit_gemm"]
    assert row["log2_arithmetic_ratio"] == 0 and row["log2_algorithm_roofline_ratio"] == 0
    # 6272 × 256 in tiles of 32 × 32: 196 · 8 = 1568 blocks in slots of 240: 6.5333 waves, the last 0.5333 full.
    assert row["log2_waves_small"] == pytest.approx(math.log2(1568 / 240))
    assert row["last_wave_share_small"] == pytest.approx(1568 / 240 - 6)
    assert row["tile_utilisation_small"] == 1
    # 256 columns divide by 32 and 128, 2304 by 8: no padding.
    assert [row[f"gemm_{name}"] for name in ("n_remainder_32", "n_remainder_128", "k_remainder_8")] == [
        1,
        1,
        1,
    ]


def test_remainders_are_shares_of_the_padded_length() -> None:
    row, _ = _row(Conv(n=1, c=3, h=8, k=40, r=3), 0, "gemm")
    assert row["gemm_n_remainder_32"] == 40 / 64
    assert row["gemm_n_remainder_128"] == 40 / 128
    assert row["gemm_k_remainder_8"] == 27 / 32


@settings(max_examples=60)
@given(
    st.lists(st.tuples(CONVS, st.integers(0, 3), st.integers(0, len(MECHANISMS) - 1)), min_size=1, max_size=6)
)
def test_a_table_holds_the_single_rows(
    columns_of: Callable[[Sequence[Conv]], ConvColumns], picks: list[tuple[Conv, int, int]]
) -> None:
    convs, places, codes = zip(*picks, strict=True)
    matrix, base_us = _matrix(columns_of(convs), convs, places, codes)
    assert matrix.dtype == np.float32 and matrix.shape == (len(picks), len(FEATURE_NAMES))
    for i, (conv, place, code) in enumerate(picks):
        row, single_us = _row(conv, place, MECHANISMS[code])
        assert base_us[i] == pytest.approx(single_us, rel=1e-12)
        values = np.array(list(row.values()), dtype=np.float32)
        assert np.isfinite(values).all()
        np.testing.assert_allclose(matrix[i], values, rtol=3e-7, atol=3e-7)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@settings(max_examples=20)
@given(conv=CONVS)
def test_the_formulas_agree_before_rounding(
    columns_of: Callable[[Sequence[Conv]], ConvColumns], mechanism: Mechanism, conv: Conv
) -> None:
    row, base_us = _row(conv, 1, mechanism)
    device = machine_columns([(GPUS[1], conv.dtype, conv.uses_tensor_cores)], np.array([0]))
    slots: Any = tuple(np.array([value]) for value in b_max(GPUS[1], mechanism))
    features, array_us = feature_row(columns_of([conv]), device, mechanism, slots)
    assert float(array_us[0]) == base_us
    for name, value in zip(FEATURE_NAMES, features, strict=True):
        assert float(np.ravel(value)[0]) == pytest.approx(float(row[name]), rel=1e-12, abs=1e-12), name


@pytest.mark.parametrize("narrow", [np.int8, np.int16, np.int32])
def test_narrow_integers_give_the_same_features(narrow: type[np.integer]) -> None:
    sizes = (64, 120, 56, 56, 120, 5, 5, 2, 2, 1, 1, 1, 1, 1)
    conv = Conv(**dict(zip(("n", "c", "h", "w", "k", "r", "s", "pad_h", "pad_w"), sizes, strict=False)))
    results = [
        _matrix(ConvColumns.of([np.array([v], dtype=kind) for v in sizes]), [conv], [0], [code])
        for code in range(len(MECHANISMS))
        for kind in (np.int64, narrow)
    ]
    for wide, small in zip(results[::2], results[1::2], strict=True):
        assert (wide[0] == small[0]).all() and (wide[1] == small[1]).all()


@given(CONVS, st.sampled_from(["n", "c", "k", "h", "w"]), st.integers(2, 4), st.integers(0, 3))
def test_a_larger_problem_never_has_a_smaller_roofline(
    conv: Conv, name: str, factor: int, place: int
) -> None:
    larger = Conv(**(conv.to_dict() | {name: getattr(conv, name) * factor}))
    device = machine(GPUS[place], conv.dtype, conv.uses_tensor_cores)
    assert larger.flops >= conv.flops
    assert problem_roofline_us(larger, device) >= problem_roofline_us(conv, device)


@given(CONVS)
def test_a_faster_machine_never_has_a_larger_roofline(conv: Conv) -> None:
    device = machine(GPUS[1], conv.dtype, conv.uses_tensor_cores)
    faster = device._replace(peak_tflops=2 * device.peak_tflops, dram_gbs=3 * device.dram_gbs)
    assert problem_roofline_us(conv, faster) <= problem_roofline_us(conv, device) / 2
