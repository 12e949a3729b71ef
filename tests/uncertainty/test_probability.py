"""Probability of being the fastest: sums, limits, and simulation as an oracle; the own share from held-out rows."""

from math import erf, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.evaluation.coverage import picks, reliability
from surrogate.uncertainty.fit import fit_own_share
from surrogate.uncertainty.intervals import NORMAL_90, normal_cdf, probability_best

CANDIDATES = st.lists(st.tuples(st.floats(-8, 8), st.floats(0, 4)), min_size=1, max_size=10)


def test_normal_cdf_is_that_of_the_error_function() -> None:
    x = np.linspace(-9, 9, 4001)
    exact = [0.5 * (1 + erf(v / sqrt(2))) for v in x]
    np.testing.assert_allclose(normal_cdf(x), exact, atol=7.5e-8)


@given(CANDIDATES, st.floats(0.1, 2))
def test_they_are_probabilities(candidates: list[tuple[float, float]], share: float) -> None:
    """They sum to 1, follow their candidates when those change places, and do not depend on the unit of time."""
    mean, width = np.array(candidates).T
    found = probability_best(mean, width, share)
    assert found.sum() == pytest.approx(1)
    assert (found >= 0).all()
    np.testing.assert_allclose(probability_best(mean[::-1], width[::-1], share)[::-1], found, atol=1e-9)
    np.testing.assert_allclose(probability_best(mean + 6.9, width, share), found, atol=5e-3)


@given(CANDIDATES, st.floats(0.1, 1.5))
def test_faster_by_more_than_everyones_interval_is_certain(candidates: list[tuple[float, float]], share: float) -> None:
    mean, width = np.array(candidates).T
    first = mean.min() - 4 * (width.max() + 0.1)
    found = probability_best(np.append(mean, first), np.append(width, 0.1), share)
    assert found[-1] > 0.999


@pytest.mark.parametrize(
    ("mean", "width"),
    [
        ([0, 0.1, 0.2, 1], [0.2, 0.1, 0.3, 0.2]),
        ([0, 0.001, 1], [1e-3, 1e-4, 1.0]),
        ([0, -0.3, 0.1], [1e-2, 2.0, 2.0]),
        ([0] * 8, [1] * 8),
    ],
)
def test_simulation_agrees(mean: list[float], width: list[float]) -> None:
    """200,000 draws of normal errors, scales mixed."""
    draws = np.random.default_rng(0).normal(size=(200_000, len(mean))) * np.array(width) * 0.7 / NORMAL_90
    won = np.bincount((np.array(mean) + draws).argmin(axis=1), minlength=len(mean)) / len(draws)
    np.testing.assert_allclose(probability_best(mean, width, 0.7), won, atol=4e-3)


def test_two_candidates_have_a_closed_form() -> None:
    """P(first is faster) = Φ(gap / √(σ₁² + σ₂²))."""
    found = probability_best([0.0, 0.1], [0.1, 0.2])[0]
    exact = 0.5 * (1 + erf(0.1 / sqrt((0.1 / NORMAL_90) ** 2 + (0.2 / NORMAL_90) ** 2) / sqrt(2)))
    assert found == pytest.approx(exact, abs=1e-3)


def test_none_one_and_equal_candidates() -> None:
    assert probability_best([], []).shape == (0,)
    assert probability_best([3.0], [0.5]).tolist() == [1.0]
    np.testing.assert_allclose(probability_best([1.0, 1.0], [0.0, 0.0]), [0.5, 0.5])


def simulated(share: float, problems: int = 1500) -> tuple[np.ndarray, ...]:
    """Predicted, measured, half width, problem and shape of four candidates a problem, whose errors have 90 % in ±0.3,

    of which ``share`` of the deviation is each one's own.
    """
    random = np.random.default_rng(1)
    problem = np.repeat(np.arange(problems), 4)
    measured = random.uniform(0, 1.5, len(problem))
    own = share * random.normal(size=len(problem))
    common = sqrt(1 - share**2) * random.normal(size=problems)[problem]
    error = 0.3 / NORMAL_90 * (own + common)
    return np.exp(measured + error), np.exp(measured), np.full(len(problem), 0.3), problem, problem // 3


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_the_own_share_is_found_and_the_probabilities_hold(share: float) -> None:
    """What the errors of a problem have in common is not counted; then stated and actual shares of best picks agree."""
    predicted, measured, width, problem, shape = simulated(share)
    found = fit_own_share(predicted, measured, width, problem, shape)
    assert found == pytest.approx(share, rel=0.15)
    stated, best = picks(predicted, measured, width, problem, found)
    table = reliability(stated, best)
    assert sum(row["picks"] for row in table) == len(stated) == 1500
    for row in table:
        if row["picks"] > 150:
            assert row["best"] == pytest.approx(row["probability"], abs=0.08)
    wrong = reliability(*picks(predicted, measured, width, problem, 3 * found))
    assert max(abs(row["best"] - row["probability"]) for row in wrong if row["picks"] > 150) > 0.1


def test_without_a_choice_the_share_is_all() -> None:
    ones = np.ones(5)
    assert fit_own_share(ones, ones, ones, np.arange(5), np.arange(5)) == 1.0
    stated, best = picks(ones, ones, ones, np.arange(5), 1.0)
    assert len(stated) == len(best) == 0
    assert reliability(stated, best) == []
