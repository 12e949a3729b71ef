"""The data of the dependency graph: `Graph` (tasks and edges as columns), its order, and what of a trace it covers."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surrogate.features.errors import InputError
from surrogate.trace.events.iterations import Iteration
from surrogate.trace.events.tables import Floats, Ints

Mask = NDArray[np.bool_]

WORK, CALL, KERNEL, COPY, MEMSET, COLLECTIVE, MARK = range(7)
TASK_KINDS = ("host work", "call", "kernel", "copy", "memset", "collective", "mark")
"""Host work is what a thread does between calls; a mark is the zero-length start or end of an iteration."""
DEVICE_KINDS = (KERNEL, COPY, MEMSET, COLLECTIVE)

LAUNCH, SYNC, EVENT_WAIT, HANDOVER, COMMUNICATION, LANE, END = range(7)
EDGE_KINDS = (
    "launch",
    "synchronisation",
    "event wait",
    "thread hand-over",
    "communication",
    "stream branch",
    "end of trace",
)
"""Edges between resources; order on one thread, stream or channel is the tasks' own order and takes no edge."""

MARKS = ("iteration start", "iteration end")
THREAD, STREAM, CHANNEL = "thread", "stream", "channel"
Policy = str | Callable[["Graph"], Sequence[float] | Floats]
"""Which ready task runs next: a name, or one number per task, the lowest first."""
Coverage = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Resource:
    """What runs one task at a time: a host ``thread``, a device ``stream`` or a communication ``channel``."""

    kind: str
    label: str
    device: int = -1


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Graph:
    """Tasks in an order in which every dependency comes first; one entry per task, times in µs.

    A task starts once its resource's previous task has ended ``gap_us`` ago (the first: ``gap_us`` after time 0)
    and every edge into it has passed: ``lag_us`` after the end of ``src``, or after its start where ``from_start``.
    ``name``, ``layer`` and ``resource`` are indices into ``names``, ``layers`` and ``resources`` (layer -1: none).
    ``row`` is the row of the trace's calls (host) or activities (device), -1 for what the trace does not hold.
    A ``removed`` task takes no time and only passes its dependencies on. ``policies``: resource → who runs next.

    ``coverage`` counts what of a trace is in the graph and what could not be attached. ``activities_without_call`` keep
    their place on their stream but follow no launch, ``graph_kernels`` follow the launch of their CUDA graph together;
    ``attached_pct`` is the share of device tasks that follow a launch. ``unexplained_us`` is the time that device tasks
    waited for something that the trace does not show (over 20 µs each, ``unexplained_tasks`` of them): a replay keeps
    it as it is. ``device_behind_us`` is, for every iteration, how long its device tasks ran on behind its end mark.
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
    coverage: Coverage = field(default_factory=dict)
    policies: Mapping[int, Policy] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.kind)

    def __repr__(self) -> str:
        return f"Graph({len(self):,} tasks on {len(self.resources)} resources, {len(self.src):,} edges)"

    def name_of(self, task: int) -> str:
        """The task's name."""
        return self.names[int(self.name[task])]


TASK_COLUMNS = (
    "name",
    "kind",
    "resource",
    "layer",
    "phase",
    "iteration",
    "row",
    "duration_us",
    "gap_us",
    "measured_us",
    "priority",
    "removed",
)


def previous_on_resource(resource: Ints) -> Ints:
    """For every task the one before it on its resource, -1 for the first."""
    previous = np.full(len(resource), -1, np.int64)
    order = np.argsort(resource, kind="stable")
    same = resource[order][1:] == resource[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def in_order(graph: Graph) -> Graph:
    """``graph`` sorted by measured start, as far as its dependencies allow.

    Order on one resource stays as it is. Raises `InputError` where tasks depend on each other in a circle.
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
    """The tasks in the given order, edges renumbered."""
    rank = np.argsort(order)
    columns = {name: getattr(graph, name)[order] for name in TASK_COLUMNS}
    return replace(graph, **columns, src=rank[graph.src], dst=rank[graph.dst])


def _topological(count: int, src: Ints, dst: Ints, rank: Ints) -> Ints:
    """Kahn's algorithm; among the tasks that are free the one of lowest ``rank`` comes next."""
    # The targets of each task's edges, as one list with the place where each task's own begin.
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
            " insert tasks after what they need and before what needs them"
        )
    return np.array(order, dtype=np.int64)
