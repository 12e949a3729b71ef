"""A trace → its dependency graph (Daydream, ATC 2020, section 4.2), with all six kinds of dependencies."""

from dataclasses import dataclass, replace

import numpy as np

import surrogate.trace.graph.device as device
import surrogate.trace.graph.host as on_host
import surrogate.trace.graph.tasks as t
from surrogate.trace import events
from surrogate.trace.events.iterations import iteration_at
from surrogate.trace.events.tables import Ints, Trace, grouped, linked
from surrogate.trace.graph.tasks import Floats, Graph, Resource, in_order, reordered
from surrogate.trace.layers import OTHER, Layers, find_layers

OUTSIDE_RANGES = "(outside ranges)"
"""The name of host work that no range names."""


@dataclass(frozen=True, slots=True)
class _Edges:
    """Edges of one kind; host tasks are numbered from 0, device tasks behind them, then marks."""

    kind: int
    src: Ints
    dst: Ints
    lag_us: Floats
    from_start: bool = False


def graph_of(trace: Trace, layers: Layers | None = None) -> Graph:
    """The dependency graph of ``trace``; unchanged, its simulation replays the measured times.

    Time 0 is the first event's start. Raises nothing: what cannot be attached is counted in ``graph.coverage``.
    """
    layers = find_layers(trace) if layers is None else layers
    main = on_host.main_thread(trace)
    every_burst = on_host.bursts(trace, main)
    outer = on_host.outermost_calls(trace)
    pieces = on_host.host_pieces(trace, layers, main, every_burst, outer)
    # What waits for what: calls for activities, activities for those of other streams and lanes.
    launched = device.Launched.of(trace)
    lanes = device.lanes_of(trace)
    call_waits, syncs, lost_syncs = device.awaited_by_calls(trace, launched)
    stream_waits, waits, lost_waits = device.awaited_by_streams(trace, launched)
    branches = [(before, after) for after, before in enumerate(lanes.branch.tolist()) if before >= 0]
    awaited_end_ns = np.full(len(trace.activities), np.nan)
    for before, after in [*stream_waits, *branches]:
        awaited_end_ns[after] = np.fmax(awaited_end_ns[after], trace.activities.end_ns[before])
    delays = device.delays_of(trace, lanes, awaited_end_ns)
    host = on_host.host_tasks(trace, pieces, outer, call_waits)
    assembly = _Assembly(trace, layers, main, every_burst, pieces, host)
    edges = [
        assembly.launch_edges(delays),
        assembly.edges_between_activities(t.EVENT_WAIT, stream_waits, delays),
        assembly.edges_between_activities(t.LANE, branches, delays),
        *assembly.sync_edges(call_waits),
        *assembly.handover_edges(),
        *assembly.end_edges(),
    ]
    # What of the trace is in the graph, and what could not be attached.
    activities = trace.activities
    count = len(trace.activities)
    edge_kind = np.concatenate([np.full(len(part.src), part.kind) for part in edges])
    counts = np.bincount(edge_kind, minlength=len(t.EDGE_KINDS)).tolist()
    without_call = int((activities.call < 0).sum())
    unexplained_us = delays.unexplained_us
    iteration_of = layers.iteration_of_activity
    behind_ns = [
        int(activities.end_ns[iteration_of == i].max(initial=part.end_ns)) - part.end_ns
        for i, part in enumerate(layers.iterations)
    ]
    coverage = {
        "attached_pct": 100.0 * (1 - without_call / count) if count else 100.0,
        "host_tasks": len(host),
        "device_tasks": count,
        "activities_without_call": without_call,
        "graph_kernels": int((activities.graph_node > 0).sum()),
        "edges": dict(zip(t.EDGE_KINDS, counts, strict=True)),
        "syncs": syncs,
        "syncs_without_target": lost_syncs,
        "waits": waits,
        "waits_without_target": lost_waits,
        "unexplained_tasks": int((unexplained_us > 0).sum()),
        "unexplained_us": float(unexplained_us.sum()),
        "launch_latency_us": delays.latency_us,
        "dispatch_gap_us": delays.typical_gap_us,
        "device_behind_us": [time_ns / 1e3 for time_ns in behind_ns],
    }
    return in_order(assembly.with_marks_in_place(assembly.graph(lanes, delays, edges, edge_kind, coverage)))


@dataclass(frozen=True, slots=True, eq=False)
class _Assembly:
    """Host tasks, then device tasks, then the marks of iterations, as columns, and the edges between them."""

    trace: Trace
    layers: Layers
    main: int
    bursts: list[on_host.Burst]
    pieces: on_host.Pieces
    host: on_host.HostTasks

    def graph(
        self, lanes: device.Lanes, delays: device.Delays, edges: list[_Edges], edge_kind: Ints, coverage: t.Coverage
    ) -> Graph:
        """Tasks and edges; a thread's first piece, and one that follows a wait of its thread, start by edges."""
        trace = self.trace
        layers = self.layers
        activities = self.trace.activities
        pieces, host = self.pieces, self.host
        origin_ns = trace.span_ns[0]
        # Names and kinds of the host's tasks: a call's own, or work between two calls.
        threads = sorted(set(pieces.thread.tolist()) | ({self.main} if self.main >= 0 else set()))
        number = {thread: i for i, thread in enumerate(threads)}
        mark_ns, mark_name, mark_iteration = self._marks()
        thread = pieces.thread[host.piece]
        call, around = pieces.call[host.piece], pieces.range[host.piece]
        # Host work is named by the range around it; the profiler's own range around an iteration names no work.
        named = (around >= 0) & (linked(trace.ranges.kind, around) != events.STEP)
        host_name = np.where(named, linked(trace.ranges.name, around), len(trace.names))
        host_name = np.where(call >= 0, linked(trace.calls.name, call), host_name)
        # A thread's first task starts at its measured time, unless another thread hands over to it.
        fresh = np.append(True, thread[1:] != thread[:-1])[: len(host)]
        handed = {(burst.thread, burst.start_ns) for burst in self.bursts}
        gap = np.zeros(len(host))
        for task in np.flatnonzero(fresh).tolist():
            if (int(thread[task]), int(host.start_ns[task])) not in handed:
                gap[task] = (host.start_ns[task] - origin_ns) / 1e3
        # So does a device task that follows none on its stream and was launched by no call.
        first = ~(lanes.previous >= 0) & (activities.call < 0)
        device_gap = np.where(first, (activities.start_ns - origin_ns) / 1e3, delays.gap_us)
        start_ns = np.concatenate([host.start_ns, activities.start_ns, mark_ns])
        end_ns = np.concatenate([host.end_ns, activities.end_ns, mark_ns])
        marks, total = len(mark_ns), len(start_ns)
        host_iteration = iteration_at(layers.iterations, pieces.start_ns[host.piece])
        return Graph(
            names=(*trace.names, OUTSIDE_RANGES, *t.MARKS),
            layers=layers.name,
            resources=(*self._threads(threads), *self._streams(lanes)),
            name=np.concatenate([host_name, activities.name, mark_name]),
            kind=np.concatenate([np.where(call >= 0, t.CALL, t.WORK), self._device_kinds(), np.full(marks, t.MARK)]),
            resource=np.concatenate(
                [
                    np.array([number[x] for x in thread.tolist()], np.int64),
                    lanes.lane + len(threads),
                    np.full(marks, number.get(self.main, 0)),
                ]
            ),
            layer=np.concatenate([linked(layers.of_range, around), layers.of_activity, np.full(marks, -1)]),
            phase=np.concatenate(
                [linked(layers.phase_of_range, around, OTHER), layers.phase_of_activity, np.full(marks, OTHER)]
            ),
            iteration=np.concatenate([host_iteration, layers.iteration_of_activity, mark_iteration]),
            row=np.concatenate([call, np.arange(len(activities)), np.full(marks, -1)]),
            duration_us=(end_ns - start_ns) / 1e3,
            gap_us=np.concatenate([gap, device_gap, np.zeros(marks)]),
            measured_us=(start_ns - origin_ns) / 1e3,
            priority=np.zeros(total),
            removed=np.zeros(total, np.bool_),
            src=np.concatenate([part.src for part in edges]),
            dst=np.concatenate([part.dst for part in edges]),
            edge_kind=edge_kind,
            lag_us=np.concatenate([part.lag_us for part in edges]),
            from_start=np.concatenate([np.full(len(part.src), part.from_start) for part in edges]),
            iterations=layers.iterations,
            coverage=coverage,
        )

    def _threads(self, threads: list[int]) -> list[Resource]:
        used = (self.trace.threads[thread] for thread in threads)
        return [Resource(t.THREAD, thread.name or f"thread {thread.thread}") for thread in used]

    def _streams(self, lanes: device.Lanes) -> list[Resource]:
        resources = []
        for i, stream in enumerate(lanes.stream):
            queue = self.trace.streams[stream]
            lane = lanes.stream[:i].count(stream)
            label = f"GPU {queue.device} stream {queue.stream}" + (f" branch {lane + 1}" if lane else "")
            resources.append(Resource(t.STREAM, label, queue.device))
        return resources

    def _marks(self) -> tuple[Ints, Ints, Ints]:
        """Times, names and iterations of the marks; none without a host thread."""
        every = self.layers.iterations if self.main >= 0 else ()
        times = np.array([x for part in every for x in (part.start_ns, part.end_ns)], np.int64)
        first = len(self.trace.names) + 1
        return times, np.tile([first, first + 1], len(every)), np.repeat(np.arange(len(every)), 2)

    def _device_kinds(self) -> Ints:
        collective = self.trace.named(self.trace.activities, events.COLLECTIVE_NAME.search)
        kind = np.array([t.KERNEL, t.COPY, t.MEMSET, t.KERNEL])[self.trace.activities.kind]
        return np.where((kind == t.KERNEL) & collective, t.COLLECTIVE, kind)

    def launch_edges(self, delays: device.Delays) -> _Edges:
        """From the start of each launch call to what it launched."""
        activities = self.trace.activities
        rows = np.flatnonzero(activities.call >= 0)
        call = activities.call[rows]
        src = self.host.of_call[call]
        # A driver call inside a runtime call launches later than the runtime call starts.
        inner = (self.trace.calls.start_ns[call] - self.host.start_ns[src]) / 1e3
        return _Edges(t.LAUNCH, src, rows + len(self.host), delays.launch_us[rows] + inner, True)

    def edges_between_activities(self, kind: int, pairs: list[tuple[int, int]], delays: device.Delays) -> _Edges:
        """Edges of one kind for pairs (activity before, activity after)."""
        before, after = np.array(pairs, np.int64).reshape(-1, 2).T
        return _Edges(kind, before + len(self.host), after + len(self.host), delays.event_us[after])

    def sync_edges(self, pairs: list[tuple[int, int]]) -> list[_Edges]:
        """From the awaited activity to the call, and from a blocking copy to the return of its call."""
        host = self.host
        base = len(self.host)
        call, activity = np.array(pairs, np.int64).reshape(-1, 2).T
        dst = host.of_call[call]
        late = np.minimum((host.start_ns[dst] - self.trace.activities.end_ns[activity]) / 1e3, 0.0)
        edges = [_Edges(t.SYNC, activity + base, dst, late)]
        for after_end in (True, False):
            chosen = [(call, row) for call, (row, at_end) in host.copies.items() if at_end == after_end]
            call, row = np.array(chosen, np.int64).reshape(-1, 2).T
            zeros = np.zeros(len(chosen))
            edges.append(_Edges(t.SYNC, row + base, host.return_of_call[call], zeros, not after_end))
        return edges

    def handover_edges(self) -> list[_Edges]:
        """From the main thread's last task before a burst to its first, and from its last back to the main thread."""
        host = self.host
        thread = self.pieces.thread[self.host.piece]
        # The tasks of every thread, in time order, and their starts.
        tasks = {x: (rows, host.start_ns[rows]) for x, rows in grouped(thread, np.arange(len(thread)))}
        none = (thread[:0], thread[:0])
        on_main, main_ns = tasks.get(self.main, none)
        edges = []
        for burst in self.bursts:
            rows, starts = tasks.get(burst.thread, none)
            first, last = np.searchsorted(starts, [burst.start_ns, burst.end_ns + 1])
            inside = rows[first:last]
            inside = inside[host.end_ns[inside] <= burst.end_ns]
            if not len(inside):
                continue
            if before := int(np.searchsorted(main_ns, burst.start_ns)):
                edges.append(self._handover(int(on_main[before - 1]), int(inside[0]), burst.start_ns))
            for _, stop in burst.idle:
                after = int(np.searchsorted(main_ns, stop))
                done = inside[host.start_ns[inside] < stop]
                if after < len(on_main) and len(done):
                    edges.append(self._handover(int(done[-1]), int(on_main[after]), int(main_ns[after])))
        return edges

    def _handover(self, src: int, dst: int, time_ns: int) -> _Edges:
        """An edge that lets a task start at ``time_ns``: by the other's end, or its start where it still runs then."""
        running = bool(self.host.end_ns[src] > time_ns)
        reference = (self.host.start_ns if running else self.host.end_ns)[src]
        lag = np.array([(time_ns - reference) / 1e3])
        return _Edges(t.HANDOVER, np.array([src]), np.array([dst]), lag, running)

    def end_edges(self) -> list[_Edges]:
        """An iteration that ends with the trace ends with all of it: device tasks and other threads included."""
        host = self.host
        thread = self.pieces.thread[self.host.piece]
        stream = self.trace.activities.stream
        base = len(self.host)
        on_main = thread == self.main
        main_end_ns = int(host.end_ns[on_main].max()) if on_main.any() else -1
        last = [int(np.flatnonzero(stream == s)[-1]) + base for s in np.unique(stream).tolist()]
        last += [int(np.flatnonzero(thread == x)[-1]) for x in np.unique(thread).tolist() if x != self.main]
        edges = []
        for i, iteration in enumerate(self.layers.iterations if self.main >= 0 else ()):
            if iteration.end_ns > main_end_ns:
                mark = np.full(len(last), base + len(stream) + 2 * i + 1)
                edges.append(_Edges(t.END, np.array(last, np.int64), mark, np.zeros(len(last))))
        return edges

    def with_marks_in_place(self, graph: Graph) -> Graph:
        """Marks moved to where they belong on the main thread; one that comes first carries that thread's offset."""
        marks = np.flatnonzero(graph.kind == t.MARK)
        if not len(marks):
            return graph
        position = np.arange(len(graph), dtype=float)
        on_main = np.flatnonzero(self.pieces.thread[self.host.piece] == self.main)
        if len(on_main):
            before = np.searchsorted(graph.measured_us[on_main], graph.measured_us[marks] - 1e-6, "left")
            position[marks] = np.append(on_main, on_main[-1] + 1)[before] - 0.5
            if not before[0]:
                gap = graph.gap_us.copy()
                gap[marks[0]] = min(graph.measured_us[marks[0]], gap[on_main[0]])
                gap[on_main[0]] -= gap[marks[0]]
                graph = replace(graph, gap_us=gap)
        return reordered(graph, np.lexsort((np.arange(len(graph)), position)))
