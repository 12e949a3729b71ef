"""Interval widths from held-out predictions: what `surrogate.uncertainty.intervals.Widths` looks up.

Source: Lei et al. 2018, "Distribution-free predictive inference for regression": split conformal prediction with
locally weighted scores |log error| / width. Rows of one shape err alike, so shapes are the sample: finite-sample ranks
count shapes, and every shape is scored by widths that were fitted on other shapes before the last constant is taken.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from surrogate.dataset.problems import device_names, rows_by_code, shape_names
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_labels
from surrogate.features.errors import InputError
from surrogate.features.gpu import gpu
from surrogate.models.base import TimeModel, duplicate, times_of
from surrogate.uncertainty.domain import distances_to, references_of
from surrogate.uncertainty.intervals import ALL, COVERAGE, StepFunction, UnseenGpu, Widths, probability_best

LEAST_SHAPES = 10
"""Held-out shapes that a base of its own needs."""
POOLED_SHAPES = 20
"""With this many shapes a key's own quantile counts as much as its parent's (in logs); with more, more."""
DISTANCE_BANDS = 6
TIME_BANDS = 5
LEAST_ERROR = 1e-9
"""In log time; what is below is rounding: a model that is exact must not divide by nothing."""
LEAST_WIDTH = 1e-4
"""No base is smaller: a model that errs nowhere on a few rows is not perfect."""
PARTS = 5
"""Parts of the shapes: each is scored by widths of the others."""
SHARES = (0.1, 2.0)
"""Ends of the search for the own share of errors."""
SHARE_PROBLEMS = 1000
"""Problems that its likelihood is taken over; more hardly change it."""
LEAST_LIKELIHOOD = 1e-6
"""Of a problem's best candidate: one hopeless problem shall not decide."""
LEAST_GPUS = 3
"""Fewer say nothing of how GPUs differ."""
MOST_GPUS = 6
"""GPUs that `fit_unseen_gpu` leaves out, those with most rows: each costs one fit."""
LARGE_ROWS = 300_000
"""Of larger tables `LEAST_GPUS` GPUs alone are left out, and as many rows are drawn for each fit."""
GPU_FOLDS = 3
"""A GPU is judged on one of so many parts of the shapes, which its fit never saw on any GPU."""


@dataclass(frozen=True)
class Scores:
    """Held-out rows with both times; arrays (rows,).

    ``position`` in the rows they come from; ``error`` |log(predicted / measured)|; ``shape`` codes.
    """

    position: np.ndarray
    error: np.ndarray
    predicted_us: np.ndarray
    distance: np.ndarray
    shape: np.ndarray
    gpu: np.ndarray
    candidate: np.ndarray

    @classmethod
    def of(cls, rows: Rows, predicted_us: np.ndarray, measured_us: np.ndarray, distance: np.ndarray) -> Self:
        """The rows with both times. Raises `InputError` where there are none."""
        position = np.flatnonzero(np.isfinite(predicted_us) & np.isfinite(measured_us))
        if not len(position):
            raise InputError("no held-out row has a predicted and a measured time; intervals need some")
        return cls(
            position,
            np.maximum(np.abs(np.log(predicted_us[position] / measured_us[position])), LEAST_ERROR),
            predicted_us[position],
            distance[position],
            np.unique(rows.shape[position], return_inverse=True)[1],
            device_names(rows.frame)[position],
            rows.candidate[position],
        )

    def take(self, mask: np.ndarray) -> "Scores":
        """The rows where the mask holds."""
        return Scores(*(getattr(self, f.name)[mask] for f in fields(self)))

    def half_widths(self, widths: Widths) -> np.ndarray:
        """(rows,) what ``widths`` say of these rows."""
        return widths.at(self.gpu, self.candidate, self.distance, self.predicted_us)


def fit_widths(
    rows: Rows,
    predicted_us: np.ndarray,
    measured_us: np.ndarray,
    distance: np.ndarray,
    judged: np.ndarray | None = None,
) -> Widths:
    """Widths from held-out predictions (rows,) in µs; rows without either time are left out.

    ``distance`` (rows,) is from each row to the training data of the fold that held it out (see `Domain.distances`);
    ``judged`` (rows,) True where the own share of errors may be learned: all rows of problems whose fastest candidate
    is known (None: everywhere). Raises `InputError` where no row has both times.
    """
    scores = Scores.of(rows, predicted_us, measured_us, distance)
    widths, half_width = _last_fitted(scores)
    counted = np.ones(len(scores.error), dtype=bool) if judged is None else judged[scores.position]
    part = scores.take(counted)
    measured, problem = measured_us[part.position], rows.problem[part.position]
    share = fit_own_share(part.predicted_us, measured, half_width[counted], problem, part.shape)
    return replace(widths, own_share=share)


def held_out_half_widths(
    rows: Rows, predicted_us: np.ndarray, measured_us: np.ndarray, distance: np.ndarray
) -> np.ndarray:
    """(rows,) half widths, each by widths fitted on other shapes alone: what coverage may be judged by; else NaN."""
    scores = Scores.of(rows, predicted_us, measured_us, distance)
    out = np.full(len(rows), np.nan)
    out[scores.position] = _crossed(scores, lambda others: _last_fitted(others)[0], seed=1)
    return out


def _crossed(scores: Scores, fit: Callable[[Scores], Widths], seed: int) -> np.ndarray:
    """(rows,) half widths, each by what ``fit`` makes of other shapes; NaN where there is one shape alone."""
    label = fold_labels(scores.shape.astype(str), PARTS, seed)
    crossed = np.full(len(label), np.nan)
    for number in np.unique(label) if label.any() else ():
        held = label == number
        crossed[held] = scores.take(held).half_widths(fit(scores.take(~held)))
    return crossed


def _last_fitted(scores: Scores) -> tuple[Widths, np.ndarray]:
    """Widths whose last constant comes from cross-fitted scores, and those cross-fitted half widths (rows,)."""
    widths, crossed = _fitted(scores), _crossed(scores, _fitted, seed=0)
    if np.isnan(crossed).all():  # one shape: nothing to cross with
        return widths, scores.half_widths(widths)
    last = conformal_quantile(scores.error / crossed, scores.shape)
    bases = {key: max(base * last, LEAST_WIDTH) for key, base in widths.by_key.items()}
    return replace(widths, by_key=bases), crossed * last


def conformal_quantile(scores: np.ndarray, shape: np.ndarray) -> float:
    """The score that covers `COVERAGE` of the rows of a new shape, where ``shape`` (rows,) are codes.

    With n scores of K shapes the rank is ⌈n · COVERAGE · (K + 1) / K⌉, the last where it exceeds n; with a shape per
    row it is split conformal prediction's ⌈(n + 1) · COVERAGE⌉.
    """
    shapes = len(np.unique(shape))
    rank = int(np.ceil(round(len(scores) * COVERAGE * (shapes + 1) / shapes, 9)))
    return float(np.sort(scores)[min(rank, len(scores)) - 1])


def pooled_base(base: float, parent: float, shapes: int) -> float:
    """A key's quantile, drawn (in logs) towards its parent's as far as its shapes are few."""
    weight = shapes / (shapes + POOLED_SHAPES) if shapes >= LEAST_SHAPES else 0.0
    return base**weight * parent ** (1 - weight)


def _fitted(scores: Scores) -> Widths:
    """Both factors, then the bases of what they leave."""
    typical = pd.Series(scores.error).groupby(scores.candidate).transform("median").to_numpy()
    near = _steps(scores.distance, scores.error / typical, scores.shape, DISTANCE_BANDS, rising=True)
    left = scores.error / near.at(scores.distance)
    time = _steps(scores.predicted_us, left / typical, scores.shape, TIME_BANDS, rising=False)
    return Widths(_bases(scores, left / time.at(scores.predicted_us)), near, time)


def _bases(scores: Scores, left: np.ndarray) -> dict[str, float]:
    """The base of all rows, of every candidate and of every candidate on a GPU, where the shapes suffice."""
    bases = {ALL: max(conformal_quantile(left, scores.shape), LEAST_WIDTH)}
    table = pd.DataFrame({"gpu": scores.gpu, "candidate": scores.candidate})
    for columns in (["candidate"], ["gpu", "candidate"]):
        for names, index in table.groupby(columns).indices.items():
            shapes = len(np.unique(scores.shape[index]))
            if shapes >= LEAST_SHAPES:
                base = max(conformal_quantile(left[index], scores.shape[index]), LEAST_WIDTH)
                parent = bases.get(str(scores.candidate[index[0]]), bases[ALL])
                key = "|".join(names) if isinstance(names, tuple) else str(names)
                bases[key] = float(pooled_base(base, parent, shapes))
    return bases


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


def fit_own_share(
    predicted_us: np.ndarray, measured_us: np.ndarray, half_width: np.ndarray, problem: np.ndarray, shape: np.ndarray
) -> float:
    """The part of a half width that the candidates of one problem do not share, from held-out predictions.

    The share under which the measured fastest candidates were most likely (maximum likelihood, every shape alike), so
    that it also makes good that the candidate predicted fastest owes its place to its error more than others do. Arrays
    (rows,), ``problem`` and ``shape`` any codes. 1 where no problem has two rows.
    """
    from scipy.optimize import minimize_scalar

    groups = [rows for rows in rows_by_code(problem) if len(rows) > 1]
    if not groups:
        return 1.0
    picked = np.random.default_rng(0).permutation(len(groups))[:SHARE_PROBLEMS]
    cases = [
        (np.log(predicted_us[rows]), half_width[rows], int(measured_us[rows].argmin()))
        for rows in (groups[i] for i in picked)
    ]
    shapes = np.unique([shape[groups[i][0]] for i in picked], return_inverse=True)[1]
    weight = 1 / np.bincount(shapes)[shapes]

    def loss(log_share: float) -> float:
        likely = [probability_best(time, width, np.exp(log_share))[best] for time, width, best in cases]
        return -float(weight @ np.log(np.maximum(likely, LEAST_LIKELIHOOD)))

    fitted: Any = minimize_scalar(loss, bounds=np.log(SHARES), method="bounded", options={"xatol": 0.02})
    return float(np.exp(fitted.x))


def held_out_by_shape(
    model: "TimeModel",
    rows: Rows,
    count: int,
    seed: int,
    step: Callable[[int], None] = lambda fold: None,
    fits: int | None = None,
    most_rows: int | None = None,
    keep: Path | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(rows,) predictions by clones of ``model`` that never saw the row's shape, and distances to what those saw.

    ``count`` folds by shape, of which the first ``fits`` are run (None: all); ``step`` is called with the number of
    each before its fit. Each fit sees ``most_rows`` rows at most (None: all), drawn at random. ``keep`` is a folder of
    finished fits (`times_of`). NaN in other folds and where a fold had nothing to learn from. Raises `InputError` where
    no row gets a prediction.
    """
    label = fold_labels(shape_names(rows.frame, rows.family), count, seed)
    predicted, distance = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    for fold in range(count if fits is None else fits):
        step(fold)
        inside_rows, outside = np.flatnonzero(label != fold), np.flatnonzero(label == fold)
        if most_rows is not None and len(inside_rows) > most_rows:
            inside_rows = np.sort(np.random.default_rng(seed).permutation(inside_rows)[:most_rows])
        inside = rows.take(inside_rows)
        if inside.ok.any() and len(outside):
            held = rows.take(outside)
            predicted[outside] = times_of(duplicate(model), inside, held, keep)
            distance[outside] = distances_to(references_of(inside), held)
    if not np.isfinite(predicted[rows.ok]).any():
        raise InputError("all rows have one shape; held-out errors and intervals need at least two shapes")
    return predicted, distance


def fit_unseen_gpu(
    rows: Rows, widths: Widths, model: "TimeModel", judged: np.ndarray, *, seed: int = 0, keep: Path | None = None
) -> UnseenGpu:
    """How far off times are on a GPU that was never measured, and what ``widths`` are multiplied by there.

    Each of up to `MOST_GPUS` GPUs is left out, with all others of its architecture and with a part of the shapes, and
    predicted by a clone of ``model`` fitted on the rest. Its errors are divided by the half widths that hold for any
    GPU (candidate, distance, time); a factor is the `COVERAGE` quantile of these ratios, at least 1, every GPU with
    equal weight: over all rows, and of each math type that two GPUs were left out with. The own share is that of
    ``judged`` (rows,) problems. Costs one fit a GPU; ``keep`` is a folder of finished ones. The defaults for fewer than
    `LEAST_GPUS` architectures, or for one shape.
    """
    judged, rows = judged[rows.ok], rows.take(rows.ok)
    device, names = device_names(rows.frame).astype(str), shape_names(rows.frame, rows.family)
    gpus, counts = np.unique(device, return_counts=True)
    known = {name: rows.devices.get(name) or gpu(name) for name in gpus.tolist()}
    largest: dict[str, str] = {}  # of each architecture the GPU with most rows
    for name in gpus[np.argsort(-counts, kind="stable")].tolist():
        largest.setdefault(known[name].architecture, name)
    if len(largest) < LEAST_GPUS or len(set(names)) < 2:
        return UnseenGpu()
    most = MOST_GPUS if len(rows) <= LARGE_ROWS else LEAST_GPUS
    fold = fold_labels(names, GPU_FOLDS, seed)
    predicted, half = np.full(len(rows), np.nan), np.ones(len(rows))
    for number, (architecture, name) in enumerate(list(largest.items())[:most]):
        on_gpu = device == name
        siblings = np.isin(device, [other for other in known if known[other].architecture == architecture])
        folds = np.unique(fold[on_gpu])  # those of which the GPU has rows, another one for each GPU
        held_fold = folds[number % len(folds)]
        inside, outside = (fold != held_fold) & ~siblings, np.flatnonzero(on_gpu & (fold == held_fold))
        try:
            sample = np.random.default_rng(seed).permutation(np.flatnonzero(inside))[:LARGE_ROWS]
            rest, held = rows.take(np.sort(sample)), rows.take(outside)
            predicted[outside] = times_of(model.elsewhere(), rest, held, keep)
        except InputError:  # nothing to learn from
            continue
        distance, no_gpu = distances_to(references_of(rest), held), np.full(len(held), "", dtype=object)
        half[outside] = widths.at(no_gpu, held.candidate, distance, predicted[outside])
    scored = np.flatnonzero(np.isfinite(predicted))
    if not len(scored):
        return UnseenGpu()
    log_error = np.abs(np.log(predicted / rows.time_us))
    math = rows.frame["math"].to_numpy(str) if "math" in rows.frame else np.full(len(rows), "")
    part_of = {name: scored[math[scored] == name] for name in np.unique(math[scored]).tolist()}
    parts = {name: part for name, part in part_of.items() if len(np.unique(device[part])) > 1} | {"": scored}
    factors = {
        name: float(f"{max(1.0, _equal_quantile(log_error[part] / half[part], device[part])):.4g}")
        for name, part in parts.items()
    }
    unseen = UnseenGpu(factors, gpus=len(np.unique(device[scored])))
    half *= [unseen.factor(name) for name in math]
    known, arrays = scored[judged[scored]], (predicted, rows.time_us, half, rows.problem, rows.shape)
    share = fit_own_share(*(values[known] for values in arrays))
    median = _equal_quantile(np.abs(predicted / rows.time_us - 1)[scored], device[scored], 0.5)
    ninth = np.exp(_equal_quantile(log_error[scored], device[scored]))
    share, median, ninth = (float(f"{value:.4g}") for value in (share, median, ninth))
    return replace(unseen, own_share=share, median_ape=median, factor_90=ninth)


def _equal_quantile(values: np.ndarray, group: np.ndarray, share: float = COVERAGE) -> float:
    """The quantile of ``values`` (rows,) where every ``group`` (rows,) has the same weight."""
    code, count = np.unique(group, return_inverse=True, return_counts=True)[1:]
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(1.0 / count[code[order]])
    return float(values[order][np.searchsorted(reached / reached[-1], share)])
