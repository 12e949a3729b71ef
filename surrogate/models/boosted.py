"""`boosted-dims` and `boosted-terms`: gradient-boosted trees on log(time / base).

Trees clamp outside the range they saw, so what scales must be taken out of their target. The problem's roofline is the
base of `boosted-dims`. `boosted-terms` also knows what each candidate really does: its base is the geometric mean of
the problem's and the candidate's roofline, which held-out times and choices preferred to either alone.
"""

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from surrogate.dataset.rows import Rows
from surrogate.features.families import Family
from surrogate.models.base import TimeModel, dims, terms
from surrogate.models.trees import BoostedTimes, Trees

ROWS_PER_THREAD = 4000


class _Boosted(TimeModel):
    """One XGBoost booster for all candidates and devices; the candidate is a categorical column."""

    storable: ClassVar[bool] = True
    own_weight: ClassVar[float] = 0.0
    """The candidate's own roofline's share in the base, in log time."""

    def __init__(
        self,
        rounds: int = 300,
        learning_rate: float = 0.08,
        max_depth: int = 7,
        min_child_weight: float = 3.0,
        subsample: float = 0.7,
        colsample_bynode: float = 0.3,
        reg_lambda: float = 1.0,
        max_bin: int = 128,
        random_state: int = 0,
        device: str = "cpu",
    ) -> None:
        self.rounds = rounds
        self.learning_rate = learning_rate
        self.max_depth = max_depth
        self.min_child_weight = min_child_weight
        self.subsample = subsample
        self.colsample_bynode = colsample_bynode
        self.reg_lambda = reg_lambda
        self.max_bin = max_bin
        self.random_state = random_state
        self.device = device

    def columns(self, family: Family) -> tuple[str, ...]:
        """The columns that the model sees, besides the candidate."""
        raise NotImplementedError

    def base_us(self, rows: Rows) -> np.ndarray:
        """(rows,) the time in µs that the correction multiplies."""
        if not (self.own_weight and rows.family.own_roofline):
            return rows.roofline_us
        ratio = rows.column(rows.family.own_roofline).astype(np.float64)
        return rows.roofline_us * np.exp2(self.own_weight * ratio)

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Squared error of the log of the correction."""
        import xgboost

        self.family_ = rows.family
        self.candidates_ = {str(name): code for code, name in enumerate(np.unique(rows.candidate))}
        threads = _threads(len(rows))
        data = xgboost.QuantileDMatrix(
            self._design(rows),
            label=np.log(time_us / self.base_us(rows)),
            feature_types=["q"] * len(self.columns(rows.family)) + ["c"],
            max_bin=self.max_bin,
            enable_categorical=True,
            nthread=threads,
        )
        own = self.get_params()
        settings = {name: own[name] for name in own if name not in ("rounds", "random_state")}
        fixed = {"objective": "reg:squarederror", "tree_method": "hist", "seed": self.random_state}
        self.booster_ = xgboost.train(
            {**settings, **fixed, "verbosity": 0, "nthread": threads}, data, num_boost_round=self.rounds
        )

    def _predict(self, rows: Rows) -> np.ndarray:
        self.booster_.set_param({"nthread": _threads(len(rows))})
        log_correction = self.booster_.inplace_predict(self._design(rows))
        return self.base_us(rows) * np.exp(log_correction.astype(np.float64))

    def _design(self, rows: Rows) -> np.ndarray:
        """The columns and, last, the candidate's code (NaN, a missing value to the trees, where it is new)."""
        names, position = np.unique(rows.candidate.astype(str), return_inverse=True)
        codes = np.array([self.candidates_.get(name, np.nan) for name in names], dtype=np.float32)
        return np.column_stack([rows.columns(self.columns(rows.family)), codes[position]])

    def times(self) -> BoostedTimes:
        """The booster as arrays."""
        if not hasattr(self, "times_"):
            trees = Trees.from_booster(self.booster_.save_raw("json"))
            self.times_ = BoostedTimes(trees, self.columns(self.family_), self.candidates_, self.own_weight)
        return self.times_

    def to_files(self) -> dict[str, bytes]:
        """The booster as arrays."""
        return self.times().to_files()

    @classmethod
    def from_files(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `to_files` wrote."""
        model = cls(**params)
        model.times_ = BoostedTimes.from_files(files)
        model.booster_ = model.times_.trees.booster(len(model.times_.columns) + 1)
        model.candidates_ = dict(model.times_.codes)
        return model

    @staticmethod
    def space(trial: Any) -> dict[str, Any]:
        """Depth, rate, rounds, sampling and penalties."""
        return {
            "rounds": trial.suggest_int("rounds", 100, 1000, log=True),
            "learning_rate": trial.suggest_float("learning_rate", 0.02, 0.2, log=True),
            "max_depth": trial.suggest_int("max_depth", 4, 10),
            "min_child_weight": trial.suggest_float("min_child_weight", 0.5, 20.0, log=True),
            "subsample": trial.suggest_float("subsample", 0.5, 1.0),
            "colsample_bynode": trial.suggest_float("colsample_bynode", 0.2, 1.0),
            "reg_lambda": trial.suggest_float("reg_lambda", 0.1, 20.0, log=True),
        }


def _threads(rows: int) -> int:
    """Threads worth starting: with few rows they wait for one another longer than they work."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(rows // ROWS_PER_THREAD, allowed))


class BoostedDims(_Boosted):
    """Trees on the raw sizes."""

    name: ClassVar[str] = "boosted-dims"

    def columns(self, family: Family) -> tuple[str, ...]:
        """Sizes, settings and the machine."""
        return dims(family)


class BoostedTerms(_Boosted):
    """Trees on the sizes and the analytical terms."""

    name: ClassVar[str] = "boosted-terms"
    own_weight: ClassVar[float] = 0.5

    def columns(self, family: Family) -> tuple[str, ...]:
        """All of them."""
        return terms(family)
