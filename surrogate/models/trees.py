"""Boosted trees as plain arrays: what a bundle stores, and the numpy evaluator that answers single problems.

XGBoost fits the trees and scores tables; a handful of rows is answered sooner in numpy, by looking up for every column
which leaves its value rules out. Scores agree to the bit: leaves are added in the order of the trees, in float32.
"""

import io
import json
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from surrogate.features.errors import InputError
from surrogate.models.plain import REMEDY, reading

if TYPE_CHECKING:
    from xgboost import Booster

WORD_BITS = 64
LEAST_EXPONENT = 1022
"""Biased exponent of a float64 one less than that of 1.0."""
CHUNK_ROWS = 8
"""Rows whose words are combined at once, so that they stay in the cache."""
FEW_ROWS = 128
"""Rows in one call below which XGBoost's fixed cost, a microsecond a tree, is more than it saves."""
TABLE_ROWS = 512
"""Rows in one call that an XGBoost booster is made for, if XGBoost is loaded."""
BOOSTER_ROWS = 8_192
"""Rows in all that it is made for, and XGBoost loaded."""
FOREST_ROWS = 64
"""Rows in all from which on a `Forest` of some trees is worth making: that takes as long as so many rows do."""
MOST_BYTES = 16 << 20
"""Of an array of stored trees: four million nodes."""
MOST_NODES = 1 << 14
"""Of one tree, which bounds its depth, too."""
MOST_COLUMNS = 1 << 16
MOST_SCORE = 100.0
"""Of one leaf, in log time."""
MOST_FOREST_BYTES = 512 << 20
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
            feature=joined("split_indices", np.int32),
            value=joined("split_conditions", np.float32),
            left=np.where(left < 0, -1, left + shift).astype(np.int32),
            missing_left=joined("default_left", np.bool_),
            roots=starts[:-1].astype(np.int32),
            base_score=np.array([base]),
        )

    def to_bytes(self) -> bytes:
        """A NumPy archive of the arrays."""
        out = io.BytesIO()
        np.savez_compressed(out, **{part.name: getattr(self, part.name) for part in fields(self)})
        return out.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Trees":
        """What `to_bytes` wrote. Raises `InputError` for arrays that are no such trees, or too large for any answer."""
        with reading("trees"), zipfile.ZipFile(io.BytesIO(content)) as archive:
            # A read of a number of bytes unpacks no more, whatever the archive declares.
            files = (archive.open(f"{part.name}.npy").read(MOST_BYTES) for part in fields(cls))
            trees = cls(*(np.lib.format.read_array(io.BytesIO(file), allow_pickle=False) for file in files))
            if not trees._is_sound():
                raise InputError("the nodes do not fit one another; the file is damaged")
        return trees

    def _is_sound(self) -> bool:
        """Whether every row reaches one leaf in each tree, in steps that end, and no score is beyond all reason."""
        # 1. The types and lengths that are documented.
        arrays = [getattr(self, part.name) for part in fields(self)]
        lengths = [self.left.size] * 4 + [self.roots.size, 1]
        if [(array.dtype.kind, array.shape) for array in arrays] != [*zip("ifibif", zip(lengths), strict=True)]:
            return False
        # 2. Trees lie one after another; a node's children lie behind it in its tree, and are no other node's.
        sizes = np.diff(self.roots, append=self.left.size)
        if not len(sizes) or self.roots[0] or sizes.min() < 1 or sizes.max() > MOST_NODES:
            return False
        is_leaf = self.left < 0
        inner = np.flatnonzero(~is_leaf)
        left = self.left[inner]
        if (
            self.left.min() < -1
            or not ((inner < left) & (left < np.repeat(self.roots + sizes - 1, sizes)[inner])).all()
        ):
            return False
        is_left = np.zeros(self.left.size, dtype=bool)
        is_left[left] = True
        shared = np.count_nonzero(is_left) < len(left) or (is_left[1:] & is_left[:-1]).any()
        lost = 2 * len(left) + len(sizes) != self.left.size
        # 3. Columns, thresholds and scores.
        columns = self.feature.min() >= 0 and self.feature.max() < MOST_COLUMNS
        score = max(np.abs(self.value[is_leaf]).max(), np.abs(self.base_score[0]))
        return bool(not (shared or lost) and columns and np.isfinite(self.value).all() and score <= MOST_SCORE)

    def sums(self, x: np.ndarray) -> np.ndarray:
        """(rows,) float32 sums of the base score and the leaves of a few rows ``x`` (rows, columns) of float32."""
        # Every row walks down all trees at once: ``node`` (rows, trees) is where it stands; at a leaf it stays.
        rows = np.arange(len(x))[:, None]
        node = np.tile(self.roots, (len(x), 1))
        while (inner := self.left[node] >= 0).any():
            value = x[rows, self.feature[node]]
            goes_left = np.where(np.isnan(value), self.missing_left[node], value < self.value[node])
            node = np.where(inner, self.left[node] + ~goes_left, node)
        start = np.full((len(x), 1), self.base_score[0])
        return np.add.accumulate(np.hstack([start, self.value[node]]), axis=1, dtype=np.float32)[:, -1]

    def booster(self, columns: int) -> "Booster":
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
            # Positions count from the tree's root, and a node knows its parent (a root: the largest number).
            count = end - start
            left = np.where(self.left[start:end] < 0, -1, self.left[start:end] - start)
            inner = np.flatnonzero(left >= 0)
            parents = np.full(count, 2**31 - 1)
            parents[left[inner]] = parents[left[inner] + 1] = inner
            arrays = {
                "left_children": left,
                "right_children": np.where(left < 0, -1, left + 1),
                "parents": parents,
                "split_conditions": self.value[start:end].astype(np.float64),
                "split_indices": self.feature[start:end],
                "split_type": np.zeros(count, dtype=np.int64),
                "default_left": self.missing_left[start:end].astype(int),
                **dict.fromkeys(("base_weights", "loss_changes", "sum_hessian"), np.zeros(count)),
            }
            lists = {name: values.tolist() for name, values in arrays.items()}
            trees.append({**leaf, **lists, "id": number, "tree_param": leaf["tree_param"] | {"num_nodes": str(count)}})
        model["gbtree_model_param"]["num_trees"] = str(len(trees))
        model |= {"trees": trees, "tree_info": [0] * len(trees), "iteration_indptr": list(range(len(trees) + 1))}
        learner["learner_model_param"]["base_score"] = f"[{float(self.base_score[0])!r}]"
        booster.load_model(bytearray(json.dumps(content).encode()))
        return booster

    def specialise(self, varying: Sequence[int], constant: Mapping[int, float]) -> "Trees":
        """The trees where the columns of ``constant`` have these values: splits that they decide are cut out.

        ``varying`` are the other columns (−1: one that no tree knows), in the order in which they will come. Raises
        `InputError` where a column is neither.
        """
        # 1. Every node stands for the first undecided one below it.
        goal = np.arange(len(self.feature))
        for column, number in constant.items():
            x = np.float32(number)
            nodes = np.flatnonzero((self.left >= 0) & (self.feature == column))
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
            raise InputError(f"a column of the trees is neither varying nor constant; {REMEDY}")
        return Trees(
            feature=feature,
            value=self.value[nodes],
            left=np.where(leaf, -1, number_of[goal[self.left[nodes]]]),
            missing_left=self.missing_left[nodes],
            roots=number_of[goal[self.roots]],
            base_score=self.base_score,
        )


class ReadyTrees:
    """Trees with everything cut out that the columns of ``constant`` decide, asked as an XGBoost booster is.

    ``varying`` as in `Trees.specialise`. Each form of the trees is made when it is first needed: few rows are answered
    sooner in numpy, by the trees as they stand and, once there were many, by their `Forest`; tables by XGBoost.
    """

    def __init__(
        self, trees: Callable[[], Trees], varying: Sequence[int], constant: Mapping[int, float] = MappingProxyType({})
    ) -> None:
        self._stored = trees
        self._varying = varying
        self._constant = constant
        self._rows = 0

    @cached_property
    def _trees(self) -> Trees:
        return self._stored().specialise(self._varying, self._constant)

    @cached_property
    def _forest(self) -> "Forest":
        return Forest.of(self._trees, len(self._varying))

    @cached_property
    def _booster(self) -> "Booster":
        return self._trees.booster(len(self._varying))

    def inplace_predict(self, x: np.ndarray, shared: int = 0, problem: np.ndarray | None = None) -> np.ndarray:
        """(rows,) float32 sums of the trees for ``x`` (rows, columns) of float32.

        The first ``shared`` columns of ``x`` are those of each row's ``problem`` (rows,), by default of all rows.
        """
        self._rows += len(x)
        is_table = len(x) >= TABLE_ROWS and "xgboost" in sys.modules
        if is_table or (len(x) >= FEW_ROWS and self._rows >= BOOSTER_ROWS):
            return self._booster.inplace_predict(x)
        return self._trees.sums(x) if self._rows < FOREST_ROWS else self._forest.predict(x, shared, problem)


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
        if 8 * (len(keys) + columns) * int(words.sum()) > MOST_FOREST_BYTES:
            raise InputError(f"the trees have {len(keys):,} thresholds and {len(count):,} nodes, too many; {REMEDY}")
        row = np.searchsorted(keys, split_keys, side="right") + trees.feature[inner]
        missing_row = np.searchsorted(keys, missing_keys, side="right") + column_numbers
        # 3. A split that is true rules out its left leaves from its row on, else its right ones in the rows before.
        total = int(words.sum())
        after = np.full((len(keys) + columns, total), ~np.uint64(0))
        before = after.copy()
        spans = (first, first + count)
        _rule_out(after, row, left, spans)
        _rule_out(before, row - 1, left + 1, spans)
        for start, end in pairwise([0, *(missing_row + 1).tolist()]):
            np.bitwise_and.accumulate(after[start : end - 1], axis=0, out=after[start : end - 1])
            backwards = before[start : end - 1][::-1]
            np.bitwise_and.accumulate(backwards, axis=0, out=backwards)
        lost = left + trees.missing_left[inner]
        _rule_out(after, missing_row[trees.feature[inner]], lost, spans)
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
        return cls(keys, after, leaves, first_leaf=first_leaf, base_score=trees.base_score[0])

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


def _rule_out(remaining: np.ndarray, row: np.ndarray, node: np.ndarray, spans: tuple[np.ndarray, np.ndarray]) -> None:
    """Clear in ``remaining`` (rows, words) at each ``row`` the bits of the leaves below each ``node``.

    ``spans`` (nodes,) the first bit of the leaves below every node, and the one behind the last.
    """
    start, end = (ends[node] for ends in spans)
    word = start // WORD_BITS
    # One word at a time: the bits of a node's leaves may stretch over several.
    while len(word):
        # A mask of the bits from ``low`` up to ``high`` of this word.
        low = np.maximum(start - word * WORD_BITS, 0).astype(np.uint64)
        high = np.minimum(end - word * WORD_BITS, WORD_BITS).astype(np.uint64)
        all_bits = ~np.uint64(0)
        mask = (all_bits << low) & (all_bits >> (np.uint64(WORD_BITS) - high))
        np.bitwise_and.at(remaining, (row, word), ~mask)
        more = end > (word + 1) * WORD_BITS
        row, start, end, word = row[more], start[more], end[more], word[more] + 1
