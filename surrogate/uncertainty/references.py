"""How far a problem lies from the nearest training shapes: Euclidean distance in scaled log2 sizes.

The distance grows by `WEIGHTS` per doubling of a size, and is the root mean square over the `NEIGHBOURS` nearest
shapes, so that it is large where training was sparse. It says how much a prediction extrapolates; numpy only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from surrogate.features.problem import SHAPE_COLUMNS, SIZE_COLUMNS

REFERENCES = 256
"""Training shapes kept at most: more are thinned to those that lie farthest from one another."""
NEIGHBOURS = 5
"""Nearest shapes that count, chosen with `WEIGHTS` for the sharpest intervals of one coverage on held-out shapes."""

WEIGHTS = {
    "n": 0.25,  # beyond the batches measured; between them the batch counts for nothing
    "c": 0.35,
    "h": 0.35,
    "w": 0.35,
    "k": 0.35,
    "r": 1.0,
    "s": 1.0,
    "pad_h": 0.25,
    "pad_w": 0.25,
    "stride_h": 1.0,
    "stride_w": 1.0,
    "dilation_h": 1.0,
    "dilation_w": 1.0,
    "groups": 0.5,
}
"""Distance per doubling of a size; a padding p counts as 1 + p, since it may be 0."""

_SCALE = np.array([WEIGHTS[name] for name in SIZE_COLUMNS])
_SHIFT = np.array([float(name.startswith("pad")) for name in SIZE_COLUMNS])
_CHUNK = 256  # products of this many problems stay in the cache


def coordinates(sizes: np.ndarray | Sequence[int]) -> np.ndarray:
    """Scaled log2 sizes (…, 14), batch first, of sizes (…, 14) in the order of `SIZE_COLUMNS`."""
    return np.log2(np.asarray(sizes, dtype=np.float64) + _SHIFT) * _SCALE


@dataclass(frozen=True, eq=False)
class References:
    """``shapes`` (m, 13) int64, m ≤ `REFERENCES`, in the order of `SHAPE_COLUMNS`; ``batches`` (least, greatest)."""

    shapes: np.ndarray
    batches: tuple[int, int]

    @classmethod
    def of(cls, sizes: np.ndarray, count: int = REFERENCES) -> Self:
        """From the sizes (rows, 14) of all training problems, repeats allowed; ``count`` shapes are kept at most."""
        sizes = np.asarray(sizes, dtype=np.int64)
        shapes = np.unique(sizes[:, 1:], axis=0)
        kept = farthest_points(_shape_coordinates(shapes), count)
        return cls(shapes[kept], (int(sizes[:, 0].min()), int(sizes[:, 0].max())))

    @cached_property
    def _factors(self) -> np.ndarray:
        """(m, 14): its product with a one and 13 coordinates is a squared distance, less their own squared length."""
        points = _shape_coordinates(self.shapes)
        return np.column_stack([(points * points).sum(axis=1), -2 * points])

    @cached_property
    def _batch_span(self) -> tuple[float, float]:
        """The batches' scaled log2."""
        least, greatest = np.log2(self.batches) * _SCALE[0]
        return float(least), float(greatest)

    def distance(self, sizes: Sequence[int]) -> float:
        """Distance of one problem's 14 sizes."""
        least, greatest = self._batch_span
        x = coordinates(sizes)
        n, x[0] = float(x[0]), 1.0
        squared = self._factors.dot(x)
        count = min(NEIGHBOURS, len(squared))
        squared.partition(count - 1)
        gap = max(least - n, n - greatest, 0.0)
        nearest = sum(squared[:count].tolist()) / count
        return max(nearest + float(x.dot(x)) - 1.0 + gap * gap, 0.0) ** 0.5

    def distances(self, sizes: np.ndarray) -> np.ndarray:
        """(rows,) distances of problems (rows, 14); neighbouring equal rows are computed once."""
        sizes = np.asarray(sizes)
        if not len(sizes):
            return np.empty(0)
        new = np.append(True, (sizes[1:] != sizes[:-1]).any(axis=1))
        points = coordinates(sizes[new])
        squared = np.concatenate(
            [self._squared(points[i : i + _CHUNK]) for i in range(0, len(points), _CHUNK)]
        )
        return np.sqrt(np.maximum(squared, 0.0))[np.cumsum(new) - 1]

    def _squared(self, points: np.ndarray) -> np.ndarray:
        """(rows,) squared distances of `coordinates` (rows, 14)."""
        least, greatest = self._batch_span
        n, shape = points[:, 0], points[:, 1:]
        squared = shape @ self._factors[:, 1:].T + self._factors[:, 0]
        count = min(NEIGHBOURS, self._factors.shape[0])
        squared.partition(count - 1, axis=1)
        gap = np.maximum(np.maximum(least - n, n - greatest), 0.0)
        return squared[:, :count].sum(axis=1) / count + (shape * shape).sum(axis=1) + gap * gap

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return {"shapes": self.shapes.tolist(), "batches": list(self.batches)}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Self:
        """What `to_dict` gave."""
        least, greatest = map(int, content["batches"])
        return cls(
            np.array(content["shapes"], dtype=np.int64).reshape(-1, len(SHAPE_COLUMNS)), (least, greatest)
        )


def _shape_coordinates(shapes: np.ndarray) -> np.ndarray:
    """(m, 13) of shapes (m, 13)."""
    return np.log2(shapes + _SHIFT[1:]) * _SCALE[1:]


def farthest_points(points: np.ndarray, count: int) -> np.ndarray:
    """Ascending positions of at most ``count`` of ``points`` (rows, d), each next one the farthest from those taken.

    Greedy k-centre, which covers within twice the best possible radius (Gonzalez 1985); starts at the first point.
    """
    if len(points) <= count:
        return np.arange(len(points))
    taken = [0]
    squared = ((points - points[0]) ** 2).sum(axis=1)
    while len(taken) < count:
        farthest = int(squared.argmax())
        taken.append(farthest)
        np.minimum(squared, ((points - points[farthest]) ** 2).sum(axis=1), out=squared)
    return np.sort(np.array(taken))
