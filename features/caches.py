"""Caches of bounded memory. Threads may share them."""

from collections.abc import Callable
from functools import lru_cache, wraps
from threading import Lock
from typing import Any, Generic, ParamSpec, TypeVar

MAX_TEXT = 4096
"""Maximum length of a text in a key. The answer to a question with a longer text is not kept."""
FREE_SETTINGS = ("variant", "routing", "settings")
"""Attributes of problems that accept any text: settings, and all settings of a described kernel."""

Key = TypeVar("Key")
Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")


def _one(value: object) -> int:
    return 1


def has_long_text(part: object) -> bool:
    """Return whether a text, a text inside tuples, or a free setting of a problem is longer than `MAX_TEXT`."""
    if isinstance(part, str):
        return len(part) > MAX_TEXT
    if isinstance(part, tuple):
        return any(map(has_long_text, part))
    for name in FREE_SETTINGS if part is not None else ():
        if (value := getattr(part, name, None)) and has_long_text(value):
            return True
    return False


class BoundedCache(Generic[Key, Value]):
    """Values by key: the latest ones, up to a total weight. A copy or a pickled cache is empty.

    Parameters
    ----------
    max_weight
        Maximum sum of the weights. The latest value is kept in any case.
    weigh
        Function that returns the weight of a value; by default each value weighs 1.
    """

    def __init__(self, max_weight: int, weigh: Callable[[Value], int] = _one) -> None:
        self._settings = max_weight, weigh
        self._entries: dict[Key, tuple[Value, int]] = {}
        self._weight = 0
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundedCache, self._settings

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        """Return the value of a key, or None."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def put(self, key: Key, value: Value) -> Value:
        """Keep a value, unless its key has a long text, and return it. The oldest values make room."""
        if has_long_text(key):
            return value
        max_weight, weigh = self._settings
        weight = weigh(value)
        with self._lock:  # `get` needs no lock: it reads the dictionary once
            self._weight += weight - self._entries.pop(key, (value, 0))[1]
            self._entries[key] = value, weight
            while self._weight > max_weight and len(self._entries) > 1:
                self._weight -= self._entries.pop(next(iter(self._entries)))[1]
        return value


def cached_texts(max_entries: int) -> Callable[[Callable[Arguments, Value]], Callable[Arguments, Value]]:
    """Return a decorator as `functools.lru_cache` does, for functions of texts; results of long texts are not kept."""

    def decorate(function: Callable[Arguments, Value]) -> Callable[Arguments, Value]:
        cached: Callable[..., Value] = lru_cache(max_entries)(function)

        @wraps(function)
        def call(*values: Arguments.args, **options: Arguments.kwargs) -> Value:
            return (function if has_long_text(values) else cached)(*values, **options)

        return call

    return decorate
