"""SEER's regression and classification trees: their arrays, and the search for the leaf size."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from surrogate.features.errors import InputError

if TYPE_CHECKING:
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

LEAF = -1


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Nodes of a binary tree, the root first. Every array has one entry per node.

    Attributes
    ----------
    left, right
        Children, or `LEAF` at a leaf.
    feature, threshold
        Test of the node: left if x ≤ threshold.
    value
        Prediction: a number, or a class's number.
    """

    left: np.ndarray
    right: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    value: np.ndarray

    def __post_init__(self) -> None:
        nodes = np.arange(len(self.left))
        inner = self.left != LEAF
        children = np.stack([self.left, self.right])
        forward = ((children > nodes) & (children < len(nodes)))[:, inner]
        if not len(nodes) or not forward.all() or (self.feature < 0).any():
            raise InputError("the nodes of a tree do not fit one another")

    @classmethod
    def of(cls, estimator: "DecisionTreeClassifier | DecisionTreeRegressor") -> Self:
        """Return the nodes of a fitted scikit-learn tree. If classes tie, a classifier predicts the lowest one."""
        grown = estimator.tree_
        classes = getattr(estimator, "classes_", None)
        if classes is None:
            value = grown.value[:, 0, 0]
        else:
            value = np.asarray(classes, dtype=np.float64)[grown.value[:, 0, :].argmax(axis=1)]
        leaf = grown.children_left == LEAF
        left, right = (children.astype(np.int64) for children in (grown.children_left, grown.children_right))
        feature = np.where(leaf, 0, grown.feature).astype(np.int64)
        threshold = np.where(leaf, 0.0, grown.threshold)
        return cls(left, right, feature=feature, threshold=threshold, value=np.asarray(value, dtype=np.float64))

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the leaf's value (rows,) of every row of ``x`` (rows, features), compared in float32 as in the fit."""
        x = x.astype(np.float32)
        node = np.zeros(len(x), dtype=np.int64)
        walking = np.flatnonzero(self.left[node] != LEAF)
        while len(walking):
            current = node[walking]
            goes_left = x[walking, self.feature[current]] <= self.threshold[current]
            node[walking] = np.where(goes_left, self.left[current], self.right[current])
            walking = walking[self.left[node[walking]] != LEAF]
        return self.value[node]


MAX_SPLITS = 64
MIN_PARENT = 10
"""Minimum rows of a node that is split: the default MinParentSize of MATLAB's `fitctree` and `fitrtree`."""
EVALUATIONS = 30
FOLDS = 5


def tuned_tree(x: np.ndarray, y: np.ndarray, *, classify: bool, seed: int = 0, evaluations: int = EVALUATIONS) -> Tree:
    """Return a tree of ``y`` with the best minimum leaf size of `leaf_sizes`.

    The best size has the smallest cross-validated loss: the share of wrong classes, or the mean squared error. If
    losses are equal, the smaller size is taken.

    Parameters
    ----------
    x
        (rows, features).
    y
        (rows,) classes (integers), or numbers.
    classify
        If True, the tree predicts classes, otherwise means.
    seed
        Seed of the folds, the leaf sizes and the trees.
    evaluations
        Number of leaf sizes before duplicates are removed.

    References
    ----------
    SEER (PACT 2021) and its public repository.
    """
    from sklearn.model_selection import PredefinedSplit, cross_val_predict
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    fold = np.random.default_rng(seed).permutation(len(y)) % min(FOLDS, len(y))
    sizes = leaf_sizes(len(y), evaluations if len(np.unique(y)) > 1 else 1, seed)
    kind = DecisionTreeClassifier if classify else DecisionTreeRegressor
    grown = kind(min_samples_split=MIN_PARENT, max_leaf_nodes=MAX_SPLITS + 1, random_state=seed)

    def loss(leaf: int) -> float:
        predicted = cross_val_predict(grown.set_params(min_samples_leaf=leaf), x, y, cv=PredefinedSplit(fold))
        return float(np.mean(predicted != y if classify else (predicted - y) ** 2))

    best = min(sizes, key=loss) if len(sizes) > 1 else sizes[0]
    return Tree.of(grown.set_params(min_samples_leaf=best).fit(x, y))


def leaf_sizes(rows: int, evaluations: int, seed: int) -> list[int]:
    """Return distinct minimum leaf sizes, ascending: log-uniform over 1 … rows/2, one per ``evaluations`` stratum."""
    maximum = max(rows / 2, 1.0)
    quantile = (np.arange(evaluations) + np.random.default_rng(seed).random(evaluations)) / evaluations
    return sorted({int(size) for size in np.exp(quantile * np.log(maximum)).clip(1, maximum)})
