"""One sequential search: which configurations of a kernel to measure next.

What is modelled is speed, the best time so far over a configuration's time. A Gaussian process says how it differs from
what the prior expects: smoothly over the logs of the parameters and their products (a Matérn kernel), and linearly in
the prior's level and in how other problems' scores deviate from it, so that the search learns which of them the target
resembles. Its scales come from playing each other problem as the target, then from what is measured. Asked next is the
configuration of the largest expected improvement × probability that it runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.linalg import cho_solve, cholesky
from scipy.optimize import minimize
from scipy.special import ndtr

from surrogate.features.errors import InputError

RANDOM_FIRST = 10
"""Measurements that fill the space where nothing is known beforehand."""
DRAWN = 40
"""Random configurations among which each of those is the farthest from all asked before."""
MOST_MEASURED = 300
"""Measurements that the process holds: the fastest."""
MOST_CANDIDATES = 20_000
"""Configurations that the process looks at: of larger spaces the most promising half of them, others by chance."""
MOST_OTHERS = 8
"""Directions in which other problems' scores deviate from the prior."""
MOST_PARAMETERS = 16
"""Parameters of which products are formed: those with the most values."""
PLAYED_BEST, PLAYED_OTHERS, PLAYED_PROBLEMS = 80, 40, 5
"""Configurations and problems by which the scales are learned before anything is measured."""
LEAST_CHANCE = 0.02
FAILURE_SPREAD, FAILURE_NOISE = 0.5, 0.1
TINY = 1e-10


@dataclass(frozen=True, slots=True)
class Scales:
    """Logs of the process's amplitudes and lengths, and how far each may be from it: ``centre``, ``spread`` (4 + groups,).

    In this order: amplitude of the Matérn kernel, of the linear one in the others' deviations and in the prior's level,
    noise of a measurement, the length of each group of coordinates.
    """

    centre: np.ndarray
    spread: np.ndarray


WARM = np.log([0.15, 0.3, 0.1, 0.02])
COLD = np.log([0.3, 0.3, 0.6, 0.02])
"""Where the scales begin with a prior and without."""


class Search:
    """A search over ``parameters`` (n, p), of which `ask` gives positions.

    ``prior`` (n,) expected scores, one minus best time over time, and ``failure`` (n,) probabilities of failing, as in
    `surrogate.models.transfer.Prior`; ``others`` (g, n) the scores that were measured for other problems, NaN where
    not; ``terms`` (n, t) of physics. The same ``seed`` gives the same search.
    """

    def __init__(
        self,
        parameters: np.ndarray,
        prior: np.ndarray | None = None,
        failure: np.ndarray | None = None,
        others: np.ndarray | None = None,
        terms: np.ndarray | None = None,
        *,
        seed: int = 0,
    ) -> None:
        count = len(parameters)
        self._random = np.random.default_rng(seed)
        self._failure = np.zeros(count) if failure is None else np.clip(failure, 0.0, 1.0)
        self._cold = prior is None
        expected = np.full(count, 0.5) if prior is None else 1.0 - np.clip(prior, 0.0, 1.0)
        self._expected = expected / np.maximum(1.0 - self._failure, LEAST_CHANCE) if RECOVER else expected
        self._expected = np.minimum(self._expected, 1.0)
        self._groups = _groups(np.asarray(parameters, dtype=np.float64), terms)
        speeds = None if others is None or not len(others) else 1.0 - others
        self._deviations = _deviations(speeds, self._expected)
        base = COLD if self._cold else WARM
        centre = np.concatenate([base, np.zeros(len(self._groups))])
        self._scales = Scales(centre, np.full(len(centre), 1.0))
        if speeds is not None and len(speeds) > 2:
            self._scales = self._played(speeds)
        self._logs = self._scales.centre
        self._time_us: dict[int, float | None] = {}
        self._waiting: list[int] = []
        self._asked = np.zeros(count, dtype=bool)
        self._fitted_at = 0
        self._rebuild()

    @property
    def best(self) -> tuple[int, float] | None:
        """Position and time in µs of the fastest configuration measured; None before one ran."""
        ran = [(time_us, index) for index, time_us in self._time_us.items() if time_us is not None]
        return min(ran)[::-1] if ran else None

    def ask(self, count: int = 1) -> np.ndarray:
        """Positions of up to ``count`` configurations that were never asked before, best first; fewer at the end."""
        chosen = []
        for _ in range(min(count, int((~self._asked).sum()))):
            index = self._next()
            self._asked[index] = True
            self._waiting.append(index)
            self._extend(index)
            chosen.append(index)
        return np.array(chosen, dtype=np.int64)

    def tell(self, index: int, time_us: float | None) -> None:
        """A measurement in µs; None where the configuration failed. Raises `InputError` for a time that is none."""
        if not 0 <= index < len(self._asked):
            raise InputError(f"there is no configuration {index}; there are {len(self._asked)}")
        if time_us is not None and not (0 < time_us < np.inf):
            raise InputError(f"time is {time_us} µs; it must be above 0, or None for a failed configuration")
        if index in self._waiting:
            self._waiting.remove(index)
        elif index not in self._time_us:
            self._extend(index)
        self._asked[index] = True
        self._time_us[index] = time_us
        told = len(self._time_us)
        if told >= max(self._fitted_at + 5, 1.33 * self._fitted_at):
            self._fitted_at = told
            self._refit()
            self._rebuild()

    def _next(self) -> int:
        """The most promising configuration that was not asked yet."""
        if self._cold and self._asked.sum() < RANDOM_FIRST:
            return self._farthest()
        open_ = ~self._asked[self._candidates]
        if not open_.any():
            left = np.flatnonzero(~self._asked)
            return int(left[np.argmax(self._expected[left] * (1 - self._failure[left]))])
        mean, spread = self._posterior()
        gain = self._improvement(mean, spread) * (1.0 - self._failing())
        return int(self._candidates[np.argmax(np.where(open_, gain, -np.inf))])

    def _improvement(self, mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
        """(candidates,) expected speed above the fastest's; above the best expected one's while none is measured."""
        if self.best is None and not self._waiting:
            return mean
        asked = self._asked[self._candidates]
        target = 1.0 if self.best else mean[asked].max(initial=0.0)
        z = (mean - target) / spread
        return spread * (z * ndtr(z) + np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)) + TINY * mean

    def _farthest(self) -> int:
        """Of some random configurations the one farthest from all that were asked."""
        left = np.flatnonzero(~self._asked)
        drawn = self._random.choice(left, min(DRAWN, len(left)), replace=False)
        asked = np.flatnonzero(self._asked)
        if not len(asked):
            return int(drawn[np.argmin(self._failure[drawn])])
        points = np.hstack(self._groups)
        gaps = ((points[drawn][:, None] - points[asked][None]) ** 2).sum(axis=2)
        return int(drawn[np.argmax(gaps.min(axis=1) * (1.0 - self._failure[drawn]))])

    def _posterior(self) -> tuple[np.ndarray, np.ndarray]:
        """(candidates,) mean and spread of the speed."""
        solved = self._solved()
        mean = self._expected[self._candidates] + solved @ self._rows[: self._held]
        return mean, np.sqrt(np.maximum(self._variance, TINY))

    def _solved(self) -> np.ndarray:
        """(held,) the residuals, whitened; 0 for a configuration that waits or failed, which is as if it were as fast
        as expected."""
        best = self.best
        solved = np.zeros(self._held)
        if best is None:
            return solved
        rows = self._rows[: self._held, self._at]
        for place, index in enumerate(self._order):
            time_us = self._time_us.get(index)
            if time_us is not None:
                residual = best[1] / time_us - self._expected[index]
                solved[place] = (residual - rows[:place, place] @ solved[:place]) / self._pivots[place]
        return solved

    def _failing(self) -> np.ndarray:
        """(candidates,) probability of failing: the prior's, and what was seen nearby."""
        prior = self._failure[self._candidates]
        told = [place for place, index in enumerate(self._order) if index in self._time_us]
        failed = np.array([self._time_us[self._order[place]] is None for place in told])
        if not failed.any():
            return np.minimum(prior, 1 - LEAST_CHANCE)
        near = self._near[told]
        inner = FAILURE_SPREAD**2 * near[:, self._at[told]] + FAILURE_NOISE**2 * np.eye(len(told))
        weight = np.linalg.solve(inner, failed - self._failure[[self._order[place] for place in told]])
        return np.clip(prior + FAILURE_SPREAD**2 * (weight @ near), 0.0, 1 - LEAST_CHANCE)

    # The process itself

    def _rebuild(self) -> None:
        """Choose the candidates and condition the process on what was asked, by the present scales."""
        smooth, others, level, noise, *lengths = np.exp(self._logs)
        known = self._held_configurations()
        count = len(self._asked)
        self._candidates = np.arange(count)
        if count > MOST_CANDIDATES:
            promise = np.argsort(-self._expected * (1 - self._failure) + self._random.uniform(0, 1e-3, count))
            half = MOST_CANDIDATES // 2
            chance = self._random.choice(promise[half:], half, replace=False)
            self._candidates = np.unique(np.concatenate([promise[:half], chance, known]).astype(np.int64))
        self._place_of = np.full(count, -1)
        self._place_of[self._candidates] = np.arange(len(self._candidates))
        groups = zip(self._groups, lengths, strict=True)
        self._points = np.hstack([group[self._candidates] / length for group, length in groups])
        self._squares = (self._points**2).sum(axis=1)
        linear = [level * self._expected[:, None], others * self._deviations]
        self._linear = np.hstack(linear)[self._candidates]
        self._smooth, self._noise = smooth**2, noise**2
        self._variance = self._smooth + (self._linear**2).sum(axis=1)
        self._held = 0
        self._order: list[int] = []
        self._at = np.zeros(0, dtype=np.int64)
        self._pivots = np.zeros(0)
        self._rows = np.empty((64, len(self._candidates)))
        self._near = np.empty((64, len(self._candidates)))
        for index in known:
            self._extend(int(index))

    def _held_configurations(self) -> list[int]:
        """The fastest of those measured, then those that failed or wait."""
        ran = sorted((time_us, index) for index, time_us in self._time_us.items() if time_us is not None)
        failed = [index for index, time_us in self._time_us.items() if time_us is None]
        return [index for _, index in ran[:MOST_MEASURED]] + failed[-MOST_MEASURED:] + self._waiting

    def _extend(self, index: int) -> None:
        """Condition the process on a configuration: one further row of the Cholesky factor, for all candidates."""
        at = self._place_of[index]
        if at < 0:
            return
        if self._held == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
            self._near = np.concatenate([self._near, np.empty_like(self._near)])
        gaps = self._squares + self._squares[at] - 2 * self._points @ self._points[at]
        near = _matern(np.maximum(gaps, 0.0))
        before = self._rows[: self._held]
        pivot = np.sqrt(max(self._variance[at], TINY) + self._noise)
        row = self._smooth * near + self._linear @ self._linear[at] - before[:, at] @ before
        self._rows[self._held] = row / pivot
        self._near[self._held] = near
        self._variance = self._variance - self._rows[self._held] ** 2
        self._held += 1
        self._order.append(index)
        self._at = np.append(self._at, at)
        self._pivots = np.append(self._pivots, pivot)

    # Its scales

    def _refit(self) -> None:
        """The likeliest scales of what was measured, beginning from what the other problems showed."""
        best = self.best
        if best is None:
            return
        index = np.array([i for i in self._held_configurations() if self._time_us.get(i) is not None])
        speed = best[1] / np.array([self._time_us[i] for i in index], dtype=np.float64)
        table = _Table.of(self._groups, self._expected, self._deviations, index, speed)
        self._logs = _likeliest([table], self._scales)

    def _played(self, speeds: np.ndarray) -> Scales:
        """The likeliest scales of other problems, each played as the target with the others' mean as its prior."""
        tables = []
        chosen = self._random.permutation(len(speeds))[:PLAYED_PROBLEMS]
        for target in chosen:
            rest = np.delete(speeds, target, axis=0)
            usable = np.flatnonzero((speeds[target] > 0) & ~np.isnan(rest).any(axis=0))
            if len(usable) < PLAYED_OTHERS:
                continue
            mean = rest.mean(axis=0)
            usable = usable[np.argsort(-mean[usable], kind="stable")]
            some = self._random.permutation(usable[PLAYED_BEST:])[:PLAYED_OTHERS]
            index = np.concatenate([usable[:PLAYED_BEST], some])
            speed = speeds[target, index]
            tables.append(_Table.of(self._groups, mean, _deviations(rest, mean), index, speed))
        if not tables:
            return self._scales
        return Scales(_likeliest(tables, self._scales), np.full(len(self._scales.centre), REFIT_SPREAD))


RECOVER = True
REFIT_SPREAD = 0.5


@dataclass(frozen=True, slots=True)
class _Table:
    """Measurements (m,) of one problem: ``gaps`` (groups, m, m) squared distances, ``level`` (m,) the prior's speed,
    ``deviations`` (m, d) of the others from it, ``residual`` (m,) of the speed."""

    gaps: np.ndarray
    level: np.ndarray
    deviations: np.ndarray
    residual: np.ndarray

    @classmethod
    def of(
        cls, groups: Sequence[np.ndarray], expected: np.ndarray, deviations: np.ndarray, index: np.ndarray,
        speed: np.ndarray,
    ) -> "_Table":  # fmt: skip
        """The measured ``speed`` (m,) of the configurations ``index`` (m,)."""
        gaps = [((group[index][:, None] - group[index][None]) ** 2).sum(axis=2) for group in groups]
        return cls(np.array(gaps), expected[index], deviations[index], speed - expected[index])


def _likeliest(tables: Sequence[_Table], scales: Scales) -> np.ndarray:
    """Logs of the scales that are likeliest given the tables and where they may be."""

    def loss(logs: np.ndarray) -> float:
        smooth, others, level, noise = np.exp(2 * logs[:4])
        total = 0.5 * (((logs - scales.centre) / scales.spread) ** 2).sum()
        for table in tables:
            covariance = smooth * _matern(np.tensordot(np.exp(-2 * logs[4:]), table.gaps, axes=1))
            covariance += others * table.deviations @ table.deviations.T + level * np.outer(table.level, table.level)
            covariance[np.diag_indices_from(covariance)] += noise + TINY
            factor = cholesky(covariance, lower=True)
            total += 0.5 * table.residual @ cho_solve((factor, True), table.residual)
            total += np.log(np.diagonal(factor)).sum()
        return float(total)

    bounds = [(centre - 3.0, centre + 3.0) for centre in scales.centre]
    return minimize(loss, scales.centre, method="L-BFGS-B", bounds=bounds, options={"maxiter": 25}).x


def _matern(squares: np.ndarray) -> np.ndarray:
    """The Matérn kernel of smoothness 5/2 at squared distances."""
    distance = np.sqrt(5.0 * squares)
    return (1.0 + distance + distance**2 / 3.0) * np.exp(-distance)


def _groups(parameters: np.ndarray, terms: np.ndarray | None) -> list[np.ndarray]:
    """Coordinates of the configurations, (n, d) each: parameters (logs of positive ones), their products, terms."""
    varying = [column for column in parameters.T if (column != column[0]).any()]
    logs = [np.log2(column) for column in varying if (column > 0).all()]
    plain = [column for column in varying if not (column > 0).all()]
    logs.sort(key=lambda column: -len(np.unique(column)))
    products = [first + second for first, second in combinations(logs[:MOST_PARAMETERS], 2)]
    groups = [logs + plain, products]
    if terms is not None and terms.shape[1]:
        groups.append([_filled(column) for column in terms.T.astype(np.float64)])
    return [_scaled(np.column_stack(group)) for group in groups if group] or [np.zeros((len(parameters), 1))]


def _filled(column: np.ndarray) -> np.ndarray:
    """A term, in logs where positive, its median where unknown."""
    known = np.isfinite(column)
    filled = np.where(known, column, np.median(column[known]) if known.any() else 0.0)
    return np.log2(filled) if (filled > 0).all() else filled


def _scaled(columns: np.ndarray) -> np.ndarray:
    """Columns of mean 0, which together give a mean squared distance of 2."""
    spread = columns.std(axis=0)
    return (columns - columns.mean(axis=0)) / np.where(spread > 0, spread, 1.0) / np.sqrt(columns.shape[1])


def _deviations(speeds: np.ndarray | None, expected: np.ndarray) -> np.ndarray:
    """(n, d) how the other problems' speeds deviate from the expected ones, in at most `MOST_OTHERS` directions."""
    if speeds is None:
        return np.zeros((len(expected), 0))
    deviations = np.where(np.isnan(speeds), 0.0, speeds - expected).T
    if deviations.shape[1] <= MOST_OTHERS:
        return deviations
    values, directions = np.linalg.eigh(deviations.T @ deviations)
    return deviations @ directions[:, np.argsort(-values)[:MOST_OTHERS]]
