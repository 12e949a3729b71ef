"""One sequential search: which configurations of a kernel to measure next.

What is modelled is speed, the best time so far over a configuration's time. A Gaussian process says how it differs from
what the prior expects: smoothly over the logs of the parameters and their products (a Matérn kernel), and linearly in
the expected speed itself and in how other problems' speeds deviate from it, so that the search learns which of them the
target resembles. Its scales are the likeliest given what was measured, near values that did well for several kernels.
Asked next is the configuration of the largest expected improvement × probability that it runs.
"""

from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.special import ndtr

from surrogate.features.errors import InputError

RANDOM_FIRST = 10
"""Measurements that fill the space where no prior is given."""
DRAWN = 5
"""Random configurations among which each of those is the farthest from all asked before."""
FIRST_FIT, FIT_GROWTH = 5, 1.4
"""Measurements before the scales are first fitted, and by which factor there are more at the next time."""
MAX_MEASURED = 300
"""Measurements that the process holds: the fastest, and as many failures."""
MAX_CANDIDATES = 20_000
"""Configurations that the process looks at: of larger spaces the most promising half of them, others by chance."""
MAX_DIRECTIONS = 8
"""In which other problems' speeds deviate from the expected ones."""
MAX_PARAMETERS = 16
"""Parameters of which products are formed: those with the most values."""
WITH_PRIOR = np.log([0.2, 0.3, 0.1, 0.02])
WITHOUT_PRIOR = np.log([0.3, 0.3, 0.6, 0.02])
"""Logs of `Scales` but the lengths, which are 1: where the fit begins, and what it is drawn to."""
UNKNOWN_SPEED = 0.5
FAILURE_SPREAD, FAILURE_NOISE = 0.5, 0.1
"""Of the process that says how the share of failures differs from the prior's."""
MIN_CHANCE = 0.001
"""That a configuration runs, whatever failed beside it."""
MIN_RUNNING = 0.5
TINY = 1e-10


class Scales(NamedTuple):
    """Of the process: amplitudes of the Matérn kernel, of the linear one in the deviations and in the expected speed,
    the noise of a measurement, and the length of each group of coordinates (groups,)."""

    smooth: float
    deviations: float
    level: float
    noise: float
    lengths: np.ndarray

    @classmethod
    def of(cls, logs: np.ndarray) -> "Scales":
        """Of their logs (4 + groups,)."""
        smooth, deviations, level, noise = np.exp(logs[:4]).tolist()
        return cls(smooth, deviations, level, noise, np.exp(logs[4:]))


class Search:
    """A search over ``parameters`` (n, p); `ask` gives positions in it.

    ``prior`` (n,) expected scores, one minus best time over time and 1 where failed, and ``failure`` (n,) probabilities
    of failing, as in `surrogate.models.transfer.Prior`; ``others`` (g, n) the scores that other problems measured, NaN
    where they did not; ``terms`` (n, t) of physics. The same ``seed`` and answers give the same search.
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
        self._has_prior = prior is not None
        self._failure = np.zeros(count) if failure is None else np.clip(failure, 0.0, 1.0).astype(np.float64)
        speed = np.full(count, UNKNOWN_SPEED) if prior is None else 1.0 - np.clip(prior, 0.0, 1.0)
        # A score counts failures as hopeless, the process is about what runs; where few do, that is not to be trusted.
        self._expected = np.minimum(speed / np.maximum(1.0 - self._failure, MIN_RUNNING), 1.0).astype(np.float64)
        self._groups = _coordinates(np.asarray(parameters, dtype=np.float64), terms)
        self._deviations = _deviations(others, self._expected)
        start = WITH_PRIOR if self._has_prior else WITHOUT_PRIOR
        self._start = np.concatenate([start, np.zeros(len(self._groups))])
        self._time_us: dict[int, float | None] = {}
        self._waiting: dict[int, None] = {}
        self._asked = np.zeros(count, dtype=bool)
        self._fitted_at = 0
        self._process = self._new_process(self._start)

    @property
    def best(self) -> tuple[int, float] | None:
        """Position and time in µs of the fastest configuration measured; None before one ran."""
        ran = [(time_us, index) for index, time_us in self._time_us.items() if time_us is not None]
        if not ran:
            return None
        time_us, index = min(ran)
        return index, time_us

    def ask(self, count: int = 1) -> np.ndarray:
        """Positions of ``count`` configurations that were never asked before, in order; fewer when none are left.

        What was asked and not told yet counts as being as fast as expected, so that a batch is no list of neighbours.
        """
        chosen: list[int] = []
        while len(chosen) < count and not self._asked.all():
            index = self._next()
            self._asked[index] = True
            self._waiting[index] = None
            self._process.add(index)
            chosen.append(index)
        return np.array(chosen, dtype=np.int64)

    def tell(self, index: int, time_us: float | None) -> None:
        """A measurement in µs, None for a failure, of any configuration, whether asked or not.

        Raises `InputError` for a position outside the space, and for a time that is not above 0 and finite.
        """
        if not 0 <= index < len(self._asked):
            raise InputError(f"there is no configuration {index}; they are numbered from 0 to {len(self._asked) - 1}")
        if time_us is not None and not 0 < time_us < np.inf:
            raise InputError(f"time is {time_us} µs; give a number above 0, or None for a configuration that failed")
        if not self._asked[index]:
            self._asked[index] = True
            self._process.add(index)
        self._waiting.pop(index, None)
        self._time_us[index] = time_us
        if len(self._time_us) >= max(FIRST_FIT, FIT_GROWTH * self._fitted_at):
            self._fitted_at = len(self._time_us)
            self._process = self._new_process(self._likeliest())

    def _next(self) -> int:
        """The most promising configuration that was not asked yet."""
        if not self._has_prior and self._asked.sum() < RANDOM_FIRST:
            return self._farthest()
        process = self._process
        is_left = ~self._asked[process.candidates]
        if not is_left.any():
            left = np.flatnonzero(~self._asked)
            return int(left[np.argmax(self._expected[left] * (1.0 - self._failure[left]))])
        gain = self._improvement() * (1.0 - self._failing())
        return int(process.candidates[np.argmax(np.where(is_left, gain, -np.inf))])

    def _farthest(self) -> int:
        """Of some random configurations the one farthest from all that were asked."""
        left = np.flatnonzero(~self._asked)
        drawn = self._random.choice(left, min(DRAWN, len(left)), replace=False)
        points = np.hstack(self._groups)
        gaps = ((points[drawn][:, None] - points[self._asked][None]) ** 2).sum(axis=2)
        nearest = gaps.min(axis=1, initial=1.0)
        return int(drawn[np.argmax(nearest * (1.0 - self._failure[drawn]))])

    def _improvement(self) -> np.ndarray:
        """(candidates,) by how much more speed than the best has so far is expected to be gained."""
        process, best = self._process, self.best
        residuals = self._residuals(process.order, best)
        mean = self._expected[process.candidates] + process.mean(residuals)
        if best is None and not self._waiting:
            return mean
        asked = self._asked[process.candidates]
        target = 1.0 if best else mean[asked].max(initial=0.0)
        spread = np.sqrt(np.maximum(process.variance, TINY))
        z = (mean - target) / spread
        # Where nothing is gained in all likelihood, the mean decides.
        return spread * (z * ndtr(z) + np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)) + TINY * np.maximum(mean, 0.0)

    def _residuals(self, order: list[int], best: tuple[int, float] | None) -> np.ndarray:
        """What the speeds of these configurations have above the expected ones; NaN where they failed or wait."""
        times = [self._time_us.get(index) for index in order]
        fastest = best[1] if best else 1.0
        speed = np.array([np.nan if time_us is None else fastest / time_us for time_us in times], dtype=np.float64)
        return speed - self._expected[order]

    def _failing(self) -> np.ndarray:
        """(candidates,) probability of failing: the prior's, and what was seen nearby."""
        process = self._process
        prior = self._failure[process.candidates]
        is_told = np.array([index in self._time_us for index in process.order], dtype=bool)
        told = [index for index in process.order if index in self._time_us]
        failed = np.array([self._time_us[index] is None for index in told], dtype=bool)
        if not failed.any():
            return np.minimum(prior, 1.0 - MIN_CHANCE)
        near = process.near if is_told.all() else process.near[is_told]
        covariance = FAILURE_SPREAD**2 * near[:, process.at[is_told]].astype(np.float64)
        covariance[np.diag_indices_from(covariance)] += FAILURE_NOISE**2
        weight = np.linalg.solve(covariance, failed - self._failure[told])
        return np.clip(prior + FAILURE_SPREAD**2 * (weight @ near), 0.0, 1.0 - MIN_CHANCE)

    def _held(self) -> list[int]:
        """What the process is conditioned on: the fastest of those that ran, then those that failed or wait."""
        ran = sorted((time_us, index) for index, time_us in self._time_us.items() if time_us is not None)
        failed = [index for index, time_us in self._time_us.items() if time_us is None]
        return [index for _, index in ran[:MAX_MEASURED]] + failed[-MAX_MEASURED:] + list(self._waiting)

    def _new_process(self, logs: np.ndarray) -> "_Process":
        """The process of these scales on the most promising configurations, conditioned on what was asked."""
        held = self._held()
        count = len(self._asked)
        candidates = np.arange(count)
        if count > MAX_CANDIDATES:
            promise = self._expected * (1.0 - self._failure) + self._random.uniform(0.0, 1e-6, count)
            order = np.argsort(-promise)
            half = MAX_CANDIDATES // 2
            by_chance = self._random.choice(order[half:], half, replace=False)
            candidates = np.union1d(np.concatenate([order[:half], by_chance]), np.array(held, dtype=np.int64))
        scales = Scales.of(logs)
        points = np.hstack([group / length for group, length in zip(self._groups, scales.lengths, strict=True)])
        linear = np.column_stack([scales.level * self._expected, scales.deviations * self._deviations])
        return _Process(candidates, points[candidates], linear[candidates], scales, held)

    def _likeliest(self) -> np.ndarray:
        """Logs of the scales that are likeliest given what was measured, each a factor of e or so about its start."""
        index = [index for index in self._held() if self._time_us.get(index) is not None]
        if not index:
            return self._start
        residual = self._residuals(index, self.best)
        gaps = np.array([((group[index][:, None] - group[index][None]) ** 2).sum(axis=2) for group in self._groups])
        by_deviations = self._deviations[index] @ self._deviations[index].T
        by_level = np.outer(self._expected[index], self._expected[index])
        unit = np.eye(len(index))

        def loss(logs: np.ndarray) -> tuple[float, np.ndarray]:
            smooth, deviations, level, noise = np.exp(2 * logs[:4])
            shrunk = np.exp(-2 * logs[4:])[:, None, None] * gaps
            squares = shrunk.sum(axis=0)
            parts = (smooth * _matern(squares), deviations * by_deviations, level * by_level, (noise + TINY) * unit)
            factor = cholesky(sum(parts, np.zeros_like(unit)), lower=True)
            inverse = cho_solve((factor, True), unit)
            solved = inverse @ residual
            away = logs - self._start
            value = 0.5 * (residual @ solved + away @ away) + np.log(np.diagonal(factor)).sum()
            # The derivative by a scale's log is half the trace of this matrix with the covariance's derivative.
            by_covariance = inverse - np.outer(solved, solved)
            slope = away + 0.0
            slope[:4] += [(by_covariance * part).sum() for part in parts]
            slope[4:] += smooth * np.tensordot(shrunk, by_covariance * _matern_fall(squares), axes=2)
            return float(value), slope

        bounds = [(start - 3.0, start + 3.0) for start in self._start]
        options = {"maxiter": 30}
        return minimize(loss, self._start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x


class _Process:
    """A Gaussian process on ``candidates`` (m,), positions in the space, conditioned on ``held`` and what `add` adds.

    ``variance`` (m,) is what is left of it; ``order`` lists the configurations, ``at`` (held,) where they are among the
    candidates; ``near`` (held, m) their Matérn kernel with the candidates.
    """

    def __init__(
        self, candidates: np.ndarray, points: np.ndarray, linear: np.ndarray, scales: Scales, held: list[int]
    ) -> None:
        self.candidates = candidates
        self.order = list(held)
        self._position = {index: position for position, index in enumerate(candidates.tolist())}
        self.at = np.array([self._position[index] for index in held], dtype=np.int64)
        self._points = points
        self._squares = (points**2).sum(axis=1)
        self._linear = linear
        self._scales = scales
        # Rows of the Matérn kernel and of the Cholesky factor for all candidates; more are made when these are full.
        # Half the bytes take half the time, and their digits are enough beside the noise.
        count = len(held)
        self._near = np.empty((2 * count + 32, len(candidates)), dtype=np.float32)
        self._rows = np.empty_like(self._near)
        for place, at in enumerate(self.at):
            self._near[place] = self._matern_of(at)
        covariance = self._scales.smooth**2 * self._near[:count] + (linear[self.at] @ linear.T).astype(np.float32)
        inner = covariance[:, self.at] + (scales.noise**2 + TINY) * np.eye(count)
        factor = cholesky(inner, lower=True)
        self._rows[:count] = solve_triangular(factor.astype(np.float32), covariance, lower=True)
        self._pivots = np.diagonal(factor).tolist()
        self.variance = scales.smooth**2 + (linear**2).sum(axis=1) - (self._rows[:count] ** 2).sum(axis=0)

    @property
    def near(self) -> np.ndarray:
        return self._near[: len(self.order)]

    def _matern_of(self, at: int) -> np.ndarray:
        """(m,) the Matérn kernel of a candidate with all."""
        squares = self._squares + self._squares[at] - 2.0 * (self._points @ self._points[at])
        return _matern(np.maximum(squares, 0.0))

    def add(self, index: int) -> None:
        """Condition on a further configuration: one more row of the Cholesky factor."""
        at = self._position.get(index)
        if at is None:  # of a large space, told without having been asked
            return
        held = len(self.order)
        if held == len(self._rows):
            self._near = np.concatenate([self._near, np.empty_like(self._near)])
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        self._near[held] = self._matern_of(at)
        covariance = self._scales.smooth**2 * self._near[held] + self._linear @ self._linear[at]
        pivot = float(np.sqrt(max(self.variance[at], 0.0) + self._scales.noise**2 + TINY))
        self._rows[held] = (covariance - self._rows[:held, at] @ self._rows[:held]) / pivot
        self.variance = self.variance - self._rows[held] ** 2
        self.order.append(index)
        self.at = np.append(self.at, at)
        self._pivots.append(pivot)

    def mean(self, residuals: np.ndarray) -> np.ndarray:
        """(m,) the mean given residuals (held,); one that is NaN counts as just what the ones before it foretell."""
        factor = self._rows[: len(self.order), self.at]
        solved = np.zeros(len(self.order))
        for place in np.flatnonzero(~np.isnan(residuals)):
            foretold = factor[:place, place] @ solved[:place]
            solved[place] = (residuals[place] - foretold) / self._pivots[place]
        return solved.astype(np.float32) @ self._rows[: len(self.order)]


def _matern(squares: np.ndarray) -> np.ndarray:
    """The Matérn kernel of smoothness 5/2 at squared distances."""
    distance = np.sqrt(5.0 * squares)
    return (1.0 + distance + distance**2 / 3.0) * np.exp(-distance)


def _matern_fall(squares: np.ndarray) -> np.ndarray:
    """Its derivative by the squared distances, negated."""
    distance = np.sqrt(5.0 * squares)
    return 5.0 / 6.0 * (1.0 + distance) * np.exp(-distance)


def _coordinates(parameters: np.ndarray, terms: np.ndarray | None) -> list[np.ndarray]:
    """Groups of coordinates, each (n, d): the parameters, in logs where positive; their products; the terms."""
    varying = [column for column in parameters.T if (column != column[0]).any()]
    logs = [np.log2(column) for column in varying if (column > 0).all()]
    logs.sort(key=lambda column: -len(np.unique(column)))
    others = [column for column in varying if not (column > 0).all()]
    products = [first + second for first, second in combinations(logs[:MAX_PARAMETERS], 2)]
    physics = [] if terms is None else [_filled(column) for column in terms.T.astype(np.float64)]
    groups = [_scaled(np.column_stack(group)) for group in (logs + others, products, physics) if group]
    return groups or [np.zeros((len(parameters), 1))]


def _filled(column: np.ndarray) -> np.ndarray:
    """A term, in logs where all is positive; the median stands where it is unknown."""
    known = np.isfinite(column)
    filled = np.where(known, column, np.median(column[known]) if known.any() else 0.0)
    return np.log2(filled) if (filled > 0).all() else filled


def _scaled(columns: np.ndarray) -> np.ndarray:
    """Columns of mean 0, so scaled that the mean squared distance over all of them is 2."""
    spread = columns.std(axis=0)
    return (columns - columns.mean(axis=0)) / np.where(spread > 0, spread, 1.0) / np.sqrt(columns.shape[1])


def _deviations(others: np.ndarray | None, expected: np.ndarray) -> np.ndarray:
    """(n, d) how other problems' speeds deviate from the expected ones, at most in `MAX_DIRECTIONS` directions."""
    if others is None:
        return np.zeros((len(expected), 0))
    deviations = np.nan_to_num(1.0 - others - expected).T.astype(np.float64)
    if deviations.shape[1] <= MAX_DIRECTIONS:
        return deviations
    _, directions = np.linalg.eigh(deviations.T @ deviations)
    return deviations @ directions[:, -MAX_DIRECTIONS:]
