"""`always-best-single`: the one algorithm that was best on the whole, for every problem that it accepts."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd

from surrogate.dataset.problems import joined
from surrogate.dataset.rows import Rows
from surrogate.features.errors import InputError

_SETTING = ("gpu", "library", "direction", "dtype", "math", "layout")


class AlwaysBestSingle:
    """Ranks algorithms by their mean log slowdown over the training problems of a device and setting.

    It predicts ranks, not times: the first in rank is picked, the next where that one does not apply.
    """

    name: ClassVar[str] = "always-best-single"
    predicts_time: ClassVar[bool] = False

    def __init__(self, **params: Any) -> None:
        self.params: Mapping[str, Any] = params
        self._cost: dict[str, dict[str, float]] = {}

    def fit(self, rows: Rows, *, seed: int = 0) -> Self:
        """Mean log slowdown per algorithm, by setting and over all; a problem it cannot run counts as the slowest."""
        del seed
        ok = rows.take(rows.ok)
        if not len(ok):
            raise InputError("always-best-single needs at least one ok row to learn from")
        time = pd.Series(np.log(ok.time_us))
        slowdown = (time - time.groupby(ok.problem).transform("min")).to_numpy()
        table = pd.DataFrame(
            {
                "setting": _settings(ok.frame),
                "algorithm": _names(ok.frame),
                "problem": ok.problem,
                "slowdown": slowdown,
            }
        )
        fitted = type(self)(**self.params)
        for setting, part in [("", table), *table.groupby("setting")]:
            wide = part.pivot_table(index="problem", columns="algorithm", values="slowdown", aggfunc="min")
            filled = wide.apply(lambda row: row.fillna(row.max()), axis=1)
            fitted._cost[str(setting)] = {str(name): float(cost) for name, cost in filled.mean().items()}
        return fitted

    def predict_us(self, rows: Rows) -> np.ndarray:
        """The rank's cost (no unit), (rows,): the mean log slowdown of each row's algorithm; NaN where unknown."""
        overall = self._cost[""]
        return np.array(
            [
                self._cost.get(setting, overall).get(name, overall.get(name, np.nan))
                for setting, name in zip(_settings(rows.frame), _names(rows.frame), strict=True)
            ]
        )

    def save(self) -> dict[str, bytes]:
        """One JSON table."""
        return {"ranks.json": json.dumps(self._cost, sort_keys=True).encode()}

    @classmethod
    def load(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `save` wrote."""
        model = cls(**params)
        model._cost = json.loads(files["ranks.json"])
        return model

    @staticmethod
    def space(trial: Any) -> dict[str, Any]:
        """Nothing to tune."""
        del trial
        return {}


def _settings(frame: pd.DataFrame) -> np.ndarray:
    return joined(frame, _SETTING).to_numpy()


def _names(frame: pd.DataFrame) -> np.ndarray:
    """What is chosen among: solvers where the table has them, else algorithms."""
    return frame["solver" if "solver" in frame else "algorithm"].astype(str).to_numpy()
