"""`mlp`: a multilayer perceptron on logarithms of the problem and the device, as Habitat and Lin et al. use one.

Source: Yu et al., "Habitat: A Runtime-Based Computational Performance Predictor for Deep Neural Network Training" (ATC
2021): per operator 8 layers of 1024, operator parameters plus four GPU features; Lin et al. likewise, smaller.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from surrogate.dataset.rows import Rows
from surrogate.models.base import TimeModel, configuration

LIMIT = 6.0
"""Standardised inputs are cut here: a size far outside training must not drive the network to absurd times."""


@dataclass(eq=False, repr=False)
class Mlp(TimeModel):
    """One ReLU network for all candidates (a one-hot input), squared error of the standardised log time.

    ``width`` × ``depth`` hidden units (Habitat's 1024 × 8 would take hours on a CPU), by scikit-learn's Adam.
    ``max_steps`` caps the epochs on large tables, so that a fit takes seconds. NaN for a candidate that training did
    not hold.
    """

    name: ClassVar[str] = "mlp"
    width: int = 96
    depth: int = 3
    epochs: int = 60
    max_steps: int = 600
    batch: int = 1024
    learning_rate: float = 4e-3
    weight_decay: float = 1e-3
    random_state: int = 0

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        from sklearn.neural_network import MLPRegressor

        x, y = rows.columns(configuration(rows.family)), np.log(time_us)
        self.candidates_ = np.unique(rows.candidate.astype(str))
        self.mean_, self.deviation_ = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-6)
        self.target_ = float(y.mean()), max(float(y.std()), 1e-6)
        steps_per_epoch = -(-len(y) // self.batch)
        self.network_ = MLPRegressor(
            hidden_layer_sizes=(self.width,) * self.depth,
            batch_size=min(self.batch, len(y)),  # pyright: ignore[reportArgumentType]
            learning_rate_init=self.learning_rate,
            alpha=self.weight_decay,
            random_state=np.random.RandomState(self.random_state),  # one that goes on from epoch to epoch
        )
        design, target = self._design(rows), ((y - self.target_[0]) / self.target_[1]).astype(np.float32)
        for epoch in range(max(min(self.epochs, self.max_steps // steps_per_epoch), 1)):
            self.network_.partial_fit(design, target)
            if len(self.network_.loss_curve_) <= epoch:  # scikit-learn swallowed this epoch's interruption
                raise KeyboardInterrupt

    def _predict(self, rows: Rows) -> np.ndarray:
        mean, deviation = self.target_
        log_us = np.asarray(self.network_.predict(self._design(rows)), dtype=np.float64) * deviation + mean
        known = np.isin(rows.candidate.astype(str), self.candidates_)
        return np.where(known, np.exp(np.clip(log_us, -20.0, 40.0)), np.nan)

    def _design(self, rows: Rows) -> np.ndarray:
        """(rows, columns + candidates) float32: standardised columns and the one-hot candidate."""
        x = (rows.columns(configuration(rows.family)) - self.mean_) / self.deviation_
        one_hot = rows.candidate.astype(str)[:, None] == self.candidates_
        return np.hstack([x.clip(-LIMIT, LIMIT), one_hot]).astype(np.float32)
