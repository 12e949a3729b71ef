"""Across-stack spans (XSP, IPDPS 2020) as columns: model ⊃ layer ⊃ operator ⊃ call ⊃ kernel."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from surrogate.features.errors import check_choice
from surrogate.trace import events
from surrogate.trace.events.parts import Layers, find_layers, iteration_at, label_rows
from surrogate.trace.events.tables import Ints, Ranges, Trace, grouped, linked, nest, take_rows
from surrogate.trace.result import ResultTable, Row, short_names

if TYPE_CHECKING:
    import pandas as pd

LEVELS = ("model", "layer", "operator", "call", "kernel")
"""The levels of spans, from the user's code to the device. The parent of a span is on a level above it; in a trace, an
operator can also be the parent of an operator, and a label (`label_rows`), on the level "layer", of a layer."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Spans:
    """Spans in time order, as columns.

    Attributes
    ----------
    name
        The name of each span.
    level
        Its index in `LEVELS`.
    start_ns, end_ns
        Its time in integer ns.
    track
        The thread or stream on which it ran.
    parent
        The row of its parent, -1 for none.
    tags
        The tags that were passed to the tracer; {} for most spans.
    notes
        Notes on all spans.
    """

    name: tuple[str, ...]
    level: Ints
    start_ns: Ints
    end_ns: Ints
    track: tuple[str, ...]
    parent: Ints
    tags: tuple[Mapping[str, object], ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.name)

    def __repr__(self) -> str:
        counts = np.bincount(self.level, minlength=len(LEVELS)).tolist()
        listed = ", ".join(f"{count:,} {level}" for level, count in zip(LEVELS, counts, strict=True) if count)
        return f"Spans({listed or 'none'})"

    @property
    def time_us(self) -> np.ndarray:
        """Durations in µs."""
        return (self.end_ns - self.start_ns) / 1e3

    def in_time_order(self) -> "Spans":
        """Return the spans sorted by start, with renumbered parents; upper levels come first."""
        order = np.lexsort((-self.end_ns, self.level, self.start_ns))
        rows = order.tolist()
        names, tracks = (tuple([str(column[row]) for row in rows]) for column in (self.name, self.track))
        parents = linked(np.argsort(order), self.parent[order])
        sorted_tags = tuple([self.tags[row] for row in rows])
        times = self.level[order], self.start_ns[order], self.end_ns[order]
        return Spans(names, *times, tracks, parents, sorted_tags, self.notes)

    def depth_first(self) -> Iterator[tuple[int, int]]:
        """Yield (row, depth) of every span, each before its children; children are in time order."""
        below = {parent: rows[::-1].tolist() for parent, rows in grouped(self.parent, np.arange(len(self)))}
        waiting = [(row, 0) for row in below.get(-1, [])]
        while waiting:
            row, depth = waiting.pop()
            yield row, depth
            waiting += [(child, depth + 1) for child in below.get(row, [])]

    def rows(self, deepest: str = "kernel") -> ResultTable:
        """Return a table with one row per span down to the level ``deepest``, indented by depth.

        Raises `InputError` if the level is unknown.
        """
        last = level_number(deepest)
        first = int(self.start_ns.min()) if len(self) else 0
        time = self.time_us
        rows: tuple[Row, ...] = tuple(
            {"id": row, "parent": int(self.parent[row]) if self.parent[row] >= 0 else None}
            | {"level": LEVELS[self.level[row]], "span": "  " * depth + self.name[row]}
            | {"start_us": (int(self.start_ns[row]) - first) / 1e3, "time_us": float(time[row])}
            | {"track": self.track[row], "tags": dict(self.tags[row])}
            for row, depth in self.depth_first()
            if self.level[row] <= last
        )
        short = short_names(row["span"].lstrip() for row in rows if row["level"] == LEVELS[-1])
        return ResultTable(f"Spans down to {deepest}: {len(rows):,}", rows, self.notes, short)


def level_number(level: str) -> int:
    """Return the index of ``level`` in `LEVELS`. Raises `InputError` if it is unknown."""
    check_choice("level", level, LEVELS)
    return LEVELS.index(level)


def parents_by_inclusion(level: Ints, start_ns: Ints, end_ns: Ints, thread: Ints) -> Ints:
    """Return for every span the innermost span of an upper level that includes it.

    A span of the same thread is preferred. Spans of other threads count only if no span of the thread includes it, such
    as a worker inside the model span that the main thread opened. The one with the latest start is then the parent.
    """
    parent = np.full(len(level), -1, np.int64)
    for number in range(1, len(LEVELS)):
        members = np.flatnonzero(level == number)
        upper = np.flatnonzero(level < number)
        parent[members] = _including(members, upper, level, start_ns, end_ns, thread)
        without_parent = members[parent[members] < 0]
        parent[without_parent] = _including(without_parent, upper, level, start_ns, end_ns, np.zeros_like(thread))
    return parent


def _including(spans: Ints, upper: Ints, level: Ints, start_ns: Ints, end_ns: Ints, thread: Ints) -> Ints:
    """Return for each of ``spans`` the innermost span of ``upper`` on its thread that includes it, -1 for none."""
    nesting = nest(start_ns[upper], end_ns[upper], thread[upper], order=level[upper])
    parent = nesting.open_at(start_ns[spans], thread[spans])
    while True:  # the parent is open when the span begins, but may end before the span
        early = np.flatnonzero(parent >= 0)
        early = early[end_ns[upper[parent[early]]] < end_ns[spans[early]]]
        if not len(early):
            return linked(upper, parent)
        parent[early] = nesting.parent[parent[early]]


_COUNTED = ["flops", "read_bytes", "write_bytes", "occupancy_pct"]


def trace_spans(trace: Trace, counters: "pd.DataFrame | None" = None) -> Spans:
    """Return the spans of a trace: iterations, labels and layers, operators in layers, CUDA calls, device activities.

    A layer's parent is the innermost label around it (`label_rows`), else its iteration. A label that ends after its
    iteration has no parent and is none. Operators, calls and layers nest by time on their thread, so overlapping layers
    of several threads stay separate. An operator of the backward pass is on another thread than its layer; its autograd
    number connects it to the layer. A kernel's span is its execution on the stream. Its parent is its launch call, by
    correlation id; the call's own span is the launch.

    Parameters
    ----------
    trace : Trace
        The trace.
    counters : DataFrame, optional
        Counters of the kernels (`surrogate.trace.kernels.with_counters`), one row per device activity.

    Returns
    -------
    Spans
        ``tags`` hold the correlation id, and the counters of kernels. A label has the tag ``label``.
    """
    layers = find_layers(trace)
    ranges, calls, activities, every = trace.ranges, trace.calls, trace.activities, layers.iterations
    labels = label_rows(trace)
    labels = labels[layers.of_range[labels] < 0]  # the others are layers or inside layers
    layer_rows = np.flatnonzero(layers.from_frame == 0)
    is_layer = np.isin(np.arange(len(ranges)), layers.row[layer_rows])
    operators = np.flatnonzero((layers.of_range >= 0) & ~is_layer)
    # Number the spans level by level: iterations, labels and layers, operators, calls, activities.
    outer = take_rows(ranges, labels)
    counts = [len(every), len(labels) + len(layers), len(operators), len(calls), len(activities)]
    first_outer, first_operator, first_call = np.cumsum(counts)[:3].tolist()
    first_layer = first_outer + len(labels)
    of_layer = zip(layers.row.tolist(), layers.from_frame.tolist(), strict=True)
    layer_threads = [(trace.frames if is_frame else ranges).thread[row] for row, is_frame in of_layer]
    threads = [*outer.thread.tolist(), *layer_threads]
    of_outer = _parents_of_outer(layers, outer, np.array(threads, np.int64), ranges.kind)
    span_of_range = np.full(len(ranges), -1, np.int64)
    span_of_range[labels] = np.where(of_outer[: len(labels)] >= 0, first_outer + np.arange(len(labels)), -1)
    span_of_range[operators] = first_operator + np.arange(len(operators))
    span_of_range[layers.row[layer_rows]] = first_layer + layer_rows
    # An operator's parent is the enclosing operator of the same layer, else the layer itself.
    above, layer = ranges.parent[operators], layers.of_range[operators]
    around = np.where(linked(layers.of_range, above) == layer, linked(span_of_range, above), -1)
    of_call, of_activity = (linked(span_of_range, table.range) for table in (calls, activities))
    of_call = np.where(of_call >= 0, of_call, iteration_at(every, calls.start_ns))
    of_activity = np.where(of_activity >= 0, of_activity, iteration_at(every, activities.start_ns))
    of_operator = np.where(around >= 0, around, first_layer + layer)
    of_activity = np.where(activities.call >= 0, first_call + activities.call, of_activity)
    parent = np.concatenate([np.full(len(every), -1), of_outer, of_operator, of_call, of_activity])
    # Fill the columns level by level, too.
    inner = take_rows(ranges, operators)
    threads += [*inner.thread.tolist(), *calls.thread.tolist()]
    tracks = [*[""] * len(every), *(trace.threads[i].thread for i in threads)]
    tracks += [trace.streams[i].label for i in activities.stream.tolist()]
    tables = (outer, layers, inner, calls, activities)
    starts = np.concatenate([np.array([part.start_ns for part in every]), *(table.start_ns for table in tables)])
    ends = np.concatenate([np.array([part.end_ns for part in every]), *(table.end_ns for table in tables)])
    ids = [-1] * first_call + np.concatenate([calls.correlation, activities.correlation]).tolist()
    tags: list[dict[str, object]] = [{"correlation": number} if number >= 0 else {} for number in ids]
    if counters is not None:
        of_activities = tags[len(tags) - len(activities) :]
        for tag, counted in zip(of_activities, counters[_COUNTED].to_dict("records"), strict=True):
            tag |= {str(name): value for name, value in counted.items() if value == value}  # NaN means not counted
    for tag in tags[first_outer:first_layer]:
        tag["label"] = True
    texts = [[trace.names[i] for i in table.name.tolist()] for table in (outer, inner, calls, activities)]
    names = [*(part.label for part in every), *texts[0], *layers.name, *texts[1], *texts[2], *texts[3]]
    level = np.repeat(np.arange(len(LEVELS)), counts)
    return Spans(tuple(names), level, starts, ends, tuple(tracks), parent, tuple(tags)).in_time_order()


def _parents_of_outer(layers: Layers, labels: Ranges, thread: Ints, kinds: Ints) -> Ints:
    """Return the parent span of each label and of each layer, -1 for none; the iterations are the first spans.

    ``thread`` has an entry per label and layer. ``kinds`` are the kinds of ``trace.ranges``. In a trace without
    operators, layers are labels.
    """
    every = layers.iterations
    start_ns, end_ns = (np.append(getattr(labels, name), getattr(layers, name)) for name in ("start_ns", "end_ns"))
    is_label = np.append(np.ones(len(labels), np.bool_), layers.from_frame == 0)
    is_label[len(labels) :] &= np.isin(linked(kinds, np.where(layers.from_frame == 0, layers.row, -1)), _LABELS)
    iteration = np.append(iteration_at(every, labels.start_ns), layers.iteration)
    after = end_ns > linked(np.array([part.end_ns for part in every]), iteration)
    iteration[: len(labels)][after[: len(labels)]] = -1
    above = nest(start_ns, end_ns, thread, order=np.zeros_like(start_ns)).parent
    around = above
    while True:
        skipped = (around >= 0) & ~(linked(is_label, around, False) & (linked(iteration, around) == iteration))
        if not skipped.any():
            return np.where(around >= 0, len(every) + around, iteration)
        around = np.where(skipped, linked(above, around), around)


_LABELS = (events.ANNOTATION, events.NVTX)
