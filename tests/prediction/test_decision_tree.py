"""Tests of decision trees that choose among candidates by a table of costs: size, slowdown and leaves."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from surrogate.prediction.export_function import (
    Branch,
    Leaf,
    Node,
    Slowdown,
    complementing,
    held_out_slowdown,
    learn_tree,
    leaves_of,
    threshold_between,
    tree_choices,
)


def table(seed: int, problems: int, candidates: int, failing: float) -> tuple[np.ndarray, np.ndarray]:
    """Return distinct sizes (problems, 3) and costs, some infinite; every problem has a candidate that costs 0."""
    random = np.random.default_rng(seed)
    columns = np.column_stack([np.arange(problems), *random.integers(0, 5, (2, problems))])
    cost = random.exponential(0.3, (problems, candidates))
    cost[random.random(cost.shape) < failing] = np.inf
    cost[np.arange(problems), random.integers(0, candidates, problems)] = 0.0
    return columns, cost


def failures_then_cost(slowdown: Slowdown, problems: int) -> tuple[int, float]:
    ran = problems - slowdown.failures
    return slowdown.failures, float(np.log(slowdown.factor)) * ran if ran else 0.0


@given(st.integers(0, 10**6), st.integers(1, 24), st.integers(1, 6), st.sampled_from([0.0, 0.3, 0.9]))
@settings(max_examples=60, deadline=None)
def test_more_leaves_never_cost_more(seed: int, problems: int, candidates: int, failing: float) -> None:
    """With a leaf for each problem, every problem gets its best candidate."""
    columns, cost = table(seed, problems, candidates, failing)
    figures = []
    for leaves in (1, 2, 3, 5, 8):
        tree = learn_tree(columns, cost, leaves)
        every_leaf = leaves_of(tree)
        chosen = tree_choices(tree, columns)
        assert len(every_leaf) <= leaves
        assert sorted(np.concatenate([leaf.rows for leaf in every_leaf]).tolist()) == list(range(problems))
        assert all((chosen[leaf.rows] == leaf.candidate).all() for leaf in every_leaf)
        figures.append(failures_then_cost(Slowdown.of(cost, chosen), problems))
    for (failures, log_time), (more_failures, more_log_time) in itertools.pairwise(figures):
        assert more_failures < failures or (more_failures == failures and more_log_time <= log_time + 1e-5)
    chosen = tree_choices(learn_tree(columns, cost, problems), columns)
    assert Slowdown.of(cost, chosen) == (pytest.approx(1.0, abs=1e-5), 0)


def test_a_leaf_minimises_time_instead_of_counting_best_picks() -> None:
    """Candidate 1 is best for one of three problems only, but hardly slower for the others."""
    cost = np.array([[0.0, 0.01], [0.0, 0.01], [2.0, 0.0]])
    assert learn_tree(np.zeros((3, 1), dtype=int), cost, 4).candidate == 1  # pyright: ignore[reportAttributeAccessIssue]


def test_two_splits_are_found_if_one_alone_gains_nothing() -> None:
    sizes = 16 * np.arange(1, 11)[:, None]
    best = np.array([0] * 4 + [1] * 2 + [0] * 4)
    cost = np.stack([best != 0, best != 1], axis=1) * 0.5
    tree = learn_tree(sizes, cost, 3)
    assert isinstance(tree, Branch) and Slowdown.of(cost, tree_choices(tree, sizes)) == (1.0, 0)
    assert tree_choices(tree, np.array([[1], [88], [1000]])).tolist() == [0, 1, 0]


def test_failures_are_avoided_before_slow_candidates_and_are_counted() -> None:
    sizes = np.arange(3)[:, None]
    cost = np.array([[0.0, 1.5], [np.inf, 0.0], [0.0, 1.5]])
    assert Slowdown.of(cost, tree_choices(learn_tree(sizes, cost, 1), sizes)) == (pytest.approx(np.e), 0)
    without_common = np.array([[0.0, np.inf], [np.inf, 0.0], [0.0, np.inf]])
    assert Slowdown.of(without_common, tree_choices(learn_tree(sizes, without_common, 1), sizes)) == (1.0, 1)


@given(st.integers(0, 2**40), st.integers(1, 2**40))
def test_a_threshold_lies_between_its_neighbours(lower: int, above: int) -> None:
    """A threshold is strictly between the two sizes if an integer lies between them."""
    upper = lower + above
    threshold = threshold_between(lower, upper)
    assert lower <= threshold < upper
    assert threshold > lower or above == 1


@pytest.mark.parametrize(("pair", "expected"), [((512, 1024), 768), ((512, 4096), 1024), ((96, 127), 112), ((0, 1), 0)])
def test_thresholds_are_round_numbers(pair: tuple[int, int], expected: int) -> None:
    assert threshold_between(*pair) == expected


def test_the_held_out_slowdown_comes_from_unseen_shapes() -> None:
    """Each shape has its own best candidate, so a tree that never saw the shape picks another."""
    shape = np.repeat(np.arange(10), 2)
    cost = np.where(np.arange(10)[None] == shape[:, None], 0.0, 1.0)
    slowdown = held_out_slowdown(shape[:, None], cost, shape, leaves=32)
    assert slowdown == (pytest.approx(np.e), 0)
    assert held_out_slowdown(shape[:, None], cost, np.zeros(20), leaves=32) is None


def test_complementing_adds_the_candidate_that_helps_most() -> None:
    """A candidate that runs on no problem is never added."""
    cost = np.array([[0.0, 0.1, 2.0, np.inf], [1.0, 0.9, 0.0, np.inf]])
    assert complementing(cost, 0, 2) == [0, 2]
    assert complementing(cost, 0, 9) == [0, 2, 1]


def depth(node: Node) -> int:
    return 0 if isinstance(node, Leaf) else 1 + max(depth(node.low), depth(node.high))


def test_trees_stay_shallower_than_pythons_indentation_limit() -> None:
    """These costs separate one problem at a time; Python refuses 100 levels of indentation."""
    sizes = np.arange(150)[:, None]
    cost = np.where(np.arange(2)[None] == np.arange(150)[:, None] % 2, 0.0, np.linspace(1, 100, 150)[:, None])
    assert depth(learn_tree(sizes, cost, 150)) < 90
