"""A decision tree over integers that chooses a candidate, learned in numpy from a table of costs.

``columns`` (problems, columns) are integers: sizes, and 0 or 1 for settings. ``cost`` (problems, candidates) is
log(time of the candidate / time of the problem's best), or infinite if the candidate does not run. A leaf's candidate
fails for the fewest problems of the leaf. If several do, the one with the smallest total cost is taken.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, isqrt, log, nan
from typing import NamedTuple

import numpy as np

FAILURE = 1e6
"""Cost of a candidate that does not run. It exceeds the sum of all other costs of a table."""
MIN_GAIN = 1e-6
"""Minimum gain of a split, in log time summed over problems. A smaller gain is rounding."""
MAX_PAIRS = 48
"""Number of first splits, evenly drawn, that are tried together with a second split. Single splits are all tried."""
MAX_DEPTH = 60
"""Maximum number of branches above a leaf. Python refuses more than 100 levels of indentation."""
FOLDS = 5
TIE = 1e-9
"""Weight of a candidate's total cost, which breaks ties between candidates with equal gains."""


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A leaf: its ``candidate`` (column of the costs), and ``rows``, the training problems that reach it."""

    candidate: int
    rows: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A branch: a problem goes to ``low`` if its ``column`` is at most ``threshold``, else to ``high``."""

    column: int
    threshold: int
    low: "Node"
    high: "Node"


Node = Leaf | Branch


class Slowdown(NamedTuple):
    """The slowdown of a choice over problems.

    ``factor`` is the geometric mean of time / best time over the problems that the choice runs (NaN if it runs none).
    ``failures`` is the number of the other problems.
    """

    factor: float
    failures: int

    @classmethod
    def of(cls, cost: np.ndarray, choice: np.ndarray) -> "Slowdown":
        """Return the slowdown of one candidate per problem, ``choice`` (problems,)."""
        own = cost[np.arange(len(cost)), choice]
        runs = np.isfinite(own)
        return cls(exp(own[runs].mean()) if runs.any() else nan, int((~runs).sum()))


class _Split(NamedTuple):
    """A split of rows: the column is at most ``lower`` on one side, and at least ``upper`` on the other.

    ``gain`` is the cost that the split saves.
    """

    gain: float
    column: int = 0
    lower: int = 0
    upper: int = 0


def learn(columns: np.ndarray, cost: np.ndarray, leaves: int) -> Node:
    """Return a tree with at most ``leaves`` leaves; each step splits the leaf with the largest gain.

    More leaves never cost more on the training problems, because the first splits are the same.
    """
    finite = np.where(np.isfinite(cost), cost, FAILURE)
    # Nodes are numbered as in a heap: the children of node i are 2i and 2i + 1.
    leaf_at = {1: _leaf(finite, np.arange(len(cost)))}
    splits: dict[int, _Split] = {}
    waiting = {1: _best_split(columns, finite, leaf_at[1].rows)}
    tree: Node = leaf_at[1]
    while waiting:
        node = max(waiting, key=lambda node: waiting[node].gain)
        split = splits[node] = waiting.pop(node)
        if split.gain <= MIN_GAIN:
            break
        is_low = columns[leaf_at[node].rows, split.column] <= split.lower
        for child, is_inside in ((2 * node, is_low), (2 * node + 1, ~is_low)):
            leaf_at[child] = _leaf(finite, leaf_at[node].rows[is_inside])
            if child.bit_length() <= MAX_DEPTH:
                waiting[child] = _best_split(columns, finite, leaf_at[child].rows)
        grown = _merged(1, splits, leaf_at)
        if len(leaves_of(grown)) > leaves:
            break
        tree = grown
    return tree


def _leaf(finite: np.ndarray, rows: np.ndarray) -> Leaf:
    return Leaf(int(finite[rows].sum(axis=0).argmin()), rows)


def _merged(node: int, splits: dict[int, _Split], leaf_at: dict[int, Leaf]) -> Node:
    """Return the tree below a node; two leaves with the same candidate become one leaf."""
    if node not in splits:
        return leaf_at[node]
    low, high = (_merged(child, splits, leaf_at) for child in (2 * node, 2 * node + 1))
    if isinstance(low, Leaf) and isinstance(high, Leaf) and low.candidate == high.candidate:
        return Leaf(low.candidate, leaf_at[node].rows)
    split = splits[node]
    return Branch(split.column, threshold_between(split.lower, split.upper), low, high)


def _best_split(columns: np.ndarray, finite: np.ndarray, rows: np.ndarray) -> _Split:
    """Return the split of the rows with the largest gain.

    A split counts with its own gain, or with half the gain of it and a second split, because an interval needs two. If
    no split gains anything and no candidate is best for all rows, the middle split is returned with a minimal gain.
    """
    options = list(_splits(columns, finite, rows))
    # If gains are equal up to rounding, the first column wins.
    best = max(options, key=lambda option: round(option.gain, 6), default=_Split(0.0))
    for option in options[:: -(-len(options) // MAX_PAIRS)] if options else ():
        is_low = columns[rows, option.column] <= option.lower
        seconds = (split for is_inside in (is_low, ~is_low) for split in _splits(columns, finite, rows[is_inside]))
        further = max((split.gain for split in seconds), default=0.0)
        if (option.gain + further) / 2 > best.gain + MIN_GAIN:
            best = option._replace(gain=(option.gain + further) / 2)
    if options and best.gain <= MIN_GAIN:
        best = options[len(options) // 2]._replace(gain=2 * MIN_GAIN)
    return best


def _splits(columns: np.ndarray, finite: np.ndarray, rows: np.ndarray) -> Iterator[_Split]:
    """Yield every split of the rows; no split if one candidate is best for all rows."""
    loss = finite[rows].sum(axis=0).min()
    for column in range(columns.shape[1]) if loss > MIN_GAIN else ():
        order = rows[columns[rows, column].argsort(kind="stable")]
        values = columns[order, column]
        ends = np.flatnonzero(values[1:] > values[:-1])
        # (rows, candidates) total cost of the first 1, 2, … rows. The column's value changes after each end.
        sums = finite[order].cumsum(axis=0)
        gains = loss - sums[ends].min(axis=1) - (sums[-1] - sums[ends]).min(axis=1)
        for end, gain in zip(ends.tolist(), gains.tolist(), strict=True):
            yield _Split(gain, column, int(values[end]), int(values[end + 1]))


def threshold_between(lower: int, upper: int) -> int:
    """Return an integer from ``lower`` to below ``upper`` with few binary digits, near their geometric mean.

    It is strictly between them if such an integer exists: between 512 and 1024 it is 768.
    """
    middle = min(max(isqrt(max(lower, 1) * upper), lower), upper - 1)
    for digits in range(1, middle.bit_length() + 1):
        step = 1 << (middle.bit_length() - digits)
        near = [number for number in (middle // step * step, (middle // step + 1) * step) if lower < number < upper]
        if near:
            return min(near, key=lambda number: abs(log(number / max(middle, 1))))
    return lower


def leaves_of(node: Node) -> list[Leaf]:
    """Return the leaves from left to right: the side up to a threshold comes first."""
    return [node] if isinstance(node, Leaf) else [*leaves_of(node.low), *leaves_of(node.high)]


def choices(node: Node, columns: np.ndarray) -> np.ndarray:
    """Return the candidate of each problem, (problems,)."""
    if isinstance(node, Leaf):
        return np.full(len(columns), node.candidate)
    is_low = columns[:, node.column] <= node.threshold
    return np.where(is_low, choices(node.low, columns), choices(node.high, columns))


def held_out_slowdown(columns: np.ndarray, cost: np.ndarray, shape: np.ndarray, leaves: int) -> Slowdown | None:
    """Return the slowdown on held-out shapes: each of `FOLDS` parts of the shapes is left out once.

    ``shape`` (problems,) is each problem's shape. Returns None if all problems have one shape.
    """
    _, code = np.unique(shape, return_inverse=True)
    count = int(code.max()) + 1
    if count < 2:
        return None
    fold = (np.random.default_rng(0).permutation(count) % FOLDS)[code]
    chosen = np.empty(len(cost), dtype=np.int64)
    for number in np.unique(fold):
        holdout = fold == number
        chosen[holdout] = choices(learn(columns[~holdout], cost[~holdout], leaves), columns[holdout])
    return Slowdown.of(cost, chosen)


def complementing(cost: np.ndarray, first: int, count: int) -> list[int]:
    """Return up to ``count`` candidates: ``first``, then one after another the candidate that adds most.

    A candidate adds the cost that it saves over the best chosen candidate, in sum over the problems of ``cost``
    (problems, candidates). Candidates that add equally much are ordered by their total cost. A candidate that runs for
    no problem is left out.
    """
    finite = np.where(np.isfinite(cost), cost, FAILURE)
    runs = np.isfinite(cost).any(axis=0)
    chosen = [first]
    for _ in range(min(count, int(runs.sum())) - 1):
        minimum = finite[:, chosen].min(axis=1, keepdims=True)
        loss = np.minimum(minimum, finite).sum(axis=0) + TIE * finite.sum(axis=0)
        loss[chosen] = loss[~runs] = np.inf
        chosen.append(int(loss.argmin()))
    return chosen
