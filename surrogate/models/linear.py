"""`linear-dims`, `linear-terms` and `li-et-al`: linear models, one fit per candidate.

The first two are ridge regressions of log time. Source of `li-et-al`: Li, Sun, Jog, "Path Forward Beyond Simulators:
Fast and Accurate GPU Execution Time Prediction for DNN Workloads" (MICRO 2023). The paper fits a linear regression per
kernel on operation counts and input / output sizes. For another GPU it scales the slopes by the ratio of peaks or
bandwidths. Here candidates replace kernels, and slopes are efficiencies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypedDict

import numpy as np

from surrogate.dataset.problems import joined
from surrogate.dataset.rows import Rows
from surrogate.models.base import SearchRange, TimeModel, dimension_columns, term_columns
from surrogate.models.baselines import MIN_US, peak_times
from surrogate.models.json_types import Number, to_json_types
from surrogate.models.least_squares import GroupLevel, fitted_groups, key_columns, relative_fit

MAX_VARIANCE = 3.0
"""Maximum variance of a clipped principal component (a column has 1).

Components with more variance are the sizes, which the model may extrapolate. On the cuDNN table, clipping changes no
choices beyond chance.
"""
OVERALL = ""
"""Key of the fit over all rows, for candidates that training did not see."""


class Guard(TypedDict, total=False):
    """Ranges of the training rows along the clipped components. Bundles of version 0.3.0 have none.

    Attributes
    ----------
    directions
        (components, columns) directions in unscaled columns.
    slopes
        (components,) slopes of log time along them.
    low, high
        (components,) ranges.
    """

    directions: tuple[tuple[Number, ...], ...]
    slopes: tuple[Number, ...]
    low: tuple[Number, ...]
    high: tuple[Number, ...]


class Ridge(Guard):
    """One fit: ``weights`` (columns,) of the unscaled columns, and the intercept."""

    weights: tuple[Number, ...]
    intercept: Number


@dataclass(eq=False, repr=False)
class _Linear(TimeModel):
    """log(time) = w · standardised columns + b with the penalty α‖w‖², fitted per candidate.

    The weights of correlated columns cancel one another where training varied, but not for other rows. The time of a
    new shape could be wrong by a factor of a thousand. So minor principal components are clipped to the range of
    training rows.

    Parameters
    ----------
    alpha
        Penalty on squared weights of standardised columns, positive.

    Attributes
    ----------
    fits_
        Candidate → its `Ridge`; `OVERALL` → the fit over all rows.
    """

    storable: ClassVar[bool] = True
    json_file: ClassVar[str] = "coefficients.json"
    json_types: ClassVar[Mapping[str, Any]] = {"fits_": Mapping[str, Ridge]}
    columns = staticmethod(dimension_columns)
    """Family → the columns of the model."""

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
                projection = x[members] @ np.array(fit["directions"]).T
                clipped = np.clip(projection, fit["low"], fit["high"])
                log_time[members] += (clipped - projection) @ np.array(fit["slopes"])
        return np.exp(np.clip(log_time, -20.0, 40.0))

    def _design(self, rows: Rows) -> np.ndarray:
        # Unknown values count as 0: all columns of a described kernel may be unknown.
        return np.nan_to_num(rows.columns(self.columns(rows.family)).astype(np.float64))

    def _ridge(self, x: np.ndarray, y: np.ndarray) -> Ridge:
        """Return the ridge regression on standardised columns as weights of unscaled columns, with its guard."""
        from sklearn.linear_model import Ridge as Estimator

        mean, scale = x.mean(axis=0), x.std(axis=0)
        scale[scale < 1e-9] = 1.0
        standardised = (x - mean) / scale
        ridge = Estimator(alpha=self.alpha).fit(standardised, y)
        coefficients = np.asarray(ridge.coef_)
        weights = coefficients / scale
        intercept = float(np.asarray(ridge.intercept_) - weights @ mean)
        # The guard: components with little variance, as directions in unscaled columns.
        variance, components = np.linalg.eigh(standardised.T @ standardised / len(x))
        minor = components[:, variance < MAX_VARIANCE].T
        projection = x @ (minor / scale).T
        low, high = projection.min(0), projection.max(0)
        guard = {"directions": minor / scale, "slopes": minor @ coefficients, "low": low, "high": high}
        guard_values: Any = {name: to_json_types(values) for name, values in guard.items()}
        return Ridge(weights=tuple(weights.tolist()), intercept=intercept, **guard_values)


class LinearDims(_Linear):
    """Ridge regression of log time on the logarithms of the raw sizes, one fit per candidate.

    Parameters
    ----------
    alpha
        Penalty on squared weights of standardised columns, positive.

    References
    ----------
    Hoerl and Kennard 1970, "Ridge regression: Biased estimation for nonorthogonal problems".
    """

    name: ClassVar[str] = "linear-dims"
    help: ClassVar[str] = "ridge regression of log time on the sizes, one fit per candidate"


class LinearTerms(_Linear):
    """Ridge regression of log time on the sizes and the analytical terms, one fit per candidate.

    Parameters
    ----------
    alpha
        Penalty on squared weights of standardised columns, positive.

    References
    ----------
    Hoerl and Kennard 1970, "Ridge regression: Biased estimation for nonorthogonal problems".
    """

    name: ClassVar[str] = "linear-terms"
    help: ClassVar[str] = "ridge regression of log time on sizes and analytical terms, one fit per candidate"
    columns = staticmethod(term_columns)


@dataclass(eq=False, repr=False)
class LiEtAl(TimeModel):
    """time = a · FLOPs / peak + b · bytes / bandwidth + c with a, b, c ≥ 0, per (GPU, candidate, setting).

    FLOPs and bytes are the problem's own (direct algorithm, tensors touched once), as in the paper. The paper's
    ordinary least squares would fit only the largest of times over five orders of magnitude. So rows have the weight 1
    / time, and the relative error counts. A candidate without training rows gets NaN.

    Parameters
    ----------
    least_rows
        Minimum rows of a candidate on a GPU. With fewer rows, the fit over all GPUs answers.

    Attributes
    ----------
    coefficients_
        Group's key → (a, b, c).

    References
    ----------
    Li, Sun, Jog, "Path Forward Beyond Simulators: Fast and Accurate GPU Execution Time Prediction for DNN Workloads"
    (MICRO 2023).
    """

    name: ClassVar[str] = "li-et-al"
    help: ClassVar[str] = "linear in FLOPs and bytes per kernel (Li et al., MICRO 2023)"

    least_rows: Annotated[int, SearchRange(3, 60, log=True)] = 8

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Fit each GPU and candidate, and the more general groups (see `levels`)."""
        units = self.units(rows)
        groups = fitted_groups(self.levels(rows), self.least_rows, np.arange(len(rows)))
        self.coefficients_ = {key: relative_fit(units[at], time_us[at], nonnegative=True) for key, at in groups}

    def _predict(self, rows: Rows) -> np.ndarray:
        units = self.units(rows)
        time_us = np.full(len(rows), np.nan)
        for level in reversed(self.levels(rows)):  # the more specific fit overwrites the general one
            for key, index in level.groups(np.arange(len(rows))):
                if key in self.coefficients_:
                    time_us[index] = units[index] @ self.coefficients_[key]
        return np.maximum(time_us, MIN_US)

    def units(self, rows: Rows) -> np.ndarray:
        """Return the times in µs at the peak and at the bandwidth, and one, (rows, 3)."""
        return np.column_stack([peak_times(rows), np.ones(len(rows))])

    def levels(self, rows: Rows) -> list[GroupLevel]:
        """Return three levels of groups: candidate, kernel group and GPU; candidate and kernel group; candidate."""
        columns = key_columns(rows)
        levels = (("candidate", "grouping", "gpu"), ("candidate", "grouping"), ("candidate",))
        return [GroupLevel.of(joined(columns, names).to_numpy()) for names in levels]
