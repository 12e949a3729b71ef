"""`roofline` and `always-best-single`: what nothing was learned for, and what one habit gives."""

from typing import ClassVar

import numpy as np
import pandas as pd

from surrogate.dataset.problems import joined
from surrogate.dataset.rows import Rows
from surrogate.models.base import TimeModel


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
            filled = wide.apply(lambda row: row.fillna(row.max()), axis=1)
            self.cost_[str(setting)] = {str(name): float(cost) for name, cost in filled.mean().items()}

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
