"""`roofline`, `always-best-single`, and published predictors: `gemm-interpolation`, `forest` and `mlp`.

- `gemm-interpolation` (on request) interpolates between measured matrix products. Source: Lin et al., "Building a
  Performance Model for Deep Learning Recommendation Model Training on GPUs" (HiPC 2022).
- `forest`: Zhang et al., "nn-Meter: Towards Accurate Latency Prediction of Deep-Learning Model Inference on Diverse
  Edge Devices" (MobiSys 2021). The paper fits a random forest per kernel on input size, channels, filter size, stride,
  FLOPs and parameter size.
- `mlp`: Yu et al., "Habitat: A Runtime-Based Computational Performance Predictor for Deep Neural Network Training" (ATC
  2021). The paper fits 8 layers of 1024 units per operator on operator parameters and four GPU features. The network of
  Lin et al. is similar and smaller.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, ClassVar, TypeAlias

import numpy as np
import pandas as pd

from surrogate.dataset.problems import by_setting, joined
from surrogate.dataset.rows import Rows
from surrogate.dataset.threads import WARNINGS_LOCK
from surrogate.features.errors import InputError
from surrogate.models.base import SearchRange, TimeModel, published_columns, traffic_column

MIN_US = 0.1
"""Minimum predicted time in µs. It keeps every prediction positive."""


class Roofline(TimeModel):
    """Predict the roofline time of each candidate's own arithmetic and bytes, at datasheet peak and bandwidth.

    The model has no parameters. Real times are longer.
    """

    name: ClassVar[str] = "roofline"
    help: ClassVar[str] = "the longer of arithmetic at the peak and memory traffic at the bandwidth"
    tunable: ClassVar[bool] = False

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Do nothing: the model has no parameters."""

    def _predict(self, rows: Rows) -> np.ndarray:
        if not rows.family.own_roofline:
            return rows.roofline_us.copy()
        return rows.roofline_us * np.exp2(rows.column(rows.family.own_roofline).astype(np.float64))


class AlwaysBestSingle(TimeModel):
    """Rank candidates by their mean log slowdown over the training problems of a device and setting.

    The model has no parameters. It predicts ranks, not times: the first in rank is picked, or the next one if the first
    does not apply.

    Attributes
    ----------
    cost_
        Setting ("" for all rows) → candidate → mean log slowdown.
    """

    name: ClassVar[str] = "always-best-single"
    help: ClassVar[str] = "picks the candidate with the smallest mean log slowdown in training"
    tunable: ClassVar[bool] = False
    predicts_time: ClassVar[bool] = False

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        """Average the log slowdown per candidate, by setting and over all rows.

        If a candidate cannot run on a problem, it counts as the slowest one.
        """
        log_time = pd.Series(np.log(time_us))
        slowdown = log_time - log_time.groupby(rows.problem).transform("min")
        table = pd.DataFrame({"setting": _settings(rows), "candidate": rows.candidate, "problem": rows.problem})
        table["slowdown"] = slowdown.to_numpy()
        self.cost_: dict[str, dict[str, float]] = {}
        for setting, part in [("", table), *table.groupby("setting")]:
            wide = part.pivot_table(index="problem", columns="candidate", values="slowdown", aggfunc="min")
            filled = np.where(wide.isna(), wide.max(axis=1).to_numpy()[:, np.newaxis], wide)
            self.cost_[str(setting)] = dict(zip(map(str, wide), filled.mean(axis=0).tolist(), strict=True))

    def _predict(self, rows: Rows) -> np.ndarray:
        """Return each candidate's mean log slowdown (no unit); NaN if it is unknown."""
        overall = self.cost_[""]
        pairs = zip(_settings(rows), rows.candidate, strict=True)
        return np.array([self.cost_.get(each, overall).get(name, overall.get(name, np.nan)) for each, name in pairs])

    def _typical_us(self, rows: Rows) -> np.ndarray:
        """Return the largest mean log slowdown (no unit) for each row."""
        return np.full(len(rows), max(self.cost_[""].values()))


def _settings(rows: Rows) -> np.ndarray:
    return joined(rows.frame, ("gpu", *rows.family.setting_names)).to_numpy()


def peak_times(rows: Rows) -> np.ndarray:
    """Return arithmetic times at the peak and memory times at the bandwidth, (rows, 2) in µs."""
    names = ("log2_flops", traffic_column(rows.family), "log2_peak_tflops", "log2_dram_gbs")
    flops, traffic, peak, bandwidth = (rows.column(name).astype(np.float64) for name in names)
    return np.column_stack([np.exp2(flops - peak) / 1e6, np.exp2(traffic - bandwidth) / 1e3])


SIZES = ("batch", "m", "n", "k")
RateTree: TypeAlias = "dict[float, RateTree] | np.ndarray"
"""Measured values of one dimension, ascending → the next dimension, or rates (2,)."""


def rate_tree(points: np.ndarray, rates: np.ndarray) -> RateTree:
    """Return the tree over ``points`` (rows, dimensions left) with ``rates`` (rows, 2). Repeats are averaged."""
    if not points.shape[1]:
        return rates.mean(axis=0)
    first = points[:, 0]
    return {value: rate_tree(points[first == value, 1:], rates[first == value]) for value in np.unique(first).tolist()}


def interpolated_rates(tree: RateTree, point: Sequence[float]) -> np.ndarray:
    """Return rates (2,) at ``point`` as shares of the peak, interpolated if the point was not measured.

    The interpolation is linear in each dimension. Below the smallest value the rate falls linearly to zero. Above the
    largest value it is the mean of the last rate and the device's peak.
    """
    if not isinstance(tree, dict):
        return tree
    value, *rest = point
    values = list(tree)
    position = bisect_left(values, value)
    if position == len(values):
        return (interpolated_rates(tree[values[-1]], rest) + 1.0) / 2
    upper = interpolated_rates(tree[values[position]], rest)
    if values[position] == value:
        return upper
    lower_value = values[position - 1] if position else 0.0
    lower = interpolated_rates(tree[lower_value], rest) if position else np.zeros(2)
    return lower + (value - lower_value) / (values[position] - lower_value) * (upper - lower)


class GemmInterpolation(TimeModel):
    """Interpolate rates of arithmetic and of memory traffic over (batch, M, N, K), per GPU, library and setting.

    The model has no parameters. The method needs a grid. If the measured sizes are scattered, a bracket in one
    dimension leaves no values to bracket in the next one. Then sizes are rounded to powers of 2 for interpolation. At a
    measured size the answer is the measured one. A setting without training rows gets NaN.

    Attributes
    ----------
    measured_
        Setting → point → rates (2,).
    between_
        Setting → the `RateTree` for interpolation.

    Raises
    ------
    InputError
        On fitting rows that are no matrix products.

    References
    ----------
    Lin et al., "Building a Performance Model for Deep Learning Recommendation Model Training on GPUs" (HiPC 2022).
    """

    name: ClassVar[str] = "gemm-interpolation"
    help: ClassVar[str] = "interpolation between measured matrix products (Lin et al., HiPC 2022)"
    tunable: ClassVar[bool] = False
    on_request: ClassVar[bool] = True

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        if rows.family.size_names != SIZES:
            raise InputError(f"{self.name} predicts matrix products; these rows are of family {rows.family.name}")
        rates = peak_times(rows) / time_us[:, None]
        self.measured_: dict[tuple[str, ...], dict[tuple[float, ...], np.ndarray]] = {}
        self.between_: dict[tuple[str, ...], RateTree] = {}
        for setting, positions in by_setting(rows.frame, rows.family):
            points = rows.sizes[positions].astype(np.float64)
            distinct, code = np.unique(points, axis=0, return_inverse=True)
            means = pd.DataFrame(rates[positions]).groupby(code.ravel()).mean().to_numpy()
            self.measured_[setting] = dict(zip(map(tuple, distinct.tolist()), means, strict=True))
            if len(distinct) < prod(len(np.unique(values)) for values in points.T):
                points = 2.0 ** np.round(np.log2(points))
            self.between_[setting] = rate_tree(points, rates[positions])

    def _predict(self, rows: Rows) -> np.ndarray:
        """Return the longer of arithmetic time and memory time: work / rate."""
        out = np.full(len(rows), np.nan)
        work = peak_times(rows)
        points = rows.sizes.astype(np.float64)
        for setting, positions in by_setting(rows.frame, rows.family):
            if setting in self.measured_:
                measured, between = self.measured_[setting], self.between_[setting]
                places = map(tuple, points[positions].tolist())
                rates = [measured[at] if at in measured else interpolated_rates(between, at) for at in places]
                out[positions] = (work[positions] / np.array(rates)).max(axis=1)
        return out


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
