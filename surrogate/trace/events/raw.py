"""What a reader collects from a trace file, and how its raw values become clean columns.

Readers append one tuple per event to a `RawTrace`, its values as the file holds them. `columns_of` turns the rows of
one table into NumPy columns: fast where every value is a plain number, value by value where a file is damaged.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from surrogate.trace.events.tables import Device, Ints

T = TypeVar("T")
Row = tuple[Any, ...]

_RANGE = ("ts", "dur", "name", "kind", "thread", "external_id", "sequence", "forward_thread",
          "shapes", "types", "inputs", "outputs", "stack")  # fmt: skip
COLUMNS: dict[str, tuple[str, ...]] = {
    "ranges": _RANGE,
    "frames": _RANGE,
    "calls": ("ts", "dur", "name", "kind", "thread", "correlation", "external_id"),
    "activities": ("ts", "dur", "name", "kind", "device", "stream", "process", "correlation", "external_id", "grid",
                   "block", "registers", "shared_bytes", "bytes", "copy_kind", "graph_node"),
    "syncs": ("ts", "dur", "name", "kind", "device", "stream", "process", "correlation"),
    "allocations": ("ts", "bytes", "device", "thread"),
}  # fmt: skip
"""Table → the columns of its raw rows, in order; ``ts`` and ``dur`` are the start and the length."""

MAX_NAME = 20_000
"""Characters of a name that are kept; templated kernel names reach a few thousand."""
_CONTROL = dict.fromkeys([*range(32), *range(127, 160)], " ")
_MAX_TIME_US = 3e15  # the year 2065 in µs since 1970; what lies beyond is damage
_MAX_START_NS = 3 * 10**18
_MAX_LENGTH_NS = 10**18  # 31 years; sums of two starts and a length stay within 64 bits
_LIMIT = 2**63 - 1
_DAMAGE = (ValueError, TypeError, OverflowError)
"""What NumPy, `int` and `float` raise for a value that is no number."""


class Interner(Generic[T]):
    """Gives each distinct value an index, in the order of first sight; ``clean`` is applied to new values."""

    def __init__(self, clean: Callable[[Any], T], known: Iterable[Any] = ()) -> None:
        self._clean = clean
        self._index: dict[Hashable, int] = {}
        self._by_clean: dict[T, int] = {}
        self.values: list[T] = []
        for value in known:
            self.index(value)

    def index(self, key: Hashable, value: Any = None) -> int:
        """The index of ``key`` (cleaned from ``value``, or from the key itself)."""
        index = self._index.get(key)
        if index is None:
            clean = self._clean(key if value is None else value)
            index = self._by_clean.setdefault(clean, len(self.values))
            if index == len(self.values):
                self.values.append(clean)
            self._index[key] = index
        return index


def clean_name(value: Any) -> str:
    """Printable text: no control characters (a terminal would obey them), no lone surrogates, bounded length."""
    text = value if isinstance(value, str) else repr(value)
    return text[:MAX_NAME].translate(_CONTROL).encode("utf-8", "replace").decode("utf-8")


def clean_texts(values: Any) -> tuple[str, ...]:
    """A list of anything as a tuple of printable texts."""
    return tuple(map(clean_name, values)) if isinstance(values, list | tuple) else ()


def clean_shapes(values: Any) -> tuple[Any, ...]:
    """An operator's list of shapes as nested tuples, () for what is no list; -1 for what is no whole number."""

    def clean(value: Any, depth: int) -> Any:
        if isinstance(value, list | tuple):
            return tuple(clean(inner, depth + 1) for inner in value) if depth < 8 else ()
        whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
        return value if whole else -1

    return clean(values, 0) if isinstance(values, list | tuple) else ()


@dataclass(slots=True)
class RawTrace:
    """Rows in the column orders of `COLUMNS`, and what the indices in them refer to."""

    source: str
    format: str
    exact_ns: bool = False
    """True where rows give ``ts`` and ``dur`` in whole ns; they are µs otherwise."""
    names: Interner[str] = field(default_factory=lambda: Interner(clean_name))
    shapes: Interner[Any] = field(default_factory=lambda: Interner(clean_shapes))
    types: Interner[tuple[str, ...]] = field(default_factory=lambda: Interner(clean_texts))
    inputs: Interner[tuple[str, ...]] = field(default_factory=lambda: Interner(clean_texts))
    threads: Interner[tuple[str, str]] = field(
        default_factory=lambda: Interner(lambda key: (clean_name(str(key[0])), clean_name(str(key[1]))))
    )
    thread_names: dict[tuple[str, str], str] = field(default_factory=dict)
    ranges: list[Row] = field(default_factory=list)
    frames: list[Row] = field(default_factory=list)
    calls: list[Row] = field(default_factory=list)
    activities: list[Row] = field(default_factory=list)
    syncs: list[Row] = field(default_factory=list)
    allocations: list[Row] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    rank: int | None = None
    world_size: int | None = None
    notes: list[str] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)

    def name(self, value: Any) -> int:
        """The index of a name."""
        return self.names.index(value if type(value) is str else repr(value))


@dataclass(slots=True)
class Columns:
    """The valid rows of one table, sorted by start (ties: the longest first), as lists by column name."""

    values: dict[str, list[Any]]
    start_ns: Ints
    end_ns: Ints
    whole_us: bool
    dropped: int

    def integers(self, *left_out: str) -> dict[str, Ints]:
        """The columns of whole numbers, -1 in the place of damage."""
        return {name: integers(values) for name, values in self.values.items() if name not in left_out}


def columns_of(rows: Sequence[Row], names: tuple[str, ...], exact_ns: bool) -> Columns:
    """The rows whose start and length are numbers of sane size and whose length is not negative."""
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in names]
    values = dict(zip(names, columns, strict=True))
    ts, dur = values.pop("ts"), values.pop("dur", None)
    if exact_ns:
        start, valid, whole_us = integers(ts, _LIMIT // 2), np.ones(len(ts), np.bool_), False
        length = integers(dur) if dur is not None else np.zeros(len(ts), np.int64)
    else:
        start, valid, whole_us = nanoseconds(ts)
        length, lasting, whole = nanoseconds(dur) if dur is not None else (np.zeros_like(start), valid, True)
        valid, whole_us = valid & lasting, whole_us and whole
    valid = valid & (length >= 0) & (length <= _MAX_LENGTH_NS) & (np.abs(start) <= _MAX_START_NS)
    in_order = np.flatnonzero(valid)
    in_order = in_order[np.lexsort((in_order, -length[in_order], start[in_order]))]
    order = in_order.tolist()
    picked = {name: [column[i] for i in order] for name, column in values.items()}
    return Columns(picked, start[in_order], start[in_order] + length[in_order], whole_us, len(ts) - len(in_order))


def integers(values: Sequence[Any], default: int = -1) -> Ints:
    """int64 column; ``default`` where a value is no number of 64 bits."""
    return _column(values, int, np.int64, default)


def _column(values: Sequence[Any], convert: Callable[[Any], Any], dtype: Any, default: float) -> NDArray[Any]:
    """All values at once where each is a number, else one by one, with ``default`` in the place of damage."""

    def number(value: Any) -> float:
        try:
            converted = convert(value)
        except _DAMAGE:
            return default
        return converted if abs(converted) <= _LIMIT else default

    try:
        return np.array(values, dtype).reshape(len(values))
    except _DAMAGE:
        return np.fromiter(map(number, values), dtype, len(values))


def triples(values: Sequence[Any]) -> Ints:
    """Column of (x, y, z), shape (rows, 3), at least 0; zeros where a value is no such list."""
    rows = [v if isinstance(v, list | tuple) and len(v) == 3 else (0, 0, 0) for v in values]
    flat = integers([size for row in rows for size in row], 0)
    return np.maximum(flat, 0).reshape(-1, 3)


def nanoseconds(values: Sequence[Any]) -> tuple[Ints, NDArray[np.bool_], bool]:
    """Times in µs as ns; which are valid; whether all are whole µs (so that rounding may split nested ranges).

    A float of µs since 1970 resolves 0.25 µs only, so whole and fractional part are converted apart.
    """
    numbers = _column(values, float, np.float64, np.nan)
    valid = np.abs(numbers) <= _MAX_TIME_US
    whole = np.floor(np.where(valid, numbers, 0.0))
    part = np.rint((np.where(valid, numbers, 0.0) - whole) * 1000)
    return whole.astype(np.int64) * 1000 + part.astype(np.int64), valid, not part.any()
