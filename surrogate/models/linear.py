"""`linear-dims`, `linear-terms` and `li-et-al`: linear models, one fit per candidate.

The first two are ridge regressions of log time. Source of `li-et-al`: Li, Sun, Jog, "Path Forward Beyond Simulators:
Fast and Accurate GPU Execution Time Prediction for DNN Workloads" (MICRO 2023): linear regression per kernel on
operation counts and input / output sizes; for another GPU the slopes are scaled by what the hardware offers. Here a
candidate stands for the kernels, and slopes are efficiencies.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self, TypedDict

import numpy as np

from surrogate.dataset.problems import joined
from surrogate.dataset.rows import Rows
from surrogate.models.base import SearchRange, TimeModel, dims, terms
from surrogate.models.baselines import MIN_US, peak_times
from surrogate.models.json_types import Number, from_json_types, to_json_types
from surrogate.models.least_squares import GroupLevel, fitted_groups, key_columns, relative_fit

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

    alpha: Annotated[float, SearchRange(1e-3, 1e3, log=True)] = 1.0

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
        plain: Any = {name: to_json_types(values) for name, values in guard.items()}
        return Ridge(weights=tuple(weights.tolist()), intercept=intercept, **plain)

    def to_files(self) -> dict[str, bytes]:
        """Coefficients as JSON."""
        return {"coefficients.json": json.dumps(self.fits_, sort_keys=True).encode()}

    @classmethod
    def from_files(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `to_files` wrote."""
        model = cls(**params)
        model.fits_ = from_json_types(Mapping[str, Ridge], json.loads(files["coefficients.json"]))
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


@dataclass(eq=False, repr=False)
class LiEtAl(TimeModel):
    """time = a · FLOPs / peak + b · bytes / bandwidth + c with a, b, c ≥ 0, per (GPU, candidate, setting).

    The paper's ordinary least squares would fit only the largest of five orders of magnitude of times; rows are
    weighted by 1 / time instead, so that the relative error counts. FLOPs and bytes are the problem's own (direct
    algorithm, tensors touched once), as the paper takes them. A GPU with fewer than ``least_rows`` rows of a candidate
    takes the fit over all GPUs; NaN for a candidate that training did not hold.
    """

    name: ClassVar[str] = "li-et-al"
    help: ClassVar[str] = "linear in FLOPs and bytes per kernel (Li et al., MICRO 2023)"

    least_rows: Annotated[int, SearchRange(3, 60, log=True)] = 8

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """One fit per GPU and candidate, and the general ones that stand in (see `_levels`)."""
        columns = np.column_stack([peak_times(rows), np.ones(len(rows))])
        self.coefficients_ = {
            key: relative_fit(columns[index], time_us[index], nonnegative=True)
            for key, index in fitted_groups(_levels(rows), self.least_rows, np.arange(len(rows)))
        }

    def _predict(self, rows: Rows) -> np.ndarray:
        columns = np.column_stack([peak_times(rows), np.ones(len(rows))])
        time_us = np.full(len(rows), np.nan)
        for level in reversed(_levels(rows)):  # the closer fit overwrites the general one
            for key, index in level.groups(np.arange(len(rows))):
                if key in self.coefficients_:
                    time_us[index] = columns[index] @ self.coefficients_[key]
        return np.maximum(time_us, MIN_US)


def _levels(rows: Rows) -> list[GroupLevel]:
    """The candidate with its group of kernels and the GPU; without the GPU; alone."""
    columns = key_columns(rows)
    levels = (("candidate", "grouping", "gpu"), ("candidate", "grouping"), ("candidate",))
    return [GroupLevel.of(joined(columns, names).to_numpy()) for names in levels]
