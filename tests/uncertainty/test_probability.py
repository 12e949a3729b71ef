"""Probability of being the fastest against limits and simulation, and the independent share of errors."""

from math import sqrt

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from scipy import integrate, stats

from surrogate.evaluation.coverage import picks
from surrogate.uncertainty.fit import fit_independent_share
from surrogate.uncertainty.intervals import NORMAL, NORMAL_90, STUDENT_90, normal_cdf, probability_best, student_cdf
from tests.known import cases

CANDIDATES = st.lists(st.tuples(st.floats(-8, 8), st.floats(0, 4)), min_size=1, max_size=10)


def test_student_cdf_and_quantile_equal_scipy() -> None:
    x = np.linspace(-99, 99, 4001)
    np.testing.assert_allclose(student_cdf(x), stats.t(2).cdf(x), atol=1e-12)
    assert pytest.approx(stats.t(2).ppf(0.95)) == STUDENT_90
    np.testing.assert_allclose(normal_cdf(x), stats.norm.cdf(x), atol=1e-6)
    assert pytest.approx(stats.norm.ppf(0.95)) == NORMAL_90


@given(CANDIDATES, st.floats(0.1, 2))
def test_probabilities_sum_to_one_and_follow_their_candidates(candidates, share) -> None:
    """They do not depend on the order of candidates or the unit of time."""
    mean, width = np.array(candidates).T
    found = probability_best(mean, width, share)
    assert found.sum() == pytest.approx(1)
    assert (found >= 0).all()
    np.testing.assert_allclose(probability_best(mean[::-1], width[::-1], share)[::-1], found, atol=1e-9)
    np.testing.assert_allclose(probability_best(mean + 6.9, width, share), found, atol=5e-3)


@given(CANDIDATES, st.floats(0.1, 1.5))
def test_candidate_faster_by_many_widths_is_certainly_best(candidates, share):
    """The tails are heavy: 1 in 5,000 errors exceeds 25 times the interval."""
    mean, width = np.array(candidates).T
    first = mean.min() - 100 * (width.max() + 0.1)
    found = probability_best(np.append(mean, first), np.append(width, 0.1), share)
    assert found[-1] > 0.999


@cases(__file__)
def test_probability_equals_the_simulated_share_of_wins(mean: list[float], width: list[float]) -> None:
    """The simulation draws 200,000 errors from Student's distribution with mixed scales."""
    draws = np.random.default_rng(0).standard_t(2, size=(200_000, len(mean))) * np.array(width) * 0.7 / STUDENT_90
    won = np.bincount((np.array(mean) + draws).argmin(axis=1), minlength=len(mean)) / len(draws)
    np.testing.assert_allclose(probability_best(mean, width, 0.7), won, atol=4e-3)


def test_probability_of_two_candidates_equals_the_integral() -> None:
    """P(first is faster) = ∫ f₁(t) (1 − F₂(t)) dt."""
    first, second = (stats.t(2, loc=gap, scale=width / STUDENT_90) for gap, width in ((0.0, 0.1), (0.1, 0.2)))
    exact, _ = integrate.quad(lambda t: first.pdf(t) * second.sf(t), -20, 20, points=[0, 0.1], limit=200)
    assert probability_best([0.0, 0.1], [0.1, 0.2])[0] == pytest.approx(exact, abs=1e-3)
    normal = stats.norm.cdf(0.1 * NORMAL_90 / sqrt(0.1**2 + 0.2**2))  # the difference is normal
    assert probability_best([0.0, 0.1], [0.1, 0.2], errors=NORMAL)[0] == pytest.approx(normal, abs=2e-3)


def test_probability_of_no_single_and_equal_candidates() -> None:
    assert probability_best([], []).shape == (0,)
    assert probability_best([3.0], [0.5]).tolist() == [1.0]
    np.testing.assert_allclose(probability_best([1.0, 1.0], [0.0, 0.0]), [0.5, 0.5])


def simulated(share: float, problems: int = 1500) -> tuple[np.ndarray, ...]:
    """Return predicted and measured times, half width, problem and shape of four candidates a problem.

    90 % of the errors lie in ±0.3, and ``share`` of the deviation is independent for each candidate."""
    random = np.random.default_rng(1)
    problem = np.repeat(np.arange(problems), 4)
    measured = random.uniform(0, 1.5, len(problem))
    independent = share * random.standard_t(2, size=len(problem))
    common = sqrt(1 - share**2) * random.normal(size=problems)[problem]
    error = 0.3 / STUDENT_90 * (independent + common)
    return np.exp(measured + error), np.exp(measured), np.full(len(problem), 0.3), problem, problem // 3


def max_difference(stated: np.ndarray, best: np.ndarray) -> float:
    """Return the largest difference of stated and actual shares of best picks among bands of over 150 picks."""
    band = pd.cut(stated, [0.0, 0.4, 0.6, 0.8, 0.95, 1.0])
    bands = pd.DataFrame({"stated": stated, "best": best}).groupby(band, observed=True)
    means = bands.mean()[bands.size() > 150]
    return float((means["stated"] - means["best"]).abs().max())


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_fitted_share_recovers_the_simulated_share(share: float) -> None:
    """Common errors of a problem do not count; with the fitted share, stated and actual shares of best picks agree."""
    predicted, measured, width, problem, shape = simulated(share)
    found = fit_independent_share(predicted, measured, width, problem, shape)
    assert found == pytest.approx(share, rel=0.15)
    stated, best = picks(predicted, measured, width, problem, found)
    assert len(stated) == 1500 and 0 < max_difference(stated, best) < 0.08
    assert max_difference(*picks(predicted, measured, width, problem, 3 * found)) > 0.1


def test_share_is_one_without_problems_of_two_candidates() -> None:
    ones = np.ones(5)
    assert fit_independent_share(ones, ones, ones, np.arange(5), np.arange(5)) == 1.0
    stated, best = picks(ones, ones, ones, np.arange(5), 1.0)
    assert len(stated) == len(best) == 0
