"""A decision tree over whole numbers that says which candidate to run: learned from a table of costs, in numpy.

``columns`` (problems, columns) are whole numbers: sizes, and 0 or 1 for what is no number. ``cost`` (problems,
candidates) is log(time of the candidate / time of the problem's best), infinite where the candidate does not run. A
leaf's candidate is the one that fails for the fewest of its problems, of several the one with the least cost in sum.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, isqrt, log, nan
from typing import NamedTuple

import numpy as np

FAILURE = 1e6
"""What counts as the cost of a candidate that does not run: more than all other costs of a table in sum."""
MIN_GAIN = 1e-6
"""Of a split, in log time summed over problems: less is rounding."""
MAX_PAIRS = 48
"""Splits after which a further one is looked for at once, evenly drawn; alone every split is tried."""
MAX_DEPTH = 60
"""Branches on the way to a leaf: Python refuses more than 100 levels of indentation."""
FOLDS = 5
TIE = 1e-9
"""Weight of a candidate's own cost beside what it adds to others."""


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """``candidate`` (its column of the costs) is run for all problems that come here, of the listed ones ``rows``."""

    candidate: int
    rows: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """Problems whose ``column`` is at most ``threshold`` go on at ``low``, others at ``high``."""

    column: int
    threshold: int
    low: "Node"
    high: "Node"


Node = Leaf | Branch


class Slowdown(NamedTuple):
    """``factor``: geometric mean of time / best time over the problems that the choice runs (NaN: none); ``failures``
    counts the others."""

    factor: float
    failures: int

    @classmethod
    def of(cls, cost: np.ndarray, choice: np.ndarray) -> "Slowdown":
        """Of one candidate for each problem, ``choice`` (problems,)."""
        own = cost[np.arange(len(cost)), choice]
        runs = np.isfinite(own)
        return cls(exp(own[runs].mean()) if runs.any() else nan, int((~runs).sum()))


class _Split(NamedTuple):
    """Rows whose column is at most ``lower`` are parted from those that have ``upper`` or more.

    ``gain`` is the loss that it saves.
    """

    gain: float
    column: int = 0
    lower: int = 0
    upper: int = 0


def learn(columns: np.ndarray, cost: np.ndarray, leaves: int) -> Node:
    """The tree, of at most ``leaves`` leaves, which are split one after the other where that saves most.

    More leaves never cost more on the problems that it is learned from: the same splits come first.
    """
    finite = np.where(np.isfinite(cost), cost, FAILURE)
    # Nodes are numbered as in a heap: those below node i are 2i and 2i + 1.
    known = {1: _leaf(finite, np.arange(len(cost)))}
    splits: dict[int, _Split] = {}
    waiting = {1: _best_split(columns, finite, known[1].rows)}
    tree: Node = known[1]
    while waiting:
        node = max(waiting, key=lambda node: waiting[node].gain)
        split = splits[node] = waiting.pop(node)
        if split.gain <= MIN_GAIN:
            break
        is_low = columns[known[node].rows, split.column] <= split.lower
        for child, part in ((2 * node, is_low), (2 * node + 1, ~is_low)):
            known[child] = _leaf(finite, known[node].rows[part])
            if child.bit_length() <= MAX_DEPTH:
                waiting[child] = _best_split(columns, finite, known[child].rows)
        grown = _merged(1, splits, known)
        if len(leaves_of(grown)) > leaves:
            break
        tree = grown
    return tree


def _leaf(finite: np.ndarray, rows: np.ndarray) -> Leaf:
    return Leaf(int(finite[rows].sum(axis=0).argmin()), rows)


def _merged(node: int, splits: dict[int, _Split], known: dict[int, Leaf]) -> Node:
    """The tree from a node on; two leaves with one candidate become one."""
    if node not in splits:
        return known[node]
    low, high = (_merged(child, splits, known) for child in (2 * node, 2 * node + 1))
    if isinstance(low, Leaf) and isinstance(high, Leaf) and low.candidate == high.candidate:
        return Leaf(low.candidate, known[node].rows)
    split = splits[node]
    return Branch(split.column, threshold_between(split.lower, split.upper), low, high)


def _best_split(columns: np.ndarray, finite: np.ndarray, rows: np.ndarray) -> _Split:
    """The split of some rows that gains most, alone or, counted as half, with a further one: an interval needs two.

    Where neither gains anything, though no candidate serves all rows best, the middle one comes last of all.
    """
    options = list(_splits(columns, finite, rows))
    # Of equal gains the first column's is taken, whatever rounding did.
    best = max(options, key=lambda option: round(option.gain, 6), default=_Split(0.0))
    for option in options[:: -(-len(options) // MAX_PAIRS)] if options else ():
        is_low = columns[rows, option.column] <= option.lower
        further = max(_max_gain(columns, finite, rows[part]) for part in (is_low, ~is_low))
        if (option.gain + further) / 2 > best.gain + MIN_GAIN:
            best = option._replace(gain=(option.gain + further) / 2)
    if options and best.gain <= MIN_GAIN:
        best = options[len(options) // 2]._replace(gain=2 * MIN_GAIN)
    return best


def _max_gain(columns: np.ndarray, finite: np.ndarray, rows: np.ndarray) -> float:
    return max((split.gain for split in _splits(columns, finite, rows)), default=0.0)


def _splits(columns: np.ndarray, finite: np.ndarray, rows: np.ndarray) -> Iterator[_Split]:
    """Every split of some rows; none of rows that one candidate serves best."""
    loss = finite[rows].sum(axis=0).min()
    for column in range(columns.shape[1]) if loss > MIN_GAIN else ():
        order = rows[columns[rows, column].argsort(kind="stable")]
        values = columns[order, column]
        ends = np.flatnonzero(values[1:] > values[:-1])
        # (rows, candidates) cost of the first 1, 2, … rows in sum; behind each end the values differ.
        sums = finite[order].cumsum(axis=0)
        gains = loss - sums[ends].min(axis=1) - (sums[-1] - sums[ends]).min(axis=1)
        for end, gain in zip(ends.tolist(), gains.tolist(), strict=True):
            yield _Split(gain, column, int(values[end]), int(values[end + 1]))


def threshold_between(lower: int, upper: int) -> int:
    """A whole number from ``lower`` to below ``upper`` that reads well: few binary digits, about their geometric mean.

    Strictly between where there is such a number: between 512 and 1024 it is 768.
    """
    middle = min(max(isqrt(max(lower, 1) * upper), lower), upper - 1)
    for digits in range(1, middle.bit_length() + 1):
        step = 1 << (middle.bit_length() - digits)
        near = [number for number in (middle // step * step, (middle // step + 1) * step) if lower < number < upper]
        if near:
            return min(near, key=lambda number: abs(log(number / max(middle, 1))))
    return lower


def leaves_of(node: Node) -> list[Leaf]:
    """The leaves from left to right: what is at most a threshold comes first."""
    return [node] if isinstance(node, Leaf) else [*leaves_of(node.low), *leaves_of(node.high)]


def choices(node: Node, columns: np.ndarray) -> np.ndarray:
    """(problems,) the candidate of each problem."""
    if isinstance(node, Leaf):
        return np.full(len(columns), node.candidate)
    is_low = columns[:, node.column] <= node.threshold
    return np.where(is_low, choices(node.low, columns), choices(node.high, columns))


def held_out_slowdown(columns: np.ndarray, cost: np.ndarray, shape: np.ndarray, leaves: int) -> Slowdown | None:
    """Of trees that never saw a problem's ``shape`` (problems,): of `FOLDS` parts of the shapes each is left out once.

    None where all problems have one shape.
    """
    _, code = np.unique(shape, return_inverse=True)
    count = int(code.max()) + 1
    if count < 2:
        return None
    fold = (np.random.default_rng(0).permutation(count) % FOLDS)[code]
    chosen = np.empty(len(cost), dtype=np.int64)
    for number in np.unique(fold):
        held = fold == number
        chosen[held] = choices(learn(columns[~held], cost[~held], leaves), columns[held])
    return Slowdown.of(cost, chosen)


def complementing(cost: np.ndarray, first: int, count: int) -> list[int]:
    """Up to ``count`` candidates, ``first`` and those that lower the cost of the best of all most, one after another.

    ``cost`` (problems, candidates); what runs for no problem is left out. What adds nothing comes by its own cost.
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
