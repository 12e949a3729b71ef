"""SEER's regression and classification trees: their arrays, and the search for the leaf size."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from surrogate.features.errors import InputError

if TYPE_CHECKING:
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

LEAF = -1
Grown: TypeAlias = "DecisionTreeClassifier | DecisionTreeRegressor"


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

    def __post_init__(self) -> None:
        nodes = np.arange(len(self.left))
        inner = self.left != LEAF
        children = np.stack([self.left, self.right])
        forward = ((children > nodes) & (children < len(nodes)))[:, inner]
        if not len(nodes) or not forward.all() or (self.feature < 0).any():
            raise InputError("the nodes of a tree do not fit one another")

    @classmethod
    def of(cls, estimator: Grown) -> Self:
        """The nodes of a fitted scikit-learn tree. A classifier's tie goes to its lowest class."""
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

    @classmethod
    def constant(cls, value: float) -> Self:
        """One leaf."""
        leaf = np.array([LEAF])
        return cls(leaf, leaf, feature=np.array([0]), threshold=np.array([0.0]), value=np.array([float(value)]))

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


MAX_SPLITS = 64
MIN_PARENT = 10
"""Rows that a node needs to be split: MinParentSize of MATLAB's `fitctree` and `fitrtree`, at its default."""
EVALUATIONS = 30
FOLDS = 5


def tuned_tree(x: np.ndarray, y: np.ndarray, *, classify: bool, seed: int = 0, evaluations: int = EVALUATIONS) -> Tree:
    """A tree of ``y`` (rows,) on ``x`` (rows, features); ``classify`` predicts classes (whole numbers), else means.

    The minimum leaf size is the one of `leaf_sizes` with the least cross-validated loss (share of wrong classes, or
    mean squared error), the smallest of equals. Source: SEER's fits (PACT 2021 and its repository).
    """
    if len(np.unique(y)) == 1:
        return Tree.constant(y[0])
    fold = np.random.default_rng(seed).permutation(len(y)) % min(FOLDS, len(y))
    sizes = leaf_sizes(len(y), evaluations, seed)
    grow = partial(_grown, classify=classify, seed=seed)
    losses = [_loss(x, y, fold, partial(grow, leaf=leaf), classify) for leaf in sizes] if len(sizes) > 1 else [0.0]
    return Tree.of(grow(x, y, leaf=sizes[int(np.argmin(losses))]))


def leaf_sizes(rows: int, evaluations: int, seed: int) -> list[int]:
    """Distinct minimum leaf sizes, ascending: log-uniform over 1 … rows/2, one in each of ``evaluations`` strata."""
    maximum = max(rows / 2, 1.0)
    quantile = (np.arange(evaluations) + np.random.default_rng(seed).random(evaluations)) / evaluations
    return sorted({int(size) for size in np.exp(quantile * np.log(maximum)).clip(1, maximum)})


def _grown(x: np.ndarray, y: np.ndarray, *, leaf: int, classify: bool, seed: int) -> Grown:
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    grow = DecisionTreeClassifier if classify else DecisionTreeRegressor
    minimum: dict[str, Any] = {"min_samples_split": MIN_PARENT, "min_samples_leaf": leaf}
    return grow(max_leaf_nodes=MAX_SPLITS + 1, random_state=seed, **minimum).fit(x, y)


def _loss(x: np.ndarray, y: np.ndarray, fold: np.ndarray, grow: Callable[..., Grown], classify: bool) -> float:
    """Mean loss over held-out rows."""
    total = 0.0
    for held in np.unique(fold):
        test = fold == held
        predicted = Tree.of(grow(x[~test], y[~test])).predict(x[test])
        total += float((predicted != y[test]).sum() if classify else ((predicted - y[test]) ** 2).sum())
    return total / len(y)
