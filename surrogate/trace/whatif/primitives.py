"""The five primitives of what-ifs: select, scale, insert, remove, schedule.

`select` returns the tasks that match; each of the others takes a graph and returns a changed one. An optimisation is a
function of a few primitives (Daydream, ATC 2020, section 5). This one hides every copy to the device, and makes matrix
kernels twice as fast::

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
from surrogate.trace.graph import tasks as graph_tasks
from surrogate.trace.graph.tasks import POLICIES, TASK_KINDS, Graph, Mask

OPTIMIZER = r"^(?:Optimizer|Optim)"
"""Regular expression of the optimizer's layers."""
WEIGHTS = rf"{OPTIMIZER}|AccumulateGrad|^_(?:amp_)?foreach_|^_fused_(?:adam|sgd|adagrad)"
"""Regular expression of the layers that work on weights, gradients and optimizer states."""
_WEIGHT_KERNELS = r"(?i)multi_tensor_apply|adam|adagrad|rmsprop|fused_?(?:sgd|lamb)|addcdiv"
NETWORK = "network"
"""The graph's channel for transfers between workers."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task, as a predicate of `select` sees it.

    Attributes
    ----------
    index : int
        Its position in the graph.
    name : str
        Its name.
    kind : str
        One of `surrogate.trace.graph.TASK_KINDS`.
    layer : str
        Its layer's name, or "".
    phase : str
        forward, backward or other.
    iteration : int
        Number of its iteration, or -1.
    resource : str
        Label of its resource.
    duration_us : float
        Its time in µs.
    """

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
    """A task to insert.

    Attributes
    ----------
    name : str
        The task's name.
    kind : str
        One of `surrogate.trace.graph.TASK_KINDS`.
    resource : str
        Label of its resource; an unknown label adds a channel.
    duration_us : float
        Its time in µs.
    after, before : tuple of int
        Positions in the graph of tasks that it follows and precedes. In ``after``, positions from the graph's length on
        are earlier new tasks.
    priority : float
        Its priority if the resource has the policy "priority".
    iteration, layer : int
        Its iteration and layer, or -1.
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
    """Return a mask of the tasks that match every given condition. Removed tasks never match.

    Parameters
    ----------
    graph : Graph
        The graph to search.
    kind : str or sequence of str, optional
        Kinds of `surrogate.trace.graph.TASK_KINDS`.
    name, layer : str, optional
        Regular expressions, searched anywhere in the task's name and in its layer's name (such as ``conv2d.3``).
    phase : str, optional
        forward, backward or other.
    iteration : int, optional
        Number of an iteration of the graph.
    resource : str, optional
        Label of a resource.
    where : callable, optional
        A predicate of a `Task`; it is called for every task that matches all other conditions.

    Returns
    -------
    numpy.ndarray
        A boolean array of shape (tasks,).

    Raises
    ------
    InputError
        If a kind, a phase or a resource is unknown, or an expression is invalid.
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


def on_weights(graph: Graph) -> Mask:
    """Return the tasks on weights, gradients and optimizer states, by their layer or by their kernel's name.

    They depend neither on the batch nor on autocast, which keeps weights, gradients and states in fp32.
    """
    return select(graph, layer=WEIGHTS) | select(graph, kind="kernel", name=_WEIGHT_KERNELS)


def task_of(graph: Graph, index: int) -> Task:
    """Return the task at a position of the graph."""
    layer = graph.layers[graph.layer[index]] if graph.layer[index] >= 0 else ""
    kind, phase = TASK_KINDS[graph.kind[index]], PHASES[graph.phase[index]]
    place = int(graph.iteration[index]), graph.resources[graph.resource[index]].label
    return Task(index, graph.name_of(index), kind, layer, phase, *place, float(graph.duration_us[index]))


def scale(graph: Graph, tasks: Mask | Ints, factor: float | Floats) -> Graph:
    """Return the graph with the tasks' durations multiplied by a factor.

    Parameters
    ----------
    graph : Graph
        The graph to change.
    tasks : numpy.ndarray
        A mask of shape (tasks,), or positions in the graph.
    factor : float or numpy.ndarray
        One factor, or one per entry of ``tasks``.

    Returns
    -------
    Graph
        The changed graph.

    Raises
    ------
    InputError
        If a factor is below 0 or not finite.
    """
    factors = np.broadcast_to(np.asarray(factor, dtype=float), tasks.shape)
    factors = factors[tasks] if tasks.dtype == np.bool_ else factors
    if not (np.isfinite(factors) & (factors >= 0)).all():
        raise InputError("a factor of a task's time is negative or not finite; give factors of 0 or more")
    duration_us = graph.duration_us.copy()
    duration_us[tasks] *= factors
    return replace(graph, duration_us=duration_us)


def remove(graph: Graph, tasks: Mask) -> Graph:
    """Return the graph in which the tasks take no time. Their dependencies still order the tasks before and after them.

    Parameters
    ----------
    graph : Graph
        The graph to change.
    tasks : numpy.ndarray
        A mask of shape (tasks,).

    Returns
    -------
    Graph
        The changed graph.
    """
    lag = np.where(tasks[graph.dst], np.minimum(graph.lag_us, 0.0), graph.lag_us)
    # The gap of a resource's first task is the resource's start, not a delay of the task.
    follows = graph_tasks.previous_on_resource(graph.resource) >= 0
    gap = np.where(tasks & follows, np.minimum(graph.gap_us, 0.0), graph.gap_us)
    duration = np.where(tasks, 0.0, graph.duration_us)
    return replace(graph, removed=graph.removed | tasks, duration_us=duration, gap_us=gap, lag_us=lag)


def insert(graph: Graph, tasks: Iterable[NewTask]) -> Graph:
    """Return the graph with additional tasks.

    Parameters
    ----------
    graph : Graph
        The graph to change.
    tasks : iterable of NewTask
        The tasks to insert. On its resource each follows the last task of its ``after``, or is the first.

    Returns
    -------
    Graph
        The changed graph.

    Raises
    ------
    InputError
        If a time is negative, a kind or a position is unknown, or the dependencies form a cycle.
    """
    new = list(tasks)
    if not new:
        return graph
    count = len(graph)
    # Check every task, and number the resources and names that the graph lacks.
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
        # A new task takes the measured time and the position of the last task before it.
        measured_us.append(max((measured_us[i] for i in task.after), default=0.0))
        position.append(max((position[i] for i in task.after), default=0))
    added = [graph_tasks.Resource(graph_tasks.CHANNEL, label) for label in list(labels)[len(graph.resources) :]]
    # The new tasks' edges, of shape (2, edges).
    edges = [(index, count + i) for i, task in enumerate(new) for index in task.after]
    edges += [(count + i, index) for i, task in enumerate(new) for index in task.before]
    src, dst = np.array(edges, np.int64).reshape(-1, 2).T
    # Append the new columns to the graph's; a single value is equal for all new tasks or edges.
    values: dict[str, Any] = {"phase": PHASES.index("other"), "row": -1, "gap_us": 0.0, "removed": False}
    values |= {"edge_kind": graph_tasks.COMMUNICATION, "lag_us": 0.0, "from_start": False, "src": src, "dst": dst}
    fields = ("layer", "iteration", "duration_us", "priority")
    values |= {name: [getattr(task, name) for task in new] for name in fields}
    values |= {"name": [names[task.name] for task in new], "resource": [labels[task.resource] for task in new]}
    values |= {"kind": [_code(task.kind, TASK_KINDS, "kind") for task in new], "measured_us": measured_us[count:]}
    sizes = dict.fromkeys(graph_tasks.TASK_COLUMNS, len(new)) | dict.fromkeys(graph_tasks.EDGE_COLUMNS, len(edges))
    columns: dict[str, Any] = {
        name: np.append(column := getattr(graph, name), np.broadcast_to(np.array(values[name], column.dtype), size))
        for name, size in sizes.items()
    }
    joined = replace(graph, **columns, names=tuple(names), resources=(*graph.resources, *added))
    # Tasks of one resource run in their order in the graph.
    result = graph_tasks.reordered(joined, np.argsort(position, kind="stable"))
    return result if (result.src < result.dst).all() else graph_tasks.in_order(result)


def schedule(graph: Graph, resource: str, policy: graph_tasks.Policy) -> Graph:
    """Return the graph with a policy for a resource: which ready task runs next.

    Parameters
    ----------
    graph : Graph
        The graph to change.
    resource : str
        Label of the resource.
    policy : str or callable
        A name of `POLICIES`, or a function of the graph that returns one number per task; the lowest runs first.

    Returns
    -------
    Graph
        The changed graph.

    Raises
    ------
    InputError
        If the resource or the policy is unknown.
    """
    if isinstance(policy, str):
        _code(policy, POLICIES, "policy")
    return replace(graph, policies={**graph.policies, _resource(graph, resource): policy})


def launches_of(graph: Graph, tasks: Mask) -> Mask:
    """Return a mask of the calls that launch the tasks."""
    launches = np.zeros(len(graph), np.bool_)
    launches[graph.src[(graph.edge_kind == graph_tasks.LAUNCH) & tasks[graph.dst]]] = True
    return launches


def _matches(expression: str, texts: Sequence[str]) -> Mask:
    try:
        pattern = re.compile(expression)
    except re.error as error:
        raise InputError(f"{expression!r} is no regular expression ({error}); correct or escape it") from None
    return np.array([bool(pattern.search(text)) for text in texts] or [False])


def _code(name: str, names: Sequence[str], description: str) -> int:
    check_choice(description, name, names)
    return names.index(name)


def _resource(graph: Graph, label: str) -> int:
    return _code(label, [resource.label for resource in graph.resources], "resource")
