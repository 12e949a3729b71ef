"""The part of an interval's half width that the candidates of a problem do not share, from held-out predictions.

What the errors of all candidates have in common cancels when they are compared. The share is the one under which the
measured fastest candidates were most likely (maximum likelihood, every shape alike), so that it also makes good that
the candidate predicted fastest owes its place to its error more than others do.
"""

from collections.abc import Callable

import numpy as np

from surrogate.uncertainty.probability import probability_best

SHARES = (0.1, 2.0)
"""The search's ends."""
PROBLEMS = 1000
"""Problems that the likelihood is taken over; more hardly change it."""
_STEPS = 9
_LEAST = 1e-6  # one hopeless problem shall not decide
_GOLDEN = (5**0.5 - 1) / 2


def fit_own_share(
    predicted_us: np.ndarray,
    measured_us: np.ndarray,
    half_width: np.ndarray,
    problem: np.ndarray,
    shape: np.ndarray,
) -> float:
    """The share; arrays (rows,), ``problem`` and ``shape`` any codes. 1 where no problem has two rows."""
    order = np.argsort(problem, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(problem[order])) + 1)
    groups = [rows for rows in groups if len(rows) > 1]
    if not groups:
        return 1.0
    picked = np.random.default_rng(0).permutation(len(groups))[:PROBLEMS]
    cases = [
        (np.log(predicted_us[rows]), half_width[rows], int(measured_us[rows].argmin()))
        for rows in (groups[i] for i in picked)
    ]
    shapes = np.array([shape[groups[i][0]] for i in picked])
    weight = 1 / np.bincount(shapes)[shapes]

    def loss(log_share: float) -> float:
        share = float(np.exp(log_share))
        likely = [max(probability_best(time, width, share)[best], _LEAST) for time, width, best in cases]
        return -float(weight @ np.log(likely))

    return float(np.exp(_minimum(loss, *np.log(SHARES))))


def _minimum(function: Callable[[float], float], low: float, high: float) -> float:
    """Golden-section search."""
    inner, outer = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_inner, at_outer = function(inner), function(outer)
    for _ in range(_STEPS):
        if at_inner < at_outer:
            high, outer, at_outer = outer, inner, at_inner
            inner = high - _GOLDEN * (high - low)
            at_inner = function(inner)
        else:
            low, inner, at_inner = inner, outer, at_outer
            outer = low + _GOLDEN * (high - low)
            at_outer = function(outer)
    return 0.5 * (low + high)
