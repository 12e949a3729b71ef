"""A fitted linear form of SEER's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.models.least_squares import relative_fit
from surrogate.models.seer.formulas import Terms, term_matrix


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
