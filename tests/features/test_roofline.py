"""The roofline: known answers, equal results for numbers and arrays, the choice of a peak."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from surrogate.features.families import family_of, parse_problem
from surrogate.features.gpu import gpu, gpus
from surrogate.features.problem import ELEMENTS
from surrogate.features.roofline import bound, peak_flops_table, peak_tflops, ridge_flops_per_byte, roofline_us
from tests.features.known_answers import ANSWERS

AMOUNTS = st.floats(1, 1e15)
PEAKS = st.floats(0.1, 1e4)


def test_roofline_time_equals_the_known_answer() -> None:
    # 15.7 TFLOP at 15.7 TFLOP/s is a second; 900 GB at 900 GB/s too.
    assert roofline_us(15.7e12, 1, 15.7, 900) == pytest.approx(1e6)
    assert roofline_us(1, 900e9, 15.7, 900) == pytest.approx(1e6)
    assert ridge_flops_per_byte(19.5, 1555) == pytest.approx(12.54, rel=1e-3)


@given(AMOUNTS, AMOUNTS, PEAKS, PEAKS)
def test_roofline_time_is_never_below_compute_or_memory_time(flops, size, peak, gbs) -> None:
    time_us = roofline_us(flops, size, peak, gbs)
    assert time_us >= flops / (peak * 1e6)
    assert time_us >= size / (gbs * 1e3)
    columns = roofline_us(np.array([flops, flops]), np.array([size, size]), peak, gbs)
    assert columns.tolist() == [time_us, time_us]
    intensity = flops / size
    ridge = ridge_flops_per_byte(peak, gbs)
    if abs(intensity / ridge - 1) > 1e-9:
        assert bound(flops, size, peak, gbs) == ("compute-bound" if intensity > ridge else "memory-bound")


@pytest.mark.parametrize(("name", "dtype", "expected"), ANSWERS["peaks"])
def test_peak_depends_on_the_data_type(name: str, dtype: str, expected: float) -> None:
    assert peak_tflops(gpu(name), dtype, True) == pytest.approx(expected, rel=1e-3)


def test_peak_tables_are_complete_and_tensor_cores_never_slower() -> None:
    assert len(gpus()) > 50
    for board in gpus():
        table = peak_flops_table(board)
        assert set(table) == {(dtype, tensor) for dtype in ELEMENTS for tensor in (False, True)}
        for dtype in ELEMENTS:
            assert table[dtype, True] >= table[dtype, False] > 0, (board.name, dtype)


OVER_L2 = ("v100-sxm2-16gb", "max_pool:n1c64h224w224window2stride2", (12845056 + 3211264) / 900e3)  # 900 GB/s
IN_L2 = ("v100-sxm2-16gb", "max_pool:n1c8h8w8window2stride2", 512 / 15.667e6)  # only 512 comparisons
ADDING_SWITCHES = ("h100-sxm", "all_reduce:elements1000000ranks4", 0.5 * (4 + 1.5 * 4e6 / 450e3))


@pytest.mark.parametrize(("name", "text", "shortest_us"), [OVER_L2, IN_L2, ADDING_SWITCHES])
def test_the_shortest_time_is_what_the_peaks_allow(name: str, text: str, shortest_us: float) -> None:
    problem = parse_problem(text)
    family = family_of(problem)
    setting = dict(zip(family.setting_names, family.setting_of(problem), strict=True))
    assert family.shortest_us(problem, setting, gpu(name)) == pytest.approx(shortest_us, rel=2e-3)


def test_boards_without_matrix_units_multiply_bytes_four_at_a_time() -> None:
    # NVIDIA P4 datasheet: 22 TOPS in int8, 5.5 TFLOP/s in fp32. The P100 has no such instruction.
    assert peak_tflops(gpu("p4"), "int8", True) == pytest.approx(22, rel=0.04)
    assert peak_tflops(gpu("p100-sxm2-16gb"), "int8", True) == gpu("p100-sxm2-16gb").fp32_tflops
