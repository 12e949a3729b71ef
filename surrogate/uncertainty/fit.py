"""Interval widths from held-out predictions: what `surrogate.uncertainty.intervals.Widths` looks up.

Source: Lei et al. 2018, "Distribution-free predictive inference for regression": split conformal prediction with
locally weighted scores |log error| / width. Rows of one shape err alike, so shapes are the sample: finite-sample ranks
count shapes, and every shape is scored by widths that were fitted on other shapes before the last constant is taken.
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
from surrogate.models.base import ProgressCallback, TimeModel, fitted, times_of
from surrogate.uncertainty import intervals
from surrogate.uncertainty.domain import distances_to, references_of
from surrogate.uncertainty.intervals import ALL, COVERAGE, HeldOutGpuErrors, StepFunction, UnseenGpu, WidthKey, Widths

MIN_SHAPES = 10
"""Held-out shapes that a base needs to be narrower than its parent's."""
POOLED_SHAPES = 20
"""With this many shapes a key's own quantile counts as much as its parent's (in logs); with more, more."""
DISTANCE_BANDS = 6
TIME_BANDS = 5
MIN_ERROR = 1e-9
"""In log time; what is below is rounding: a model that is exact must not divide by nothing."""
MIN_WIDTH = 1e-4
"""No base is smaller: a model that errs nowhere on a few rows is not perfect."""
PARTS = 5
"""Parts of the shapes: each is scored by widths of the others."""
SHARES = (0.02, 2.0)
"""Ends of the search for the own share of errors."""
SHARE_PROBLEMS = 1000
"""Problems that its likelihood is taken over; more hardly change it."""
MIN_LIKELIHOOD = 1e-6
"""Of a problem's best candidate: one hopeless problem shall not decide."""
MIN_GPUS = 3
"""Fewer say nothing of how GPUs differ."""
ONE_MORE = 0.5
"""Over the number of GPUs left out, what is added to the greatest half width of any for a GPU more: of 63 cells (GPU
and type) that each other GPUs' widths are held against, it leaves 11 in the place of 15 that hold less than 85 %."""
MAX_GPUS = 6
"""GPUs that `fit_unseen_gpu` leaves out, those with most rows: each costs one fit."""
LARGE_ROWS = 150_000
"""Of larger tables as many rows are drawn for each of these fits."""
ROWS_AT_ONCE = 2_000_000
"""Rows of the fits that run at a time: each holds its own."""
GPU_FOLDS = 3
"""A GPU is judged on one of so many parts of the shapes, which its fit never saw on any GPU."""


@dataclass(frozen=True)
class HeldOutScores:
    """Held-out rows with both times; arrays (rows,).

    ``position`` in the rows they come from; ``error`` |log(predicted / measured)|; ``shape`` codes; ``described``: the
    candidates are configurations of a described kernel.
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
        """The rows with both times. Raises `InputError` where there are none."""
        position = np.flatnonzero(np.isfinite(predicted_us) & np.isfinite(measured_us))
        if not len(position):
            raise InputError("no held-out row has a predicted and a measured time; intervals need some")
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
        """The rows where the mask holds."""
        return HeldOutScores(*(getattr(self, f.name)[mask] for f in fields(self)[:-1]), described=self.described)

    def half_widths(self, widths: Widths) -> np.ndarray:
        """(rows,) what ``widths`` say of these rows."""
        return widths.at(self.gpu, self.candidate, self.dtype, self.distance, self.predicted_us)


def dtypes_of(rows: Rows) -> np.ndarray:
    """(rows,) element types; "" where the family has none."""
    return rows.frame["dtype"].to_numpy(str) if "dtype" in rows.frame else np.full(len(rows), "")


def fit_widths(
    rows: Rows,
    predicted_us: np.ndarray,
    measured_us: np.ndarray,
    distance: np.ndarray,
    evaluated: np.ndarray | None = None,
) -> Widths:
    """Widths from held-out predictions (rows,) in µs; rows without either time are left out.

    ``distance`` (rows,) is from each row to the training data of the fold that held it out (see `distances_to`);
    ``evaluated`` (rows,) True where the own share of errors may be learned: all rows of problems whose fastest
    candidate is known (None: everywhere). Raises `InputError` where no row has both times.
    """
    scores = HeldOutScores.of(rows, predicted_us, measured_us, distance)
    widths, half_width = _last_fitted(scores)
    counted = np.ones(len(scores.error), dtype=bool) if evaluated is None else evaluated[scores.position]
    part = scores.take(counted)
    measured, problem = (values[part.position] for values in (measured_us, rows.problem))
    share = fit_independent_share(part.predicted_us, measured, half_width[counted], problem, shape=part.shape)
    return replace(widths, independent_share=share)


def held_out_half_widths(
    rows: Rows, predicted_us: np.ndarray, measured_us: np.ndarray, distance: np.ndarray
) -> np.ndarray:
    """(rows,) half widths, each by widths fitted on other shapes alone: what coverage may be judged by; else NaN."""
    scores = HeldOutScores.of(rows, predicted_us, measured_us, distance)
    out = np.full(len(rows), np.nan)
    out[scores.position] = _crossed(scores, lambda others: _last_fitted(others)[0], seed=1)
    return out


def _crossed(scores: HeldOutScores, fit: Callable[[HeldOutScores], Widths], seed: int) -> np.ndarray:
    """(rows,) half widths, each by what ``fit`` makes of other shapes; NaN where there is one shape alone."""
    label = fold_labels(scores.shape.astype(str), PARTS, seed)
    crossed = np.full(len(label), np.nan)
    for number in np.unique(label) if label.any() else ():
        held = label == number
        crossed[held] = scores.take(held).half_widths(fit(scores.take(~held)))
    return crossed


def _last_fitted(scores: HeldOutScores) -> tuple[Widths, np.ndarray]:
    """Widths whose last constant comes from cross-fitted scores, and those cross-fitted half widths (rows,).

    Configurations are too many, and a user's shapes too few, for widths of each: one width is all shapes'.
    """
    if scores.described:
        widths = Widths({ALL: max(_few_shapes_quantile(scores.error, scores.shape), MIN_WIDTH)})
        return widths, scores.half_widths(widths)
    widths = _fitted(scores)
    crossed = _crossed(scores, _fitted, seed=0)
    if np.isnan(crossed).all():  # one shape: nothing to cross with
        return widths, scores.half_widths(widths)
    # Keys of few shapes have a constant of their own: a new shape is often farther off than those few were.
    left = scores.error / crossed
    last = last_of_few = conformal_quantile(left, scores.shape)
    few = {key: positions for key, positions in _cells(scores) if _shapes(scores, positions) < MIN_SHAPES}
    is_few = np.zeros(len(left), dtype=bool)
    is_few[np.concatenate([np.empty(0, dtype=np.int64), *few.values()])] = True
    if few:
        last_of_few = max(last, _few_shapes_quantile(left[is_few], scores.shape[is_few]))
    factors = {key: last_of_few if key in few else last for key in widths.by_key}
    bases = {key: max(base * factors[key], MIN_WIDTH) for key, base in widths.by_key.items()}
    return replace(widths, by_key=bases), crossed * np.where(is_few, last_of_few, last)


def conformal_quantile(scores: np.ndarray, shape: np.ndarray) -> float:
    """The score that covers `COVERAGE` of the rows of a new shape, where ``shape`` (rows,) are codes.

    With n scores of K shapes the rank is ⌈n · COVERAGE · (K + 1) / K⌉, the last where it exceeds n; with a shape per
    row it is split conformal prediction's ⌈(n + 1) · COVERAGE⌉.
    """
    shapes = len(np.unique(shape))
    rank = int(np.ceil(round(len(scores) * COVERAGE * (shapes + 1) / shapes, 9)))
    return float(np.sort(scores)[min(rank, len(scores)) - 1])


def _few_shapes_quantile(scores: np.ndarray, shape: np.ndarray) -> float:
    """`conformal_quantile`; where the shapes are too few for it, the greatest of each shape's own quantile: a new shape
    is worse than all of K with a chance of 1 / (K + 1)."""
    shapes = np.unique(shape)
    if COVERAGE * (len(shapes) + 1) <= len(shapes):
        return conformal_quantile(scores, shape)
    return max(float(np.quantile(scores[shape == number], COVERAGE)) for number in shapes)


def pooled_base(base: float, parent: float, shapes: int) -> float:
    """A key's quantile, drawn (in logs) towards its parent's as far as its shapes are few."""
    weight = shapes / (shapes + POOLED_SHAPES) if shapes >= MIN_SHAPES else 0.0
    return base**weight * parent ** (1 - weight)


def _fitted(scores: HeldOutScores) -> Widths:
    """Both factors, then the bases of what they leave."""
    typical = pd.Series(scores.error).groupby(scores.candidate).transform("median").to_numpy()
    near = _steps(scores.distance, scores.error / typical, scores.shape, DISTANCE_BANDS, rising=True)
    left = scores.error / near.at(scores.distance)
    time = _steps(scores.predicted_us, left / typical, scores.shape, TIME_BANDS, rising=False)
    return Widths(_bases(scores, left / time.at(scores.predicted_us)), near, time)


def _bases(scores: HeldOutScores, left: np.ndarray) -> dict[WidthKey, float]:
    """The base of all rows, of every candidate, of it on a GPU and in a type there.

    None is narrower than held its own errors: a few shapes do not tell that errors are small, and do tell that they are
    large. Below `MIN_SHAPES` the rank of a new shape would be the last, which one outlier decides.
    """
    bases = {ALL: max(conformal_quantile(left, scores.shape), MIN_WIDTH)}
    for key, positions in _cells(scores):
        shapes = _shapes(scores, positions)
        base = max(conformal_quantile(left[positions], scores.shape[positions]), MIN_WIDTH)
        parents = (WidthKey(key.gpu if key.dtype else None, key.candidate), WidthKey(None, key.candidate), ALL)
        parent = next(bases[parent] for parent in parents if parent in bases and parent != key)
        own = base if shapes >= MIN_SHAPES else np.quantile(left[positions], COVERAGE)
        bases[key] = float(max(own, pooled_base(base, parent, shapes)))
    return bases


def _cells(scores: HeldOutScores) -> Iterator[tuple[WidthKey, np.ndarray]]:
    """The positions of each candidate's rows, of it on a GPU, and in a type there; what draws on another behind it."""
    frame = pd.DataFrame({"candidate": scores.candidate, "gpu": scores.gpu, "dtype": scores.dtype})
    for columns in (("candidate",), ("candidate", "gpu"), ("candidate", "gpu", "dtype")):
        for values, positions in row_groups(frame, columns):
            yield WidthKey(**{"gpu": None, **dict(zip(columns, values, strict=True))}), positions


def _shapes(scores: HeldOutScores, positions: np.ndarray) -> int:
    """How many shapes the rows at ``positions`` are of."""
    return len(np.unique(scores.shape[positions]))


def _steps(x: np.ndarray, score: np.ndarray, shape: np.ndarray, bands: int, *, rising: bool) -> StepFunction:
    """Quantiles of ``score`` in bands of ``x`` that hold about equally many shapes; 1 on the (geometric) average.

    ``rising`` pools neighbouring bands until the factors never fall.
    """
    from sklearn.isotonic import isotonic_regression

    # 1. Edges where the next band has its share of the shapes, every shape of the same weight.
    weight = 1 / np.bincount(shape)[shape]
    order = np.argsort(x, kind="stable")
    reached = np.cumsum(weight[order]) / weight.sum()
    cuts = x[order][np.searchsorted(reached, np.arange(1, bands) / bands)]
    edges = np.unique(cuts[np.isfinite(cuts) & (cuts > x.min())])
    # 2. The quantile of every band.
    band = np.searchsorted(edges, x, side="right")
    held = np.bincount(band, weights=weight, minlength=len(edges) + 1)
    level = [conformal_quantile(score[band == b], shape[band == b]) for b in range(len(held))]
    log_level = np.log(level)
    if rising:
        log_level = isotonic_regression(log_level, sample_weight=held)
    # 3. Relative to the average.
    values = np.exp(log_level - np.average(log_level, weights=held))
    return StepFunction(tuple(map(float, edges)), tuple(map(float, values)))


def fit_independent_share(
    predicted_us: np.ndarray, measured_us: np.ndarray, half_width: np.ndarray, problem: np.ndarray, shape: np.ndarray
) -> float:
    """The part of a half width that the candidates of one problem do not share, from held-out predictions.

    The share under which the measured fastest candidates were most likely (maximum likelihood, every shape alike), so
    that it also makes good that the candidate predicted fastest owes its place to its error more than others do. Arrays
    (rows,), ``problem`` and ``shape`` any codes. 1 where no problem has two rows.
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

    fitted: OptimizeResult = minimize_scalar(loss, bounds=np.log(SHARES), method="bounded", options={"xatol": 0.02})
    return float(np.exp(fitted.x))


Begin = Callable[[str, int], ProgressCallback]
"""Called before a fit with its name and its rows; gives what the fit calls as it goes on."""
Split = tuple[np.ndarray, np.ndarray]
"""Positions of the rows that a fit learns from, and of those that it answers."""


def shape_splits(
    rows: Rows, count: int, seed: int, fits: int | None = None, most_rows: int | None = None
) -> list[Split]:
    """``count`` folds by shape, of which the first ``fits`` are run (None: all), with ``most_rows`` rows to learn from
    at most (None: all), drawn at random. Raises `InputError` where no ok row could be held out."""
    label = fold_labels(shape_names(rows.frame, rows.family), count, seed)
    splits = []
    for fold in range(count if fits is None else fits):
        inside = np.flatnonzero(label != fold)
        if most_rows is not None and len(inside) > most_rows:
            inside = np.sort(np.random.default_rng(seed).permutation(inside)[:most_rows])
        splits.append((inside, np.flatnonzero(label == fold)))
    if not any(rows.ok[inside].any() and rows.ok[outside].any() for inside, outside in splits):
        raise InputError("all rows have one shape; held-out errors and intervals need at least two shapes")
    return splits


class Fit(NamedTuple):
    """An unfitted model, the positions of the rows that it learns from, and of those that it answers (or none)."""

    name: str
    model: TimeModel
    inside: np.ndarray
    outside: np.ndarray


Answers = tuple[np.ndarray, np.ndarray] | None
"""Times in µs of the rows outside and their distances to what the fit saw; None where it had nothing to learn from."""


def run_fits(rows: Rows, fits: Sequence[Fit], begin: Begin, keep: Path | None = None) -> list[Answers]:
    """What every fit answers; one without rows to answer leaves its model fitted.

    As many at a time as there are CPUs and memory for. ``keep`` is a folder of finished fits (`times_of`).
    """

    def run(fit: Fit, stopped: object) -> Answers:
        on_progress = begin(fit.name, len(fit.inside))
        train = rows.take(fit.inside)
        if not len(fit.outside):
            fitted(fit.model, train, on_progress)
        if not (train.ok.any() and len(fit.outside)):
            return None
        held = rows.take(fit.outside)
        return times_of(fit.model, train, held, keep, on_progress), distances_to(references_of(train), held)

    largest = max((len(fit.inside) for fit in fits), default=1)
    return in_parallel(run, fits, workers_for(min(len(fits), max(1, ROWS_AT_ONCE // largest))))


def put_together(rows: Rows, splits: Sequence[Split], answers: Sequence[Answers]) -> tuple[np.ndarray, np.ndarray]:
    """(rows,) times and distances of all splits; NaN in no split and where a fit had nothing to learn from."""
    predicted, distance = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    for (_, outside), answer in zip(splits, answers, strict=True):
        if answer is not None:
            predicted[outside], distance[outside] = answer
    return predicted, distance


def fit_unseen_gpu(rows: Rows, predicted: np.ndarray, known: np.ndarray, evaluated: np.ndarray) -> UnseenGpu:
    """How far off times are on a GPU that was never measured.

    ``predicted`` (rows,) are by fits that saw neither the row's GPU, nor its architecture, nor its shape
    (`gpu_splits`), NaN where there is none; ``known`` (rows,) as of `known_settings`. Nothing but their errors counts:
    a model that knows a candidate well may yet carry it badly to another GPU. The own share is that of ``evaluated``
    (rows,) problems. The defaults where no GPU was left out.
    """
    scored = np.flatnonzero(rows.ok & np.isfinite(predicted))
    if not len(scored):
        return UnseenGpu()
    part, predicted, known, evaluated = rows.take(scored), predicted[scored], known[scored], evaluated[scored]
    unseen = UnseenGpu(left_out_gpus(part, predicted, known))
    counted = evaluated & known
    columns = (predicted, part.time_us, unseen.half_widths(kinds_of(part)), part.problem, part.shape)
    share = fit_independent_share(*(values[counted] for values in columns))
    return structs.replace(unseen, independent_share=float(f"{share:.4g}"))


def known_settings(rows: Rows, splits: Sequence[Split]) -> np.ndarray:
    """(rows,) True where the split that leaves the row's GPU out saw its setting and candidate: other rows are never
    answered there but as settings never measured."""
    key = joined(rows.frame.assign(candidate=rows.candidate), (*rows.family.setting_names, "candidate")).to_numpy()
    known = np.zeros(len(rows), dtype=bool)
    for inside, outside in splits:
        known[outside] = np.isin(key[outside], np.unique(key[inside]))
    return known


def left_out_gpus(rows: Rows, predicted: np.ndarray, known: np.ndarray) -> dict[str, HeldOutGpuErrors]:
    """`UnseenGpu.by_kind` of ok rows with times (rows,) by fits that did not see their GPU; ``known`` as above.

    Of a line of GPUs those count that had others of it in training; what they tell of a line with a single GPU, which
    tells nothing of a second one, counts as one GPU's.
    """
    ratio = predicted / rows.time_us
    device = device_names(rows.frame).astype(str)
    frame = pd.DataFrame(kinds_of(rows), columns=["line", "dtype"])

    def of(positions: np.ndarray, counts: int | None = None) -> HeldOutGpuErrors:
        """GPUs are too few for a quantile over them: the greatest of every GPU's own is taken, and the fewer they are,
        the more is added for one more. A single shape tells little of a GPU."""
        parts = [positions[device[positions] == name] for name in np.unique(device[positions])]
        parts = [part for part in parts if len(np.unique(rows.shape[part])) > 1] or parts
        median = np.median([np.median(np.abs(ratio[part] - 1)) for part in parts])
        greatest = max(np.quantile(np.abs(np.log(ratio[part])), COVERAGE) for part in parts)
        half_width = greatest * (1 + ONE_MORE / (counts or len(parts)))
        return HeldOutGpuErrors(len(parts), *(float(f"{value:.4g}") for value in (median, half_width)))

    # 1. Of a GPU with known settings those alone count.
    has_known = np.isin(device, np.unique(device[known]))
    left_out = {"": of(np.flatnonzero(known | ~has_known))}
    if len(never := np.flatnonzero(~known)):
        left_out[intervals.NEVER] = of(never)
    # 2. By line, and by type there: of a type on few GPUs no less than of all types.
    gpus = frame.groupby("line")["dtype"].agg(lambda part: len(np.unique(device[part.index])))
    counted = np.flatnonzero(known & (frame["line"].map(gpus) > 1))
    for (line,), positions in row_groups(frame.iloc[counted], ("line",)):
        if line:
            left_out[line] = of(counted[positions])
    for (line, dtype), positions in row_groups(frame.iloc[counted], ("line", "dtype")):
        if line and dtype:
            kind = of(counted[positions])
            minimum = left_out[line].half_width if kind.gpus < MIN_GPUS else 0.0
            left_out[f"{line}|{dtype}"] = replace(kind, half_width=max(kind.half_width, minimum))
    for line in filter(None, gpus.index[gpus == 1] if len(counted) else ()):
        left_out[line] = of(counted, counts=1)
    return left_out


def kinds_of(rows: Rows) -> np.ndarray:
    """(rows, 2) the lines of the rows' GPUs (`surrogate.features.gpu.Gpu.line`), and element types."""
    names, position = np.unique(device_names(rows.frame).astype(str), return_inverse=True)
    line = np.array([rows.device(name).line for name in names.tolist()])[position]
    return np.column_stack([line, dtypes_of(rows)])


def gpu_splits(rows: Rows, seed: int) -> list[Split]:
    """Ok rows of one GPU each, and others of neither its architecture nor their shapes; none for few architectures."""
    position = np.flatnonzero(rows.ok)
    rows = rows.take(position)
    device = device_names(rows.frame).astype(str)
    names = shape_names(rows.frame, rows.family)
    if shape_columns(rows.frame, rows.family)[:1] == ("gpu",):  # the folds by shape leave GPUs out
        return []
    gpus, counts = np.unique(device, return_counts=True)
    architecture = {name: rows.device(name).architecture or name for name in gpus.tolist()}
    largest: dict[str, str] = {}  # of each architecture the GPU with most rows
    for name in gpus[np.argsort(-counts, kind="stable")].tolist():
        largest.setdefault(architecture[name], name)
    if len(largest) < MIN_GPUS or len(set(names)) < 2:
        return []
    fold = fold_labels(names, GPU_FOLDS, seed)
    splits = []
    for number, left_out in enumerate(list(largest.values())[:MAX_GPUS]):
        on_gpu = device == left_out
        siblings = np.isin(device, [name for name in architecture if architecture[name] == architecture[left_out]])
        folds = np.unique(fold[on_gpu])  # those of which the GPU has rows, another one for each GPU
        held_fold = folds[number % len(folds)]
        outside = np.flatnonzero(on_gpu & (fold == held_fold))
        inside = np.flatnonzero((fold != held_fold) & ~siblings)
        sample = np.sort(np.random.default_rng(seed).permutation(inside)[:LARGE_ROWS])
        if len(sample):
            splits.append((position[sample], position[outside]))
    return splits
