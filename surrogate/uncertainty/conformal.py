"""Intervals that hold: half widths of the log error that were calibrated on rows held out by shape.

A half width is a base per (GPU, direction, algorithm), falling back to (direction, algorithm) and to all rows, times a
factor for the distance to the training data, times one for the predicted time. `width_fit` beside finds them.
"""

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

COVERAGE = 0.90
ALL = "all"
"""Key of the base over all rows."""
UNSEEN_GPU_FACTOR = 3.0
"""On half widths for a GPU that was never measured, where a bundle's card does not state its own."""
KEY_COLUMNS = ("gpu", "direction", "algorithm")


@dataclass(frozen=True)
class Factors:
    """A step function: ``values`` has one entry more than the ascending ``edges`` at which it changes."""

    edges: tuple[float, ...] = ()
    values: tuple[float, ...] = (1.0,)

    def at(self, x: np.ndarray) -> np.ndarray:
        """(rows,) the value at each x; an edge belongs to the step above it, NaN to the last."""
        return np.array(self.values)[np.searchsorted(np.array(self.edges), x, side="right")]


@dataclass(frozen=True)
class Widths:
    """Half widths of the interval in log time.

    ``by_key`` ``gpu|direction|algorithm``, ``direction|algorithm`` or ``all`` → base; ``distance`` never falls;
    ``own_share`` is the part of a half width that the candidates of one problem do not share.
    """

    by_key: Mapping[str, float]
    distance: Factors = Factors()
    time_us: Factors = Factors()
    own_share: float = 1.0

    def lookup(
        self, gpu: str, direction: str, algorithm: str, distance: float, predicted_us: float | None = None
    ) -> float:
        """Half width in log time of one row: the interval is predicted · exp(± half width).

        ``gpu`` by its registry name, ``distance`` as `Domain.distance` gives it. Without ``predicted_us`` the widest
        time factor holds.
        """
        shared, near, time = f"{direction}|{algorithm}", self.distance, self.time_us
        base = self._base(f"{gpu}|{shared}", shared) * near.values[bisect_right(near.edges, distance)]
        if predicted_us is None:
            return base * max(time.values)
        return base * time.values[bisect_right(time.edges, predicted_us)]

    def of(
        self, frame: "pd.DataFrame", distance: np.ndarray, predicted_us: np.ndarray | None = None
    ) -> np.ndarray:
        """(rows,) half widths in log time, the same as `lookup` gives one by one."""
        from surrogate.dataset.problems import device_names, joined

        groups = frame.assign(gpu=device_names(frame)).groupby(list(KEY_COLUMNS), sort=False)
        code = groups.ngroup().to_numpy()
        first = np.unique(code, return_index=True)[1]
        return self.at(joined(frame.iloc[first], KEY_COLUMNS).to_list(), code, distance, predicted_us)

    def at(
        self, keys: Sequence[str], code: np.ndarray, distance: np.ndarray, predicted_us: np.ndarray | None
    ) -> np.ndarray:
        """(rows,) half widths of rows whose ``gpu|direction|algorithm`` is ``keys[code]``."""
        bases = np.array([self._base(key, key.partition("|")[2]) for key in keys], dtype=np.float64)
        base = bases[code] * self.distance.at(distance)
        if predicted_us is None:
            return base * max(self.time_us.values)
        return base * self.time_us.at(predicted_us)

    def _base(self, own: str, shared: str) -> float:
        return self.by_key.get(own) or self.by_key.get(shared) or self.by_key[ALL]

    def to_json(self) -> bytes:
        """All of it."""
        return json.dumps({"coverage": COVERAGE, **asdict(self)}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """What `to_json` wrote."""
        data = json.loads(content)
        if "widths" in data:  # bundle schema 1: bases alone
            return cls(_numbers(data["widths"]))
        distance, time_us = (
            Factors(tuple(map(float, data[name]["edges"])), tuple(map(float, data[name]["values"])))
            for name in ("distance", "time_us")
        )
        return cls(_numbers(data["by_key"]), distance, time_us, float(data["own_share"]))


def _numbers(bases: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(base) for key, base in bases.items()}
