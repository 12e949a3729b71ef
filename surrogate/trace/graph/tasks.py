"""The nouns of the dependency graph: `Graph` (tasks and edges as columns), `Resource`, and the codes of their kinds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surrogate.trace.events.iterations import Iteration
from surrogate.trace.events.tables import Ints
from surrogate.trace.graph.coverage import Coverage

Floats = NDArray[np.float64]
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
Policy = str | Callable[["Graph"], Any]


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
    coverage: Coverage = field(default_factory=Coverage)
    policies: Mapping[int, Policy] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.kind)

    def __repr__(self) -> str:
        return f"Graph({len(self):,} tasks on {len(self.resources)} resources, {len(self.src):,} edges)"

    def name_of(self, task: int) -> str:
        """The task's name."""
        return self.names[int(self.name[task])]


TASK_COLUMNS = (
    "name", "kind", "resource", "layer", "phase", "iteration", "row", "duration_us", "gap_us", "measured_us",
    "priority", "removed",
)  # fmt: skip


def previous_on_resource(resource: Ints) -> Ints:
    """For every task the one before it on its resource, -1 for the first."""
    found = np.full(len(resource), -1, np.int64)
    order = np.argsort(resource, kind="stable")
    same = resource[order][1:] == resource[order][:-1]
    found[order[1:][same]] = order[:-1][same]
    return found
