"""Training on several workers, from a trace of one: all-reduce in buckets, whole, in stages or of compressed gradients;
parameter servers, priorities (P3).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from surrogate.features.errors import InputError
from surrogate.network.data_parallel import buckets
from surrogate.trace.calls import Parameter, parameters_of
from surrogate.trace.events.tables import linked
from surrogate.trace.graph.tasks import DEVICE_KINDS, Graph
from surrogate.trace.whatif.primitives import LINKS, NETWORK, OPTIMIZER, NewTask, insert, schedule, select
from surrogate.trace.whatif.setting import UNJUDGED, UNMEASURED, Change, Known, Network, Setting, Value, rule

PULLS = "network back"
"""The channel of what servers send."""
ON_DEVICE = ""
"""In the place of a channel: the stream that computes the gradients."""
SLICE_BYTES = 200e3
"""P3's slices hold 50,000 parameters (Jayarajan et al., MLSys 2019)."""
COMPRESSION = 270.0
"""Least compression of gradients that Deep Gradient Compression reports (Lin et al., ICLR 2018: 270 to 600)."""
_COMPRESS_PASSES = 6.0
"""Accesses per gradient: gradient, momentum, sum read; the latter two written; the sum read against the threshold."""
_DECOMPRESS_PASSES = 1.0
"""The dense gradient is written."""
Stages = Callable[[float], list[tuple[str, str, float]]]
"""Bytes of a bucket → (name, channel or `ON_DEVICE`, µs) of what runs one after the other for it."""


_WORKERS = Value("workers", lambda setting: setting.network.workers, "--workers", least=1)
_SPEED = Value("GB/s", lambda setting: setting.network.bandwidth_gbs, "--bandwidth")


# A ring of 8: 2·7/8 of 4 MB at 10 GB/s, and 14 steps of 10 µs, between the backward pass and the optimizer.
@rule("data-parallel", value=_WORKERS, evidence=UNJUDGED, known=Known(2110 + 700 + 140, value=8))
def data_parallel(graph: Graph, setting: Setting, value: float | None) -> Change:
    """An all-reduce per bucket of gradients, beside the backward pass; the optimizer waits for all of them.

    Buckets fill in the order in which gradients are ready, as PyTorch's do (25 MB). Raises `InputError` where the trace
    shows no parameters.
    """
    setting = _with_workers(setting, value)
    return _exchanged(graph, setting, lambda size: [("all-reduce", NETWORK, setting.network.all_reduce_us(size))])


# To and fro: 3/4 of 4 MB at 150 GB/s and 3 steps of 3 µs inside, 1/2 at 10 GB/s and a step of 10 µs between.
@rule("blueconnect", value=_WORKERS, evidence=UNMEASURED,
      known=Known(2110 + 2 * (20 + 9) + 2 * (200 + 10), network=Network(8, gpus_per_machine=4)))  # fmt: skip
def blueconnect(graph: Graph, setting: Setting, value: float | None) -> Change:
    """As data-parallel, but each all-reduce in stages over the hierarchy, on a channel each (BlueConnect, MLSys 2019).

    The stages of several buckets overlap (Cho et al.).
    """
    setting = _with_workers(setting, value)
    change = _exchanged(graph, setting, setting.network.stages)
    changed = change.graph
    for channel in {resource.label for resource in changed.resources} & {LINKS, NETWORK}:
        changed = schedule(changed, channel, "arrival")
    return replace(change, graph=changed)


# Seven passes over 4 MB at 900 GB/s, and data-parallel's all-reduce of a tenth.
@rule("dgc", value=Value("how many times smaller", COMPRESSION, least=1), evidence=UNMEASURED,
      known=Known(2110 + 7 * 4e6 / 900e3 + 70 + 140, value=10))  # fmt: skip
def compressed_gradients(graph: Graph, setting: Setting, value: float | None) -> Change:
    """As data-parallel, with messages N times smaller (Deep Gradient Compression, ICLR 2018).

    A kernel behind its gradients makes each message and one spreads it out before the update, both bound by memory (Lin
    et al.).
    """
    ratio = value or COMPRESSION
    network = setting.network
    pass_us = 1 / (setting.own_gpu.dram_gbs * 1e3)
    change = _exchanged(graph, setting, lambda size: [
        ("compression", ON_DEVICE, _COMPRESS_PASSES * size * pass_us),
        ("all-reduce", NETWORK, network.all_reduce_us(size / ratio)),
        ("decompression", ON_DEVICE, _DECOMPRESS_PASSES * size * pass_us),
    ])  # fmt: skip
    return replace(change, assumes=f"workers: {network.workers}, {change.assumes}")


def _with_workers(setting: Setting, value: float | None) -> Setting:
    if value and value % 1:
        raise InputError(f"{value:g} is no number of workers; give a whole number")
    return replace(setting, network=replace(setting.network, workers=int(value))) if value else setting


def _exchanged(graph: Graph, setting: Setting, stages: Stages) -> Change:
    """The stages of every bucket of every iteration, from its last gradient to the optimizer's first task."""
    tasks: list[NewTask] = []
    for iteration, parameters in _iterations(graph, setting):
        update = _first_update(graph, iteration)
        last: list[NewTask] = []
        gradients = ((parameter.ready_ns, int(parameter.size_bytes)) for parameter in parameters)
        for number, (ready_ns, size) in enumerate(buckets(gradients, setting.network.bucket_bytes)):
            ready = _last_launched(graph, setting, ready_ns)
            after, before = _links(ready, update if ready >= 0 else -1)
            every = stages(size)
            for left, (stage, channel, time_us) in enumerate(every, start=1 - len(every)):
                kind = "collective"
                resource = channel
                to = tasks
                if channel == ON_DEVICE:
                    kind = "kernel"
                    resource = graph.resources[graph.resource[ready]].label if ready >= 0 else NETWORK
                    if not left and before:  # behind all else on the stream, not in the way of other gradients
                        after += (int(np.flatnonzero(graph.resource[: before[0]] == graph.resource[ready])[-1]),)
                        to = last
                ahead_of = () if left else before
                name = f"{stage} of bucket {number}"
                to.append(NewTask(name, kind, resource, time_us, after=after, before=ahead_of, iteration=iteration))
                after = (len(graph) + len(tasks) - 1,)
        tasks += last
    return Change(insert(graph, tasks), gpus=setting.network.workers, assumes=str(setting.network))


# The gradient is ready after 2,010 µs, and 4 MB go to in 400 and fro in 410: the second step's convolution waits
# 500 for them, and behind the second step, 100 after the gradient, they go on for 710.
@rule("parameter-server", value=_SPEED, evidence=UNJUDGED, known=Known(2110 + (500 + 710) / 2, value=10))
def parameter_server(graph: Graph, setting: Setting, value: float | None) -> Change:
    """Each gradient is pushed when ready and its weight pulled back, before the next iteration first uses it."""
    return _served(graph, setting, value, prioritised=False)


# 20 slices of 20 µs each way: the last is back 20 and 10 behind the last push, 380 earlier than all at once.
@rule("p3", value=_SPEED, evidence=UNJUDGED, known=Known(2110 + (120 + 330) / 2, value=10))
def priority_propagation(graph: Graph, setting: Setting, value: float | None) -> Change:
    """As parameter-server, in slices of 50,000 parameters, those that the forward pass needs first ahead (MLSys 2019).

    The source is Jayarajan et al.: priority-based parameter propagation.
    """
    return _served(graph, setting, value, prioritised=True)


def _served(graph: Graph, setting: Setting, value: float | None, *, prioritised: bool) -> Change:
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
                tasks.append(NewTask(f"pull of {name}", resource=PULLS, **to_pull, **order))
    changed = insert(graph, tasks)
    for channel in (NETWORK, PULLS):
        changed = schedule(changed, channel, "priority" if prioritised else "arrival")
    alone = "the trace holds one iteration, so no forward pass waits for a weight"
    assumes = f"{network.latency_us:g} µs a message"
    return Change(changed, notes=(alone,) if len(graph.iterations) < 2 else (), assumes=assumes)


def _links(ready: int, use: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tasks after and before which a transfer runs: when its gradient is ready, and a later use of the result."""
    return (ready,) if ready >= 0 else (), (use,) if use > ready else ()


def _iterations(graph: Graph, setting: Setting) -> Iterator[tuple[int, list[Parameter]]]:
    every = parameters_of(setting.profile.trace, graph.iterations)
    if not any(every):
        raise InputError(
            "the trace shows no parameters (ranges of torch::autograd::AccumulateGrad with shapes);"
            " record a training step with shapes"
        )
    yield from ((i, parameters) for i, parameters in enumerate(every) if parameters)


def _slices(size_bytes: float) -> list[float]:
    whole, rest = divmod(size_bytes, SLICE_BYTES)
    return [SLICE_BYTES] * int(whole) + ([rest] if rest else [])


def _last_launched(graph: Graph, setting: Setting, time_ns: float) -> int:
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
