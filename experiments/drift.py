"""A measuring campaign whose times grow with every problem measured: how much, per GPU, along the file.

The table of winners has such a drift: what a model gets wrong grows linearly with the row's place in the file, by some
hundred microseconds from the first row to the last, whatever the problem is.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from surrogate.dataset.problems import shape_names
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_labels
from surrogate.models import TimeModel
from surrogate.models.base import duplicate

ROUNDS = 3
"""Times that drift and model are fitted in turn."""
LEAST_SHARE = 0.05
"""Of a measured time that no correction takes away."""


def places_in_file(gpu: np.ndarray) -> np.ndarray:
    """(rows,) −½ … ½: the place of each row among those of its GPU, in the order of the file."""
    place = np.zeros(len(gpu))
    for rows in pd.Series(gpu).groupby(gpu).indices.values():
        place[rows] = np.linspace(-0.5, 0.5, len(rows)) if len(rows) > 1 else 0.0
    return place


def without_drift(rows: Rows, place: np.ndarray, slope_us: Mapping[str, float]) -> Rows:
    """The rows with the drift taken from their times: what the middle of the campaign would have measured, in µs."""
    drift = place * rows.frame["gpu"].map(dict(slope_us)).fillna(0.0).to_numpy(dtype=float)
    return replace(rows, time_us=np.maximum(rows.time_us - drift, LEAST_SHARE * rows.time_us))


def fit_drift(rows: Rows, place: np.ndarray, model: TimeModel, seed: int) -> dict[str, float]:
    """GPU → µs that times grow by from the first row of the file to the last.

    In turn: a model of the corrected times, fitted on one half of the shapes and tried on the other; then, per GPU, the
    slope of what it got wrong over ``place`` (rows,), by least squares on errors relative to the prediction.
    """
    gpu = rows.frame["gpu"].to_numpy()
    half = fold_labels(shape_names(rows.frame, rows.family), 2, seed)
    slope = dict.fromkeys(np.unique(gpu).tolist(), 0.0)
    for _ in range(ROUNDS):
        level = without_drift(rows, place, slope)
        predicted = np.empty(len(rows))
        for other in (0, 1):
            fitted = duplicate(model).fit(level.take(half != other))
            predicted[half == other] = fitted.predict(level.take(half == other))
        over, along = level.time_us / predicted - 1.0, place / predicted
        for name in slope:
            mine = gpu == name
            slope[name] += float((over[mine] @ along[mine]) / max(along[mine] @ along[mine], 1e-300))
    return slope
