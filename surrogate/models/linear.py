"""`linear-dims`, `linear-terms`, `li-et-al`, `unit-times`: linear models, one fit per candidate or group of rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypedDict

import numpy as np

from surrogate.dataset.problems import joined
from surrogate.dataset.rows import Rows
from surrogate.features.roofline import exponentials_us
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


EXPONENTIAL_WEIGHT = 0.3
"""Weight of the exponentials' time in the arithmetic of attention.

It is a compromise. Of the two GPUs with cuDNN 9's rows, the one left out is predicted best with 0. TensorRT-LLM's
prefills give 0.4 on B200, GB200, H100 and H200. There, B300 and GB300, with twice the units, take 0.80 to 0.86 of the
time of B200 and GB200.
"""
CALL_US = 10.0
"""Time of a call without work. Of 2, 5, 10 and 20 µs it fits cuDNN 9's attention best on models and GPUs left out."""
NEAR = 1e-9
"""Squared distance of equal problems."""


@dataclass(eq=False, repr=False)
class UnitTimes(LiEtAl):
    """time = Σ coefficient · time of a unit + `CALL_US`, corrected by the errors of near measured problems.

    Parameters
    ----------
    least_rows
        Minimum rows for coefficients of one generation's own.
    shrinkage
        Weight of no error beside the measured errors, each of which has the weight 1 / squared distance in log2 sizes.

    Attributes
    ----------
    coefficients_
        Group's key → coefficients of the units, none negative.
    errors_
        Key of a generation's group → (rows, sizes + 1): log2 sizes of its problems, and log(measured / predicted).

    References
    ----------
    Li, Sun, Jog, "Path Forward Beyond Simulators" (MICRO 2023), for times that are linear in datasheet times. Shepard
    1968, "A two-dimensional interpolation function for irregularly-spaced data".
    """

    name: ClassVar[str] = "unit-times"
    help: ClassVar[str] = "linear in the times of arithmetic, traffic and thread blocks, per generation of GPUs"
    storable: ClassVar[bool] = True
    on_request: ClassVar[bool] = True
    has_min_us: ClassVar[bool] = False
    json_file: ClassVar[str] = "units.json"
    json_types: ClassVar[Mapping[str, Any]] = dict.fromkeys(("coefficients_", "errors_"), Mapping[str, np.ndarray])

    shrinkage: Annotated[float, SearchRange(0.1, 10.0, log=True)] = 0.5

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        LiEtAl._fit(self, rows, np.maximum(time_us - CALL_US, MIN_US))
        error = np.log(time_us / (LiEtAl._predict(self, rows) + CALL_US))
        measured = np.column_stack([_coordinates(rows), error])
        self.errors_ = {key: measured[index] for key, index in self.levels(rows)[0].groups(np.arange(len(rows)))}

    def _predict(self, rows: Rows) -> np.ndarray:
        error = np.zeros(len(rows))
        place = _coordinates(rows)
        for key, index in self.levels(rows)[0].groups(np.arange(len(rows))):
            if key in self.errors_:
                measured = self.errors_[key]
                weight = 1.0 / (((place[index, None] - measured[None, :, :-1]) ** 2).sum(axis=2) + NEAR)
                error[index] = weight @ measured[:, -1] / (weight.sum(axis=1) + self.shrinkage)
        return (LiEtAl._predict(self, rows) + CALL_US) * np.exp(error)

    def units(self, rows: Rows) -> np.ndarray:
        """Return the times of arithmetic and traffic in µs, and the blocks of an SM, (rows, 3)."""
        units = np.column_stack([peak_times(rows), np.exp2(rows.column("log2_blocks_per_sm"))])
        if "log2_pairs_per_sm" in rows.column_names:
            names = ("log2_pairs_per_sm", "boost_mhz", "compute_capability")
            pairs, boost_mhz, capability = (rows.column(name).astype(np.float64) for name in names)
            units[:, 0] += EXPONENTIAL_WEIGHT * exponentials_us(np.exp2(pairs), boost_mhz, capability)
        return units

    def levels(self, rows: Rows) -> list[GroupLevel]:
        """Return levels of groups: an algorithm in a setting on a generation; on all GPUs; all algorithms; all
        settings."""
        family = rows.family
        kinds = [name for name in family.setting_names if name not in family.candidate_key]
        frame = rows.frame.assign(generation=rows.column("compute_capability").astype(int))
        if family.half_types_share_algorithms:
            frame = frame.replace({name: {"fp16": "bf16"} for name in kinds})
        names = ("library", *kinds, "algorithm")
        levels = ((*names, "generation"), names, names[:-1], names[:2])
        return [GroupLevel.of(joined(frame, each).to_numpy()) for each in levels]


def _coordinates(rows: Rows) -> np.ndarray:
    """Return the log2 sizes (rows, sizes) in which distances are measured."""
    family = rows.family
    names = tuple(name for name in family.dimension_names if name in family.problem_names)
    return rows.columns(names).astype(np.float64)
