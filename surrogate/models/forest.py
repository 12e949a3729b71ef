"""`forest`: nn-Meter's predictor, a random forest per kernel on its configuration, FLOPs and parameters.

Source: Zhang et al., "nn-Meter: Towards Accurate Latency Prediction of Deep-Learning Model Inference on Diverse Edge
Devices" (MobiSys 2021): input size, channels, filter size, stride, FLOPs, parameter size; scikit-learn's random forest.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from surrogate.dataset.rows import Rows
from surrogate.models.base import TimeModel, configuration


@dataclass(eq=False, repr=False)
class Forest(TimeModel):
    """One forest per candidate over all GPUs, on log time; NaN for a candidate that training did not hold.

    nn-Meter regresses raw latency on phones; over five orders of magnitude that would fit the largest times only, so
    the forest averages logarithms. Trees are fewer and leaves larger than nn-Meter's (hundreds, 1), for time and space.
    """

    name: ClassVar[str] = "forest"
    trees: int = 40
    min_samples_leaf: int = 2
    max_features: float = 0.4
    max_depth: int = 24
    random_state: int = 0

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        from sklearn.ensemble import RandomForestRegressor

        x, y = rows.columns(configuration(rows.family)), np.log(time_us)
        self.forests_ = {}
        for name in np.unique(rows.candidate):
            forest = RandomForestRegressor(
                n_estimators=self.trees,
                min_samples_leaf=self.min_samples_leaf,
                max_features=self.max_features,
                max_depth=self.max_depth,
                random_state=self.random_state,
                n_jobs=1,
            )
            members = rows.candidate == name
            self.forests_[str(name)] = forest.fit(x[members], y[members])

    def _predict(self, rows: Rows) -> np.ndarray:
        x, time_us = rows.columns(configuration(rows.family)), np.full(len(rows), np.nan)
        for name in np.unique(rows.candidate):
            if forest := self.forests_.get(str(name)):
                members = rows.candidate == name
                time_us[members] = np.exp(forest.predict(x[members]))
        return time_us
