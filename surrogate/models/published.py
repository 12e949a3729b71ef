"""`forest` and `mlp`: two published predictors by scikit-learn, on logarithms of the problem and the device.

Source of `forest`: Zhang et al., "nn-Meter: Towards Accurate Latency Prediction of Deep-Learning Model Inference on
Diverse Edge Devices" (MobiSys 2021). The paper fits a random forest per kernel on input size, channels, filter size,
stride, FLOPs and parameter size. Source of `mlp`: Yu et al., "Habitat: A Runtime-Based Computational Performance
Predictor for Deep Neural Network Training" (ATC 2021). The paper fits 8 layers of 1024 units per operator on operator
parameters and four GPU features. The network of Lin et al. is similar and smaller.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from surrogate.dataset.rows import Rows
from surrogate.dataset.threads import WARNINGS_LOCK
from surrogate.models.base import SearchRange, TimeModel, published_columns

MAX_INPUT = 6.0
"""Standardised inputs are clipped to ± this, so that sizes far outside training do not give absurd times."""


@dataclass(eq=False, repr=False)
class Forest(TimeModel):
    """One random forest of log time per candidate, over all GPUs.

    nn-Meter regresses raw latency on phones. Over five orders of magnitude that would fit only the largest times, so
    the forest averages logarithms. It has fewer trees and larger leaves than nn-Meter (hundreds, 1), to save time and
    space. A candidate without training rows gets NaN.

    Parameters
    ----------
    trees
        Number of trees of each forest.
    min_samples_leaf
        Minimum rows in a leaf.
    max_features
        Share of the columns that a split may use, in (0, 1].
    max_depth
        Maximum depth of a tree.
    random_state
        Seed of the trees.

    Attributes
    ----------
    forests_
        Candidate → its fitted forest.

    References
    ----------
    Zhang et al., "nn-Meter: Towards Accurate Latency Prediction of Deep-Learning Model Inference on Diverse Edge
    Devices" (MobiSys 2021).
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

        x = rows.columns(published_columns(rows.family))
        log_us = np.log(time_us)
        settings = self.get_params(deep=False)
        trees = settings.pop("trees")
        self.forests_ = {}
        for name in np.unique(rows.candidate):
            forest = RandomForestRegressor(n_estimators=trees, n_jobs=1, **settings)
            members = rows.candidate == name
            with WARNINGS_LOCK:
                self.forests_[str(name)] = forest.fit(x[members], log_us[members])

    def _predict(self, rows: Rows) -> np.ndarray:
        x = rows.columns(published_columns(rows.family))
        time_us = np.full(len(rows), np.nan)
        for name in np.unique(rows.candidate):
            if forest := self.forests_.get(str(name)):
                members = rows.candidate == name
                with WARNINGS_LOCK:
                    time_us[members] = np.exp(forest.predict(x[members]))
        return time_us


@dataclass(eq=False, repr=False)
class Mlp(TimeModel):
    """One ReLU network for all candidates (a one-hot input), with squared error of the standardised log time.

    It is fitted by scikit-learn's Adam. Habitat's 8 layers of 1024 units would take hours on a CPU. A candidate without
    training rows gets NaN.

    Parameters
    ----------
    width
        Units of each hidden layer.
    depth
        Number of hidden layers.
    epochs
        Maximum passes over the rows.
    max_steps
        Maximum gradient steps, so that a fit on a large table takes seconds.
    batch
        Rows of a gradient step.
    learning_rate
        Initial step size of Adam.
    weight_decay
        L2 penalty on the weights.
    random_state
        Seed of the weights and the batches.

    Attributes
    ----------
    network_
        The fitted network.
    candidates_
        Names of the candidates, in the order of the one-hot inputs.
    mean_, deviation_
        Scales of the inputs.
    target_
        Mean and standard deviation of log time.

    References
    ----------
    Yu et al., "Habitat: A Runtime-Based Computational Performance Predictor for Deep Neural Network Training" (ATC
    2021).
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

        x = rows.columns(published_columns(rows.family))
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
            random_state=np.random.RandomState(self.random_state),  # its state continues from epoch to epoch
        )
        design = self._design(rows)
        target = ((log_us - self.target_[0]) / self.target_[1]).astype(np.float32)
        for epoch in range(max(min(self.epochs, self.max_steps // steps_per_epoch), 1)):
            self.network_.partial_fit(design, target)
            if len(self.network_.loss_curve_) <= epoch:  # scikit-learn caught the user's interruption of this epoch
                raise KeyboardInterrupt

    def _predict(self, rows: Rows) -> np.ndarray:
        mean, deviation = self.target_
        log_us = np.asarray(self.network_.predict(self._design(rows).astype(np.float64))) * deviation + mean
        learned = np.isin(rows.candidate.astype(str), self.candidates_)
        return np.where(learned, np.exp(np.clip(log_us, -20.0, 40.0)), np.nan)

    def _design(self, rows: Rows) -> np.ndarray:
        """Return (rows, columns + candidates) float32: standardised columns and the one-hot candidate."""
        x = (rows.columns(published_columns(rows.family)) - self.mean_) / self.deviation_
        one_hot = rows.candidate.astype(str)[:, None] == self.candidates_
        return np.hstack([x.clip(-MAX_INPUT, MAX_INPUT), one_hot]).astype(np.float32)
