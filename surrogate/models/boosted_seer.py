"""`boosted-seer`: boosted trees that correct SEER's fits.

The base of the trees is the time of `seer-time-only`, and its ratio to the roofline is a column. Training rows get
SEER's times from fits that did not see their shape, so that the trees learn how far SEER is off on new shapes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from surrogate.dataset.problems import shape_names
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_labels
from surrogate.features.families import Family
from surrogate.models.base import Span
from surrogate.models.boosted import CANDIDATE_WEIGHT, BoostedTerms
from surrogate.models.seer.time_only import PreparedRows, SeerTimeOnly
from surrogate.models.times import BoostedTimes

SEER, TREES = "seer.", "trees."
"""Prefixes of the files of SEER's fits and of the trees."""
RATIO = "seer_over_roofline"
"""Name of the trees' last column but one."""


@dataclass(eq=False, repr=False)
class BoostedSeer(BoostedTerms):
    """Correct the times of `seer-time-only` by boosted trees on sizes, terms, and SEER's time over the roofline's.

    The roofline replaces SEER's time for an algorithm that training did not hold.

    Parameters
    ----------
    cross_folds
        Folds of the training shapes. Each is predicted by SEER's fits to the other folds.
    least_rows
        As of `SeerTimeOnly`.
    rounds, learning_rate, max_leaves, …
        As of `BoostedTerms`.

    Attributes
    ----------
    seer_
        SEER's fits to all training rows.

    Raises
    ------
    InputError
        On fitting rows that are no convolutions.
    """

    name: ClassVar[str] = "boosted-seer"
    help: ClassVar[str] = "gradient-boosted trees that correct seer-time-only"
    storable: ClassVar[bool] = True

    cross_folds: int = 5
    least_rows: Annotated[int, Span(6, 40, log=True)] = 8

    def base_us(self, rows: Rows) -> np.ndarray:
        """(rows,) SEER's time in µs, which the correction multiplies, or the roofline's if SEER has no time."""
        return self._seer_us(rows)

    def design(self, rows: Rows) -> np.ndarray:
        """(rows, columns + 2) float32: terms, the log of SEER's time over the roofline's, the candidate's code."""
        ratio = np.log(self._seer_us(rows) / super().base_us(rows)).astype(np.float32)
        return np.insert(super().design(rows), -1, ratio, axis=1)

    def settings(self) -> dict[str, Any]:
        """Parameters for ``xgboost.train``."""
        own = ("cross_folds", "least_rows")
        return {name: value for name, value in super().settings().items() if name not in own}

    def column_weights(self, family: Family) -> np.ndarray:
        """(columns + 2,) as of `BoostedTerms`; SEER's ratio counts as a candidate's code does."""
        return np.insert(super().column_weights(family), -1, CANDIDATE_WEIGHT)

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Fit SEER out of fold, then the trees on its residuals, then SEER on all rows."""
        label = fold_labels(shape_names(rows.frame, rows.family), self.cross_folds, self.random_state)
        prepared = PreparedRows.of(rows)
        seer_us = np.full(len(rows), np.nan)
        for fold in np.unique(label):
            inside, outside = np.flatnonzero(label != fold), np.flatnonzero(label == fold)
            if len(inside):
                fitted = SeerTimeOnly(self.least_rows).fit_prepared(prepared, inside, time_us)
                seer_us[outside] = fitted.predict_prepared(prepared, outside)
        self.seer_ = SeerTimeOnly(self.least_rows).fit_prepared(prepared, np.arange(len(rows)), time_us)
        self._last = rows, _or_roofline(seer_us, rows)
        try:
            super()._fit(rows, time_us)
        finally:
            del self._last

    def _predict(self, rows: Rows) -> np.ndarray:
        self._last = rows, _or_roofline(self.seer_.predict(rows), rows)
        try:
            return super()._predict(rows)
        finally:
            del self._last

    def _seer_us(self, rows: Rows) -> np.ndarray:
        """(rows,) SEER's times in µs, from the fit or prediction that is under way if ``rows`` are its rows."""
        known, seer_us = getattr(self, "_last", (None, None))
        return seer_us if known is rows and seer_us is not None else _or_roofline(self.seer_.predict(rows), rows)

    def tree_columns(self, family: Family) -> tuple[str, ...]:
        """Names of the columns of `design` but the last one, the candidate's code."""
        return (*super().tree_columns(family), RATIO)

    def times(self) -> BoostedTimes | None:
        """None: SEER's fits are no ensemble of trees."""
        return None

    def to_files(self) -> dict[str, bytes]:
        """SEER's fits and the trees as arrays."""
        parts = {SEER: self.seer_.to_files(), TREES: self.arrays().to_files()}
        return {f"{part}{name}": data for part, files in parts.items() for name, data in files.items()}

    @classmethod
    def from_files(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """The model that `to_files` described."""
        seer, trees = (
            {name.removeprefix(part): data for name, data in files.items() if name.startswith(part)}
            for part in (SEER, TREES)
        )
        model = cls.from_times(BoostedTimes.from_files(trees), params)
        model.seer_ = SeerTimeOnly.from_files({"least_rows": model.least_rows}, seer)
        return model


def _or_roofline(seer_us: np.ndarray, rows: Rows) -> np.ndarray:
    """(rows,) SEER's times in µs, or the roofline's if SEER has no time."""
    return np.where(np.isfinite(seer_us), seer_us, rows.roofline_us)
