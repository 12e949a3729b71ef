"""`TimeModel`: the base class of all models, a scikit-learn regressor of kernel times; and the storage of fitted
models.
"""

import hashlib
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from reprlib import repr as short
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, get_type_hints

import msgspec
import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d

from surrogate.dataset.checks import find_violations, normalise
from surrogate.dataset.described import described_frame
from surrogate.dataset.files import atomic_path
from surrogate.dataset.problems import families_of
from surrogate.dataset.rows import CONTEXT_NAMES, Rows, fingerprint, rows_of
from surrogate.features import Description, InputError, check_choice, read_toml
from surrogate.features.families import FAMILIES, Family
from surrogate.models.json_types import from_json_types, to_json_types

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from optuna.trial import BaseTrial
    from sklearn.utils import Tags

    from surrogate.dataset.store import Dataset
    from surrogate.models.times import BoostedArrays


SETTING_LIMITS: Mapping[str, Mapping[str, list[Any]]] = read_toml(__file__)
"""Module of a model → hyperparameter → its minimum and maximum, or its choices. `TimeModel.fit` checks them."""


class SearchRange(NamedTuple):
    """The range in which a search sets a parameter. If ``log``, it is searched by the logarithm."""

    low: float
    high: float
    log: bool = False

    def suggested(self, trial: "BaseTrial", name: str) -> float:
        """Return a value drawn from an Optuna trial; an integer if both ends are integers."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(name, self.low, self.high, log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)


ProgressCallback = Callable[[float], None]
"""Function that is called with the finished share of a fit, 1 at its end."""


class TimeModel(RegressorMixin, BaseEstimator, ABC):
    """A predictor of kernel times in µs, for one family of kernels.

    ``clone``, ``get_params``, ``cross_val_score`` and ``Pipeline`` work as for any scikit-learn estimator.
    Hyperparameters are the arguments of ``__init__``. Their defaults are the stored, recommended settings. Fitted
    attributes end in an underscore.

    Attributes
    ----------
    feature_names_in_, n_features_in_
        The columns of the table of the fit, and their number.
    typical_
        Median time in µs, and median ratio of time to roofline time, of the training rows.
    """

    name: ClassVar[str]
    """Name in commands and bundles. A class with a name is a model of the registry."""
    help: ClassVar[str]
    """Description and source of the model, in one line."""
    tunable: ClassVar[bool] = True
    """False if the model has no parameters to tune.

    Otherwise a search sets each parameter that is annotated with a `SearchRange` or with the values to choose from.
    """
    on_request: ClassVar[bool] = False
    """True for a model that is compared only if the user names it."""
    predicts_time: ClassVar[bool] = True
    """False for a model that only ranks. Then only its choices are evaluated."""
    has_min_us: ClassVar[bool] = True
    """False for a model that fits the launch itself, so that its answers need no lower bound."""
    fits_failures: ClassVar[bool] = False
    """True for a model that also learns from failed rows. Their time is inf."""
    storable: ClassVar[bool] = False
    """True if a bundle can hold the fitted model (`to_files`, `from_files`). The other models are baselines."""
    json_file: ClassVar[str] = ""
    """The file of a model whose fitted attributes are all stored as JSON."""
    json_types: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Fitted attribute in `json_file` → its type. A file of one attribute holds its value without its name."""
    on_progress: "ProgressCallback | None" = None
    """Function that a fit with rounds calls with the finished share of the rounds."""
    fitted_parts: "Mapping[str, TimeModel]" = MappingProxyType({})
    """Models by name that were fitted on the rows of the next fit.

    A model that combines other models takes them, with their settings, instead of fitting them again.
    """

    def fit(self, X: "pd.DataFrame | Rows | Dataset", y: "ArrayLike | None" = None) -> Self:  # noqa: N803  scikit-learn's name
        """Fit on the rows with a time.

        Parameters
        ----------
        X
            Table of dataset rows: a DataFrame of pandas or polars, a `Dataset`, or `Rows`.
        y
            (rows,) times in µs. None: the table's ``time_us`` of the rows with status ok.

        Returns
        -------
        Self
            The fitted model.

        Raises
        ------
        InputError
            If a setting is outside its limits, the rows do not suit the model, or no row has a time.
        """
        self._check_settings()
        times = None if y is None else _checked_times(y)
        rows = self._rows(X, reset=True)
        time_us = rows.time_us if times is None else times
        if len(time_us) != len(rows):
            raise InputError(f"X has {len(rows)} rows and y has {len(time_us)}; give a time for each row")
        if y is None and "time_us" not in rows.frame:
            raise InputError(f"{self.name} requires y to be passed, but the target y is None and X has no time_us")
        timed = np.isfinite(time_us) & (time_us > 0) & (rows.ok if y is None else True)
        if not timed.any():
            raise InputError(f"{self.name} needs at least one row with a time; the table has none")
        kept = timed
        if self.fits_failures and y is None and "status" in rows.frame:
            kept = timed | (rows.frame["status"] != "ok").to_numpy()
        self._fit(rows.take(kept), np.where(timed, time_us, np.inf)[kept])
        columns = X if isinstance(X, pd.DataFrame) else rows.frame
        self.feature_names_in_ = np.array([*map(str, columns)], dtype=object)
        self.n_features_in_ = len(self.feature_names_in_)
        keys = {"family", "problem", "solver", *rows.family.row_key, *rows.family.candidate_key}
        self._used = [name for name in self.feature_names_in_ if name in keys]
        self.typical_ = float(np.median(time_us[timed])), float(np.median(time_us[timed] / rows.roofline_us[timed]))
        return self

    def predict(self, X: "pd.DataFrame | Rows | Dataset") -> np.ndarray:  # noqa: N803
        """Predict times.

        Parameters
        ----------
        X
            Table as in `fit`. The order of its columns and further columns do not matter.

        Returns
        -------
        np.ndarray
            (rows,) times in µs. If the model does not apply to a row of `Rows`, NaN. scikit-learn's tools need finite
            numbers: such a row of another table gets its roofline time, multiplied as is typical in training, and a
            warning counts these rows. A model that was read from files gives NaN.

        Raises
        ------
        NotFittedError
            If the model was not fitted.
        InputError
            If a column of `fit` is missing, or a value is outside its limits.
        """
        check_is_fitted(self)
        with np.errstate(all="ignore"):  # sizes of a permuted table need not fit one another
            rows = self._rows(X)
            time_us = self._predict(rows)
            lacking = ~np.isfinite(time_us)
            if not isinstance(X, Rows) and lacking.any() and hasattr(self, "typical_"):
                time_us = np.where(lacking, self._typical_us(rows), time_us)
                example = f"{lacking.sum()} of {len(rows)} rows, such as {rows.candidate[lacking][0]}"
                warnings.warn(f"{self.name} does not apply to {example}; they get a typical time", stacklevel=2)
        return time_us

    def __sklearn_tags__(self) -> "Tags":
        """Return scikit-learn's tags: X has texts, and no size or time is negative."""
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = tags.input_tags.positive_only = tags.input_tags.string = True
        return tags

    def _typical_us(self, rows: Rows) -> np.ndarray:
        """Return times (rows,) in µs by the typical ratio to the roofline, or the typical time without a roofline."""
        time_us, ratio = self.typical_
        return np.where(np.isfinite(rows.roofline_us), ratio * rows.roofline_us, time_us)

    def _check_settings(self) -> None:
        """Raise `InputError` if a hyperparameter of a class in `SETTING_LIMITS` has a wrong type or value."""
        modules = {cls.__module__.removeprefix("surrogate.models.") for cls in type(self).__mro__}
        params = self.get_params(deep=False)
        limits = {name: each for module in modules for name, each in SETTING_LIMITS.get(module, {}).items()}
        for name in limits.keys() & params.keys():
            value, (low, *high) = params[name], limits[name]
            number = value.item() if isinstance(value, np.generic) else value
            try:
                msgspec.convert(number, type(low))
            except msgspec.ValidationError as error:
                raise InputError(f"{self.name}: {name} is {short(value)}; {str(error).replace('`', '')}") from None
            if isinstance(low, str) and high:
                check_choice(f"{self.name}: {name}", number, limits[name])
            elif high and not low <= number <= high[0]:
                raise InputError(f"{self.name}: {name} is {value}; it must be between {low} and {high[0]:,}")

    def _rows(self, X: Any, reset: bool = False) -> Rows:  # noqa: N803
        """Return the rows of a table. ``reset`` as in scikit-learn: True in a fit."""
        if isinstance(X, Rows):
            return X
        table = X.to_pandas() if hasattr(X, "to_pandas") else X
        if isinstance(getattr(table, "frame", None), pd.DataFrame):
            return rows_of(table.frame, table.described_family, table.devices)
        shape: Any = getattr(table, "shape", ())
        if 0 in shape:
            kind = "feature" if shape[-1] == 0 else "sample"
            raise InputError(f"X has 0 {kind}(s) (shape={shape}) while a minimum of 1 is required.")
        if not isinstance(table, pd.DataFrame):
            found = f"{type(table).__module__}.{type(table).__name__} of shape {shape}"
            remedy = "Reshape your data: give a table with named columns, as pandas.DataFrame(X, columns=names)"
            raise InputError(f"{self.name} cannot read X, a {found}. {remedy}")
        if missing := [name for name in getattr(self, "_used", ()) if not reset and name not in table]:
            expected = f"{type(self).__name__} is expecting {self.n_features_in_} features as input"
            raise InputError(f"X has {shape[1]} features, but {expected}; missing: {', '.join(missing)}")
        if (repeated := table.columns.duplicated()).any():
            raise InputError(f"X has two columns {table.columns[repeated][0]}; names must differ")
        return _checked_rows(table.rename(columns=str), reset)

    @abstractmethod
    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Fit on rows that all have a time (rows,) in µs."""

    @abstractmethod
    def _predict(self, rows: Rows) -> np.ndarray:
        """Return times (rows,) in µs; NaN if the model does not apply."""

    def for_unmeasured_gpu(self) -> "TimeModel":
        """Return an unfitted model with the same answers on GPUs without measured rows.

        It may cost less to fit than this model.
        """
        return duplicate(self)

    def to_files(self) -> dict[str, bytes]:
        """Return the fitted model as files, name → content: JSON, UBJ or plain arrays, no executable content."""
        if not self.json_file:
            raise InputError(f"{self.name} is a baseline; bundles hold other models")
        values = {name.strip("_"): to_json_types(getattr(self, name)) for name in self.json_types}
        content = values if len(values) > 1 else next(iter(values.values()))
        return {self.json_file: json.dumps(content, sort_keys=True).encode()}

    @classmethod
    def from_files(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """Return the model from its hyperparameters and the output of `to_files`."""
        if not cls.json_file:
            raise InputError(f"{cls.name} is a baseline; bundles hold other models")
        model, content = cls(**params), json.loads(files[cls.json_file])
        for name, kind in cls.json_types.items():
            value = content[name.strip("_")] if len(cls.json_types) > 1 else content
            setattr(model, name, from_json_types(kind, value))
        return model

    def boosted_arrays(self) -> "BoostedArrays | None":
        """Return the fitted model as arrays that answer single problems, or None if it is not one ensemble of trees."""
        return None

    @classmethod
    def space(cls, trial: "BaseTrial") -> Mapping[str, object]:
        """Return hyperparameters drawn from an Optuna trial; empty if there are none to tune."""
        return {
            name: span.suggested(trial, name)
            if isinstance(span, SearchRange)
            else trial.suggest_categorical(name, span)
            for name, hint in get_type_hints(cls, include_extras=True).items()
            for span in getattr(hint, "__metadata__", ())[:1]
        }


def _checked_times(y: "ArrayLike") -> np.ndarray:
    """Return the times of ``y`` as (rows,) float64. Raise `InputError` unless they are finite and positive numbers."""
    try:
        times = column_or_1d(check_array(y, ensure_2d=False, input_name="y"), warn=True)
    except (TypeError, ValueError) as error:
        raise InputError(f"y: {str(error).splitlines()[0]}; give a time in µs for each row of X") from None
    if times.dtype.kind not in "iuf" or not (times > 0).all():
        found = f"{times[~(times > 0)][0]}" if times.dtype.kind in "iuf" else f"values of type {times.dtype}"
        raise InputError(f"y has {found}; give times in µs, which are numbers above 0")
    return times.astype(np.float64)


def _checked_rows(table: pd.DataFrame, reset: bool) -> Rows:
    """Return the rows of a table that need not be normalised.

    Raise `InputError` if a value is outside its limits and, in a fit (``reset``), if sizes do not fit one another.
    """
    name = f"X ({table.shape[0]} sample(s), {table.shape[1]} feature(s))"
    added = {"time_us": np.nan, "status": "failed"} if "time_us" not in table or not reset else {}
    table, description = table.assign(**added), table.attrs.get("description")
    if not isinstance(description, Description | None):
        raise InputError(f"the description in X.attrs is a {type(description).__name__}; give a Dataset's description")
    family = FAMILIES.from_description(description) if description else None
    try:
        frame = described_frame(table, description, name) if description else normalise(table, name)
        violations = find_violations(frame.drop_duplicates([*families_of(frame, family)[0].row_key]), family)
        for each in violations:
            if each.rule.startswith(("it must be between", "known:", "a name")) or (reset and each.column not in added):
                raise InputError(f"{name}: {each}")
    except InputError as error:  # add scikit-learn's words
        text = str(error).replace(" is nan;", " is NaN;")
        raise InputError("Negative values in data: " * (" is -" in text) + text) from None
    return rows_of(frame.drop(columns=list(added)), family)


def duplicate(model: TimeModel) -> TimeModel:
    """Return an unfitted model with the same settings: scikit-learn's `clone`, typed."""
    return type(model)(**model.get_params(deep=False))


def fit_with_progress(model: TimeModel, rows: Rows, on_progress: ProgressCallback) -> TimeModel:
    """Fit ``model`` on ``rows`` and return it. ``on_progress`` is called during the fit."""
    model.on_progress = on_progress
    try:
        model.fit(rows)
    finally:
        del model.on_progress
    on_progress(1.0)
    return model


def holdout_times(
    model: TimeModel, train: Rows, holdout: Rows, folder: Path | None, on_progress: ProgressCallback
) -> np.ndarray:
    """Fit ``model`` on ``train`` and return its times (rows,) of ``holdout``.

    If a ``folder`` is given, the times are stored there, and times of interrupted runs are read from there.
    """
    if folder is None:
        return fit_with_progress(model, train, on_progress).predict(holdout)
    key = (model.name, model.get_params(), train.family.version, fingerprint(train), fingerprint(holdout))
    file = folder / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:24]}.npy"
    if file.is_file():
        on_progress(1.0)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_path(file) as temporary, temporary.open("wb") as stream:
            np.save(stream, fit_with_progress(model, train, on_progress).predict(holdout), allow_pickle=False)
    return np.load(file, allow_pickle=False)


def dimension_columns(family: Family) -> tuple[str, ...]:
    """Return the columns of the raw problem, the device and the release, without physics."""
    return (*family.dimension_names, *CONTEXT_NAMES)


def term_columns(family: Family) -> tuple[str, ...]:
    """Return the columns of `dimension_columns` and the analytical terms, without the code of a mechanism."""
    return (*(name for name in family.column_names if name != "mechanism"), *CONTEXT_NAMES)


def published_columns(family: Family) -> tuple[str, ...]:
    """Return the columns of published predictors: the raw problem, its FLOPs and bytes, the device."""
    work = tuple(name for name in WORK_COLUMNS if name in family.problem_names)
    return (*family.dimension_names, *work, *CONTEXT_NAMES)


WORK_COLUMNS = ("log2_flops", "log2_tensor_bytes", "log2_dram_bytes")


def traffic_column(family: Family) -> str:
    """Return the column of a problem's compulsory bytes."""
    return next(name for name in WORK_COLUMNS[1:] if name in family.problem_names)
