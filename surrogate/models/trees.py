"""Boosted trees as plain arrays: what a bundle stores, and the numpy evaluator that answers single problems.

XGBoost fits the trees and scores tables; a handful of rows is answered sooner by following all trees at once in numpy.
Scores agree to the bit: leaves are added in the order of the trees, in float32.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

import numpy as np

from surrogate.features.errors import InputError
from surrogate.models.trend import Trend

UNDECIDED, LEFT, RIGHT = -1, 0, 1
ARRAYS, FACTS = "trees.npz", "times.json"
"""The files of `BoostedTimes`."""
CHUNK_ROWS = 32
"""Rows that are followed together: their node positions, thresholds and values stay in the cache."""


@dataclass(frozen=True, slots=True)
class Trees:
    """All trees one after another.

    ``feature`` (nodes,) the column that is compared; ``value`` (nodes,) float32 the threshold (``x < value`` goes left)
    or a leaf's score; ``left`` and ``right`` (nodes,) positions, −1 at a leaf; ``missing_left`` (nodes,) where NaN
    goes; ``members`` (m, 2) pairs of a categorical split's node and a category that goes right; ``roots`` (trees,);
    ``base_score`` (1,) float32, to which leaves are added. At most one column is categorical.
    """

    feature: np.ndarray
    value: np.ndarray
    left: np.ndarray
    right: np.ndarray
    missing_left: np.ndarray
    members: np.ndarray
    roots: np.ndarray
    base_score: np.ndarray

    @classmethod
    def from_booster(cls, content: bytes | bytearray) -> "Trees":
        """The trees of ``Booster.save_raw("json")``."""
        learner = json.loads(content)["learner"]
        trees = learner["gradient_booster"]["model"]["trees"]
        sizes = [len(tree["left_children"]) for tree in trees]
        starts = np.cumsum([0, *sizes])
        shift = np.repeat(starts[:-1], sizes)

        def joined(name: str, dtype: type) -> np.ndarray:
            return np.concatenate([np.asarray(tree[name], dtype=dtype) for tree in trees])

        left, right = joined("left_children", np.int32), joined("right_children", np.int32)
        leaf = left < 0
        members = [
            (start + node, category)
            for start, tree in zip(starts.tolist(), trees, strict=False)
            for node, first, count in zip(
                tree["categories_nodes"], tree["categories_segments"], tree["categories_sizes"], strict=True
            )
            for category in tree["categories"][first : first + count]
        ]
        base = np.float32(str(learner["learner_model_param"]["base_score"]).strip("[]"))
        return cls(
            joined("split_indices", np.int32),
            joined("split_conditions", np.float32),
            np.where(leaf, -1, left + shift).astype(np.int32),
            np.where(leaf, -1, right + shift).astype(np.int32),
            joined("default_left", np.bool_),
            np.array(members, dtype=np.int32).reshape(-1, 2),
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
        nodes, inner = np.arange(len(trees.feature)), trees.left >= 0
        sides = (trees.left, trees.right)
        forward = all(
            (side[inner] > nodes[inner]).all() and (side[inner] < len(nodes)).all() for side in sides
        )
        if not forward or trees.feature.min(initial=0) < 0 or not np.isfinite(trees.value[~inner]).all():
            raise InputError("the trees' nodes do not fit one another; the file is damaged")
        return trees

    def booster(self, columns: int) -> Any:
        """An XGBoost booster of these trees on ``columns`` columns, for one thread."""
        import xgboost

        starts = [*self.roots.tolist(), len(self.feature)]
        nodes, first = np.unique(self.members[:, 0], return_index=True)
        ends = [*first.tolist(), len(self.members)]
        split_type = np.zeros(len(self.feature), dtype=np.int64)
        split_type[nodes] = 1
        trees = []
        for place, (start, end) in enumerate(pairwise(starts)):
            left, right = self.left[start:end] - start, self.right[start:end] - start
            inner = np.flatnonzero(left >= 0)
            parents = np.full(end - start, 2**31 - 1)
            parents[left[inner]] = parents[right[inner]] = inner
            own = range(*np.searchsorted(nodes, [start, end]).tolist())
            categories = [self.members[ends[i] : ends[i + 1], 1].tolist() for i in own]
            sizes = [len(listed) for listed in categories]
            trees.append(
                {
                    "id": place,
                    "left_children": np.maximum(left, -1).tolist(),
                    "right_children": np.maximum(right, -1).tolist(),
                    "parents": parents.tolist(),
                    "split_conditions": self.value[start:end].astype(np.float64).tolist(),
                    "split_indices": self.feature[start:end].tolist(),
                    "split_type": split_type[start:end].tolist(),
                    "default_left": self.missing_left[start:end].astype(np.int64).tolist(),
                    "categories": [category for listed in categories for category in listed],
                    "categories_nodes": [int(nodes[i]) - start for i in own],
                    "categories_segments": (np.cumsum(sizes, dtype=int) - sizes).tolist() if sizes else [],
                    "categories_sizes": sizes,
                    **dict.fromkeys(("base_weights", "loss_changes", "sum_hessian"), [0.0] * (end - start)),
                    "tree_param": _texts(
                        num_deleted=0, num_feature=columns, num_nodes=end - start, size_leaf_vector=1
                    ),
                }
            )
        model = {
            "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
            "gbtree_model_param": _texts(num_parallel_tree=1, num_trees=len(trees)),
            "iteration_indptr": list(range(len(trees) + 1)),
            "tree_info": [0] * len(trees),
            "trees": trees,
        }
        numbers = _texts(boost_from_average=1, num_class=0, num_feature=columns, num_target=1)
        learner = {
            "attributes": {},
            "feature_names": [],
            "feature_types": [],
            "gradient_booster": {"model": model, "name": "gbtree"},
            "learner_model_param": numbers | {"base_score": f"[{float(self.base_score[0])!r}]"},
            "objective": {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}},
        }
        booster = xgboost.Booster({"nthread": 1})
        booster.load_model(bytearray(json.dumps({"learner": learner, "version": [3, 0, 0]}).encode()))
        return booster

    def specialise(
        self, varying: Sequence[int], constant: Mapping[int, float], codes: Sequence[float] = ()
    ) -> "Forest":
        """The trees where the columns of ``constant`` have these values and the categorical column one of ``codes``.

        ``varying`` are the other columns, in the order in which they will come; behind them comes, for a row of the
        i-th code, ``patterns[i]`` of the result. Splits whose outcome is known are cut out, about half of all.
        """
        decided = self._decided(constant)
        column = np.full(int(self.feature.max(initial=0)) + 1, -1)
        for position, name in enumerate(varying):
            if 0 <= name < len(column):
                column[name] = position
        feature, value = column[self.feature], self.value.copy()
        patterns = self._patterns(codes, len(varying), feature, value, decided)
        if ((self.left >= 0) & (decided == UNDECIDED) & (feature < 0)).any():
            raise ValueError("a column of the trees is neither varying nor constant")
        # 1. Every node stands for the first undecided one below it.
        goal = np.arange(len(decided))
        goal[decided == LEFT] = self.left[decided == LEFT]
        goal[decided == RIGHT] = self.right[decided == RIGHT]
        while not np.array_equal(further := goal[goal], goal):
            goal = further
        # 2. Nodes are numbered level by level over all trees, so that siblings lie side by side.
        level, levels, children, start = goal[self.roots], [], [], 0
        while len(level):
            inner = self.left[level] >= 0
            child = np.arange(start, start + len(level))
            child[inner] = start + len(level) + 2 * np.arange(inner.sum())
            levels.append(level)
            children.append(child)
            start += len(level)
            parents = level[inner]
            level = np.column_stack([goal[self.left[parents]], goal[self.right[parents]]]).ravel()
        nodes = np.concatenate(levels)
        leaf = self.left[nodes] < 0
        return Forest(
            np.where(leaf, 0, feature[nodes]).astype(np.intp),
            np.where(leaf, np.nan, value[nodes]).astype(np.float32),
            np.concatenate(children).astype(np.intp),
            np.where(leaf, value[nodes], 0).astype(np.float32),
            self.missing_left[nodes] | leaf,
            np.arange(len(self.roots), dtype=np.intp),
            self.base_score[0],
            patterns,
            len(levels) - 1,
        )

    def _decided(self, constant: Mapping[int, float]) -> np.ndarray:
        """(nodes,) LEFT or RIGHT where a constant column decides, else UNDECIDED."""
        decided = np.full(len(self.feature), UNDECIDED, dtype=np.int8)
        numeric = self.left >= 0
        numeric[self.members[:, 0]] = False
        for column, number in constant.items():
            x, nodes = np.float32(number), np.flatnonzero(numeric & (self.feature == column))
            to_left = self.missing_left[nodes] if np.isnan(x) else x < self.value[nodes]
            decided[nodes] = np.where(to_left, LEFT, RIGHT)
        return decided

    def _patterns(
        self, codes: Sequence[float], first: int, feature: np.ndarray, value: np.ndarray, decided: np.ndarray
    ) -> np.ndarray:
        """(codes, patterns) zeros and ones: a column for each way in which categorical splits tell the codes apart.

        ``feature``, ``value`` and ``decided`` of those splits are completed in place.
        """
        patterns: dict[tuple[bool, ...], int] = {}
        nodes, starts = np.unique(self.members[:, 0], return_index=True)
        for node, categories in zip(nodes.tolist(), np.split(self.members[:, 1], starts[1:]), strict=False):
            right_codes = set(categories.tolist())
            default = not self.missing_left[node]
            right = tuple(bool(default) if np.isnan(code) else int(code) in right_codes for code in codes)
            if all(right) or not any(right):
                decided[node] = RIGHT if right and right[0] else LEFT
            else:
                feature[node] = first + patterns.setdefault(right, len(patterns))
                value[node] = 0.5
        return np.array(list(patterns), dtype=np.float32).reshape(len(patterns), len(codes)).T.copy()


@dataclass(frozen=True, slots=True)
class BoostedTimes:
    """A fitted model as arrays: (roofline · 2^(``own_weight`` · own roofline column) + call) · exp(trees + trend) µs.

    ``columns`` are the trees' columns by name, behind which comes the candidate's code, categorical or as a number;
    ``codes`` candidate (as `Rows.candidate` names it) → code; ``call_us`` ``gpu|library``, ``|library`` or "" → a
    call's fixed cost in µs; ``trend`` goes on outside the range that training saw (None: nothing does).
    """

    trees: Trees
    columns: tuple[str, ...]
    codes: Mapping[str, int]
    own_weight: float = 0.0
    call_us: Mapping[str, float] = field(default_factory=dict)
    trend: Trend | None = None

    def to_files(self) -> dict[str, bytes]:
        """The arrays, and the rest as JSON."""
        facts: dict[str, Any] = {
            name: getattr(self, name) for name in ("columns", "codes", "own_weight", "call_us")
        }
        facts["trend"] = self.trend and self.trend.to_dict()
        return {ARRAYS: self.trees.to_bytes(), FACTS: json.dumps(facts, sort_keys=True).encode()}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> "BoostedTimes":
        """What `to_files` wrote."""
        facts = json.loads(files[FACTS])
        trees = Trees.from_bytes(files[ARRAYS])
        trend = Trend.from_dict(facts["trend"]) if facts["trend"] else None
        return cls(
            trees, tuple(facts["columns"]), facts["codes"], facts["own_weight"], facts["call_us"], trend
        )

    def call_cost_us(self, gpu: str, library: str) -> float:
        """The fixed cost of a call on a GPU, else of the library, else of any."""
        return call_cost_us(self.call_us, gpu, library)


def call_cost_us(call_us: Mapping[str, float], gpu: str, library: str) -> float:
    """The fixed cost of a call in µs on a GPU, else of the library, else of any; 0 where none is known."""
    keys = (f"{gpu}|{library}", f"|{library}", "")
    return next((call_us[key] for key in keys if key in call_us), 0.0)


@dataclass(frozen=True, slots=True)
class Forest:
    """Trees ready to be followed. Siblings lie side by side; a leaf is its own child and its threshold NaN.

    ``feature``, ``child`` (the left one) and ``missing_left`` are (nodes,); ``threshold`` and ``leaf`` (nodes,)
    float32; ``roots`` (trees,); ``patterns`` (codes, p) the columns that stand for a row's category; ``depth`` splits
    lie on the longest path.
    """

    feature: np.ndarray
    threshold: np.ndarray
    child: np.ndarray
    leaf: np.ndarray
    missing_left: np.ndarray
    roots: np.ndarray
    base_score: np.float32
    patterns: np.ndarray
    depth: int
    _lanes: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def predict(self, x: np.ndarray) -> np.ndarray:
        """(rows,) float32 sums of the base score and the leaves of C-contiguous float32 ``x`` (rows, columns)."""
        if len(x) <= CHUNK_ROWS:
            return self._predict(x)
        return np.concatenate([self._predict(x[i : i + CHUNK_ROWS]) for i in range(0, len(x), CHUNK_ROWS)])

    def _predict(self, x: np.ndarray) -> np.ndarray:
        rows, width = x.shape
        # 1. One lane per row and tree: its node, and where its row begins in the flat values.
        node, row_start = self._lanes.get((rows, width)) or self._new_lanes(rows, width)
        values = x.ravel()
        has_missing = bool(np.isnan(values.dot(values)))
        # 2. All lanes go one level down at a time; a lane at a leaf stays there.
        for _ in range(self.depth):
            position = self.feature[node]
            position += row_start
            value = values[position]
            right = value >= self.threshold[node]
            if has_missing:
                right |= np.isnan(value) & ~self.missing_left[node]
            node = self.child[node]
            node += right
        # 3. Leaves are added one tree after another.
        scores = np.empty((rows, len(self.roots) + 1), dtype=np.float32)
        scores[:, 0] = self.base_score
        scores[:, 1:] = self.leaf[node].reshape(rows, -1)
        return np.add.accumulate(scores, axis=1)[:, -1]

    def _new_lanes(self, rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        trees = len(self.roots)
        lanes = np.tile(self.roots, rows), np.repeat(np.arange(rows) * width, trees)
        self._lanes[rows, width] = lanes
        return lanes

    def trees(self) -> Trees:
        """The same trees, each with its nodes one after another."""
        # 1. Every node's tree: children follow their parents, so one pass from the roots down is enough.
        tree = np.zeros(len(self.child), dtype=np.int64)
        tree[self.roots] = np.arange(len(self.roots))
        inner = np.flatnonzero(self.child != np.arange(len(self.child)))
        level = self.roots
        while len(level := level[self.child[level] != level]):
            for side in (0, 1):
                tree[self.child[level] + side] = tree[level]
            level = np.concatenate([self.child[level], self.child[level] + 1])
        # 2. Nodes in the order of their trees, the root of each first.
        order = np.argsort(tree, kind="stable")
        number = np.empty(len(tree), dtype=np.int64)
        number[order] = np.arange(len(tree))
        left, right = np.full(len(tree), -1), np.full(len(tree), -1)
        left[inner], right[inner] = number[self.child[inner]], number[self.child[inner] + 1]
        value = np.where(left < 0, self.leaf, self.threshold)
        return Trees(
            self.feature[order],
            value[order],
            left[order],
            right[order],
            self.missing_left[order],
            np.empty((0, 2), dtype=np.int32),
            np.searchsorted(tree[order], np.arange(len(self.roots))),
            np.array([self.base_score]),
        )


def _texts(**numbers: int) -> dict[str, str]:
    """XGBoost writes its parameters as texts."""
    return {name: str(number) for name, number in numbers.items()}
