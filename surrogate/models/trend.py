"""`Trend`: a smooth continuation of a log correction outside the range of its training data, where trees stand still.

Inside the range the trend adds nothing, so that the trees alone rank the candidates there. Outside it adds the
difference between its value at the problem and its value at the nearest point of the range. It is linear in a few
terms of size and device (`Family.trend_names`); many collinear ones would make its slopes arbitrary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

HINGED = 2
"""The first terms also enter as max(0, term - knot): it is the slope of the large problems that goes on."""
QUANTILES = (0.25, 0.5, 0.75)
"""Of the hinged terms' values: where the knots lie."""
PENALTIES = (1.0, 3.0, 10.0)
"""Of squared scaled slopes: of those of all rows, of a candidate's and of a candidate's on one GPU."""
LEAST_SPREAD = 0.1
"""A term that varies less is scaled by this, so that noise in it is not blown up."""


@dataclass(frozen=True)
class Trend:
    """Slopes that were fitted, and the range that they hold outside of.

    ``names`` of the terms; ``low`` and ``high`` (terms,) the range; ``knots`` (`HINGED`, knots) of the first terms;
    ``slopes``: group → (terms + hinges,) per unit of a term, for "", ``candidate`` and ``candidate|gpu``.
    """

    names: tuple[str, ...]
    low: np.ndarray
    high: np.ndarray
    knots: np.ndarray
    slopes: Mapping[str, np.ndarray]

    @classmethod
    def fit(
        cls,
        names: tuple[str, ...],
        terms: np.ndarray,
        target: np.ndarray,
        candidate: np.ndarray,
        gpu: np.ndarray,
    ) -> Self:
        """From ``terms`` (rows, terms), their ``target`` in log time, ``candidate`` and ``gpu`` names (each rows,)."""
        terms = terms.astype(np.float64)
        knots = np.quantile(terms[:, :HINGED], QUANTILES, axis=0).T
        columns = _columns(terms, knots)
        spread = np.maximum(columns.std(axis=0), LEAST_SPREAD)
        columns, rest = columns / spread, target.astype(np.float64)
        slopes: dict[str, np.ndarray] = {}
        # Each level fits what the level above it left over, so that small groups shrink towards the larger one.
        parent, group = np.full(len(terms), "", dtype=object), np.full(len(terms), "", dtype=object)
        for penalty, names_of_level in zip(PENALTIES, (None, candidate, gpu), strict=True):
            if names_of_level is not None:
                parent, group = group, _keys(group, names_of_level)
            keys, first, member = np.unique(group.astype(str), return_index=True, return_inverse=True)
            for place, key in enumerate(keys.tolist()):
                rows = np.flatnonzero(member == place)
                # Centred columns need no intercept; a ridge regression in closed form.
                x, y = columns[rows] - columns[rows].mean(axis=0), rest[rows] - rest[rows].mean()
                normal = x.T @ x
                normal[np.diag_indices_from(normal)] += penalty
                own = np.linalg.solve(normal, x.T @ y)
                rest[rows] = y - x @ own
                above = slopes[str(parent[first[place]])] if names_of_level is not None else 0.0
                slopes[key] = above + own / spread
        return cls(names, terms.min(axis=0), terms.max(axis=0), knots, slopes)

    def beyond(self, terms: np.ndarray, candidate: np.ndarray, gpu: np.ndarray) -> np.ndarray:
        """(rows,) what to add to the log correction at ``terms`` (rows, terms); exactly 0 inside the range.

        A candidate that is new on a GPU follows its slopes of all GPUs, and a new candidate those of all rows.
        """
        added = np.zeros(len(terms))
        clipped = np.clip(terms, self.low, self.high)
        outside = np.flatnonzero((clipped != terms).any(axis=1))
        if not len(outside):
            return added
        step = _columns(terms[outside].astype(np.float64), self.knots) - _columns(
            clipped[outside], self.knots
        )
        keys, member = np.unique(_keys(candidate[outside], gpu[outside]).astype(str), return_inverse=True)
        for place, key in enumerate(keys.tolist()):
            rows = np.flatnonzero(member == place)
            added[outside[rows]] = step[rows] @ self._slopes(key)
        return added

    def _slopes(self, key: str) -> np.ndarray:
        choices = (key, key.rpartition("|")[0], "")
        return next(self.slopes[name] for name in choices if name in self.slopes)

    def facts(self) -> dict[str, Any]:
        """As JSON holds it."""
        slopes = {group: values.tolist() for group, values in self.slopes.items()}
        arrays = {name: getattr(self, name).tolist() for name in ("low", "high", "knots")}
        return {"names": self.names, **arrays, "slopes": slopes}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """What `facts` gave."""
        arrays = (np.array(facts[name]) for name in ("low", "high", "knots"))
        slopes = {group: np.array(values) for group, values in facts["slopes"].items()}
        return cls(tuple(facts["names"]), *arrays, slopes)


def _columns(terms: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """(rows, terms + hinges) the terms, and how far the first ones lie above each knot."""
    hinges = np.maximum(terms[:, :HINGED, None] - knots, 0.0)
    return np.hstack([terms, hinges.reshape(len(terms), -1)])


def _keys(group: np.ndarray, name: np.ndarray) -> np.ndarray:
    """(rows,) ``group|name``, and the name alone where the group is "": all rows."""
    joined = group.astype(object) + "|" + name.astype(str).astype(object)
    return np.array([key.removeprefix("|") for key in joined], dtype=object)
