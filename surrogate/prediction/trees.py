"""A booster's trees as arrays, read from its UBJ file, and their specialisation to one device and setting.

What never changes while one GPU is asked about (its own features, the settings, the candidates' codes) decides many
splits once and for all: about half the nodes are left, and every categorical split is a column of zeros and ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from surrogate.models.booster_file import BoosterFile, UnsupportedTreesError
from surrogate.prediction.forest import Forest

UNDECIDED, LEFT, RIGHT = -1, 0, 1


@dataclass(frozen=True, slots=True)
class Trees:
    """All trees one after another: node arrays, root positions (trees,), and the score that the leaves are added to.

    ``feature`` (nodes,) the column that is compared; ``value`` (nodes,) float32 the threshold (`x < value` goes left),
    or a leaf's score; ``left`` and ``right`` (nodes,) positions, −1 at a leaf; ``missing_left`` (nodes,) says where NaN
    goes; ``members`` node → the categories that go right, for splits on ``category_column``, the only categorical one.
    """

    feature: np.ndarray
    value: np.ndarray
    left: np.ndarray
    right: np.ndarray
    missing_left: np.ndarray
    members: Mapping[int, frozenset[int]]
    category_column: int | None
    roots: np.ndarray
    base_score: np.float32

    @classmethod
    def from_ubj(cls, content: bytes) -> "Trees":
        """The trees of a booster's file. Raises as `BoosterFile.from_ubj`, and `UnsupportedTreesError` where several
        columns are categorical.
        """
        read = BoosterFile.from_ubj(content)
        columns = set(read.feature[list(read.members)].tolist())
        if len(columns) > 1:
            raise UnsupportedTreesError("several columns are categorical")
        return cls(
            read.feature,
            read.value,
            read.left,
            read.right,
            read.missing_left,
            read.members,
            columns.pop() if columns else None,
            read.offsets[:-1],
            read.base_score,
        )

    def specialise(
        self, varying: Sequence[int], constant: Mapping[int, float], codes: Sequence[float] = ()
    ) -> Forest:
        """The trees where the columns of ``constant`` have these values and the categorical column one of ``codes``.

        ``varying`` are the other columns, in the order in which they will come; behind them comes, for a row of the
        i-th code, ``patterns[i]`` of the result. Nodes whose outcome is known are cut out.
        """
        place = np.full(int(self.feature.max(initial=0)) + 1, -1)
        for position, column in enumerate(varying):
            if column < len(place):
                place[column] = position
        decided = self._decided(constant)
        feature, value = place[self.feature], self.value.copy()
        patterns, category_nodes = self._patterns(codes, len(varying), feature, decided)
        value[category_nodes] = 0.5
        inner = self.left >= 0
        if (inner & (decided == UNDECIDED) & (feature < 0)).any():
            raise ValueError("a column is neither varying nor constant")
        left, right, missing = self.left, self.right, self.missing_left
        goal = self._skip(decided)
        return _compact(goal, feature, value, left, right, missing, self.roots, self.base_score, patterns)

    def _decided(self, constant: Mapping[int, float]) -> np.ndarray:
        """(nodes,) LEFT or RIGHT where a constant column decides, else UNDECIDED."""
        decided = np.full(len(self.feature), UNDECIDED, dtype=np.int8)
        inner = self.left >= 0
        inner[list(self.members)] = False
        for column, number in constant.items():
            x = np.float32(number)
            at = np.flatnonzero(inner & (self.feature == column))
            to_left = self.missing_left[at] if np.isnan(x) else x < self.value[at]
            decided[at] = np.where(to_left, LEFT, RIGHT)
        return decided

    def _patterns(
        self, codes: Sequence[float], first: int, feature: np.ndarray, decided: np.ndarray
    ) -> tuple[np.ndarray, list[int]]:
        """(codes, patterns) zeros and ones, one column per distinct way in which splits tell the codes apart.

        ``feature`` and ``decided`` are completed in place; returned with the nodes that compare with a pattern.
        """
        found: dict[tuple[bool, ...], int] = {}
        nodes = []
        for node, members in self.members.items():
            default = not self.missing_left[node]
            right = tuple(bool(default) if np.isnan(code) else int(code) in members for code in codes)
            if all(right) or not any(right):
                decided[node] = RIGHT if right and right[0] else LEFT
            else:
                feature[node] = first + found.setdefault(right, len(found))
                nodes.append(node)
        return np.array(list(found), dtype=np.float32).reshape(len(found), len(codes)).T.copy(), nodes

    def _skip(self, decided: np.ndarray) -> np.ndarray:
        """(nodes,) the node that each one leads to once all decided splits are followed."""
        goal = np.arange(len(decided))
        moved = decided != UNDECIDED
        goal[moved] = np.where(decided == LEFT, self.left, self.right)[moved]
        while True:
            further = goal[goal]
            if np.array_equal(further, goal):
                return goal
            goal = further


def _compact(
    goal: np.ndarray,
    feature: np.ndarray,
    value: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
    missing_left: np.ndarray,
    roots: np.ndarray,
    base_score: np.float32,
    patterns: np.ndarray,
) -> Forest:
    """The reachable nodes, level by level over all trees, so that siblings lie side by side."""
    level = goal[roots]
    taken, children, start = [], [], 0
    while len(level):
        inner = left[level] >= 0
        below = np.column_stack([goal[left[level[inner]]], goal[right[level[inner]]]]).ravel()
        child = np.arange(start, start + len(level))
        child[inner] = start + len(level) + 2 * np.arange(inner.sum())
        taken.append(level)
        children.append(child)
        start += len(level)
        level = below
    nodes = np.concatenate(taken)
    leaf = left[nodes] < 0
    return Forest(
        np.where(leaf, 0, feature[nodes]).astype(np.intp),
        np.where(leaf, np.float32(np.nan), value[nodes]).astype(np.float32),
        np.concatenate(children).astype(np.intp),
        np.where(leaf, value[nodes], np.float32(0)).astype(np.float32),
        missing_left[nodes] | leaf,
        np.arange(len(roots), dtype=np.intp),
        base_score,
        patterns,
        len(taken) - 1,
    )
