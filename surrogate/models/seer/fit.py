"""Least squares on the relative residual: the one fit behind all of SEER's linear formulas."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.models.seer.formulas import Terms, term_matrix


def relative_fit(terms: np.ndarray, target: np.ndarray, *, nonnegative: bool = False) -> np.ndarray:
    """Coefficients (terms,) that minimise Σ(terms · coefficients / target − 1)².

    ``terms`` (rows, terms), ``target`` (rows,) positive. Rows are divided by their target and columns by their norm
    before solving, since the terms differ by a factor of 1e9; where the rows do not determine the coefficients, the
    least-norm solution (in scaled columns) is returned. ``nonnegative`` keeps every coefficient at or above 0
    (Lawson & Hanson 1974). Source: SEER's fits (PACT 2021 and its repository).
    """
    relative = terms / target[:, None]
    scale = np.linalg.norm(relative, axis=0)
    scale[scale == 0] = 1.0
    scaled, ones = relative / scale, np.ones(len(target))
    if not nonnegative:
        return np.linalg.lstsq(scaled, ones, rcond=None)[0] / scale
    from scipy.optimize import nnls

    # The triangle of a QR factorisation poses the same problem with as many rows as columns.
    q, r = np.linalg.qr(scaled)
    return nnls(r, q.T @ ones)[0] / scale


def relative_loss(terms: np.ndarray, target: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Squared relative residual of each row, (rows,)."""
    return (terms @ coefficients / target - 1) ** 2


@dataclass(frozen=True, slots=True)
class FormFit:
    """Fitted coefficients of one form, and the least training target, which stands where the form turns negative.

    Relative least squares can extrapolate below zero; an algorithm must not win for that.
    """

    coefficients: tuple[float, ...]
    floor: float

    @classmethod
    def of(cls, terms: Terms, target: np.ndarray) -> "FormFit":
        """`relative_fit` of ``target`` (rows,)."""
        found = relative_fit(term_matrix(terms, len(target)), target)
        return cls(tuple(found.tolist()), float(target.min()))

    def predict(self, terms: Terms, length: int) -> np.ndarray:
        """The form's values (length,), all positive."""
        value = term_matrix(terms, length) @ np.array(self.coefficients)
        return np.where(value > 0, value, self.floor)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"coefficients": list(self.coefficients), "floor": self.floor}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "FormFit":
        """What `to_json` returned."""
        return cls(tuple(data["coefficients"]), data["floor"])
