"""Training written otherwise: a fused optimizer, batch norm merged into its neighbours; and on several workers, from a
trace of one: all-reduce in buckets, parameter servers, priorities (P3).
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from surrogate.features.errors import InputError
from surrogate.network.training import buckets
from surrogate.trace.calls import Parameter, parameters_by_iteration
from surrogate.trace.events.tables import linked
from surrogate.trace.graph.tasks import CALL, DEVICE_KINDS, WORK, Graph, Mask
from surrogate.trace.profiling import NO_DEVICE
from surrogate.trace.whatif.primitives import (
    NETWORK,
    OPTIMIZER,
    NewTask,
    insert,
    launches_of,
    remove,
    scale,
    schedule,
    select,
)
from surrogate.trace.whatif.setting import (
    NO_PUBLISHED_ERROR,
    Change,
    StepAnswer,
    WhatIfSetting,
    WhatIfValue,
    published,
    rule,
)

FUSED_BYTES = {"Adam": 28.0, "AdamW": 28.0, "SGD": 20.0, "Adagrad": 20.0}
"""Optimizers that PyTorch has as one kernel → what that moves per parameter in fp32: weight, gradient and state (two
moments of Adam, the momentum of SGD, a sum of squares) read, weight and state written."""
_STEP = re.compile(r"Optimizer\.step#(\w+)\.step")
_NORM = re.compile(r"(?i)^batch_?norm")


def optimizer_of(graph: Graph) -> str:
    """The optimizer's class by its ``Optimizer.step`` range, such as SGD; "" where none names it."""
    return next((found[1] for name in graph.names if (found := _STEP.search(name))), "")


def update_tasks(graph: Graph) -> Mask:
    """Tasks of the optimizer's update, on the host and the device; not those that clear gradients."""
    return select(graph, layer=OPTIMIZER) & ~select(graph, layer="zero_grad")


# 28 MB at 900 GB/s.
@rule(
    "fused-optimizer",
    evidence=published({"BERT-base": 1.9, "BERT-large": 12.5, "Seq2Seq": 4.5}, " for Adam"),
    known_answer=StepAnswer(2110 - 100 + 28e6 / 900e3),
)
def fused_optimizer(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """The optimizer's kernels and launches become one of each per iteration: Adam's, AdamW's, SGD's or Adagrad's.

    The kernel passes once over weight, gradient and state (`FUSED_BYTES`) at the GPU's bandwidth, and takes never more
    than the kernels it replaces. Only Adam's errors were published. Raises `InputError` where the trace names no
    optimizer or another one, and where parameters or GPU are not known.
    """
    name = optimizer_of(graph)
    if name not in FUSED_BYTES:
        raise InputError(
            f"fused-optimizer: the trace's optimizer is {name or 'not named'}; PyTorch has one kernel for each of"
            f" {', '.join(FUSED_BYTES)}"
        )
    inside = update_tasks(graph)
    kernels = inside & np.isin(graph.kind, DEVICE_KINDS)
    if not kernels.any():
        raise InputError("no kernel is of an Optimizer.step range, so there is none to fuse; record one")
    host = inside & np.isin(graph.kind, (CALL, WORK))
    every = parameters_by_iteration(setting.profile.trace, graph.iterations)
    kept: list[int] = []
    factors: list[float] = []
    for iteration in np.unique(graph.iteration[kernels]).tolist():
        members = np.flatnonzero(kernels & (graph.iteration == iteration))
        time_us = float(graph.duration_us[members].sum())
        if iteration >= 0 and every[iteration]:
            moved = FUSED_BYTES[name] * sum(parameter.elements for parameter in every[iteration])
            time_us = min(time_us, moved / (setting.own_gpu.dram_gbs * 1e3))
        # The last kernel that takes time stands for all of them, with its launch.
        lasting = members[graph.duration_us[members] > 0]
        kept.append(int((lasting if len(lasting) else members)[-1]))
        factors.append(time_us / (graph.duration_us[kept[-1]] or 1.0))
    keeps = np.isin(np.arange(len(graph)), kept)
    gone = (kernels | host) & ~(keeps | launches_of(graph, keeps))
    changed = scale(remove(graph, gone), np.array(kept), np.array(factors))
    evidence = None if name.startswith("Adam") else NO_PUBLISHED_ERROR
    return Change(changed, assumes=f"{name}, {FUSED_BYTES[name]:g} bytes a parameter", evidence=evidence)


@rule(
    "batch-norm",
    evidence=published({"DenseNet-121": 6.1}),
    known_answer=StepAnswer(2110 - (200 + 200) / 2 - (100 + 100)),
)
def restructured_batch_norm(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """Batch norm split and merged into the neighbouring layers: its kernels ÷2, those of the ReLU after it gone.

    The rule of Daydream, ATC 2020, section 5.2, for the restructuring of Jung et al., SysML 2019. Raises `InputError`
    where the trace shows no batch norm.
    """
    norm = select(graph, kind="kernel", layer=_NORM.pattern)
    if not norm.any():
        raise InputError("batch-norm: no layer of this trace is a batch norm; the what-if applies to none")
    # Layers right behind a batch norm in forward order. An addition that makes a residual block stands between some
    # batch norms and their ReLU: those stay.
    follows = np.array([False, *(bool(_NORM.match(name)) for name in graph.layers[:-1])])
    relu = select(graph, kind="kernel", layer=r"(?i)^relu") & (graph.layer >= 0) & follows[graph.layer]
    return Change(remove(scale(graph, norm, 1 / 2), relu | launches_of(graph, relu)))


PULL_CHANNEL = "network back"
"""The channel of what servers send."""
SLICE_BYTES = 200e3
"""P3's slices hold 50,000 parameters (Jayarajan et al., MLSys 2019)."""
_WORKERS = WhatIfValue("workers", lambda setting: setting.network.workers, "--workers", minimum=1)
_SPEED = WhatIfValue("GB/s", lambda setting: setting.network.bandwidth_gbs, "--bandwidth")


# A ring of 8: 2·7/8 of 4 MB at 10 GB/s, and 14 steps of 10 µs, between the backward pass and the optimizer.
@rule("data-parallel", value=_WORKERS, evidence=NO_PUBLISHED_ERROR, known_answer=StepAnswer(2110 + 700 + 140, value=8))
def data_parallel(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """An all-reduce per bucket of gradients, beside the backward pass; the optimizer waits for all of them.

    Buckets fill in the order in which gradients are ready, as PyTorch's do (25 MB). Raises `InputError` where the trace
    shows no parameters.
    """
    if value and value % 1:
        raise InputError(f"{value:g} is no number of workers; give a whole number")
    network = replace(setting.network, workers=int(value)) if value else setting.network
    if network.workers == 1:
        raise InputError("one worker sums gradients with nobody; give 2 or more")
    tasks: list[NewTask] = []
    for iteration, parameters in _iterations(graph, setting):
        update = _first_update(graph, iteration)
        gradients = ((parameter.ready_ns, int(parameter.size_bytes)) for parameter in parameters)
        for number, (ready_ns, size) in enumerate(buckets(gradients, network.bucket_bytes)):
            ready = _last_launched(graph, setting, ready_ns)
            after, before = _links(ready, update if ready >= 0 else -1)
            time_us = network.all_reduce_us(size)
            name = f"all-reduce of bucket {number}"
            tasks.append(NewTask(name, "collective", NETWORK, time_us, after=after, before=before, iteration=iteration))
    return Change(insert(graph, tasks), gpus=network.workers, assumes=str(network))


# The gradient is ready after 2,010 µs, and 4 MB go to in 400 and fro in 410: the second step's convolution waits
# 500 for them, and behind the second step, 100 after the gradient, they go on for 710.
@rule(
    "parameter-server",
    value=_SPEED,
    evidence=NO_PUBLISHED_ERROR,
    known_answer=StepAnswer(2110 + (500 + 710) / 2, value=10),
)
def parameter_server(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """Each gradient is pushed when ready and its weight pulled back, before the next iteration first uses it."""
    return _served(graph, setting, value, prioritised=False)


# 20 slices of 20 µs each way: the last is back 20 and 10 behind the last push, 380 earlier than all at once.
@rule("p3", value=_SPEED, evidence=NO_PUBLISHED_ERROR, known_answer=StepAnswer(2110 + (120 + 330) / 2, value=10))
def priority_propagation(graph: Graph, setting: WhatIfSetting, value: float | None) -> Change:
    """As parameter-server, in slices of 50,000 parameters, those that the forward pass needs first ahead (MLSys 2019).

    The source is Jayarajan et al.: priority-based parameter propagation.
    """
    return _served(graph, setting, value, prioritised=True)


def _served(graph: Graph, setting: WhatIfSetting, value: float | None, *, prioritised: bool) -> Change:
    """Every gradient pushed and its weight pulled, first come first served or the first that is needed first.

    A machine sends and receives at once. Slices are pulled back while others are still pushed.
    """
    network = replace(setting.network, bandwidth_gbs=value) if value else setting.network
    tasks: list[NewTask] = []
    for iteration, parameters in _iterations(graph, setting):
        uses = _forward_tasks(graph, iteration + 1, len(parameters))
        # Backward finishes parameters in the reverse order of the forward pass.
        for number, parameter in zip(reversed(range(len(parameters))), parameters, strict=True):
            ready = _last_launched(graph, setting, parameter.ready_ns)
            after, before = _links(ready, uses[number] if uses else -1)
            sizes = _slices(parameter.size_bytes) if prioritised else [parameter.size_bytes]
            for i, size in enumerate(sizes):
                name = f"parameter {number}" + (f" slice {i}" if prioritised else "")
                order: dict[str, Any] = {"kind": "collective", "priority": -float(number), "iteration": iteration}
                push_us = size / (network.bandwidth_gbs * 1e3)
                tasks.append(NewTask(f"push of {name}", resource=NETWORK, duration_us=push_us, after=after, **order))
                # Of slices on their way one behind the other the last alone is waited for.
                pull_us = push_us + network.latency_us * (i + 1 == len(sizes))
                pushed = (len(graph) + len(tasks) - 1,)
                to_pull = {"duration_us": pull_us, "after": pushed, "before": before}
                tasks.append(NewTask(f"pull of {name}", resource=PULL_CHANNEL, **to_pull, **order))
    changed = insert(graph, tasks)
    for channel in (NETWORK, PULL_CHANNEL):
        changed = schedule(changed, channel, "priority" if prioritised else "arrival")
    alone = "the trace holds one iteration, so no forward pass waits for a weight"
    assumes = f"{network.latency_us:g} µs a message"
    return Change(changed, notes=(alone,) if len(graph.iterations) < 2 else (), assumes=assumes)


def _links(ready: int, use: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tasks after and before which a transfer runs: when its gradient is ready, and a later use of the result."""
    return (ready,) if ready >= 0 else (), (use,) if use > ready else ()


def _iterations(graph: Graph, setting: WhatIfSetting) -> Iterator[tuple[int, list[Parameter]]]:
    if not np.isin(graph.kind, DEVICE_KINDS).any():
        raise InputError(NO_DEVICE)
    every = parameters_by_iteration(setting.profile.trace, graph.iterations)
    yield from ((i, parameters) for i, parameters in enumerate(every) if parameters)


def _slices(size_bytes: float) -> list[float]:
    whole, rest = divmod(size_bytes, SLICE_BYTES)
    return [SLICE_BYTES] * int(whole) + ([rest] if rest else [])


def _last_launched(graph: Graph, setting: WhatIfSetting, time_ns: float) -> int:
    """The last device task whose launch call started before that time, -1 for none."""
    trace = setting.profile.trace
    rows = np.flatnonzero(np.isin(graph.kind, DEVICE_KINDS) & (graph.row >= 0))
    launched = linked(trace.calls.start_ns, trace.activities.call[graph.row[rows]], 2**62)
    before = np.flatnonzero(launched < time_ns)
    return int(rows[before[-1]]) if len(before) else -1


def _first_update(graph: Graph, iteration: int) -> int:
    """The optimizer's first device task, else the iteration's end mark."""
    on_device = np.isin(graph.kind, DEVICE_KINDS)
    update = np.flatnonzero(select(graph, layer=OPTIMIZER, iteration=iteration) & on_device)
    # zero_grad is an Optimizer range too, and clears gradients before they are computed.
    backward = np.flatnonzero(select(graph, phase="backward", iteration=iteration))
    later = update[update > backward[-1]] if len(backward) else update
    ends = np.flatnonzero(select(graph, kind="mark", name="iteration end", iteration=iteration))
    return int(next(iter([*later[:1], *ends[:1]]), -1))


def _forward_tasks(graph: Graph, iteration: int, count: int) -> list[int]:
    """For ``count`` parameters in forward order the device task of the iteration that uses each first.

    Layers with weights cannot be told from others by name alone, so the forward pass is shared out by position.
    """
    rows = np.flatnonzero(select(graph, phase="forward", iteration=iteration, kind="kernel"))
    if not len(rows):
        return []
    return rows[np.minimum(np.arange(count) * len(rows) // max(count, 1), len(rows) - 1)].tolist()
