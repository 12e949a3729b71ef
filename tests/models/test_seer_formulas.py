"""SEER's formulas against values computed with SEER's published functions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from surrogate.models.seer import physics as f
from surrogate.models.seer.physics import gemm_blocks
from tests.known import cases

N, C, W, K, O = np.array([[128, 64, 56, 128, 54], [128, 256, 14, 512, 12], [128, 16, 112, 32, 108]]).T  # noqa: E741
FILTER = np.array([3, 3, 5])
B_MAX = 240
I = np.array([18432.0, 73728, 12800])  # noqa: E741
R, WR = np.array([1200.5, 4600.25, 800]), np.array([256.0, 128, 128])
SIZES = f.Sizes(batch=N, channels=C, outputs=K, width=W, out_width=O, filter_width=FILTER, stride=1)
WAVES = f.waves(gemm_blocks(N, O, K, 32, 32), B_MAX)

UNDER = (1e-8, 2e-10, 0.05, 3e-8)
UNITS = {"time": np.array([5.5, 2.25, 9.75]), "instructions": I}
TERMS = {
    "compute": f.compute_terms(WAVES, B_MAX, I),
    "memory": f.memory_terms(WAVES, B_MAX, R, WR),
    "under-utilised": f.under_utilised_terms(WAVES, B_MAX, I, R, WR),
    "fft": f.fft_terms(C, K),
    "fft tiling": f.fft_tiling_terms(C, K, O, FILTER),
    "gemm instructions": f.gemm_instruction_terms(C, FILTER),
    "winograd instructions": f.winograd_instruction_terms(C),
    "im2col": f.im2col_terms(SIZES),
    "transforms": f.transform_terms(SIZES),
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
    found = (
        weighted_sum((1e-9, 2e-3), f.compute_terms(w, 240, 18532)),
        weighted_sum((1.5e-8, 3e-3), f.memory_terms(w, 240, 10, 5)),
        weighted_sum(UNDER, f.under_utilised_terms(w, 240, 18532, 10, 5)),
    )
    np.testing.assert_allclose(np.array(found) / 2, [compute, memory, under], rtol=1e-12)


@cases(__file__)
def test_waves_equal_the_hand_calculation(blocks: int, b_max: int, count: int, share: float) -> None:
    assert f.waves(blocks, b_max) == pytest.approx((count, share))
