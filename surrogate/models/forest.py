"""`forest`: nn-Meter's predictor, a random forest per kernel on its configuration, FLOPs and parameters.

Source: Zhang et al., "nn-Meter: Towards Accurate Latency Prediction of Deep-Learning Model Inference on Diverse Edge
Devices" (MobiSys 2021): input size, channels, filter size, stride, FLOPs, parameter size; scikit-learn's random forest.
"""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from surrogate.dataset.rows import Rows
from surrogate.features.errors import InputError
from surrogate.features.table import DIMENSION_NAMES
from surrogate.models.columns import candidate_names, select
from surrogate.models.seer.tree import Tree

COLUMNS = (
    *DIMENSION_NAMES, "log2_flops", "log2_tensor_bytes",
    "sms", "log2_peak_tflops", "log2_dram_gbs", "log2_l2_bytes", "compute_capability", "library_version",
)  # fmt: skip
"""The kernel's configuration, FLOPs and bytes, as nn-Meter's; and the device, where nn-Meter trains one forest each."""


class Forest:
    """One forest per algorithm over all GPUs, on log time.

    nn-Meter regresses raw latency on phones; over five orders of magnitude that would fit the largest times only, so
    the forest averages logarithms. Trees are fewer and leaves larger than nn-Meter's (hundreds, 1), for time and space.
    """

    name: ClassVar[str] = "forest"
    predicts_time: ClassVar[bool] = True
    DEFAULTS: ClassVar[dict[str, Any]] = {
        "trees": 40,
        "min_samples_leaf": 2,
        "max_features": 0.4,
        "max_depth": 24,
    }

    def __init__(self, **params: Any) -> None:
        self.params: Mapping[str, Any] = {**self.DEFAULTS, **params}
        self._trees: dict[str, list[Tree]] = {}

    def fit(self, rows: Rows, *, seed: int = 0) -> Self:
        """A forest per algorithm on its ok rows."""
        from sklearn.ensemble import RandomForestRegressor

        ok = rows.take(rows.ok)
        if not len(ok):
            raise InputError(f"{self.name} needs at least one ok row to learn from")
        x, y, names = select(ok, COLUMNS), np.log(ok.time_us), candidate_names(ok)
        fitted = type(self)(**self.params)
        for name in np.unique(names):
            forest = RandomForestRegressor(
                n_estimators=self.params["trees"],
                min_samples_leaf=self.params["min_samples_leaf"],
                max_features=self.params["max_features"],
                max_depth=self.params["max_depth"],
                random_state=seed,
                n_jobs=1,
            )
            grown = forest.fit(x[names == name], y[names == name])
            fitted._trees[str(name)] = [Tree.of(tree) for tree in grown.estimators_]
        return fitted

    def predict_us(self, rows: Rows) -> np.ndarray:
        """Times in µs, (rows,); NaN for an algorithm that training did not hold."""
        x, names = select(rows, COLUMNS), candidate_names(rows)
        time_us = np.full(len(rows), np.nan)
        for name in np.unique(names):
            if trees := self._trees.get(str(name)):
                mine = names == name
                time_us[mine] = np.exp(np.mean([tree.predict(x[mine]) for tree in trees], axis=0))
        return time_us

    def save(self) -> dict[str, bytes]:
        """Every tree's arrays as JSON."""
        content = {name: [tree.to_json() for tree in trees] for name, trees in self._trees.items()}
        return {"trees.json": json.dumps(content, sort_keys=True, separators=(",", ":")).encode()}

    @classmethod
    def load(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `save` wrote."""
        model = cls(**params)
        content = json.loads(files["trees.json"])
        model._trees = {name: [Tree.from_json(tree) for tree in trees] for name, trees in content.items()}
        return model

    @staticmethod
    def space(trial: Any) -> dict[str, Any]:
        """Trees, leaf size, share of features per split and depth."""
        return {
            "trees": trial.suggest_int("trees", 20, 120, log=True),
            "min_samples_leaf": trial.suggest_int("min_samples_leaf", 1, 12, log=True),
            "max_features": trial.suggest_float("max_features", 0.15, 1.0),
            "max_depth": trial.suggest_int("max_depth", 10, 30),
        }
