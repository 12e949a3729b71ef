"""Lists of whatever a file held → clean columns: fast where all is well, value by value where it is not."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_LIMIT = 2**63 - 1
MAX_TIME_US = 3e15
"""Times and durations beyond this (the year 2065 in µs since 1970) are damage, not data."""


def integers(values: Sequence[Any], default: int = -1) -> Ints:
    """int64 column; ``default`` where a value is no whole number of 64 bits."""
    found = _array(values)
    if found is not None and found.dtype.kind in "ib":
        return found.astype(np.int64)
    return np.fromiter((_integer(value, default) for value in values), np.int64, len(values))


def floats(values: Sequence[Any]) -> NDArray[np.float64]:
    """float64 column; NaN where a value is no number."""
    found = _array(values)
    if found is not None and found.dtype.kind in "if":
        return found.astype(np.float64)
    cleaned = (float(v) if isinstance(v, int | float) and abs(v) < 1e300 else math.nan for v in values)
    return np.fromiter(cleaned, np.float64, len(values))


def triples(values: Sequence[Any]) -> Ints:
    """Column of (x, y, z), shape (rows, 3), at least 0; zeros where a value is no such list."""
    found = _array(values, dimensions=2)
    if found is None or found.dtype.kind != "i" or found.ndim != 2 or found.shape[1] != 3:
        rows = [
            [_integer(x, 0) for x in v] if isinstance(v, list | tuple) and len(v) == 3 else [0, 0, 0]
            for v in values
        ]
        found = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return np.maximum(found.astype(np.int64), 0)


def nanoseconds(values: Sequence[Any]) -> tuple[Ints, NDArray[np.bool_], bool]:
    """Times in µs as ns; which are valid; whether all are whole µs (so that rounding may split nested ranges).

    A float of µs since 1970 resolves 0.25 µs only, so whole and fractional part are converted apart.
    """
    found = _array(values)
    if found is not None and found.dtype.kind == "i":
        valid = np.abs(found) <= int(MAX_TIME_US)
        return np.where(valid, found, 0).astype(np.int64) * 1000, valid, True
    numbers = floats(values)
    valid = np.abs(numbers) <= MAX_TIME_US
    whole = np.floor(np.where(valid, numbers, 0.0))
    part = np.rint((np.where(valid, numbers, 0.0) - whole) * 1000)
    return whole.astype(np.int64) * 1000 + part.astype(np.int64), valid, not part.any()


def lookup(names: Sequence[str], column: Ints, of: Callable[[str], int]) -> Ints:
    """``of(name)`` for every row, evaluated once per name that occurs."""
    table = np.full(len(names) + 1, -1, dtype=np.int64)
    for index in map(int, np.unique(column)):
        if index >= 0:
            table[index] = of(names[index])
    return table[column]


def _array(values: Sequence[Any], dimensions: int = 1) -> NDArray[Any] | None:
    """NumPy's own reading, where it is a plain number for every value (or a list of numbers of one length)."""
    if not values:
        return np.empty(0, np.int64)
    try:
        found = np.array(values)
    except (ValueError, TypeError, OverflowError):
        return None
    return found if found.dtype.kind in "ifb" and found.ndim == dimensions else None


def _integer(value: Any, default: int) -> int:
    if isinstance(value, str) and len(value) < 20:
        try:
            value = int(value)
        except ValueError:
            return default
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) else default
    return value if isinstance(value, int) and abs(value) <= _LIMIT else default
