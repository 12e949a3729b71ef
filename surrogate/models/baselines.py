"""`roofline`, `always-best-single` and `li-et-al`: no learning, one habit, and a linear model of the literature.

Source of `li-et-al`: Li, Sun, Jog, "Path Forward Beyond Simulators: Fast and Accurate GPU Execution Time Prediction for
DNN Workloads" (MICRO 2023): linear regression per kernel on operation counts and input / output sizes; for another GPU
the slopes are scaled by what the hardware offers. Here a candidate stands for the kernels, and slopes are efficiencies.
"""

from typing import Any, ClassVar

import numpy as np
import pandas as pd

from surrogate.dataset.problems import joined
from surrogate.dataset.rows import Rows
from surrogate.models.base import TimeModel, traffic_column
from surrogate.models.least_squares import joined as joined_columns
from surrogate.models.least_squares import key_columns, relative_fit

LEAST_US = 0.1
"""No launch is faster; keeps every prediction positive."""


class Roofline(TimeModel):
    """Every candidate takes the roofline time of what it really does: peak and bandwidth, never reached."""

    name: ClassVar[str] = "roofline"

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
    predicts_time: ClassVar[bool] = False

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Mean log slowdown per candidate, by setting and over all; where it cannot run, it counts as the slowest."""
        log_time = pd.Series(np.log(time_us))
        table = pd.DataFrame(
            {
                "setting": _settings(rows),
                "candidate": rows.candidate,
                "problem": rows.problem,
                "slowdown": (log_time - log_time.groupby(rows.problem).transform("min")).to_numpy(),
            }
        )
        self.cost_: dict[str, dict[str, float]] = {}
        for setting, part in [("", table), *table.groupby("setting")]:
            wide = part.pivot_table(index="problem", columns="candidate", values="slowdown", aggfunc="min")
            filled = np.where(wide.isna(), wide.max(axis=1).to_numpy()[:, np.newaxis], wide)
            self.cost_[str(setting)] = dict(zip(map(str, wide), filled.mean(axis=0).tolist(), strict=True))

    def _predict(self, rows: Rows) -> np.ndarray:
        """The rank's cost (no unit): the mean log slowdown of each row's candidate; NaN where unknown."""
        overall = self.cost_[""]
        return np.array(
            [
                self.cost_.get(setting, overall).get(name, overall.get(name, np.nan))
                for setting, name in zip(_settings(rows), rows.candidate, strict=True)
            ]
        )


def _settings(rows: Rows) -> np.ndarray:
    return joined(rows.frame, ("gpu", *rows.family.setting_names)).to_numpy()


class LiEtAl(TimeModel):
    """time = a · FLOPs / peak + b · bytes / bandwidth + c with a, b, c ≥ 0, per (GPU, candidate, setting).

    The paper's ordinary least squares would fit only the largest of five orders of magnitude of times; rows are
    weighted by 1 / time instead, so that the relative error counts. FLOPs and bytes are the problem's own (direct
    algorithm, tensors touched once), as the paper takes them. A GPU with fewer than ``least_rows`` rows of a candidate
    takes the fit over all GPUs; NaN for a candidate that training did not hold.
    """

    name: ClassVar[str] = "li-et-al"

    def __init__(self, least_rows: int = 8) -> None:
        self.least_rows = least_rows

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """One fit per GPU and candidate, and the general ones that stand in (see `_keys`)."""
        columns = np.column_stack([peak_times(rows), np.ones(len(rows))])
        self.coefficients_: dict[str, np.ndarray] = {}
        for keys, least in zip(_keys(rows), (self.least_rows, self.least_rows, 1), strict=True):
            for key, index in keys.groupby(keys).indices.items():
                if len(index) >= least:
                    fit = relative_fit(columns[index], time_us[index], nonnegative=True)
                    self.coefficients_[str(key)] = fit

    def _predict(self, rows: Rows) -> np.ndarray:
        columns = np.column_stack([peak_times(rows), np.ones(len(rows))])
        time_us = np.full(len(rows), np.nan)
        for keys in reversed(_keys(rows)):  # the closer fit overwrites the general one
            for key, index in keys.groupby(keys).indices.items():
                if key in self.coefficients_:
                    time_us[index] = columns[index] @ self.coefficients_[str(key)]
        return np.maximum(time_us, LEAST_US)

    @staticmethod
    def space(trial: Any) -> dict[str, Any]:
        """Rows from which a GPU gets a fit of its own."""
        return {"least_rows": trial.suggest_int("least_rows", 3, 60, log=True)}


def peak_times(rows: Rows) -> np.ndarray:
    """(rows, 2) in µs: arithmetic time at the peak and memory time at the bandwidth."""
    names = ("log2_flops", traffic_column(rows.family), "log2_peak_tflops", "log2_dram_gbs")
    flops, traffic, peak, bandwidth = (rows.column(name).astype(np.float64) for name in names)
    return np.column_stack([np.exp2(flops - peak) / 1e6, np.exp2(traffic - bandwidth) / 1e3])


def _keys(rows: Rows) -> list[pd.Series]:
    """Text per row: the candidate with its group of kernels and the GPU; without the GPU; alone."""
    columns = key_columns(rows)
    levels = (("candidate", "grouping", "gpu"), ("candidate", "grouping"), ("candidate",))
    return [pd.Series(joined_columns(columns, names)) for names in levels]
