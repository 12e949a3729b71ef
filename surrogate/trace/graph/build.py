"""Build the dependency graph of a trace (Daydream, ATC 2020, section 4.2), with all six kinds of dependencies."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

import surrogate.trace.graph.device as device
import surrogate.trace.graph.host as on_host
import surrogate.trace.graph.tasks as tasks
from surrogate.features.errors import InputError
from surrogate.trace import events
from surrogate.trace.events.parts import OTHER, Layers, find_layers, iteration_at
from surrogate.trace.events.phases import launched_before, outermost_calls
from surrogate.trace.events.tables import Ints, Trace, grouped, joined, linked
from surrogate.trace.graph.tasks import Floats, Graph, Resource, in_order, reordered

OUTSIDE_RANGES = "(outside ranges)"
"""The name of host work outside all ranges."""


@dataclass(frozen=True, slots=True)
class _Edges:
    """Edges of one kind. Task numbers from 0: host tasks, then device tasks, then marks."""

    kind: int
    src: Ints
    dst: Ints
    lag_us: Floats
    from_start: bool = False


def graph_of(trace: Trace, layers: Layers | None = None) -> Graph:
    """Return the dependency graph of a trace. Without changes, its simulation replays the measured times.

    Time 0 is the start of the first event. Nothing is raised; ``coverage`` of the graph counts the events that could
    not be attached.

    Parameters
    ----------
    trace : Trace
        The trace.
    layers : Layers, optional
        The layers of the trace; by default `find_layers` finds them.

    Returns
    -------
    Graph
    """
    layers = find_layers(trace) if layers is None else layers
    trace, layers, row = _with_earlier(trace, layers)
    main = on_host.main_thread(trace)
    every_burst = on_host.bursts(trace, main)
    outer = outermost_calls(trace)
    pieces = on_host.host_pieces(trace, layers, main, every_burst, outer)
    # Find the waits: of calls for activities, and of activities for activities of other streams and lanes.
    launched = device.Launched.of(trace)
    lanes = device.lanes_of(trace)
    by_calls = device.awaited_by_calls(trace, launched)
    by_streams = device.awaited_by_streams(trace, launched)
    branches = [(before, after) for after, before in enumerate(lanes.branch.tolist()) if before >= 0]
    delays = device.delays_of(trace, lanes, [*by_streams.pairs, *branches])
    if inferred := device.unrecorded_waits(trace, delays.unexplained_us):
        by_streams = by_streams._replace(pairs=[*by_streams.pairs, *inferred])
        delays = device.delays_of(trace, lanes, [*by_streams.pairs, *branches])
    host = on_host.host_tasks(trace, pieces, outer, by_calls.pairs)
    assembly = _Assembly(trace, layers, main, every_burst, pieces, host, lanes, delays)
    edges = [
        assembly.launch_edges(),
        assembly.edges_between_activities(tasks.EVENT_WAIT, by_streams.pairs),
        assembly.edges_between_activities(tasks.LANE, branches),
        *assembly.sync_edges(by_calls.pairs),
        *assembly.handover_edges(),
        *assembly.end_edges(),
    ]
    graph = assembly.graph(edges)
    on_device = np.isin(graph.kind, tasks.DEVICE_KINDS)
    graph = replace(graph, row=np.where(on_device, linked(row, np.where(on_device, graph.row, -1)), graph.row))
    graph, against_time = _ordered(assembly.with_marks_in_place(graph))
    coverage = assembly.coverage(graph, by_calls, by_streams)
    return replace(graph, coverage={**coverage, "edges_against_time": against_time})


def _with_earlier(trace: Trace, layers: Layers) -> tuple[Trace, Layers, Ints]:
    """Return the trace with the work that was launched before it, and the row of each activity in the given trace.

    Work that was launched before belongs to no iteration. It is of two kinds: activities of iterations that were left
    out, with row -1, and activities without a call that begin before all activities with a call. If their stream has
    activities with a call, only these count. An activity that began before its call has no call.
    """
    activities = trace.activities
    row = np.arange(len(activities))
    columns = {name: getattr(layers, name) for name in ("of_activity", "phase_of_activity", "iteration_of_activity")}
    if len(earlier := device.earlier_work(trace, layers.iterations)):
        order = np.argsort(np.append(earlier.start_ns, activities.start_ns), kind="stable")
        activities = joined(earlier, activities)
        row = np.append(np.full(len(earlier), -1), row)[order]
        columns = {
            name: linked(column, row, OTHER if name == "phase_of_activity" else -1) for name, column in columns.items()
        }
    late_ns = linked(trace.calls.start_ns, activities.call, 0) - activities.start_ns
    is_late = (activities.call >= 0) & (late_ns > device.TOLERANCE_NS)
    call, around = (np.where(is_late, -1, column) for column in (activities.call, activities.range))
    trace = replace(trace, activities=replace(activities, call=call, range=around))
    columns["iteration_of_activity"] = np.where(launched_before(trace), -1, columns["iteration_of_activity"])
    return trace, replace(layers, **columns), row


def _ordered(graph: Graph) -> tuple[Graph, int]:
    """Return the graph in an order of its dependencies, and the number of edges that were dropped for it.

    An edge is dropped if it contradicts the measured times by more than the tolerance. If tasks still depend on each
    other in a circle, every edge to a task that was measured earlier is dropped.
    """
    passed_us = graph.measured_us[graph.src] + np.where(graph.from_start, 0.0, graph.duration_us[graph.src])
    kept = passed_us <= graph.measured_us[graph.dst] + device.TOLERANCE_NS / 1e3 + 1e-6
    ordered = _with_edges(graph, kept)
    try:
        return in_order(ordered), int((~kept).sum())
    except InputError:
        rank = np.argsort(np.argsort(graph.measured_us, kind="stable"))
        kept &= rank[graph.src] < rank[graph.dst]
        return in_order(_with_edges(graph, kept)), int((~kept).sum())


def _with_edges(graph: Graph, kept: tasks.Mask) -> Graph:
    return replace(graph, **{name: getattr(graph, name)[kept] for name in tasks.EDGE_COLUMNS})


@lru_cache(maxsize=1)
def shared_graph(trace: Trace, layers: Layers) -> Graph:
    """Return `graph_of`, built once for several analyses. They leave its arrays as they are."""
    return graph_of(trace, layers)


@dataclass(frozen=True, slots=True, eq=False)
class _Assembly:
    """The columns of a graph (host tasks, then device tasks, then the marks of iterations), and its edges."""

    trace: Trace
    layers: Layers
    main: int
    bursts: list[on_host.Burst]
    pieces: on_host.Pieces
    host: on_host.HostTasks
    lanes: device.Lanes
    delays: device.Delays

    def graph(self, edges: list[_Edges]) -> Graph:
        """Return the graph of the tasks and edges.

        The first piece of a thread, and a piece after a wait of its thread, start by edges.
        """
        trace, layers, pieces, host = self.trace, self.layers, self.pieces, self.host
        activities = trace.activities
        threads = sorted(set(pieces.thread.tolist()) | ({self.main} if self.main >= 0 else set()))
        number = {thread: i for i, thread in enumerate(threads)}
        mark_ns, mark_name, mark_iteration = self._marks()
        call, around = pieces.call[host.piece], pieces.range[host.piece]
        # Host tasks are calls, or work between calls, named after its range unless that is the profiler's step.
        has_name = (around >= 0) & (linked(trace.ranges.kind, around) != events.STEP)
        host_name = np.where(has_name, linked(trace.ranges.name, around), len(trace.names))
        start_ns = np.concatenate([host.start_ns, activities.start_ns, mark_ns])
        end_ns = np.concatenate([host.end_ns, activities.end_ns, mark_ns])
        thread = np.array([number[x] for x in host.thread.tolist()], np.int64)
        iteration = iteration_at(layers.iterations, pieces.start_ns[host.piece])
        # Column → values for host tasks, device tasks and marks; a single value holds for the whole group.
        columns = {
            "name": (np.where(call >= 0, linked(trace.calls.name, call), host_name), activities.name, mark_name),
            "kind": (np.where(call >= 0, tasks.CALL, tasks.WORK), self._device_kinds(), tasks.MARK),
            "resource": (thread, self.lanes.lane + len(threads), number.get(self.main, 0)),
            "layer": (linked(layers.of_range, around), layers.of_activity, -1),
            "phase": (linked(layers.phase_of_range, around, OTHER), layers.phase_of_activity, OTHER),
            "iteration": (iteration, layers.iteration_of_activity, mark_iteration),
            "row": (call, np.arange(len(activities)), -1),
            "gap_us": (*self._gaps_us(), 0.0),
            "priority": (0.0, 0.0, 0.0),
            "removed": (False, False, False),
        }
        sizes = (len(host), len(activities), len(mark_ns))
        filled: Any = {
            name: np.concatenate(list(map(np.broadcast_to, parts, sizes))) for name, parts in columns.items()
        }
        counts = [len(part.src) for part in edges]
        return Graph(
            names=(*trace.names, OUTSIDE_RANGES, *tasks.MARKS),
            layers=layers.name,
            resources=(*self._threads(threads), *self._streams()),
            **filled,
            duration_us=(end_ns - start_ns) / 1e3,
            measured_us=(start_ns - trace.span_ns[0]) / 1e3,
            src=np.concatenate([part.src for part in edges]),
            dst=np.concatenate([part.dst for part in edges]),
            lag_us=np.concatenate([part.lag_us for part in edges]),
            edge_kind=np.repeat([part.kind for part in edges], counts),
            from_start=np.repeat([part.from_start for part in edges], counts),
            iterations=layers.iterations,
            recorded_lag_us=layers.device_behind_us(activities),
        )

    def coverage(self, graph: Graph, by_calls: device.Waits, by_streams: device.Waits) -> tasks.Coverage:
        """Return the numbers of attached and unattached events (`Graph.coverage`)."""
        activities = self.trace.activities
        count = len(activities)
        without_call = int((activities.call < 0).sum())
        counts = np.bincount(graph.edge_kind, minlength=len(tasks.EDGE_KINDS)).tolist()
        return {
            "attached_pct": 100.0 * (1 - without_call / count) if count else 100.0,
            "host_tasks": len(self.host),
            "device_tasks": count,
            "activities_without_call": without_call,
            "graph_kernels": int((activities.graph_node > 0).sum()),
            "edges": dict(zip(tasks.EDGE_KINDS, counts, strict=True)),
            "syncs": by_calls.total,
            "syncs_without_target": by_calls.without_target,
            "waits": by_streams.total,
            "waits_without_target": by_streams.without_target,
            "unexplained_tasks": int((self.delays.unexplained_us > 0).sum()),
            "unexplained_us": float(self.delays.unexplained_us.sum()),
            "launch_latency_us": self.delays.latency_us,
            "dispatch_gap_us": self.delays.typical_gap_us,
            "device_behind_us": list(graph.recorded_lag_us),
            "missing_wait_us": self._missing_wait_us(),
        }

    def _missing_wait_us(self) -> float:
        """Return the host's time in waits for work that the trace lacks (`Graph.coverage`)."""
        calls, host = self.trace.calls, self.host
        waits = np.flatnonzero((calls.kind == events.SYNC_CALL) | device.copies_without_activity(self.trace))
        used = {self.main, *(burst.thread for burst in self.bursts)}
        waits = waits[np.isin(calls.thread[waits], list(used))]
        waits = waits[iteration_at(self.layers.iterations, calls.start_ns[waits]) >= 0]
        # The task of a waiting call is its time after the end of the awaited work.
        rows = np.unique(host.of_call[waits])
        rest_us = (host.end_ns[rows] - host.start_ns[rows]) / 1e3
        return float(rest_us[rest_us > device.UNEXPLAINED_US].sum())

    def _gaps_us(self) -> tuple[Floats, Floats]:
        """Return the gaps of host and device tasks in µs.

        A gap is the time after the previous task. The first task of a resource that no edge starts has a gap after time
        0.
        """
        host, activities, origin_ns = self.host, self.trace.activities, self.trace.span_ns[0]
        handed = {(burst.thread, burst.start_ns) for burst in self.bursts}
        gap = np.zeros(len(host))
        for task in np.flatnonzero(np.append(True, host.thread[1:] != host.thread[:-1])[: len(host)]).tolist():
            if (int(host.thread[task]), int(host.start_ns[task])) not in handed:
                # A call that waits begins before its task, which is its time after the wait.
                gap[task] = (self.pieces.start_ns[host.piece[task]] - origin_ns) / 1e3
        first = (self.lanes.previous < 0) & (activities.call < 0)
        return gap, np.where(first, (activities.start_ns - origin_ns) / 1e3, self.delays.gap_us)

    def _threads(self, threads: list[int]) -> list[Resource]:
        used = (self.trace.threads[thread] for thread in threads)
        return [Resource(tasks.THREAD, thread.name or f"thread {thread.thread}") for thread in used]

    def _streams(self) -> list[Resource]:
        resources = []
        for i, stream in enumerate(self.lanes.stream):
            queue = self.trace.streams[stream]
            lane = self.lanes.stream[:i].count(stream)
            resources.append(Resource(tasks.STREAM, queue.label + f" branch {lane + 1}" * (lane > 0), queue.device))
        return resources

    def _marks(self) -> tuple[Ints, Ints, Ints]:
        """Return the times, names and iterations of the marks; empty without a host thread."""
        every = self.layers.iterations if self.main >= 0 else ()
        times = np.array([x for part in every for x in (part.start_ns, part.end_ns)], np.int64)
        first = len(self.trace.names) + 1
        return times, np.tile([first, first + 1], len(every)), np.repeat(np.arange(len(every)), 2)

    def _device_kinds(self) -> Ints:
        collective = self.trace.name_matches(self.trace.activities, events.COLLECTIVE_NAME.search)
        kind = np.array([tasks.KERNEL, tasks.COPY, tasks.MEMSET, tasks.KERNEL])[self.trace.activities.kind]
        return np.where((kind == tasks.KERNEL) & collective, tasks.COLLECTIVE, kind)

    def launch_edges(self) -> _Edges:
        """Return edges from the start of each launch call to the activities that it launched."""
        rows = np.flatnonzero(self.trace.activities.call >= 0)
        call = self.trace.activities.call[rows]
        src = self.host.of_call[call]
        # A driver call inside a runtime call launches later than the runtime call's start.
        inner = (self.trace.calls.start_ns[call] - self.host.start_ns[src]) / 1e3
        return _Edges(tasks.LAUNCH, src, rows + len(self.host), self.delays.launch_us[rows] + inner, True)

    def edges_between_activities(self, kind: int, pairs: device.Pairs) -> _Edges:
        """Return edges of one kind for pairs (activity before, activity after)."""
        before, after = np.array(pairs, np.int64).reshape(-1, 2).T
        return _Edges(kind, before + len(self.host), after + len(self.host), self.delays.event_us[after])

    def sync_edges(self, pairs: device.Pairs) -> list[_Edges]:
        """Return edges from the awaited activity to the call, and from a blocking copy to the return of its call."""
        host = self.host
        base = len(self.host)
        call, activity = np.array(pairs, np.int64).reshape(-1, 2).T
        dst = host.of_call[call]
        late = np.minimum((host.start_ns[dst] - self.trace.activities.end_ns[activity]) / 1e3, 0.0)
        edges = [_Edges(tasks.SYNC, activity + base, dst, late)]
        for after_end in (True, False):
            chosen = [(call, row) for call, (row, at_end) in host.copies.items() if at_end == after_end]
            call, row = np.array(chosen, np.int64).reshape(-1, 2).T
            back = host.return_of_call[call]
            allowed_ns = (self.trace.activities.end_ns if after_end else self.trace.activities.start_ns)[row]
            late = np.minimum((host.start_ns[back] - allowed_ns) / 1e3, 0.0)
            edges.append(_Edges(tasks.SYNC, row + base, back, late, not after_end))
        return edges

    def handover_edges(self) -> list[_Edges]:
        """Return the edges between the main thread and the bursts of other threads.

        One edge leads from the main thread's last task before a burst to the burst's first task. Another leads from the
        burst's last task back to the main thread.
        """
        host = self.host
        # Collect the tasks of every thread in time order, and their starts.
        of_thread = {x: (rows, host.start_ns[rows]) for x, rows in grouped(host.thread, np.arange(len(host)))}
        none = (host.thread[:0], host.thread[:0])
        on_main, main_ns = of_thread.get(self.main, none)
        edges = []
        for burst in self.bursts:
            rows, starts = of_thread.get(burst.thread, none)
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
        """Return an edge that lets ``dst`` start at ``time_ns``.

        The edge starts at the end of ``src``, or at its start if ``src`` still runs at that time.
        """
        running = bool(self.host.end_ns[src] > time_ns)
        reference = (self.host.start_ns if running else self.host.end_ns)[src]
        lag = np.array([(time_ns - reference) / 1e3])
        return _Edges(tasks.HANDOVER, np.array([src]), np.array([dst]), lag, running)

    def end_edges(self) -> list[_Edges]:
        """Return the edges that end the last iteration with the trace, device tasks and other threads included."""
        host = self.host
        stream = self.trace.activities.stream
        base = len(host)
        on_main = host.thread == self.main
        main_end_ns = int(host.end_ns[on_main].max()) if on_main.any() else -1
        last = [int(np.flatnonzero(stream == s)[-1]) + base for s in np.unique(stream).tolist()]
        last += [int(np.flatnonzero(host.thread == x)[-1]) for x in np.unique(host.thread).tolist() if x != self.main]
        edges = []
        for i, iteration in enumerate(self.layers.iterations if self.main >= 0 else ()):
            if iteration.end_ns > main_end_ns:
                mark = np.full(len(last), base + len(stream) + 2 * i + 1)
                edges.append(_Edges(tasks.END, np.array(last, np.int64), mark, np.zeros(len(last))))
        return edges

    def with_marks_in_place(self, graph: Graph) -> Graph:
        """Return the graph with marks at their positions on the main thread.

        If a mark comes first, it takes over the offset of that thread.
        """
        marks = np.flatnonzero(graph.kind == tasks.MARK)
        if not len(marks):
            return graph
        position = np.arange(len(graph), dtype=float)
        on_main = np.flatnonzero(self.host.thread == self.main)
        if len(on_main):
            before = np.searchsorted(graph.measured_us[on_main], graph.measured_us[marks] - 1e-6, "left")
            position[marks] = np.append(on_main, on_main[-1] + 1)[before] - 0.5
            if not before[0]:
                gap = graph.gap_us.copy()
                gap[marks[0]] = min(graph.measured_us[marks[0]], gap[on_main[0]])
                gap[on_main[0]] -= gap[marks[0]]
                graph = replace(graph, gap_us=gap)
        return reordered(graph, np.lexsort((np.arange(len(graph)), position)))
