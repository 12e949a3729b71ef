"""Fit the interval widths that `surrogate.uncertainty.intervals.Widths` looks up, from held-out predictions.

Source: Lei et al. 2018, "Distribution-free predictive inference for regression": split conformal prediction with
locally weighted scores |log error| / width. Rows of one shape have similar errors, so shapes are the sample. Ranks for
finite samples count shapes. Every shape is scored by widths that were fitted on other shapes, and the last constant
comes from these scores.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import pandas as pd
from msgspec import structs

from surrogate.dataset.problems import device_names, joined, row_groups, rows_by_code, shape_columns, shape_names
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_labels
from surrogate.dataset.threads import in_parallel, workers_for
from surrogate.features.errors import InputError
from surrogate.models.base import ProgressCallback, TimeModel, fit_with_progress, holdout_times
from surrogate.uncertainty import intervals
from surrogate.uncertainty.domain import distances_to, references_of
from surrogate.uncertainty.intervals import ALL, COVERAGE, HeldOutGpuErrors, StepFunction, UnseenGpu, WidthKey, Widths

MIN_SHAPES = 10
"""Minimum held-out shapes of a key. A key with fewer shapes gets no narrower base than its parent."""
POOLED_SHAPES = 20
"""With this many shapes, a key's own quantile and its parent's have equal weights (in logs)."""
DISTANCE_BANDS = 6
TIME_BANDS = 5
MIN_ERROR = 1e-9
"""Minimum error in log time. Smaller errors are rounding errors, and an exact model must not divide by zero."""
MIN_WIDTH = 1e-4
"""Minimum base. A model without errors on a few rows is not perfect."""
PARTS = 5
"""Number of parts of the shapes. Each part is scored by widths that were fitted on the other parts."""
SHARE_BOUNDS = (0.02, 2.0)
"""Limits of the search for the independent share of errors."""
SHARE_PROBLEMS = 1000
"""Maximum problems in the likelihood of the independent share. More problems hardly change the share."""
MIN_LIKELIHOOD = 1e-6
"""Minimum likelihood of a problem's best candidate, so that one outlier does not decide the share."""
MIN_GPUS = 3
"""Minimum number of GPUs (or architectures) that show how GPUs differ."""
NEW_GPU_MARGIN = 0.5
"""Margin for a new GPU: relative to the largest half width, and divided by the number of left-out GPUs.

On 63 cells (GPU and type), each tested with the widths from the other GPUs, 11 cells cover less than 85 % of the times
with this margin, and 15 without it.
"""
MAX_GPUS = 6
"""Maximum number of GPUs that `fit_unseen_gpu` leaves out: the GPUs with most rows. Each costs one fit."""
MAX_FIT_ROWS = 150_000
"""Maximum rows of each of these fits. More rows are sampled."""
MAX_CONCURRENT_ROWS = 2_000_000
"""Maximum rows of all fits that run at the same time. Each fit holds its own rows."""
GPU_FOLDS = 3
"""Number of parts of the shapes. A left-out GPU is evaluated on one part, which its fit saw on no GPU."""


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
    described
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
    described: bool = False

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
            described=bool(rows.family.parameter_names),
        )

    def take(self, mask: np.ndarray) -> "HeldOutScores":
        """Return the rows where the mask is True."""
        return HeldOutScores(*(getattr(self, f.name)[mask] for f in fields(self)[:-1]), described=self.described)

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
    share = fit_independent_share(part.predicted_us, measured, half_width[counted], problem, shape=part.shape)
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
    """Return half widths (rows,) by ``fit`` on the other parts of the shapes; NaN if there is only one shape."""
    label = fold_labels(scores.shape.astype(str), PARTS, seed)
    cross_fitted = np.full(len(label), np.nan)
    for number in np.unique(label) if label.any() else ():
        holdout = label == number
        cross_fitted[holdout] = scores.take(holdout).half_widths(fit(scores.take(~holdout)))
    return cross_fitted


def _with_final_constant(scores: HeldOutScores) -> tuple[Widths, np.ndarray]:
    """Return widths whose last constant comes from cross-fitted scores, and the cross-fitted half widths (rows,).

    A described kernel has too many configurations, and too few shapes, for a width per configuration. It gets one
    width.
    """
    if scores.described:
        widths = Widths({ALL: max(_few_shapes_quantile(scores.error, scores.shape), MIN_WIDTH)})
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
    return replace(widths, by_key=bases), cross_fitted * np.where(is_few, last_of_few, last)


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


def fit_independent_share(
    predicted_us: np.ndarray, measured_us: np.ndarray, half_width: np.ndarray, problem: np.ndarray, shape: np.ndarray
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

    Returns
    -------
    float
        The share, within `SHARE_BOUNDS`; 1 if no problem has two rows.
    """
    from scipy.optimize import OptimizeResult, minimize_scalar

    choices = [rows for rows in rows_by_code(problem) if len(rows) > 1]
    if not choices:
        return 1.0
    picked = np.random.default_rng(0).permutation(len(choices))[:SHARE_PROBLEMS]
    cases = [
        (np.log(predicted_us[rows]), half_width[rows], int(measured_us[rows].argmin()))
        for rows in (choices[i] for i in picked)
    ]
    shapes = np.unique([shape[choices[i][0]] for i in picked], return_inverse=True)[1]
    weight = 1 / np.bincount(shapes)[shapes]

    def loss(log_share: float) -> float:
        likely = [intervals.probability_best(time, width, np.exp(log_share))[best] for time, width, best in cases]
        return -float(weight @ np.log(np.maximum(likely, MIN_LIKELIHOOD)))

    optimum: OptimizeResult = minimize_scalar(
        loss, bounds=np.log(SHARE_BOUNDS), method="bounded", options={"xatol": 0.02}
    )
    return float(np.exp(optimum.x))


Begin = Callable[[str, int], ProgressCallback]
"""Function that is called before a fit with the fit's name and row count. It returns the fit's progress callback."""
Split = tuple[np.ndarray, np.ndarray]
"""Positions of the rows that a fit learns from, and positions of the rows that it predicts."""


def shape_splits(
    rows: Rows, count: int, seed: int, fits: int | None = None, max_rows: int | None = None
) -> list[Split]:
    """Return the first ``fits`` of ``count`` folds by shape (None: all).

    A fold learns from at most ``max_rows`` random rows (None: all). Raise `InputError` if no ok row can be held out.
    """
    label = fold_labels(shape_names(rows.frame, rows.family), count, seed)
    splits = []
    for fold in range(count if fits is None else fits):
        inside = np.flatnonzero(label != fold)
        if max_rows is not None and len(inside) > max_rows:
            inside = np.sort(np.random.default_rng(seed).permutation(inside)[:max_rows])
        splits.append((inside, np.flatnonzero(label == fold)))
    if not any(rows.ok[inside].any() and rows.ok[outside].any() for inside, outside in splits):
        raise InputError("all rows have one shape; held-out errors and intervals need at least two shapes")
    return splits


class Fit(NamedTuple):
    """An unfitted model, the positions of its training rows, and the positions of the rows to predict (maybe none)."""

    name: str
    model: TimeModel
    inside: np.ndarray
    outside: np.ndarray


Answers = tuple[np.ndarray, np.ndarray] | None
"""Times in µs of the predicted rows and their distances to the training rows. None if the fit had no training rows."""


def run_fits(rows: Rows, fits: Sequence[Fit], begin: Begin, keep: Path | None = None) -> list[Answers]:
    """Run the fits in parallel, and return the answers of each. A fit without rows to predict leaves its model fitted.

    The number of concurrent fits depends on CPUs and memory. ``keep`` is a folder of finished fits (`holdout_times`).
    """

    def run(fit: Fit, stopped: object) -> Answers:
        on_progress = begin(fit.name, len(fit.inside))
        train = rows.take(fit.inside)
        if not len(fit.outside):
            fit_with_progress(fit.model, train, on_progress)
        if not (train.ok.any() and len(fit.outside)):
            return None
        holdout = rows.take(fit.outside)
        return holdout_times(fit.model, train, holdout, keep, on_progress), distances_to(references_of(train), holdout)

    largest = max((len(fit.inside) for fit in fits), default=1)
    return in_parallel(run, fits, workers_for(min(len(fits), max(1, MAX_CONCURRENT_ROWS // largest))))


def combined_answers(rows: Rows, splits: Sequence[Split], answers: Sequence[Answers]) -> tuple[np.ndarray, np.ndarray]:
    """Return times and distances (rows,) of all splits.

    Rows in no split, and rows of a fit without training rows, get NaN.
    """
    predicted, distance = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    for (_, outside), answer in zip(splits, answers, strict=True):
        if answer is not None:
            predicted[outside], distance[outside] = answer
    return predicted, distance


def fit_unseen_gpu(rows: Rows, predicted: np.ndarray, seen: np.ndarray, evaluated: np.ndarray) -> UnseenGpu:
    """Fit the errors of times on a GPU that was never measured.

    Only these errors count, because a model can be accurate for a candidate and still transfer it badly to another GPU.

    Parameters
    ----------
    rows
        Rows of one family.
    predicted
        (rows,) times in µs by fits that saw neither the row's GPU, nor its architecture, nor its shape (`gpu_splits`).
        NaN if there are none.
    seen
        (rows,) result of `seen_settings`.
    evaluated
        (rows,) True for problems from which the independent share is learned.

    Returns
    -------
    UnseenGpu
        The defaults if no GPU was left out.
    """
    scored = np.flatnonzero(rows.ok & np.isfinite(predicted))
    if not len(scored):
        return UnseenGpu()
    part, predicted, seen, evaluated = rows.take(scored), predicted[scored], seen[scored], evaluated[scored]
    unseen = UnseenGpu(left_out_gpus(part, predicted, seen))
    counted = evaluated & seen
    columns = (predicted, part.time_us, unseen.half_widths(kinds_of(part)), part.problem, part.shape)
    share = fit_independent_share(*(values[counted] for values in columns))
    return structs.replace(unseen, independent_share=float(f"{share:.4g}"))


def seen_settings(rows: Rows, splits: Sequence[Split]) -> np.ndarray:
    """Return True (rows,) if the split that leaves the row's GPU out saw its setting and candidate on other GPUs.

    Other rows are predicted only as settings that were never measured.
    """
    key = joined(rows.frame.assign(candidate=rows.candidate), (*rows.family.setting_names, "candidate")).to_numpy()
    seen = np.zeros(len(rows), dtype=bool)
    for inside, outside in splits:
        seen[outside] = np.isin(key[outside], np.unique(key[inside]))
    return seen


def left_out_gpus(rows: Rows, predicted: np.ndarray, seen: np.ndarray) -> dict[str, HeldOutGpuErrors]:
    """Return `UnseenGpu.by_kind` from ok rows and their times (rows,) by fits that did not see their GPU.

    ``seen`` is the result of `seen_settings`. A line of GPUs gets its own errors if training held other GPUs of the
    line. For a line with a single GPU, all these errors are used and count as one GPU, because one GPU does not show
    how a second one differs.
    """
    ratio = predicted / rows.time_us
    device = device_names(rows.frame).astype(str)
    frame = pd.DataFrame(kinds_of(rows), columns=["line", "dtype"])

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

    # 1. All GPUs together. If a GPU has seen settings, only those count.
    has_seen = np.isin(device, np.unique(device[seen]))
    left_out = {"": errors_at(np.flatnonzero(seen | ~has_seen))}
    if len(never := np.flatnonzero(~seen)):
        left_out[intervals.NEVER] = errors_at(never)
    # 2. Each line, and each element type of a line. On few GPUs a type is no narrower than all types together.
    gpus = frame.groupby("line")["dtype"].agg(lambda part: len(np.unique(device[part.index])))
    counted = np.flatnonzero(seen & (frame["line"].map(gpus) > 1))
    for (line,), positions in row_groups(frame.iloc[counted], ("line",)):
        if line:
            left_out[line] = errors_at(counted[positions])
    for (line, dtype), positions in row_groups(frame.iloc[counted], ("line", "dtype")):
        if line and dtype:
            kind = errors_at(counted[positions])
            minimum = left_out[line].half_width if kind.gpus < MIN_GPUS else 0.0
            left_out[f"{line}|{dtype}"] = replace(kind, half_width=max(kind.half_width, minimum))
    for line in filter(None, gpus.index[gpus == 1] if len(counted) else ()):
        left_out[line] = errors_at(counted, counts=1)
    return left_out


def kinds_of(rows: Rows) -> np.ndarray:
    """Return the lines of the rows' GPUs (`surrogate.features.gpu.Gpu.line`) and their element types, (rows, 2)."""
    names, position = np.unique(device_names(rows.frame).astype(str), return_inverse=True)
    line = np.array([rows.device(name).line for name in names.tolist()])[position]
    return np.column_stack([line, dtypes_of(rows)])


def gpu_splits(rows: Rows, seed: int) -> list[Split]:
    """Return splits that leave one GPU out: ok rows of the GPU, and ok rows of other architectures and shapes.

    The list is empty if there are too few architectures.
    """
    position = np.flatnonzero(rows.ok)
    rows = rows.take(position)
    device = device_names(rows.frame).astype(str)
    names = shape_names(rows.frame, rows.family)
    if shape_columns(rows.frame, rows.family)[:1] == ("gpu",):  # the shape folds already leave GPUs out
        return []
    gpus, counts = np.unique(device, return_counts=True)
    architecture = {name: rows.device(name).architecture or name for name in gpus.tolist()}
    largest: dict[str, str] = {}  # architecture → its GPU with most rows
    for name in gpus[np.argsort(-counts, kind="stable")].tolist():
        largest.setdefault(architecture[name], name)
    if len(largest) < MIN_GPUS or len(set(names)) < 2:
        return []
    fold = fold_labels(names, GPU_FOLDS, seed)
    splits = []
    for number, left_out in enumerate(list(largest.values())[:MAX_GPUS]):
        on_gpu = device == left_out
        same_architecture = [name for name in architecture if architecture[name] == architecture[left_out]]
        folds = np.unique(fold[on_gpu])  # folds with rows on the GPU; each GPU takes the next of its folds
        holdout_fold = folds[number % len(folds)]
        outside = np.flatnonzero(on_gpu & (fold == holdout_fold))
        inside = np.flatnonzero((fold != holdout_fold) & ~np.isin(device, same_architecture))
        sample = np.sort(np.random.default_rng(seed).permutation(inside)[:MAX_FIT_ROWS])
        if len(sample):
            splits.append((position[sample], position[outside]))
    return splits
