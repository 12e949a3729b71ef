"""One sequential search: which configurations of a kernel to measure next.

The search models speed: the best time so far divided by a configuration's time. A Gaussian process models the
difference between this speed and the speed that the prior expects. Its covariance has two parts. A Matérn kernel makes
the difference smooth over the logs of the parameters and of their products. A linear kernel covers the expected speed
and the deviations of other problems' speeds from it, so the search learns which problems the target resembles. The
scales maximise the posterior given the measurements; their prior has values that did well for several kernels. The next
configuration maximises the product of the expected improvement and the probability that the configuration runs.
"""

from collections.abc import Collection, Mapping
from itertools import combinations
from operator import itemgetter

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.special import ndtr
from threadpoolctl import threadpool_limits

RANDOM_FIRST = 10
"""First configurations, spread over the space, if there is no prior."""
RANDOM_DRAWS = 5
"""Number of random configurations among which the search takes the farthest from all earlier ones (`RANDOM_FIRST`)."""
FIRST_FIT, FIT_GROWTH = 5, 1.4
"""Measurements before the first fit of the scales, and the factor on the number of measurements between two fits."""
MAX_MEASURED = 300
"""Maximum number of measurements that condition the process: the fastest ones, and as many failures."""
MAX_CANDIDATES = 20_000
"""Maximum number of configurations in the process: in larger spaces, one half is the most promising ones, the other
half is random."""
MAX_DIRECTIONS = 8
"""Maximum number of directions in which other problems' speeds deviate from the expected speeds."""
MAX_PARAMETERS = 16
"""Maximum number of parameters in products of two: the parameters with the most values."""
WITH_PRIOR = np.log([0.2, 0.3, 0.1, 0.02])
WITHOUT_PRIOR = np.log([0.3, 0.3, 0.6, 0.02])
"""Logs of four scales of the process: the start of the fit and the mean of its prior. They are the amplitude of the
Matérn kernel, the amplitudes of the linear kernel in other problems' deviations and in the expected speed, and the
noise of a measurement. The other scales are the length of each group of coordinates, which starts at 1."""
UNKNOWN_SPEED = 0.5
"""Expected speed of every configuration if there is no prior."""
FAILURE_SPREAD, FAILURE_NOISE = 0.5, 0.1
"""Amplitude and noise of the process that models the difference between the share of failures and the prior's."""
MIN_CHANCE = 0.001
"""Minimum probability that a configuration runs, also if similar ones failed."""
MIN_RUNNING = 0.5
"""Minimum probability to run by which the prior's speed is divided."""
TINY = 1e-10
"""Added to variances, so that no variance is 0."""


class Search:
    """A search over configurations, which are rows of a table of parameters.

    The same ``seed`` and the same measurements give the same search.

    Parameters
    ----------
    parameters
        (n, p) values of the parameters.
    prior, failure
        (n,) expected scores and probabilities of failure, as in `surrogate.models.transfer.Prior`. A score is 1 − best
        time / time, and 1 if the configuration failed.
    others
        (g, n) scores of other problems, NaN if a problem did not measure the configuration.
    terms
        (n, t) analytical terms of the configurations.
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
        # Expected speed if the configuration runs: the prior's score counts failures as speed 0, so divide by the
        # probability to run. `MIN_RUNNING` bounds the divisor, since small probabilities are uncertain.
        self._expected = np.minimum(speed / np.maximum(1.0 - self._failure, MIN_RUNNING), 1.0).astype(np.float64)
        self._groups = _coordinates(np.asarray(parameters, dtype=np.float64), terms)
        self._deviations = _deviations(others, self._expected)
        self._start = np.concatenate([WITH_PRIOR if self._has_prior else WITHOUT_PRIOR, np.zeros(len(self._groups))])
        self._time_us: dict[int, float | None] = {}
        self._pending: dict[int, None] = {}
        self._proposed = np.zeros(count, dtype=bool)
        self._fitted_at = 0
        self._process = self._new_process(self._start)

    @property
    def best(self) -> tuple[int, float] | None:
        """The position and the time in µs of the fastest measured configuration; None before one ran."""
        ran = [(index, time_us) for index, time_us in self._time_us.items() if time_us is not None]
        return min(ran, key=itemgetter(1, 0), default=None)

    def ask(self, count: int = 1, allowed: np.ndarray | None = None) -> np.ndarray:
        """Return the positions of up to ``count`` configurations that were never proposed, the most promising first.

        A proposed configuration without a measurement counts as exactly as fast as expected. So the configurations of
        one batch lie apart. Fewer positions are returned if no configuration is left for which ``allowed`` (n,) is
        True.
        """
        chosen: list[int] = []
        while len(chosen) < count:
            left = ~self._proposed if allowed is None else allowed & ~self._proposed
            if not left.any():
                break
            able = left & (self._failure < 1.0)  # a configuration that cannot run comes last
            left = able if able.any() else left
            chosen.append(self._next(left))
            self.propose(chosen[-1])
        return np.array(chosen, dtype=np.int64)

    def propose(self, index: int) -> None:
        """Treat a configuration as proposed, for example because another process measures it."""
        if not self._proposed[index]:
            self._proposed[index] = True
            self._pending[index] = None
            self._process.add(index)

    def restore(self, running: Collection[int]) -> None:
        """Allow all proposed configurations again that have no measurement and are not in ``running``."""
        if abandoned := self._pending.keys() - running:
            self._proposed[[*abandoned]] = False
            self._pending = {index: None for index in self._pending if index in running}
            self._process = self._new_process(self._logs)

    def tell(self, index: int, time_us: float | None) -> None:
        """Add the time in µs of a configuration, or None if it failed; the configuration need not be a proposed one."""
        self.tell_all({index: time_us})

    def tell_all(self, times_us: Mapping[int, float | None]) -> None:
        """Add the times of several configurations as `tell` does, but fit the scales at most once."""
        new = [index for index in times_us if not self._proposed[index]]
        self._proposed[new] = True
        self._pending = {index: None for index in self._pending if index not in times_us}
        self._time_us |= times_us
        if len(self._time_us) >= max(FIRST_FIT, FIT_GROWTH * self._fitted_at):
            self._fitted_at = len(self._time_us)
            self._process = self._new_process(self._fitted_scales())
        elif len(new) > 1:
            self._process = self._new_process(self._logs)
        elif new:
            self._process.add(new[0])

    def _next(self, left: np.ndarray) -> int:
        """Return the most promising configuration among those for which ``left`` (n,) is True."""
        if not self._has_prior and self._proposed.sum() < RANDOM_FIRST:
            return self._farthest(np.flatnonzero(left))
        process = self._process
        is_left = left[process.candidates]
        if not is_left.any():
            outside = np.flatnonzero(left)
            return int(outside[np.argmax(self._expected[outside] * (1.0 - self._failure[outside]))])
        gain = self._improvement() * (1.0 - self._failure_probability())
        return int(process.candidates[np.argmax(np.where(is_left, gain, -np.inf))])

    def _farthest(self, left: np.ndarray) -> int:
        """Return the one of a few random configurations in ``left`` that is farthest from all proposed ones."""
        drawn = self._random.choice(left, min(RANDOM_DRAWS, len(left)), replace=False)
        points = np.hstack(self._groups)
        gaps = ((points[drawn][:, None] - points[self._proposed][None]) ** 2).sum(axis=2)
        nearest = gaps.min(axis=1, initial=1.0)
        return int(drawn[np.argmax(nearest * (1.0 - self._failure[drawn]))])

    def _improvement(self) -> np.ndarray:
        """Return (candidates,) the expected improvement of the speed over the best one so far."""
        process, best = self._process, self.best
        mean = self._expected[process.candidates] + process.mean(self._residuals(process.order, best))
        if best is None and not self._pending:
            return mean
        proposed = self._proposed[process.candidates]
        target = 1.0 if best else mean[proposed].max(initial=0.0)
        spread = np.sqrt(np.maximum(process.variance, TINY))
        z = (mean - target) / spread
        # If no candidate is likely to improve the speed, the mean decides.
        return spread * (z * ndtr(z) + np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)) + TINY * np.maximum(mean, 0.0)

    def _residuals(self, order: list[int], best: tuple[int, float] | None) -> np.ndarray:
        """Return measured minus expected speeds; NaN if a configuration failed or has no measurement yet."""
        times_us = np.array([self._time_us.get(index) for index in order], dtype=np.float64)  # None becomes NaN
        return (best[1] if best else 1.0) / times_us - self._expected[order]

    def _failure_probability(self) -> np.ndarray:
        """Return (candidates,) the probability of failure by the prior and by failures of similar configurations."""
        process = self._process
        prior = self._failure[process.candidates]
        measured = {row: index for row, index in enumerate(process.order) if index in self._time_us}
        failed = np.array([self._time_us[index] is None for index in measured.values()], dtype=bool)
        if not failed.any():
            return np.minimum(prior, 1.0 - MIN_CHANCE)
        kernel = FAILURE_SPREAD**2 * process.kernel[[*measured]]
        covariance = kernel[:, process.positions[[*measured]]] + FAILURE_NOISE**2 * np.eye(len(kernel))
        weight = np.linalg.solve(covariance, failed - self._failure[[*measured.values()]])
        return np.clip(prior + weight @ kernel, 0.0, 1.0 - MIN_CHANCE)

    def _conditioning(self) -> list[int]:
        """Return the configurations that condition the process: the fastest, the last failures, the pending ones."""
        ran = sorted((time_us, index) for index, time_us in self._time_us.items() if time_us is not None)
        failed = [index for index, time_us in self._time_us.items() if time_us is None]
        return [index for _, index in ran[:MAX_MEASURED]] + failed[-MAX_MEASURED:] + list(self._pending)

    def _new_process(self, logs: np.ndarray) -> "_Process":
        """Return the process with these scales on the most promising configurations, given all proposed ones."""
        self._logs = logs
        indices = self._conditioning()
        count = len(self._proposed)
        candidates = np.arange(count)
        if count > MAX_CANDIDATES:
            promise = self._expected * (1.0 - self._failure) + self._random.uniform(0.0, 1e-6, count)
            order = np.argsort(-promise)
            half = MAX_CANDIDATES // 2
            by_chance = self._random.choice(order[half:], half, replace=False)
            candidates = np.union1d(np.concatenate([order[:half], by_chance]), np.array(indices, dtype=np.int64))
        smooth, deviations, level, noise, *lengths = np.exp(logs).tolist()
        points = np.hstack([group / length for group, length in zip(self._groups, lengths, strict=True)])
        linear = np.column_stack([level * self._expected, deviations * self._deviations])
        variances = np.array([smooth**2, noise**2 + TINY])
        return _Process(candidates, points[candidates], linear[candidates], variances, indices)

    def _fitted_scales(self) -> np.ndarray:
        """Return the logs of the scales with the maximum posterior; the prior's deviation is 1 around the start."""
        index = [index for index in self._conditioning() if self._time_us.get(index) is not None]
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
            shift = logs - self._start
            value = 0.5 * (residual @ solved + shift @ shift) + np.log(np.diagonal(factor)).sum()
            # The derivative by a scale's log is half the trace of this matrix times the derivative of the covariance.
            by_covariance = inverse - np.outer(solved, solved)
            slope = shift + 0.0
            slope[:4] += [(by_covariance * part).sum() for part in parts]
            slope[4:] += smooth * np.tensordot(shrunk, by_covariance * _matern_slope(squares), axes=2)
            return float(value), slope

        bounds = [(start - 3.0, start + 3.0) for start in self._start]
        with threadpool_limits(1, "blas"):  # threads take longer on matrices of this size
            return minimize(loss, self._start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 30}).x


class _Process:
    """A Gaussian process on ``candidates`` (m,), which are positions in the space.

    The configurations ``indices`` and those that `add` adds condition it; ``order`` lists them. ``positions``
    (conditioning,) are their positions among the candidates, and ``variance`` (m,) is the remaining variance.
    ``kernel`` begins with the rows (conditioning, m) of their Matérn kernel with the candidates. ``variances`` are
    those of the Matérn kernel and of a measurement's noise.
    """

    def __init__(
        self, candidates: np.ndarray, points: np.ndarray, linear: np.ndarray, variances: np.ndarray, indices: list[int]
    ) -> None:
        self.candidates = candidates
        self.order = list(indices)
        self._position = {index: position for position, index in enumerate(candidates.tolist())}
        self.positions = np.array([self._position[index] for index in indices], dtype=np.int64)
        self._points = points
        self._squares = (points**2).sum(axis=1)
        self._linear = linear
        self._smooth, self._noise = smooth, noise = variances.tolist()
        # Rows of the Matérn kernel and of the Cholesky factor for all candidates. `add` doubles the arrays when they
        # are full. float32 takes half the time, but its rounding error may exceed the noise, so the factor has float64.
        count = len(indices)
        self.kernel, self._rows = np.empty((2, 2 * count + 32, len(candidates)), dtype=np.float32)
        inner = linear[self.positions] @ linear[self.positions].T + noise * np.eye(count)
        for row, position in enumerate(self.positions):
            kernel = self._matern_of(position)
            self.kernel[row] = kernel
            inner[row] += smooth * kernel[self.positions]
        factor = cholesky(inner, lower=True)
        covariance = smooth * self.kernel[:count] + (linear[self.positions] @ linear.T).astype(np.float32)
        self._rows[:count] = solve_triangular(factor.astype(np.float32), covariance, lower=True)
        self._pivots = np.diagonal(factor).tolist()
        self.variance = smooth + (linear**2).sum(axis=1) - (self._rows[:count] ** 2).sum(axis=0)

    def _matern_of(self, position: int) -> np.ndarray:
        """Return (m,) the Matérn kernel of a candidate with all candidates."""
        squares = self._squares + self._squares[position] - 2.0 * (self._points @ self._points[position])
        return _matern(np.maximum(squares, 0.0))

    def add(self, index: int) -> None:
        """Condition on one more configuration: add one row to the Cholesky factor."""
        position = self._position.get(index)
        if position is None:  # measured, but no candidate of this large space
            return
        count = len(self.order)
        if count == len(self._rows):
            self.kernel, self._rows = (np.vstack([each, np.empty_like(each)]) for each in (self.kernel, self._rows))
        self.kernel[count] = self._matern_of(position)
        covariance = self._smooth * self.kernel[count] + self._linear @ self._linear[position]
        pivot = float(np.sqrt(max(self.variance[position], 0.0) + self._noise))
        self._rows[count] = (covariance - self._rows[:count, position] @ self._rows[:count]) / pivot
        self.variance = self.variance - self._rows[count] ** 2
        self.order.append(index)
        self.positions = np.append(self.positions, position)
        self._pivots.append(pivot)

    def mean(self, residuals: np.ndarray) -> np.ndarray:
        """Return (m,) the mean given residuals (conditioning,); NaN counts as the mean given the earlier residuals."""
        factor = self._rows[: len(self.order), self.positions]
        solved = np.zeros(len(self.order))
        for row in np.flatnonzero(~np.isnan(residuals)):
            expected = factor[:row, row] @ solved[:row]
            solved[row] = (residuals[row] - expected) / self._pivots[row]
        return solved.astype(np.float32) @ self._rows[: len(self.order)]


def _matern(squares: np.ndarray) -> np.ndarray:
    """Return the Matérn kernel of smoothness 5/2 at squared distances."""
    distance = np.sqrt(5.0 * squares)
    return (1.0 + distance + distance**2 / 3.0) * np.exp(-distance)


def _matern_slope(squares: np.ndarray) -> np.ndarray:
    """Return the negative derivative of `_matern` by the squared distances."""
    distance = np.sqrt(5.0 * squares)
    return 5.0 / 6.0 * (1.0 + distance) * np.exp(-distance)


def _coordinates(parameters: np.ndarray, terms: np.ndarray | None) -> list[np.ndarray]:
    """Return groups of coordinates, each (n, d): parameters (as logs if positive), products of two, and terms."""
    varying = [column for column in parameters.T if (column != column[0]).any()]
    logs = [np.log2(column) for column in varying if (column > 0).all()]
    logs.sort(key=lambda column: -len(np.unique(column)))
    others = [column for column in varying if not (column > 0).all()]
    products = [first + second for first, second in combinations(logs[:MAX_PARAMETERS], 2)]
    physics = [] if terms is None else [_filled(column) for column in terms.T.astype(np.float64)]
    groups = [_scaled(np.column_stack(group)) for group in (logs + others, products, physics) if group]
    return groups or [np.zeros((len(parameters), 1))]


def _filled(column: np.ndarray) -> np.ndarray:
    """Return a term with its median in place of unknown values, as logs if all values are positive."""
    is_finite = np.isfinite(column)
    filled = np.where(is_finite, column, np.median(column[is_finite]) if is_finite.any() else 0.0)
    return np.log2(filled) if (filled > 0).all() else filled


def _scaled(columns: np.ndarray) -> np.ndarray:
    """Return the columns with mean 0 and a scale at which the mean squared distance over all columns is 2."""
    spread = columns.std(axis=0)
    return (columns - columns.mean(axis=0)) / np.where(spread > 0, spread, 1.0) / np.sqrt(columns.shape[1])


def _deviations(others: np.ndarray | None, expected: np.ndarray) -> np.ndarray:
    """Return (n, d) other problems' speeds minus the expected ones, along at most `MAX_DIRECTIONS` directions."""
    if others is None:
        return np.zeros((len(expected), 0))
    deviations = np.nan_to_num(1.0 - others - expected).T.astype(np.float64)
    if deviations.shape[1] <= MAX_DIRECTIONS:
        return deviations
    _, directions = np.linalg.eigh(deviations.T @ deviations)
    return deviations @ directions[:, -MAX_DIRECTIONS:]
