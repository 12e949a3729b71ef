"""Dependency graphs of traces: build, simulate, find the critical path (Daydream, ATC 2020).

``graph_of(trace) -> Graph`` turns host calls, the work between them and device activities into tasks with all six
dependencies: order on a host thread, order on a stream, launch → device task, device task → synchronising call,
computation → communication, thread → thread. ``simulate(graph) -> Timeline`` replays it, ``critical_path(timeline)``
says what decides the time. Changing a graph is what `surrogate.trace.whatif` is for.
"""

from surrogate.trace.graph.build import graph_of
from surrogate.trace.graph.tasks import (
    EDGE_KINDS,
    TASK_KINDS,
    Graph,
    Resource,
    Timeline,
    bound,
    critical_path,
    path_us,
    serialised_pct,
    simulate,
)

__all__ = [
    "EDGE_KINDS",
    "TASK_KINDS",
    "Graph",
    "Resource",
    "Timeline",
    "bound",
    "critical_path",
    "graph_of",
    "path_us",
    "serialised_pct",
    "simulate",
]
