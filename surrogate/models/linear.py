"""`linear-dims` and `linear-terms`: ridge regression of log time, one fit per candidate."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self, TypedDict

import numpy as np

from surrogate.dataset.rows import Rows
from surrogate.models.base import Span, TimeModel, dims, terms
from surrogate.models.plain import Number, from_plain, to_plain

MAX_VARIANCE = 3.0
"""Principal components of less variance (a column has 1) are clipped. Components of more are the sizes, which the model
may extrapolate. On the cuDNN table this clipping changes no choice beyond chance."""
OVERALL = ""
"""Key of the fit over all rows, for a candidate that training did not see."""


class Guard(TypedDict, total=False):
    """Range of the training rows along the clipped components; bundles of version 0.3.0 have none.

    ``directions`` (components, columns), ``slopes`` of log time along them, ``low`` and ``high`` (components,).
    """

    directions: tuple[tuple[Number, ...], ...]
    slopes: tuple[Number, ...]
    low: tuple[Number, ...]
    high: tuple[Number, ...]


class Ridge(Guard):
    """One fit: ``weights`` (columns,) of the columns as they come, and the intercept."""

    weights: tuple[Number, ...]
    intercept: Number


@dataclass(eq=False, repr=False)
class _Linear(TimeModel):
    """log(time) = w · standardised columns + b, penalty α‖w‖², fitted per candidate.

    The weights of many correlated columns cancel one another where training varied, and nowhere else: a row of a new
    shape could be a thousand times off. So its minor principal components are clipped to the range of training rows.
    """

    storable: ClassVar[bool] = True
    columns = staticmethod(dims)
    """Family → the columns that the model sees."""

    alpha: Annotated[float, Span(1e-3, 1e3, log=True)] = 1.0

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        x = self._design(rows)
        log_us = np.log(time_us)
        self.fits_ = {OVERALL: self._ridge(x, log_us)}
        for name in np.unique(rows.candidate):
            members = rows.candidate == name
            self.fits_[str(name)] = self._ridge(x[members], log_us[members])

    def _predict(self, rows: Rows) -> np.ndarray:
        x = self._design(rows)
        log_time = np.empty(len(rows))
        for name in np.unique(rows.candidate):
            members = rows.candidate == name
            fit = self.fits_.get(str(name), self.fits_[OVERALL])
            log_time[members] = x[members] @ np.array(fit["weights"]) + fit["intercept"]
            if "directions" in fit and "slopes" in fit and "low" in fit and "high" in fit:
                along = x[members] @ np.array(fit["directions"]).T
                log_time[members] += (np.clip(along, fit["low"], fit["high"]) - along) @ np.array(fit["slopes"])
        return np.exp(np.clip(log_time, -20.0, 40.0))

    def _design(self, rows: Rows) -> np.ndarray:
        # What no formula or data sheet tells counts as 0: a described kernel's columns may all be unknown.
        return np.nan_to_num(rows.columns(self.columns(rows.family)).astype(np.float64))

    def _ridge(self, x: np.ndarray, y: np.ndarray) -> Ridge:
        """Ridge on standardised columns, as weights of the columns as they come, with its guard."""
        from sklearn.linear_model import Ridge as Estimator

        mean, scale = x.mean(axis=0), x.std(axis=0)
        scale[scale < 1e-9] = 1.0
        standardised = (x - mean) / scale
        ridge = Estimator(alpha=self.alpha).fit(standardised, y)
        coefficients = np.asarray(ridge.coef_)
        weights = coefficients / scale
        intercept = float(np.asarray(ridge.intercept_) - weights @ mean)
        # The guard: components of little variance, as directions in the columns as they come.
        variance, components = np.linalg.eigh(standardised.T @ standardised / len(x))
        minor = components[:, variance < MAX_VARIANCE].T
        along = x @ (minor / scale).T
        guard = {"directions": minor / scale, "slopes": minor @ coefficients, "low": along.min(0), "high": along.max(0)}
        plain: Any = {name: to_plain(values) for name, values in guard.items()}
        return Ridge(weights=tuple(weights.tolist()), intercept=intercept, **plain)

    def to_files(self) -> dict[str, bytes]:
        """Coefficients as JSON."""
        return {"coefficients.json": json.dumps(self.fits_, sort_keys=True).encode()}

    @classmethod
    def from_files(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `to_files` wrote."""
        model = cls(**params)
        model.fits_ = from_plain(Mapping[str, Ridge], json.loads(files["coefficients.json"]))
        return model


class LinearDims(_Linear):
    """Ridge on the logarithms of the raw sizes."""

    name: ClassVar[str] = "linear-dims"
    help: ClassVar[str] = "ridge regression of log time on the sizes, one fit per candidate"


class LinearTerms(_Linear):
    """Ridge on the sizes and the analytical terms."""

    name: ClassVar[str] = "linear-terms"
    help: ClassVar[str] = "ridge regression of log time on sizes and analytical terms, one fit per candidate"
    columns = staticmethod(terms)
