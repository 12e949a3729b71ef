"""`seer-time-only`: SEER's physics where only times were measured, its counters replaced by analytical terms."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd

from surrogate.dataset.rows import Rows
from surrogate.features.algorithms import MECHANISMS
from surrogate.features.errors import InputError
from surrogate.models.seer.analytical import Analytical, analytical
from surrogate.models.seer.classify import UNDER_UTILISED
from surrogate.models.seer.keys import SEPARATOR, joined, key_columns
from surrogate.models.seer.tile_fit import TileFit

LEAST_US = 0.1
"""No launch is faster; keeps every prediction positive."""


class SeerTimeOnly:
    """Per (GPU, library version, algorithm) and class the paper's time form, with non-negative coefficients.

    A group with fewer than ``least_rows`` rows takes the fit over the GPU's other versions, else over all GPUs (see
    `_LEVELS`). Grouped and depthwise problems, which SEER does not know, are fitted apart.
    """

    name: ClassVar[str] = "seer-time-only"
    predicts_time: ClassVar[bool] = True
    DEFAULTS: ClassVar[dict[str, Any]] = {"least_rows": 8}

    def __init__(self, **params: Any) -> None:
        self.params: Mapping[str, Any] = {**self.DEFAULTS, **params}
        self._fits: dict[str, TileFit] = {}

    def fit(self, rows: Rows, *, seed: int = 0) -> Self:
        """Every level's fits on the ok rows. Raises `InputError` where there is none."""
        del seed
        ok = rows.take(rows.ok)
        if not len(ok):
            raise InputError(f"{self.name} needs at least one ok row to learn from")
        fitted = type(self)(**self.params)
        for part, terms in _families(ok):
            time_us = ok.time_us[part]
            for level, least in zip(_levels(ok.take(part), terms), self._least(), strict=True):
                for key, mine in pd.Series(level).groupby(level).indices.items():
                    if len(mine) >= least:
                        form = _form(str(key), terms)
                        fitted._fits[str(key)] = TileFit.fit(terms, form, np.asarray(mine), time_us[mine])
        return fitted

    def _least(self) -> list[int]:
        """Rows that a fit of each level needs; the last takes what there is."""
        return [int(self.params["least_rows"])] * (len(_LEVELS) - 1) + [1]

    def predict_us(self, rows: Rows) -> np.ndarray:
        """Times in µs, (rows,), positive; NaN for an algorithm that training did not hold."""
        time_us = np.full(len(rows), np.nan)
        for part, terms in _families(rows):
            found = np.full(len(part), np.nan)
            for level in _levels(rows.take(part), terms):
                open_rows = np.flatnonzero(np.isnan(found))
                names = level[open_rows]
                for key in np.unique(names):
                    if key in self._fits:
                        mine = open_rows[names == key]
                        found[mine] = self._fits[key].predict(terms, _form(key, terms), mine)
            time_us[part] = np.maximum(found, LEAST_US)
        return time_us

    def save(self) -> dict[str, bytes]:
        """Every group's coefficients as JSON."""
        content = {key: fit.to_json() for key, fit in self._fits.items()}
        return {"fits.json": json.dumps(content, sort_keys=True).encode()}

    @classmethod
    def load(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `save` wrote."""
        model = cls(**params)
        model._fits = {key: TileFit.from_json(fit) for key, fit in json.loads(files["fits.json"]).items()}
        return model

    @staticmethod
    def space(trial: Any) -> dict[str, Any]:
        """Rows from which a group gets a fit of its own."""
        return {"least_rows": trial.suggest_int("least_rows", 6, 40, log=True)}


_LEVELS = (
    ("gpu", "version", "candidate", "grouping", "bound"),
    ("gpu", "candidate", "grouping", "bound"),
    ("candidate", "grouping", "bound"),
    ("gpu", "candidate", "grouping"),
    ("candidate",),
)
"""What names a group, from the closest to the last resort; without ``bound`` the form is the under-utilised one."""


def _families(rows: Rows) -> list[tuple[np.ndarray, Analytical]]:
    """(positions, terms) of each mechanism among the rows."""
    code = rows.column("mechanism").astype(int)
    parts = [(np.flatnonzero(code == one), one) for one in range(len(MECHANISMS)) if (code == one).any()]
    return [(part, analytical(rows.take(part), one)) for part, one in parts]


def _levels(rows: Rows, terms: Analytical) -> list[np.ndarray]:
    """(rows,) the group's key, for each of `_LEVELS`."""
    columns = {
        **key_columns(rows),
        "bound": np.array([f"bound{bound}" for bound in terms.bound], dtype=object),
    }
    return [SEPARATOR.join(level) + SEPARATOR + joined(columns, level) for level in _LEVELS]


def _form(key: str, terms: Analytical) -> int:
    """The time form of a group: that of the class in its key, else the under-utilised one, the most general."""
    last = key.rsplit(SEPARATOR, 1)[-1]
    return terms.form(int(last.removeprefix("bound")) if last.startswith("bound") else UNDER_UTILISED)
