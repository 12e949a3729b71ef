"""The losses of training: derivatives against finite differences of the loss as written, and what their minima are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.features.errors import InputError
from surrogate.models.objective import (
    CHOICE_LOSSES,
    Objective,
    Weights,
    below,
    listwise,
    log_slowdown,
    pairwise,
    squared,
)

TAU = 0.1
STEP = 1e-6


def _expected_slowdown(log_time: np.ndarray, problem: np.ndarray, slowdown: np.ndarray, tau: float) -> float:
    """Σ over problems of the mean log slowdown under softmax(−log_time / τ), problem by problem."""
    total = 0.0
    for code in np.unique(problem):
        mine = problem == code
        weight = np.exp(-(log_time[mine] - log_time[mine].min()) / tau)
        total += float((weight * slowdown[mine]).sum() / weight.sum())
    return total


def _logistic_pairs(log_time: np.ndarray, problem: np.ndarray, slowdown: np.ndarray, tau: float) -> float:
    total = 0.0
    for code in np.unique(problem):
        mine = np.flatnonzero(problem == code)
        best = mine[slowdown[mine] == 0][-1]
        for row in mine:
            total += slowdown[row] * tau * np.logaddexp(0, (log_time[best] - log_time[row]) / tau)
    return total


LOSSES = {"listwise": _expected_slowdown, "pairwise": _logistic_pairs}


@st.composite
def _problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predicted log times, problem codes in any order, measured log times."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    problem = np.array(draw(st.permutations(np.repeat(np.arange(len(sizes)), sizes).tolist())))
    near = st.lists(st.floats(-0.4, 0.4), min_size=len(problem), max_size=len(problem))
    return np.array(draw(near)), problem, np.array(draw(near))


@pytest.mark.parametrize("name", CHOICE_LOSSES)
@given(case=_problems())
def test_gradient_is_that_of_the_loss(name: str, case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    log_time, problem, measured = case
    slowdown = log_slowdown(measured, problem)
    gradient, curvature = CHOICE_LOSSES[name](log_time, problem, slowdown, TAU)
    loss = LOSSES[name]
    for row in range(len(log_time)):
        step = np.eye(len(log_time))[row] * STEP
        ends = [loss(log_time + sign * step, problem, slowdown, TAU) for sign in (1, -1)]
        assert gradient[row] == pytest.approx((ends[0] - ends[1]) / (2 * STEP), abs=1e-5)
    assert (curvature >= 0).all()


@given(case=_problems())
def test_pairwise_curvature_is_the_second_derivative(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    log_time, problem, measured = case
    slowdown = log_slowdown(measured, problem)
    curvature = pairwise(log_time, problem, slowdown, TAU)[1]
    for row in range(len(log_time)):
        step = np.eye(len(log_time))[row] * STEP
        ends = [pairwise(log_time + sign * step, problem, slowdown, TAU)[0][row] for sign in (1, -1)]
        assert curvature[row] == pytest.approx((ends[0] - ends[1]) / (2 * STEP), rel=1e-3, abs=1e-4)


@given(case=_problems())
def test_listwise_curvature_bounds_the_second_derivative_and_the_step(
    case: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    log_time, problem, measured = case
    slowdown = log_slowdown(measured, problem)
    gradient, curvature = listwise(log_time, problem, slowdown, TAU)
    for row in range(len(log_time)):
        step = np.eye(len(log_time))[row] * STEP
        ends = [listwise(log_time + sign * step, problem, slowdown, TAU)[0][row] for sign in (1, -1)]
        assert abs(ends[0] - ends[1]) / (2 * STEP) <= curvature[row] * (1 + 1e-3) + 1e-4
    np.testing.assert_allclose(np.abs(gradient), TAU * curvature, rtol=1e-9)


@pytest.mark.parametrize("name", CHOICE_LOSSES)
@given(case=_problems(), shift=st.floats(-3, 3), scale=st.integers(1, 4))
def test_only_differences_within_a_problem_count(
    name: str, case: tuple[np.ndarray, np.ndarray, np.ndarray], shift: float, scale: int
) -> None:
    """All times of a problem ×eˢʰⁱᶠᵗ: the same derivatives; the derivatives of a problem sum to zero; k copies of a

    problem pull alike."""
    log_time, problem, measured = case
    slowdown = log_slowdown(measured, problem)
    gradient, _ = CHOICE_LOSSES[name](log_time, problem, slowdown, TAU)
    moved, _ = CHOICE_LOSSES[name](log_time + shift * problem, problem, slowdown, TAU)
    np.testing.assert_allclose(moved, gradient, atol=1e-9)
    np.testing.assert_allclose(np.bincount(problem, gradient), 0, atol=1e-9)
    count = problem.max() + 1
    copies = np.concatenate([problem + count * i for i in range(scale)])
    many, _ = CHOICE_LOSSES[name](np.tile(log_time, scale), copies, np.tile(slowdown, scale), TAU)
    np.testing.assert_allclose(many, np.tile(gradient, scale), atol=1e-12)


def test_two_candidates_by_hand() -> None:
    """Equal predictions, the second twice as slow: p = ½ each, D̄ = ln 2 / 2, gradient ∓(½·ln 2 / 2) / τ."""
    slowdown = np.array([0.0, np.log(2)])
    gradient, curvature = listwise(np.zeros(2), np.zeros(2, dtype=int), slowdown, TAU)
    pull = 0.25 * np.log(2)
    np.testing.assert_allclose(gradient, [pull / TAU, -pull / TAU])
    np.testing.assert_allclose(curvature, [pull / TAU**2] * 2)
    gradient, curvature = pairwise(np.zeros(2), np.zeros(2, dtype=int), slowdown, TAU)
    np.testing.assert_allclose(gradient, [np.log(2) / 2, -np.log(2) / 2])
    np.testing.assert_allclose(curvature, [np.log(2) / 4 / TAU] * 2)


def test_log_slowdown_by_hand() -> None:
    times = np.log([30.0, 10.0, 5.0, 5.0])
    np.testing.assert_allclose(np.exp(log_slowdown(times, np.array([1, 1, 0, 0]))), [3.0, 1.0, 1.0, 1.0])


def test_a_bound_pulls_only_from_below() -> None:
    gradient, curvature = below(np.array([0.0, 2.0]), np.array([1.0, 1.0]))
    np.testing.assert_array_equal(gradient, [-1.0, 0.0])
    np.testing.assert_array_equal(curvature, [1.0, 0.0])


def test_terms_add_up_on_the_rows_that_they_concern() -> None:
    """Rows 0 and 2 are one problem, row 1 another's bound."""
    target, base = np.log([1.0, 3.0, 2.0]), np.log([10.0, 5.0, 10.0])
    censored = np.array([False, True, False])
    weights = Weights(time_weight=2.0, choice_weight=0.5, bounds_weight=3.0)
    gradient, curvature = Objective(weights, target, base, np.array([7, 0, 7]), censored)(
        np.zeros(3, dtype=np.float32), None
    )
    by_time = squared(np.zeros(2), target[[0, 2]])
    by_choice = listwise(base[[0, 2]], np.zeros(2, dtype=int), np.log([1.0, 2.0]), TAU)
    np.testing.assert_allclose(gradient[[0, 2]], 2 * by_time[0] + 0.5 * by_choice[0])
    np.testing.assert_allclose(curvature[[0, 2]], 2 * by_time[1] + 0.5 * by_choice[1], rtol=1e-5)
    assert gradient[1] == pytest.approx(-3 * np.log(3))
    assert curvature[1] == pytest.approx(3, rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"choice_weight": -1.0}, "choice_weight is -1.0"),
        ({"choice_temperature": 0.0}, "must be positive"),
        ({"choice_loss": "listwize"}, "did you mean.*listwise|listwise"),
        ({"time_weight": 0.0}, "nothing is learned"),
    ],
)
def test_weights_that_make_no_objective(settings: dict, told: str) -> None:
    with pytest.raises(InputError, match=told):
        Weights(**settings)
