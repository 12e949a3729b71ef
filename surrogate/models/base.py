"""`TimeModel`: a scikit-learn regressor of kernel times, which every model here is, and how a fitted one is stored."""

import hashlib
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

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from optuna.trial import BaseTrial

    from surrogate.models.times import BoostedTimes


class SearchRange(NamedTuple):
    """The range in which a search sets a parameter: by its logarithm where ``log``."""

    low: float
    high: float
    log: bool = False

    def suggested(self, trial: "BaseTrial", name: str) -> float:
        """A value drawn from an Optuna trial; a whole number where both ends are such."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(name, self.low, self.high, log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)


ProgressCallback = Callable[[float | None], None]
"""Called with the share of a fit that is done: 1 at its end, None where an earlier run had done it."""


class TimeModel(RegressorMixin, BaseEstimator, ABC):
    """A predictor of kernel times in µs, of one family of kernels.

    ``X`` is a normalised table of dataset rows (`surrogate.dataset.store.read_dataset`), or `Rows` that were made of
    one; ``y`` (rows,) are times in µs, by default the table's own ``time_us`` of the rows whose status is ok.
    ``clone``, ``get_params``, ``cross_val_score`` and ``Pipeline`` work as for any estimator. Hyperparameters are the
    arguments of ``__init__``; their defaults are the stored, sensible settings.
    """

    name: ClassVar[str]
    """As commands and bundles call it; a class that gives one is a model of the registry."""
    help: ClassVar[str]
    """What it is and where it comes from, in one line."""
    tunable: ClassVar[bool] = True
    """False if the model has nothing to tune. Otherwise a search sets each parameter that is annotated with a
    `SearchRange` or with the values to choose from."""
    on_request: ClassVar[bool] = False
    """True for a model that is compared only where it is named."""
    predicts_time: ClassVar[bool] = True
    """False for a model that only ranks: it is judged by its choices alone."""
    fits_failures: ClassVar[bool] = False
    """True for a model that learns from rows that failed, too: their time is inf."""
    storable: ClassVar[bool] = False
    """True where a bundle can hold the fitted model (`to_files`, `from_files`); the others are baselines."""
    on_progress: "ProgressCallback | None" = None
    """Called during a fit, where it has rounds, with the share of them that is done."""
    fitted_parts: "Mapping[str, TimeModel]" = MappingProxyType({})
    """Models by name, fitted on the rows of the next fit. A model made of others takes them, with their settings."""

    def fit(self, X: pd.DataFrame | Rows, y: "ArrayLike | None" = None) -> Self:  # noqa: N803  scikit-learn's name
        """Fit on the rows with a time. Raises `InputError` where they cannot carry the model."""
        rows = rows_of(X)
        time_us = rows.time_us if y is None else np.asarray(y, dtype=np.float64)
        timed = np.isfinite(time_us) & (time_us > 0) & (rows.ok if y is None else True)
        if not timed.any():
            raise InputError(f"{self.name} needs at least one row with a time to learn from")
        kept = timed
        if self.fits_failures and "status" in rows.frame:
            kept = timed | (rows.frame["status"] != "ok").to_numpy()
        self._fit(rows.take(kept), np.where(timed, time_us, np.inf)[kept])
        self.is_fitted_ = True
        return self

    def predict(self, X: pd.DataFrame | Rows) -> np.ndarray:  # noqa: N803
        """(rows,) times in µs; NaN where the model does not apply."""
        return self._predict(rows_of(X))

    @abstractmethod
    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Fit on rows that all have a time (rows,) in µs."""

    @abstractmethod
    def _predict(self, rows: Rows) -> np.ndarray:
        """(rows,) times in µs; NaN where the model does not apply."""

    def for_unmeasured_gpu(self) -> "TimeModel":
        """An unfitted model that answers alike where no row of the GPU was measured; a cheaper one where there is."""
        return duplicate(self)

    def to_files(self) -> dict[str, bytes]:
        """The fitted model as files: name → content; JSON, UBJ or plain arrays, nothing that executes."""
        raise InputError(f"{self.name} is a baseline; bundles hold other models")

    @classmethod
    def from_files(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """The model that `to_files` described, with its hyperparameters."""
        raise InputError(f"{cls.name} is a baseline; bundles hold other models")

    def times(self) -> "BoostedTimes | None":
        """The fitted model as arrays that answer single problems, None where it is not one ensemble of trees."""
        return None

    @classmethod
    def space(cls, trial: "BaseTrial") -> Mapping[str, object]:
        """Hyperparameters drawn from an Optuna trial; empty where there is nothing to tune."""
        hints = get_type_hints(cls, include_extras=True)
        return {
            name: span.suggested(trial, name)
            if isinstance(span, SearchRange)
            else trial.suggest_categorical(name, span)
            for name, hint in hints.items()
            for span in getattr(hint, "__metadata__", ())[:1]
        }


def duplicate(model: TimeModel) -> TimeModel:
    """An unfitted model of the same settings: scikit-learn's `clone`, typed."""
    return type(model)(**model.get_params(deep=False))


def fitted(model: TimeModel, rows: Rows, on_progress: ProgressCallback) -> TimeModel:
    """``model`` fitted on ``rows``; ``on_progress`` is called as the fit goes on."""
    model.on_progress = on_progress
    try:
        model.fit(rows)
    finally:
        del model.on_progress
    on_progress(1.0)
    return model


def times_of(model: TimeModel, train: Rows, held: Rows, keep: Path | None, on_progress: ProgressCallback) -> np.ndarray:
    """(rows,) times of ``held`` by ``model`` fitted on ``train``; ``keep``: a folder of what interrupted runs found."""
    if keep is None:
        return fitted(model, train, on_progress).predict(held)
    words = (model.name, model.get_params(), train.family.version, fingerprint(train), fingerprint(held))
    file = keep / f"{hashlib.sha256(repr(words).encode()).hexdigest()[:24]}.npy"
    if file.is_file():
        on_progress(None)
    else:
        keep.mkdir(parents=True, exist_ok=True)
        with atomic_path(file) as temporary, temporary.open("wb") as stream:
            np.save(stream, fitted(model, train, on_progress).predict(held), allow_pickle=False)
    return np.load(file, allow_pickle=False)


def dims(family: Family) -> tuple[str, ...]:
    """Columns of the raw problem, the device and the release: no physics."""
    return (*family.dimension_names, *CONTEXT_NAMES)


def terms(family: Family) -> tuple[str, ...]:
    """The raw problem, the device, the release, and the analytical terms (not the code of a mechanism)."""
    return (*(name for name in family.column_names if name != "mechanism"), *CONTEXT_NAMES)


def configuration(family: Family) -> tuple[str, ...]:
    """What predictors of the literature see: the raw problem, its FLOPs and bytes, the device."""
    work = tuple(name for name in WORK_NAMES if name in family.problem_names)
    return (*family.dimension_names, *work, *CONTEXT_NAMES)


WORK_NAMES = ("log2_flops", "log2_tensor_bytes", "log2_dram_bytes")


def traffic_column(family: Family) -> str:
    """The column of a problem's compulsory bytes."""
    return next(name for name in WORK_NAMES[1:] if name in family.problem_names)
