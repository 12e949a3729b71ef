"""`Trend`: a smooth continuation of a log correction outside the range of its training data, where trees stay constant.

Inside the range the trend adds nothing, so that the trees alone rank the candidates there. Outside it adds the
difference between its value at the problem and its value at the nearest point of the range. Slopes are common
to all candidates and GPUs: slopes of their own, however much they were shrunk towards the common ones, predicted worse
beyond the range. The range is that of the candidate on the GPU, because a problem that is large for a fast GPU
has roofline times that are common on a slow one.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from surrogate.features.errors import InputError
from surrogate.features.families import Family
from surrogate.models.plain import Keyed

QUANTILES = (0.25, 0.5, 0.75)
"""Of the first term: where its knots lie. The slope of the large problems is what goes on."""
PENALTY = 1.0
"""Of squared slopes of columns scaled to unit spread."""
LEAST_SPREAD = 0.1
"""A term that varies less is scaled by this, so that noise in it is not blown up."""


def trend_names(family: Family) -> tuple[str, ...]:
    """The terms: roofline time, the candidate's own over it, and FLOPs per byte. More, being collinear, did worse."""
    rooflines = (family.own_roofline,) if family.own_roofline else ()
    return ("log2_roofline_us", *rooflines, "log2_intensity")


class RangeKey(NamedTuple):
    """Whose range it is: a candidate's on a GPU; on any GPU, or of any candidate, where a name is empty."""

    candidate: str
    gpu: str


@dataclass(frozen=True)
class Trend:
    """A ridge regression on a few terms and hinges of the first one, and the ranges outside of which it counts.

    ``names`` of the terms; ``knots`` (knots,) of the first; ``slopes`` (terms + knots,) in log time per unit;
    ``ranges`` (2, terms) the least and the largest values.
    """

    names: tuple[str, ...]
    knots: np.ndarray
    slopes: np.ndarray
    ranges: Keyed[RangeKey, np.ndarray]

    def __post_init__(self) -> None:
        terms = len(self.names)
        shapes = {values.shape for values in self.ranges.values()}
        if shapes != {(2, terms)} or (self.knots.ndim, self.slopes.shape) != (1, (terms + self.knots.size,)):
            raise InputError("names, knots, slopes and ranges of the trend do not fit one another")
        if RangeKey("", "") not in self.ranges or any((low > high).any() for low, high in self.ranges.values()):
            raise InputError("the trend lacks the range over all rows, or a range ends below its beginning")

    @classmethod
    def fit(
        cls, names: tuple[str, ...], terms: np.ndarray, target: np.ndarray, candidates: np.ndarray, gpus: np.ndarray
    ) -> Self:
        """From ``terms`` (rows, terms), ``target`` (rows,) in log time, names of candidates and GPUs (rows,)."""
        terms = terms.astype(np.float64)
        first, group = np.unique(_joined(candidates, gpus), return_index=True, return_inverse=True)[1:]
        # 1. Scaled columns make one penalty fair to all of them. Centred within each candidate on each GPU, they tell
        #    how times grow with size, not how one candidate differs from another, and need no intercept.
        knots = np.unique(np.quantile(terms[:, 0], QUANTILES))
        columns = _columns(terms, knots)
        spread = np.maximum(columns.std(axis=0), LEAST_SPREAD)
        scaled = _centred(columns / spread, group)
        # 2. Ridge regression in closed form: (XᵀX + penalty) slopes = Xᵀy.
        normal = scaled.T @ scaled
        normal[np.diag_indices_from(normal)] += PENALTY
        slopes = np.linalg.solve(normal, scaled.T @ _centred(target[:, None], group))[:, 0] / spread
        # 3. The range of every candidate on every GPU, then that of a candidate on any GPU and that of all rows.
        ranges = {RangeKey("", ""): _range(terms)}
        for number, row in enumerate(first.tolist()):
            here = _range(terms[group == number])
            anywhere = RangeKey(str(candidates[row]), "")
            ranges[RangeKey(anywhere.candidate, str(gpus[row]))] = here
            ranges[anywhere] = _range(np.concatenate([here, ranges.get(anywhere, here)]))
        return cls(names, knots, slopes, ranges)

    def range_of(self, candidate: str, gpu: str) -> np.ndarray:
        """(2, terms) of the candidate on the GPU, else of the candidate on any GPU, else of all rows."""
        keys = (RangeKey(candidate, gpu), RangeKey(candidate, ""), RangeKey("", ""))
        return next(self.ranges[key] for key in keys if key in self.ranges)

    def beyond(self, terms: np.ndarray, candidates: np.ndarray, gpus: np.ndarray) -> np.ndarray:
        """(rows,) what to add to the log correction at ``terms`` (rows, terms); exactly 0 inside the range."""
        if not len(terms):
            return np.zeros(0)
        _, first, group = np.unique(_joined(candidates, gpus), return_index=True, return_inverse=True)
        pairs = zip(candidates[first].tolist(), gpus[first].tolist(), strict=True)
        ranges = np.stack([self.range_of(*pair) for pair in pairs])[group]
        return self.outside(terms, ranges)

    def outside(self, terms: np.ndarray, ranges: np.ndarray) -> np.ndarray:
        """(rows,) as `beyond`, with the ``ranges`` (rows, 2, terms) that the caller looked up."""
        low, high = ranges[:, 0], ranges[:, 1]
        added = np.zeros(len(terms))
        is_outside = (terms < low) | (terms > high)
        if is_outside.any():
            rows = np.flatnonzero(is_outside.any(axis=1))
            beyond = terms[rows].astype(np.float64)
            nearest = np.clip(beyond, low[rows], high[rows])
            step = _columns(beyond, self.knots) - _columns(nearest, self.knots)
            added[rows] = (step * self.slopes).sum(axis=1)
        return added


def _range(terms: np.ndarray) -> np.ndarray:
    """(2, terms) the least and the largest values of ``terms`` (rows, terms)."""
    return np.stack([terms.min(axis=0), terms.max(axis=0)])


def _columns(terms: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """(rows, terms + knots) the terms, and how far the first one lies above each knot."""
    return np.hstack([terms, np.maximum(terms[:, :1] - knots, 0.0)])


def _centred(columns: np.ndarray, group: np.ndarray) -> np.ndarray:
    """``columns`` (rows, columns) less the mean of the row's group; ``group`` (rows,) codes from 0."""
    counts = np.bincount(group)
    means = [np.bincount(group, weights=column) / counts for column in columns.T]
    return columns - np.stack(means, axis=1)[group]


def _joined(candidates: np.ndarray, gpus: np.ndarray) -> np.ndarray:
    """(rows,) a text for each pair, by whose order pairs are numbered."""
    return np.char.add(np.char.add(candidates.astype(str), "|"), gpus.astype(str))
