"""The critical path of a simulated graph, and how far its device tasks are serialised."""

from dataclasses import dataclass

import numpy as np

from surrogate.trace.events.tables import Ints
from surrogate.trace.graph.simulate import Timeline
from surrogate.trace.graph.tasks import DEVICE_KINDS, TASK_KINDS, previous_on_resource


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath:
    """``tasks`` from first to last; ``by_kind_us`` is their time by kind, and ``waiting_us`` the rest of the total:
    launch latency, gaps between kernels, transfer of control."""

    tasks: Ints
    by_kind_us: dict[str, float]
    waiting_us: float

    @property
    def total_us(self) -> float:
        """All of it in µs: the timeline's total."""
        return sum(self.by_kind_us.values()) + self.waiting_us


def critical_path(timeline: Timeline) -> CriticalPath:
    """Backwards from the task that ends last, each time to the dependency that decided the start.

    A launch decides with its start, so of the call itself only the part before the next task's start counts.
    """
    graph, start, end = timeline.graph, timeline.start_us, timeline.end_us
    if not len(graph):
        return CriticalPath(np.empty(0, np.int64), {}, 0.0)
    binding, _ = binding_of(timeline)
    task, path = int(np.where(graph.removed, -np.inf, end).argmax()), []
    while task >= 0:
        path.append(task)
        task = int(binding[task])
    tasks = np.array(path[::-1], dtype=np.int64)
    reach = np.append(start[tasks[1:]], np.inf)
    spent = np.maximum(np.minimum(end[tasks], reach) - start[tasks], 0.0)
    by_kind = {
        name: float(spent[graph.kind[tasks] == code].sum())
        for code, name in enumerate(TASK_KINDS)
        if (graph.kind[tasks] == code).any() and name != "mark"
    }
    return CriticalPath(tasks, by_kind, timeline.total_us - sum(by_kind.values()))


def binding_of(timeline: Timeline) -> tuple[Ints, np.ndarray]:
    """For every task the dependency that decided its start (-1: none), and the µs it left to spare (about 0)."""
    graph, start, end = timeline.graph, timeline.start_us, timeline.end_us
    resource = _ran_before(timeline)
    count = len(graph)
    chained = np.flatnonzero(resource >= 0)
    src = np.concatenate([resource[chained], graph.src])
    dst = np.concatenate([chained, graph.dst])
    fixed = ~np.isin(graph.resource[chained], list(graph.policies))
    ready = np.concatenate([
        end[resource[chained]] + graph.gap_us[chained] * fixed,
        np.where(graph.from_start, start[graph.src], end[graph.src]) + graph.lag_us,
    ])  # fmt: skip
    order = np.lexsort((ready, dst))
    last = order[np.append(dst[order][1:] != dst[order][:-1], True)] if len(order) else order
    binding, spare = np.full(count, -1), np.full(count, np.inf)
    binding[dst[last]], spare[dst[last]] = src[last], start[dst[last]] - ready[last]
    binding[spare > 1e-3] = -1
    return binding, spare


def _ran_before(timeline: Timeline) -> Ints:
    """The task that ran before each on its resource, as simulated."""
    if not timeline.graph.policies:
        return previous_on_resource(timeline.graph.resource)
    order = np.lexsort((np.arange(len(timeline.graph)), timeline.start_us))
    found = previous_on_resource(timeline.graph.resource[order])
    back = np.full(len(order), -1)
    back[order] = np.where(found >= 0, order[found], -1)
    return back


def serialised_pct(timeline: Timeline) -> float:
    """Share of the device's busy time in which exactly one device task runs, in percent; NaN without a device task."""
    graph = timeline.graph
    rows = np.flatnonzero(np.isin(graph.kind, DEVICE_KINDS) & ~graph.removed & (graph.duration_us > 0))
    if not len(rows):
        return float("nan")
    times = np.concatenate([timeline.start_us[rows], timeline.end_us[rows]])
    steps = np.repeat([1, -1], len(rows))
    # Ends first: tasks that only touch do not overlap.
    order = np.lexsort((steps, np.round(times, 3)))
    running = np.cumsum(steps[order])[:-1]
    lengths = np.diff(times[order])
    busy = lengths[running > 0].sum()
    return float(100 * lengths[running == 1].sum() / busy) if busy else float("nan")
