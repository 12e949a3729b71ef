"""A decision tree over whole numbers that says which candidate to run: learned from a table of costs, in numpy.

``columns`` (problems, columns) are whole numbers: sizes, and 0 or 1 for what is no number. ``cost`` (problems,
candidates) is log(time of the candidate / time of the problem's best), infinite where the candidate does not run. A
leaf's candidate is the one that fails for the fewest of its problems, of several the one with the least cost in sum.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, isqrt, log, nan
from typing import NamedTuple

import numpy as np

FAILURE = 1e6
"""What counts as the cost of a candidate that does not run: more than all other costs of a table in sum."""
LEAST_GAIN = 1e-6
"""Of a split, in log time summed over problems: less is rounding."""
MOST_THRESHOLDS = 12
"""Of a column, after which a second split is looked for at once; every threshold is tried for a single split."""
MOST_DEPTH = 60
"""Branches on the way to a leaf: Python refuses more than 100 levels of indentation."""
FOLDS = 5


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
    """Rows whose column is at most ``lower`` are parted from those that have ``upper`` or more. ``rate`` is the gain,
    the loss that it saves, for each leaf that it adds."""

    rate: float
    column: int = 0
    lower: int = 0
    upper: int = 0


def learn(columns: np.ndarray, cost: np.ndarray, leaves: int) -> Node:
    """The tree, of at most ``leaves`` leaves, which are split one after the other where that saves most.

    More leaves never cost more on the problems that it is learned from: the same splits come first.
    """
    finite = np.where(np.isfinite(cost), cost, FAILURE)
    # Nodes are numbered as in a heap: those below node i are 2i and 2i + 1.
    rows = {1: np.arange(len(cost))}
    splits: dict[int, _Split] = {}
    waiting = {1: _best_split(columns, finite, rows[1])}
    while waiting and len(splits) + 1 < leaves:
        node = max(waiting, key=lambda node: waiting[node].rate)
        split = waiting.pop(node)
        if split.rate <= LEAST_GAIN:
            break
        splits[node] = split
        is_low = columns[rows[node], split.column] <= split.lower
        for child, part in ((2 * node, rows[node][is_low]), (2 * node + 1, rows[node][~is_low])):
            rows[child] = part
            if child.bit_length() <= MOST_DEPTH:
                waiting[child] = _best_split(columns, finite, part)
    return _node(1, splits, rows, finite)


def _node(number: int, splits: dict[int, _Split], rows: dict[int, np.ndarray], finite: np.ndarray) -> Node:
    """The part of a tree from a node on; two leaves with one candidate become one."""
    split = splits.get(number)
    if split is None:
        return Leaf(int(finite[rows[number]].sum(axis=0).argmin()), rows[number])
    low, high = (_node(child, splits, rows, finite) for child in (2 * number, 2 * number + 1))
    if isinstance(low, Leaf) and isinstance(high, Leaf) and low.candidate == high.candidate:
        return Leaf(low.candidate, rows[number])
    return Branch(split.column, threshold_between(split.lower, split.upper), low, high)


def _best_split(columns: np.ndarray, finite: np.ndarray, rows: np.ndarray) -> _Split:
    """The split of some rows with the highest rate, looking one split further: an interval needs two of them."""
    loss = float(finite[rows].sum(axis=0).min())
    if loss <= LEAST_GAIN:
        return _Split(0.0)
    options = list(_splits(columns, finite, rows))
    # Of equal gains the first column's is taken, whatever rounding did.
    best = max((option for _, option, _, _ in options), key=lambda option: round(option.rate, 6), default=_Split(0.0))
    thresholds = Counter(option.column for _, option, _, _ in options)
    for place, option, low_loss, high_loss in options:
        if place % -(-thresholds[option.column] // MOST_THRESHOLDS):
            continue
        is_low = columns[rows, option.column] <= option.lower
        # Either part is split once more: the other's loss stays.
        after = min(
            other + part_loss - max((further.rate for _, further, _, _ in _splits(columns, finite, part)), default=0.0)
            for part, part_loss, other in ((rows[is_low], low_loss, high_loss), (rows[~is_low], high_loss, low_loss))
        )
        if (loss - after) / 2 > best.rate + LEAST_GAIN:
            best = option._replace(rate=(loss - after) / 2)
    return best


def _splits(columns: np.ndarray, finite: np.ndarray, rows: np.ndarray) -> Iterator[tuple[int, _Split, float, float]]:
    """Every split of some rows with its place among its column's, and the losses of both parts."""
    for column in range(columns.shape[1]):
        values = columns[rows, column]
        order = values.argsort(kind="stable")
        values = values[order]
        ends = np.flatnonzero(values[1:] > values[:-1])
        if not len(ends):
            continue
        # (rows, candidates) cost of the first 1, 2, … rows in sum; behind each end the values differ.
        sums = finite[rows[order]].cumsum(axis=0)
        low = sums[ends].min(axis=1)
        high = (sums[-1] - sums[ends]).min(axis=1)
        gain = sums[-1].min() - low - high
        for place, end in enumerate(ends.tolist()):
            split = _Split(float(gain[place]), column, int(values[end]), int(values[end + 1]))
            yield place, split, float(low[place]), float(high[place])


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
    chosen = np.empty(len(columns), dtype=np.int64)
    for part, child in ((is_low, node.low), (~is_low, node.high)):
        chosen[part] = choices(child, columns[part])
    return chosen


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

    ``cost`` (problems, candidates); what runs for no problem is left out.
    """
    finite = np.where(np.isfinite(cost), cost, FAILURE)
    total = finite.sum(axis=0)
    chosen = [first]
    while len(chosen) < min(count, cost.shape[1]):
        least = finite[:, chosen].min(axis=1)
        # What adds nothing comes in the order of its own cost.
        loss = np.minimum(least[:, None], finite).sum(axis=0) + 1e-9 * total
        loss[chosen] = np.inf
        loss[~np.isfinite(cost).any(axis=0)] = np.inf
        if not np.isfinite(loss.min()):
            break
        chosen.append(int(loss.argmin()))
    return chosen
