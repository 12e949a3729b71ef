"""Run fits that hold out a part of the rows, and fit interval widths and errors from their predictions.

Source of the widths (`surrogate.uncertainty.intervals.Widths`): Lei et al. 2018, "Distribution-free predictive
inference for regression": split conformal prediction with locally weighted scores |log error| / width. Rows of one
shape have similar errors, so shapes are the sample. Ranks for finite samples count shapes. Every shape is scored by
widths that were fitted on other shapes, and the last constant comes from these scores.

The errors on unmeasured GPUs come from fits that hold out a GPU with its architecture, and the errors of kernel groups
in settings in which they were never measured from fits that hold out these rows. Grouped and depthwise convolutions run
kernels of their own: a model that saw them in fp32 may be wrong by far about their kernels in fp16.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from math import log
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import pandas as pd
from msgspec import structs

from surrogate.dataset import problems
from surrogate.dataset.problems import device_names, joined, kernel_groups, row_groups, shape_columns, shape_names
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_labels, label_folds
from surrogate.dataset.threads import in_parallel, workers_for
from surrogate.features import InputError
from surrogate.features.families import Family
from surrogate.models.base import ProgressCallback, TimeModel, fit_with_progress, holdout_times
from surrogate.uncertainty import intervals
from surrogate.uncertainty.domain import MIN_SHAPES, PER_DOUBLING, distances_to, training_shapes_of
from surrogate.uncertainty.intervals import (
    ALL,
    COVERAGE,
    NORMAL,
    STUDENT,
    ErrorDistribution,
    HeldOutGpuErrors,
    StepFunction,
    WidthKey,
    Widths,
    probability_best,
)

MAX_CONCURRENT_ROWS = 2_000_000
"""Maximum rows of all fits that run at the same time. Each fit holds its own rows."""

Begin = Callable[[str, int], ProgressCallback]
"""Function that is called before a fit with the fit's name and row count. It returns the fit's progress callback."""
Split = tuple[np.ndarray, np.ndarray]
"""Positions of the training rows, and positions of the held-out rows."""


def shape_splits(
    rows: Rows, count: int, seed: int, fits: int | None = None, max_rows: int | None = None
) -> list[Split]:
    """Return the first ``fits`` of ``count`` folds by shape (None: all).

    A fold is trained on at most ``max_rows`` random rows (None: all). Raise `InputError` if no ok row can be held out.
    """
    splits = []
    for train, holdout in islice(label_folds(fold_labels(shape_names(rows.frame, rows.family), count, seed)), fits):
        if max_rows is not None and len(train) > max_rows:
            train = np.sort(np.random.default_rng(seed).permutation(train)[:max_rows])
        splits.append((train, holdout))
    if not any(rows.ok[train].any() and rows.ok[holdout].any() for train, holdout in splits):
        raise InputError("all rows have one shape; held-out errors and intervals need at least two shapes")
    return splits


def large_split(rows: Rows) -> list[Split]:
    """Return the split that holds out the larger half of a described kernel's problems, by the product of their sizes.

    The list is empty for another family, and if a half has a single shape.
    """
    work = np.log2(np.maximum(rows.sizes, 1)).sum(axis=1)
    is_small = work <= np.median(work[np.unique(rows.shape, return_index=True)[1]])
    if not rows.family.parameter_names or min(len(np.unique(rows.shape[half])) for half in (is_small, ~is_small)) < 2:
        return []
    return [(np.flatnonzero(is_small), np.flatnonzero(~is_small))]


class Fit(NamedTuple):
    """An unfitted model, the positions of its training rows, and the positions of its held-out rows (maybe none)."""

    name: str
    model: TimeModel
    train: np.ndarray
    holdout: np.ndarray


FitTimes = tuple[np.ndarray, np.ndarray] | None
"""Times in µs of the held-out rows and their distances to the training rows. None if the fit had no training rows."""


def run_fits(rows: Rows, fits: Sequence[Fit], begin: Begin, keep: Path | None = None) -> list[FitTimes]:
    """Run the fits in parallel, and return the answers of each. A fit without held-out rows leaves its model fitted.

    The number of concurrent fits depends on CPUs and memory. ``keep`` is a folder of finished fits (`holdout_times`).
    """

    def run(fit: Fit, stopped: object) -> FitTimes:
        on_progress = begin(fit.name, len(fit.train))
        train_rows = rows.take(fit.train)
        if not len(fit.holdout):
            fit_with_progress(fit.model, train_rows, on_progress)
        if not (train_rows.ok.any() and len(fit.holdout)):
            return None
        holdout_rows = rows.take(fit.holdout)
        predicted_us = holdout_times(fit.model, train_rows, holdout_rows, keep, on_progress)
        return predicted_us, distances_to(training_shapes_of(train_rows), holdout_rows)

    largest = max((len(fit.train) for fit in fits), default=1)
    return in_parallel(run, fits, workers_for(min(len(fits), max(1, MAX_CONCURRENT_ROWS // largest))))


def combined_answers(rows: Rows, splits: Sequence[Split], answers: Sequence[FitTimes]) -> tuple[np.ndarray, np.ndarray]:
    """Return times and distances (rows,) of all splits.

    Rows in no split, and rows of a fit without training rows, get NaN.
    """
    predicted, distance = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    for (_, holdout), answer in zip(splits, answers, strict=True):
        if answer is not None:
            predicted[holdout], distance[holdout] = answer
    return predicted, distance


MIN_FACTOR_SHAPES = 7
"""Minimum held-out shapes for factors of distance and time, and for a base per candidate."""
POOLED_SHAPES = 20
"""With this many shapes, a key's own quantile and its parent's have equal weights (in logs)."""
DISTANCE_BANDS = 6
TIME_BANDS = 5
MIN_ERROR = 1e-9
"""Minimum error in log time. Smaller errors are rounding errors, and an exact model must not divide by zero."""
MIN_WIDTH = 1e-4
"""Minimum base. A model without errors on a few rows is not perfect."""
PER_DOUBLING_BOUNDS = (0.05, log(2.0))
"""Bounds of the half width per doubling: times that follow the work and constant ones differ by a factor of 2."""
FOLDS = 5
"""Number of folds of the shapes. Each fold is scored by widths that were fitted on the other folds."""
SHARE_BOUNDS = (0.02, 2.0)
"""Limits of the search for the independent share of errors."""
SHARE_PROBLEMS = 1000
"""Maximum problems in the likelihood of the independent share. More problems hardly change the share."""
MIN_LIKELIHOOD = 1e-6
"""Minimum likelihood of a problem's best candidate, so that one outlier does not decide the share."""


@dataclass(frozen=True)
class HeldOutScores:
    """Held-out rows with a predicted and a measured time, as arrays (rows,).

    Attributes
    ----------
    position
        Position in the original rows.
    error
        |log(predicted / measured)|.
    predicted_us
        Predicted time in µs.
    distance
        Distance to the training data.
    shape
        Code of the shape.
    gpu
        Registry name of the GPU.
    candidate
        Name of the candidate.
    dtype
        Element type.
    is_described
        True if the candidates are configurations of a described kernel.
    """

    position: np.ndarray
    error: np.ndarray
    predicted_us: np.ndarray
    distance: np.ndarray
    shape: np.ndarray
    gpu: np.ndarray
    candidate: np.ndarray
    dtype: np.ndarray
    is_described: bool = False

    @classmethod
    def of(cls, rows: Rows, predicted_us: np.ndarray, measured_us: np.ndarray, distance: np.ndarray) -> Self:
        """Return the rows with both times. Raise `InputError` if there are none."""
        position = np.flatnonzero(np.isfinite(predicted_us) & np.isfinite(measured_us))
        if not len(position):
            raise InputError("no held-out row has a predicted and a measured time; intervals need at least one")
        return cls(
            position=position,
            error=np.maximum(np.abs(np.log(predicted_us[position] / measured_us[position])), MIN_ERROR),
            predicted_us=predicted_us[position],
            distance=distance[position],
            shape=np.unique(rows.shape[position], return_inverse=True)[1],
            gpu=device_names(rows.frame)[position],
            candidate=rows.candidate[position],
            dtype=dtypes_of(rows)[position],
            is_described=bool(rows.family.parameter_names),
        )

    def take(self, index: np.ndarray) -> "HeldOutScores":
        """Return the rows at these positions, or of a boolean mask."""
        return HeldOutScores(*(getattr(self, f.name)[index] for f in fields(self)[:-1]), is_described=self.is_described)

    def half_widths(self, widths: Widths) -> np.ndarray:
        """Return the half widths (rows,) of these rows by ``widths``."""
        return widths.at(self.gpu, self.candidate, self.dtype, self.distance, self.predicted_us)


def dtypes_of(rows: Rows) -> np.ndarray:
    """Return the element types (rows,), or "" for a family without them."""
    return rows.frame["dtype"].to_numpy(str) if "dtype" in rows.frame else np.full(len(rows), "")


def fit_widths(
    rows: Rows,
    predicted_us: np.ndarray,
    measured_us: np.ndarray,
    distance: np.ndarray,
    evaluated: np.ndarray | None = None,
) -> Widths:
    """Fit the interval widths on held-out predictions.

    Parameters
    ----------
    rows
        Rows of one family.
    predicted_us, measured_us
        (rows,) times in µs. Rows without both times are left out.
    distance
        (rows,) distance to the training data of the fold that held the row out (`distances_to`).
    evaluated
        (rows,) True for rows from which the independent share may be learned: all rows of problems whose fastest
        candidate is known. None: all rows.

    Raises
    ------
    InputError
        If no row has both times.

    References
    ----------
    Lei et al. 2018, "Distribution-free predictive inference for regression".
    """
    scores = HeldOutScores.of(rows, predicted_us, measured_us, distance)
    widths, half_width = _with_final_constant(scores)
    counted = np.ones(len(scores.error), dtype=bool) if evaluated is None else evaluated[scores.position]
    part = scores.take(counted)
    measured, problem = (values[part.position] for values in (measured_us, rows.problem))
    columns = part.predicted_us, measured, half_width[counted], problem, part.shape
    share = fit_independent_share(*columns, errors_of(rows.family))
    return replace(widths, independent_share=share)


def held_out_half_widths(
    rows: Rows, predicted_us: np.ndarray, measured_us: np.ndarray, distance: np.ndarray
) -> np.ndarray:
    """Return half widths (rows,) from widths that were fitted on other shapes, to measure coverage.

    Rows without both times get NaN.
    """
    scores = HeldOutScores.of(rows, predicted_us, measured_us, distance)
    out = np.full(len(rows), np.nan)
    out[scores.position] = _cross_fitted(scores, lambda others: _with_final_constant(others)[0], seed=1)
    return out


def _cross_fitted(scores: HeldOutScores, fit: Callable[[HeldOutScores], Widths], seed: int) -> np.ndarray:
    """Return half widths (rows,) by ``fit`` on the other folds of the shapes; NaN if there is only one shape."""
    label = fold_labels(scores.shape.astype(str), FOLDS, seed)
    cross_fitted = np.full(len(label), np.nan)
    for train, holdout in label_folds(label):
        cross_fitted[holdout] = scores.take(holdout).half_widths(fit(scores.take(train)))
    return cross_fitted


def _with_final_constant(scores: HeldOutScores) -> tuple[Widths, np.ndarray]:
    """Return widths whose last constant comes from cross-fitted scores, and the cross-fitted half widths (rows,).

    A described kernel has too many configurations, and too few shapes, for a width per configuration. It gets one
    width for each GPU. If another family has fewer than `MIN_FACTOR_SHAPES` shapes, one width covers nine in ten of
    their rows: factors would multiply the error of the worst shape with itself.
    """
    if scores.is_described:
        bases = {ALL: max(_few_shapes_quantile(scores.error, scores.shape), MIN_WIDTH)}
        for (name,), positions in row_groups(pd.DataFrame({"gpu": scores.gpu}), ("gpu",)):
            own = max(_few_shapes_quantile(scores.error[positions], scores.shape[positions]), MIN_WIDTH)
            pooled = pooled_base(own, bases[ALL], _shape_count(scores, positions))
            bases[WidthKey(name, ALL.candidate)] = max(own, pooled)
        widths = Widths(bases)
        return widths, scores.half_widths(widths)
    if len(np.unique(scores.shape)) < MIN_FACTOR_SHAPES:
        widths = Widths({ALL: max(float(np.quantile(scores.error, COVERAGE)), MIN_WIDTH)})
        return widths, scores.half_widths(widths)
    widths = _fitted(scores)
    cross_fitted = _cross_fitted(scores, _fitted, seed=0)
    if np.isnan(cross_fitted).all():  # one shape: cross-fitting is impossible
        return widths, scores.half_widths(widths)
    # Keys with few shapes get their own constant: the error of a new shape is often larger than theirs.
    remaining = scores.error / cross_fitted
    last = last_of_few = conformal_quantile(remaining, scores.shape)
    few = {key: positions for key, positions in _rows_by_key(scores) if _shape_count(scores, positions) < MIN_SHAPES}
    is_few = np.zeros(len(remaining), dtype=bool)
    is_few[np.concatenate([np.empty(0, dtype=np.int64), *few.values()])] = True
    if few:
        last_of_few = max(last, _few_shapes_quantile(remaining[is_few], scores.shape[is_few]))
    factors = {key: last_of_few if key in few else last for key in widths.by_key}
    bases = {key: max(base * factors[key], MIN_WIDTH) for key, base in widths.by_key.items()}
    widths = replace(widths, by_key=bases, max_errors=_max_errors(scores))
    limits = np.array([widths.limit(name) for name in scores.candidate])
    return widths, np.minimum(cross_fitted * np.where(is_few, last_of_few, last), limits)


def _max_errors(scores: HeldOutScores) -> dict[str, float]:
    """Return the largest error of each candidate and of all, for those with enough shapes (`Widths.max_errors`)."""
    frame = pd.DataFrame({"candidate": scores.candidate})
    of_candidate = {name: rows for (name,), rows in row_groups(frame, ("candidate",))}
    groups = {ALL.candidate: np.arange(len(frame)), **of_candidate}
    enough = {name: rows for name, rows in groups.items() if _shape_count(scores, rows) >= MIN_SHAPES}
    return {name: max(float(scores.error[rows].max()), MIN_WIDTH) for name, rows in enough.items()}


def fit_per_doubling(rows: Rows, split: Split, answer: FitTimes, half_width: float) -> float:
    """Return `Domain.per_doubling` from the ``answer`` of a fit on the smaller problems (`large_split`).

    It is the half width that covers the larger problems, less the ``half_width`` inside the measured ones, divided by
    the median distance.
    """
    part = rows.take(split[1])
    references = training_shapes_of(rows.take(split[0])).values()
    doublings = np.min([each.doublings_outside(part.sizes).sum(axis=1) for each in references], axis=0)
    outside = part.ok & (doublings > 0)
    if answer is None or not outside.any():
        return PER_DOUBLING
    error = np.abs(np.log(answer[0][outside] / part.time_us[outside]))
    excess = _few_shapes_quantile(error, part.shape[outside]) - half_width
    return float(np.clip(excess / np.median(doublings[outside]), *PER_DOUBLING_BOUNDS))


def conformal_quantile(scores: np.ndarray, shape: np.ndarray) -> float:
    """Return the score that covers `COVERAGE` of the rows of a new shape, from scores and shape codes (rows,).

    With n scores of K shapes the rank is ⌈n · COVERAGE · (K + 1) / K⌉, at most n. If every row is a shape of its own,
    this is the rank ⌈(n + 1) · COVERAGE⌉ of split conformal prediction.
    """
    shapes = len(np.unique(shape))
    rank = int(np.ceil(round(len(scores) * COVERAGE * (shapes + 1) / shapes, 9)))
    return float(np.sort(scores)[min(rank, len(scores)) - 1])


def _few_shapes_quantile(scores: np.ndarray, shape: np.ndarray) -> float:
    """Return `conformal_quantile`, or the largest of the shapes' own quantiles if there are too few shapes.

    A new shape is worse than all K shapes with a probability of 1 / (K + 1).
    """
    shapes = np.unique(shape)
    if COVERAGE * (len(shapes) + 1) <= len(shapes):
        return conformal_quantile(scores, shape)
    return max(float(np.quantile(scores[shape == number], COVERAGE)) for number in shapes)


def pooled_base(base: float, parent: float, shapes: int) -> float:
    """Return a key's quantile, shrunk (in logs) towards its parent's if the key has few shapes."""
    weight = shapes / (shapes + POOLED_SHAPES) if shapes >= MIN_SHAPES else 0.0
    return base**weight * parent ** (1 - weight)


def _fitted(scores: HeldOutScores) -> Widths:
    """Fit both factors, then the bases on the remaining errors."""
    typical = pd.Series(scores.error).groupby(scores.candidate).transform("median").to_numpy()
    by_distance = _steps(scores.distance, scores.error / typical, scores.shape, DISTANCE_BANDS, rising=True)
    remaining = scores.error / by_distance.at(scores.distance)
    by_time = _steps(scores.predicted_us, remaining / typical, scores.shape, TIME_BANDS, rising=False)
    return Widths(_bases(scores, remaining / by_time.at(scores.predicted_us)), by_distance, by_time)


def _bases(scores: HeldOutScores, remaining: np.ndarray) -> dict[WidthKey, float]:
    """Return the bases of all rows, of each candidate, of the candidate on a GPU, and of an element type there.

    No base is narrower than the quantile of its own errors. Few shapes do not show that errors are small, but they can
    show that errors are large. Below `MIN_SHAPES`, the rank for a new shape would be the last one, which one outlier
    decides.
    """
    bases = {ALL: max(conformal_quantile(remaining, scores.shape), MIN_WIDTH)}
    for key, positions in _rows_by_key(scores):
        shapes = _shape_count(scores, positions)
        base = max(conformal_quantile(remaining[positions], scores.shape[positions]), MIN_WIDTH)
        parents = (WidthKey(key.gpu if key.dtype else None, key.candidate), WidthKey(None, key.candidate), ALL)
        parent = next(bases[parent] for parent in parents if parent in bases and parent != key)
        own_base = base if shapes >= MIN_SHAPES else np.quantile(remaining[positions], COVERAGE)
        bases[key] = float(max(own_base, pooled_base(base, parent, shapes)))
    return bases


def _rows_by_key(scores: HeldOutScores) -> Iterator[tuple[WidthKey, np.ndarray]]:
    """Yield each key with the positions of its rows: candidates, candidates on a GPU, then also by element type.

    A parent comes before its children.
    """
    frame = pd.DataFrame({"candidate": scores.candidate, "gpu": scores.gpu, "dtype": scores.dtype})
    for columns in (("candidate",), ("candidate", "gpu"), ("candidate", "gpu", "dtype")):
        for values, positions in row_groups(frame, columns):
            yield WidthKey(**{"gpu": None, **dict(zip(columns, values, strict=True))}), positions


def _shape_count(scores: HeldOutScores, positions: np.ndarray) -> int:
    """Return the number of shapes of the rows at ``positions``."""
    return len(np.unique(scores.shape[positions]))


def _steps(x: np.ndarray, score: np.ndarray, shape: np.ndarray, bands: int, *, rising: bool) -> StepFunction:
    """Return the quantiles of ``score`` in bands of ``x``, relative to their geometric mean.

    Each band holds about the same number of shapes. If ``rising``, neighbouring bands are pooled so that the factors
    never fall.
    """
    from sklearn.isotonic import isotonic_regression

    # 1. Edges of bands with equal shares of the shapes. All shapes have the same weight.
    weight = 1 / np.bincount(shape)[shape]
    order = np.argsort(x, kind="stable")
    reached = np.cumsum(weight[order]) / weight.sum()
    cuts = x[order][np.searchsorted(reached, np.arange(1, bands) / bands)]
    edges = np.unique(cuts[np.isfinite(cuts) & (cuts > x.min())])
    # 2. The quantile of each band.
    band = np.searchsorted(edges, x, side="right")
    shapes_in_band = np.bincount(band, weights=weight, minlength=len(edges) + 1)
    level = [conformal_quantile(score[band == b], shape[band == b]) for b in range(len(shapes_in_band))]
    log_level = np.log(level)
    if rising:
        log_level = isotonic_regression(log_level, sample_weight=shapes_in_band)
    # 3. Relative to the average.
    values = np.exp(log_level - np.average(log_level, weights=shapes_in_band))
    return StepFunction(tuple(map(float, edges)), tuple(map(float, values)))


def errors_of(family: Family) -> ErrorDistribution:
    """Return the distribution of the independent errors of a family's candidates."""
    return NORMAL if family.parameter_names else STUDENT


def fit_independent_share(
    predicted_us: np.ndarray,
    measured_us: np.ndarray,
    half_width: np.ndarray,
    problem: np.ndarray,
    shape: np.ndarray,
    errors: ErrorDistribution = STUDENT,
) -> float:
    """Fit the share of a half width that is independent between the candidates of one problem.

    Under the fitted share, the measured fastest candidates have the maximum likelihood. All shapes have the same
    weight. The share also corrects a selection effect: the candidate with the shortest predicted time is often the
    candidate whose error is most negative.

    Parameters
    ----------
    predicted_us, measured_us
        (rows,) times in µs.
    half_width
        (rows,) half widths in log time.
    problem, shape
        (rows,) codes.
    errors
        As in `probability_best`.

    Returns
    -------
    float
        The share, within `SHARE_BOUNDS`; 1 if no problem has two rows.
    """
    from scipy.optimize import OptimizeResult, minimize_scalar

    choices = [rows for rows in problems.rows_by_code(problem) if len(rows) > 1]
    if not choices:
        return 1.0
    picked = np.random.default_rng(0).permutation(len(choices))[:SHARE_PROBLEMS]
    drawn = [choices[i] for i in picked]
    cases = [(np.log(predicted_us[rows]), half_width[rows], int(measured_us[rows].argmin())) for rows in drawn]
    shapes = np.unique([shape[choices[i][0]] for i in picked], return_inverse=True)[1]
    weight = 1 / np.bincount(shapes)[shapes]

    def loss(log_share: float) -> float:
        likely = [probability_best(time, width, np.exp(log_share), errors)[best] for time, width, best in cases]
        return -float(weight @ np.log(np.maximum(likely, MIN_LIKELIHOOD)))

    best: OptimizeResult = minimize_scalar(loss, bounds=np.log(SHARE_BOUNDS), method="bounded", options={"xatol": 0.02})
    return float(np.exp(best.x))


MIN_GPUS = 3
"""Minimum number of GPUs that show how GPUs differ."""
MIN_ARCHITECTURES = 2
"""Minimum number of architectures to hold one out. With two, the margin for an unmeasured GPU is a quarter."""
NEW_GPU_MARGIN = 0.5
"""Margin for an unmeasured GPU: a share of the largest half width, divided by the number of held-out GPUs.

Each GPU and element type was tested with the half widths from the other GPUs:

==============  =====  ===================
Margin          Tests  Coverage below 85 %
==============  =====  ===================
0               63     15
NEW_GPU_MARGIN  63     11
==============  =====  ===================
"""
MAX_GPUS = 6
"""Maximum number of held-out GPUs: the GPUs with most rows. Each costs one fit."""
MAX_FIT_ROWS = 150_000
"""Maximum training rows of each of these fits. More rows are sampled."""
GPU_FOLDS = 3
"""Number of folds of the shapes. A held-out GPU is evaluated on one fold, which its fit was trained on for no GPU."""
MIN_FOLD_SHAPES = 12
"""Minimum shapes for these folds. With fewer shapes, a held-out GPU is evaluated on all of them."""


def fit_unmeasured_gpu(
    rows: Rows, predicted: np.ndarray, was_trained: np.ndarray, evaluated: np.ndarray
) -> intervals.UnmeasuredGpuErrors:
    """Fit the errors of times on an unmeasured GPU.

    Only these errors count, because a model can be accurate for a candidate and still transfer it badly to another GPU.

    Parameters
    ----------
    rows
        Rows of one family.
    predicted
        (rows,) times in µs by fits that hold out the row's GPU, its architecture and its shape (`gpu_splits`), or NaN.
    was_trained
        (rows,) result of `trained_settings`.
    evaluated
        (rows,) True for problems from which the independent share is learned.

    Returns
    -------
    intervals.UnmeasuredGpuErrors
        The defaults if no GPU was held out.
    """
    scored = np.flatnonzero(rows.ok & np.isfinite(predicted))
    if not len(scored):
        return intervals.UnmeasuredGpuErrors()
    part, predicted = rows.take(scored), predicted[scored]
    was_trained, evaluated = was_trained[scored], evaluated[scored]
    unmeasured = intervals.UnmeasuredGpuErrors(held_out_gpu_errors(part, predicted, was_trained))
    counted = evaluated & was_trained
    columns = (predicted, part.time_us, unmeasured.half_widths(groups_of(part)), part.problem, part.shape)
    share = fit_independent_share(*(values[counted] for values in columns), errors=errors_of(rows.family))
    return structs.replace(unmeasured, independent_share=float(f"{share:.4g}"))


def trained_settings(rows: Rows, splits: Sequence[Split]) -> np.ndarray:
    """Return True (rows,) if the row's setting and candidate are in the training rows of the split that holds it out.

    Other rows are predicted only as settings that were never measured.
    """
    key = joined(rows.frame.assign(candidate=rows.candidate), (*rows.family.setting_names, "candidate")).to_numpy()
    was_trained = np.zeros(len(rows), dtype=bool)
    for train, holdout in splits:
        was_trained[holdout] = np.isin(key[holdout], np.unique(key[train]))
    return was_trained


def held_out_gpu_errors(rows: Rows, predicted: np.ndarray, was_trained: np.ndarray) -> dict[str, HeldOutGpuErrors]:
    """Return `UnmeasuredGpuErrors.by_group` from ok rows and their times (rows,) by fits that hold out their GPU.

    ``was_trained`` is the result of `trained_settings`. A line of GPUs gets its own errors if other GPUs of the
    line were trained. For a line with a single GPU, all these errors are used and count as one GPU, because one GPU
    does not show how a second one differs.
    """
    ratio = predicted / rows.time_us
    device = device_names(rows.frame).astype(str)
    frame = pd.DataFrame(groups_of(rows), columns=["line", "dtype"])

    def errors_at(positions: np.ndarray, counts: int | None = None) -> HeldOutGpuErrors:
        """Return the errors of the rows at ``positions``, counted as ``counts`` GPUs.

        GPUs are too few for a quantile over GPUs. The half width is the largest of the GPUs' own quantiles plus a
        margin, which is larger if there are fewer GPUs. A GPU with a single shape counts only if no GPU has more.
        """
        parts = [positions[device[positions] == name] for name in np.unique(device[positions])]
        parts = [part for part in parts if len(np.unique(rows.shape[part])) > 1] or parts
        median = np.median([np.median(np.abs(ratio[part] - 1)) for part in parts])
        max_half_width = max(np.quantile(np.abs(np.log(ratio[part])), COVERAGE) for part in parts)
        half_width = max_half_width * (1 + NEW_GPU_MARGIN / (counts or len(parts)))
        return HeldOutGpuErrors(len(parts), *(float(f"{value:.4g}") for value in (median, half_width)))

    # 1. All GPUs together. If a GPU has trained settings, only those count.
    has_trained_settings = np.isin(device, np.unique(device[was_trained]))
    by_group = {"": errors_at(np.flatnonzero(was_trained | ~has_trained_settings))}
    if frame["line"].nunique() == 1:  # the errors of one line do not show those of another
        half_width = max(by_group[""].half_width, intervals.UNMEASURED_HALF_WIDTH)
        by_group[""] = replace(by_group[""], half_width=half_width)
    if len(never := np.flatnonzero(~was_trained)):
        by_group[intervals.NEVER] = errors_at(never)
    # 2. Each line, and each element type of a line. On few GPUs a type is no narrower than all types together.
    gpus = frame.groupby("line")["dtype"].agg(lambda part: len(np.unique(device[part.index])))
    counted = np.flatnonzero(was_trained & (frame["line"].map(gpus) > 1))
    for (line,), positions in row_groups(frame.iloc[counted], ("line",)):
        if line:
            by_group[line] = errors_at(counted[positions])
    for (line, dtype), positions in row_groups(frame.iloc[counted], ("line", "dtype")):
        if line and dtype:
            kind = errors_at(counted[positions])
            minimum = by_group[line].half_width if kind.gpus < MIN_GPUS else 0.0
            by_group[f"{line}|{dtype}"] = replace(kind, half_width=max(kind.half_width, minimum))
    for line in filter(None, gpus.index[gpus == 1] if len(counted) else ()):
        by_group[line] = errors_at(counted, counts=1)
    return by_group


def groups_of(rows: Rows) -> np.ndarray:
    """Return the lines of the rows' GPUs (`Gpu.product_line`) and their element types, (rows, 2)."""
    names, position = np.unique(device_names(rows.frame).astype(str), return_inverse=True)
    line = np.array([rows.device(name).product_line for name in names.tolist()])[position]
    return np.column_stack([line, dtypes_of(rows)])


def gpu_splits(rows: Rows, seed: int) -> list[Split]:
    """Return splits that hold out one GPU: ok rows of other architectures and shapes, and ok rows of the GPU.

    The list is empty if there are too few architectures.
    """
    position = np.flatnonzero(rows.ok)
    rows = rows.take(position)
    device = device_names(rows.frame).astype(str)
    names = shape_names(rows.frame, rows.family)
    if shape_columns(rows.frame, rows.family)[:1] == ("gpu",):  # the folds by shape already hold out GPUs
        return []
    gpus, counts = np.unique(device, return_counts=True)
    architecture = {name: rows.device(name).architecture or name for name in gpus.tolist()}
    largest: dict[str, str] = {}  # architecture → its GPU with most rows
    for name in gpus[np.argsort(-counts, kind="stable")].tolist():
        largest.setdefault(architecture[name], name)
    if len(largest) < MIN_ARCHITECTURES or len(set(names)) < 2:
        return []
    fold = fold_labels(names, GPU_FOLDS, seed)
    is_any_fold = len(set(names)) < MIN_FOLD_SHAPES
    splits = []
    for number, held_out_gpu in enumerate(list(largest.values())[:MAX_GPUS]):
        on_gpu = device == held_out_gpu
        same_architecture = [name for name in architecture if architecture[name] == architecture[held_out_gpu]]
        folds = np.unique(fold[on_gpu])  # folds with rows on the GPU; each GPU takes the next of its folds
        holdout_fold = folds[number % len(folds)]
        holdout = np.flatnonzero(on_gpu & (is_any_fold | (fold == holdout_fold)))
        train = np.flatnonzero((is_any_fold | (fold != holdout_fold)) & ~np.isin(device, same_architecture))
        sample = np.sort(np.random.default_rng(seed).permutation(train)[:MAX_FIT_ROWS])
        if len(sample):
            splits.append((position[sample], position[holdout]))
    return splits


MIN_ROWS = 20
"""Minimum number of held-out rows that show an error."""


def group_splits(rows: Rows, seed: int) -> list[Split]:
    """Return splits that hold out a kernel group: in its largest setting if it was measured in several, else anywhere.

    The training rows have other shapes than the held-out rows.
    """
    if not rows.family.kernel_groups:
        return []
    group = kernel_groups(rows.frame, rows.family)
    setting = joined(rows.frame, rows.family.setting_names).to_numpy()
    is_held_out_shape = fold_labels(shape_names(rows.frame, rows.family), GPU_FOLDS, seed) == 0
    splits = []
    for name in rows.family.kernel_groups[1:]:
        in_group = rows.ok & (group == name)
        settings, counts = np.unique(setting[in_group], return_counts=True)
        in_setting = in_group & (setting == settings[counts.argmax()]) if len(settings) > 1 else in_group
        holdout = np.flatnonzero(in_setting & is_held_out_shape)
        train = np.flatnonzero(rows.ok & ~in_setting & ~is_held_out_shape)
        if len(holdout) >= MIN_ROWS and len(train):
            splits.append((np.sort(np.random.default_rng(seed).permutation(train)[:MAX_FIT_ROWS]), holdout))
    return splits


def fit_unmeasured_group(rows: Rows, splits: Sequence[Split], answers: Sequence[FitTimes]) -> float:
    """Return the half width in log time that holds nine in ten held-out times of every group of `group_splits`.

    It is `intervals.UNMEASURED_GROUP_HALF_WIDTH` if no group was held out.
    """
    half_widths = [
        np.nanquantile(np.abs(np.log(answer[0] / rows.time_us[holdout])), COVERAGE)
        for (_, holdout), answer in zip(splits, answers, strict=True)
        if answer is not None
    ]
    return float(f"{max(half_widths):.4g}") if half_widths else intervals.UNMEASURED_GROUP_HALF_WIDTH
