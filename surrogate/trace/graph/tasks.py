"""The dependency graph: `Graph` (tasks and edges as columns), its order, its simulation, and the critical path of a
simulation.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surrogate.features.errors import InputError, check_choice
from surrogate.trace.events.parts import Iteration
from surrogate.trace.events.tables import Floats, Ints, linked

Mask = NDArray[np.bool_]

WORK, CALL, KERNEL, COPY, MEMSET, COLLECTIVE, MARK = range(7)
TASK_KINDS = ("host work", "call", "kernel", "copy", "memset", "collective", "mark")
"""Host work is the time of a thread between calls. A mark is the start or end of an iteration, with length 0."""
DEVICE_KINDS = (KERNEL, COPY, MEMSET, COLLECTIVE)

LAUNCH, SYNC, EVENT_WAIT, HANDOVER, COMMUNICATION, LANE, END = range(7)
EDGE_KINDS = (
    *("launch", "synchronisation", "event wait", "thread hand-over", "communication", "stream branch"),
    "end of trace",
)
"""Edges between resources. The order on one thread, stream or channel is the order of the tasks and needs no edge."""

MARKS = ("iteration start", "iteration end")
THREAD, STREAM, CHANNEL = "thread", "stream", "channel"
Policy = str | Callable[["Graph"], Sequence[float] | Floats]
"""The rule for the next ready task: a name, or one number per task, the lowest first."""
Coverage = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource that runs one task at a time.

    Attributes
    ----------
    kind : str
        ``thread`` of the host, ``stream`` of a device, or communication ``channel``.
    label : str
        Name for people.
    device : int
        Number of the device; −1 for a thread.
    """

    kind: str
    label: str
    device: int = -1


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Graph:
    """Tasks and edges as columns. The tasks are in an order in which every dependency comes first.

    A task starts ``gap_us`` after the end of its resource's previous task (the first one: after time 0) and not before
    any edge into it allows it. An edge allows it ``lag_us`` after the end of ``src``, or after its start if
    ``from_start``.

    Attributes
    ----------
    names, layers, resources
        The values that ``name``, ``layer`` (-1: none) and ``resource`` refer to.
    name, kind, resource, layer, phase, iteration
        Name, kind (`TASK_KINDS`), resource, layer, phase and iteration of each task.
    row
        The row in the trace's calls (host) or activities (device), -1 for tasks that are not in the trace.
    duration_us, gap_us, measured_us
        Duration, gap to the previous task and measured start of each task, in µs.
    priority
        The priority of each task, for the policy ``priority``.
    removed
        Tasks that take no time and only pass their dependencies on.
    src, dst, edge_kind, lag_us, from_start
        The edges.
    iterations
        The iterations of the trace.
    recorded_lag_us
        For every iteration, the time that its device tasks continued after its end mark.
    coverage
        Counts of attached and unattached events. ``activities_without_call`` keep their place on their stream but
        follow no launch. ``graph_kernels`` follow the launch of their CUDA graph together. ``attached_pct`` is the
        share of device tasks that follow a launch. ``unexplained_us`` is the time that device tasks waited for events
        that are not in the trace, over 20 µs each; ``unexplained_tasks`` is their number, and a replay keeps this time.
        ``device_behind_us`` is `recorded_lag_us`. ``edges_against_time`` counts the edges that the measured times
        contradict, which are left out. ``missing_wait_us`` is the host's time in waits for work of the device that the
        trace lacks, over 20 µs each, in the iterations.
    policies
        Resource → policy.
    """

    names: tuple[str, ...]
    layers: tuple[str, ...]
    resources: tuple[Resource, ...]
    name: Ints
    kind: Ints
    resource: Ints
    layer: Ints
    phase: Ints
    iteration: Ints
    row: Ints
    duration_us: Floats
    gap_us: Floats
    measured_us: Floats
    priority: Floats
    removed: Mask
    src: Ints
    dst: Ints
    edge_kind: Ints
    lag_us: Floats
    from_start: Mask
    iterations: tuple[Iteration, ...] = ()
    recorded_lag_us: tuple[float, ...] = ()
    coverage: Coverage = field(default_factory=dict)
    policies: Mapping[int, Policy] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.kind)

    def __repr__(self) -> str:
        return f"Graph({len(self):,} tasks on {len(self.resources)} resources, {len(self.src):,} edges)"

    def name_of(self, task: int) -> str:
        """Return the task's name."""
        return self.names[int(self.name[task])]

    @property
    def on_streams(self) -> Mask:
        """Return a mask of the tasks on streams that belong to iterations; work from before the trace does not."""
        is_stream = np.array([resource.kind == STREAM for resource in self.resources] or [False])
        return is_stream[self.resource] & (self.iteration >= 0)

    @property
    def earlier(self) -> Ints:
        """Return the device tasks that precede all tasks of iterations on the device: work from before the trace."""
        on_device = np.isin(self.kind, DEVICE_KINDS)
        return np.flatnonzero(on_device & (np.cumsum(on_device & (self.iteration >= 0)) == 0))

    @property
    def has_short_first(self) -> bool:
        """Return whether the first iteration is shorter than the others, and leaves more work than it began with."""
        first_us, *others_us = (iteration.time_us for iteration in self.iterations)
        is_short = first_us < (1 - MIN_LAG_SHARE) * float(np.mean(others_us or [0.0]))
        return is_short and device_lag_us(self.iterations[:1], self.recorded_lag_us[:1], self.queue_us) > 0

    @property
    def queue_us(self) -> float:
        """Recorded time in µs that the device runs earlier work after the start of the first iteration."""
        ends_us = self.measured_us[self.earlier] + self.duration_us[self.earlier]
        starts_us = self.measured_us[self.kind == MARK]
        return max(float(ends_us.max(initial=0.0) - starts_us[0]), 0.0) if len(starts_us) else 0.0


TASK_COLUMNS = (
    *("name", "kind", "resource", "layer", "phase", "iteration", "row"),
    *("duration_us", "gap_us", "measured_us", "priority", "removed"),
)
EDGE_COLUMNS = ("src", "dst", "edge_kind", "lag_us", "from_start")


def previous_on_resource(resource: Ints) -> Ints:
    """Return for every task the previous task on its resource, -1 for the first."""
    previous = np.full(len(resource), -1, np.int64)
    order = np.argsort(resource, kind="stable")
    same = resource[order][1:] == resource[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def in_order(graph: Graph) -> Graph:
    """Return the graph sorted by measured start, as far as its dependencies allow.

    The order on one resource stays. Raises `InputError` if tasks depend on each other in a circle.
    """
    order = np.argsort(graph.measured_us, kind="stable")
    rank = np.argsort(order)
    before = previous_on_resource(graph.resource)
    chained = np.flatnonzero(before >= 0)
    src = np.concatenate([graph.src, before[chained]])
    dst = np.concatenate([graph.dst, chained])
    if not (rank[src] < rank[dst]).all():
        order = _topological(len(graph), src, dst, rank)
    return reordered(graph, order)


def reordered(graph: Graph, order: Ints) -> Graph:
    """Return the graph with the tasks in the given order and renumbered edges."""
    rank = np.argsort(order)
    columns = {name: getattr(graph, name)[order] for name in TASK_COLUMNS}
    return replace(graph, **columns, src=rank[graph.src], dst=rank[graph.dst])


def _topological(count: int, src: Ints, dst: Ints, rank: Ints) -> Ints:
    """Return a topological order (Kahn's algorithm). The next task is the free task with the lowest ``rank``."""
    # Collect the targets of all edges in one list, with the position where each task's targets begin.
    following = dst[np.argsort(src, kind="stable")].tolist()
    begins = np.concatenate([[0], np.cumsum(np.bincount(src, minlength=count))]).tolist()
    waiting = np.bincount(dst, minlength=count)
    ranks = rank.tolist()
    ready = [(ranks[task], task) for task in np.flatnonzero(waiting == 0).tolist()]
    heapq.heapify(ready)
    left = waiting.tolist()
    order = []
    while ready:
        _, task = heapq.heappop(ready)
        order.append(task)
        for target in following[begins[task] : begins[task + 1]]:
            left[target] -= 1
            if not left[target]:
                heapq.heappush(ready, (ranks[target], target))
    if len(order) < count:
        raise InputError(
            f"{count - len(order):,} tasks depend on each other in a circle;"
            " insert each task after its inputs and before the tasks that need it"
        )
    return np.array(order, dtype=np.int64)


POLICIES = ("recorded", "arrival", "priority", "shortest")
"""The rules for the next task of a resource: as recorded (default), the first that is ready, the highest priority, the
shortest.
"""
MIN_LAG_SHARE = 0.05
"""Minimum growth of the device's lag after the host, as a share of an iteration, from which the device's times
determine the length of an iteration.
"""
_BOUNDS = {
    **dict.fromkeys(("host work", "call"), "host"),
    **dict.fromkeys(("kernel", "memset"), "device"),
    **{"collective": "communication", "copy": "copy", "waiting": "waiting"},
}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Timeline:
    """The result of a simulation.

    Attributes
    ----------
    graph
        The simulated graph.
    start_us, end_us
        Start and end of every task in µs from time 0.
    """

    graph: Graph
    start_us: Floats
    end_us: Floats

    @property
    def total_us(self) -> float:
        """Time from the first start to the last end of the tasks that are not removed; 0 for an empty graph."""
        present = ~self.graph.removed
        return float(self.end_us[present].max() - self.start_us[present].min()) if present.any() else 0.0

    @property
    def per_iteration_us(self) -> float:
        """Mean time between successive ends of iterations, in µs; the first iteration counts from its own start.

        An iteration ends with its end mark, or later if the device or the network lags further behind this mark than
        recorded. So work that the host does not wait for counts only if a change adds to it. If the recorded lag grows
        with each iteration (`device_lag_us`), or only in a short first one (`has_short_first`), the device's own ends
        count, from the first iteration's. No iteration is shorter than the work and the gaps of the busiest stream or
        channel. Without marks, the iterations share `total_us` equally.
        """
        marks = self.marks_us()
        count = max(len(self.graph.iterations), 1)
        if not len(marks):
            return self.total_us / count
        graph = self.graph
        # The time that the last device or network task of an iteration runs after its end mark.
        behind_us = np.full(count, -np.inf)
        is_thread = np.array([resource.kind == THREAD for resource in graph.resources])
        rows = np.flatnonzero(~is_thread[graph.resource] & ~graph.removed & (graph.iteration >= 0))
        np.maximum.at(behind_us, graph.iteration[rows], self.end_us[rows] - marks[graph.iteration[rows], 1])
        ends_us = marks[:, 1] + np.maximum(behind_us - (graph.recorded_lag_us or 0.0), 0.0)
        # In its first iteration, the device can lack the earlier work that it has left after the last one.
        gaps_us = np.where(np.isin(graph.resource[rows], list(graph.policies)), 0.0, graph.gap_us[rows])
        work_us = np.bincount(graph.resource[rows], graph.duration_us[rows] + gaps_us).max(initial=0.0)
        mean_us = max(float(ends_us.max() - marks[0, 0]), float(work_us)) / count
        ran = np.flatnonzero(np.isfinite(behind_us))
        if not (self.device_lag_us or graph.has_short_first) or not len(ran):
            return mean_us
        # The device's ends of the first and of the last iteration that it ran completely.
        device_us = (marks[:, 1] + behind_us)[ran]
        earlier_us = self.end_us[graph.earlier].max(initial=marks[0, 0])
        first_us, first = (device_us[0], ran[0]) if len(ran) > 1 else (earlier_us, -1)
        host_us = np.diff(marks).sum() / count
        return float(max((device_us[-1] - first_us) / (ran[-1] - first), host_us))

    @property
    def device_lag_us(self) -> float:
        """Growth of the device's recorded lag per iteration, in µs; 0 up to `MIN_LAG_SHARE` of an iteration."""
        return device_lag_us(self.graph.iterations, self.graph.recorded_lag_us, self.graph.queue_us)

    def marks_us(self) -> Floats:
        """Return start and end of every iteration by its marks on the main thread, shape (iterations, 2).

        The array is empty without marks.
        """
        marks = np.flatnonzero(self.graph.kind == MARK)
        order = np.lexsort((self.graph.name[marks], self.graph.iteration[marks]))  # a start's name is before an end's
        return self.start_us[marks[order]].reshape(-1, 2)

    def iteration_us(self) -> list[float]:
        """Return for every iteration the time between its start mark and its end mark on the main thread."""
        return np.diff(self.marks_us()).ravel().tolist()

    def __repr__(self) -> str:
        return f"Timeline({self.graph!r}, {self.total_us / 1e3:.3f} ms)"


def device_lag_us(iterations: Sequence[Iteration], behind_us: Sequence[float], queue_us: float = 0.0) -> float:
    """Return the growth of the device's lag per iteration in µs (`Timeline.device_lag_us`).

    The lag of a single iteration grows from ``queue_us``, the lag at its start.
    """
    count = len(behind_us)
    if not count:
        return 0.0
    lag_us = (behind_us[-1] - (behind_us[0] if count > 1 else queue_us)) / max(count - 1, 1)
    step_us = sum(part.time_us for part in iterations) / count
    return lag_us if lag_us > MIN_LAG_SHARE * step_us else 0.0


def simulate(graph: Graph) -> Timeline:
    """Return the earliest start and the end of every task.

    A task starts when its resource's previous task and every edge into it have passed. If a resource has a policy
    (`Graph.policies`), its ready tasks run in the order of the policy. Otherwise tasks run in the graph's order.

    Parameters
    ----------
    graph : Graph
        The graph.

    Returns
    -------
    Timeline

    Raises
    ------
    InputError
        If a policy is unknown.
    """
    keys = {resource: _keys(graph, policy) for resource, policy in graph.policies.items() if policy != "recorded"}
    times = _simulate_with_policies(graph, keys) if keys else _simulate_in_order(graph)
    start, end = (np.array(column, dtype=float) for column in times)
    return Timeline(graph, start, end)


def _simulate_in_order(graph: Graph) -> tuple[list[float], list[float]]:
    """Return starts and ends in the graph's order, in which every dependency has a time before it is needed."""
    count = len(graph)
    by_target = np.argsort(graph.dst, kind="stable")
    # One list holds ends, then starts. Each edge refers to one of the two.
    sources = (graph.src + count * graph.from_start)[by_target].tolist()
    lags = graph.lag_us[by_target].tolist()
    stops = np.cumsum(np.bincount(graph.dst, minlength=count)).tolist()
    free = [0.0] * len(graph.resources)
    times = [0.0] * (2 * count)
    edge = 0
    for task, (resource, gap, duration, stop) in enumerate(
        zip(graph.resource.tolist(), graph.gap_us.tolist(), graph.duration_us.tolist(), stops, strict=True)
    ):
        start = free[resource] + gap
        while edge < stop:
            ready = times[sources[edge]] + lags[edge]
            if ready > start:
                start = ready
            edge += 1
        times[count + task] = start
        times[task] = free[resource] = start + duration
    return times[count:], times[:count]


def _keys(graph: Graph, policy: Policy) -> list[float]:
    """Return the sort key of the policy for each task; the lowest is next."""
    if callable(policy):
        keys = np.asarray(policy(graph), dtype=float)
        if keys.shape != (len(graph),):
            raise InputError(f"a policy gave shape {keys.shape}; give one number for each of {len(graph):,} tasks")
        return keys.tolist()
    keys = {"arrival": np.zeros(len(graph)), "priority": -graph.priority, "shortest": graph.duration_us}
    check_choice("policy", policy, POLICIES)
    return keys[policy].tolist()


def _simulate_with_policies(graph: Graph, keys: Mapping[int, list[float]]) -> tuple[list[float], list[float]]:
    """Return starts and ends, event by event in time order. A resource without keys runs its tasks in the graph's
    order.
    """
    count = len(graph)
    resource = graph.resource.tolist()
    # On a resource without a policy, the order of tasks becomes edges.
    before = previous_on_resource(graph.resource)
    chosen = np.isin(graph.resource, list(keys))
    chained = np.flatnonzero((before >= 0) & ~chosen)
    src = np.concatenate([graph.src, before[chained]])
    dst = np.concatenate([graph.dst, chained])
    lag = np.concatenate([graph.lag_us, graph.gap_us[chained]])
    from_start = np.concatenate([graph.from_start, np.zeros(len(chained), np.bool_)])
    # Sort the edges by source task, with the positions where each task's edges begin and end.
    order = np.argsort(src, kind="stable")
    following = list(zip(dst[order].tolist(), lag[order].tolist(), from_start[order].tolist(), strict=True))
    stops = np.concatenate([[0], np.cumsum(np.bincount(src, minlength=count))]).tolist()
    # The number of edges that have not passed, and the earliest start by the edges that have.
    left = np.bincount(dst, minlength=count).tolist()
    ready = np.where((before < 0) & ~chosen, graph.gap_us, 0.0).tolist()
    duration = graph.duration_us.tolist()
    start = [0.0] * count
    end = [0.0] * count
    waiting: dict[int, list[tuple[float, float, int]]] = {queue: [] for queue in keys}
    free = dict.fromkeys(keys, 0.0)
    # (time, 0, task that becomes ready) or (time, 1, resource that picks its next task).
    events = [(ready[i], 0, i) for i in range(count) if not left[i]]
    heapq.heapify(events)

    def run(task: int, time_us: float) -> None:
        start[task] = time_us
        end[task] = time_us + duration[task]
        for target, wait_us, by_start in following[stops[task] : stops[task + 1]]:
            ready[target] = max(ready[target], (start[task] if by_start else end[task]) + wait_us)
            left[target] -= 1
            if not left[target]:
                heapq.heappush(events, (ready[target], 0, target))

    while events:
        time_us, is_pick, which = heapq.heappop(events)
        if not is_pick:
            queue = resource[which]
            if queue not in keys:
                run(which, time_us)
                continue
            heapq.heappush(waiting[queue], (keys[queue][which], time_us, which))
            heapq.heappush(events, (max(time_us, free[queue]), 1, queue))
        elif waiting[which] and free[which] <= time_us:
            task = heapq.heappop(waiting[which])[2]
            run(task, time_us)
            free[which] = end[task]
            if waiting[which]:
                heapq.heappush(events, (free[which], 1, which))
    return start, end


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath:
    """The critical path: ``tasks`` from first to last, and their time by kind in µs.

    ``waiting_us`` is the rest of the total: launch latency, gaps between kernels, transfer of control.
    """

    tasks: Ints
    by_kind_us: dict[str, float]
    waiting_us: float


def critical_path(timeline: Timeline, window_us: tuple[float, float] | None = None) -> CriticalPath:
    """Return the critical path, found backwards from the task that ends last.

    Each step goes to the dependency that determined the start. A launch determines it with its own start, so only the
    part of the call before the next task's start counts.

    Parameters
    ----------
    timeline : Timeline
        A simulation.
    window_us : tuple of float, optional
        Start and end in µs of the only part of the path that counts.

    Returns
    -------
    CriticalPath
    """
    graph, start, end = timeline.graph, timeline.start_us, timeline.end_us
    if not len(graph):
        return CriticalPath(np.empty(0, np.int64), {}, 0.0)
    deciding = _deciding_dependency(timeline).tolist()
    task = int(np.where(graph.removed, -np.inf, end).argmax())
    path = []
    while task >= 0:
        path.append(task)
        task = deciding[task]
    # Only the part of a task before the next task's start is on the path.
    tasks = np.array(path[::-1], dtype=np.int64)
    reach = np.append(start[tasks[1:]], np.inf)
    first_us, last_us = window_us or (-np.inf, np.inf)
    total_us = last_us - first_us if window_us else timeline.total_us
    spent = np.maximum(np.minimum(np.minimum(end[tasks], reach), last_us) - np.maximum(start[tasks], first_us), 0.0)
    by_kind = {
        name: float(spent[graph.kind[tasks] == code].sum())
        for code, name in enumerate(TASK_KINDS)
        if (graph.kind[tasks] == code).any() and name != "mark"
    }
    return CriticalPath(tasks, by_kind, total_us - sum(by_kind.values()))


def longest_wait(timeline: Timeline) -> tuple[float, str]:
    """Return the longest time in µs without a task on the critical path, and the name of the task after it."""
    tasks = critical_path(timeline).tasks
    waits_us = timeline.start_us[tasks[1:]] - timeline.end_us[tasks[:-1]]
    at = int(waits_us.argmax())
    return float(waits_us[at]), timeline.graph.name_of(int(tasks[at + 1]))


@lru_cache(maxsize=2)
def path_us(timeline: Timeline) -> dict[str, float]:
    """Return the critical path's time by kind of task, and the time of its waits, in µs per iteration.

    Parameters
    ----------
    timeline : Timeline
        A simulation.

    Returns
    -------
    dict
        Kind of task, or ``waiting`` → its part of `Timeline.per_iteration_us`, in µs.
    """
    graph = timeline.graph
    counted = (graph.iteration >= 0) & ~graph.removed
    first_us, last_us = 0.0, timeline.total_us
    if len(marks := timeline.marks_us()):
        first_us, last_us = float(marks[0, 0]), float(timeline.end_us[counted].max())
    path = critical_path(timeline, (first_us, last_us))
    share = timeline.per_iteration_us / (last_us - first_us or 1.0)
    return {kind: share * time_us for kind, time_us in {**path.by_kind_us, "waiting": path.waiting_us}.items()}


def bound(path: Mapping[str, float]) -> str | None:
    """Return the kind of the longest part of a critical path. Only a reduction of this part reduces the total time.

    Parameters
    ----------
    path : mapping
        A critical path from `path_us`.

    Returns
    -------
    str or None
        ``host``, ``device``, ``communication``, ``copy`` or ``waiting``; None for an empty path.
    """
    sums = dict.fromkeys(_BOUNDS.values(), 0.0)
    for kind, time_us in path.items():
        sums[_BOUNDS[kind]] += time_us
    return max(sums, key=sums.__getitem__) if any(sums.values()) else None


def _deciding_dependency(timeline: Timeline) -> Ints:
    """Return for every task the dependency that determined its start, -1 for none."""
    graph, start, end = timeline.graph, timeline.start_us, timeline.end_us
    before = _ran_before(timeline)
    # Every dependency as an edge: order on the resources, and the graph's own edges.
    chained = np.flatnonzero(before >= 0)
    src = np.concatenate([before[chained], graph.src])
    dst = np.concatenate([chained, graph.dst])
    fixed = ~np.isin(graph.resource[chained], list(graph.policies))
    by_edge = np.where(graph.from_start, start[graph.src], end[graph.src]) + graph.lag_us
    ready = np.concatenate([end[before[chained]] + graph.gap_us[chained] * fixed, by_edge])
    # Per task, find the edge that passed last. If the task started later than that, no edge determined it.
    order = np.lexsort((ready, dst))
    last = order[np.append(dst[order][1:] != dst[order][:-1], True)] if len(order) else order
    deciding = np.full(len(graph), -1)
    deciding[dst[last]] = np.where(start[dst[last]] - ready[last] > 1e-3, -1, src[last])
    return deciding


def _ran_before(timeline: Timeline) -> Ints:
    """Return the task that ran before each task on its resource in the simulation."""
    if not timeline.graph.policies:
        return previous_on_resource(timeline.graph.resource)
    order = np.lexsort((np.arange(len(timeline.graph)), timeline.start_us))
    previous = np.full(len(order), -1)
    previous[order] = linked(order, previous_on_resource(timeline.graph.resource[order]))
    return previous


def serialised_pct(timeline: Timeline) -> float:
    """Return the share of the device's busy time in which exactly one device task runs.

    Parameters
    ----------
    timeline : Timeline
        A simulation.

    Returns
    -------
    float
        The share in percent; NaN without a device task.
    """
    graph = timeline.graph
    rows = np.flatnonzero(np.isin(graph.kind, DEVICE_KINDS) & ~graph.removed & (graph.duration_us > 0))
    if not len(rows):
        return float("nan")
    # A step up at each start and a step down at each end: their running sum is how many tasks run.
    times = np.concatenate([timeline.start_us[rows], timeline.end_us[rows]])
    steps = np.repeat([1, -1], len(rows))
    # Ends first: tasks that only touch do not overlap.
    order = np.lexsort((steps, np.round(times, 3)))
    running = np.cumsum(steps[order])[:-1]
    lengths = np.diff(times[order])
    busy = lengths[running > 0].sum()
    return float(100 * lengths[running == 1].sum() / busy) if busy else float("nan")
