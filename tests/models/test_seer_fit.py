"""Least squares of relative errors."""

import numpy as np
from hypothesis import given, settings, strategies as st

from surrogate.models.json_types import from_json_types, to_json_types
from surrogate.models.least_squares import relative_fit, relative_loss
from surrogate.models.seer.fits import FormFit

TERMS = np.column_stack([np.geomspace(1e3, 1e12, 40), np.tile([1.0, 5.0, 30.0, 2.0], 10), np.ones(40)])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=3), st.booleans())
def test_relative_fit_recovers_targets_over_nine_decades(raw: list[float], nonnegative: bool) -> None:
    truth = np.array(raw) * [1e-9, 1.0, 1.0]
    target = TERMS @ truth
    np.testing.assert_allclose(TERMS @ relative_fit(TERMS, target, nonnegative=nonnegative), target, rtol=1e-7)


def test_relative_fit_minimises_the_relative_residual() -> None:
    """For the targets 1 and 100, Σ(a/t − 1)² has its minimum at a = Σ(1/t) / Σ(1/t²)."""
    found = relative_fit(np.ones((2, 1)), np.array([1.0, 100.0]))
    np.testing.assert_allclose(found, [1.01 / 1.0001])
    loss = relative_loss(np.ones((2, 1)), np.array([1.0, 100.0]), found)
    np.testing.assert_allclose(loss, (found / [1, 100] - 1) ** 2)


def test_nonnegative_coefficients_stay_at_zero() -> None:
    x = np.column_stack([np.arange(1.0, 9), np.ones(8)])
    target = 2 * np.arange(1.0, 9) - 1.5
    assert relative_fit(x, target)[1] < 0
    found = relative_fit(x, target, nonnegative=True)
    assert found[1] == 0
    best = (1 / target @ x[:, 0]) / ((x[:, 0] / target) @ (x[:, 0] / target))
    np.testing.assert_allclose(found[0], best)


def test_column_of_zeros_gets_a_zero_coefficient() -> None:
    x = np.column_stack([np.arange(1.0, 9), np.zeros(8)])
    for nonnegative in (False, True):
        np.testing.assert_allclose(relative_fit(x, 3 * x[:, 0], nonnegative=nonnegative), [3, 0], atol=1e-12)


def test_form_never_predicts_a_negative_time() -> None:
    fit = FormFit.of((np.array([4.0, 8.0]), 1.0), np.array([1.0, 9.0]))
    np.testing.assert_allclose(fit.predict((np.array([6.0, 1.0]), 1.0)), [5.0, 1.0])
    assert from_json_types(FormFit, to_json_types(fit)) == fit
