"""`mlp`: a multilayer perceptron on logarithms of the problem and the device, as Habitat and Lin et al. use one.

Sources: Yu et al., "Habitat: A Runtime-Based Computational Performance Predictor for Deep Neural Network Training" (ATC
2021): per operator 8 layers of 1024, operator parameters plus four GPU features; Lin et al. likewise, smaller. Kingma &
Ba, "Adam" (2015).
"""

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np

from surrogate.dataset.rows import CONTEXT_NAMES, Rows
from surrogate.dataset.splits import fold_of_names, shape_names
from surrogate.features.errors import InputError
from surrogate.features.table import DIMENSION_NAMES, MACHINE_NAMES
from surrogate.models.columns import candidate_names, select, vocabulary

COLUMNS = (*DIMENSION_NAMES, "log2_flops", "log2_tensor_bytes", *MACHINE_NAMES, *CONTEXT_NAMES)
Layers = list[tuple[np.ndarray, np.ndarray]]
"""(weights (in, out), bias (out,)) of each layer, float32."""
_HELD_FOLDS = 10
_LIMIT = 6.0
"""Standardised inputs are cut here: a size far outside training must not drive the network to absurd times."""


class Mlp:
    """One network for all algorithms (a one-hot input), ReLU, squared error of the standardised log time.

    ``width`` × ``depth`` hidden units (Habitat's 1024 × 8 would take hours on a CPU); Adam with a cosine schedule from
    ``learning_rate``. A tenth of the training *shapes* is held back, and the epoch that does best on it is kept.
    ``max_steps`` caps ``epochs`` on large tables, so that a fit takes seconds.
    """

    name: ClassVar[str] = "mlp"
    predicts_time: ClassVar[bool] = True
    DEFAULTS: ClassVar[dict[str, Any]] = {
        "width": 128,
        "depth": 3,
        "epochs": 60,
        "max_steps": 5500,
        "batch": 256,
        "learning_rate": 3e-3,
        "weight_decay": 1e-2,
    }

    def __init__(self, **params: Any) -> None:
        self.params: Mapping[str, Any] = {**self.DEFAULTS, **params}
        self._candidates: dict[str, int] = {}
        self._scale: dict[str, list[float]] = {}
        self._layers: Layers = []

    def fit(self, rows: Rows, *, seed: int = 0) -> Self:
        """Train on the ok rows."""
        from threadpoolctl import threadpool_limits

        ok = rows.take(rows.ok)
        if not len(ok):
            raise InputError(f"{self.name} needs at least one ok row to learn from")
        fitted = type(self)(**self.params)
        fitted._candidates = vocabulary(candidate_names(ok))
        x, y = select(ok, COLUMNS).astype(np.float64), np.log(ok.time_us)
        fitted._scale = {
            "mean": x.mean(axis=0).tolist(),
            "deviation": np.maximum(x.std(axis=0), 1e-6).tolist(),
            "target": [float(y.mean()), max(float(y.std()), 1e-6)],
        }
        names = shape_names(ok.frame)
        fold_of = fold_of_names(names, _HELD_FOLDS, seed)
        held = np.array([fold_of[name] == 0 for name in names])
        if held.all():
            held[:] = False
        mean, deviation = fitted._scale["target"]
        target = ((y - mean) / deviation).astype(np.float32)
        with threadpool_limits(1, user_api="blas"):  # its matrices are too small for threads to pay
            fitted._layers = train(fitted._design(ok), target, held, self.params, np.random.default_rng(seed))
        return fitted

    def predict_us(self, rows: Rows) -> np.ndarray:
        """Times in µs, (rows,); NaN for an algorithm that training did not hold."""
        mean, deviation = self._scale["target"]
        log_us = forward(self._layers, self._design(rows))[-1][:, 0] * deviation + mean
        known = np.isin(candidate_names(rows), list(self._candidates))
        return np.where(known, np.exp(np.clip(log_us.astype(np.float64), -20.0, 40.0)), np.nan)

    def _design(self, rows: Rows) -> np.ndarray:
        """(rows, columns + candidates) float32: standardised columns and the one-hot candidate."""
        x = (select(rows, COLUMNS) - np.array(self._scale["mean"])) / np.array(self._scale["deviation"])
        known, position = np.unique(candidate_names(rows), return_inverse=True)
        hot = np.zeros((len(known), len(self._candidates)))
        for row, name in enumerate(known):
            if name in self._candidates:
                hot[row, self._candidates[str(name)]] = 1.0
        return np.hstack([x.clip(-_LIMIT, _LIMIT), hot[position]]).astype(np.float32)

    def save(self) -> dict[str, bytes]:
        """Weights, scales and candidates as JSON."""
        content = {
            "candidates": self._candidates,
            "scale": self._scale,
            "layers": [[weights.tolist(), bias.tolist()] for weights, bias in self._layers],
        }
        return {"mlp.json": json.dumps(content, sort_keys=True, separators=(",", ":")).encode()}

    @classmethod
    def load(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `save` wrote."""
        model = cls(**params)
        content = json.loads(files["mlp.json"])
        model._candidates, model._scale = content["candidates"], content["scale"]
        model._layers = [
            (np.array(w, dtype=np.float32), np.array(b, dtype=np.float32)) for w, b in content["layers"]
        ]
        return model

    @staticmethod
    def space(trial: Any) -> dict[str, Any]:
        """Size, epochs, rate and decay."""
        return {
            "width": trial.suggest_categorical("width", [64, 128, 256]),
            "depth": trial.suggest_int("depth", 2, 5),
            "epochs": trial.suggest_int("epochs", 20, 80, log=True),
            "learning_rate": trial.suggest_float("learning_rate", 5e-4, 1e-2, log=True),
            "weight_decay": trial.suggest_float("weight_decay", 1e-6, 1e-2, log=True),
        }


def forward(layers: Layers, x: np.ndarray) -> list[np.ndarray]:
    """Every layer's output, the input first; ReLU between layers, none after the last."""
    outputs = [x]
    for number, (weights, bias) in enumerate(layers, 1):
        x = x @ weights + bias
        outputs.append(np.maximum(x, 0.0) if number < len(layers) else x)
        x = outputs[-1]
    return outputs


def gradients(layers: Layers, x: np.ndarray, y: np.ndarray) -> Layers:
    """Gradient of the mean of (prediction − y)² / 2 with respect to every weight and bias."""
    outputs = forward(layers, x)
    delta = (outputs[-1] - y[:, None]) / np.float32(len(y))
    found: Layers = []
    for (weights, _), before in zip(reversed(layers), reversed(outputs[:-1]), strict=True):
        found.append((before.T @ delta, delta.sum(axis=0)))
        delta = (delta @ weights.T) * (before > 0)
    return found[::-1]


def train(
    x: np.ndarray, y: np.ndarray, held: np.ndarray, params: Mapping[str, Any], rng: np.random.Generator
) -> Layers:
    """Adam over shuffled batches; returns the layers of the epoch that does best on ``held`` rows (last, if none)."""
    widths = [x.shape[1], *[int(params["width"])] * int(params["depth"]), 1]
    layers = [
        (rng.normal(0, np.sqrt(2 / i), (i, o)).astype(np.float32), np.zeros(o, np.float32))
        for i, o in pairwise(widths)
    ]
    own, size = np.flatnonzero(~held), int(params["batch"])
    steps_per_epoch = -(-len(own) // size)
    epochs = min(int(params["epochs"]), max(int(params["max_steps"]) // steps_per_epoch, 1))
    moments = [np.zeros_like(array) for layer in layers for array in layer for _ in (0, 1)]
    best, least, step = layers, np.inf, 0
    total = epochs * steps_per_epoch
    for _ in range(epochs):
        order = rng.permutation(own)
        for start in range(0, len(order), size):
            rate = params["learning_rate"] * 0.5 * (1 + np.cos(np.pi * step / total))
            step += 1
            batch = order[start : start + size]
            layers = adam(
                layers, gradients(layers, x[batch], y[batch]), moments, step, rate, params["weight_decay"]
            )
        error = float(np.mean((forward(layers, x[held])[-1][:, 0] - y[held]) ** 2)) if held.any() else least
        if error <= least:
            best, least = layers, error
    return best


def adam(
    layers: Layers, slopes: Layers, moments: list[np.ndarray], step: int, rate: float, decay: float
) -> Layers:
    """One step of Adam with decoupled weight decay; ``moments`` (first, second of each array) change in place."""
    fast, slow = 0.9, 0.999
    correction = np.sqrt(1 - slow**step) / (1 - fast**step)
    arrays = []
    pairs = zip((a for layer in layers for a in layer), (a for layer in slopes for a in layer), strict=True)
    for number, (value, slope) in enumerate(pairs):
        first, second = moments[2 * number], moments[2 * number + 1]
        first += (1 - fast) * (slope - first)
        second += (1 - slow) * (slope * slope - second)
        shrink = 1 - rate * decay if value.ndim == 2 else 1.0
        change = np.float32(rate * correction) * first / (np.sqrt(second) + np.float32(1e-8))
        arrays.append(value * np.float32(shrink) - change)
    return list(zip(arrays[::2], arrays[1::2], strict=True))
