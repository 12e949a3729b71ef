"""SEER's trees: CART with at most 64 splits, its minimum leaf size searched by cross-validation."""

from typing import Any

import numpy as np

from surrogate.models.seer.tree import Tree

MAX_SPLITS = 64
EVALUATIONS = 30
FOLDS = 5


def tuned_tree(
    x: np.ndarray, y: np.ndarray, *, classify: bool, seed: int = 0, evaluations: int = EVALUATIONS
) -> Tree:
    """A tree of ``y`` (rows,) on ``x`` (rows, features); ``classify`` predicts classes (whole numbers), else means.

    The minimum leaf size is the one of `leaf_sizes` with the least cross-validated loss (share of wrong classes, or
    mean squared error), the smallest of equals. Source: SEER's fits (PACT 2021 and its repository).
    """
    if len(np.unique(y)) == 1:
        return Tree.constant(y[0])
    fold = np.random.default_rng(seed).permutation(len(y)) % min(FOLDS, len(y))
    sizes = leaf_sizes(len(y), evaluations, seed)
    losses = [_loss(x, y, fold, leaf, classify, seed) for leaf in sizes] if len(sizes) > 1 else [0.0]
    return Tree.of(_grown(x, y, sizes[int(np.argmin(losses))], classify, seed))


def leaf_sizes(rows: int, evaluations: int, seed: int) -> list[int]:
    """Distinct minimum leaf sizes, ascending: log-uniform over 1 … rows/2, one in each of ``evaluations`` strata."""
    most = max(rows / 2, 1.0)
    place = (np.arange(evaluations) + np.random.default_rng(seed).random(evaluations)) / evaluations
    return sorted({int(size) for size in np.exp(place * np.log(most)).clip(1, most)})


def _grown(x: np.ndarray, y: np.ndarray, leaf: int, classify: bool, seed: int) -> Any:
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    grow = DecisionTreeClassifier if classify else DecisionTreeRegressor
    return grow(max_leaf_nodes=MAX_SPLITS + 1, min_samples_leaf=leaf, random_state=seed).fit(x, y)


def _loss(x: np.ndarray, y: np.ndarray, fold: np.ndarray, leaf: int, classify: bool, seed: int) -> float:
    """Mean loss over held-out rows."""
    total = 0.0
    for held in np.unique(fold):
        test = fold == held
        predicted = Tree.of(_grown(x[~test], y[~test], leaf, classify, seed)).predict(x[test])
        total += float((predicted != y[test]).sum() if classify else ((predicted - y[test]) ** 2).sum())
    return total / len(y)
