"""The five primitives: select, scale, insert, remove, schedule. Each takes a graph and returns another one.

An optimisation is a function of a few of them (Daydream, ATC 2020, section 5). One that asks what the trace would be
with every copy to the device hidden and matrix kernels twice as fast::

    from surrogate.trace import read_trace
    from surrogate.trace.graph import graph_of, simulate
    from surrogate.trace.whatif import remove, scale, select

    def mine(graph):
        faster = scale(graph, select(graph, kind="kernel", name="gemm"), 1 / 2)
        return remove(faster, select(faster, kind="copy", name="HtoD"))

    graph = graph_of(read_trace("trace.json.gz"))
    simulate(mine(graph)).per_iteration_us / simulate(graph).per_iteration_us

``seer trace whatif FILE --function my_module:mine`` runs it from the command line.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from surrogate.features.errors import InputError, check_choice
from surrogate.trace.events.parts import PHASES
from surrogate.trace.events.tables import Floats, Ints
from surrogate.trace.graph import tasks as t
from surrogate.trace.graph.tasks import POLICIES, TASK_KINDS, Graph, Mask

OPTIMIZER = r"^(?:Optimizer|Optim)"
"""Layers that are the optimizer's, as a regular expression."""
NETWORK = "network"
"""A channel of the graph."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task as a predicate of `select` sees it; ``index`` is its place in the graph."""

    index: int
    name: str
    kind: str
    layer: str
    phase: str
    iteration: int
    resource: str
    duration_us: float


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to insert: on the resource of that label (a new one becomes a channel), after and before other tasks.

    ``after`` and ``before`` are places in the graph, in ``after`` behind its end those of earlier new tasks, too;
    ``priority`` counts under a policy of that name.
    """

    name: str
    kind: str
    resource: str
    duration_us: float
    after: tuple[int, ...] = ()
    before: tuple[int, ...] = ()
    priority: float = 0.0
    iteration: int = -1
    layer: int = -1


def select(
    graph: Graph,
    *,
    kind: str | Sequence[str] | None = None,
    name: str | None = None,
    layer: str | None = None,
    phase: str | None = None,
    iteration: int | None = None,
    resource: str | None = None,
    where: Callable[[Task], bool] | None = None,
) -> Mask:
    """The tasks that fit every given condition, as a mask; removed ones never do.

    ``kind`` of `surrogate.trace.graph.TASK_KINDS`; ``name`` and ``layer`` (such as ``conv2d.3``) are regular
    expressions, found anywhere; ``phase`` forward, backward or other; ``resource`` a label. ``where`` sees every task
    that the others leave. Raises `InputError` for an unknown kind, phase or resource, or a bad expression.
    """
    chosen = ~graph.removed
    if kind is not None:
        kinds = [kind] if isinstance(kind, str) else kind
        chosen &= np.isin(graph.kind, [_code(word, TASK_KINDS, "kind") for word in kinds])
    if name is not None:
        chosen &= _matches(name, graph.names)[graph.name]
    if layer is not None:
        chosen &= (graph.layer >= 0) & _matches(layer, graph.layers)[graph.layer]
    if phase is not None:
        chosen &= graph.phase == _code(phase, PHASES, "phase")
    if iteration is not None:
        chosen &= graph.iteration == iteration
    if resource is not None:
        chosen &= graph.resource == _resource(graph, resource)
    if where is not None:
        for index in np.flatnonzero(chosen).tolist():
            chosen[index] = bool(where(task_of(graph, index)))
    return chosen


def task_of(graph: Graph, index: int) -> Task:
    """The task at a place of the graph."""
    layer = int(graph.layer[index])
    name = graph.layers[layer] if layer >= 0 else ""
    what = graph.name_of(index), TASK_KINDS[graph.kind[index]], name, PHASES[graph.phase[index]]
    where = int(graph.iteration[index]), graph.resources[graph.resource[index]].label
    return Task(index, *what, *where, float(graph.duration_us[index]))


def scale(graph: Graph, tasks: Mask | Ints, factor: float | Floats) -> Graph:
    """Durations of the tasks, a mask or places in the graph, times ``factor``: a number, or one per entry of ``tasks``.

    Raises `InputError` below 0.
    """
    factors = np.broadcast_to(np.asarray(factor, dtype=float), tasks.shape)
    factors = factors[tasks] if tasks.dtype == np.bool_ else factors
    if not (np.isfinite(factors) & (factors >= 0)).all():
        raise InputError("a task's time is scaled by a factor of 0 or more; a negative or unknown one came")
    duration_us = graph.duration_us.copy()
    duration_us[tasks] *= factors
    return replace(graph, duration_us=duration_us)


def remove(graph: Graph, tasks: Mask) -> Graph:
    """Tasks that no longer take time; what came before them still comes before what came after."""
    lag = np.where(tasks[graph.dst], np.minimum(graph.lag_us, 0.0), graph.lag_us)
    gap = np.where(tasks & ~_first(graph), np.minimum(graph.gap_us, 0.0), graph.gap_us)
    duration = np.where(tasks, 0.0, graph.duration_us)
    return replace(graph, removed=graph.removed | tasks, duration_us=duration, gap_us=gap, lag_us=lag)


def insert(graph: Graph, tasks: Iterable[NewTask]) -> Graph:
    """``graph`` with more tasks; on its resource each comes after the last task in ``after``, or first without one.

    Raises `InputError` for a negative time, an unknown kind or place, or a circle of dependencies.
    """
    new = list(tasks)
    if not new:
        return graph
    count = len(graph)
    # Check every task, and give the resources and names that the graph lacks the next numbers.
    labels = {resource.label: i for i, resource in enumerate(graph.resources)}
    names = {name: i for i, name in enumerate(graph.names)}
    measured_us = graph.measured_us.tolist()
    position = list(range(1, count + 1))
    for number, task in enumerate(new, start=count):
        if not task.duration_us >= 0:
            raise InputError(f"task {task.name!r} takes {task.duration_us} µs; give a time of 0 or more")
        wrong = [i for part, stop in ((task.after, number), (task.before, count)) for i in part if not 0 <= i < stop]
        if wrong:
            raise InputError(f"task {task.name!r} refers to task {wrong[0]}; the graph has 0 to {count - 1}")
        labels.setdefault(task.resource, len(labels))
        names.setdefault(task.name, len(names))
        # A new task is shown, and sorted, where the last task before it was measured, and comes right after it.
        measured_us.append(max((measured_us[i] for i in task.after), default=0.0))
        position.append(max((position[i] for i in task.after), default=0))
    # The columns of the new tasks behind those of the graph; what they share stands in ``same``.
    added = [t.Resource(t.CHANNEL, label) for label in list(labels)[len(graph.resources) :]]
    values = {
        "name": [names[task.name] for task in new],
        "kind": [_code(task.kind, TASK_KINDS, "kind") for task in new],
        "resource": [labels[task.resource] for task in new],
        "measured_us": measured_us[count:],
        **{name: [getattr(task, name) for task in new] for name in ("layer", "iteration", "duration_us", "priority")},
    }
    same = {"phase": PHASES.index("other"), "row": -1, "gap_us": 0.0, "removed": False}
    values |= {name: [value] * len(new) for name, value in same.items()}
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(graph, name), np.array(values[name], getattr(graph, name).dtype)])
        for name in t.TASK_COLUMNS
    }
    # Their edges, shape (edges, 2).
    edges = [(index, count + i) for i, task in enumerate(new) for index in task.after]
    edges += [(count + i, index) for i, task in enumerate(new) for index in task.before]
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    more = len(pairs)
    joined = replace(
        graph,
        **columns,
        names=tuple(names),
        resources=(*graph.resources, *added),
        src=np.concatenate([graph.src, pairs[:, 0]]),
        dst=np.concatenate([graph.dst, pairs[:, 1]]),
        edge_kind=np.concatenate([graph.edge_kind, np.full(more, t.COMMUNICATION)]),
        lag_us=np.concatenate([graph.lag_us, np.zeros(more)]),
        from_start=np.concatenate([graph.from_start, np.zeros(more, np.bool_)]),
    )
    # Order in the graph is order on a resource that several tasks share.
    result = t.reordered(joined, np.argsort(position, kind="stable"))
    return result if (result.src < result.dst).all() else t.in_order(result)


def schedule(graph: Graph, resource: str, policy: t.Policy) -> Graph:
    """Which ready task the resource runs next: a name of `POLICIES`, or a function graph → one number per task,
    lowest first. Raises `InputError` for an unknown resource or policy."""
    if isinstance(policy, str):
        _code(policy, POLICIES, "policy")
    return replace(graph, policies={**graph.policies, _resource(graph, resource): policy})


def launches_of(graph: Graph, tasks: Mask) -> Mask:
    """The calls that launch the tasks."""
    launches = np.zeros(len(graph), np.bool_)
    launches[graph.src[(graph.edge_kind == t.LAUNCH) & tasks[graph.dst]]] = True
    return launches


def _first(graph: Graph) -> Mask:
    """The first task of every resource: its gap is the resource's own start, not a delay of the task."""
    first = np.zeros(len(graph), np.bool_)
    first[np.unique(graph.resource, return_index=True)[1]] = True
    return first


def _matches(expression: str, texts: Sequence[str]) -> Mask:
    try:
        pattern = re.compile(expression)
    except re.error as error:
        raise InputError(f"{expression!r} is no regular expression ({error}); escape it") from None
    return np.array([bool(pattern.search(text)) for text in texts] or [False])


def _code(word: str, words: Sequence[str], what: str) -> int:
    check_choice(what, word, words)
    return words.index(word)


def _resource(graph: Graph, label: str) -> int:
    return _code(label, [resource.label for resource in graph.resources], "resource")
