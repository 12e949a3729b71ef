"""`roofline` and `always-best-single`: a bound, and a fixed ranking.

`gemm-interpolation`, on request, predicts matrix products between measured ones. Source: Lin et al., "Building a
Performance Model for Deep Learning Recommendation Model Training on GPUs" (HiPC 2022).
"""

from bisect import bisect_left
from collections.abc import Sequence
from math import prod
from typing import ClassVar, TypeAlias

import numpy as np
import pandas as pd

from surrogate.dataset.problems import by_setting, joined
from surrogate.dataset.rows import Rows
from surrogate.features.errors import InputError
from surrogate.models.base import TimeModel, traffic_column

MIN_US = 0.1
"""No launch is faster; keeps every prediction positive."""


class Roofline(TimeModel):
    """Every candidate takes the roofline time of what it really does: peak and bandwidth, never reached."""

    name: ClassVar[str] = "roofline"
    help: ClassVar[str] = "the longer of arithmetic at the peak and memory traffic at the bandwidth"
    tunable: ClassVar[bool] = False

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Nothing to fit."""

    def _predict(self, rows: Rows) -> np.ndarray:
        if not rows.family.own_roofline:
            return rows.roofline_us.copy()
        return rows.roofline_us * np.exp2(rows.column(rows.family.own_roofline).astype(np.float64))


class AlwaysBestSingle(TimeModel):
    """Ranks candidates by their mean log slowdown over the training problems of a device and setting.

    It predicts ranks, not times: the first in rank is picked, the next where that one does not apply.
    """

    name: ClassVar[str] = "always-best-single"
    help: ClassVar[str] = "picks the candidate of the least mean log slowdown in training"
    tunable: ClassVar[bool] = False
    predicts_time: ClassVar[bool] = False

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Mean log slowdown per candidate, by setting and over all; where it cannot run, it counts as the slowest."""
        log_time = pd.Series(np.log(time_us))
        slowdown = log_time - log_time.groupby(rows.problem).transform("min")
        table = pd.DataFrame({"setting": _settings(rows), "candidate": rows.candidate, "problem": rows.problem})
        table["slowdown"] = slowdown.to_numpy()
        self.cost_: dict[str, dict[str, float]] = {}
        for setting, part in [("", table), *table.groupby("setting")]:
            wide = part.pivot_table(index="problem", columns="candidate", values="slowdown", aggfunc="min")
            filled = np.where(wide.isna(), wide.max(axis=1).to_numpy()[:, np.newaxis], wide)
            self.cost_[str(setting)] = dict(zip(map(str, wide), filled.mean(axis=0).tolist(), strict=True))

    def _predict(self, rows: Rows) -> np.ndarray:
        """The rank's cost (no unit): the mean log slowdown of each row's candidate; NaN where unknown."""
        overall = self.cost_[""]
        pairs = zip(_settings(rows), rows.candidate, strict=True)
        return np.array([self.cost_.get(each, overall).get(name, overall.get(name, np.nan)) for each, name in pairs])


def _settings(rows: Rows) -> np.ndarray:
    return joined(rows.frame, ("gpu", *rows.family.setting_names)).to_numpy()


def peak_times(rows: Rows) -> np.ndarray:
    """(rows, 2) in µs: arithmetic time at the peak and memory time at the bandwidth."""
    names = ("log2_flops", traffic_column(rows.family), "log2_peak_tflops", "log2_dram_gbs")
    flops, traffic, peak, bandwidth = (rows.column(name).astype(np.float64) for name in names)
    return np.column_stack([np.exp2(flops - peak) / 1e6, np.exp2(traffic - bandwidth) / 1e3])


SIZES = ("batch", "m", "n", "k")
Level: TypeAlias = "dict[float, Level] | np.ndarray"
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
    here, *rest = point
    values = list(level)
    position = bisect_left(values, here)
    if position == len(values):
        return (interpolated(level[values[-1]], rest) + 1.0) / 2
    upper = interpolated(level[values[position]], rest)
    if values[position] == here:
        return upper
    before = values[position - 1] if position else 0.0
    lower = interpolated(level[before], rest) if position else np.zeros(2)
    return lower + (here - before) / (values[position] - before) * (upper - lower)


def _rates(measured: Level, between: Level, point: Sequence[float]) -> np.ndarray:
    """Rates (2,) at ``point``: those of ``measured`` where it holds the point, else interpolated over ``between``."""
    level = measured
    for value in point:
        if not isinstance(level, dict) or value not in level:
            return interpolated(between, point)
        level = level[value]
    return np.asarray(level)


class GemmInterpolation(TimeModel):
    """Levels per GPU, library and setting over (batch, M, N, K); rates of arithmetic and of memory traffic.

    The method wants a grid. Where the measured sizes are scattered, brackets in one dimension leave nothing to bracket
    in the next: between them measured sizes are rounded to powers of 2. At a measured size the answer is the measured
    one. NaN for a setting that training did not hold; other families raise `InputError`.
    """

    name: ClassVar[str] = "gemm-interpolation"
    help: ClassVar[str] = "matrix products between measured ones (Lin et al., HiPC 2022)"
    tunable: ClassVar[bool] = False
    on_request: ClassVar[bool] = True

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        if rows.family.size_names != SIZES:
            raise InputError(f"{self.name} predicts matrix products, and these rows are {rows.family.name}")
        rates = peak_times(rows) / time_us[:, None]
        self.measured_: dict[tuple[str, ...], Level] = {}
        self.between_: dict[tuple[str, ...], Level] = {}
        for setting, positions in by_setting(rows.frame, rows.family):
            points = rows.sizes[positions].astype(np.float64)
            self.measured_[setting] = self.between_[setting] = levels(points, rates[positions])
            if len(np.unique(points, axis=0)) < prod(len(np.unique(values)) for values in points.T):
                self.between_[setting] = levels(2.0 ** np.round(np.log2(points)), rates[positions])

    def _predict(self, rows: Rows) -> np.ndarray:
        """The longer of both: work / rate."""
        out = np.full(len(rows), np.nan)
        work = peak_times(rows)
        points = rows.sizes.astype(np.float64)
        for setting, positions in by_setting(rows.frame, rows.family):
            if setting in self.measured_:
                ways = self.measured_[setting], self.between_[setting]
                rates = [_rates(*ways, point) for point in points[positions].tolist()]
                out[positions] = (work[positions] / np.array(rates)).max(axis=1)
        return out
