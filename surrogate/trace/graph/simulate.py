"""Simulation of a dependency graph: when every task starts, in recorded order or under a policy per resource."""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.features.errors import InputError, nearest
from surrogate.trace.graph.tasks import MARK, MARKS, Floats, Graph, previous_on_resource

POLICIES = ("recorded", "arrival", "priority", "shortest")
"""Which ready task a resource runs next: as recorded (default), the first ready, of highest priority, the shortest."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Timeline:
    """Start and end of every task in µs from time 0."""

    graph: Graph
    start_us: Floats
    end_us: Floats

    @property
    def total_us(self) -> float:
        """From the first start of a task that takes part to the last end; 0 for an empty graph."""
        kept = ~self.graph.removed
        return float(self.end_us[kept].max() - self.start_us[kept].min()) if kept.any() else 0.0

    @property
    def per_iteration_us(self) -> float:
        """`total_us` shared among the iterations."""
        return self.total_us / max(len(self.graph.iterations), 1)

    def iteration_us(self) -> list[float]:
        """For every iteration the time between its start mark and its end mark on the main thread."""
        graph = self.graph
        found: dict[tuple[int, str], float] = {}
        for task in np.flatnonzero(graph.kind == MARK).tolist():
            found[int(graph.iteration[task]), graph.name_of(task)] = float(self.start_us[task])
        return [
            found[place, MARKS[1]] - found[place, MARKS[0]]
            for place in range(len(graph.iterations))
            if (place, MARKS[0]) in found
        ]

    def __repr__(self) -> str:
        return f"Timeline({self.graph!r}, {self.total_us / 1e3:.3f} ms)"


def simulate(graph: Graph) -> Timeline:
    """Earliest start of every task: its resource's previous task and every edge into it have passed.

    With a policy on some resource (`Graph.policies`) tasks there run in the order in which the policy picks them among
    those that are ready; without one a single sweep in the graph's order. Raises `InputError` for an unknown policy.
    """
    keys = {
        resource: _keys(graph, policy) for resource, policy in graph.policies.items() if policy != "recorded"
    }
    times = _dispatch(graph, keys) if keys else _sweep(graph)
    start, end = (np.array(column, dtype=float) for column in times)
    return Timeline(graph, start, end)


def _sweep(graph: Graph) -> tuple[list[float], list[float]]:
    """In the graph's order, where every dependency has a time before it is asked for."""
    count = len(graph)
    by_target = np.argsort(graph.dst, kind="stable")
    # One list of times: ends first, starts after them; an edge knows which of both it waits for.
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


def _keys(graph: Graph, policy: Any) -> list[float]:
    """Per task what the policy sorts by, lowest first."""
    if callable(policy):
        found = np.asarray(policy(graph), dtype=float)
        if found.shape != (len(graph),):
            raise InputError(
                f"a policy gives one number per task ({len(graph):,}), not an array of shape {found.shape}"
            )
        return found.tolist()
    if policy == "arrival":
        return [0.0] * len(graph)
    if policy == "priority":
        return (-graph.priority).tolist()
    if policy == "shortest":
        return graph.duration_us.tolist()
    raise InputError(
        f"policy {policy!r} is unknown; known: {', '.join(POLICIES)}{nearest(str(policy), POLICIES)}"
    )


def _dispatch(graph: Graph, keys: Mapping[int, list[float]]) -> tuple[list[float], list[float]]:
    """Event by event in time order; a resource without keys runs its tasks in the graph's order."""
    count, resource = len(graph), graph.resource.tolist()
    before = previous_on_resource(graph.resource)
    chosen = np.isin(graph.resource, list(keys))
    chained = np.flatnonzero((before >= 0) & ~chosen)
    src = np.concatenate([graph.src, before[chained]])
    dst = np.concatenate([graph.dst, chained])
    lag = np.concatenate([graph.lag_us, graph.gap_us[chained]])
    from_start = np.concatenate([graph.from_start, np.zeros(len(chained), np.bool_)])
    order = np.argsort(src, kind="stable")
    following = list(zip(dst[order].tolist(), lag[order].tolist(), from_start[order].tolist(), strict=True))
    stops = np.concatenate([[0], np.cumsum(np.bincount(src, minlength=count))]).tolist()
    left = np.bincount(dst, minlength=count).tolist()
    ready = np.where((before < 0) & ~chosen, graph.gap_us, 0.0).tolist()
    duration, start, end = graph.duration_us.tolist(), [0.0] * count, [0.0] * count
    waiting: dict[int, list[tuple[float, float, int]]] = {one: [] for one in keys}
    free = dict.fromkeys(keys, 0.0)
    events = [(ready[i], 0, i) for i in range(count) if not left[i]]
    heapq.heapify(events)

    def run(task: int, time_us: float) -> None:
        start[task], end[task] = time_us, time_us + duration[task]
        for other, wait_us, by_start in following[stops[task] : stops[task + 1]]:
            ready[other] = max(ready[other], (start[task] if by_start else end[task]) + wait_us)
            left[other] -= 1
            if not left[other]:
                heapq.heappush(events, (ready[other], 0, other))

    while events:
        time_us, is_pick, which = heapq.heappop(events)
        if not is_pick:
            one = resource[which]
            if one not in keys:
                run(which, time_us)
                continue
            heapq.heappush(waiting[one], (keys[one][which], time_us, which))
            heapq.heappush(events, (max(time_us, free[one]), 1, one))
        elif waiting[which] and free[which] <= time_us:
            task = heapq.heappop(waiting[which])[2]
            run(task, time_us)
            free[which] = end[task]
            if waiting[which]:
                heapq.heappush(events, (free[which], 1, which))
    return start, end
