"""A profiler trace as an across-stack profile: model ⊃ layer ⊃ operator ⊃ call ⊃ kernel."""

import numpy as np

from surrogate.trace.events.tables import Ints, Trace
from surrogate.trace.layers import Layers, find_layers
from surrogate.trace.spans.table import LEVELS, Spans, in_time_order

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
