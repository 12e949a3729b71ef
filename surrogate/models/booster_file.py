"""A booster's UBJ file: read and judged in Python, and written anew from what was read before XGBoost sees it.

XGBoost follows a file's indices and counts unchecked, so that a forged one can end the process. What reaches it here
holds nothing but arrays that were found sound; the rest of the file is left behind.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.features.errors import InputError
from surrogate.models.ubj import decode, encode

IDENTITY_OBJECTIVES = ("reg:squarederror", "reg:absoluteerror", "reg:pseudohubererror", "reg:quantileerror")
"""Objectives whose prediction is the plain sum of the leaves."""
MAX_CATEGORY = 4096
"""XGBoost keeps one bit per category up to the greatest, for every categorical split."""
MAX_COLUMNS = 10_000
NO_PARENT = 2**31 - 1
REMEDY = "train the bundle again with `seer train`"
_KINDS = {
    "left_children": "iu", "right_children": "iu", "split_indices": "iu", "split_type": "iu", "default_left": "iu",
    "split_conditions": "f", "categories": "iu", "categories_nodes": "iu", "categories_segments": "iu",
    "categories_sizes": "iu",
}  # fmt: skip
_BY_NODE = tuple(_KINDS)[:6]
"""Arrays with one entry a node."""


class UnsupportedTreesError(InputError):
    """A booster that is more than the plain sum of trees; says why."""


@dataclass(frozen=True, slots=True)
class BoosterFile:
    """All trees one after another; ``offsets`` (trees + 1,) where each begins and the last ends.

    ``feature`` (nodes,) the column that is compared; ``value`` (nodes,) float32 the threshold (`x < value` goes left),
    or a leaf's score; ``left`` and ``right`` (nodes,) positions, −1 at a leaf; ``missing_left`` (nodes,) says where NaN
    goes; ``members`` node → the categories that go right, for categorical splits; ``columns`` of the input.
    """

    feature: np.ndarray
    value: np.ndarray
    left: np.ndarray
    right: np.ndarray
    missing_left: np.ndarray
    members: Mapping[int, frozenset[int]]
    offsets: np.ndarray
    base_score: np.float32
    columns: int

    @classmethod
    def from_ubj(cls, content: bytes) -> "BoosterFile":
        """What a file holds. Raises `InputError` where it is damaged or not sound, `UnsupportedTreesError` where it is
        more than a sum of trees.
        """
        try:
            return _read(decode(content))
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
            reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
            raise InputError(f"the booster's file is not sound ({reason}); {REMEDY}") from None

    def to_ubj(self) -> bytes:
        """The file as XGBoost reads it (schema of XGBoost's model.schema, gbtree on the identity link)."""
        nodes = np.array(sorted(self.members), dtype=np.int64)
        among = np.searchsorted(nodes, self.offsets)
        splits = [nodes[among[i] : among[i + 1]] for i in range(len(among) - 1)]
        trees = [self._tree(i, splits[i]) for i in range(len(splits))]
        model = {
            "cats": {"enc": [], "feature_segments": _int32(()), "sorted_idx": _int32(())},
            "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
            "iteration_indptr": list(range(len(trees) + 1)),
            "tree_info": [0] * len(trees),
            "trees": trees,
        }
        numbers = {
            "base_score": f"[{float(self.base_score)!r}]", "boost_from_average": "1", "num_class": "0",
            "num_feature": str(self.columns), "num_target": "1",
        }  # fmt: skip
        learner = {
            "attributes": {},
            "feature_names": [],
            "feature_types": [],
            "gradient_booster": {"model": model, "name": "gbtree"},
            "learner_model_param": numbers,
            "objective": {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}},
        }
        return encode({"learner": learner, "version": [2, 1, 0]})

    def _tree(self, place: int, categorical: np.ndarray) -> dict[str, Any]:
        start, end = int(self.offsets[place]), int(self.offsets[place + 1])
        left, right = self.left[start:end] - start, self.right[start:end] - start
        inner = np.flatnonzero(left >= 0)
        parents = np.zeros(
            end - start, dtype=np.int64
        )  # a pruned node's, too: XGBoost follows all but the root's
        parents[0] = NO_PARENT
        parents[left[inner]] = parents[right[inner]] = inner
        listed = [sorted(self.members[node]) for node in categorical.tolist()]
        sizes = np.array([len(one) for one in listed], dtype=np.int64)
        split_type = np.zeros(end - start, dtype=np.uint8)
        split_type[categorical - start] = 1
        zeros = np.zeros(end - start, dtype=np.float32)
        return {
            "base_weights": zeros,
            "categories": _int32([member for one in listed for member in one]),
            "categories_nodes": _int32(categorical - start),
            "categories_segments": np.cumsum(sizes) - sizes,
            "categories_sizes": sizes,
            "default_left": self.missing_left[start:end].astype(np.uint8),
            "id": place,
            "left_children": _int32(np.maximum(left, -1)),
            "loss_changes": zeros,
            "parents": _int32(parents),
            "right_children": _int32(np.maximum(right, -1)),
            "split_conditions": self.value[start:end],
            "split_indices": _int32(self.feature[start:end]),
            "split_type": split_type,
            "sum_hessian": zeros,
            "tree_param": {
                "num_deleted": "0",
                "num_feature": str(self.columns),
                "num_nodes": str(end - start),
                "size_leaf_vector": "1",
            },
        }


def native_booster(content: bytes, columns: int | None = None) -> Any:
    """An `xgboost.Booster` on one thread with the trees of a file; ``columns`` that it must compare, if given.

    Raises `InputError` as `BoosterFile.from_ubj`, and for another number of columns.
    """
    import xgboost

    read = BoosterFile.from_ubj(content)
    if columns not in (None, read.columns):
        raise InputError(
            f"the booster's file is of {read.columns} columns, the model has {columns}; {REMEDY}"
        )
    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(bytearray(read.to_ubj()))
    return booster


def _int32(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.int32)


def _read(model: Any) -> BoosterFile:
    learner = model["learner"]
    booster, numbers = learner["gradient_booster"], learner["learner_model_param"]
    _check_kind(learner, booster, numbers)
    trees, columns = booster["model"]["trees"], int(numbers["num_feature"])
    base = np.float32(str(numbers["base_score"]).strip("[]"))
    if not (1 <= columns <= MAX_COLUMNS and np.isfinite(base)):
        raise ValueError("no number of columns, or no base score")
    counts = [_count(tree) for tree in trees]
    offsets = np.cumsum([0, *counts])
    parts = {name: [_array(tree, name) for tree in trees] for name in _BY_NODE}
    if any([len(part) for part in of_name] != counts for of_name in parts.values()):
        raise ValueError("its arrays differ in length")
    joined = {
        name: np.concatenate(of_name) if of_name else np.empty(0, np.int64) for name, of_name in parts.items()
    }
    start = np.repeat(offsets[:-1], counts)
    left, right = (
        np.where(part >= 0, part + start, part)
        for part in (joined[name].astype(np.int64) for name in _BY_NODE[:2])
    )
    feature = joined["split_indices"].astype(np.int64)
    _check_shape(left, right, start + np.repeat(np.array(counts, dtype=np.int64), counts))
    inner = left >= 0
    if (inner & ((feature < 0) | (feature >= columns))).any():
        raise ValueError("a split on a column that is not there")
    members: dict[int, frozenset[int]] = {}
    for tree, offset, count in zip(trees, offsets, counts, strict=False):
        members |= _members(tree, int(offset), count)
    value, categorical = joined["split_conditions"].astype(np.float32), np.flatnonzero(joined["split_type"])
    if sorted(members) != categorical.tolist() or not inner[categorical].all():
        raise ValueError("categories and splits differ")
    if not np.isfinite(value[~inner]).all() or np.isnan(np.delete(value, categorical)).any():
        raise ValueError("a threshold or a leaf is no number")
    feature, missing_left = np.where(inner, feature, 0), joined["default_left"].astype(bool)
    return BoosterFile(feature, value, left, right, missing_left, members, offsets, base, columns)


def _check_kind(learner: Any, booster: Any, numbers: Any) -> None:
    """Raises `UnsupportedTreesError` for more than a sum of trees."""
    objective = learner["objective"]["name"]
    if booster["name"] != "gbtree":
        raise UnsupportedTreesError(f"the booster is a {booster['name']!s:.20}, not a gbtree")
    if objective not in IDENTITY_OBJECTIVES:
        raise UnsupportedTreesError(f"the objective {objective!s:.40} transforms the sum of the leaves")
    outputs = max(int(numbers.get("num_target", 1)), int(numbers.get("num_class", 0)))
    if outputs > 1 or any(booster["model"].get("tree_info", ())):
        raise UnsupportedTreesError("the booster has several outputs")
    if len(booster["model"].get("cats", {}).get("enc", ())):
        raise UnsupportedTreesError("the booster codes categories itself")


def _count(tree: Mapping[str, Any]) -> int:
    if int(tree["tree_param"].get("size_leaf_vector", 1)) > 1:
        raise UnsupportedTreesError("the leaves are vectors")
    count = len(tree["left_children"])
    if count == 0:
        raise ValueError("it has no node")
    return count


def _array(tree: Mapping[str, Any], name: str) -> np.ndarray:
    """One array of a tree, (length,). Raises `ValueError` where it is no typed array of its kind."""
    found = tree[name]
    if not isinstance(found, np.ndarray) or found.dtype.kind not in _KINDS[name]:
        raise ValueError(f"{name} is not what XGBoost writes")
    return found


def _check_shape(left: np.ndarray, right: np.ndarray, end: np.ndarray) -> None:
    """Raises `ValueError` where following children (nodes,) could leave the tree, meet twice, or never end."""
    own, inner = np.arange(len(left)), left >= 0
    sound = bool(((left >= -1) & (right >= -1) & ((right >= 0) == inner)).all())
    sound = sound and bool(((left < end) & (right < end)).all())
    sound = sound and bool(((left > own) & (right > own))[inner].all())
    children = np.concatenate([left[inner], right[inner]])
    if not sound or np.bincount(children).max(initial=0) > 1:
        raise ValueError("its children do not fit")


def _members(tree: Mapping[str, Any], offset: int, count: int) -> dict[int, frozenset[int]]:
    """Node → the categories that go right, for the categorical splits of a tree of ``count`` nodes."""
    listed, nodes, starts, sizes = (
        _array(tree, name)
        for name in ("categories", "categories_nodes", "categories_segments", "categories_sizes")
    )
    if not len(nodes) == len(starts) == len(sizes):
        raise ValueError("its categories differ in length")
    if not len(nodes):
        return {}
    ends = starts.astype(np.float64) + sizes  # as floats: a sum beyond 64 bits must not wrap
    right = (nodes[1:] > nodes[:-1]).all() and nodes[0] >= 0 and nodes[-1] < count
    right = right and (starts >= 0).all() and (sizes > 0).all() and (ends <= len(listed)).all()
    if not right or listed.min() < 0 or listed.max() >= MAX_CATEGORY:
        raise ValueError("its categories do not fit")
    values = listed.tolist()
    return {
        offset + node: frozenset(values[start : start + size])
        for node, start, size in zip(nodes.tolist(), starts.tolist(), sizes.tolist(), strict=True)
    }
