"""What-ifs on training: a fused optimizer, and batch norm merged into its neighbours.

Others predict several workers from a trace of one worker: all-reduce in buckets, parameter servers, priorities (P3).
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from surrogate.features.errors import InputError
from surrogate.network.parallel import gradient_buckets
from surrogate.report.tables import format_number
from surrogate.trace.calls import Parameter, parameters_by_iteration
from surrogate.trace.events.tables import linked
from surrogate.trace.graph.tasks import CALL, DEVICE_KINDS, WORK, Graph, Mask
from surrogate.trace.profiling import NO_DEVICE
from surrogate.trace.whatif import primitives
from surrogate.trace.whatif.primitives import NETWORK, OPTIMIZER, NewTask, launches_of, remove, scale, select
from surrogate.trace.whatif.setting import EVIDENCE, Change, WhatIfSetting, WhatIfValue, refusal, rule, sentence

FUSED_BYTES = {"Adam": 28.0, "AdamW": 28.0, "SGD": 20.0, "Adagrad": 20.0}
"""Optimizer with a fused kernel in PyTorch → bytes that the kernel moves per fp32 parameter.

The kernel reads weight, gradient and state, and writes weight and state. The state is two moments for Adam, the
momentum for SGD, and a sum of squares for Adagrad.
"""
_STEP = re.compile(r"Optimizer\.step#(\w+)\.step")
_NORM = re.compile(r"(?i)^batch_?norm")


def optimizer_of(graph: Graph) -> str:
    """Return the optimizer's class, such as SGD, from its ``Optimizer.step`` range; "" without such a range."""
    return next((found[1] for name in graph.names if (found := _STEP.search(name))), "")


def update_tasks(graph: Graph) -> Mask:
    """Return the tasks of the optimizer's update on host and device, without tasks that clear gradients."""
    return select(graph, layer=OPTIMIZER) & ~select(graph, layer="zero_grad")


@rule("fused-optimizer", evidence=EVIDENCE["fused-optimizer"])
def fused_optimizer(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """One kernel and one launch per iteration for the optimizer, if it is Adam, AdamW, SGD or Adagrad.

    The kernel passes once over weight, gradient and state (`FUSED_BYTES`) at the bandwidth that copies reach. It never
    takes longer than the kernels that it replaces. Only Adam's errors were published. Raises `InputError` if the trace
    names no optimizer or another one, and if the parameters or the GPU are unknown.
    """
    name = optimizer_of(graph)
    if name not in FUSED_BYTES:
        raise refusal("no_fused_kernel", name=name or "not named", names=", ".join(FUSED_BYTES))
    update = update_tasks(graph)
    kernels = update & np.isin(graph.kind, DEVICE_KINDS)
    if not kernels.any():
        raise InputError("fused-optimizer: no kernel is inside an Optimizer.step range; record one with the optimizer")
    host = update & np.isin(graph.kind, (CALL, WORK))
    parameters = parameters_by_iteration(setting.profile.trace, graph.iterations)
    kept, factors = list[int](), list[float]()
    bytes_per_us = 1e3 * setting.own_gpu.dram_gbs * setting.own_gpu.dram_share
    for iteration in np.unique(graph.iteration[kernels]).tolist():
        members = np.flatnonzero(kernels & (graph.iteration == iteration))
        elements = sum(parameter.elements for parameter in parameters[iteration]) if iteration >= 0 else 0
        moved_us = FUSED_BYTES[name] * elements / bytes_per_us if elements else np.inf
        time_us = min(float(graph.duration_us[members].sum()), moved_us)
        # The last kernel with a duration becomes the fused kernel, and keeps its launch.
        lasting = members[graph.duration_us[members] > 0]
        kept.append(int((lasting if len(lasting) else members)[-1]))
        factors.append(time_us / (graph.duration_us[kept[-1]] or 1.0))
    is_kept = np.isin(np.arange(len(graph)), kept)
    replaced = (kernels | host) & ~(is_kept | launches_of(graph, is_kept))
    changed = scale(remove(graph, replaced), np.array(kept), np.array(factors))
    evidence = None if name.startswith("Adam") else EVIDENCE["none"]
    return Change(changed, assumes=f"{name}, {FUSED_BYTES[name]:g} bytes a parameter", evidence=evidence)


@rule("batch-norm", evidence=EVIDENCE["batch-norm"])
def restructured_batch_norm(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """Batch norm merged into its neighbours: its kernels take half their time, and a ReLU after it takes none.

    This is the rule of Daydream (ATC 2020, section 5.2) for the restructuring of Jung et al. (SysML 2019). Raises
    `InputError` if the trace shows no batch norm.
    """
    norm = select(graph, kind="kernel", layer=_NORM.pattern)
    if not norm.any():
        raise InputError("batch-norm: no layer of this trace is a batch norm; give a trace that has one")
    # Layers directly after a batch norm in forward order. In a residual block an addition lies between some batch norms
    # and their ReLU; such a ReLU does not change.
    follows = np.array([False, *(bool(_NORM.match(name)) for name in graph.layers[:-1])])
    relu = select(graph, kind="kernel", layer=r"(?i)^relu") & (graph.layer >= 0) & follows[graph.layer]
    return Change(remove(scale(graph, norm, 1 / 2), relu | launches_of(graph, relu)))


PULL_CHANNEL = "network back"
"""The channel from the parameter servers to the workers."""
SLICE_BYTES = 200_000
"""P3's slices hold 50,000 parameters (Jayarajan et al., MLSys 2019)."""
_WORKERS = WhatIfValue("workers", lambda setting: setting.network.workers, "--workers", minimum=1)
_GBS = WhatIfValue("GB/s", lambda setting: setting.network.bandwidth_gbs, "--bandwidth")


@rule("data-parallel", value=_WORKERS, evidence=EVIDENCE["none"])
def data_parallel(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """An all-reduce per bucket of gradients, parallel to the backward pass; the optimizer waits for all of them.

    Buckets fill in the order in which gradients are ready, as in PyTorch (25 MB). Raises `InputError` if the trace
    shows no parameters.
    """
    if value and value % 1:
        raise InputError(f"data-parallel: {format_number(value, 6)} workers are no whole number; give 2 or more")
    network = replace(setting.network, workers=int(value)) if value else setting.network
    if network.workers == 1:
        raise InputError("data-parallel: one worker sends no gradients; give 2 or more")
    tasks: list[NewTask] = []
    for iteration, parameters in _iterations(graph, setting):
        update = _first_update(graph, iteration)
        gradients = ((parameter.ready_ns, parameter.size_bytes) for parameter in parameters)
        for number, (ready_ns, size) in enumerate(gradient_buckets(gradients, network.bucket_bytes)):
            after, before = _dependencies(_last_launched(graph, setting, ready_ns), update)
            order = {"after": after, "before": before if after else (), "iteration": iteration}
            transfer = (f"all-reduce of bucket {number}", "collective", NETWORK, network.all_reduce_us(size))
            tasks.append(NewTask(*transfer, **order))
    return Change(primitives.insert(graph, tasks), gpus=network.workers, assumes=str(network))


@rule("parameter-server", value=_GBS, evidence=EVIDENCE["none"])
def parameter_server(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """Each gradient is pushed when ready, and its weight is pulled before the next iteration first uses it."""
    return _with_servers(graph, setting, value, prioritised=False)


@rule("p3", value=_GBS, evidence=EVIDENCE["none"])
def priority_propagation(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """Parameter server with slices of 50,000 parameters; slices that the forward pass needs first have priority (P3).

    Source: Jayarajan et al., priority-based parameter propagation, MLSys 2019.
    """
    return _with_servers(graph, setting, value, prioritised=True)


def _with_servers(graph: Graph, setting: WhatIfSetting, value: float | None, *, prioritised: bool) -> Change:
    """Insert the push of every gradient and the pull of its weight, in order of arrival or of first use.

    A machine sends and receives at once. So slices are pulled while other slices are still pushed. Raises `InputError`
    if no forward pass of the trace waits for a weight.
    """
    network = replace(setting.network, bandwidth_gbs=value) if value else setting.network
    tasks: list[NewTask] = []
    for iteration, parameters in _iterations(graph, setting):
        uses = _forward_tasks(graph, iteration + 1, len(parameters))
        # The backward pass finishes parameters in the reverse order of the forward pass.
        for number, parameter in zip(reversed(range(len(parameters))), parameters, strict=True):
            ready = _last_launched(graph, setting, parameter.ready_ns)
            after, before = _dependencies(ready, uses[number] if uses else -1)
            slice_bytes = SLICE_BYTES if prioritised else parameter.size_bytes
            sizes = [min(slice_bytes, parameter.size_bytes - i) for i in range(0, parameter.size_bytes, slice_bytes)]
            for i, size in enumerate(sizes):
                name = f"parameter {number}" + (f" slice {i}" if prioritised else "")
                order: dict[str, Any] = {"kind": "collective", "priority": -float(number), "iteration": iteration}
                push_us = size / (network.bandwidth_gbs * 1e3)
                tasks.append(NewTask(f"push of {name}", resource=NETWORK, duration_us=push_us, after=after, **order))
                # Slices follow one another without a pause, so only the last slice adds its latency.
                pull_us = push_us + network.latency_us * (i + 1 == len(sizes))
                to_pull = {"duration_us": pull_us, "after": (len(graph) + len(tasks) - 1,), "before": before}
                tasks.append(NewTask(f"pull of {name}", resource=PULL_CHANNEL, **to_pull, **order))
    if tasks and not any(task.before for task in tasks):
        raise refusal("no_second_iteration")
    changed = primitives.insert(graph, tasks)
    for channel in (NETWORK, PULL_CHANNEL):
        changed = primitives.schedule(changed, channel, "priority" if prioritised else "arrival")
    assumes = sentence("servers", workers=network.workers, latency_us=format_number(network.latency_us))
    return Change(changed, gpus=network.workers, assumes=assumes)


def _dependencies(ready: int, use: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tasks before and after a transfer: the one that makes its gradient, and a later use of the result."""
    return (ready,) if ready >= 0 else (), (use,) if use > ready else ()


def _iterations(graph: Graph, setting: WhatIfSetting) -> Iterator[tuple[int, list[Parameter]]]:
    if not np.isin(graph.kind, DEVICE_KINDS).any():
        raise InputError(NO_DEVICE)
    by_iteration = parameters_by_iteration(setting.profile.trace, graph.iterations)
    yield from ((i, parameters) for i, parameters in enumerate(by_iteration) if parameters)


def _last_launched(graph: Graph, setting: WhatIfSetting, time_ns: float) -> int:
    """Return the last device task that was launched before ``time_ns``, or -1."""
    trace = setting.profile.trace
    rows = np.flatnonzero(np.isin(graph.kind, DEVICE_KINDS) & (graph.row >= 0))
    launched = linked(trace.calls.start_ns, trace.activities.call[graph.row[rows]], 2**62)
    before = np.flatnonzero(launched < time_ns)
    return int(rows[before[-1]]) if len(before) else -1


def _first_update(graph: Graph, iteration: int) -> int:
    """Return the optimizer's first device task, else the iteration's end mark."""
    update = np.flatnonzero(select(graph, layer=OPTIMIZER, iteration=iteration) & np.isin(graph.kind, DEVICE_KINDS))
    # zero_grad is an Optimizer range, too, and clears gradients before the backward pass computes them.
    backward = np.flatnonzero(select(graph, phase="backward", iteration=iteration))
    later = update[update > backward[-1]] if len(backward) else update
    ends = np.flatnonzero(select(graph, kind="mark", name="iteration end", iteration=iteration))
    return int(next(iter([*later[:1], *ends[:1]]), -1))


def _forward_tasks(graph: Graph, iteration: int, count: int) -> list[int]:
    """Return for each of ``count`` parameters in forward order the device task that uses it first.

    Names do not show which layers have weights. So the parameters are spread evenly over the forward pass.
    """
    rows = np.flatnonzero(select(graph, phase="forward", iteration=iteration, kind="kernel"))
    if not len(rows):
        return []
    return rows[np.minimum(np.arange(count) * len(rows) // max(count, 1), len(rows) - 1)].tolist()
