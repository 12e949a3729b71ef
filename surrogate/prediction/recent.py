"""A bounded memory of recent answers that any number of threads may use without a lock."""

from collections.abc import Hashable
from typing import Any


class Recent:
    """Two generations of at most ``size / 2`` answers: what is asked for again moves to the young one.

    When the young one is full it becomes the old one, and the older are forgotten: least recently used go first, give
    or take a generation. Single dictionary operations are atomic, and losing a race costs a recomputation.
    """

    __slots__ = ("_half", "_old", "_young")

    def __init__(self, size: int) -> None:
        self._half = max(size // 2, 1)
        self._young: dict[Hashable, Any] = {}
        self._old: dict[Hashable, Any] = {}

    def get(self, key: Hashable) -> Any:
        """The answer kept for ``key``, or None."""
        found = self._young.get(key)
        if found is None and self._old:
            found = self._old.get(key)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: Hashable, answer: Any) -> None:
        """Keep ``answer``, which is not None."""
        young = self._young
        if len(young) >= self._half:
            self._old, self._young = young, {}
            young = self._young
        young[key] = answer

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
