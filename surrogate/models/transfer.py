"""Learn from measured problems how good each configuration of a kernel is on an unmeasured problem.

A problem is a GPU with settings and sizes. A configuration is a row of tuning parameters. Its score is one minus the
problem's best time over its time: 0 for the best, 1 for a very slow or failed one. So errors near the best time weigh
most. One part of the answer is the mean score of the same configuration on other problems, weighted by similarity.
Boosted trees give the other part, also for configurations that no problem measured. The similarity of two problems by
their columns, and the shares of both parts, are learned on left-out problems.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np

from surrogate.dataset.threads import threads_for
from surrogate.features.errors import InputError, read_toml
from surrogate.models.trees import ReadyTrees, Trees

ROUNDS, FAILURE_ROUNDS = 120, 40
XGBOOST_SETTINGS: dict[str, object] = read_toml(__file__)
"""Settings of the trees."""
MAX_ROWS = 100_000
"""Maximum measured rows in the fit of the trees. More rows are sampled."""
MAX_FOLDS = 5
MAX_PARAMETERS = 16
"""Maximum parameters with products and ratios: the parameters with most values."""
MAX_TARGETS, MAX_PROBLEMS, MAX_CONFIGURATIONS = 100, 300, 1000
"""Maximum sizes of the tables from which similarity is learned. Larger tables are sampled."""
MIN_WEIGHT = 0.05
"""Weight of a row with score 1; a row with score 0 has about weight 1."""
SHRINKAGE = 0.02
"""Penalty if a column's rate of similarity differs by a factor of e from the mean rate."""
PRIOR_PROBLEMS = 10.0
"""Weight, in problems, of the prior that the mean and the trees have equal shares."""
MAX_RUNNING_SCORE = 1 - 1e-6
"""Maximum score of a configuration that runs; a failed one has 1."""
MAX_SIMILAR = 50
"""Maximum problems in the weighted mean."""
LOG_ERROR = np.float32(2**-17)
"""Difference below which two logarithms are equal. Processors differ in the last digits of a logarithm."""
TINY = 1e-9
ARRAYS_FILE, FACTS_FILE = "transfer.npz", "transfer.json"
Ensembles = tuple[ReadyTrees, ReadyTrees | None]
"""Trees of log(time / best), and trees of the failure probability (None if no configuration failed)."""
ARRAY_NAMES = ("scores", "columns", "centre", "spread", "rates", "shares", "fold_of", "pairs")


@dataclass(frozen=True, slots=True)
class Prior:
    """Expectations for (n,) configurations of a problem before any of them is measured.

    Attributes
    ----------
    score
        (n,) one minus best time over time, in [0, 1]; 1 for a failure.
    failure
        (n,) probability of a failure.
    log_relative
        (n,) log(time / the problem's best time) if the configuration runs.
    """

    score: np.ndarray
    failure: np.ndarray
    log_relative: np.ndarray


@dataclass(frozen=True)
class TransferState:
    """The result of `fit`, as arrays.

    Attributes
    ----------
    scores
        (problems, configurations) float32: NaN if not measured, 1 if failed.
    columns
        (problems, c) columns standardised by ``centre`` and ``spread``; 0 if unknown.
    centre, spread
        (c,) mean and spread of each column.
    rates
        (c,) rates at which similarity falls with the distance in each column.
    shares
        (2,) shares of the mean in scores and in failures. The trees have the remaining shares.
    fold_of
        (problems,) fold with which a problem is left out.
    pairs
        (k, 2) parameters that are multiplied and divided.
    relative
        Trees of log(time / best): for all problems, then without each fold.
    failing
        Trees of the failure probability, in the same order. Empty if no configuration failed.
    width
        Number of columns of the trees.
    """

    scores: np.ndarray
    columns: np.ndarray
    centre: np.ndarray
    spread: np.ndarray
    rates: np.ndarray
    shares: np.ndarray
    fold_of: np.ndarray
    pairs: np.ndarray
    relative: tuple[Trees, ...]
    failing: tuple[Trees, ...]
    width: int

    @classmethod
    def fit(
        cls, time_us: np.ndarray, parameters: np.ndarray, terms: np.ndarray, columns: np.ndarray, *, seed: int = 0
    ) -> "TransferState":
        """Learn from measured problems.

        Parameters
        ----------
        time_us
            (problems, configurations) times in µs; NaN if not measured, inf if failed.
        parameters
            (configurations, p) numbers; texts as codes.
        terms
            (problems, configurations, t) terms that depend on problem and configuration.
        columns
            (problems, c) the problem's sizes in log2 and its GPU's figures; NaN if unknown.
        seed
            Seed of the folds, the samples and the trees.

        Raises
        ------
        InputError
            If no configuration ran.
        """
        if not np.isfinite(time_us).any():
            raise InputError("no configuration ran on any problem; give a table with times")
        random = np.random.default_rng(seed)
        log_relative = _log_relative(time_us)
        running = np.minimum(-np.expm1(-log_relative), MAX_RUNNING_SCORE)
        scores = np.where(np.isinf(log_relative), 1.0, running).astype(np.float32)
        # 1. Standardise the columns, and draw the folds.
        centre, spread = _centre_and_spread(columns)
        standard = _standard(columns, centre, spread)
        folds = min(len(time_us), MAX_FOLDS)
        fold_of = random.permutation(np.arange(len(time_us)) % folds)
        # 2. Fit trees on all measured rows, and on the rows outside each fold.
        problem, configuration = np.nonzero(~np.isnan(log_relative))
        if len(problem) > MAX_ROWS:
            kept = np.sort(random.choice(len(problem), MAX_ROWS, replace=False))
            problem, configuration = problem[kept], configuration[kept]
        pairs = _pairs(parameters)
        design = _design(parameters[configuration], pairs, terms[problem, configuration], columns[problem])
        target = log_relative[problem, configuration]
        failed = np.isinf(target)
        masks = [np.ones(len(target), dtype=bool)]
        masks += [fold_of[problem] != fold for fold in range(folds if folds > 1 else 0)]
        relative, failing = [], []
        for mask in masks:
            rows = np.flatnonzero(mask & ~failed if (mask & ~failed).any() else ~failed)
            relative.append(_boosted(design[rows], target[rows], np.exp(-target[rows]) + MIN_WEIGHT, ROUNDS, seed))
            if failed.any():
                failing.append(_boosted(design[mask], failed[mask], None, FAILURE_ROUNDS, seed))
        # 3. Learn the similarity, then the shares of both parts.
        transfer = cls(
            scores=scores,
            columns=standard,
            centre=centre,
            spread=spread,
            rates=np.ones(columns.shape[1]),
            shares=np.full(2, 0.5),
            fold_of=fold_of,
            pairs=pairs,
            relative=tuple(relative),
            failing=tuple(failing),
            width=design.shape[1],
        )
        if folds == 1:
            return transfer
        if len(centre):
            transfer = replace(transfer, rates=_rates(standard, scores, fold_of, random))
        return replace(transfer, shares=transfer._learned_shares(parameters, terms, columns))

    def prior(self, columns: np.ndarray, parameters: np.ndarray, terms: np.ndarray, number: np.ndarray) -> Prior:
        """Return the expectations for configurations of one problem.

        Parameters
        ----------
        columns
            (c,) columns of the problem.
        parameters, terms
            (n, p) and (n, t), as in `fit`.
        number
            (n,) each configuration's number in training, −1 for a new one.
        """
        trees = self._trees(columns, parameters, terms, self._ready[0])
        mean, coverage = self._mean(columns, number)
        # The share of the mean is scaled by the coverage of the configuration.
        score_share, failure_share = coverage * self.shares[:, None]
        ran = np.isfinite(mean.log_relative)
        log_share = np.where(ran, score_share, 0.0)
        return Prior(
            score=score_share * mean.score + (1 - score_share) * trees.score,
            failure=failure_share * mean.failure + (1 - failure_share) * trees.failure,
            log_relative=log_share * np.where(ran, mean.log_relative, 0.0) + (1 - log_share) * trees.log_relative,
        )

    def _mean(self, columns: np.ndarray, number: np.ndarray, left_out: int = -1) -> tuple[Prior, np.ndarray]:
        """Return the similarity-weighted mean of measured problems (0 if none), and its coverage (n,).

        The problems of the fold ``left_out`` count as unmeasured.

        Coverage is the share of the similar problems that measured the configuration. ``log_relative`` is NaN if it
        never ran.
        """
        distance = np.abs(self.columns - _standard(columns, self.centre, self.spread)) @ self.rates
        distance[self.fold_of == left_out] = np.inf
        similar = np.argsort(distance, kind="stable")[:MAX_SIMILAR]
        weight = np.exp(distance[similar[0]] - distance[similar])
        weight = (weight / weight.sum()).astype(np.float32)
        unknown = np.full((len(similar), 1), np.nan, dtype=np.float32)
        score = np.hstack([self.scores[similar], unknown])[:, number]  # −1 selects the last column: unknown
        has_score = ~np.isnan(score)
        score = np.where(has_score, score, np.float32(0))
        failed = score == 1
        coverage, ran = weight @ has_score, weight @ (has_score & ~failed)
        # Failed or unscored configurations add 0.
        total_log = -weight @ np.log1p(-np.where(failed, np.float32(0), score))
        divisor = np.maximum(coverage, TINY)
        mean_log = np.where(ran > TINY, total_log / np.maximum(ran, TINY), np.nan)
        return Prior(weight @ score / divisor, weight @ failed / divisor, mean_log), coverage

    def _trees(self, columns: np.ndarray, parameters: np.ndarray, terms: np.ndarray, ready: Ensembles) -> Prior:
        """Return the prediction of one of the `_ready` ensembles."""
        relative, failing = ready
        design = _design(parameters, self.pairs, terms, np.broadcast_to(columns, (len(parameters), len(columns))))
        log_relative = np.maximum(relative.inplace_predict(design), 0.0)
        failure = np.clip(failing.inplace_predict(design), 0.0, 1.0) if failing else np.zeros(len(parameters))
        return Prior(1.0 - np.exp(-log_relative) * (1.0 - failure), failure, log_relative)

    def _learned_shares(self, parameters: np.ndarray, terms: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the mean's least-squares shares in scores and failures of left-out problems, (2,).

        The prior is a share of one half with the weight of `PRIOR_PROBLEMS` problems.
        """
        numerator, denominator = np.zeros(2), np.zeros(2)
        problems = np.arange(len(self.scores))
        for target in np.random.default_rng(0).permutation(problems)[:MAX_TARGETS]:
            index = np.flatnonzero(~np.isnan(self.scores[target]))
            fold = int(self.fold_of[target])
            mean, coverage = self._mean(columns[target], index, left_out=fold)
            trees = self._trees(columns[target], parameters[index], terms[target, index], self._ready[1 + fold])
            score = self.scores[target, index]
            weight = coverage * ((1 - score) ** 2 + MIN_WEIGHT)
            parts = [(mean.score, trees.score, score), (mean.failure, trees.failure, score == 1)]
            for part, (of_mean, of_trees, truth) in enumerate(parts):
                numerator[part] += weight @ ((of_mean - of_trees) * (truth - of_trees))
                denominator[part] += weight @ (of_mean - of_trees) ** 2
        prior_weight = PRIOR_PROBLEMS * denominator / min(len(problems), MAX_TARGETS) + TINY
        return np.clip((numerator + 0.5 * prior_weight) / (denominator + prior_weight), 0.0, 1.0)

    @cached_property
    def _ready(self) -> list[Ensembles]:
        """Return `relative` and `failing` for all problems and without each fold, ready to predict."""

        def ready(trees: Trees) -> ReadyTrees:
            return ReadyTrees(lambda: _tolerant(trees), range(self.width))

        pairs = zip(self.relative, self.failing or (None,) * len(self.relative), strict=True)
        return [(ready(run), ready(fail) if fail else None) for run, fail in pairs]

    def to_files(self) -> dict[str, bytes]:
        """Return the arrays as a NumPy archive, each ensemble of trees as an archive, and the rest as JSON."""
        out = io.BytesIO()
        np.savez_compressed(out, **{name: getattr(self, name) for name in ARRAY_NAMES})
        facts = {"relative": len(self.relative), "failing": len(self.failing), "width": self.width}
        files = {ARRAYS_FILE: out.getvalue(), FACTS_FILE: json.dumps(facts, sort_keys=True).encode()}
        for kind in ("relative", "failing"):
            files |= {f"{kind}.{number}.npz": trees.to_bytes() for number, trees in enumerate(getattr(self, kind))}
        return files

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> "TransferState":
        """Return the state from the output of `to_files`. Raise `InputError` if the parts do not fit."""
        facts = json.loads(files[FACTS_FILE])
        with np.load(io.BytesIO(files[ARRAYS_FILE]), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in ARRAY_NAMES}
        relative, failing = (
            tuple(Trees.from_bytes(files[f"{kind}.{number}.npz"]) for number in range(int(facts[kind])))
            for kind in ("relative", "failing")
        )
        problems, columns = arrays["columns"].shape
        lengths = [len(arrays[name]) for name in ("scores", "fold_of", "centre", "spread", "rates")]
        fits = lengths == [problems] * 2 + [columns] * 3 and len(failing) in (0, len(relative))
        if not fits or len(relative) <= int(arrays["fold_of"].max()) * (problems > 1):
            raise InputError("the arrays do not fit one another; the file is damaged")
        return cls(**arrays, relative=relative, failing=failing, width=int(facts["width"]))  # pyright: ignore


def _tolerant(trees: Trees) -> Trees:
    """Return the trees with thresholds below the values of the fit, so that equal values go right on any processor."""
    return replace(trees, value=trees.value - np.where(trees.left < 0, np.float32(0), LOG_ERROR))


def _log_relative(time_us: np.ndarray) -> np.ndarray:
    """Return log(time / the problem's best time), (problems, configurations); inf if failed, NaN if not measured.

    A problem with unmeasured configurations may lack its best one. The mean of the other problems gives the expected
    gap between the best measured configuration and the best of all. This gap is added.
    """
    ran = np.isfinite(time_us)
    log_time = np.log(np.where(ran, time_us, 1.0))
    best = np.where(ran, log_time, np.inf).min(axis=1, keepdims=True)
    relative = np.where(ran, log_time - np.where(np.isfinite(best), best, 0.0), 0.0)
    count, total = ran.sum(axis=0), relative.sum(axis=0)
    for problem in np.flatnonzero((ran.any(axis=0) & np.isnan(time_us)).any(axis=1)):
        others = count - ran[problem]
        mean = np.where(others > 0, (total - relative[problem]) / np.maximum(others, 1), np.inf)
        own_best = mean[ran[problem]].min(initial=np.inf)
        relative[problem] += own_best - mean.min() if np.isfinite(own_best) else 0.0
    return np.where(ran, relative, np.where(np.isnan(time_us), np.nan, np.inf))


def _centre_and_spread(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the spread (c,) of each column's finite values; 0 and 1 if there are none."""
    is_known = np.isfinite(columns)
    count = np.maximum(is_known.sum(axis=0), 1)
    centre = np.where(is_known, columns, 0.0).sum(axis=0) / count
    spread = np.sqrt((np.where(is_known, columns - centre, 0.0) ** 2).sum(axis=0) / count)
    return centre, np.where(spread > TINY, spread, 1.0)


def _standard(columns: np.ndarray, centre: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Return columns as multiples of the spread from the centre; 0 if unknown."""
    return np.nan_to_num((columns - centre) / spread)


def _pairs(parameters: np.ndarray) -> np.ndarray:
    """Return all pairs of positive parameters with several values, as positions (k, 2)."""
    values = np.array([len(np.unique(column)) for column in parameters.T])
    usable = np.flatnonzero((values > 1) & (parameters > 0).all(axis=0))
    chosen = np.sort(usable[np.argsort(-values[usable], kind="stable")][:MAX_PARAMETERS])
    return np.array(list(combinations(chosen.tolist(), 2)), dtype=np.int64).reshape(-1, 2)


def _design(parameters: np.ndarray, pairs: np.ndarray, terms: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return (n, width) float32: parameters, logs of the pairs' products and ratios, terms, the problem's columns."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log2(parameters.astype(np.float32))
    first, second = pairs.T
    products, ratios = logs[:, first] + logs[:, second], logs[:, first] - logs[:, second]
    design = np.hstack([parameters, products, ratios, terms, columns], dtype=np.float32)
    design[~np.isfinite(design)] = np.nan
    return design


def _boosted(design: np.ndarray, target: np.ndarray, weight: np.ndarray | None, rounds: int, seed: int) -> Trees:
    """Return trees that minimise the squared error of ``target`` (n,)."""
    import xgboost

    threads = threads_for(len(design))
    settings = {**XGBOOST_SETTINGS, "nthread": threads, "seed": seed}
    data = xgboost.QuantileDMatrix(design, label=target, weight=weight, max_bin=settings["max_bin"], nthread=threads)
    return Trees.from_booster(xgboost.train(settings, data, rounds).save_raw("json"))


def _rates(columns: np.ndarray, scores: np.ndarray, fold_of: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the rates of similarity, (c,), with which other folds' weighted means are nearest to each problem's
    scores.
    """
    from scipy.optimize import minimize

    # 1. Sample targets, other problems, and configurations.
    problems, configurations = scores.shape
    sources = np.sort(random.permutation(problems)[:MAX_PROBLEMS])
    targets = np.sort(random.permutation(problems)[:MAX_TARGETS])
    sample = np.sort(random.permutation(configurations)[:MAX_CONFIGURATIONS])
    truth, source_scores = scores[np.ix_(targets, sample)], scores[np.ix_(sources, sample)]
    has_score = ~np.isnan(source_scores)
    source_scores = np.where(has_score, source_scores, 0.0).astype(np.float64)
    measured = has_score.astype(np.float64)
    goodness = np.where(np.isnan(truth), 0.0, (1.0 - truth) ** 2 + MIN_WEIGHT)
    truth = np.nan_to_num(truth)
    gap = np.abs(columns[targets][:, None] - columns[sources][None])
    allowed = fold_of[targets][:, None] != fold_of[sources][None]
    start = np.full(columns.shape[1], -np.log(max(columns.shape[1], 1)))

    def loss(log_rates: np.ndarray, scale: float = 1.0) -> tuple[float, np.ndarray]:
        # Weights need no normalisation: the mean divides by their sum.
        rates = np.exp(log_rates)
        distance = np.where(allowed, gap @ rates, np.inf)
        weight = np.exp(distance.min(axis=1, keepdims=True) - distance)
        total = np.maximum(weight @ measured, TINY)
        mean = weight @ source_scores / total
        error = np.where(weight @ measured > TINY, mean - truth, 0.0)
        slope = 2 * goodness * error / total
        by_distance = -weight * (slope @ source_scores.T - (slope * mean) @ measured.T)
        by_rate = np.einsum("ts,tsc->c", by_distance, gap) * rates
        difference = log_rates - start
        value = (goodness * error**2).sum() / scale + SHRINKAGE * (difference @ difference)
        return float(value), by_rate / scale + 2 * SHRINKAGE * difference

    scale = max(loss(start)[0], TINY)
    best = minimize(loss, start, args=(scale,), jac=True, method="L-BFGS-B", bounds=[(-8.0, 4.0)] * len(start))
    return np.exp(best.x)
