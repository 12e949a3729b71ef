"""Boosted trees as arrays: the form in bundles, and a numpy evaluator for single problems.

XGBoost fits the trees and predicts tables. For a few rows it is faster to walk down all trees at once in numpy. Both
give the same scores bit by bit: leaves are added in the order of the trees, in float32.
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
from surrogate.models.json_types import REMEDY, input_error_if_damaged

if TYPE_CHECKING:
    from xgboost import Booster

STEPS = 8
"""Steps of a walk between two checks for rows at a leaf. Trees are 8 to 30 levels deep; most leaves lie above."""
FEW_ROWS = 128
"""Below this number of rows in a call, XGBoost's fixed cost (1 µs a tree) is larger than its gain."""
TABLE_ROWS = 512
"""Rows in a call from which an XGBoost booster is made, if XGBoost is loaded."""
BOOSTER_ROWS = 8_192
"""Rows over all calls from which a booster is made and XGBoost is loaded."""
MAX_BYTES = 16 << 20
"""Maximum size of an array of stored trees: four million nodes."""
MAX_COLUMNS = 1 << 16
MAX_LEAF = 100.0
"""Maximum absolute score of one leaf, in log time."""


@dataclass(frozen=True)
class Trees:
    """All trees, one after another. In each tree the root is first, and children come after their parents.

    Attributes
    ----------
    feature
        (nodes,) column that is compared.
    value
        (nodes,) float32: the threshold (``x < value`` goes left), or a leaf's score.
    left
        (nodes,) position of the left child, −1 at a leaf. The right child is the next node.
    missing_left
        (nodes,) True if NaN goes left.
    roots
        (trees,) positions of the roots.
    base_score
        (1,) float32, to which leaves are added.
    """

    feature: np.ndarray
    value: np.ndarray
    left: np.ndarray
    missing_left: np.ndarray
    roots: np.ndarray
    base_score: np.ndarray

    @classmethod
    def from_booster(cls, content: bytes | bytearray) -> "Trees":
        """Return the trees of ``Booster.save_raw("json")``. No tree may split a categorical column."""
        learner = json.loads(content)["learner"]
        trees = learner["gradient_booster"]["model"]["trees"]
        sizes = [len(tree["left_children"]) for tree in trees]
        starts = np.cumsum([0, *sizes])
        shift = np.repeat(starts[:-1], sizes)

        def concatenated(name: str, dtype: type) -> np.ndarray:
            return np.concatenate([np.asarray(tree[name], dtype=dtype) for tree in trees])

        left = concatenated("left_children", np.int32)
        return cls(
            feature=concatenated("split_indices", np.int32),
            value=concatenated("split_conditions", np.float32),
            left=np.where(left < 0, -1, left + shift).astype(np.int32),
            missing_left=concatenated("default_left", np.bool_),
            roots=starts[:-1].astype(np.int32),
            base_score=np.array([np.float32(str(learner["learner_model_param"]["base_score"]).strip("[]"))]),
        )

    def to_bytes(self) -> bytes:
        """Return a NumPy archive of the arrays."""
        out = io.BytesIO()
        np.savez_compressed(out, **{part.name: getattr(self, part.name) for part in fields(self)})
        return out.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Trees":
        """Return the trees from the output of `to_bytes`. Raise `InputError` if the arrays are invalid or too large."""
        with input_error_if_damaged("trees"), zipfile.ZipFile(io.BytesIO(content)) as archive:
            # A read with a limit unpacks no more bytes, even if the archive declares more.
            files = (archive.open(f"{part.name}.npy").read(MAX_BYTES) for part in fields(cls))
            trees = cls(*(np.lib.format.read_array(io.BytesIO(file), allow_pickle=False) for file in files))
            if not trees._is_sound():
                raise InputError("the nodes do not fit one another; the file is damaged")
        return trees

    def _is_sound(self) -> bool:
        """Return whether every row reaches one leaf of each tree in finitely many steps, and no score is absurd."""
        # 1. Types and lengths are as documented.
        arrays = [getattr(self, part.name) for part in fields(self)]
        lengths = [self.left.size] * 4 + [self.roots.size, 1]
        if [(array.dtype.kind, array.shape) for array in arrays] != [*zip("ifibif", zip(lengths), strict=True)]:
            return False
        # 2. Every node but the roots has one parent, which comes before it in the same tree.
        inner = np.flatnonzero(self.left >= 0)
        left = self.left[inner]
        reached = np.sort(np.concatenate([self.roots, left, left + 1]))
        tree, tree_of_parent = (np.searchsorted(self.roots, nodes, side="right") for nodes in (left + 1, inner))
        is_forest = np.array_equal(reached, np.arange(self.left.size)) and (inner < left).all()
        is_forest = is_forest and (np.diff(self.roots) > 0).all() and (tree == tree_of_parent).all()
        # 3. Columns, thresholds and scores are in their limits.
        columns = self.feature.min() >= 0 and self.feature.max() < MAX_COLUMNS
        score = max(np.abs(self.value[self.left < 0]).max(), np.abs(self.base_score[0]))
        return bool(is_forest and columns and np.isfinite(self.value).all() and score <= MAX_LEAF)

    @cached_property
    def _walk(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return columns, thresholds and left children (nodes,) for a walk that stays at a leaf.

        The threshold of a leaf is NaN, so no value is above it, and its left child is the leaf itself.
        """
        leaf = self.left < 0
        left = np.where(leaf, np.arange(len(leaf)), self.left)
        return self.feature.astype(np.intp), np.where(leaf, np.float32(np.nan), self.value), left

    def sums(self, x: np.ndarray) -> np.ndarray:
        """Return float32 sums (rows,) of base score and leaves for a few rows ``x`` (rows, columns) of float32."""
        # All rows walk down all trees at once. ``node`` (rows · trees,) is the current node, ``start`` the position of
        # the row in the values. Every few steps, walks that reached a leaf are removed.
        feature, threshold, left = self._walk
        has_missing = np.isnan(x).any()
        values, start = x.ravel(), np.repeat(np.arange(0, x.size, x.shape[1]), len(self.roots))
        leaves = node = np.tile(self.roots, len(x))
        walking = np.arange(len(node))
        while len(node):
            for _ in range(STEPS):
                value = values.take(start + feature.take(node))
                goes_right = value >= threshold.take(node)
                if has_missing:
                    goes_right |= np.isnan(value) & (self.left[node] >= 0) & ~self.missing_left[node]
                node = left.take(node) + goes_right
            leaves[walking] = node
            inner = np.flatnonzero(left.take(node) != node)
            node, start, walking = node[inner], start[inner], walking[inner]
        first = np.full((len(x), 1), self.base_score[0])
        scores = self.value[leaves].reshape(len(x), len(self.roots))
        return np.add.accumulate(np.hstack([first, scores]), axis=1, dtype=np.float32)[:, -1]

    def booster(self, columns: int) -> "Booster":
        """Return an XGBoost booster of these trees on ``columns`` columns, for one thread.

        Their JSON is inserted into a booster with one leaf, so that XGBoost itself adds all other fields and
        writes the base score: as a number in 3.0, as a list in later versions.
        """
        import xgboost

        options = {"nthread": 1, "base_score": float(self.base_score[0])}
        booster = xgboost.train(options, xgboost.DMatrix(np.zeros((1, columns)), np.zeros(1)), 1)
        content = json.loads(booster.save_raw("json"))
        model = content["learner"]["gradient_booster"]["model"]
        (leaf,) = model["trees"]
        trees = []
        for number, (start, end) in enumerate(pairwise([*self.roots.tolist(), len(self.feature)])):
            # XGBoost counts positions from the tree's root, and stores parents (of a root: the largest number).
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
        booster.load_model(bytearray(json.dumps(content).encode()))
        return booster

    def specialise(self, varying: Sequence[int], constant: Mapping[int, float]) -> "Trees":
        """Return the trees with fixed values of the columns in ``constant``: the splits on these columns are removed.

        ``varying`` are the other columns, in the order of the input (−1: a column that no tree uses). Raise
        `InputError` if a column is neither.
        """
        # 1. ``goal`` maps each node to the first undecided node below it.
        goal = np.arange(len(self.feature))
        for column, number in constant.items():
            x = np.float32(number)
            nodes = np.flatnonzero((self.left >= 0) & (self.feature == column))
            goes_left = self.missing_left[nodes] if np.isnan(x) else x < self.value[nodes]
            goal[nodes] = self.left[nodes] + ~goes_left
        while not np.array_equal(next_goal := goal[goal], goal):
            goal = next_goal
        # 2. Keep the nodes that the roots still reach: tree by tree, with the two children of a node adjacent.
        levels, owners = [goal[self.roots]], [np.arange(len(self.roots))]
        while (inner := self.left[levels[-1]] >= 0).any():
            left = self.left[levels[-1][inner]]
            levels.append(np.column_stack([goal[left], goal[left + 1]]).ravel())
            owners.append(np.repeat(owners[-1][inner], 2))
        nodes = np.concatenate(levels)[np.argsort(np.concatenate(owners), kind="stable")]
        number_of = np.empty(len(goal), dtype=np.int64)
        number_of[nodes] = np.arange(len(nodes))
        leaf = self.left[nodes] < 0
        # 3. Replace columns by their new positions.
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
    """Specialised trees with the interface of an XGBoost booster.

    Parameters
    ----------
    trees
        Function that returns the trees. It is called on first use.
    varying, constant
        As in `Trees.specialise`.

    Notes
    -----
    Few rows are predicted in numpy, tables by XGBoost. The booster is made on first use.
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
    def _booster(self) -> "Booster":
        return self._trees.booster(len(self._varying))

    def inplace_predict(self, x: np.ndarray) -> np.ndarray:
        """Return float32 sums of the trees (rows,) for ``x`` (rows, columns) of float32."""
        self._rows += len(x)
        is_table = len(x) >= TABLE_ROWS and "xgboost" in sys.modules
        if is_table or (len(x) >= FEW_ROWS and self._rows >= BOOSTER_ROWS):
            return self._booster.inplace_predict(x)
        return self._trees.sums(x)
