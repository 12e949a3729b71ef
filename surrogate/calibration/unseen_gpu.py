"""A GPU that was never measured: how much wider its intervals must be than those of the measured ones."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from features.errors import InputError
from surrogate.comparison import candidate_frame
from surrogate.dataset.problems import device_names, joined
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.splits import fold_of_names, shape_names
from surrogate.dataset.store import Dataset
from surrogate.models import DEFAULT_MODEL, Model, model_class
from surrogate.uncertainty.conformal import COVERAGE

FOLDS = 3
"""Parts of the shapes; each is predicted by models of the others."""


def unseen_gpu_factor(
    data: Dataset,
    *,
    model: str = DEFAULT_MODEL,
    params: Mapping[str, Any] | None = None,
    candidate: str = "algorithm",
    seed: int = 0,
) -> float:
    """What half widths (in log time) are multiplied by for a GPU that was never measured; at least 1.

    Errors of models that saw neither the GPU nor the shape are divided by the `COVERAGE` quantile of models that saw
    the GPU but not the shape (same direction and algorithm); the factor is the `COVERAGE` quantile of these ratios,
    every GPU with equal weight. Costs (GPUs + 1) · `FOLDS` fits. Raises `InputError` for a table of one GPU or shape.
    """
    rows = rows_of(candidate_frame(data, candidate), data.devices)
    rows = rows.take(rows.ok)
    device, names = device_names(rows.frame), shape_names(rows.frame)
    if len(set(device)) < 2 or len(set(names)) < 2:
        raise InputError(
            f"{data.name}: one GPU or one shape says nothing about another; give a table of several"
        )
    fold_of = fold_of_names(names, FOLDS, seed)
    fold = np.array([fold_of[name] for name in names])
    unfitted = model_class(model)(**(params or {}))
    shape_unseen, both_unseen = np.empty(len(rows)), np.empty(len(rows))
    for held in np.unique(fold):
        inside, outside = fold != held, fold == held
        shape_unseen[outside] = _error(unfitted, rows, inside, outside, seed)
        for one in sorted(set(device)):
            judged = outside & (device == one)
            if judged.any():
                both_unseen[judged] = _error(unfitted, rows, inside & (device != one), judged, seed)
    usual = _quantile_by(shape_unseen, joined(rows.frame, ("direction", "algorithm")).to_numpy())
    weight = 1.0 / pd.Series(device).groupby(device).transform("size").to_numpy()
    return max(1.0, _weighted_quantile(both_unseen / usual, weight))


def _error(model: Model, rows: Rows, inside: np.ndarray, judged: np.ndarray, seed: int) -> np.ndarray:
    """|log error| of the rows of mask ``judged`` by a model of those of ``inside``."""
    part = rows.take(judged)
    predicted = model.fit(rows.take(inside), seed=seed).predict_us(part)
    return np.abs(np.log(predicted / part.time_us))


def _quantile_by(error: np.ndarray, key: np.ndarray) -> np.ndarray:
    """(rows,) the `COVERAGE` quantile of the errors of each row's key."""
    quantiles = pd.Series(error).groupby(key).transform(lambda part: part.quantile(COVERAGE))
    return np.maximum(quantiles.to_numpy(), np.finfo(float).tiny)


def _weighted_quantile(values: np.ndarray, weight: np.ndarray) -> float:
    order = np.argsort(values)
    share = np.cumsum(weight[order]) / weight.sum()
    return float(values[order][np.searchsorted(share, COVERAGE)])
