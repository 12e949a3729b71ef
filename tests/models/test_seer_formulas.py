"""SEER's formulas against values computed with SEER's published functions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from surrogate.models.seer import physics as f
from tests.known import cases

N, C, W, K, O = np.array([[128, 64, 56, 128, 54], [128, 256, 14, 512, 12], [128, 16, 112, 32, 108]]).T  # noqa: E741
FILTER = np.array([3, 3, 5])
B_MAX = 240
I = np.array([18432.0, 73728, 12800])  # noqa: E741
R, WR = np.array([1200.5, 4600.25, 800]), np.array([256.0, 128, 128])
SIZES = f.Sizes(batch=N, channels=C, outputs=K, width=W, out_width=O, filter_width=FILTER, stride=1)
WAVES = f.waves(f.launched_blocks("GEMM", "32x32", SIZES), B_MAX)

FORMS = ("compute", "memory", "under-utilised")
COEFFICIENTS = ((1e-9, 2e-3), (1.5e-8, 3e-3), (1e-8, 2e-10, 0.05, 3e-8))
UNITS = {"time": np.array([5.5, 2.25, 9.75]), "instructions": I}
TERMS = {
    **{form: f.time_terms(code, WAVES, B_MAX, I, R, WR) for code, form in enumerate(FORMS)},
    "fft": f.fft_terms("FFT", SIZES),
    "fft tiling": f.fft_terms("FFT_TILING", SIZES),
    "gemm instructions": f.instruction_terms("GEMM", SIZES),
    "winograd instructions": f.instruction_terms("WINOGRAD", SIZES),
    "im2col": f.extra_terms("GEMM", SIZES),
    "transforms": f.extra_terms("WINOGRAD_NONFUSED", SIZES),
}


def weighted_sum(coefficients: Sequence[float], terms: f.Terms) -> Any:
    """Return Σ coefficient · term, in the unit of the fitted target."""
    return sum(coefficient * term for coefficient, term in zip(coefficients, terms, strict=True))


@cases(__file__)
def test_relative_predictions_equal_the_published_functions(name, coefficients, unit, expected) -> None:
    np.testing.assert_allclose(weighted_sum(coefficients, TERMS[name]) / UNITS[unit], expected, rtol=1e-12)


@cases(__file__)
def test_terms_of_a_full_wave_and_of_a_single_block(blocks: int, compute: float, memory: float, under: float) -> None:
    """The arguments are Python numbers, not arrays."""
    w = f.waves(blocks, 240)
    assert w.count == 1
    found = [weighted_sum(each, f.time_terms(form, w, 240, 18532, 10, 5)) for form, each in enumerate(COEFFICIENTS)]
    np.testing.assert_allclose(np.array(found) / 2, [compute, memory, under], rtol=1e-12)


@cases(__file__)
def test_waves_equal_the_hand_calculation(blocks: int, b_max: int, count: int, share: float) -> None:
    assert f.waves(blocks, b_max) == pytest.approx((count, share))
