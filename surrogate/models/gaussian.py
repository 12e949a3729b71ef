"""`gp-terms`: a Gaussian process on log(time / roofline), one per candidate, over scaled logarithms of sizes and terms.

Trees cut the space into boxes; a process interpolates smoothly between few shapes, and errs elsewhere than trees do.
Large tables are fitted on inducing points. Source: Rasmussen & Williams 2006, "Gaussian Processes for Machine
Learning", §8.3.1 (subset of regressors).
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from surrogate.dataset.problems import device_names
from surrogate.dataset.rows import Rows
from surrogate.features.errors import InputError
from surrogate.models.columns import candidate_names, roofline_base_us
from surrogate.models.covariance import Covariance
from surrogate.models.places import places, spread

CHUNK = 4096
"""Rows per block of the kernel matrix."""
LEAST_ROWS = 8
"""Rows of a candidate below which it gets no process of its own."""


@dataclass(frozen=True)
class Process:
    """One candidate's fit: inducing ``points`` (m, axes), their ``device`` codes (m,), ``weights`` (m,), ``mean``."""

    points: np.ndarray
    device: np.ndarray
    weights: np.ndarray
    mean: float


class GaussianTerms:
    """Gaussian processes on the analytical terms."""

    name: ClassVar[str] = "gp-terms"
    predicts_time: ClassVar[bool] = True
    DEFAULTS: ClassVar[dict[str, Any]] = {
        "inducing": 1024,
        "length": 4.0,
        "long_variance": 0.3,
        "short_variance": 0.05,
        "trend_variance": 0.02,
        "shared": 0.7,
        "noise": 0.003,
    }

    def __init__(self, **params: Any) -> None:
        self.params: Mapping[str, Any] = {**self.DEFAULTS, **params}
        self.processes: dict[str, Process] = {}
        """Candidate → its process."""
        self.devices: dict[str, int] = {}
        """Registry name → code."""

    def fit(self, rows: Rows, *, seed: int = 0) -> Self:
        """Every candidate with at least `LEAST_ROWS` ok rows."""
        ok = rows.take(rows.ok)
        fitted = type(self)(**self.params)
        names, devices = candidate_names(ok), device_names(ok.frame)
        fitted.devices = {name: code for code, name in enumerate(sorted(set(devices)))}
        code = np.array([fitted.devices[name] for name in devices], dtype=np.int64)
        place, target = places(ok), np.log(ok.time_us / roofline_base_us(ok))
        for name in sorted(set(names)):
            mine = np.flatnonzero(names == name)
            if len(mine) >= LEAST_ROWS:
                fitted.processes[name] = fitted._fit_one(place[mine], code[mine], target[mine], seed)
        if not fitted.processes:
            raise InputError(
                f"{self.name} needs at least {LEAST_ROWS} ok rows of one algorithm to learn from"
            )
        return fitted

    def _fit_one(self, place: np.ndarray, device: np.ndarray, target: np.ndarray, seed: int) -> Process:
        from scipy.linalg import cho_factor, cho_solve

        chosen = spread(place, device, self.params["inducing"], seed)
        points = place[chosen].astype(np.float32).astype(np.float64)  # as they are stored
        owner, mean = device[chosen], float(target.mean())
        noise, covariance = self.params["noise"], self.covariance
        within = covariance.matrix(points, owner, points, owner)
        within[np.diag_indices(len(within))] += 1e-6 * float(np.mean(np.diag(within)))
        normal, moment = noise * within, np.zeros(len(points))
        for start in range(0, len(place), CHUNK):
            part = slice(start, start + CHUNK)
            cross = covariance.matrix(points, owner, place[part], device[part])
            normal += cross @ cross.T
            moment += cross @ (target[part] - mean)
        weights = cho_solve(cho_factor(normal, lower=True), moment)
        return Process(points.astype(np.float32), owner, weights, mean)

    @property
    def covariance(self) -> Covariance:
        """The covariance that the hyperparameters describe."""
        p = self.params
        return Covariance(
            p["length"], p["long_variance"], p["short_variance"], p["trend_variance"], p["shared"]
        )

    def predict_us(self, rows: Rows) -> np.ndarray:
        """Times in µs, (rows,); NaN for a candidate without a process."""
        names, base = candidate_names(rows), roofline_base_us(rows)
        device = np.array([self.devices.get(name, -1) for name in device_names(rows.frame)], dtype=np.int64)
        place, covariance = places(rows), self.covariance
        log_correction = np.full(len(rows), np.nan)
        for name in set(names) & self.processes.keys():
            mine, one = np.flatnonzero(names == name), self.processes[name]
            points = one.points.astype(np.float64)
            for start in range(0, len(mine), CHUNK):
                part = mine[start : start + CHUNK]
                cross = covariance.matrix(place[part], device[part], points, one.device)
                log_correction[part] = one.mean + cross @ one.weights
        return base * np.exp(log_correction)

    def save(self) -> dict[str, bytes]:
        """Points and weights as two arrays (npy), the rest as JSON."""
        parts = [(name, self.processes[name]) for name in sorted(self.processes)]
        index = {
            "devices": self.devices,
            "processes": [
                {"candidate": name, "mean": one.mean, "device": one.device.tolist()} for name, one in parts
            ],
        }
        return {
            "processes.json": json.dumps(index, sort_keys=True).encode(),
            "points.npy": _to_npy(np.concatenate([one.points for _, one in parts])),
            "weights.npy": _to_npy(np.concatenate([one.weights for _, one in parts])),
        }

    @classmethod
    def load(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `save` wrote."""
        model = cls(**params)
        index = json.loads(files["processes.json"])
        points, weights = (
            np.load(io.BytesIO(files[name]), allow_pickle=False) for name in ("points.npy", "weights.npy")
        )
        model.devices = {name: int(code) for name, code in index["devices"].items()}
        start = 0
        for each in index["processes"]:
            device = np.array(each["device"], dtype=np.int64)
            part = slice(start, start + len(device))
            model.processes[each["candidate"]] = Process(
                points[part], device, weights[part], float(each["mean"])
            )
            start = part.stop
        return model

    @staticmethod
    def space(trial: Any) -> dict[str, Any]:
        """Lengths, the share that devices have in common, and the noise."""
        return {
            "length": trial.suggest_float("length", 2.0, 12.0, log=True),
            "short_variance": trial.suggest_float("short_variance", 0.005, 0.3, log=True),
            "shared": trial.suggest_float("shared", 0.3, 0.98),
            "noise": trial.suggest_float("noise", 5e-4, 0.03, log=True),
        }


def _to_npy(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return content.getvalue()
