"""Interning: each distinct string, shape or list once, events hold its index."""

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
MAX_NAME = 20_000
"""Characters of a name that are kept; templated kernel names reach a few thousand."""
_CONTROL = dict.fromkeys([*range(32), *range(127, 160)], " ")


class Interner(Generic[T]):
    """Value → index, in the order of first sight; ``clean`` is applied to a value when it is new."""

    def __init__(self, clean: Callable[[Any], T]) -> None:
        self._clean = clean
        self._index: dict[Hashable, int] = {}
        self._by_clean: dict[T, int] = {}
        self.values: list[T] = []

    def index(self, key: Hashable, value: Any = None) -> int:
        """The index of ``key`` (cleaned from ``value``, or from the key itself)."""
        found = self._index.get(key)
        if found is None:
            clean = self._clean(key if value is None else value)
            found = self._by_clean.setdefault(clean, len(self.values))
            if found == len(self.values):
                self.values.append(clean)
            self._index[key] = found
        return found


def clean_name(value: Any) -> str:
    """Printable text: no control characters (a terminal would obey them), no lone surrogates, bounded length."""
    text = value if isinstance(value, str) else repr(value)
    return text[:MAX_NAME].translate(_CONTROL).encode("utf-8", "replace").decode("utf-8")


def clean_texts(values: Any) -> tuple[str, ...]:
    """A list of anything as a tuple of printable texts."""
    return tuple(map(clean_name, values)) if isinstance(values, list | tuple) else ()


def clean_shapes(values: Any) -> tuple[Any, ...]:
    """An operator's list of shapes, () for what is no list."""
    return tuple(clean_shape(v) for v in values) if isinstance(values, list | tuple) else ()


def clean_shape(values: Any, depth: int = 0) -> Any:
    """Nested lists of sizes as tuples; what is no whole number becomes -1."""
    if isinstance(values, list | tuple):
        return tuple(clean_shape(v, depth + 1) for v in values) if depth < 8 else ()
    return values if isinstance(values, int) and not isinstance(values, bool) and abs(values) < 2**63 else -1
