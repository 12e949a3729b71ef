"""`forest` and `mlp`: two predictors of the literature by scikit-learn, on the problem's and the device's logarithms.

Source of `forest`: Zhang et al., "nn-Meter: Towards Accurate Latency Prediction of Deep-Learning Model Inference on
Diverse Edge Devices" (MobiSys 2021): a random forest per kernel on input size, channels, filter size, stride, FLOPs and
parameter size. Source of `mlp`: Yu et al., "Habitat: A Runtime-Based Computational Performance Predictor for Deep
Neural Network Training" (ATC 2021): per operator 8 layers of 1024, operator parameters plus four GPU features; Lin et
al. likewise, smaller.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from surrogate.dataset.rows import Rows
from surrogate.models.base import SearchRange, TimeModel, configuration

LIMIT = 6.0
"""Standardised inputs are cut here: a size far outside training must not drive the network to absurd times."""


@dataclass(eq=False, repr=False)
class Forest(TimeModel):
    """One forest per candidate over all GPUs, on log time; NaN for a candidate that training did not hold.

    nn-Meter regresses raw latency on phones; over five orders of magnitude that would fit the largest times only, so
    the forest averages logarithms. Trees are fewer and leaves larger than nn-Meter's (hundreds, 1), for time and space.
    """

    name: ClassVar[str] = "forest"
    help: ClassVar[str] = "a random forest per candidate (nn-Meter, MobiSys 2021)"
    trees: Annotated[int, SearchRange(20, 120, log=True)] = 40
    min_samples_leaf: Annotated[int, SearchRange(1, 12, log=True)] = 2
    max_features: Annotated[float, SearchRange(0.15, 1.0)] = 0.4
    max_depth: Annotated[int, SearchRange(10, 30)] = 24
    random_state: int = 0

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        from sklearn.ensemble import RandomForestRegressor

        x = rows.columns(configuration(rows.family))
        log_us = np.log(time_us)
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
            self.forests_[str(name)] = forest.fit(x[members], log_us[members])

    def _predict(self, rows: Rows) -> np.ndarray:
        x = rows.columns(configuration(rows.family))
        time_us = np.full(len(rows), np.nan)
        for name in np.unique(rows.candidate):
            if forest := self.forests_.get(str(name)):
                members = rows.candidate == name
                time_us[members] = np.exp(forest.predict(x[members]))
        return time_us


@dataclass(eq=False, repr=False)
class Mlp(TimeModel):
    """One ReLU network for all candidates (a one-hot input), squared error of the standardised log time.

    ``width`` × ``depth`` hidden units (Habitat's 1024 × 8 would take hours on a CPU), by scikit-learn's Adam.
    ``max_steps`` caps the epochs on large tables, so that a fit takes seconds. NaN for a candidate that training did
    not hold.
    """

    name: ClassVar[str] = "mlp"
    help: ClassVar[str] = "one multilayer perceptron for all candidates (Habitat, ATC 2021)"
    width: Annotated[int, (64, 96, 128, 256)] = 96
    depth: Annotated[int, SearchRange(2, 5)] = 3
    epochs: Annotated[int, SearchRange(20, 80, log=True)] = 60
    max_steps: int = 600
    batch: int = 1024
    learning_rate: Annotated[float, SearchRange(3e-4, 5e-3, log=True)] = 4e-3
    weight_decay: Annotated[float, SearchRange(1e-6, 1e-1, log=True)] = 1e-3
    random_state: int = 0

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        from sklearn.neural_network import MLPRegressor

        x = rows.columns(configuration(rows.family))
        log_us = np.log(time_us)
        self.candidates_ = np.unique(rows.candidate.astype(str))
        self.mean_, self.deviation_ = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-6)
        self.target_ = float(log_us.mean()), max(float(log_us.std()), 1e-6)
        steps_per_epoch = -(-len(log_us) // self.batch)
        self.network_ = MLPRegressor(
            hidden_layer_sizes=(self.width,) * self.depth,
            batch_size=min(self.batch, len(log_us)),  # pyright: ignore[reportArgumentType]
            learning_rate_init=self.learning_rate,
            alpha=self.weight_decay,
            random_state=np.random.RandomState(self.random_state),  # one that goes on from epoch to epoch
        )
        design = self._design(rows)
        target = ((log_us - self.target_[0]) / self.target_[1]).astype(np.float32)
        for epoch in range(max(min(self.epochs, self.max_steps // steps_per_epoch), 1)):
            self.network_.partial_fit(design, target)
            if len(self.network_.loss_curve_) <= epoch:  # scikit-learn swallowed this epoch's interruption
                raise KeyboardInterrupt

    def _predict(self, rows: Rows) -> np.ndarray:
        mean, deviation = self.target_
        log_us = np.asarray(self.network_.predict(self._design(rows)), dtype=np.float64) * deviation + mean
        learned = np.isin(rows.candidate.astype(str), self.candidates_)
        return np.where(learned, np.exp(np.clip(log_us, -20.0, 40.0)), np.nan)

    def _design(self, rows: Rows) -> np.ndarray:
        """(rows, columns + candidates) float32: standardised columns and the one-hot candidate."""
        x = (rows.columns(configuration(rows.family)) - self.mean_) / self.deviation_
        one_hot = rows.candidate.astype(str)[:, None] == self.candidates_
        return np.hstack([x.clip(-LIMIT, LIMIT), one_hot]).astype(np.float32)
