"""Interval widths from held-out predictions: what `surrogate.uncertainty.conformal.Widths` looks up.

Source: Lei et al. 2018, "Distribution-free predictive inference for regression": split conformal prediction with
locally weighted scores |log error| / width. Rows of one shape err alike, so shapes are the sample: finite-sample ranks
count shapes, and every shape is scored by widths that were fitted on other shapes before the last constant is taken.
"""

from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
import pandas as pd

from surrogate.dataset.problems import joined, problem_codes
from surrogate.dataset.splits import fold_of_names, shape_names
from surrogate.features.errors import InputError
from surrogate.uncertainty.conformal import ALL, COVERAGE, KEY_COLUMNS, Factors, Widths
from surrogate.uncertainty.own_share import fit_own_share

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


@dataclass(frozen=True)
class Scores:
    """Held-out rows with both times; arrays (rows,).

    ``position`` in the table they come from; ``error`` |log(predicted / measured)|; ``shape`` codes; ``own`` and
    ``shared`` keys of `Widths.by_key`.
    """

    frame: pd.DataFrame
    position: np.ndarray
    error: np.ndarray
    predicted_us: np.ndarray
    distance: np.ndarray
    shape: np.ndarray
    own: np.ndarray
    shared: np.ndarray

    @classmethod
    def of(
        cls, frame: pd.DataFrame, predicted_us: np.ndarray, measured_us: np.ndarray, distance: np.ndarray
    ) -> Self:
        """The rows with both times. Raises `InputError` where there are none."""
        position = np.flatnonzero(np.isfinite(predicted_us) & np.isfinite(measured_us))
        if not len(position):
            raise InputError("no held-out row has a predicted and a measured time; intervals need some")
        part = frame.iloc[position]
        return cls(
            part,
            position,
            np.maximum(np.abs(np.log(predicted_us[position] / measured_us[position])), LEAST_ERROR),
            predicted_us[position],
            distance[position],
            np.unique(shape_names(part).astype(str), return_inverse=True)[1],
            joined(part, KEY_COLUMNS).to_numpy(),
            joined(part, KEY_COLUMNS[1:]).to_numpy(),
        )

    def take(self, mask: np.ndarray) -> "Scores":
        """The rows where the mask holds."""
        return Scores(self.frame[mask], *(getattr(self, f.name)[mask] for f in fields(self)[1:]))


def fit_widths(
    frame: pd.DataFrame,
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
    scores = Scores.of(frame, predicted_us, measured_us, distance)
    widths, half_width = _last_fitted(scores)
    told = np.ones(len(frame), dtype=bool) if judged is None else judged
    counted = told[scores.position]
    part = scores.take(counted)
    own_share = fit_own_share(
        part.predicted_us,
        measured_us[part.position],
        half_width[counted],
        problem_codes(part.frame),
        part.shape,
    )
    return replace(widths, own_share=own_share)


def held_out_half_widths(
    frame: pd.DataFrame, predicted_us: np.ndarray, measured_us: np.ndarray, distance: np.ndarray
) -> np.ndarray:
    """(rows,) half widths, each by widths fitted on other shapes alone: what coverage may be judged by; else NaN."""
    scores = Scores.of(frame, predicted_us, measured_us, distance)
    out = np.full(len(frame), np.nan)
    label = _parts(scores, seed=1)
    for number in np.unique(label)[: None if label.max() else 0]:
        judged = scores.take(label == number)
        out[judged.position] = _of(_last_fitted(scores.take(label != number))[0], judged)
    return out


def _last_fitted(scores: Scores) -> tuple[Widths, np.ndarray]:
    """Widths whose last constant comes from cross-fitted scores, and those cross-fitted half widths (rows,)."""
    widths, crossed = _fitted(scores), np.empty(len(scores.error))
    label = _parts(scores, seed=0)
    if not label.any():  # one shape: nothing to cross with
        return widths, _of(widths, scores)
    for number in np.unique(label):
        judged = scores.take(label == number)
        crossed[label == number] = _of(_fitted(scores.take(label != number)), judged)
    last = conformal_quantile(scores.error / crossed, scores.shape)
    bases = {key: max(base * last, LEAST_WIDTH) for key, base in widths.by_key.items()}
    return replace(widths, by_key=bases), crossed * last


def _parts(scores: Scores, seed: int) -> np.ndarray:
    """(rows,) which of `PARTS` parts each row's shape is dealt to."""
    part_of = fold_of_names(scores.shape.astype(str), PARTS, seed)
    return np.array([part_of[name] for name in scores.shape.astype(str)])


def conformal_quantile(scores: np.ndarray, shape: np.ndarray) -> float:
    """The score that covers `COVERAGE` of the rows of a new shape, where ``shape`` (rows,) are codes.

    With n scores of K shapes the rank is ⌈n · COVERAGE · (K + 1) / K⌉, the last where it exceeds n; with a shape per
    row it is split conformal prediction's ⌈(n + 1) · COVERAGE⌉.
    """
    shapes = len(np.unique(shape))
    rank = int(np.ceil(round(len(scores) * COVERAGE * (shapes + 1) / shapes, 9)))
    return float(np.sort(scores)[min(rank, len(scores)) - 1])


def _of(widths: Widths, scores: Scores) -> np.ndarray:
    keys, code = np.unique(scores.own.astype(str), return_inverse=True)
    return widths.at(keys.tolist(), code, scores.distance, scores.predicted_us)


def _fitted(scores: Scores) -> Widths:
    """Both factors, then the bases of what they leave."""
    typical = pd.Series(scores.error).groupby(scores.shared).transform("median").to_numpy()
    near = _factors(scores.distance, scores.error / typical, scores.shape, DISTANCE_BANDS, rising=True)
    left = scores.error / near.at(scores.distance)
    time = _factors(scores.predicted_us, left / typical, scores.shape, TIME_BANDS, rising=False)
    return Widths(_bases(scores, left / time.at(scores.predicted_us)), near, time)


def _bases(scores: Scores, left: np.ndarray) -> dict[str, float]:
    """A key's quantile, drawn towards its parent's as far as its shapes are few."""
    bases = {ALL: max(conformal_quantile(left, scores.shape), LEAST_WIDTH)}
    for keys in (scores.shared, scores.own):
        for key, rows in pd.Series(np.arange(len(keys))).groupby(keys):
            index = rows.to_numpy()
            shapes = len(np.unique(scores.shape[index]))
            if shapes < LEAST_SHAPES:
                continue
            parent = bases.get(str(scores.shared[index[0]]), bases[ALL])
            weight = shapes / (shapes + POOLED_SHAPES)
            own = max(conformal_quantile(left[index], scores.shape[index]), LEAST_WIDTH)
            bases[str(key)] = float(own**weight * parent ** (1 - weight))
    return bases


def _factors(x: np.ndarray, score: np.ndarray, shape: np.ndarray, bands: int, *, rising: bool) -> Factors:
    """Quantiles of ``score`` in bands of ``x`` that hold about equally many shapes; 1 on the (geometric) average.

    ``rising`` pools neighbouring bands until the factors never fall.
    """
    weight = 1 / np.bincount(shape)[shape]
    order = np.argsort(x, kind="stable")
    reached = np.cumsum(weight[order]) / weight.sum()
    cuts = x[order][np.searchsorted(reached, np.arange(1, bands) / bands)]
    edges = np.unique(cuts[np.isfinite(cuts) & (cuts > x.min())])
    band = np.searchsorted(edges, x, side="right")
    held = np.bincount(band, weights=weight, minlength=len(edges) + 1)
    level = np.array([conformal_quantile(score[band == b], shape[band == b]) for b in range(len(held))])
    log_level = np.log(level)
    if rising:
        log_level = isotonic(log_level, held)
    values = np.exp(log_level - np.average(log_level, weights=held))
    return Factors(tuple(map(float, edges)), tuple(map(float, values)))


def isotonic(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The never-falling sequence nearest to ``values`` in weighted squares: pool adjacent violators."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        mean, total, count = float(value), float(weight), 1
        while pools and pools[-1][0] > mean:
            before, held, members = pools.pop()
            mean = (before * held + mean * total) / (held + total)
            total, count = total + held, count + members
        pools.append((mean, total, count))
    return np.repeat([mean for mean, _, _ in pools], [count for _, _, count in pools])
