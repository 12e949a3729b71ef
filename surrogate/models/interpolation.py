"""`gemm-interpolation`: matrix products between measured ones.

Source: Lin et al., "Building a Performance Model for Deep Learning Recommendation Model Training on GPUs" (HiPC 2022).
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from surrogate.dataset.problems import by_setting
from surrogate.dataset.rows import Rows
from surrogate.features.errors import InputError
from surrogate.models.base import TimeModel
from surrogate.models.baselines import peak_times

SIZES = ("batch", "m", "n", "k")
Level = dict[float, Any] | np.ndarray
"""Measured values of one dimension, ascending → what lies under each: the next dimension, or rates (2,)."""


def levels(points: np.ndarray, rates: np.ndarray) -> Level:
    """The levels over ``points`` (rows, dimensions left) with ``rates`` (rows, 2); repeats are averaged."""
    if not points.shape[1]:
        return rates.mean(axis=0)
    first = points[:, 0]
    return {value: levels(points[first == value, 1:], rates[first == value]) for value in np.unique(first).tolist()}


def interpolated(level: Level, point: Sequence[float]) -> np.ndarray:
    """Rates (2,) at ``point``, as shares of the peak: exact where measured, else between the values that bracket it.

    Neighbours weigh linearly, the nearer more, over all dimensions by product. Below the least value the rate falls
    towards zero, above the greatest it is half the last rate and half the device's peak.
    """
    if not isinstance(level, dict):
        return level
    here, rest, values = point[0], point[1:], list(level)
    place = bisect_left(values, here)
    if place == len(values):
        return (interpolated(level[values[-1]], rest) + 1.0) / 2
    upper = interpolated(level[values[place]], rest)
    if values[place] == here:
        return upper
    before = values[place - 1] if place else 0.0
    lower = interpolated(level[before], rest) if place else np.zeros(2)
    return lower + (here - before) / (values[place] - before) * (upper - lower)


class GemmInterpolation(TimeModel):
    """Levels per GPU, library and setting over (batch, M, N, K); rates of arithmetic and of memory traffic.

    The method wants a grid. Where the measured sizes are scattered, brackets in one dimension leave nothing to bracket
    in the next: measured sizes are first rounded to powers of 2. NaN for a setting that training did not hold; other
    families raise `InputError`.
    """

    name: ClassVar[str] = "gemm-interpolation"

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        if rows.family.size_names != SIZES:
            raise InputError(f"{self.name} predicts matrix products, and these rows are {rows.family.name}")
        rates, grid = peak_times(rows) / time_us[:, None], 2.0 ** np.round(np.log2(_points(rows)))
        self.levels_ = {
            setting: levels(grid[positions], rates[positions])
            for setting, positions in by_setting(rows.frame, rows.family)
        }

    def _predict(self, rows: Rows) -> np.ndarray:
        """The longer of both: work / rate."""
        out, work, points = np.full(len(rows), np.nan), peak_times(rows), _points(rows)
        for setting, positions in by_setting(rows.frame, rows.family):
            if setting in self.levels_:
                rates = [interpolated(self.levels_[setting], point) for point in points[positions].tolist()]
                out[positions] = (work[positions] / np.array(rates)).max(axis=1)
        return out


def _points(rows: Rows) -> np.ndarray:
    """(rows, 4) sizes."""
    return rows.frame[list(SIZES)].to_numpy(dtype=np.float64)
