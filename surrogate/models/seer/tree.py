"""A decision tree as four arrays: what scikit-learn grew, kept without scikit-learn (or a pickle)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

LEAF = -1


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Nodes of a binary tree, the root first; every array has one entry per node.

    ``left`` and ``right`` are children (`LEAF` at a leaf), ``feature`` and ``threshold`` the test (left where
    x ≤ threshold), ``value`` the prediction: a number, or a class's number.
    """

    left: np.ndarray
    right: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    value: np.ndarray

    @classmethod
    def of(cls, estimator: Any) -> Self:
        """The nodes of a fitted scikit-learn tree. A classifier's tie goes to its lowest class."""
        grown = estimator.tree_
        classes = getattr(estimator, "classes_", None)
        if classes is None:
            value = grown.value[:, 0, 0]
        else:
            value = np.asarray(classes, dtype=np.float64)[grown.value[:, 0, :].argmax(axis=1)]
        leaf = grown.children_left == LEAF
        return cls(
            grown.children_left.astype(np.int64),
            grown.children_right.astype(np.int64),
            np.where(leaf, 0, grown.feature).astype(np.int64),
            np.where(leaf, 0.0, grown.threshold),
            np.asarray(value, dtype=np.float64),
        )

    @classmethod
    def constant(cls, value: float) -> Self:
        """One leaf."""
        leaf = np.array([LEAF])
        return cls(leaf, leaf, np.array([0]), np.array([0.0]), np.array([float(value)]))

    @property
    def splits(self) -> int:
        """Inner nodes."""
        return int((self.left != LEAF).sum())

    def predict(self, x: np.ndarray) -> np.ndarray:
        """The leaf's value of every row of ``x`` (rows, features), (rows,). Compares in float32, as it was grown."""
        x = x.astype(np.float32)
        node = np.zeros(len(x), dtype=np.int64)
        walking = np.flatnonzero(self.left[node] != LEAF)
        while len(walking):
            at = node[walking]
            goes_left = x[walking, self.feature[at]] <= self.threshold[at]
            node[walking] = np.where(goes_left, self.left[at], self.right[at])
            walking = walking[self.left[node[walking]] != LEAF]
        return self.value[node]

    def to_json(self) -> dict[str, list[Any]]:
        """Array name → list."""
        return {name: getattr(self, name).tolist() for name in self.__slots__}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """What `to_json` returned."""
        return cls(*(np.array(data[name]) for name in cls.__slots__))
