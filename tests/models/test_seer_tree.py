"""Trees as arrays, and the search for their leaf size."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from surrogate.models.seer.trees import Tree, leaf_sizes, tuned_tree

RNG = np.random.default_rng(7)
X = RNG.uniform(0, 1e6, (400, 3))
Y = np.sin(X[:, 0] / 1e5) + (X[:, 1] > 5e5)


def test_tree_predicts_the_same_as_scikit_learn() -> None:
    grown = DecisionTreeRegressor(min_samples_leaf=2, random_state=0).fit(X, Y)
    new = RNG.uniform(-1e5, 1.1e6, (300, 3))
    np.testing.assert_array_equal(Tree.of(grown).predict(new), grown.predict(new))
    classes = DecisionTreeClassifier(max_leaf_nodes=9, random_state=0).fit(X, (Y * 3).astype(int))
    np.testing.assert_array_equal(Tree.of(classes).predict(new), classes.predict(new))


def test_tie_selects_the_lowest_class() -> None:
    grown = DecisionTreeClassifier(max_depth=1).fit([[0], [0], [1], [1]], [7, 3, 7, 3])
    assert Tree.of(grown).predict(np.array([[0.0]]))[0] == 3


def test_constant_target_needs_no_split() -> None:
    tree = tuned_tree(X, np.full(400, 2.5), classify=False)
    assert len(tree.value) == 1
    assert set(tree.predict(X[:5])) == {2.5}


@pytest.mark.parametrize(("rows", "leaves"), [(9, 1), (10, 2)])
def test_node_of_fewer_than_ten_rows_is_never_split(rows: int, leaves: int) -> None:
    """SEER keeps MATLAB's default MinParentSize of 10."""
    x = np.arange(rows, dtype=float)[:, None]
    tree = tuned_tree(x, (x[:, 0] >= 4).astype(float), classify=False)
    assert len(np.unique(tree.predict(x))) == leaves


def test_tree_has_at_most_64_splits() -> None:
    tree = tuned_tree(X, RNG.permutation(400).astype(float) + 1e3 * X[:, 0], classify=False, evaluations=6)
    assert 2 <= (tree.left >= 0).sum() <= 64


def test_tuned_leaves_are_large_for_noise_and_small_for_steps() -> None:
    steps = (X[:, 0] // 1e5).astype(float)
    clean, noisy = tuned_tree(X, steps, classify=False), tuned_tree(X, RNG.normal(size=400), classify=False)
    np.testing.assert_array_equal(clean.predict(X), steps)
    assert len(noisy.value) < len(clean.value)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5000), st.integers(1, 40), st.integers(0, 9))
def test_leaf_sizes_lie_between_one_and_half(rows: int, evaluations: int, seed: int) -> None:
    sizes = leaf_sizes(rows, evaluations, seed)
    assert 1 <= len(sizes) <= evaluations
    assert sizes == sorted(set(sizes))
    assert sizes[0] >= 1 and sizes[-1] <= max(rows / 2, 1)


def test_leaf_sizes_are_log_uniform() -> None:
    sizes = np.log(leaf_sizes(20000, 30, 0)) / np.log(10000)
    assert sizes[0] < 0.05 and sizes[-1] > 0.95
    assert (sizes < 0.5).sum() == pytest.approx(len(sizes) / 2, abs=5)
