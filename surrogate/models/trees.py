"""Boosted trees as plain arrays: what a bundle stores, and the numpy evaluator that answers single problems.

XGBoost fits the trees and scores tables; a handful of rows is answered sooner in numpy, by looking up for every column
which leaves its value rules out. Scores agree to the bit: leaves are added in the order of the trees, in float32.
"""

import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from surrogate.features.errors import InputError
from surrogate.models.plain import from_plain, to_plain
from surrogate.models.trend import Trend

if TYPE_CHECKING:
    from surrogate.models.calibrated import Correction
    from surrogate.models.neighbours import Neighbours

ARRAYS, FACTS = "trees.npz", "times.json"
"""The files of `BoostedTimes`."""
WORD_BITS = 64
LEAST_EXPONENT = 1022
"""Biased exponent of a float64 one less than that of 1.0."""
CHUNK_ROWS = 8
"""Rows whose words are combined at once, so that they stay in the cache."""
FEW_ROWS = 512
"""Rows in one call below which XGBoost's fixed cost, a microsecond a tree, is more than it saves."""
BOOSTER_ROWS = 8_192
"""Rows in all from which on an XGBoost booster of some trees is worth making."""
FOREST_ROWS = 64
"""Rows in all from which on a `Forest` of some trees is worth making: that takes as long as so many rows do."""
MOST_POSITIVE = np.int32(2**31 - 1)


@dataclass(frozen=True, slots=True)
class Trees:
    """All trees one after another, the root of each first and children behind their parents.

    ``feature`` (nodes,) the column that is compared; ``value`` (nodes,) float32 the threshold (``x < value`` goes left)
    or a leaf's score; ``left`` (nodes,) the position of the left child, behind which the right one stands, −1 at a
    leaf; ``missing_left`` (nodes,) whether NaN goes left; ``roots`` (trees,); ``base_score`` (1,) float32, to which
    leaves are added.
    """

    feature: np.ndarray
    value: np.ndarray
    left: np.ndarray
    missing_left: np.ndarray
    roots: np.ndarray
    base_score: np.ndarray

    @classmethod
    def from_booster(cls, content: bytes | bytearray) -> "Trees":
        """The trees of ``Booster.save_raw("json")``, none of which may split a categorical column."""
        learner = json.loads(content)["learner"]
        trees = learner["gradient_booster"]["model"]["trees"]
        sizes = [len(tree["left_children"]) for tree in trees]
        starts = np.cumsum([0, *sizes])
        shift = np.repeat(starts[:-1], sizes)

        def joined(name: str, dtype: type) -> np.ndarray:
            return np.concatenate([np.asarray(tree[name], dtype=dtype) for tree in trees])

        left = joined("left_children", np.int32)
        base = np.float32(str(learner["learner_model_param"]["base_score"]).strip("[]"))
        return cls(
            joined("split_indices", np.int32),
            joined("split_conditions", np.float32),
            np.where(left < 0, -1, left + shift).astype(np.int32),
            joined("default_left", np.bool_),
            starts[:-1].astype(np.int32),
            np.array([base]),
        )

    def to_bytes(self) -> bytes:
        """A NumPy archive of the arrays."""
        out = io.BytesIO()
        np.savez_compressed(out, **{part.name: getattr(self, part.name) for part in fields(self)})
        return out.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Trees":
        """What `to_bytes` wrote. Raises `InputError` for nodes that lead nowhere or back."""
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            trees = cls(*(archive[part.name] for part in fields(cls)))
        inner = np.flatnonzero(trees.left >= 0)
        left = trees.left[inner]
        forward = (left > inner).all() and (left + 1 < len(trees.left)).all()
        if not forward or trees.feature.min(initial=0) < 0 or not np.isfinite(trees.value[trees.left < 0]).all():
            raise InputError("the trees' nodes do not fit one another; the file is damaged")
        return trees

    def sums(self, x: np.ndarray) -> np.ndarray:
        """(rows,) float32 sums of the base score and the leaves of a few rows ``x`` (rows, columns) of float32."""
        rows, node = np.arange(len(x))[:, None], np.tile(self.roots, (len(x), 1))
        while (inner := self.left[node] >= 0).any():
            value = x[rows, self.feature[node]]
            goes_left = np.where(np.isnan(value), self.missing_left[node], value < self.value[node])
            node = np.where(inner, self.left[node] + ~goes_left, node)
        start = np.full((len(x), 1), self.base_score[0])
        return np.add.accumulate(np.hstack([start, self.value[node]]), axis=1, dtype=np.float32)[:, -1]

    def booster(self, columns: int) -> Any:
        """An XGBoost booster of these trees on ``columns`` columns, for one thread.

        A booster of one leaf is what its JSON is filled into, so that XGBoost itself says what else belongs there.
        """
        import xgboost

        booster = xgboost.train({"nthread": 1}, xgboost.DMatrix(np.zeros((1, columns)), np.zeros(1)), 1)
        content = json.loads(booster.save_raw("json"))
        learner = content["learner"]
        model = learner["gradient_booster"]["model"]
        (leaf,) = model["trees"]
        trees = []
        for number, (start, end) in enumerate(pairwise([*self.roots.tolist(), len(self.feature)])):
            left, count = np.where(self.left[start:end] < 0, -1, self.left[start:end] - start), end - start
            inner = np.flatnonzero(left >= 0)
            parents = np.full(count, 2**31 - 1)
            parents[left[inner]] = parents[left[inner] + 1] = inner
            tree = {
                "id": number,
                "left_children": left.tolist(),
                "right_children": np.where(left < 0, -1, left + 1).tolist(),
                "parents": parents.tolist(),
                "split_conditions": self.value[start:end].astype(np.float64).tolist(),
                "split_indices": self.feature[start:end].tolist(),
                "split_type": [0] * count,
                "default_left": self.missing_left[start:end].astype(np.int64).tolist(),
                **dict.fromkeys(("base_weights", "loss_changes", "sum_hessian"), [0.0] * count),
                "tree_param": leaf["tree_param"] | {"num_nodes": str(count)},
            }
            trees.append(leaf | tree)
        model["gbtree_model_param"]["num_trees"] = str(len(trees))
        model |= {"trees": trees, "tree_info": [0] * len(trees), "iteration_indptr": list(range(len(trees) + 1))}
        learner["learner_model_param"]["base_score"] = f"[{float(self.base_score[0])!r}]"
        booster.load_model(bytearray(json.dumps(content).encode()))
        return booster

    def specialise(self, varying: Sequence[int], constant: Mapping[int, float]) -> "Trees":
        """The trees where the columns of ``constant`` have these values: splits that they decide are cut out.

        ``varying`` are the other columns (−1: one that no tree knows), in the order in which they will come. Raises
        `ValueError` where a column is neither.
        """
        # 1. Every node stands for the first undecided one below it.
        goal = np.arange(len(self.feature))
        for column, number in constant.items():
            x, nodes = np.float32(number), np.flatnonzero((self.left >= 0) & (self.feature == column))
            to_left = self.missing_left[nodes] if np.isnan(x) else x < self.value[nodes]
            goal[nodes] = self.left[nodes] + ~to_left
        while not np.array_equal(further := goal[goal], goal):
            goal = further
        # 2. What the roots still reach is kept: tree by tree, siblings side by side.
        levels, owners = [goal[self.roots]], [np.arange(len(self.roots))]
        while (inner := self.left[levels[-1]] >= 0).any():
            left = self.left[levels[-1][inner]]
            levels.append(np.column_stack([goal[left], goal[left + 1]]).ravel())
            owners.append(np.repeat(owners[-1][inner], 2))
        nodes = np.concatenate(levels)[np.argsort(np.concatenate(owners), kind="stable")]
        number_of = np.empty(len(goal), dtype=np.int64)
        number_of[nodes] = np.arange(len(nodes))
        leaf = self.left[nodes] < 0
        # 3. Columns by their new positions.
        position = np.full(int(self.feature.max(initial=0)) + 1, -1)
        for new_position, column in enumerate(varying):
            if 0 <= column < len(position):
                position[column] = new_position
        feature = np.where(leaf, 0, position[self.feature[nodes]])
        if (feature < 0).any():
            raise ValueError("a column of the trees is neither varying nor constant")
        return Trees(
            feature,
            self.value[nodes],
            np.where(leaf, -1, number_of[goal[self.left[nodes]]]),
            self.missing_left[nodes],
            number_of[goal[self.roots]],
            self.base_score,
        )


class ReadyTrees:
    """Trees with everything cut out that the columns of ``constant`` decide, asked as an XGBoost booster is.

    ``varying`` as in `Trees.specialise`. Each form of the trees is made when it is first needed: few rows are answered
    sooner in numpy, by the trees as they stand and, once there were many, by their `Forest`; tables by XGBoost.
    """

    def __init__(
        self, trees: Callable[[], Trees], varying: Sequence[int], constant: Mapping[int, float] = MappingProxyType({})
    ) -> None:
        self._stored, self._varying, self._constant = trees, varying, constant
        self._rows = 0

    @cached_property
    def _trees(self) -> Trees:
        return self._stored().specialise(self._varying, self._constant)

    @cached_property
    def _forest(self) -> "Forest":
        return Forest.of(self._trees, len(self._varying))

    @cached_property
    def _booster(self) -> Any:
        return self._trees.booster(len(self._varying))

    def inplace_predict(self, x: np.ndarray, shared: int = 0, problem: np.ndarray | None = None) -> np.ndarray:
        """(rows,) float32 sums of the trees for ``x`` (rows, columns) of float32.

        The first ``shared`` columns of ``x`` are those of each row's ``problem`` (rows,), by default of all rows.
        """
        self._rows += len(x)
        if len(x) >= FEW_ROWS and (self._rows >= BOOSTER_ROWS or "xgboost" in sys.modules):
            return self._booster.inplace_predict(x)
        return self._trees.sums(x) if self._rows < FOREST_ROWS else self._forest.predict(x, shared, problem)


@dataclass(frozen=True, slots=True)
class BoostedTimes:
    """A fitted model as arrays: (roofline · 2^(``own_weight`` · own roofline column) + call) · exp(trees + trend) µs.

    ``columns`` are the trees' columns by name, behind which comes the candidate's code;
    ``codes`` candidate (as `Rows.candidate` names it) → code; ``call_us`` ``gpu|library``, ``|library`` or "" → a
    call's fixed cost in µs; ``trend`` goes on outside the range that training saw (None: nothing does);
    ``corrections`` device → what a calibration multiplies its times by; ``neighbours`` measured times that count beside
    the trees.
    """

    trees: Trees
    columns: tuple[str, ...]
    codes: Mapping[str, int]
    own_weight: float = 0.0
    call_us: Mapping[str, float] = field(default_factory=dict)
    trend: Trend | None = None
    corrections: "Mapping[str, Correction]" = field(default_factory=dict)
    neighbours: "Neighbours | None" = None

    def to_files(self) -> dict[str, bytes]:
        """The arrays, and the rest as JSON."""
        facts: dict[str, Any] = {name: getattr(self, name) for name in ("columns", "codes", "own_weight", "call_us")}
        facts["trend"] = to_plain(self.trend)
        return {ARRAYS: self.trees.to_bytes(), FACTS: json.dumps(facts, sort_keys=True).encode()}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> "BoostedTimes":
        """What `to_files` wrote."""
        facts = json.loads(files[FACTS])
        trees = Trees.from_bytes(files[ARRAYS])
        trend = from_plain(Trend | None, facts["trend"])
        return cls(trees, tuple(facts["columns"]), facts["codes"], facts["own_weight"], facts["call_us"], trend)


def call_cost_us(call_us: Mapping[str, float], gpu: str, library: str) -> float:
    """The fixed cost of a call in µs on a GPU, else of the library, else of any; 0 where none is known."""
    keys = (f"{gpu}|{library}", f"|{library}", "")
    return next((call_us[key] for key in keys if key in call_us), 0.0)


@dataclass(frozen=True, slots=True)
class Forest:
    """Trees ready to be asked about a few rows: for each column, the leaves that a value of it leaves over.

    The leaves of a tree are bits, in words of 64; a row's leaves are the bits that all of its columns leave, one in
    each tree. ``keys`` (keys,) sorted int64 are the columns' thresholds, each column's in order and then NaN;
    ``remaining`` (keys + columns, words) uint64 the leaves left by a value below the first threshold of a column, by
    one between each two of them, and by NaN; ``leaves`` (words · 65,) float32 the score of no bit, then of each bit;
    ``first_leaf`` (words,) where a word's scores begin, less `LEAST_EXPONENT`.
    Source: Lucchese et al. 2015, "QuickScorer: a fast algorithm to rank documents with additive ensembles of regression
    trees", here with the words of all thresholds below a value combined in advance.
    """

    keys: np.ndarray
    remaining: np.ndarray
    leaves: np.ndarray
    first_leaf: np.ndarray
    base_score: np.float32

    @classmethod
    def of(cls, trees: Trees, columns: int) -> "Forest":
        """Of trees on ``columns`` columns."""
        # 1. Numbers of leaves below every node, from the last level up; then the first of them, from the roots down.
        levels = [trees.roots]
        while len(level := levels[-1][trees.left[levels[-1]] >= 0]):
            levels.append(np.concatenate([trees.left[level], trees.left[level] + 1]))
        count = (trees.left < 0).astype(np.int64)
        for nodes in reversed(levels):
            nodes = nodes[trees.left[nodes] >= 0]
            count[nodes] = count[trees.left[nodes]] + count[trees.left[nodes] + 1]
        words = -(-count[trees.roots] // WORD_BITS)
        first = np.zeros(len(count), dtype=np.int64)
        first[trees.roots] = (np.cumsum(words) - words) * WORD_BITS
        for nodes in levels:
            nodes = nodes[trees.left[nodes] >= 0]
            first[trees.left[nodes]] = first[nodes]
            first[trees.left[nodes] + 1] = first[nodes] + count[trees.left[nodes]]
        # 2. The distinct thresholds of every column, and for each split the row of `remaining` from which it is true.
        inner = np.flatnonzero(trees.left >= 0)
        left = trees.left[inner]
        split_keys = _keys(trees.feature[inner], trees.value[inner])
        column_numbers = np.arange(columns)
        missing_keys = _keys(column_numbers, np.full(columns, np.nan, dtype=np.float32))
        keys = np.unique(np.concatenate([split_keys, missing_keys]))
        row = np.searchsorted(keys, split_keys, side="right") + trees.feature[inner]
        missing_row = np.searchsorted(keys, missing_keys, side="right") + column_numbers
        # 3. A split that is true rules out its left leaves from its row on, else its right ones in the rows before.
        total = int(words.sum())
        after = np.full((len(keys) + columns, total), ~np.uint64(0))
        before = after.copy()
        _rule_out(after, row, left, first, count)
        _rule_out(before, row - 1, left + 1, first, count)
        for start, end in pairwise([0, *(missing_row + 1).tolist()]):
            np.bitwise_and.accumulate(after[start : end - 1], axis=0, out=after[start : end - 1])
            backwards = before[start : end - 1][::-1]
            np.bitwise_and.accumulate(backwards, axis=0, out=backwards)
        lost = left + trees.missing_left[inner]
        _rule_out(after, missing_row[trees.feature[inner]], lost, first, count)
        after &= before
        # 4. Scores of the leaves by their bits; bits of no leaf never stand in a word.
        leaf = np.flatnonzero(trees.left < 0)
        bits = np.zeros(total, dtype=np.uint64)
        word, bit = np.divmod(first[leaf], WORD_BITS)
        np.bitwise_or.at(bits, word, np.uint64(1) << bit.astype(np.uint64))
        after &= bits
        leaves = np.zeros(total * (WORD_BITS + 1), dtype=np.float32)
        leaves[word * (WORD_BITS + 1) + bit + 1] = trees.value[leaf]
        first_leaf = np.arange(total) * (WORD_BITS + 1) - LEAST_EXPONENT
        return cls(keys, after, leaves, first_leaf, trees.base_score[0])

    def predict(self, x: np.ndarray, shared: int = 0, group: np.ndarray | None = None) -> np.ndarray:
        """(rows,) float32 sums of the base score and the leaves of float32 ``x`` (rows, columns).

        The first ``shared`` columns hold the same values in all rows of one ``group`` (rows,), by default in all rows.
        """
        # 1. Where every value lies among the thresholds of its column.
        columns = np.arange(x.shape[1])
        position = np.searchsorted(self.keys, _keys(columns, x), side="right") + columns
        # 2. The leaves that all columns leave over: of the shared columns once a group, then of the others.
        left_over = self._left_over(position[:, shared:])
        if group is None:
            left_over &= self._left_over(position[:1, :shared])
        else:
            _, first, number = np.unique(group, return_index=True, return_inverse=True)
            left_over &= self._left_over(position[first, :shared])[number]
        # 3. The one bit in a word is the exponent of the word as a float64.
        position = left_over.astype(np.float64).view(np.int64)
        position >>= 52
        np.maximum(position, LEAST_EXPONENT, out=position)
        position += self.first_leaf
        # 4. Leaves are added one tree after another.
        scores = np.empty((len(x), left_over.shape[1] + 1), dtype=np.float32)
        scores[:, 0] = self.base_score
        scores[:, 1:] = self.leaves[position]
        return np.add.accumulate(scores, axis=1)[:, -1]

    def _left_over(self, position: np.ndarray) -> np.ndarray:
        """(rows, words) the bits that are in all words at ``position`` (rows, columns) of ``remaining``."""
        left_over = np.empty((len(position), self.remaining.shape[1]), dtype=np.uint64)
        for start in range(0, len(position), CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            np.bitwise_and.reduce(self.remaining[position[rows]], axis=1, out=left_over[rows])
        return left_over


def _keys(column: np.ndarray, value: np.ndarray) -> np.ndarray:
    """int64 that are in the order of columns first, then of float32 values; NaN stands behind all numbers."""
    # The bits of floats are in the order of the floats; those of negative ones are in reverse order.
    bits = (value + np.float32(0)).view(np.int32)
    ordered = bits ^ ((bits >> 31) & MOST_POSITIVE)
    if np.isnan(value.ravel().dot(value.ravel())):
        ordered[np.isnan(value)] = MOST_POSITIVE
    return (column.astype(np.int64) << 32) + ordered


def _rule_out(remaining: np.ndarray, row: np.ndarray, node: np.ndarray, first: np.ndarray, count: np.ndarray) -> None:
    """Clear in ``remaining`` (rows, words) at each ``row`` the bits of the leaves below each ``node``."""
    start, end = first[node], first[node] + count[node]
    word = start // WORD_BITS
    while len(word):
        low = np.maximum(start - word * WORD_BITS, 0).astype(np.uint64)
        high = np.minimum(end - word * WORD_BITS, WORD_BITS).astype(np.uint64)
        all_bits = ~np.uint64(0)
        mask = (all_bits << low) & (all_bits >> (np.uint64(WORD_BITS) - high))
        np.bitwise_and.at(remaining, (row, word), ~mask)
        more = end > (word + 1) * WORD_BITS
        row, start, end, word = row[more], start[more], end[more], word[more] + 1
