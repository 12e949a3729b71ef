"""Spans as columns: name, level, interval, thread or stream, parent (XSP, IPDPS 2020)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.features.errors import InputError, nearest
from surrogate.trace.events.build import nest
from surrogate.trace.events.tables import Ints
from surrogate.trace.result import Rows

LEVELS = ("model", "layer", "operator", "call", "kernel")
"""From the user's code down to the device; a span's parent lies on a level above its own."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Spans:
    """Spans in time order. ``level`` indexes `LEVELS`, ``parent`` this table (-1: none), ``track`` is where it ran.

    ``start_ns`` and ``end_ns`` are whole ns; ``tags`` hold what a tracer was told, {} for most.
    """

    name: tuple[str, ...]
    level: Ints
    start_ns: Ints
    end_ns: Ints
    track: tuple[str, ...]
    parent: Ints
    tags: tuple[Mapping[str, Any], ...]

    def __len__(self) -> int:
        return len(self.name)

    def __repr__(self) -> str:
        counts = np.bincount(self.level, minlength=len(LEVELS)).tolist()
        held = ", ".join(f"{count:,} {level}" for level, count in zip(LEVELS, counts, strict=True) if count)
        return f"Spans({held or 'none'})"

    @property
    def time_us(self) -> np.ndarray:
        """Durations in µs."""
        return (self.end_ns - self.start_ns) / 1e3

    def children(self, row: int) -> Ints:
        """Rows whose parent is ``row``, in time order."""
        return np.flatnonzero(self.parent == row)

    def depth_first(self) -> Iterator[tuple[int, int]]:
        """(row, depth) of every span, each before its children, siblings in time order."""
        below: dict[int, list[int]] = {}
        for row, parent in enumerate(self.parent.tolist()):
            below.setdefault(parent, []).append(row)
        waiting = [(row, 0) for row in reversed(below.get(-1, []))]
        while waiting:
            row, depth = waiting.pop()
            yield row, depth
            waiting += [(child, depth + 1) for child in reversed(below.get(row, []))]

    def rows(self, deepest: str = "kernel") -> Rows:
        """A row per span down to the level ``deepest``, indented by depth. Raises `InputError` for an unknown level."""
        last = level_number(deepest)
        first = int(self.start_ns.min()) if len(self) else 0
        time = self.time_us
        rows = tuple(
            {
                "id": row,
                "parent": int(self.parent[row]) if self.parent[row] >= 0 else None,
                "level": LEVELS[self.level[row]],
                "span": "  " * depth + self.name[row],
                "start_us": (int(self.start_ns[row]) - first) / 1e3,
                "time_us": float(time[row]),
                "track": self.track[row],
            }
            for row, depth in self.depth_first()
            if self.level[row] <= last
        )
        return Rows(f"Spans down to {deepest}: {len(rows):,}", rows)


def level_number(level: str) -> int:
    """The place of ``level`` in `LEVELS`. Raises `InputError` for an unknown one."""
    if level not in LEVELS:
        raise InputError(f"level {level!r} is unknown; known: {', '.join(LEVELS)}{nearest(level, LEVELS)}")
    return LEVELS.index(level)


def parents_by_inclusion(level: Ints, start_ns: Ints, end_ns: Ints, thread: Ints) -> Ints:
    """For every span the innermost span of an upper level that includes it: of its own thread if there is one.

    Spans of several threads may overlap; only where no span of the thread includes one does another thread's
    count (a worker inside the model span that the main thread opened), the latest begun.
    """
    parent = np.full(len(level), -1, np.int64)
    for one in range(1, len(LEVELS)):
        own = np.flatnonzero(level == one)
        upper = np.flatnonzero(level < one)
        if not len(own) or not len(upper):
            continue
        parent[own] = _including(own, upper, level, start_ns, end_ns, thread)
        alone = own[parent[own] < 0]
        parent[alone] = _including(alone, upper, level, start_ns, end_ns, np.zeros_like(thread))
    return parent


def _including(spans: Ints, upper: Ints, level: Ints, start_ns: Ints, end_ns: Ints, thread: Ints) -> Ints:
    """For each of ``spans`` the innermost of ``upper`` on its thread that includes it, -1 for none."""
    rows = np.concatenate([upper, spans])
    holds = np.arange(len(rows)) < len(upper)
    around, _ = nest(start_ns[rows], end_ns[rows], thread[rows], level[rows], holds, 0)
    found = around[len(upper) :]
    while True:  # open when the span begins, but perhaps over before it ends
        early = np.flatnonzero(found >= 0)
        early = early[end_ns[upper[found[early]]] < end_ns[spans[early]]]
        if not len(early):
            return np.where(found >= 0, upper[found], -1)
        found[early] = around[found[early]]


def in_time_order(
    name: Sequence[str], level: Ints, start_ns: Ints, end_ns: Ints, track: Sequence[str], parent: Ints,
    tags: Sequence[Mapping[str, Any]] = (),
) -> Spans:  # fmt: skip
    """`Spans` from columns in any order, sorted by start (ties: the upper level first), parents renumbered."""
    order = np.lexsort((-end_ns, level, start_ns))
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    moved = parent[order]
    places = order.tolist()
    return Spans(
        name=tuple([str(name[at]) for at in places]),
        level=level[order],
        start_ns=start_ns[order],
        end_ns=end_ns[order],
        track=tuple([str(track[at]) for at in places]),
        parent=np.where(moved >= 0, number[moved], -1) if len(order) else moved,
        tags=tuple(tags[at] for at in places) if tags else ({},) * len(places),
    )
