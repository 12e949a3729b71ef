"""`gemm-interpolation`: matrix products between measured ones.

Source: Lin et al., "Building a Performance Model for Deep Learning Recommendation Model Training on GPUs" (HiPC 2022).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from surrogate.features.gpu import gpu
from surrogate.features.operators import OPERATORS
from surrogate.features.roofline import peak_tflops
from surrogate.operators.columns import GEMM, family_of
from surrogate.operators.table import OperatorTable

SIZES = ("batch", "m", "n", "k")
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


class GemmInterpolation:
    """Levels per GPU, library, kind, dtype and math over (batch, M, N, K).

    The method wants a grid. Where the measured sizes are scattered, brackets in one dimension leave nothing to bracket
    in the next: ``steps_per_octave`` first rounds sizes to that many steps per factor of 2 (None: as measured).
    """

    name: ClassVar[str] = "gemm-interpolation"
    handles_new_gpus: ClassVar[bool] = False

    def __init__(self, steps_per_octave: float | None = 1.0) -> None:
        self.steps_per_octave = steps_per_octave
        self._levels: dict[str, Level | Rates] = {}
        self._exact: dict[str, dict[tuple[int, ...], float]] = {}

    def fit(self, table: OperatorTable, *, seed: int = 0) -> Self:
        """Keep what was measured; nothing is fitted."""
        del seed
        fitted = type(self)(self.steps_per_octave)
        for key, rows in _parts(table).items():
            part = table.take(rows)
            points, macs, moved = _work(part)
            rates = np.column_stack([macs, moved]) / part.time_us[:, None]
            fitted._exact[key] = dict(zip(map(tuple, points.tolist()), part.time_us.tolist(), strict=True))
            fitted._levels[key] = Level.of(self._rounded(points), rates)
        return fitted

    def predict_us(self, table: OperatorTable) -> np.ndarray:
        """max(multiply-adds / rate, bytes / rate) in µs, (rows,); NaN for other operators and unknown settings."""
        out = np.full(len(table), np.nan)
        for key, rows in _parts(table).items():
            if key not in self._levels:
                continue
            part = table.take(rows)
            points, macs, moved = _work(part)
            peak, exact, level = _peak(part), self._exact[key], self._levels[key]
            for row, point, mac_count, byte_count in zip(rows, points.tolist(), macs, moved, strict=True):
                measured = exact.get(tuple(point))
                if measured is None:
                    mac_rate, byte_rate = interpolated(level, point, peak)
                    measured = max(mac_count / mac_rate, byte_count / byte_rate)
                out[row] = measured
        return out

    def _rounded(self, points: np.ndarray) -> np.ndarray:
        if self.steps_per_octave is None:
            return points.astype(float)
        return 2.0 ** (np.round(np.log2(points) * self.steps_per_octave) / self.steps_per_octave)


def _parts(table: OperatorTable) -> dict[str, np.ndarray]:
    """Setting → positions of its products."""
    products = np.array([family_of(OPERATORS[kind]) == GEMM for kind in table.frame["kind"]], dtype=bool)
    rows = np.flatnonzero(products)
    names = table.frame.iloc[rows][["gpu", "library", "kind", "dtype", "math"]]
    grouped = names.groupby(list(names.columns)).indices
    return {"|".join(map(str, key)): rows[index] for key, index in grouped.items()}  # type: ignore[arg-type]


def _work(part: OperatorTable) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points (rows, 4), multiply-adds and bytes (rows,) of one setting's rows; a bias is left out."""
    points = part.frame[list(SIZES)].to_numpy()
    _, op, _ = part.groups()[0]
    batch, m, n, k = points.T.astype(np.float64)
    return points, batch * m * n * k, op.itemsize * batch * (m * k + k * n + m * n)


def _peak(part: OperatorTable) -> Rates:
    """Multiply-adds and bytes per µs of the device at its peak."""
    name, op, _ = part.groups()[0]
    device = gpu(name)
    return peak_tflops(device, op.dtype, op.uses_tensor_cores) * 1e6 / 2, device.dram_gbs * 1e3
