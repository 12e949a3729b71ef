"""Metrics: errors of times, slowdowns of choices, confidence intervals over shapes.

Errors are fractions (0.118 is 11.8 %). Slowdowns are ratios of times (1.0 is the best choice).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

WITHIN = 1.10
"""A pick within this factor of the best time counts as correct. This is SEER's own criterion."""
GMAE_FLOOR = 1e-6
"""Minimum relative error in a geometric mean. An exact prediction would otherwise make the mean zero."""


@dataclass(frozen=True, slots=True)
class TimeErrors:
    """Relative errors |predicted / measured − 1| of ``n`` rows, and Spearman's rank correlation of the times.

    The errors are the median, the mean, the 90th percentile, the root mean square, and the geometric mean (GMAE of Lin
    et al.).
    """

    n: int
    median_ape: float
    mape: float
    p90_ape: float
    rmspe: float
    gmae: float
    spearman: float


def time_errors(predicted_us: np.ndarray, measured_us: np.ndarray) -> TimeErrors:
    """Return the errors over rows with two finite times. All errors are NaN (n = 0) if there are no such rows."""
    usable = np.isfinite(predicted_us) & np.isfinite(measured_us)
    predicted, measured = predicted_us[usable], measured_us[usable]
    if not len(measured):
        return TimeErrors(0, *[float("nan")] * 6)
    error = np.abs(predicted / measured - 1)
    return TimeErrors(
        len(error),
        median_ape=float(np.median(error)),
        mape=float(error.mean()),
        p90_ape=float(np.quantile(error, 0.9)),
        rmspe=float(np.sqrt(np.mean(error**2))),
        gmae=float(np.exp(np.mean(np.log(np.maximum(error, GMAE_FLOOR))))),
        spearman=_spearman(predicted, measured),
    )


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    from scipy.stats import spearmanr

    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.asarray(spearmanr(a, b))[0])


@dataclass(frozen=True)
class CandidateRows:
    """The candidate rows of evaluated problems; arrays (rows,).

    ``problem`` are codes 0 … n−1 of the problems. ``time_us`` is NaN if a row is not ``ok``. ``order`` breaks ties
    (lowest first). ``noise`` is the relative difference below which two times count as equal.
    """

    problem: np.ndarray
    time_us: np.ndarray
    ok: np.ndarray
    order: np.ndarray
    noise: float = 0.0

    @property
    def count(self) -> int:
        """Number of problems."""
        return int(self.problem.max()) + 1 if len(self.problem) else 0

    def best_us(self) -> np.ndarray:
        """Return the shortest ok time of each problem, (problems,)."""
        return self._extreme(np.minimum, np.inf)

    def worst_us(self) -> np.ndarray:
        """Return the longest ok time of each problem, (problems,). It is the time of an infeasible pick."""
        return self._extreme(np.maximum, -np.inf)

    def _extreme(self, reduce: np.ufunc, start: float) -> np.ndarray:
        out = np.full(self.count, start)
        reduce.at(out, self.problem[self.ok], self.time_us[self.ok])
        return out


@dataclass(frozen=True)
class EvaluatedPicks:
    """The picks of one model on the evaluated problems; arrays (problems,).

    ``row`` is the picked row's position among the candidates (−1 if the pick is not a candidate). An infeasible pick
    has the slowest ok time. ``chosen`` is False if the model has no pick; such problems are not counted.
    """

    row: np.ndarray
    slowdown: np.ndarray
    infeasible: np.ndarray
    top2_slowdown: np.ndarray
    chosen: np.ndarray


def pick_lowest_scores(candidates: CandidateRows, score: np.ndarray, allowed: np.ndarray) -> EvaluatedPicks:
    """Pick the allowed row with the lowest score of each problem; the lowest ``order`` wins ties.

    ``score`` (rows,) are predicted times; NaN is never picked. ``allowed`` (rows,) marks rows that the model considers
    feasible. If no row is allowed, the pick is infeasible.
    """
    # 1. Rows in the order of problems, then scores, then ``order``: a problem's first row is its pick.
    key = np.where(allowed & np.isfinite(score), score, np.inf)
    ranked = np.lexsort((candidates.order, key, candidates.problem))
    starts = np.searchsorted(candidates.problem[ranked], np.arange(candidates.count))
    first = ranked[starts]
    row = np.where(np.isfinite(key[first]), first, -1)
    # 2. The next row is the second choice, if it belongs to the same problem and may be picked.
    next_row = ranked[np.minimum(starts + 1, len(ranked) - 1)]
    has_second = (candidates.problem[next_row] == np.arange(candidates.count)) & np.isfinite(key[next_row])
    second = np.where(has_second, next_row, row)
    # 3. A problem without any score is not counted.
    scored = np.isfinite(score)
    chosen = np.zeros(candidates.count, dtype=bool)
    chosen[candidates.problem[scored]] = True
    return evaluate_picks(candidates, row, chosen, second)


def evaluate_picks(
    candidates: CandidateRows, row: np.ndarray, chosen: np.ndarray, second: np.ndarray | None = None
) -> EvaluatedPicks:
    """Return the evaluation of picks. ``row`` (problems,) are positions of candidates, −1 for no candidate.

    ``second`` (problems,) are the second choices, by default the picks themselves.
    """
    best, worst = candidates.best_us(), candidates.worst_us()

    def cost(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        feasible = (rows >= 0) & candidates.ok[rows]
        slowdown = np.where(feasible, candidates.time_us[rows], worst) / best
        return np.where(slowdown < 1 + candidates.noise, 1.0, slowdown), feasible

    slowdown, feasible = cost(row)
    top2_slowdown = slowdown if second is None else np.minimum(slowdown, cost(second)[0])
    return EvaluatedPicks(row, slowdown, infeasible=~feasible, top2_slowdown=top2_slowdown, chosen=chosen)


DRAWS, MEDIAN_DRAWS = 1000, 400
"""Bootstrap draws per interval of a mean, and of a difference of medians, which takes longer to compute."""


@lru_cache(maxsize=4)
def resample_weights(groups: int, draws: int, seed: int) -> np.ndarray:
    """Return bootstrap counts, (draws, groups): each draw picks ``groups`` groups with replacement."""
    return np.random.default_rng(seed).multinomial(groups, np.full(groups, 1 / groups), size=draws)


class ConfidenceInterval(NamedTuple):
    """An estimate with its 95 % interval."""

    low: float
    mid: float
    high: float


def shape_interval(
    values: np.ndarray, shape: np.ndarray, *, macro: bool, draws: int = DRAWS, seed: int | None = None
) -> ConfidenceInterval:
    """Return the mean of ``values`` (problems,) with a 95 % interval by bootstrap over shapes.

    ``shape`` (problems,) are names or codes. ``seed`` is the seed of the draws, by default the number of shapes. With
    ``macro`` every shape has equal weight (the mean of its problems); otherwise every problem has.
    """
    names, code = np.unique(shape, return_inverse=True)
    weights = resample_weights(len(names), draws, len(names) if seed is None else seed)
    counts = np.bincount(code).astype(float)
    sums = np.bincount(code, weights=values)
    if macro:  # each shape counts once, with its mean
        sums = sums / counts
        counts = np.ones_like(counts)
    # (draws,) the mean over the shapes of each draw; its quantiles are the interval's ends.
    means = (weights @ sums) / (weights @ counts)
    low, high = np.quantile(means, [0.025, 0.975])
    return ConfidenceInterval(float(low), float(sums.sum() / counts.sum()), float(high))


def median_difference(
    errors: np.ndarray, others: np.ndarray, shape: np.ndarray, other_shape: np.ndarray
) -> ConfidenceInterval:
    """Return the median of ``errors`` minus the median of ``others``, with a 95 % interval by bootstrap over shapes.

    Parameters
    ----------
    errors, others : (rows,), (other rows,)
        Values of two models on rows of the same shapes.
    shape, other_shape : (rows,), (other rows,)
        Names or codes of the rows' shapes. A draw takes both models' rows of a shape together.
    """
    names = np.unique(np.concatenate([shape, other_shape]))
    weights = resample_weights(len(names), MEDIAN_DRAWS, len(names))
    medians = []
    for values, codes in ((errors, np.searchsorted(names, shape)), (others, np.searchsorted(names, other_shape))):
        order = np.argsort(values, kind="stable")
        ordered, code = values[order], codes[order]
        # (draws,) the first value that half of a draw's rows do not exceed.
        at = [np.searchsorted(reached := np.cumsum(weight[code]), reached[-1] / 2) for weight in weights]
        medians.append((float(np.median(values)), ordered[np.array(at)]))
    low, high = np.quantile(medians[0][1] - medians[1][1], [0.025, 0.975])
    return ConfidenceInterval(float(low), medians[0][0] - medians[1][0], float(high))
