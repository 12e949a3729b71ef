"""What calibration changes on the hot path: the correction of one device, asked with hot rows instead of a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class HotCorrection:
    """``correction`` is the device's `surrogate.models.correction.Correction`, ``names`` (candidates,) its candidates'.

    ``constant`` (columns,) float32 is a row as a correction reads it, with what no problem changes; ``varying`` are the
    places in it of a hot row's leading columns.
    """

    correction: Any
    names: np.ndarray
    constant: np.ndarray
    varying: np.ndarray

    def correct(self, time_us: np.ndarray, x: np.ndarray, index: Sequence[int] | np.ndarray) -> np.ndarray:
        """Times (rows,) in µs of the corrected model, of the base's ``time_us`` (rows,); NaN stays NaN.

        ``x`` (rows, varying columns …); row i is the candidate ``index[i]``.
        """
        known = np.flatnonzero(np.isfinite(time_us))
        features = np.tile(self.constant, (len(known), 1))
        features[:, self.varying] = x[known, : len(self.varying)]
        names = self.names[np.asarray(index)[known]]
        corrected = time_us.copy()
        corrected[known] *= np.exp(self.correction.log_factor(features, names, time_us[known]))
        return corrected


def hot_correction(
    correction: Any, names: Sequence[str], varying: Sequence[str], constant: Mapping[str, float]
) -> HotCorrection:
    """``names`` of the candidates; ``varying`` a hot row's leading columns, ``constant`` the others' values."""
    from surrogate.dataset.rows import COLUMN_NAMES  # here: the dataset brings pandas with it

    row = np.array([constant.get(name, 0.0) for name in COLUMN_NAMES], dtype=np.float32)
    places = np.array([COLUMN_NAMES.index(name) for name in varying])
    return HotCorrection(correction, np.array(names, dtype=object), row, places)
