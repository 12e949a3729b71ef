"""Train on several GPUs: which messages they exchange, and how long the computation waits for them.

**Data parallel**: every GPU holds the whole model. The GPUs sum their gradients in buckets during the backward pass.
Buckets fill in the order in which gradients are ready, and are sent one after another. With accumulation, the GPUs
exchange gradients once per step (``no_sync``). Source: Li et al., "PyTorch Distributed" (VLDB 2020).

**Fully sharded** (FSDP): every GPU holds a share of weights, gradients and states. A unit's weights are gathered before
its forward pass and again before its backward pass, and its gradients are summed and scattered after it. With
accumulation, every microbatch gathers and scatters. Source: Zhao et al., "PyTorch FSDP" (VLDB 2023), and PyTorch's
documentation of ``FullyShardedDataParallel``: ``no_sync`` would keep unsharded gradients.

Within a node, messages take the times of the GPU's links. Between nodes, a ring passes through all GPUs, so the slower
of links and network sets its pace. Source: NVIDIA/nccl-tests, ``doc/PERFORMANCE.md``.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from math import isfinite, log2
from numbers import Real
from operator import itemgetter
from typing import NamedTuple

from surrogate.features import DTYPES, MAX_INT32, InputError, ceil_div, checked_int
from surrogate.features.families.operator import Streamed
from surrogate.features.families.transfer import HANDSHAKE_US, AllGather, AllReduce, Collective, ReduceScatter
from surrogate.network.network import TEXTS, Cluster, Layer, Network, ReadOptions, refuse
from surrogate.network.result import GradientExchange, ProblemTime
from surrogate.network.training import CAST, is_update

Predict = Callable[[Sequence[Collective]], Mapping[Collective, ProblemTime]]
"""A function of messages that returns the time of each."""
BUCKET_BYTES = 25 * 2**20
"""Bytes of gradients that are summed at once. Source: PyTorch, ``DistributedDataParallel``, ``bucket_cap_mb``."""
NODE_GPUS = 8
"""The default number of GPUs in a node."""
MAX_NODE_GPUS = 72
"""Maximum GPUs in a node: those of a GB200 NVL72."""
MIN_NODE_GBPS = 1.0
"""Minimum bandwidth of a node's network in Gbit/s."""
MEASURED_DTYPE = "bf16"
"""The element type in which collectives were measured."""
GATHERED_UNITS = 2
"""Units whose weights are gathered at once. Source: PyTorch, ``FullyShardedDataParallel``, ``limit_all_gathers``."""
NETWORK_SHARE = 0.88
"""Share of a node's network bandwidth that long messages reach: the median of runs on two and three nodes of A100.

Source: 86, 91 and 96 of 100 GB/s (NVIDIA/nccl-tests, issues 175, 100 and 119), 600 of 800 Gbit/s (NVIDIA/nccl, 495).
"""
NETWORK_FACTOR = 1.2
"""Factor of the interval of times on the network between nodes; it holds these runs."""
HIDDEN_COST = {"time_us": 0.8, "lower_us": 0.1, "upper_us": 1.5}
"""Time that a message costs if computation runs at the same time / its time: both slow each other down.

Source: fitted to training steps of MPT-3b and MPT-70b on 8 to 512 GPUs (mosaicml/llm-foundry, benchmarking), whose
messages are longest. Without it, steps of all other sizes on 16 and more GPUs are 9 % too short in the median
(`experiments/training_mpt.py`).
"""
ROOT = ""
"""The unit of all weights outside numbered modules: embeddings, the last norm and the head."""
UNIT = re.compile(r"(?:.*?\.)??\d+(?=\.)")
"""The name of a unit at the beginning of a layer's name: up to the first number, such as ``layers.3``."""


def cluster_of(source: str, options: ReadOptions) -> Cluster:
    """Return the GPUs that train together. Raises `InputError` for options that contradict one another."""
    counts = {"data_parallel": options.data_parallel, "fsdp": options.fsdp}
    for name, count in counts.items():
        checked_int(source, name, count, maximum=MAX_INT32)
    for name, value in {"training": options.training, "checkpointing": options.checkpointing}.items():
        if value not in (True, False):
            raise InputError(f"{source}: {name} is {value!r}; give True or False")
    gpus, is_sharded = max(counts.values()), options.fsdp > 1
    parallel_options = ("tensor_parallel", "pipeline_parallel", "expert_parallel")
    parallel = next((name for name in parallel_options if options.training and (getattr(options, name) or 1) > 1), "")
    node_gpus, node_gbps = NODE_GPUS, options.node_gbps
    if options.gpus_per_node is not None:
        node_gpus = checked_int(source, "gpus_per_node", options.gpus_per_node, maximum=MAX_NODE_GPUS)
    cluster = Cluster(gpus, min(node_gpus, gpus), node_gbps or 0.0, is_sharded)
    is_bandwidth = isinstance(node_gbps, Real) and isfinite(node_gbps) and node_gbps >= MIN_NODE_GBPS
    refuse(
        {
            "hybrid": min(counts.values()) > 1,
            "untrained_shards": is_sharded and not options.training,
            "untrained": gpus > 1 and not options.training,
            "muon": is_sharded and options.optimizer == "muon",  # its products need the whole matrix
            "parallel": parallel,
            "one_gpu": gpus == 1 and options.gpus_per_node is not None,
            "no_multiple": gpus > node_gpus and gpus % node_gpus,
            "no_network": node_gbps is None and cluster.nodes > 1,
            "one_node": node_gbps is not None and cluster.nodes == 1,
            "network": node_gbps is not None and not is_bandwidth,
        },
        source=source,
        option="--fsdp" if is_sharded else "--data-parallel",
        parallel=f"{parallel.replace('_', '-')} {getattr(options, parallel, '')}",
        minimum=MIN_NODE_GBPS,
        nodes=cluster.nodes,
        **cluster._asdict() | {"node_gbps": node_gbps},
    )
    return cluster


class Segment(NamedTuple):
    """A part of the computation in µs, the message that it waits for, and the message that it makes ready."""

    time_us: float
    gather: Collective | None = None
    reduce: Collective | None = None


@dataclass(slots=True)
class OverlapTimeline:
    """A GPU's computation and its messages, which are sent one after another; both run at the same time.

    ``compute_us`` and ``link_us`` are the times at which the computation and the last message end. ``sent_us`` is the
    time of all messages.
    """

    compute_us: float = 0.0
    link_us: float = 0.0
    sent_us: float = 0.0

    def send(self, ready_us: float, time_us: float) -> None:
        """Send a message as soon as it is ready and the previous one has ended."""
        self.link_us = max(self.link_us, ready_us) + time_us
        self.sent_us += time_us

    def run(self, segments: Sequence[Segment], message_us: Mapping[Collective, float]) -> None:
        """Run the segments one after another.

        A unit is gathered while the previous one computes, once the unit before that is released. Its gather is issued
        before the previous unit's gradients.
        """
        ends_us = [0.0] * GATHERED_UNITS
        reduce: Collective | None = None
        for segment in (*segments, Segment(0.0)):
            gathered_us = 0.0
            if segment.gather:
                self.send(ends_us[-GATHERED_UNITS], message_us[segment.gather])
                gathered_us = self.link_us
            if reduce:
                self.send(self.compute_us, message_us[reduce])
            self.compute_us = max(self.compute_us, gathered_us) + segment.time_us
            ends_us.append(self.compute_us)
            reduce = segment.reduce


def exchange(network: Network, times_us: Sequence[float], predict: Predict) -> GradientExchange:
    """Return the messages of a training iteration.

    ``times_us`` has the time of each layer, 0 if unknown. ``predict`` returns the time of each message within a node,
    with the ends of its interval.
    """
    cluster = network.cluster
    segments = (_sharded_segments if cluster.is_sharded else _bucket_segments)(network, times_us)
    messages = {message: None for segment in segments for message in segment[1:] if message}
    answers = predict(list(messages))
    computed_us, sent_us, exposed_us = sum(segment.time_us for segment in segments), [], []
    for end, hidden_cost in HIDDEN_COST.items():
        timeline = OverlapTimeline()
        timeline.run(segments, {each: _message_us(each, cluster, answers[each], end) for each in messages})
        waits_us = max(timeline.link_us, timeline.compute_us) - computed_us
        exposed_us.append(waits_us + hidden_cost * (timeline.sent_us - waits_us))
        sent_us.append(timeline.sent_us)
    return GradientExchange(cluster, sent_us[0], *exposed_us)


def exchange_of(cluster: Cluster) -> tuple[str, str, type[Collective]]:
    """Return the values that the GPUs exchange, the messages in words, and a kind of message."""
    if cluster.is_sharded:
        return "weights and gradients", "all-gathers and reduce-scatters", AllGather
    return "gradients", "all-reduces", AllReduce


def _message_us(message: Collective, cluster: Cluster, answer: ProblemTime, end: str) -> float:
    """Return the time of a message, or an end of its interval, in µs; ``answer`` is its time within a node.

    Each doubling of the nodes adds a handshake.
    """
    if cluster.nodes == 1:
        return getattr(answer, end)
    local_share = 1 - 1 / cluster.node_gpus
    local_us = getattr(answer, end) * (1 - 1 / cluster.gpus) / local_share if local_share else 0.0
    # One Gbit/s is 125 bytes per µs.
    network_us = message.dram_bytes / (125 * NETWORK_SHARE * cluster.node_gbps)
    network_us *= message.STEPS * (1 - 1 / cluster.nodes)
    factor = {"time_us": 1.0, "lower_us": 1 / NETWORK_FACTOR, "upper_us": NETWORK_FACTOR}[end]
    return max(local_us, factor * network_us) + HANDSHAKE_US * log2(cluster.nodes)


def _bucket_segments(network: Network, times_us: Sequence[float]) -> list[Segment]:
    """Return the backward pass, divided where a bucket of gradients is ready.

    A gradient is ready after the layer of the backward pass that has its parameters.
    """
    pairs = [*zip(network.layers, times_us, strict=True)][network.forward_layers :]
    ends = list(accumulate(0.0 if is_update(layer) else time_us for layer, time_us in pairs))
    passes = zip(pairs, ends, strict=True)
    gradients = ((end, layer.parameters) for (layer, _), end in passes if layer.parameters and not is_update(layer))
    itemsize = gradient_itemsize(network)
    segments, begin_us = [], 0.0
    for ready_us, elements in gradient_buckets(gradients, BUCKET_BYTES / itemsize):
        message = _message(AllReduce, elements, itemsize, network.cluster.node_gpus)
        segments.append(Segment(ready_us - begin_us, reduce=message))
        begin_us = ready_us
    return [*segments, Segment((ends or [0.0])[-1] - begin_us)]


def _message(kind: type[Collective], elements: int, itemsize: float, gpus: int) -> Collective:
    """Return a message among GPUs of a node: in `MEASURED_DTYPE`, as many bytes take as long."""
    measured = round(elements * itemsize) // DTYPES[MEASURED_DTYPE]
    return kind(elements=measured, ranks=max(gpus, 2), dtype=MEASURED_DTYPE)


def gradient_buckets(gradients: Iterator[tuple[float, int]], maximum: float) -> Iterator[tuple[float, int]]:
    """Yield (ready time, size) of each bucket; ``gradients`` are (ready time, size) in order."""
    filled = 0
    ready = 0.0
    for time, size in gradients:
        filled += size
        ready = max(ready, time)
        if filled >= maximum:
            yield ready, filled
            filled = 0
    if filled:
        yield ready, filled


def _sharded_segments(network: Network, times_us: Sequence[float]) -> list[Segment]:
    """Return the passes of all microbatches, divided into runs of one unit.

    The root unit is gathered once per microbatch, at the beginning.
    """
    itemsize, count = DTYPES[message_dtype(network)], network.forward_layers
    weights, trained = gathered_parameters(network), trained_parameters(network)
    pairs = zip(network.layers, times_us, strict=True)
    timed = [(unit_of(layer.name), time_us) for layer, time_us in pairs if not is_update(layer)]
    passes = [groupby(layers, key=itemgetter(0)) for layers in (timed[:count], timed[count:])]
    runs = [[(unit, sum(time_us for _, time_us in run)) for unit, run in groups] for groups in passes]
    segments, gpus = [], network.cluster.node_gpus
    for is_backward, parts in enumerate(runs):
        last_index = {unit: index for index, (unit, _) in enumerate(parts)}
        gathered = {ROOT} if is_backward else set()
        for index, (unit, time_us) in enumerate(parts):
            gather = reduce = None
            if weights[unit] and unit not in gathered:
                gather = _message(AllGather, weights[unit], itemsize, gpus)
            if trained[unit] and is_backward and index == last_index[unit]:
                reduce = _message(ReduceScatter, trained[unit], itemsize, gpus)
            gathered.add(unit)
            segments.append(Segment(time_us, gather, reduce))
    return segments * network.accumulate


def unit_of(name: str) -> str:
    """Return the unit of a layer or weight: the module of a numbered list, such as ``layers.3``, or `ROOT`."""
    match = UNIT.match(name)
    return match[0] if match else ROOT


def _unit_sizes(layers: Sequence[Layer]) -> Counter[str]:
    """Return the weights that the layers of each unit count."""
    sizes: Counter[str] = Counter()
    for layer in layers:
        if not is_update(layer):
            sizes[unit_of(layer.name)] += layer.parameters
    return sizes


def trained_parameters(network: Network) -> Counter[str]:
    """Return the trained weights of each unit."""
    return _unit_sizes(network.layers[network.forward_layers :])


def gathered_parameters(network: Network) -> Counter[str]:
    """Return the weights of each unit, frozen ones included.

    If the forward pass counts trained weights only, every unit has the same share of frozen ones.
    """
    sizes = _unit_sizes(network.layers[: network.forward_layers])
    ratio = max(1.0, (network.parameters or 0) / (sizes.total() or 1))
    return Counter({unit: round(size * ratio) for unit, size in sizes.items()})


def gradient_itemsize(network: Network) -> float:
    """Return the mean bytes of a gradient; gradients have the types of the optimizer's passes."""
    passes = [layer for layer in network.layers if is_update(layer) and layer.parameters]
    total_bytes = sum(layer.parameters * DTYPES[layer.problem.dtype] for layer in passes)
    return total_bytes / sum(layer.parameters for layer in passes) if passes else DTYPES["fp32"]


def message_dtype(network: Network) -> str:
    """Return the type of gathered weights and reduced gradients: that of most of the arithmetic.

    Source: llm-foundry's configurations set ``mixed_precision: PURE``, which gathers and reduces in the low precision.
    """
    work: Counter[str] = Counter()
    for layer in network.layers:
        work[layer.problem.dtype] += layer.problem.multiply_adds
    return work.most_common(1)[0][0] if work else "fp32"


def with_cluster(network: Network, cluster: Cluster) -> Network:
    """Return the network on one GPU of a cluster; if it is sharded, the optimizer updates the GPU's share."""
    if not cluster.is_sharded:
        return replace(network, cluster=cluster)
    if set(gathered_parameters(network)) == {ROOT}:
        network = replace(network, notes=(*network.notes, TEXTS["notes"]["one_unit"]))
    return replace(network, layers=tuple(_shard(each, cluster.gpus) for each in network.layers), cluster=cluster)


def _shard(layer: Layer, gpus: int) -> Layer:
    """Return a pass over weights, gradients or states over one GPU's share; any other layer is returned unchanged."""
    problem = layer.problem
    if not (is_update(layer) or layer.operator.startswith(CAST)) or not isinstance(problem, Streamed):
        return layer
    share = replace(problem, reads=ceil_div(problem.reads, gpus), writes=ceil_div(problem.writes, gpus))
    return replace(layer, problem=share, parameters=ceil_div(layer.parameters, gpus))


def memory_per_gpu(network: Network, memory: Mapping[str, int]) -> dict[str, int]:
    """Return bytes by use on one GPU of a cluster.

    Without sharding, the buckets are a second copy of all gradients. Source: PyTorch, ``DistributedDataParallel``,
    ``gradient_as_bucket_view``.

    A sharded GPU holds its share of weights, gradients and states. Its peak counts all activations and its share of all
    gradients, although some activations are released before the last gradients. The gathered weights of the root and of
    `GATHERED_UNITS` units, and the gradients of the root and of one unit, are buffers of communication.
    """
    gpus = network.cluster.gpus
    if gpus == 1 or not memory:
        return dict(memory)
    trained, weights = trained_parameters(network), gathered_parameters(network)
    gradient_bytes = round(trained.total() * gradient_itemsize(network))
    if not network.cluster.is_sharded:
        return {**memory, "communication": memory["communication"] + gradient_bytes}
    root = weights.pop(ROOT, 0) + trained.pop(ROOT, 0)
    largest = [size for _, size in weights.most_common(GATHERED_UNITS)]
    gathered = root + sum(largest) + max(trained.values(), default=0)
    message = message_dtype(network)
    shares = {name: ceil_div(memory[name], gpus) for name in ("weights", "state")}
    if network.peak_activation_bytes is not None:
        shares["activations"] = network.peak_activation_bytes
    shares["gradients"] = ceil_div(gradient_bytes, gpus)
    return {**memory, **shares, "communication": memory["communication"] + gathered * DTYPES[message]}
