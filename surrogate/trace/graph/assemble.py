"""Columns of a graph's tasks: host tasks, device activities and the marks of iterations, in that order."""

import re
from dataclasses import dataclass, replace

import numpy as np

from surrogate.trace.events import kinds
from surrogate.trace.events.tables import Ints, Trace
from surrogate.trace.graph import tasks as t
from surrogate.trace.graph.device import Delays, Lanes
from surrogate.trace.graph.handover import Burst
from surrogate.trace.graph.host import Pieces
from surrogate.trace.graph.host_tasks import HostTasks
from surrogate.trace.graph.order import reordered
from surrogate.trace.graph.tasks import Graph, Resource
from surrogate.trace.layers import OTHER, Layers

COLLECTIVE_NAME = re.compile(r"nccl(?:Dev)?Kernel|rccl|all_?reduce|all_?gather|reduce_?scatter", re.I)
_OUTSIDE = "(outside ranges)"


@dataclass(frozen=True, slots=True, eq=False)
class Assembly:
    """What the columns are made of."""

    trace: Trace
    layers: Layers
    main: int
    bursts: list[Burst]
    pieces: Pieces
    origin_ns: int

    def graph(self, host: HostTasks, lanes: Lanes, delays: Delays) -> Graph:
        """Tasks without edges; a thread's first piece, and one that follows a wait of its thread, start by edges."""
        trace, layers, pieces, activities = self.trace, self.layers, self.pieces, self.trace.activities
        threads = sorted(set(pieces.thread.tolist()) | ({self.main} if self.main >= 0 else set()))
        number = {thread: i for i, thread in enumerate(threads)}
        base = len(host.piece)
        marks = self._marks() if self.main >= 0 else (np.empty(0, np.int64),) * 3
        mark_ns, mark_name, mark_iteration = marks
        names = (*trace.names, _OUTSIDE, *t.MARKS)
        thread = pieces.thread[host.piece]
        call, held = pieces.call[host.piece], pieces.range[host.piece]
        # The profiler's own range around an iteration names no work.
        named = (held >= 0) & (_column(trace.ranges.kind, held) != kinds.STEP)
        host_name = np.where(named, _column(trace.ranges.name, held), len(trace.names))
        host_name = np.where(call >= 0, _column(trace.calls.name, call), host_name)
        layer = np.where(held >= 0, layers.of_range[held] if len(trace.ranges) else -1, -1)
        phase = np.where(held >= 0, layers.phase_of_range[held] if len(trace.ranges) else OTHER, OTHER)
        iteration = self._iteration_of(self.pieces.start_ns[host.piece])
        gap = np.zeros(base)
        fresh = np.ones(base, np.bool_)
        fresh[1:] = thread[1:] != thread[:-1]
        handed = {(one.thread, one.start_ns) for one in self.bursts}
        for at in np.flatnonzero(fresh).tolist():
            if (int(thread[at]), int(host.start_ns[at])) not in handed:
                gap[at] = (host.start_ns[at] - self.origin_ns) / 1e3
        streams = tuple(
            Resource(t.STREAM, _stream_label(trace, stream, lanes.stream[:i].count(stream)),
                     trace.streams[stream].device)
            for i, stream in enumerate(lanes.stream)
        )  # fmt: skip
        resources = (*(Resource(t.THREAD, _thread_label(trace, one)) for one in threads), *streams)
        count = len(mark_ns)
        first = ~(lanes.previous >= 0) & (activities.call < 0)
        device_gap = np.where(first, (activities.start_ns - self.origin_ns) / 1e3, delays.gap_us)
        start_ns = np.concatenate([host.start_ns, activities.start_ns, mark_ns])
        duration = np.concatenate(
            [host.end_ns - host.start_ns, activities.end_ns - activities.start_ns, 0 * mark_ns]
        )
        main = number.get(self.main, 0)
        return Graph(
            names=names, layers=layers.name, resources=resources,
            name=np.concatenate([host_name, activities.name, mark_name]),
            kind=np.concatenate([np.where(call >= 0, t.CALL, t.WORK), self._device_kinds(), np.full(count, t.MARK)]),
            resource=np.concatenate([
                np.array([number[x] for x in thread.tolist()], np.int64), lanes.lane + len(threads),
                np.full(count, main)]),
            layer=np.concatenate([layer, layers.of_activity, np.full(count, -1)]),
            phase=np.concatenate([phase, layers.phase_of_activity, np.full(count, OTHER)]),
            iteration=np.concatenate([iteration, layers.iteration_of_activity, mark_iteration]),
            row=np.concatenate([call, np.arange(len(activities)), np.full(count, -1)]),
            duration_us=duration / 1e3,
            gap_us=np.concatenate([gap, device_gap, np.zeros(count)]),
            measured_us=(start_ns - self.origin_ns) / 1e3,
            priority=np.zeros(len(start_ns)), removed=np.zeros(len(start_ns), np.bool_),
            src=np.empty(0, np.int64), dst=np.empty(0, np.int64), edge_kind=np.empty(0, np.int64),
            lag_us=np.empty(0), from_start=np.empty(0, np.bool_), iterations=layers.iterations,
        )  # fmt: skip

    def with_marks_in_place(self, graph: Graph, host: HostTasks) -> Graph:
        """Marks moved to where they belong on the main thread; one that comes first carries that thread's offset."""
        marks = np.flatnonzero(graph.kind == t.MARK)
        if not len(marks):
            return graph
        position = np.arange(len(graph), dtype=float)
        on_main = np.flatnonzero(self.pieces.thread[host.piece] == self.main)
        if len(on_main):
            times_us = graph.measured_us[on_main]
            place = np.searchsorted(times_us, graph.measured_us[marks] - 1e-6, "left")
            position[marks] = np.append(on_main, on_main[-1] + 1)[place] - 0.5
            if not place[0]:
                gap = graph.gap_us.copy()
                gap[marks[0]] = min(graph.measured_us[marks[0]], gap[on_main[0]])
                gap[on_main[0]] -= gap[marks[0]]
                graph = replace(graph, gap_us=gap)
        return reordered(graph, np.lexsort((np.arange(len(graph)), position)))

    def _marks(self) -> tuple[Ints, Ints, Ints]:
        found = self.layers.iterations
        times = np.array([x for one in found for x in (one.start_ns, one.end_ns)], np.int64)
        first = len(self.trace.names) + 1
        return times, np.tile([first, first + 1], len(found)), np.repeat(np.arange(len(found)), 2)

    def _iteration_of(self, start_ns: Ints) -> Ints:
        found = self.layers.iterations
        place = np.full(len(start_ns), -1)
        for position, one in enumerate(found):
            place[(start_ns >= one.start_ns) & (start_ns < one.end_ns)] = position
        return place

    def _device_kinds(self) -> Ints:
        collective = np.array([bool(COLLECTIVE_NAME.search(name)) for name in self.trace.names] or [False])
        table = np.array([t.KERNEL, t.COPY, t.MEMSET, t.KERNEL])[self.trace.activities.kind]
        return np.where((table == t.KERNEL) & collective[self.trace.activities.name], t.COLLECTIVE, table)


def _column(column: Ints, rows: Ints) -> Ints:
    """``column[rows]``, also where the table is empty; where a row is -1 the value means nothing."""
    return column[rows] if len(column) else np.full(len(rows), -1)


def _thread_label(trace: Trace, thread: int) -> str:
    one = trace.threads[thread]
    return one.name or f"thread {one.thread}"


def _stream_label(trace: Trace, stream: int, lane: int) -> str:
    one = trace.streams[stream]
    return f"GPU {one.device} stream {one.stream}" + (f" branch {lane + 1}" if lane else "")
