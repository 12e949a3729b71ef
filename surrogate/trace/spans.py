"""Across-stack spans (XSP, IPDPS 2020): model ⊃ layer ⊃ operator ⊃ call ⊃ kernel, as columns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.features.errors import InputError, nearest
from surrogate.trace.events.build import nest
from surrogate.trace.events.tables import Ints, Trace
from surrogate.trace.layers import Layers, find_layers
from surrogate.trace.result import ResultTable

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

    def rows(self, deepest: str = "kernel") -> ResultTable:
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
        return ResultTable(f"Spans down to {deepest}: {len(rows):,}", rows)


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


MODEL, LAYER, OPERATOR, CALL, KERNEL = range(len(LEVELS))


def trace_spans(trace: Trace, layers: Layers | None = None) -> Spans:
    """The spans of ``trace``: iterations, layers, operators inside them, CUDA calls, device activities.

    A layer's parent is its iteration. Operators, calls and layers nest by time on their thread, so overlapping
    layers of several threads stay apart; an operator of the backward pass, whose layer lies on another thread,
    hangs under that layer by its autograd number. A kernel's span is its execution on the stream; its parent is
    its launch call (joined by correlation id), whose own span is the launch. ``tags`` carry the correlation id.
    """
    found = layers or find_layers(trace)
    ranges, calls, activities = trace.ranges, trace.calls, trace.activities
    as_layer = np.full(len(ranges), -1, np.int64)
    own = found.from_frame == 0
    as_layer[found.row[own]] = np.flatnonzero(own)
    operators = np.flatnonzero((found.of_range >= 0) & (as_layer < 0))
    first_layer = len(found.iterations)
    first_operator = first_layer + len(found)
    first_call = first_operator + len(operators)
    first_kernel = first_call + len(calls)
    span_of_range = np.full(len(ranges), -1, np.int64)
    span_of_range[operators] = first_operator + np.arange(len(operators))
    span_of_range[found.row[own]] = first_layer + np.flatnonzero(own)
    iteration = np.where(found.iteration >= 0, found.iteration, -1)
    parent = np.concatenate(
        [
            np.full(len(found.iterations), -1, np.int64),
            iteration,
            _operator_parents(trace, found, operators, span_of_range, first_layer),
            _held_by(trace, calls.range, calls.start_ns, found, span_of_range),
            _kernel_parents(trace, found, span_of_range, first_call),
        ]
    )
    level = np.repeat(
        np.arange(5), [len(found.iterations), len(found), len(operators), len(calls), len(activities)]
    )
    starts = [
        np.array([one.start_ns for one in found.iterations], dtype=np.int64), found.start_ns,
        ranges.start_ns[operators], calls.start_ns, activities.start_ns,
    ]  # fmt: skip
    ends = [
        np.array([one.end_ns for one in found.iterations], dtype=np.int64), found.end_ns,
        ranges.end_ns[operators], calls.end_ns, activities.end_ns,
    ]  # fmt: skip
    assert first_kernel + len(activities) == len(parent)
    return in_time_order(
        _names(trace, found, operators), level, np.concatenate(starts), np.concatenate(ends),
        _tracks(trace, found, operators), parent, _tags(trace, first_call),
    )  # fmt: skip


def _operator_parents(
    trace: Trace, found: Layers, operators: Ints, span_of_range: Ints, first_layer: int
) -> Ints:
    """The enclosing operator's span; else the layer itself (a module, or the forward layer of a backward operator)."""
    parents = trace.ranges.parent[operators]
    by_time = np.where(parents >= 0, span_of_range[parents] if len(span_of_range) else -1, -1)
    same = (
        (parents >= 0) & (found.of_range[parents] == found.of_range[operators])
        if len(operators)
        else parents >= 0
    )
    return np.where((by_time >= 0) & same, by_time, first_layer + found.of_range[operators])


def _held_by(trace: Trace, held: Ints, start_ns: Ints, found: Layers, span_of_range: Ints) -> Ints:
    """The span of the range around a call; its iteration where no layer is around it."""
    span = np.where(held >= 0, span_of_range[held] if len(span_of_range) else -1, -1)
    lost = np.flatnonzero(span < 0)
    for at, one in enumerate(found.iterations):
        inside = (start_ns[lost] >= one.start_ns) & (start_ns[lost] < one.end_ns)
        span[lost[inside]] = at
    return span


def _kernel_parents(trace: Trace, found: Layers, span_of_range: Ints, first_call: int) -> Ints:
    activities = trace.activities
    without = _held_by(trace, activities.range, activities.start_ns, found, span_of_range)
    return np.where(activities.call >= 0, first_call + activities.call, without)


def _names(trace: Trace, found: Layers, operators: Ints) -> list[str]:
    names = trace.names
    columns = (trace.ranges.name[operators], trace.calls.name, trace.activities.name)
    below = [names[at] for column in columns for at in column.tolist()]
    return [*(one.label for one in found.iterations), *found.name, *below]


def _tracks(trace: Trace, found: Layers, operators: Ints) -> list[str]:
    threads = [one.thread for one in trace.threads]
    streams = [f"GPU {one.device} stream {one.stream}" for one in trace.streams]
    of_layer = [
        threads[int((trace.frames if frame else trace.ranges).thread[row])]
        for row, frame in zip(found.row.tolist(), found.from_frame.tolist(), strict=True)
    ]
    below = [
        threads[at]
        for column in (trace.ranges.thread[operators], trace.calls.thread)
        for at in column.tolist()
    ]
    return [
        *("" for _ in found.iterations),
        *of_layer,
        *below,
        *(streams[at] for at in trace.activities.stream.tolist()),
    ]


def _tags(trace: Trace, before: int) -> list[dict[str, int]]:
    ids = np.concatenate([trace.calls.correlation, trace.activities.correlation]).tolist()
    return [*({} for _ in range(before)), *({"correlation": one} if one >= 0 else {} for one in ids)]
