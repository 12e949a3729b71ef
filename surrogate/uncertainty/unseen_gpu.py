"""A GPU that was never measured: how much wider its intervals must be than those of the measured ones."""

from typing import TYPE_CHECKING

import numpy as np

from surrogate.dataset.problems import device_names, joined
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_of_names, shape_names
from surrogate.features.errors import InputError
from surrogate.models.blend import Blend
from surrogate.uncertainty.conformal import COVERAGE, Widths
from surrogate.uncertainty.domain import distances_to, reference_shapes

if TYPE_CHECKING:
    from surrogate.models import Model

LEAST_GPUS = 3
"""Fewer say nothing of how GPUs differ."""
MOST_GPUS = 6
"""GPUs that are left out, those with most rows: each costs one fit."""
FOLDS = 3
"""A GPU is judged on one of so many parts of the shapes, which its fit never saw on any GPU."""


def unseen_gpu_factor(rows: Rows, widths: Widths, model: "Model", *, seed: int = 0) -> float | None:
    """What ``widths`` (log time) are multiplied by for a GPU that was never measured; at least 1, None if unknown.

    Each of up to `MOST_GPUS` GPUs is left out with a part of the shapes, and predicted by ``model`` fitted on the rest
    (a `Blend`'s trees alone, since they alone answer there). Its errors are divided by the half widths that hold for
    any GPU (direction, algorithm, distance, time); the factor is the `COVERAGE` quantile of these ratios, every GPU
    with equal weight. Costs one fit a GPU. None for fewer than `LEAST_GPUS` GPUs, or for one shape.
    """
    rows = rows.take(rows.ok)
    device, names = device_names(rows.frame), shape_names(rows.frame)
    found, counts = np.unique(device.astype(str), return_counts=True)
    if len(found) < LEAST_GPUS or len(set(names)) < 2:
        return None
    alone = model.trees if isinstance(model, Blend) else model
    fold_of = fold_of_names(names, FOLDS, seed)
    fold = np.array([fold_of[name] for name in names])
    ratios, weights = [], []
    for place, one in enumerate(found[np.argsort(-counts, kind="stable")[:MOST_GPUS]]):
        own = device == one
        held = _part_with_rows(fold, own, place)
        inside = (fold != held) & ~own
        if inside.any():
            ratio = _ratios(alone, rows.take(inside), rows.take(own & (fold == held)), widths, seed)
            ratios.append(ratio)
            weights.append(np.full(len(ratio), 1.0 / max(len(ratio), 1)))
    ratio = np.concatenate(ratios) if ratios else np.empty(0)
    return max(1.0, _weighted_quantile(ratio, np.concatenate(weights))) if len(ratio) else None


def _part_with_rows(fold: np.ndarray, own: np.ndarray, place: int) -> int:
    """A part of the shapes of which a GPU has rows, another for each ``place``."""
    parts = np.unique(fold[own])
    return int(parts[place % len(parts)])


def _ratios(model: "Model", inside: Rows, judged: Rows, widths: Widths, seed: int) -> np.ndarray:
    """|log error| / half width of the rows of ``judged`` that a model of ``inside`` predicts; none if it has no fit."""
    try:
        predicted = model.fit(inside, seed=seed).predict_us(judged)
    except InputError:
        return np.empty(0)
    distance = distances_to(reference_shapes(inside.frame), judged.frame)
    names, code = np.unique(joined(judged.frame, ("direction", "algorithm")), return_inverse=True)
    half = widths.at([f"|{name}" for name in names], code, distance, predicted)
    ratio = np.abs(np.log(predicted / judged.time_us)) / half
    return ratio[np.isfinite(ratio)]


def _weighted_quantile(values: np.ndarray, weight: np.ndarray) -> float:
    order = np.argsort(values)
    share = np.cumsum(weight[order]) / weight.sum()
    return float(values[order][min(np.searchsorted(share, COVERAGE), len(values) - 1)])
