"""`boosted-dims` and `boosted-terms`: gradient-boosted trees on log(time / roofline time).

Trees clamp outside the range they saw, so what scales must be taken out of their target. The problem's roofline is the
base of both models. `boosted-terms` also knows what each algorithm really does: its base is the geometric mean of the
problem's and the algorithm's roofline, which held-out times and choices preferred to either alone.

The objective is squared error; `surrogate.models.objective` has what can be added to it.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, ClassVar, Self

import numpy as np

from surrogate.dataset.rows import Rows
from surrogate.features.errors import InputError
from surrogate.models.booster_file import native_booster
from surrogate.models.bounds import bound_rows
from surrogate.models.columns import DIMS, TERMS, candidate_names, roofline_base_us, select, vocabulary
from surrogate.models.objective import Objective, Weights

ROWS_PER_THREAD = 4000
WEIGHT_NAMES = tuple(field.name for field in fields(Weights))
"""Hyperparameters that are the objective's, not XGBoost's."""


class _Boosted:
    """One XGBoost booster for all algorithms and devices; the candidate is a categorical column."""

    name: ClassVar[str]
    predicts_time: ClassVar[bool] = True
    columns: ClassVar[tuple[str, ...]]
    DEFAULTS: ClassVar[dict[str, Any]] = {
        "rounds": 1000,
        "learning_rate": 0.03,
        "max_depth": 8,
        "min_child_weight": 3.0,
        "subsample": 0.6,
        "colsample_bynode": 0.25,
        "reg_lambda": 1.0,
        "max_bin": 128,
        **asdict(Weights()),
    }

    def __init__(self, **params: Any) -> None:
        self.params: Mapping[str, Any] = {**self.DEFAULTS, **params}
        self._booster: Any = None
        self._stored = b""
        self._candidates: dict[str, int] = {}

    def fit(self, rows: Rows, *, seed: int = 0) -> Self:
        """Minimise the objective over the log of the correction."""
        import xgboost

        ok = rows.take(rows.ok)
        if not len(ok):
            raise InputError(f"{self.name} needs at least one ok row to learn from")
        weights = self.weights
        bounds = bound_rows(rows) if weights.bounds_weight else None
        parts = [ok] if bounds is None else [ok, bounds]
        fitted = self._coded(candidate_names(ok))
        pages = [fitted.page(part) for part in parts]
        label = np.concatenate([page["label"] for page in pages])
        threads = _threads(len(label))
        data = xgboost.QuantileDMatrix(
            np.concatenate([page["data"] for page in pages]),
            label=label,
            feature_types=pages[0]["feature_types"],
            max_bin=self.params["max_bin"],
            enable_categorical=True,
            nthread=threads,
        )
        settings, objective = self.settings(seed, threads), None
        if not weights.plain:
            settings["base_score"] = float(
                pages[0]["label"].mean()
            )  # found by XGBoost only for its own objective
            objective = fitted._objective(parts, label)
        fitted._booster = xgboost.train(settings, data, num_boost_round=self.params["rounds"], obj=objective)
        return fitted

    @property
    def weights(self) -> Weights:
        """What the objective adds up. Raises `InputError` for weights that make no objective."""
        return Weights(**{key: self.params[key] for key in WEIGHT_NAMES})

    def settings(self, seed: int, threads: int) -> dict[str, Any]:
        """What `xgboost.train` is told: the model's own settings and what every fit adds."""
        own = {key: value for key, value in self.params.items() if key not in ("rounds", *WEIGHT_NAMES)}
        return {
            **own,
            "objective": "reg:squarederror",
            "tree_method": "hist",
            "seed": seed,
            "verbosity": 0,
            "nthread": threads,
        }

    def _objective(self, parts: list[Rows], target: np.ndarray) -> Objective:
        """Of the ok rows and, after them, those of bounds."""
        return Objective(
            self.weights,
            target,
            np.log(np.concatenate([self._base_us(part) for part in parts])),
            np.concatenate([part.problem for part in parts]),
            np.arange(len(target)) >= len(parts[0]),
        )

    def _coded(self, names: np.ndarray) -> Self:
        model = type(self)(**self.params)
        model._candidates = vocabulary(names)
        return model

    def paged(self, names: np.ndarray) -> Self:
        """An unfitted copy that codes these candidates: what fitting page by page begins with.

        Raises `InputError` for an objective that couples the rows of a problem, which may lie on different pages.
        """
        if not self.weights.plain:
            raise InputError(
                f"{self.name} learns choices and bounds from all rows at once; fit it in memory, or set choice_weight"
                " and bounds_weight to 0"
            )
        return self._coded(names)

    def page(self, rows: Rows) -> dict[str, Any]:
        """What a matrix of XGBoost is made from, of rows with times; pages of one `paged` model go together."""
        label = np.log(rows.time_us / self._base_us(rows))
        return {"data": self._design(rows), "label": label, "feature_types": self._types()}

    def predict_us(self, rows: Rows) -> np.ndarray:
        """Times in µs, (rows,)."""
        booster = self._loaded()
        booster.set_param({"nthread": _threads(len(rows))})
        log_correction = booster.inplace_predict(self._design(rows))
        return self._base_us(rows) * np.exp(log_correction.astype(np.float64))

    def _base_us(self, rows: Rows) -> np.ndarray:
        """The time (rows,) in µs that the correction multiplies."""
        return rows.roofline_us

    def _design(self, rows: Rows) -> np.ndarray:
        """The columns and, last, the candidate's code (NaN, a missing value to the trees, where it is new)."""
        names = candidate_names(rows)
        known, position = np.unique(names, return_inverse=True)
        codes = np.array([self._candidates.get(str(name), np.nan) for name in known], dtype=np.float32)
        return np.column_stack([select(rows, self.columns), codes[position]])

    def _types(self) -> list[str]:
        return ["q"] * len(self.columns) + ["c"]

    def save(self) -> dict[str, bytes]:
        """The booster as UBJ, the candidates' codes as JSON."""
        return {
            "booster.ubj": self._stored or bytes(self._booster.save_raw("ubj")),
            "candidates.json": json.dumps(self._candidates, sort_keys=True).encode(),
        }

    @classmethod
    def load(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `save` wrote; XGBoost itself is imported and reads the trees when a prediction first asks for them."""
        model = cls(**params)
        model._stored = files["booster.ubj"]
        model._candidates = json.loads(files["candidates.json"])
        return model

    def _loaded(self) -> Any:
        if self._booster is None:
            self._booster = native_booster(self._stored, len(self.columns) + 1)
        return self._booster

    @staticmethod
    def space(trial: Any) -> dict[str, Any]:
        """Depth, rate, rounds, sampling and penalties."""
        return {
            "rounds": trial.suggest_int("rounds", 300, 1500, log=True),
            "learning_rate": trial.suggest_float("learning_rate", 0.02, 0.2, log=True),
            "max_depth": trial.suggest_int("max_depth", 4, 11),
            "min_child_weight": trial.suggest_float("min_child_weight", 0.5, 20.0, log=True),
            "subsample": trial.suggest_float("subsample", 0.5, 1.0),
            "colsample_bynode": trial.suggest_float("colsample_bynode", 0.2, 1.0),
            "reg_lambda": trial.suggest_float("reg_lambda", 0.1, 20.0, log=True),
        }


def _threads(rows: int) -> int:
    """Threads worth starting: with few rows they wait for one another longer than they work."""
    return max(1, min(rows // ROWS_PER_THREAD, os.cpu_count() or 1))


class BoostedDims(_Boosted):
    """Trees on the raw dimensions."""

    name: ClassVar[str] = "boosted-dims"
    columns = DIMS


class BoostedTerms(_Boosted):
    """Trees on the dimensions and the analytical terms."""

    name: ClassVar[str] = "boosted-terms"
    columns = TERMS

    def _base_us(self, rows: Rows) -> np.ndarray:
        return roofline_base_us(rows)
