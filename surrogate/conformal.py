"""Intervals that hold: split-conformal widths of the log error, from predictions of rows that were held out.

Source: Lei et al. 2018, "Distribution-free predictive inference for regression" (split conformal); widths are kept per
(GPU, algorithm), falling back to the algorithm and then to all rows where too few were held out.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from surrogate.dataset.problems import joined

COVERAGE = 0.90
ALL = "all"
"""Key of the width over all rows."""
LEAST_ROWS = 50
"""Held-out rows that a width of its own needs."""


@dataclass(frozen=True)
class Widths:
    """Half widths of the interval in log time: key ``gpu|direction|algorithm``, ``direction|algorithm`` or ``all``."""

    by_key: Mapping[str, float]

    @classmethod
    def fit(cls, frame: pd.DataFrame, predicted_us: np.ndarray, measured_us: np.ndarray) -> Self:
        """Widths from held-out predictions; rows without either time are left out."""
        usable = np.isfinite(predicted_us) & np.isfinite(measured_us)
        error = np.abs(np.log(predicted_us[usable] / measured_us[usable]))
        exact, algorithm = _keys(frame[usable])
        widths = {ALL: _quantile(error)}
        for keys in (algorithm, exact):
            for key, part in pd.Series(error).groupby(keys):
                if len(part) >= LEAST_ROWS:
                    widths[str(key)] = _quantile(part.to_numpy())
        return cls(widths)

    def of(self, frame: pd.DataFrame) -> np.ndarray:
        """(rows,) half widths in log time: the interval is predicted · exp(± width)."""
        exact, algorithm = (pd.Series(keys) for keys in _keys(frame))
        return (
            exact.map(self.by_key)
            .fillna(algorithm.map(self.by_key))
            .fillna(self.by_key[ALL])
            .to_numpy(dtype=float)
        )

    def to_json(self) -> bytes:
        """The table."""
        return json.dumps({"coverage": COVERAGE, "widths": dict(self.by_key)}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """What `to_json` wrote."""
        return cls(json.loads(content)["widths"])


def _keys(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    return (
        joined(frame, ("gpu", "direction", "algorithm")).to_numpy(),
        joined(frame, ("direction", "algorithm")).to_numpy(),
    )


def _quantile(error: np.ndarray) -> float:
    """The conformal quantile: rank ⌈(n + 1)·coverage⌉ of the errors, the largest where there are too few."""
    rank = int(np.ceil((len(error) + 1) * COVERAGE))
    return float(np.sort(error)[min(rank, len(error)) - 1])
