"""`boosted-seer` and `stacked-terms`: SEER's fits and boosted trees together.

`boosted-seer` corrects SEER's fits by trees. The base of the trees is the time of `seer-time-only`, and its ratio to
the roofline is a column. Training rows get SEER's times from fits that did not see their shape, so that the trees learn
SEER's errors on new shapes.

`stacked-terms` is a convex combination, in log time, of trees on the roofline and of `boosted-seer`. Their errors on
new shapes differ: one starts from the roofline, the other from the paper's physics. Sources: Wolpert 1992, "Stacked
generalization"; Breiman 1996, "Stacked regressions" (weights that are not negative and sum to one).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from surrogate.dataset.problems import device_names, shape_names
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_labels, label_folds
from surrogate.features.errors import InputError
from surrogate.features.families import Family
from surrogate.models.base import SearchRange, TimeModel
from surrogate.models.boosted import CANDIDATE_WEIGHT, BoostedTerms
from surrogate.models.json_types import Share, files_below, from_json_types
from surrogate.models.registry import fitted_part, model_class
from surrogate.models.seer.time_only import FeatureRows, SeerTimeOnly
from surrogate.models.times import BoostedArrays

SEER_PREFIX, TREES_PREFIX = "seer.", "trees."
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
        See `SeerTimeOnly`.
    rounds, learning_rate, max_leaves, …
        See `BoostedTerms`.

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
    least_rows: Annotated[int, SearchRange(6, 40, log=True)] = 8

    def base_us(self, rows: Rows) -> np.ndarray:
        """Return SEER's time (rows,) in µs, which the correction multiplies, or the roofline if SEER has no time."""
        return self._seer_us(rows)

    def design(self, rows: Rows) -> np.ndarray:
        """Return (rows, columns + 2) float32: terms, the log of SEER's time over the roofline, the candidate's code."""
        ratio = np.log(self._seer_us(rows) / super().base_us(rows)).astype(np.float32)
        return np.insert(super().design(rows), -1, ratio, axis=1)

    def column_weights(self, family: Family) -> np.ndarray:
        """Return weights (columns + 2,) as in `BoostedTerms`; SEER's ratio weighs as much as the candidate's code."""
        return np.insert(super().column_weights(family), -1, CANDIDATE_WEIGHT)

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Fit SEER out of fold, then the trees on its residuals, then SEER on all rows."""
        label = fold_labels(shape_names(rows.frame, rows.family), self.cross_folds, self.random_state)
        features = FeatureRows.of(rows)
        seer_us = np.full(len(rows), np.nan)
        for inside, outside in label_folds(label):
            fitted = SeerTimeOnly(self.least_rows).fit_rows(features, inside, time_us)
            seer_us[outside] = fitted.predict_rows(features, outside)
        self.seer_ = SeerTimeOnly(self.least_rows).fit_rows(features, np.arange(len(rows)), time_us)
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
        """Return SEER's times (rows,) in µs, from the running fit or prediction if ``rows`` are its rows."""
        current_rows, seer_us = getattr(self, "_last", (None, None))
        return seer_us if current_rows is rows and seer_us is not None else _or_roofline(self.seer_.predict(rows), rows)

    def tree_columns(self, family: Family) -> tuple[str, ...]:
        """Return the names of the columns of `design` except the last one, the candidate's code."""
        return (*super().tree_columns(family), RATIO)

    def boosted_arrays(self) -> BoostedArrays | None:
        """Return None: SEER's fits are not an ensemble of trees."""
        return None

    def to_files(self) -> dict[str, bytes]:
        """Return SEER's fits and the trees as arrays."""
        parts = {SEER_PREFIX: self.seer_.to_files(), TREES_PREFIX: self.tree_arrays().to_files()}
        return {f"{part}{name}": data for part, files in parts.items() for name, data in files.items()}

    @classmethod
    def from_files(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """Return the model from the output of `to_files`."""
        model = cls.from_arrays(BoostedArrays.from_files(files_below(TREES_PREFIX, files)), params)
        model.seer_ = SeerTimeOnly.from_files({"least_rows": model.least_rows}, files_below(SEER_PREFIX, files))
        return model


def _or_roofline(seer_us: np.ndarray, rows: Rows) -> np.ndarray:
    """Return SEER's times (rows,) in µs, or the roofline if SEER has no time."""
    return np.where(np.isfinite(seer_us), seer_us, rows.roofline_us)


UNSEEN_GPU_SHARE = 0.5
"""Factor of the weight on a GPU without training rows. Physics fitted to other GPUs is less accurate there.

Folds by shape give a weight of 0.65 on the cuDNN table. If one of its nine GPUs is left out, the errors on the other
eight, each also left out, are smallest with a weight of 0.2 to 0.4.
"""
MIN_STEP = 1e-12
"""A smaller difference of two log times is rounding: the times are equal."""
PARTS = ("first", "second")
WEIGHTS = "weights.json"


@dataclass(eq=False, repr=False)
class StackedTerms(TimeModel):
    """Combine two models: log time = (1 − w) · log time of the first + w · log time of the second.

    The weight w minimises the mean absolute log error of out-of-fold predictions. The training shapes are split into
    folds, and each fold is predicted by models fitted on the other folds. A mechanism has its own weight. It is shrunk
    towards the weight of all rows if the mechanism has few shapes. On a GPU without training rows, the weight is
    multiplied by `UNSEEN_GPU_SHARE`. The first model answers alone if the second has no prediction, and for problems
    outside the family's primary stratum (grouped convolutions).

    Parameters
    ----------
    first, second
        Names of the two models.
    inner_folds
        Number of folds of the training shapes. Each costs one fit of both models.
    pooling
        Number of shapes with which a mechanism's own weight and the weight of all rows count the same.
    random_state
        Seed of the folds and of the models.
    device
        Where XGBoost grows trees: ``cpu`` or ``cuda``.

    Attributes
    ----------
    first_, second_
        The models, fitted on all training rows.
    weight_
        Weight of the second model over all rows, from 0 to 1.
    weights_
        Mechanism's code → its weight.
    gpus_
        Registry names of the GPUs in training.

    References
    ----------
    Wolpert 1992, "Stacked generalization"; Breiman 1996, "Stacked regressions".
    """

    name: ClassVar[str] = "stacked-terms"
    help: ClassVar[str] = "boosted-terms and boosted-seer together, a weighted mean in log time"
    storable: ClassVar[bool] = True
    tunable: ClassVar[bool] = False  # its models are tunable

    first: str = "boosted-terms"
    second: str = "boosted-seer"
    inner_folds: int = 3
    pooling: float = 1000.0
    random_state: int = 0
    device: str = "cpu"

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Fit both models on all rows, and the weights on out-of-fold predictions."""
        self.second_ = fitted_part(self, self.second, rows, time_us)  # fitted first, because it may refuse the rows
        self.first_ = fitted_part(self, self.first, rows, time_us)
        log_us = np.log(time_us)
        # 1. Out-of-fold predictions of both models, in log time.
        label = fold_labels(shape_names(rows.frame, rows.family), self.inner_folds, self.random_state)
        predicted = np.full((2, len(rows)), np.nan)
        for inside, outside in label_folds(label):
            train, holdout = rows.take(inside), rows.take(outside)
            for row, part in enumerate((self.first_, self.second_)):
                predicted[row, outside] = _quicker(part).fit(train, time_us[inside]).predict(holdout)
        # 2. The weight over all rows, then the weight of each mechanism.
        used = np.flatnonzero(np.isfinite(predicted).all(axis=0) & _is_primary(rows))
        residual, step = log_us[used] - np.log(predicted[0, used]), np.diff(np.log(predicted[:, used]), axis=0)[0]
        shape, mechanism = rows.shape[used], _mechanisms(rows)[used]
        self.weight_ = stacking_weight(residual, step)
        self.gpus_ = sorted(set(device_names(rows.frame)))
        self.weights_: dict[int, float] = {}
        for code in np.unique(mechanism).tolist():
            members = mechanism == code
            shapes = len(np.unique(shape[members]))
            share = shapes / (shapes + self.pooling)
            self.weights_[code] = share * stacking_weight(residual[members], step[members]) + (1 - share) * self.weight_

    def _predict(self, rows: Rows) -> np.ndarray:
        first, second = self.first_.predict(rows), self.second_.predict(rows)
        codes, position = np.unique(_mechanisms(rows), return_inverse=True)
        weight = np.array([self.weights_.get(code, self.weight_) for code in codes.tolist()])[position]
        weight = weight * np.where(np.isin(device_names(rows.frame), self.gpus_), 1.0, UNSEEN_GPU_SHARE)
        weight = np.where(np.isfinite(second) & _is_primary(rows), weight, 0.0)
        return first ** (1 - weight) * np.where(weight > 0, second, 1.0) ** weight

    def to_files(self) -> dict[str, bytes]:
        """Return both models' files, each with its part's name as prefix, and the weights as JSON."""
        files: dict[str, bytes] = {}
        content: dict[str, Any] = {"weight": self.weight_, "weights": self.weights_, "gpus": self.gpus_}
        for part, model in zip(PARTS, (self.first_, self.second_), strict=True):
            files |= {f"{part}.{name}": data for name, data in model.to_files().items()}
            content[part] = {"name": model.name, "params": model.get_params(deep=False)}
        return {**files, WEIGHTS: json.dumps(content, sort_keys=True).encode()}

    @classmethod
    def from_files(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """Return the model from the output of `to_files`. Raise `InputError` if a part is no storable model."""
        model = cls(**params)
        content = json.loads(files[WEIGHTS])
        model.weight_ = from_json_types(Share, content["weight"])
        model.weights_ = dict(from_json_types(Mapping[int, Share], content["weights"]))
        model.gpus_ = list(from_json_types(tuple[str, ...], content["gpus"]))
        for part in PARTS:
            kind = model_class(content[part]["name"])
            if not kind.storable or kind is cls:
                raise InputError(f"{WEIGHTS}: {kind.name} cannot be a part of {cls.name}")
            setattr(model, f"{part}_", kind.from_files(content[part]["params"], files_below(f"{part}.", files)))
        return model


def stacking_weight(residual: np.ndarray, step: np.ndarray) -> float:
    """Return the w in [0, 1] that minimises Σ|residual − w · step|; 0 without rows.

    Parameters
    ----------
    residual : (rows,)
        Log of measured time over the first model's time.
    step : (rows,)
        Log of the second model's time over the first model's time.

    Notes
    -----
    The sum is convex in w. Its minimum is the median of residual / step, with the weights |step|.
    """
    moves = np.abs(step) > MIN_STEP
    if not moves.any():
        return 0.0
    ratio, weight = residual[moves] / step[moves], np.abs(step[moves])
    order = np.argsort(ratio, kind="stable")
    reached = np.cumsum(weight[order])
    return float(np.clip(ratio[order][np.searchsorted(reached, reached[-1] / 2)], 0.0, 1.0))


def _quicker(model: TimeModel) -> TimeModel:
    """Return an unfitted model with the same settings, but half the trees and twice the learning rate.

    The weight depends on the difference of the two models, which changes little.
    """
    settings = model.get_params(deep=False)
    if {"rounds", "learning_rate"} <= set(settings):
        trees, rate = max(settings["rounds"] // 2, 1), min(2 * settings["learning_rate"], 1.0)
        settings |= {"rounds": trees, "learning_rate": rate}
    return type(model)(**settings)


def _is_primary(rows: Rows) -> np.ndarray:
    """Return True (rows,) in the family's primary stratum."""
    return rows.family.in_grouping(rows.stratum, rows.family.primary)


def _mechanisms(rows: Rows) -> np.ndarray:
    """Return the codes of mechanisms (rows,), 0 in families without mechanisms."""
    has_mechanisms = "mechanism" in rows.column_names
    return rows.column("mechanism").astype(int) if has_mechanisms else np.zeros(len(rows), dtype=int)
