"""`blend`: the log-average of `boosted-terms` and `gp-terms`.

Trees and a Gaussian process err in different places, so their average errs less than either: held-out shapes say by
how much (`experiments/`). Left to the trees are a candidate too rare for a process, and a device that training never
saw, on which held-out GPUs found trees alone the better.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from surrogate.dataset.problems import device_names
from surrogate.dataset.rows import Rows
from surrogate.models.boosted import BoostedTerms
from surrogate.models.gaussian import GaussianTerms

_PARTS = {"trees": BoostedTerms, "process": GaussianTerms}


class Blend:
    """Two models and one weight; the parts' hyperparameters carry their part's name and a dot as prefix."""

    name: ClassVar[str] = "blend"
    predicts_time: ClassVar[bool] = True

    def __init__(self, **params: Any) -> None:
        own = {f"{part}.{key}": value for part, cls in _PARTS.items() for key, value in cls().params.items()}
        self.params: Mapping[str, Any] = {"process_share": 0.4, **own, **params}
        self.trees = BoostedTerms(**self._own("trees"))
        self.process = GaussianTerms(**self._own("process"))

    def _own(self, part: str) -> dict[str, Any]:
        return {
            key.removeprefix(f"{part}."): value
            for key, value in self.params.items()
            if key.startswith(f"{part}.")
        }

    def fit(self, rows: Rows, *, seed: int = 0) -> Self:
        """Both parts on the same rows."""
        fitted = type(self)(**self.params)
        fitted.trees = fitted.trees.fit(rows, seed=seed)
        fitted.process = fitted.process.fit(rows, seed=seed)
        return fitted

    def predict_us(self, rows: Rows) -> np.ndarray:
        """Times in µs, (rows,)."""
        by_trees = self.trees.predict_us(rows)
        by_process = self.process.predict_us(rows)
        seen = np.isin(device_names(rows.frame).astype(str), list(self.process.devices))
        share = np.where(seen & np.isfinite(by_process), self.params["process_share"], 0.0)
        return by_trees * np.where(share > 0, by_process / by_trees, 1.0) ** share

    def save(self) -> dict[str, bytes]:
        """The files of both parts."""
        return {**self.trees.save(), **self.process.save()}

    @classmethod
    def load(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `save` wrote."""
        model = cls(**params)
        model.trees = BoostedTerms.load(model._own("trees"), files)
        model.process = GaussianTerms.load(model._own("process"), files)
        return model

    @staticmethod
    def space(trial: Any) -> dict[str, Any]:
        """The parts' own spaces, and the share of the process."""
        settings = {"process_share": trial.suggest_float("process_share", 0.0, 0.8)}
        for part, cls in _PARTS.items():
            settings |= {f"{part}.{key}": value for key, value in cls.space(Prefixed(trial, part)).items()}
        return settings


class Prefixed:
    """An optuna trial whose suggestions carry a prefix, so that two parts may name a setting alike."""

    def __init__(self, trial: Any, prefix: str) -> None:
        self._trial = trial
        self._prefix = prefix

    def suggest_float(self, name: str, *args: Any, **kwargs: Any) -> float:
        """`optuna.Trial.suggest_float` under the prefixed name."""
        return self._trial.suggest_float(f"{self._prefix}.{name}", *args, **kwargs)

    def suggest_int(self, name: str, *args: Any, **kwargs: Any) -> int:
        """`optuna.Trial.suggest_int` under the prefixed name."""
        return self._trial.suggest_int(f"{self._prefix}.{name}", *args, **kwargs)
