"""`seer-time-only`: SEER's physics where only times were measured, its counters replaced by analytical terms."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd

from surrogate.dataset.rows import Rows
from surrogate.features.algorithms import MECHANISMS
from surrogate.models.base import TimeModel
from surrogate.models.baselines import LEAST_US
from surrogate.models.least_squares import SEPARATOR, joined, key_columns
from surrogate.models.plain import from_plain, to_plain
from surrogate.models.seer.analytical import Analytical, TileFit, analytical, require_convolutions
from surrogate.models.seer.physics import UNDER_UTILISED


class SeerTimeOnly(TimeModel):
    """Per (GPU, library version, algorithm) and class the paper's time form, with non-negative coefficients.

    A group with fewer than ``least_rows`` rows takes the fit over the GPU's other versions, else over all GPUs (see
    `_LEVELS`). Grouped and depthwise problems, which SEER does not know, are fitted apart.
    """

    name: ClassVar[str] = "seer-time-only"
    storable: ClassVar[bool] = True

    def __init__(self, least_rows: int = 8) -> None:
        self.least_rows = least_rows

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Every level's fits."""
        self.fits_: dict[str, TileFit] = {}
        for part, terms in _mechanisms(rows):
            for number, level in enumerate(_levels(rows.take(part), terms), 1):
                least = self.least_rows if number < len(_LEVELS) else 1  # the last takes what there is
                for key, members in pd.Series(level).groupby(level).indices.items():
                    if len(members) >= least:
                        form, index = _form(str(key), terms), np.asarray(members)
                        self.fits_[str(key)] = TileFit.fit(terms, form, index, time_us[part][index])

    def _predict(self, rows: Rows) -> np.ndarray:
        """Positive times; NaN for an algorithm that training did not hold."""
        time_us = np.full(len(rows), np.nan)
        for part, terms in _mechanisms(rows):
            part_us = np.full(len(part), np.nan)
            for level in _levels(rows.take(part), terms):
                open_rows = np.flatnonzero(np.isnan(part_us))
                names = level[open_rows]
                for key in np.unique(names):
                    if key in self.fits_:
                        members = open_rows[names == key]
                        part_us[members] = self.fits_[key].predict(terms, _form(key, terms), members)
            time_us[part] = np.maximum(part_us, LEAST_US)
        return time_us

    def to_files(self) -> dict[str, bytes]:
        """Every group's coefficients as JSON."""
        return {"fits.json": json.dumps(to_plain(self.fits_), sort_keys=True).encode()}

    @classmethod
    def from_files(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `to_files` wrote."""
        model = cls(**params)
        model.fits_ = from_plain(Mapping[str, TileFit], json.loads(files["fits.json"]))
        return model


_LEVELS = (
    ("gpu", "version", "candidate", "grouping", "bound"),
    ("gpu", "candidate", "grouping", "bound"),
    ("candidate", "grouping", "bound"),
    ("gpu", "candidate", "grouping"),
    ("candidate",),
)
"""What names a group, from the closest to the last resort; without ``bound`` the form is the under-utilised one."""


def _mechanisms(rows: Rows) -> list[tuple[np.ndarray, Analytical]]:
    """(positions, terms) of each mechanism among the rows. Raises `InputError` for other kernels than convolutions."""
    require_convolutions(rows, SeerTimeOnly.name)
    code = rows.column("mechanism").astype(int)
    parts = [(np.flatnonzero(code == number), number) for number in range(len(MECHANISMS)) if (code == number).any()]
    return [(part, analytical(rows.take(part), number)) for part, number in parts]


def _levels(rows: Rows, terms: Analytical) -> list[np.ndarray]:
    """(rows,) the group's key, for each of `_LEVELS`."""
    columns = {**key_columns(rows), "bound": np.array([f"bound{bound}" for bound in terms.bound], dtype=object)}
    return [SEPARATOR.join(level) + SEPARATOR + joined(columns, level) for level in _LEVELS]


def _form(key: str, terms: Analytical) -> int:
    """The time form of a group: that of the class in its key, else the under-utilised one, the most general."""
    last = key.rsplit(SEPARATOR, 1)[-1]
    return terms.form(int(last.removeprefix("bound")) if last.startswith("bound") else UNDER_UTILISED)
