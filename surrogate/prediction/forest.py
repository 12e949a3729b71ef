"""Trees that are ready to be followed: a few rows at a time in numpy, to the bit what XGBoost computes."""

from dataclasses import dataclass, field

import numpy as np

CHUNK_ROWS = 32
"""Rows followed together: their node positions, thresholds and values stay in the cache."""


@dataclass(frozen=True, slots=True)
class Forest:
    """Nodes of all trees, siblings side by side; a leaf is its own child and its NaN threshold is never reached.

    ``feature``, ``child`` (the left one; the right follows it) and ``missing_left`` are (nodes,); ``threshold`` and
    ``leaf`` (nodes,) float32; ``roots`` (trees,); ``patterns`` (codes, p) the columns that stand for a row's category;
    ``depth`` splits on the longest path.
    """

    feature: np.ndarray
    threshold: np.ndarray
    child: np.ndarray
    leaf: np.ndarray
    missing_left: np.ndarray
    roots: np.ndarray
    base_score: np.float32
    patterns: np.ndarray
    depth: int
    _lanes: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def predict(self, x: np.ndarray) -> np.ndarray:
        """(rows,) float32 sums of the base score and the leaves of C-contiguous float32 ``x`` (rows, columns).

        Leaves are added in the order of the trees in float32, as XGBoost does: the result is the same to the bit.
        """
        if len(x) <= CHUNK_ROWS:
            return self._predict(x)
        out = np.empty(len(x), dtype=np.float32)
        for start in range(0, len(x), CHUNK_ROWS):
            out[start : start + CHUNK_ROWS] = self._predict(x[start : start + CHUNK_ROWS])
        return out

    def _predict(self, x: np.ndarray) -> np.ndarray:
        rows, width = x.shape
        node, offset = self._lanes.get((rows, width)) or self._add_lanes(rows, width)
        values = x.ravel()
        square = values.dot(values)
        missing = bool(square != square)  # NaN: any missing value makes it one
        for _ in range(self.depth):
            at = self.feature.take(node)
            at += offset
            value = values.take(at)
            right = value >= self.threshold.take(node)
            if missing:
                right |= np.isnan(value) & ~self.missing_left.take(node)
            node = self.child.take(node)
            node += right
        scores = np.empty((rows, len(self.roots) + 1), dtype=np.float32)
        scores[:, 0] = self.base_score
        scores[:, 1:] = self.leaf.take(node).reshape(rows, -1)
        return np.add.accumulate(scores, axis=1)[:, -1]

    def _add_lanes(self, rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        """For every row and tree: the root, and where the row begins in the flat values."""
        trees = len(self.roots)
        lanes = np.tile(self.roots, rows), np.repeat(np.arange(rows) * width, trees)
        self._lanes[rows, width] = lanes
        return lanes
