"""What boosted trees minimise: squared log error, the slowdown that a soft choice expects, and one-sided lower bounds.

A custom objective of XGBoost is the gradient and a curvature per row. All terms are functions of a row's predicted log
time; those of choice couple the rows of one problem.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from surrogate.features.errors import InputError, nearest

Derivatives = tuple[np.ndarray, np.ndarray]
"""Gradient and curvature of a loss with respect to each row's predicted log time, (rows,) each."""
LEAST_CURVATURE = 1e-6
"""Curvature of a row that no term pulls: XGBoost divides by a leaf's sum."""


def squared(log_time: np.ndarray, measured: np.ndarray) -> Derivatives:
    """Of ½·(log_time − measured)², both (rows,) natural logarithms: XGBoost's ``reg:squarederror``."""
    return log_time - measured, np.ones(len(log_time))


def below(log_time: np.ndarray, bound: np.ndarray) -> Derivatives:
    """Of ½·max(0, bound − log_time)²: a censored time costs only where it is predicted below what it at least took.

    Source: Powell 1984, "Least absolute deviations estimation for the censored regression model", in squares.
    """
    short = np.maximum(bound - log_time, 0.0)
    return -short, (short > 0).astype(float)


def listwise(
    log_time: np.ndarray, problem: np.ndarray, log_slowdown: np.ndarray, temperature: float
) -> Derivatives:
    """Of Σ over problems of Σᵢ pᵢ·Dᵢ, the log slowdown expected of a pick drawn with p = softmax(−log_time / τ).

    ``problem`` (rows,) codes 0 … P−1; ``log_slowdown`` D (rows,), 0 for each problem's best. The gradient is
    −pᵢ·(Dᵢ − D̄)/τ with D̄ = Σ p·D; the curvature pᵢ·|Dᵢ − D̄|/τ² bounds the second derivative, whose sign varies, so
    that no step exceeds τ. Source: the expected loss of Och 2003, "Minimum error rate training", §3, over candidates.
    """
    score = -log_time / temperature
    top = np.full(int(problem.max()) + 1, -np.inf)
    np.maximum.at(top, problem, score)
    weight = np.exp(score - top[problem])
    share = weight / np.bincount(problem, weight)[problem]
    excess = log_slowdown - np.bincount(problem, share * log_slowdown)[problem]
    return -share * excess / temperature, share * np.abs(excess) / temperature**2


def pairwise(
    log_time: np.ndarray, problem: np.ndarray, log_slowdown: np.ndarray, temperature: float
) -> Derivatives:
    """Of Σ over problems of Σⱼ Dⱼ·τ·log(1 + exp((log_time_best − log_timeⱼ)/τ)): each row against its problem's best.

    Arguments as in `listwise`. A row counts by the slowdown that picking it would cost. Source: Burges 2010, "From
    RankNet to LambdaRank to LambdaMART", §2 (logistic pairs) and §4 (weighted by what a swap changes).
    """
    best = np.empty(int(problem.max()) + 1, dtype=np.int64)
    fastest = np.flatnonzero(log_slowdown == 0.0)
    best[problem[fastest]] = fastest
    mine = best[problem]
    wrong = 1.0 / (1.0 + np.exp(np.clip((log_time - log_time[mine]) / temperature, -500.0, 500.0)))
    pull, bend = log_slowdown * wrong, log_slowdown * wrong * (1.0 - wrong) / temperature
    both = len(log_time)
    return (
        np.bincount(mine, pull, both) - pull,
        np.bincount(mine, bend, both) + bend,
    )


CHOICE_LOSSES: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray, float], Derivatives]] = {
    "listwise": listwise,
    "pairwise": pairwise,
}
"""Name → derivatives of a loss of choice."""


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each term counts; ``choice_loss`` is one of `CHOICE_LOSSES`, ``choice_temperature`` τ > 0."""

    time_weight: float = 1.0
    choice_weight: float = 0.0
    choice_temperature: float = 0.1
    choice_loss: str = "listwise"
    bounds_weight: float = 0.0

    def __post_init__(self) -> None:
        for name in ("time_weight", "choice_weight", "bounds_weight"):
            if getattr(self, name) < 0:
                raise InputError(
                    f"{name} is {getattr(self, name)}; a weight must not be negative; 0 leaves it out"
                )
        if self.choice_temperature <= 0:
            raise InputError(f"choice_temperature is {self.choice_temperature}; it must be positive; try 0.1")
        if self.choice_loss not in CHOICE_LOSSES:
            raise InputError(
                f"choice_loss {self.choice_loss!r} is unknown; known: {', '.join(CHOICE_LOSSES)}"
                f"{nearest(self.choice_loss, CHOICE_LOSSES)}"
            )
        if self.time_weight == 0 and self.choice_weight == 0:
            raise InputError("time_weight and choice_weight are both 0, so nothing is learned; raise one")

    @property
    def plain(self) -> bool:
        """True where only squared error counts: XGBoost's own objective does that."""
        return self.choice_weight == 0 and self.bounds_weight == 0


@dataclass(frozen=True)
class Objective:
    """A custom objective of XGBoost over its training rows, in their order; every array is (rows,).

    ``target``: log of the correction that was measured, or its lower bound where ``censored``; ``log_base``: log of
    what the correction multiplies; ``problem``: any codes, equal within a problem.
    """

    weights: Weights
    target: np.ndarray
    log_base: np.ndarray
    problem: np.ndarray
    censored: np.ndarray

    def __call__(self, margin: np.ndarray, matrix: object) -> Derivatives:
        """Gradient and curvature at the corrections ``margin`` (rows,) that the trees predict so far."""
        del matrix
        log_correction = margin.astype(np.float64)
        gradient, curvature = np.zeros(len(margin)), np.full(len(margin), LEAST_CURVATURE)
        timed = np.flatnonzero(~self.censored)
        w = self.weights
        terms = [(timed, w.time_weight, squared(log_correction[timed], self.target[timed]))]
        if w.choice_weight:
            terms.append((timed, w.choice_weight, self._choice(log_correction[timed], timed)))
        if w.bounds_weight:
            late = np.flatnonzero(self.censored)
            terms.append((late, w.bounds_weight, below(log_correction[late], self.target[late])))
        for where, weight, (slope, bend) in terms:
            gradient[where] += weight * slope
            curvature[where] += weight * bend
        return gradient, curvature

    def _choice(self, log_correction: np.ndarray, timed: np.ndarray) -> Derivatives:
        problem = np.unique(self.problem[timed], return_inverse=True)[1]
        log_time = self.log_base[timed] + self.target[timed]
        loss = CHOICE_LOSSES[self.weights.choice_loss]
        return loss(
            self.log_base[timed] + log_correction,
            problem,
            log_slowdown(log_time, problem),
            self.weights.choice_temperature,
        )


def log_slowdown(log_time: np.ndarray, problem: np.ndarray) -> np.ndarray:
    """(rows,) log of the time over the least time of its problem; ``problem`` codes 0 … P−1."""
    least = np.full(int(problem.max()) + 1, np.inf)
    np.minimum.at(least, problem, log_time)
    return log_time - least[problem]
