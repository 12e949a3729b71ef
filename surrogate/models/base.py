"""`TimeModel`: the base class of all models, a scikit-learn regressor of kernel times; and the storage of fitted
models.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, get_type_hints

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, RegressorMixin

from surrogate.dataset.files import atomic_path
from surrogate.dataset.rows import CONTEXT_NAMES, Rows, fingerprint, rows_of
from surrogate.features.errors import InputError
from surrogate.features.families import Family
from surrogate.models.json_types import from_json_types, to_json_types

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from optuna.trial import BaseTrial

    from surrogate.models.times import BoostedArrays


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
    is_fitted_
        True after a fit.
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

    def fit(self, X: pd.DataFrame | Rows, y: "ArrayLike | None" = None) -> Self:  # noqa: N803  scikit-learn's name
        """Fit on the rows with a time.

        Parameters
        ----------
        X
            Normalised table of dataset rows (`surrogate.dataset.store.read_dataset`), or its `Rows`.
        y
            (rows,) times in µs. None: the table's ``time_us`` of the rows with status ok.

        Returns
        -------
        Self
            The fitted model.

        Raises
        ------
        InputError
            If the rows do not suit the model, or no row has a time.
        """
        rows = rows_of(X)
        time_us = rows.time_us if y is None else np.asarray(y, dtype=np.float64)
        timed = np.isfinite(time_us) & (time_us > 0) & (rows.ok if y is None else True)
        if not timed.any():
            raise InputError(f"{self.name} needs at least one row with a time; the table has none")
        kept = timed
        if self.fits_failures and "status" in rows.frame:
            kept = timed | (rows.frame["status"] != "ok").to_numpy()
        self._fit(rows.take(kept), np.where(timed, time_us, np.inf)[kept])
        self.is_fitted_ = True
        return self

    def predict(self, X: pd.DataFrame | Rows) -> np.ndarray:  # noqa: N803
        """Predict times.

        Parameters
        ----------
        X
            Normalised table of dataset rows, or its `Rows`.

        Returns
        -------
        np.ndarray
            (rows,) times in µs; NaN if the model does not apply.
        """
        return self._predict(rows_of(X))

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
