"""Every metric, once: errors of times, slowdowns of choices, intervals over shapes.

Errors are fractions (0.118 is 11.8 %), slowdowns are ratios of times (1.0 is the best choice).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

WITHIN = 1.10
"""A pick within this factor of the best counts as right: SEER's own criterion."""
GMAE_FLOOR = 1e-6
"""Least relative error that enters a geometric mean, so that an exact prediction does not make it zero."""


@dataclass(frozen=True, slots=True)
class TimeErrors:
    """Relative errors |predicted / measured − 1| of ``n`` rows, and Spearman's rank correlation of the times.

    The median, the mean, the 90th percentile, the root mean square, and the geometric mean (Lin et al.'s GMAE).
    """

    n: int
    median_ape: float
    mape: float
    p90_ape: float
    rmspe: float
    gmae: float
    spearman: float


def time_errors(predicted_us: np.ndarray, measured_us: np.ndarray) -> TimeErrors:
    """Errors over rows where both times are finite; all NaN (n = 0) where there are none."""
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
class Candidates:
    """The candidate rows of judged problems; each array has one entry per row.

    ``problem`` codes 0 … n−1 of the problems; ``time_us`` NaN where not ``ok``; ``order`` breaks ties (lowest first);
    ``noise`` the relative difference below which two times count as equal.
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
        """(problems,) the least ok time."""
        return self._extreme(np.minimum, np.inf)

    def worst_us(self) -> np.ndarray:
        """(problems,) the greatest ok time: what an infeasible pick is charged."""
        return self._extreme(np.maximum, -np.inf)

    def _extreme(self, reduce: np.ufunc, start: float) -> np.ndarray:
        out = np.full(self.count, start)
        reduce.at(out, self.problem[self.ok], self.time_us[self.ok])
        return out


@dataclass(frozen=True)
class JudgedPicks:
    """The picks of one chooser over judged problems; arrays (problems,).

    ``row`` is the picked row's position among the candidates (−1 where the pick is no candidate); an infeasible pick is
    charged the slowest ok time. ``chosen`` is False where the chooser has no pick: such problems are not counted.
    """

    row: np.ndarray
    slowdown: np.ndarray
    infeasible: np.ndarray
    top2_slowdown: np.ndarray
    chosen: np.ndarray


def choose(candidates: Candidates, score: np.ndarray, allowed: np.ndarray) -> JudgedPicks:
    """Pick, per problem, the allowed row with the least score; ties go to the lowest ``order``.

    ``score`` (rows,) predicted times, NaN is never picked; ``allowed`` (rows,) the chooser's own view of feasibility.
    Where nothing is allowed the pick is infeasible.
    """
    # 1. Rows in the order of problems, then scores, then ``order``: a problem's first row is its pick.
    key = np.where(allowed & np.isfinite(score), score, np.inf)
    ranked = np.lexsort((candidates.order, key, candidates.problem))
    starts = np.searchsorted(candidates.problem[ranked], np.arange(candidates.count))
    first = ranked[starts]
    row = np.where(np.isfinite(key[first]), first, -1)
    # 2. The row behind it is the second choice, where it belongs to the same problem and may be picked, too.
    following = np.minimum(starts + 1, len(ranked) - 1)
    next_row = ranked[following]
    has_second = (candidates.problem[next_row] == np.arange(candidates.count)) & np.isfinite(key[next_row])
    second = np.where(has_second, next_row, row)
    # 3. A problem none of whose rows has a score is not counted.
    scored = np.isfinite(score)
    chosen = np.zeros(candidates.count, dtype=bool)
    chosen[candidates.problem[scored]] = True
    return choose_rows(candidates, row, chosen, second)


def choose_rows(
    candidates: Candidates, row: np.ndarray, chosen: np.ndarray, second: np.ndarray | None = None
) -> JudgedPicks:
    """A chooser whose picks are known: ``row`` (problems,) positions among the candidates, −1 for none of them.

    ``second`` (problems,) are the picks behind them, by default the same ones.
    """
    best, worst = candidates.best_us(), candidates.worst_us()

    def cost(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        feasible = (rows >= 0) & candidates.ok[rows]
        slowdown = np.where(feasible, candidates.time_us[rows], worst) / best
        return np.where(slowdown < 1 + candidates.noise, 1.0, slowdown), feasible

    slowdown, feasible = cost(row)
    top2_slowdown = slowdown if second is None else np.minimum(slowdown, cost(second)[0])
    return JudgedPicks(row, slowdown, infeasible=~feasible, top2_slowdown=top2_slowdown, chosen=chosen)


DRAWS, MEDIAN_DRAWS = 1000, 400
"""Bootstrap draws per interval of a mean, and of a difference of medians, which takes longer."""


@lru_cache(maxsize=4)
def resample_weights(groups: int, draws: int, seed: int) -> np.ndarray:
    """(draws, groups) counts of a bootstrap: each draw picks ``groups`` groups with replacement."""
    return np.random.default_rng(seed).multinomial(groups, np.full(groups, 1 / groups), size=draws)


class ConfidenceInterval(NamedTuple):
    """An estimate with its 95 % interval."""

    low: float
    mid: float
    high: float


def shape_interval(
    values: np.ndarray, shape: np.ndarray, *, macro: bool, draws: int = DRAWS, seed: int | None = None
) -> ConfidenceInterval:
    """Mean of ``values`` (problems,) with a 95 % interval by bootstrap over shapes.

    ``shape`` (problems,) names or codes; ``seed`` of the draws, by default how many shapes there are. ``macro`` gives
    every shape equal weight (mean of its problems' mean); otherwise every problem counts once.
    """
    names, code = np.unique(shape, return_inverse=True)
    weights = resample_weights(len(names), draws, len(names) if seed is None else seed)
    counts = np.bincount(code).astype(float)
    sums = np.bincount(code, weights=values)
    if macro:  # every shape is its mean, and counts once
        sums = sums / counts
        counts = np.ones_like(counts)
    # (draws,) the mean over the shapes of each draw; its quantiles are the interval's ends.
    means = (weights @ sums) / (weights @ counts)
    low, high = np.quantile(means, [0.025, 0.975])
    return ConfidenceInterval(float(low), float(sums.sum() / counts.sum()), float(high))


def median_difference(
    errors: np.ndarray, others: np.ndarray, shape: np.ndarray, other_shape: np.ndarray, draws: int = MEDIAN_DRAWS
) -> ConfidenceInterval:
    """Return the median of ``errors`` less that of ``others``, with a 95 % interval by bootstrap over shapes.

    Parameters
    ----------
    errors, others : (rows,), (other rows,)
        Values of two models on rows of the same shapes.
    shape, other_shape : (rows,), (other rows,)
        Names or codes of the rows' shapes. A draw takes both models' rows of a shape together.
    draws
        Bootstrap draws.
    """
    names = np.unique(np.concatenate([shape, other_shape]))
    weights = resample_weights(len(names), draws, len(names))
    medians = []
    for values, codes in ((errors, np.searchsorted(names, shape)), (others, np.searchsorted(names, other_shape))):
        order = np.argsort(values, kind="stable")
        ordered, code = values[order], codes[order]
        # (draws,) the first value that half of a draw's rows do not exceed.
        at = [np.searchsorted(reached := np.cumsum(weight[code]), reached[-1] / 2) for weight in weights]
        medians.append((float(np.median(values)), ordered[np.array(at)]))
    low, high = np.quantile(medians[0][1] - medians[1][1], [0.025, 0.975])
    return ConfidenceInterval(float(low), medians[0][0] - medians[1][0], float(high))
