"""`gemm-interpolation`: matrix products between measured ones.

Source: Lin et al., "Building a Performance Model for Deep Learning Recommendation Model Training on GPUs" (HiPC 2022).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from surrogate.dataset.problems import device_names, groups
from surrogate.dataset.rows import Rows
from surrogate.features.errors import InputError
from surrogate.features.families import GEMM
from surrogate.features.gpu import gpu
from surrogate.features.problem import ELEMENTS
from surrogate.features.roofline import peak_tflops
from surrogate.models.base import TimeModel

SIZES = ("batch", "m", "n", "k")
SETTING = ("gpu", "library", "operator", "dtype", "math")
Rates = tuple[float, float]
"""Multiply-adds and bytes per µs."""


@dataclass(frozen=True, slots=True)
class Level:
    """Measured values of one dimension, ascending, and what lies under each: the next dimension, or rates."""

    values: tuple[float, ...]
    below: tuple["Level | Rates", ...]

    @classmethod
    def of(cls, points: np.ndarray, rates: np.ndarray) -> "Level | Rates":
        """The levels over ``points`` (rows, dimensions left) with ``rates`` (rows, 2); repeats are averaged."""
        if not points.shape[1]:
            macs, moved = rates.mean(axis=0)
            return float(macs), float(moved)
        values, index = np.unique(points[:, 0], return_inverse=True)
        below = tuple(cls.of(points[index == i][:, 1:], rates[index == i]) for i in range(len(values)))
        return cls(tuple(values.tolist()), below)


def interpolated(level: "Level | Rates", point: Sequence[float], peak: Rates) -> Rates:
    """Rates at ``point``: each dimension exact where measured, else between the values that bracket it.

    Neighbours weigh linearly, the nearer more, over all dimensions by product. Below the least value the rate falls
    towards zero, above the greatest it is half the last rate and half the device's peak.
    """
    if not isinstance(level, Level):
        return level
    here, rest = point[0], point[1:]
    place = bisect_left(level.values, here)
    if place < len(level.values) and level.values[place] == here:
        return interpolated(level.below[place], rest, peak)
    if place == len(level.values):
        last = interpolated(level.below[-1], rest, peak)
        return (last[0] + peak[0]) / 2, (last[1] + peak[1]) / 2
    upper = interpolated(level.below[place], rest, peak)
    if place == 0:
        share = here / level.values[0]
        return upper[0] * share, upper[1] * share
    lower = interpolated(level.below[place - 1], rest, peak)
    share = (here - level.values[place - 1]) / (level.values[place] - level.values[place - 1])
    return lower[0] + share * (upper[0] - lower[0]), lower[1] + share * (upper[1] - lower[1])


class GemmInterpolation(TimeModel):
    """Levels per GPU, library, operator, dtype and math over (batch, M, N, K); what was measured keeps its time.

    The method wants a grid. Where the measured sizes are scattered, brackets in one dimension leave nothing to bracket
    in the next: ``steps_per_octave`` first rounds sizes to that many steps per factor of 2 (None: as measured). NaN for
    a setting that training did not hold; other families raise `InputError`.
    """

    name: ClassVar[str] = "gemm-interpolation"

    def __init__(self, steps_per_octave: float | None = 1.0) -> None:
        self.steps_per_octave = steps_per_octave

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        self.levels_: dict[tuple[str, ...], Level | Rates] = {}
        self.measured_: dict[tuple[str, ...], dict[tuple[int, ...], float]] = {}
        for setting, positions in _settings(rows):
            points, macs, moved = _work(rows, positions, setting)
            rates = np.column_stack([macs, moved]) / time_us[positions, None]
            self.measured_[setting] = dict(
                zip(map(tuple, points.tolist()), time_us[positions].tolist(), strict=True)
            )
            self.levels_[setting] = Level.of(self._rounded(points), rates)

    def _predict(self, rows: Rows) -> np.ndarray:
        """max(multiply-adds / rate, bytes / rate)."""
        out = np.full(len(rows), np.nan)
        for setting, positions in _settings(rows):
            if setting not in self.levels_:
                continue
            points, *work = _work(rows, positions, setting)
            peak = _peak(setting)
            for row, point, macs, moved in zip(positions, points.tolist(), *work, strict=True):
                time_us = self.measured_[setting].get(tuple(point))
                if time_us is None:
                    mac_rate, byte_rate = interpolated(self.levels_[setting], point, peak)
                    time_us = max(macs / mac_rate, moved / byte_rate)
                out[row] = time_us
        return out

    def _rounded(self, points: np.ndarray) -> np.ndarray:
        if self.steps_per_octave is None:
            return points.astype(float)
        return 2.0 ** (np.round(np.log2(points) * self.steps_per_octave) / self.steps_per_octave)


def _settings(rows: Rows) -> list[tuple[tuple[str, ...], np.ndarray]]:
    """(values of `SETTING`, positions) of the rows. Raises `InputError` for another family than products."""
    if rows.family is not GEMM:
        raise InputError(
            f"gemm-interpolation predicts matrix products alone, and these rows are {rows.family.name}"
        )
    return groups(rows.frame.assign(gpu=device_names(rows.frame)), SETTING)


def _work(
    rows: Rows, positions: np.ndarray, setting: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points (rows, 4), multiply-adds and bytes (rows,) of one setting's rows; a bias is left out."""
    points = rows.frame.iloc[positions][list(SIZES)].to_numpy()
    batch, m, n, k = points.T.astype(np.float64)
    return points, batch * m * n * k, ELEMENTS[setting[3]].activation_bytes * batch * (m * k + k * n + m * n)


def _peak(setting: tuple[str, ...]) -> Rates:
    """Multiply-adds and bytes per µs of the device at its peak."""
    name, _, operator, dtype, math = setting
    tensor_cores = GEMM.kinds[operator].tensor_cores(dtype, math)
    device = gpu(name)
    return peak_tflops(device, dtype, tensor_cores) * 1e6 / 2, device.dram_gbs * 1e3
