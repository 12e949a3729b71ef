"""`mlp`: multilayer perceptrons on logarithms, one per family and library.

Source: Lin et al. (HiPC 2022) predict their remaining operators so; Habitat (ATC 2021) all of them.
"""

import json
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from surrogate.dataset.splits import fold_of_names
from surrogate.features.gpu import gpu
from surrogate.models.mlp import Layers, forward, train
from surrogate.operators.boosted import booster_rows, labels
from surrogate.operators.columns import FAMILY_NAMES, design
from surrogate.operators.table import OperatorTable

_LIMIT = 6.0
"""Standardised inputs are cut here: a size far outside training must not drive the network to absurd times."""
_HELD_FOLDS = 10


@dataclass(frozen=True, slots=True)
class _Network:
    """Layers with what standardises their inputs and output, and the labels of the one-hot columns."""

    layers: Layers
    mean: np.ndarray
    deviation: np.ndarray
    target: tuple[float, float]
    known: tuple[str, ...]


class OperatorMlp:
    """Inputs: sizes, FLOPs, bytes and intensity as logarithms, the GPU's numbers, a one-hot of library, kind, variant.

    A tenth of the training shapes is held back, and the epoch that does best on it is kept.
    """

    name: ClassVar[str] = "mlp"
    handles_new_gpus: ClassVar[bool] = True
    DEFAULTS: ClassVar[dict[str, Any]] = {
        "width": 128, "depth": 3, "epochs": 60, "max_steps": 5500, "batch": 256, "learning_rate": 3e-3,
        "weight_decay": 1e-2,
    }  # fmt: skip

    def __init__(self, **params: Any) -> None:
        self.params: dict[str, Any] = {**self.DEFAULTS, **params}
        self._networks: dict[str, _Network] = {}

    def fit(self, table: OperatorTable, *, seed: int = 0) -> Self:
        """Squared error of the standardised log time, by Adam."""
        from threadpoolctl import threadpool_limits

        fitted = type(self)(**self.params)
        with threadpool_limits(1, user_api="blas"):  # its matrices are too small for threads to pay
            for key, rows in booster_rows(table).items():
                fitted._networks[key] = self._fit_one(table.take(rows), key, seed)
        return fitted

    def _fit_one(self, part: OperatorTable, key: str, seed: int) -> _Network:
        x, y = _columns(part, key), np.log(part.time_us)
        names = part.shape_names()
        fold_of = fold_of_names(names, _HELD_FOLDS, seed)
        held = np.array([fold_of[name] == 0 for name in names])
        if held.all():
            held[:] = False
        target = float(y.mean()), max(float(y.std()), 1e-6)
        known = tuple(sorted(set(labels(part))))
        empty = _Network([], x.mean(axis=0), np.maximum(x.std(axis=0), 1e-6), target, known)
        scaled = ((y - target[0]) / target[1]).astype(np.float32)
        layers = train(_inputs(part, x, empty), scaled, held, self.params, np.random.default_rng(seed))
        return _Network(layers, empty.mean, empty.deviation, target, known)

    def predict_us(self, table: OperatorTable) -> np.ndarray:
        """Times in µs, (rows,); NaN for library, kind and variant that training did not hold."""
        out = np.full(len(table), np.nan)
        for key, rows in booster_rows(table).items():
            if key not in self._networks:
                continue
            part, network = table.take(rows), self._networks[key]
            mean, deviation = network.target
            log_us = (
                forward(network.layers, _inputs(part, _columns(part, key), network))[-1][:, 0] * deviation
                + mean
            )
            value = np.exp(np.clip(log_us.astype(np.float64), -20.0, 40.0))
            out[rows] = np.where(np.isin(labels(part), network.known), value, np.nan)
        return out

    def to_json(self) -> bytes:
        """Weights (five significant digits), scales and labels."""
        content = {
            key: {
                "layers": [[_rounded(weights), _rounded(bias)] for weights, bias in network.layers],
                "mean": _rounded(network.mean),
                "deviation": _rounded(network.deviation),
                "target": list(network.target),
                "known": list(network.known),
            }
            for key, network in self._networks.items()
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """What `to_json` wrote."""
        model = cls()
        for key, data in json.loads(content).items():
            layers = [
                (np.array(w, dtype=np.float32), np.array(b, dtype=np.float32)) for w, b in data["layers"]
            ]
            mean, target = data["target"]
            scales = np.array(data["mean"]), np.array(data["deviation"])
            model._networks[key] = _Network(layers, *scales, (mean, target), tuple(data["known"]))
        return model


def _rounded(values: np.ndarray) -> Any:
    if values.ndim > 1:
        return [_rounded(row) for row in values]
    return [float(f"{value:.5g}") for value in values]


def _columns(part: OperatorTable, key: str) -> np.ndarray:
    """(rows, columns) float64 of the family's columns."""
    x = np.empty((len(part), len(FAMILY_NAMES[key.partition("-")[0]])))
    for device, op, positions in part.groups():
        x[positions] = design(op, gpu(device)).x
    return x


def _inputs(part: OperatorTable, x: np.ndarray, network: _Network) -> np.ndarray:
    hot = (labels(part)[:, None] == np.array(network.known, dtype=object)).astype(np.float32)
    return np.hstack([((x - network.mean) / network.deviation).clip(-_LIMIT, _LIMIT), hot]).astype(np.float32)
