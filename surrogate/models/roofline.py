"""`roofline`: every algorithm takes the roofline time of what it really does; nothing is fitted."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from surrogate.dataset.rows import Rows


class Roofline:
    """The device's peak and bandwidth, never reached: the baseline that every correction starts from."""

    name: ClassVar[str] = "roofline"
    predicts_time: ClassVar[bool] = True

    def __init__(self, **params: Any) -> None:
        self.params: Mapping[str, Any] = params

    def fit(self, rows: Rows, *, seed: int = 0) -> Self:
        """Nothing to fit."""
        del rows, seed
        return self

    def predict_us(self, rows: Rows) -> np.ndarray:
        """Roofline time in µs of the algorithm's own FLOPs and bytes, (rows,)."""
        return rows.roofline_us * np.exp2(rows.column("log2_algorithm_roofline_ratio").astype(np.float64))

    def save(self) -> dict[str, bytes]:
        """No files."""
        return {}

    @classmethod
    def load(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """A new one."""
        del files
        return cls(**params)

    @staticmethod
    def space(trial: Any) -> dict[str, Any]:
        """Nothing to tune."""
        del trial
        return {}
