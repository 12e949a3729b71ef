"""`Correction`: what a few measurements on a device tell of the times there, as a conditioned Gaussian process.

Its covariance sums what may differ on a new device: everything alike (common), a trend in the terms (linear), problems
like one another (smooth); and for each mechanism (or, in families without mechanisms, each library) and each candidate
an offset and a smooth part of its own. Beyond the measured ranges slopes do not go on. Source:
Rasmussen & Williams 2006, "Gaussian Processes for Machine Learning", equation 2.25. Needs NumPy alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from surrogate.features.errors import InputError
from surrogate.features.families import Family

PREDICTED_UNIT = 3.0
"""Doublings of the predicted time per unit of distance."""
SCALES = ("length", "common", "linear", "smooth", "mechanism", "mechanism_smooth", "candidate", "candidate_smooth")
Positive = Annotated[float, Meta(ge=1e-12, le=1e6)]
CHUNK = 4096
"""Rows that are asked at once: their covariances with all measured ones are held."""


@dataclass(frozen=True)
class Inputs:
    """Rows as the process sees them: ``terms`` (rows, terms) scaled, ``mechanism`` and ``candidate`` codes (rows,)."""

    terms: np.ndarray
    mechanism: np.ndarray
    candidate: np.ndarray

    def __len__(self) -> int:
        return len(self.terms)

    def take(self, index: np.ndarray) -> "Inputs":
        """The rows at these positions."""
        return Inputs(self.terms[index], self.mechanism[index], self.candidate[index])


def correction_columns(family: Family) -> tuple[str, ...]:
    """Columns of `Rows.features` that a correction sees, before the predicted time; the mechanism's code is last."""
    mechanism = ("mechanism",) if "mechanism" in family.candidate_names else ()
    return (*family.distance_units, *mechanism)


@dataclass(frozen=True)
class Correction:
    """A process conditioned on ``inputs``: the log factor on a model's times for one device.

    ``scales`` are the hyperparameters, ``weights`` (rows,) the dual coefficients, ``units`` (columns,) the scales of
    the terms, ``candidates`` name → code.
    """

    scales: Mapping[str, Positive]
    inputs: Inputs
    weights: np.ndarray
    units: tuple[Positive, ...]
    candidates: Mapping[str, int]

    def __post_init__(self) -> None:
        rows = len(self.weights)
        shapes = [array.shape for array in (self.inputs.terms, self.inputs.mechanism, self.inputs.candidate)]
        if shapes != [(rows, len(self.units) + 1), (rows,), (rows,)] or not set(SCALES) <= set(self.scales):
            raise InputError("inputs, weights, units and scales of a correction do not fit one another")

    def log_factor(self, x: np.ndarray, names: np.ndarray, predicted_us: np.ndarray) -> np.ndarray:
        """(rows,) natural logarithm of what times are multiplied by: near zero far from everything measured.

        ``x`` (rows, columns) of `correction_columns`, ``names`` (rows,) of the candidates, ``predicted_us`` (rows,) the
        base model's times; NaN where those are.
        """
        inputs = inputs_of(x, names, predicted_us, units=self.units, codes=self.candidates)
        factor = np.empty(len(x))
        for start in range(0, len(x), CHUNK):
            part = np.arange(start, min(start + CHUNK, len(x)))
            factor[part] = covariance(self.scales, inputs.take(part), self.inputs) @ self.weights
        return factor


def inputs_of(
    x: np.ndarray, names: np.ndarray, predicted_us: np.ndarray, units: tuple[float, ...], codes: Mapping[str, int]
) -> Inputs:
    """The rows as the process sees them; a candidate that was not measured shares nothing with the others (code −1)."""
    # Distances are comparable only in units of each term; the predicted time is a term as well, behind the others.
    terms = np.column_stack([x[:, : len(units)].astype(np.float64) / units, np.log2(predicted_us) / PREDICTED_UNIT])
    # Where the family has mechanisms their code is the last column; elsewhere the library's stands in.
    libraries = {name.partition("|")[0]: code for name, code in codes.items()}
    by_library = [libraries.get(str(name).partition("|")[0], -1) for name in names]
    mechanism = x[:, -1] if x.shape[1] > len(units) else np.array(by_library)
    candidate = np.array([codes.get(str(name), -1) for name in names], dtype=np.int64)
    return Inputs(terms, mechanism.astype(np.int64), candidate)


def covariance(scales: Mapping[str, float], a: Inputs, b: Inputs) -> np.ndarray:
    """Covariance (rows of a, rows of b) of log corrections, noise left out."""
    # 1. Squared distances of all pairs by the binomial formula: one matrix product, no array of (rows, rows, terms).
    cross = a.terms @ b.terms.T
    squares = (a.terms**2).sum(1)[:, None] + (b.terms**2).sum(1)[None, :] - 2 * cross
    # Rounding can leave a small negative number where both rows are the same.
    near = np.exp(-0.5 * np.maximum(squares, 0.0) / scales["length"] ** 2)
    # 2. What all rows of the device share: an offset, a slope along every term as far as b reaches, and a smooth part.
    slopes = np.clip(a.terms, b.terms.min(axis=0), b.terms.max(axis=0)) @ b.terms.T
    total = scales["common"] ** 2 + scales["linear"] ** 2 / a.terms.shape[1] * slopes + scales["smooth"] ** 2 * near
    # 3. What only rows of one mechanism, and of one candidate, share: an offset and a smooth part of their own.
    for name in ("mechanism", "candidate"):
        same = getattr(a, name)[:, None] == getattr(b, name)[None, :]
        total += same * (scales[name] ** 2 + scales[f"{name}_smooth"] ** 2 * near)
    return total
