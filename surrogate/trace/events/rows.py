"""Rows as readers collect them, and their first cleaning: usable times, sorted by start."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from surrogate.trace.events.columns import Ints, integers, nanoseconds
from surrogate.trace.events.names import Interner
from surrogate.trace.events.tables import Device

RANGE = ("ts", "dur", "name", "kind", "thread", "external_id", "sequence", "forward_thread",
         "shapes", "types", "inputs", "outputs", "stack")  # fmt: skip
CALL = ("ts", "dur", "name", "kind", "thread", "correlation", "external_id")
ACTIVITY = ("ts", "dur", "name", "kind", "device", "stream", "process", "correlation", "external_id", "grid", "block",
            "registers", "shared_bytes", "bytes", "copy_kind", "graph_node", "occupancy_pct")  # fmt: skip
SYNC = ("ts", "dur", "name", "kind", "device", "stream", "process", "correlation", "wait_correlation")
ALLOCATION = ("ts", "bytes", "device", "address", "total_bytes", "thread")
"""Columns of a reader's rows; times and durations (``ts``, ``dur``) in µs."""
_MAX_START_NS = 3 * 10**18
_MAX_LENGTH_NS = 10**18  # 31 years; sums of two starts and a length stay within 64 bits
_NONE = 2**62
Rows = Sequence[tuple[Any, ...]]


@dataclass(slots=True)
class Parts:
    """What a reader found: rows in the column orders above, and what their indices refer to."""

    source: str
    format: str
    names: Interner[str]
    shapes: Interner[Any]
    types: Interner[tuple[str, ...]]
    inputs: Interner[tuple[str, ...]]
    threads: Interner[tuple[str, str]]
    thread_names: Mapping[tuple[str, str], str]
    ranges: Rows
    frames: Rows
    calls: Rows
    activities: Rows
    syncs: Rows
    allocations: Rows
    devices: Sequence[Device] = ()
    rank: int | None = None
    world_size: int | None = None
    notes: list[str] = field(default_factory=list)
    ignored: Mapping[str, int] = field(default_factory=dict)
    exact_ns: bool = False
    """Rows give ``ts`` and ``dur`` in whole ns instead of µs."""


@dataclass(slots=True)
class Columns:
    """One table on the way: the valid rows, sorted by start (ties: longest first), as lists by column name."""

    values: dict[str, list[Any]]
    start_ns: Ints
    end_ns: Ints
    whole_us: bool
    dropped: int

    def __getitem__(self, column: str) -> Ints:
        return integers(self.values[column])


def columns_of(rows: Rows, names: tuple[str, ...], exact_ns: bool) -> Columns:
    """Rows with a start and a length that are numbers of sane size and no negative length."""
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in names]
    found = dict(zip(names, columns, strict=True))
    ts = found.pop("ts")
    dur = found.pop("dur", None)
    if exact_ns:
        start, valid, whole_us = integers(ts, _NONE), np.ones(len(ts), np.bool_), False
        length = integers(dur) if dur is not None else np.zeros(len(ts), np.int64)
    else:
        start, valid, whole_us = nanoseconds(ts)
        length, lasting, whole = nanoseconds(dur) if dur is not None else (np.zeros_like(start), valid, True)
        valid, whole_us = valid & lasting, whole_us and whole
    valid = valid & (length >= 0) & (length <= _MAX_LENGTH_NS) & (np.abs(start) <= _MAX_START_NS)
    kept = np.flatnonzero(valid)
    kept = kept[np.lexsort((kept, -length[kept], start[kept]))]
    order = kept.tolist()
    picked = {name: [column[i] for i in order] for name, column in found.items()}
    return Columns(picked, start[kept], start[kept] + length[kept], whole_us, len(ts) - len(kept))
