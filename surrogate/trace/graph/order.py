"""An order of the tasks in which every dependency comes before what depends on it."""

import heapq
from dataclasses import replace

import numpy as np

from surrogate.features.errors import InputError
from surrogate.trace.events.tables import Ints
from surrogate.trace.graph.tasks import TASK_COLUMNS, Graph, previous_on_resource


def in_order(graph: Graph) -> Graph:
    """``graph`` sorted by measured start, as far as its dependencies allow.

    Order on one resource stays as it is. Raises `InputError` where tasks depend on each other in a circle.
    """
    order = np.argsort(graph.measured_us, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    before = previous_on_resource(graph.resource)
    chained = np.flatnonzero(before >= 0)
    src = np.concatenate([graph.src, before[chained]])
    dst = np.concatenate([graph.dst, chained])
    if not (place[src] < place[dst]).all():
        order = _topological(len(graph), src, dst, place)
    return reordered(graph, order)


def reordered(graph: Graph, order: Ints) -> Graph:
    """The tasks in the given order, edges renumbered."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    columns = {name: getattr(graph, name)[order] for name in TASK_COLUMNS}
    return replace(graph, **columns, src=place[graph.src], dst=place[graph.dst])


def _topological(count: int, src: Ints, dst: Ints, rank: Ints) -> Ints:
    """Kahn's algorithm; among the tasks that are free the one of lowest ``rank`` comes next."""
    by_source = np.argsort(src, kind="stable")
    following = dst[by_source].tolist()
    starts = np.concatenate([[0], np.cumsum(np.bincount(src, minlength=count))]).tolist()
    waiting = np.bincount(dst, minlength=count)
    ranks = rank.tolist()
    ready = [(ranks[i], i) for i in np.flatnonzero(waiting == 0).tolist()]
    heapq.heapify(ready)
    left, order = waiting.tolist(), []
    while ready:
        _, task = heapq.heappop(ready)
        order.append(task)
        for other in following[starts[task] : starts[task + 1]]:
            left[other] -= 1
            if not left[other]:
                heapq.heappush(ready, (ranks[other], other))
    if len(order) < count:
        raise InputError(
            f"{count - len(order):,} tasks depend on each other in a circle;"
            " insert tasks after what they need and before what needs them"
        )
    return np.array(order, dtype=np.int64)
