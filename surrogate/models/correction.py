"""What measurements on a device change about a model's predictions: a Gaussian process and, with many, trees on top."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from surrogate.dataset.rows import COLUMN_NAMES, Rows
from surrogate.dataset.splits import fold_of_names, shape_names
from surrogate.models.booster_file import native_booster
from surrogate.models.columns import TERMS, candidate_names, vocabulary
from surrogate.models.residual import Inputs, Residual

SCALES: dict[str, float] = {
    "log2_flops": 4.0, "log2_intensity": 2.0, "log2_algorithm_roofline_ratio": 1.5, "log2_blocks": 4.0,
    "log2_kernels": 1.0, "log2_r": 1.0, "log2_n": 3.0, "log2_channels_in": 3.0, "log2_channels_out": 3.0,
    "log2_out_h": 2.0, "is_depthwise": 0.5, "stride_h": 1.0, "itemsize": 4.0, "is_bwd_data": 1.0,
    "is_bwd_filter": 1.0, "is_nhwc": 1.0, "uses_tensor_cores": 1.0,
}  # fmt: skip
"""Term → the difference that counts as one unit of distance; the predicted time joins them."""
PREDICTED_SCALE = 3.0
"""Doublings of the predicted time per unit of distance."""
_PLACES = [COLUMN_NAMES.index(name) for name in SCALES]
_UNITS = np.array([*SCALES.values(), PREDICTED_SCALE])
_FAMILY = COLUMN_NAMES.index("family")
LEAST_TREE_PROBLEMS = 100
"""Measured problems from which trees on the remaining residuals are tried."""
TREES: dict[str, Any] = {
    "learning_rate": 0.05, "max_depth": 4, "subsample": 0.7, "colsample_bynode": 0.3, "min_child_weight": 5.0,
    "reg_lambda": 5.0,
}  # fmt: skip
ROUNDS = 200
FOLDS = 5


@dataclass(frozen=True)
class Correction:
    """The log factor on a model's times for one device. ``candidates`` name → code; ``trees`` None: not worth it."""

    residual: Residual
    candidates: Mapping[str, int]
    trees: Any = None

    def log_factor(self, features: np.ndarray, names: np.ndarray, predicted_us: np.ndarray) -> np.ndarray:
        """(rows,) natural logarithm of what times are multiplied by.

        ``features`` (rows, len(COLUMN_NAMES)), ``names`` (rows,) of the candidates, ``predicted_us`` (rows,) the base
        model's times; NaN where those are.
        """
        inputs = inputs_of(features, names, predicted_us, self.candidates)
        total = self.residual.predict(inputs)
        return total if self.trees is None else total + _tree_part(self.trees, features, inputs)

    def save(self) -> tuple[dict[str, Any], bytes | None]:
        """JSON values, and the trees as UBJ where there are any."""
        values = {"residual": self.residual.to_dict(), "candidates": dict(self.candidates)}
        return values, None if self.trees is None else bytes(self.trees.save_raw("ubj"))

    @classmethod
    def load(cls, values: Mapping[str, Any], trees: bytes | None) -> Self:
        """What `save` gave."""
        booster = None if trees is None else native_booster(trees, len(TERMS) + 2)
        return cls(Residual.from_dict(values["residual"]), values["candidates"], booster)


@dataclass(frozen=True)
class Fitted:
    """A correction, and the log factors (rows,) that corrections without the row's shape gave."""

    correction: Correction
    held_out: np.ndarray


def fit_correction(rows: Rows, predicted_us: np.ndarray, seed: int = 0) -> Fitted:
    """From ok rows of one device and the base model's times (rows,); at least two shapes are needed.

    Trees are kept where they lower the mean absolute log error on held-out shapes.
    """
    names = candidate_names(rows)
    codes = vocabulary(names)
    inputs = inputs_of(rows.features, names, predicted_us, codes)
    target = np.log(rows.time_us / predicted_us)
    whole = Residual.fit(inputs, target, seed)
    tries = (False, True) if len(np.unique(rows.problem)) >= LEAST_TREE_PROBLEMS else (False,)
    held = {grown: _held_out(rows, inputs, target, whole.scales, grown, seed) for grown in tries}
    grown = min(tries, key=lambda kind: float(np.abs(target - held[kind]).mean()))
    trees = _grow(rows.features, inputs, target - whole.predict(inputs), seed) if grown else None
    return Fitted(Correction(whole, codes, trees), held[grown])


def inputs_of(
    features: np.ndarray, names: np.ndarray, predicted_us: np.ndarray, codes: Mapping[str, int]
) -> Inputs:
    """The rows as the process sees them; a candidate that was not measured shares nothing with the others (code −1)."""
    log_time = np.log2(predicted_us)
    terms = np.column_stack([features[:, _PLACES].astype(np.float64), log_time]) / _UNITS
    candidate = np.array([codes.get(str(name), -1) for name in names], dtype=np.int64)
    return Inputs(terms, features[:, _FAMILY].astype(np.int64), candidate)


def _held_out(
    rows: Rows, inputs: Inputs, target: np.ndarray, scales: Mapping[str, float], grown: bool, seed: int
) -> np.ndarray:
    """Log factors of every row by corrections that never saw its shape."""
    names = shape_names(rows.frame)
    fold_of = fold_of_names(names, FOLDS, seed)
    label = np.array([fold_of[name] for name in names])
    out = np.empty(len(rows))
    for fold in np.unique(label):
        inside, outside = np.flatnonzero(label != fold), np.flatnonzero(label == fold)
        part = Residual.fit(inputs.take(inside), target[inside], seed, scales)
        out[outside] = part.predict(inputs.take(outside))
        if grown:
            rest = target[inside] - part.predict(inputs.take(inside))
            trees = _grow(rows.features[inside], inputs.take(inside), rest, seed)
            out[outside] += _tree_part(trees, rows.features[outside], inputs.take(outside))
    return out


def _grow(features: np.ndarray, inputs: Inputs, target: np.ndarray, seed: int) -> Any:
    import xgboost

    data = xgboost.DMatrix(_design(features, inputs), label=target, nthread=1)
    settings = {**TREES, "objective": "reg:squarederror", "seed": seed, "verbosity": 0, "nthread": 1}
    return xgboost.train(settings, data, num_boost_round=ROUNDS)


def _tree_part(trees: Any, features: np.ndarray, inputs: Inputs) -> np.ndarray:
    trees.set_param({"nthread": 1})
    return trees.inplace_predict(_design(features, inputs)).astype(np.float64)


def _design(features: np.ndarray, inputs: Inputs) -> np.ndarray:
    """The model's terms, the predicted time and the candidate's code."""
    columns = [COLUMN_NAMES.index(name) for name in TERMS]
    return np.column_stack([features[:, columns], inputs.terms[:, -1], inputs.candidate]).astype(np.float32)
