"""`li-et-al`: time is linear in operations and traffic, one fit per GPU and algorithm.

Source: Li, Sun, Jog, "Path Forward Beyond Simulators: Fast and Accurate GPU Execution Time Prediction for DNN
Workloads" (MICRO 2023): linear regression per kernel on operation counts and input / output sizes; for another GPU the
slopes are scaled by what the hardware offers. Here an algorithm stands for the kernels, and slopes are efficiencies.
"""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd

from surrogate.dataset.rows import Rows
from surrogate.features.errors import InputError
from surrogate.models.seer.fit import relative_fit
from surrogate.models.seer.keys import joined, key_columns

LEAST_US = 0.1
"""No launch is faster; keeps every prediction positive."""


class LiEtAl:
    """time = a · FLOPs / peak + b · bytes / bandwidth + c with a, b, c ≥ 0, per (GPU, algorithm, type).

    The paper's ordinary least squares would fit only the largest of five orders of magnitude of times; rows are
    weighted by 1 / time instead, so that the relative error counts. FLOPs and bytes are the problem's own (direct
    algorithm, tensors touched once), as the paper takes them. A GPU with fewer than ``least_rows`` rows of an algorithm
    takes the fit over all GPUs.
    """

    name: ClassVar[str] = "li-et-al"
    predicts_time: ClassVar[bool] = True
    DEFAULTS: ClassVar[dict[str, Any]] = {"least_rows": 8}

    def __init__(self, **params: Any) -> None:
        self.params: Mapping[str, Any] = {**self.DEFAULTS, **params}
        self._coefficients: dict[str, list[float]] = {}

    def fit(self, rows: Rows, *, seed: int = 0) -> Self:
        """One fit per GPU and algorithm, and the general ones that stand in (see `_keys`)."""
        del seed
        ok = rows.take(rows.ok)
        if not len(ok):
            raise InputError(f"{self.name} needs at least one ok row to learn from")
        fitted = type(self)(**self.params)
        terms = _terms(ok)
        least_rows = int(self.params["least_rows"])
        for keys, least in zip(_keys(ok), (least_rows, least_rows, 1), strict=True):
            for key, index in keys.groupby(keys).indices.items():
                if len(index) >= least:
                    found = relative_fit(terms[index], ok.time_us[index], nonnegative=True)
                    fitted._coefficients[str(key)] = found.tolist()
        return fitted

    def predict_us(self, rows: Rows) -> np.ndarray:
        """Times in µs, (rows,); NaN for an algorithm that training did not hold."""
        terms, time_us = _terms(rows), np.full(len(rows), np.nan)
        for keys in reversed(_keys(rows)):  # the closer fit overwrites the general one
            for key, index in keys.groupby(keys).indices.items():
                if key in self._coefficients:
                    time_us[index] = terms[index] @ np.array(self._coefficients[str(key)])
        return np.maximum(time_us, LEAST_US)

    def save(self) -> dict[str, bytes]:
        """Coefficients as JSON."""
        return {"coefficients.json": json.dumps(self._coefficients, sort_keys=True).encode()}

    @classmethod
    def load(cls, params: Mapping[str, Any], files: Mapping[str, bytes]) -> Self:
        """What `save` wrote."""
        model = cls(**params)
        model._coefficients = json.loads(files["coefficients.json"])
        return model

    @staticmethod
    def space(trial: Any) -> dict[str, Any]:
        """Rows from which a GPU gets a fit of its own."""
        return {"least_rows": trial.suggest_int("least_rows", 3, 60, log=True)}


def _terms(rows: Rows) -> np.ndarray:
    """(rows, 3): arithmetic time at the peak and memory time at the bandwidth, in µs, and 1."""
    log = {
        name: rows.column(f"log2_{name}").astype(np.float64)
        for name in ("flops", "tensor_bytes", "peak_tflops", "dram_gbs")
    }
    arithmetic = np.exp2(log["flops"] - log["peak_tflops"]) / 1e6
    traffic = np.exp2(log["tensor_bytes"] - log["dram_gbs"]) / 1e3
    return np.column_stack([arithmetic, traffic, np.ones(len(rows))])


def _keys(rows: Rows) -> list[pd.Series]:
    """Text per row: the candidate with its kind of grouping and the GPU; without the GPU; alone.

    Depthwise and grouped problems run kernels of their own, which the paper's kernel table would hold apart.
    """
    columns = key_columns(rows)
    levels = (("candidate", "grouping", "gpu"), ("candidate", "grouping"), ("candidate",))
    return [pd.Series(joined(columns, names)) for names in levels]
