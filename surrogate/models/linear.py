"""`linear-dims` and `linear-terms`: ridge regression of log time, one fit per candidate."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from surrogate.dataset.rows import Rows
from surrogate.models.base import TimeModel, dims, terms

OVERALL = ""
"""Key of the fit over all rows, for a candidate that training did not see."""


class _Linear(TimeModel):
    """log(time) = w · standardised columns + b, penalty α‖w‖², fitted per candidate."""

    storable: ClassVar[bool] = True
    columns = staticmethod(dims)
    """Family → the columns that the model sees."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        x, y = self._design(rows), np.log(time_us)
        self.fits_ = {OVERALL: self._ridge(x, y)}
        for name in np.unique(rows.candidate):
            members = rows.candidate == name
            self.fits_[str(name)] = self._ridge(x[members], y[members])

    def _predict(self, rows: Rows) -> np.ndarray:
        x, log_time = self._design(rows), np.empty(len(rows))
        for name in np.unique(rows.candidate):
            members = rows.candidate == name
            fit = self.fits_.get(str(name), self.fits_[OVERALL])
            log_time[members] = x[members] @ np.array(fit["weights"]) + fit["intercept"]
        return np.exp(np.clip(log_time, -20.0, 40.0))

    def _design(self, rows: Rows) -> np.ndarray:
        return rows.columns(self.columns(rows.family)).astype(np.float64)

    def _ridge(self, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
        """Ridge on standardised columns; the weights are those of the columns as they come."""
        from sklearn.linear_model import Ridge

        mean, scale = x.mean(axis=0), x.std(axis=0)
        scale[scale < 1e-9] = 1.0
        ridge = Ridge(alpha=self.alpha).fit((x - mean) / scale, y)
        weights = np.asarray(ridge.coef_) / scale
        intercept = float(np.asarray(ridge.intercept_) - weights @ mean)
        return {"weights": weights.tolist(), "intercept": intercept}

    def to_files(self) -> dict[str, bytes]:
        """Coefficients as JSON."""
        return {"coefficients.json": json.dumps(self.fits_, sort_keys=True).encode()}

    @classmethod
    def from_files(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `to_files` wrote."""
        model = cls(**params)
        model.fits_ = json.loads(files["coefficients.json"])
        for fit in model.fits_.values():
            fit["weights"], fit["intercept"] = [float(w) for w in fit["weights"]], float(fit["intercept"])
        return model


class LinearDims(_Linear):
    """Ridge on the logarithms of the raw sizes."""

    name: ClassVar[str] = "linear-dims"


class LinearTerms(_Linear):
    """Ridge on the sizes and the analytical terms."""

    name: ClassVar[str] = "linear-terms"
    columns = staticmethod(terms)
