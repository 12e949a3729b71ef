"""What measured problems say about an unmeasured one: how good each configuration of a kernel will be there.

A problem is a GPU with settings and sizes, a configuration a row of tuning parameters. A configuration's score is one
minus the problem's best time over its time: 0 for the best, 1 for a hopeless or a failed one, so that the good end
decides. Part of the answer is the mean of other problems' scores for the same configuration, by similarity; the rest
comes from boosted trees, which also know configurations that no problem measured. How similar two problems are by their
columns, and how much each part counts, is learned by leaving measured problems out.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np

from surrogate.dataset.threads import threads_for
from surrogate.features.errors import InputError
from surrogate.models.json_types import input_error_if_damaged
from surrogate.models.trees import ReadyTrees, Trees

ROUNDS, FAILURE_ROUNDS = 120, 40
SETTINGS = {
    "tree_method": "hist",
    "grow_policy": "lossguide",
    "max_depth": 6,
    "max_leaves": 24,
    "max_bin": 64,
    "learning_rate": 0.1,
    "min_child_weight": 0.1,
    "subsample": 0.8,
    "colsample_bynode": 0.4,
    "verbosity": 0,
}
MAX_ROWS = 100_000
"""Measured rows that the trees are fitted on; more are sampled."""
MAX_FOLDS = 5
MAX_PARAMETERS = 16
"""Parameters of which products and ratios are formed: those with the most values."""
MAX_TARGETS, MAX_PROBLEMS, MAX_CONFIGURATIONS = 100, 300, 1000
"""Of the tables from which similarity is learned; larger ones are sampled."""
FLOOR = 0.05
"""Weight of a hopeless row beside 1 for the best one."""
SHRINKAGE = 0.02
"""What it costs a column's rate of similarity to differ by a factor of e from all columns' mean."""
HALVES = 10.0
"""Problems' worth of belief that mean and trees count the same."""
WORST = 1 - 1e-6
"""Score of the slowest configuration that runs; a failed one has 1."""
MAX_SIMILAR = 50
"""Problems whose mean is taken."""
TINY = 1e-9
ARRAYS_FILE, FACTS_FILE = "transfer.npz", "transfer.json"
ARRAYS = ("scores", "columns", "centre", "spread", "rates", "shares", "fold_of", "pairs")


@dataclass(frozen=True, slots=True)
class Prior:
    """What is expected of (n,) configurations of a problem before one of them is measured.

    ``score`` in [0, 1] is one minus best time over time, 1 where it fails; ``failure`` the probability that it fails;
    ``log_relative`` log(time / the problem's best time) where it runs.
    """

    score: np.ndarray
    failure: np.ndarray
    log_relative: np.ndarray


@dataclass(frozen=True)
class TransferState:
    """What `fit` learned, as plain arrays.

    ``scores`` (problems, configurations) float32, NaN where not measured, 1 where failed; ``columns`` (problems, c)
    standardised by ``centre`` and ``spread`` (c,), 0 where unknown; ``rates`` (c,) by which similarity falls with the
    distance in each column; ``shares`` (2,) of the mean in scores and in failures, the rest being the trees';
    ``fold_of`` (problems,) the fold that a problem is left out with; ``pairs`` (k, 2) parameters that are multiplied
    and divided; ``relative`` trees of log(time / best), of all problems and then without each fold; ``failing`` trees
    of the probability of a failure, none where nothing failed; ``width`` their columns.
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

        ``time_us`` (problems, configurations) is NaN where not measured, inf where failed; ``parameters``
        (configurations, p) are numbers, texts as codes; ``terms`` (problems, configurations, t) depend on both;
        ``columns`` (problems, c) are the problem's sizes, in log2, and its GPU's figures; NaN where unknown. Raises
        `InputError` where nothing ran.
        """
        if not np.isfinite(time_us).any():
            raise InputError("no configuration ran on any problem; give a table with times")
        random = np.random.default_rng(seed)
        log_relative = _log_relative(time_us)
        scores = np.where(np.isinf(log_relative), 1.0, np.minimum(-np.expm1(-log_relative), WORST)).astype(np.float32)
        # 1. Columns of mean 0 and spread 1, and the folds.
        centre, spread = _centre_and_spread(columns)
        standard = _standard(columns, centre, spread)
        folds = min(len(time_us), MAX_FOLDS)
        fold_of = random.permutation(np.arange(len(time_us)) % folds)
        # 2. Trees on the measured rows: on all of them, and on those outside each fold.
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
            relative.append(_boosted(design[rows], target[rows], np.exp(-target[rows]) + FLOOR, ROUNDS, seed))
            if failed.any():
                failing.append(_boosted(design[mask], failed[mask], None, FAILURE_ROUNDS, seed))
        # 3. Similarity, then the parts' shares.
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

    def prior(
        self,
        columns: np.ndarray,
        parameters: np.ndarray,
        terms: np.ndarray,
        known: np.ndarray,
        exclude: Sequence[int] = (),
    ) -> Prior:
        """What is expected of configurations ``parameters`` (n, p) of a problem with ``columns`` (c,).

        ``terms`` (n, t) as in `fit`; ``known`` (n,) each one's number among the training configurations, −1 for a new
        one; ``exclude`` training problems that count as unmeasured. Raises `InputError` where these are of several
        folds, or all there are.
        """
        trees = self._trees(columns, parameters, terms, exclude)
        mean, coverage = self._mean(columns, known, exclude)
        # The mean has its share as far as the similar problems measured the configuration.
        score_share, failure_share = coverage * self.shares[:, None]
        ran = np.isfinite(mean.log_relative)
        log_share = np.where(ran, score_share, 0.0)
        return Prior(
            score=score_share * mean.score + (1 - score_share) * trees.score,
            failure=failure_share * mean.failure + (1 - failure_share) * trees.failure,
            log_relative=log_share * np.where(ran, mean.log_relative, 0.0) + (1 - log_share) * trees.log_relative,
        )

    def _mean(self, columns: np.ndarray, known: np.ndarray, exclude: Sequence[int]) -> tuple[Prior, np.ndarray]:
        """The similarity-weighted mean over the problems that measured a configuration, 0 where none did; and (n,) the
        share of the similar problems that did. ``log_relative`` is NaN where it ran nowhere."""
        distance = np.abs(self.columns - _standard(columns, self.centre, self.spread)) @ self.rates
        distance[list(exclude)] = np.inf
        similar = np.argsort(distance, kind="stable")[:MAX_SIMILAR]
        weight = np.exp(distance[similar[0]] - distance[similar])
        weight = (weight / weight.sum()).astype(np.float32)
        unknown = np.full((len(similar), 1), np.nan, dtype=np.float32)
        score = np.hstack([self.scores[similar], unknown])[:, known]  # −1 is the last one
        has_score = ~np.isnan(score)
        score = np.where(has_score, score, np.float32(0))
        failed = score == 1
        coverage, ran = weight @ has_score, weight @ (has_score & ~failed)
        # Those that failed, or have no score, add nothing.
        total_log = -weight @ np.log1p(-np.where(failed, np.float32(0), score))
        divisor = np.maximum(coverage, TINY)
        mean_log = np.where(ran > TINY, total_log / np.maximum(ran, TINY), np.nan)
        return Prior(weight @ score / divisor, weight @ failed / divisor, mean_log), coverage

    def _trees(self, columns: np.ndarray, parameters: np.ndarray, terms: np.ndarray, exclude: Sequence[int]) -> Prior:
        """What the trees say that did not see the excluded problems."""
        folds = set(self.fold_of[list(exclude)].tolist())
        if len(folds) > 1 or (folds and len(self.relative) == 1):
            raise InputError("no trees lack just the excluded problems; exclude some of one fold (see `fold_of`)")
        design = _design(parameters, self.pairs, terms, np.broadcast_to(columns, (len(parameters), len(columns))))
        relative, failing = self._ready[1 + folds.pop() if folds else 0]
        log_relative = np.maximum(relative.inplace_predict(design), 0.0)
        failure = np.clip(failing.inplace_predict(design), 0.0, 1.0) if failing else np.zeros(len(parameters))
        return Prior(1.0 - np.exp(-log_relative) * (1.0 - failure), failure, log_relative)

    def _learned_shares(self, parameters: np.ndarray, terms: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """(2,) the mean's least-squares shares in the scores and failures of problems left out, as if `HALVES` further
        problems had called for a half."""
        above, below = np.zeros(2), np.zeros(2)
        problems = np.arange(len(self.scores))
        random = np.random.default_rng(0)
        for target in random.permutation(problems)[:MAX_TARGETS]:
            index = np.flatnonzero(~np.isnan(self.scores[target]))
            left_out = problems[self.fold_of == self.fold_of[target]].tolist()
            mean, coverage = self._mean(columns[target], index, left_out)
            trees = self._trees(columns[target], parameters[index], terms[target, index], left_out)
            score = self.scores[target, index]
            weight = coverage * ((1 - score) ** 2 + FLOOR)
            for part, (of_mean, of_trees, truth) in enumerate(
                [(mean.score, trees.score, score), (mean.failure, trees.failure, score == 1)]
            ):
                above[part] += weight @ ((of_mean - of_trees) * (truth - of_trees))
                below[part] += weight @ (of_mean - of_trees) ** 2
        further = HALVES * below / min(len(problems), MAX_TARGETS) + TINY
        return np.clip((above + 0.5 * further) / (below + further), 0.0, 1.0)

    @cached_property
    def _ready(self) -> list[tuple[ReadyTrees, ReadyTrees | None]]:
        """`relative` and `failing` of all problems and without each fold, ready to be asked."""
        failing = self.failing or (None,) * len(self.relative)
        columns = range(self.width)
        return [
            (ReadyTrees(lambda run=run: run, columns), fail and ReadyTrees(lambda fail=fail: fail, columns))
            for run, fail in zip(self.relative, failing, strict=True)
        ]

    def to_files(self) -> dict[str, bytes]:
        """The arrays in an archive of NumPy's, the trees in one each, and the rest as JSON."""
        out = io.BytesIO()
        np.savez_compressed(out, **{name: getattr(self, name) for name in ARRAYS})
        facts = {"relative": len(self.relative), "failing": len(self.failing), "width": self.width}
        files = {ARRAYS_FILE: out.getvalue(), FACTS_FILE: json.dumps(facts, sort_keys=True).encode()}
        for kind in ("relative", "failing"):
            files |= {f"{kind}.{number}.npz": trees.to_bytes() for number, trees in enumerate(getattr(self, kind))}
        return files

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> "TransferState":
        """What `to_files` wrote. Raises `InputError` where the parts are damaged or do not fit one another."""
        with input_error_if_damaged("the arrays of measured problems"):
            facts = json.loads(files[FACTS_FILE])
            with np.load(io.BytesIO(files[ARRAYS_FILE]), allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in ARRAYS}
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


def _log_relative(time_us: np.ndarray) -> np.ndarray:
    """(problems, configurations) log(time / the problem's best time), inf where failed, NaN where not measured.

    A problem that measured some configurations only may lack its best one. By the others' mean, the best of what it
    measured is expected to fall short of the best of all by some share, which is added.
    """
    ran = np.isfinite(time_us)
    log_time = np.log(np.where(ran, time_us, 1.0))
    best = np.where(ran, log_time, np.inf).min(axis=1, keepdims=True)
    relative = np.where(ran, log_time - np.where(np.isfinite(best), best, 0.0), 0.0)
    count, total = ran.sum(axis=0), relative.sum(axis=0)
    for problem in np.flatnonzero((ran.any(axis=0) & np.isnan(time_us)).any(axis=1)):
        others = count - ran[problem]
        mean = np.where(others > 0, (total - relative[problem]) / np.maximum(others, 1), np.inf)
        here = mean[ran[problem]].min(initial=np.inf)
        relative[problem] += here - mean.min() if np.isfinite(here) else 0.0
    return np.where(ran, relative, np.where(np.isnan(time_us), np.nan, np.inf))


def _centre_and_spread(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(c,) the mean and the spread of what is known in each column, 0 and 1 where there is none."""
    known = np.isfinite(columns)
    count = np.maximum(known.sum(axis=0), 1)
    centre = np.where(known, columns, 0.0).sum(axis=0) / count
    spread = np.sqrt((np.where(known, columns - centre, 0.0) ** 2).sum(axis=0) / count)
    return centre, np.where(spread > TINY, spread, 1.0)


def _standard(columns: np.ndarray, centre: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Columns in spreads from the centre, at the centre where unknown."""
    return np.nan_to_num((columns - centre) / spread)


def _pairs(parameters: np.ndarray) -> np.ndarray:
    """(k, 2) positions of the positive parameters with several values, each with each."""
    values = np.array([len(np.unique(column)) for column in parameters.T])
    usable = np.flatnonzero((values > 1) & (parameters > 0).all(axis=0))
    chosen = np.sort(usable[np.argsort(-values[usable], kind="stable")][:MAX_PARAMETERS])
    return np.array(list(combinations(chosen.tolist(), 2)), dtype=np.int64).reshape(-1, 2)


def _design(parameters: np.ndarray, pairs: np.ndarray, terms: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """(n, width) float32: parameters, logs of the pairs' products and ratios, terms, columns of the problem."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log2(parameters.astype(np.float32))
    first, second = pairs.T
    plain = len(parameters.T)
    known = plain + 2 * len(pairs)
    design = np.empty((len(parameters), known + terms.shape[1] + columns.shape[1]), dtype=np.float32)
    design[:, :plain] = parameters
    design[:, plain : plain + len(pairs)] = logs[:, first] + logs[:, second]
    design[:, plain + len(pairs) : known] = logs[:, first] - logs[:, second]
    design[:, known : known + terms.shape[1]] = terms
    design[:, known + terms.shape[1] :] = columns
    return np.where(np.isfinite(design), design, np.float32(np.nan))


def _boosted(design: np.ndarray, target: np.ndarray, weight: np.ndarray | None, rounds: int, seed: int) -> Trees:
    """Trees of the least squared error of ``target`` (n,)."""
    import xgboost

    threads = threads_for(len(design))
    data = xgboost.QuantileDMatrix(design, label=target, weight=weight, max_bin=SETTINGS["max_bin"], nthread=threads)
    booster = xgboost.train({**SETTINGS, "nthread": threads, "seed": seed}, data, rounds)
    return Trees.from_booster(booster.save_raw("json"))


def _rates(columns: np.ndarray, scores: np.ndarray, fold_of: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """(c,) rates of similarity with which the other folds' weighted means come nearest to each problem's scores."""
    from scipy.optimize import minimize

    # 1. A sample of targets, of other problems and of configurations.
    problems, configurations = scores.shape
    sources = np.sort(random.permutation(problems)[:MAX_PROBLEMS])
    targets = np.sort(random.permutation(problems)[:MAX_TARGETS])
    sample = np.sort(random.permutation(configurations)[:MAX_CONFIGURATIONS])
    truth, known = scores[np.ix_(targets, sample)], scores[np.ix_(sources, sample)]
    has_score = ~np.isnan(known)
    known = np.where(has_score, known, 0.0).astype(np.float64)
    measured = has_score.astype(np.float64)
    goodness = np.where(np.isnan(truth), 0.0, (1.0 - truth) ** 2 + FLOOR)
    truth = np.nan_to_num(truth)
    gap = np.abs(columns[targets][:, None] - columns[sources][None])
    allowed = fold_of[targets][:, None] != fold_of[sources][None]
    start = np.full(columns.shape[1], -np.log(max(columns.shape[1], 1)))

    def loss(log_rates: np.ndarray, scale: float = 1.0) -> tuple[float, np.ndarray]:
        # Weights need no normalising: the mean divides by their sum.
        rates = np.exp(log_rates)
        distance = np.where(allowed, gap @ rates, np.inf)
        weight = np.exp(distance.min(axis=1, keepdims=True) - distance)
        total = np.maximum(weight @ measured, TINY)
        mean = weight @ known / total
        error = np.where(weight @ measured > TINY, mean - truth, 0.0)
        slope = 2 * goodness * error / total
        by_distance = -weight * (slope @ known.T - (slope * mean) @ measured.T)
        by_rate = np.einsum("ts,tsc->c", by_distance, gap) * rates
        difference = log_rates - start
        value = (goodness * error**2).sum() / scale + SHRINKAGE * (difference @ difference)
        return float(value), by_rate / scale + 2 * SHRINKAGE * difference

    scale = max(loss(start)[0], TINY)
    best = minimize(loss, start, args=(scale,), jac=True, method="L-BFGS-B", bounds=[(-8.0, 4.0)] * len(start))
    return np.exp(best.x)
