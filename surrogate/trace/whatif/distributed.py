"""Training on several workers, from a trace of one: all-reduce in buckets, whole, in stages or of compressed gradients;
parameter servers, priorities (P3).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from surrogate.features.errors import InputError
from surrogate.trace.events.tables import linked
from surrogate.trace.graph.tasks import DEVICE_KINDS, Graph
from surrogate.trace.whatif.primitives import NewTask, insert, schedule, select
from surrogate.trace.whatif.setting import LINKS, NETWORK, OPTIMIZER, Change, Parameter, Setting, parameters_of

ON_DEVICE = ""
"""In the place of a channel: the stream that computes the gradients."""
SLICE_BYTES = 200e3
"""P3's slices hold 50,000 parameters (Jayarajan et al., MLSys 2019)."""
COMPRESSION = 270.0
"""Least compression of gradients that Deep Gradient Compression reports (Lin et al., ICLR 2018: 270 to 600)."""
_COMPRESS_PASSES, _DECOMPRESS_PASSES = 6.0, 1.0
"""Accesses per gradient: gradient, momentum and sum read, the latter two written, the sum read against the threshold;
and one to write the dense gradient."""
Stages = Callable[[float], list[tuple[str, str, float]]]
"""Bytes of a bucket → (name, channel or `ON_DEVICE`, µs) of what runs one after the other for it."""


def data_parallel(graph: Graph, setting: Setting, value: float | None) -> Change:
    """An all-reduce per bucket of gradients, beside the backward pass; the optimizer waits for all of them.

    Buckets fill in the order in which gradients are ready, as PyTorch's do (25 MB). ``value``: workers. Raises
    `InputError` where the trace shows no parameters.
    """
    setting = _with_workers(setting, value)
    return _exchanged(graph, setting, lambda size: [("all-reduce", NETWORK, setting.network.all_reduce_us(size))])


def blueconnect(graph: Graph, setting: Setting, value: float | None) -> Change:
    """As `data_parallel`, but each all-reduce in stages over the hierarchy, on a channel each, so that the stages of
    several buckets overlap (Cho et al., MLSys 2019; in Daydream without a measured error). ``value``: workers."""
    setting = _with_workers(setting, value)
    change = _exchanged(graph, setting, setting.network.stages)
    changed = change.graph
    for channel in {resource.label for resource in changed.resources} & {LINKS, NETWORK}:
        changed = schedule(changed, channel, "arrival")
    return replace(change, graph=changed)


def compressed_gradients(graph: Graph, setting: Setting, value: float | None) -> Change:
    """As `data_parallel`, with messages ``value`` times smaller, a kernel that makes each behind its gradients and one
    that spreads it out before the update, both bound by memory (DGC, Lin et al., ICLR 2018; in Daydream without a
    measured error)."""
    ratio, network = value or COMPRESSION, setting.network
    pass_us = 1 / (setting.own_gpu.dram_gbs * 1e3)
    return _exchanged(graph, setting, lambda size: [
        ("compression", ON_DEVICE, _COMPRESS_PASSES * size * pass_us),
        ("all-reduce", NETWORK, network.all_reduce_us(size / ratio)),
        ("decompression", ON_DEVICE, _DECOMPRESS_PASSES * size * pass_us),
    ])  # fmt: skip


def _with_workers(setting: Setting, value: float | None) -> Setting:
    if value and value % 1:
        raise InputError(f"{value:g} is no number of workers; give a whole number")
    return replace(setting, network=replace(setting.network, workers=int(value))) if value else setting


def _exchanged(graph: Graph, setting: Setting, stages: Stages) -> Change:
    """The stages of every bucket of every iteration, from its last gradient to the optimizer's first task."""
    tasks: list[NewTask] = []
    for iteration, parameters in _iterations(graph, setting):
        update, last = _first_update(graph, iteration), list[NewTask]()
        for number, bucket in enumerate(_buckets(parameters, setting.network.bucket_bytes)):
            ready = _last_launched(graph, setting, bucket[-1].ready_ns)
            after, before = _links(ready, update if ready >= 0 else -1)
            every = stages(sum(parameter.size_bytes for parameter in bucket))
            for left, (stage, channel, time_us) in enumerate(every, start=1 - len(every)):
                name, resource, kind, to = f"{stage} of bucket {number}", channel, "collective", tasks
                if channel == ON_DEVICE:
                    kind, resource = "kernel", graph.resources[graph.resource[ready]].label if ready >= 0 else NETWORK
                    if not left and before:  # behind all else on the stream, not in the way of other gradients
                        after += (int(np.flatnonzero(graph.resource[: before[0]] == graph.resource[ready])[-1]),)
                        to = last
                to.append(NewTask(name, kind, resource, time_us, after, () if left else before, iteration=iteration))
                after = (len(graph) + len(tasks) - 1,)
        tasks += last
    return Change(insert(graph, tasks), gpus=setting.network.workers)


def parameter_server(graph: Graph, setting: Setting, value: float | None, *, prioritised: bool = False) -> Change:
    """Each gradient is pushed when ready and its weight pulled back, first come first served; the next iteration's
    first use of the weight waits for it. ``value``: GB/s.

    ``prioritised``: in slices of 50,000 parameters, those that the next forward pass needs first ahead (P3, Jayarajan
    et al., MLSys 2019).
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
                name = f"push and pull of parameter {number}" + (f" slice {i}" if prioritised else "")
                time_us = network.transfer_us(2 * size)
                constraints = (after, before, -float(number), iteration)
                tasks.append(NewTask(name, "collective", NETWORK, time_us, *constraints))
    changed = schedule(insert(graph, tasks), NETWORK, "priority" if prioritised else "arrival")
    alone = "the trace holds one iteration, so no forward pass waits for a weight"
    return Change(changed, notes=(alone,) if len(graph.iterations) < 2 else ())


priority_propagation = partial(parameter_server, prioritised=True)


def _links(ready: int, use: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tasks after and before which a transfer runs: when its gradient is ready, and a later use of the result."""
    return (ready,) if ready >= 0 else (), (use,) if use > ready else ()


def _iterations(graph: Graph, setting: Setting) -> Iterator[tuple[int, list[Parameter]]]:
    every = [parameters_of(setting.profile.trace, i, graph.iterations) for i in range(len(graph.iterations))]
    if not any(every):
        raise InputError(
            "the trace shows no parameters (ranges of torch::autograd::AccumulateGrad with shapes);"
            " record a training step with shapes"
        )
    yield from ((i, parameters) for i, parameters in enumerate(every) if parameters)


def _buckets(parameters: list[Parameter], bucket_bytes: float) -> Iterator[list[Parameter]]:
    bucket: list[Parameter] = []
    for parameter in parameters:
        bucket.append(parameter)
        if sum(held.size_bytes for held in bucket) >= bucket_bytes:
            yield bucket
            bucket = []
    if bucket:
        yield bucket


def _slices(size_bytes: float) -> list[float]:
    whole, rest = divmod(size_bytes, SLICE_BYTES)
    return [SLICE_BYTES] * int(whole) + ([rest] if rest else [])


def _last_launched(graph: Graph, setting: Setting, time_ns: int) -> int:
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
