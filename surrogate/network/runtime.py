"""The runtime of a network: which kernels a compiler fuses, and the time that the host takes to launch them.

**Fusion**: chains of element-wise operators become one pass over memory. ``torch.compile`` leaves convolutions and
products to their libraries and keeps half-precision convolutions in NHWC. It fuses the operators between them: biases,
batch norm by stored statistics, activations, sums with a residual, casts, norms, and the reduction at the end of a
chain. Source: PyTorch, TorchInductor's scheduler and its layout optimisation.

**Launches**: a pass takes ``max(kernels, launches) + floor``: either the host runs ahead of the GPU, or the GPU waits
for the host. ``launches`` grows with the numbers of library calls, of other operators and of views. Convolutions and
products are library calls: their library first chooses a kernel. ``floor`` is the time from the call of the pass to its
first kernel, plus the time from its last kernel to the waiting host. The constants are fitted to small programs
(`experiments/small_networks.py`).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from math import exp
from typing import NamedTuple

from surrogate import bundled
from surrogate.features import BANDWIDTH_FIELDS, DTYPES, ELEMENTS, HALF, check_choice
from surrogate.features.families import NetworkProblem, Operator
from surrogate.features.families.operator import CAST, REDUCE, Image, Streamed
from surrogate.models.json_types import from_json_types
from surrogate.network.aten_call import DISPATCH
from surrogate.network.network import (
    BATCH_KINDS,
    TEXTS,
    HostTime,
    Layer,
    Network,
    ReadOptions,
    in_layout,
    with_settings,
)
from surrogate.network.optimizers import OPTIMIZER
from surrogate.network.parallel import cluster_of, with_cluster
from surrogate.network.training import repeats, with_accumulation, with_training

WINDOW_KINDS = {kind for kind, share in BANDWIDTH_FIELDS.items() if share == "pool_bandwidth"}
FUSED_KINDS = set(BANDWIDTH_FIELDS) - WINDOW_KINDS - BATCH_KINDS - {"layout_transform", "concat"}
MAX_ROW_ON_CHIP = 32_768
"""Elements of a row that a block keeps on chip while it reduces and normalises them: 128 KiB in fp32."""

HOSTS_FILE = "hosts.json"
RUNTIMES: Mapping[str, str] = TEXTS["runtimes"]
HOSTS = ("usual", "fast", "slow")
"""Kinds of hosts by the time that a kernel launch takes: most measured hosts, the fastest and the slowest."""
MEMORY_NOTE = TEXTS["notes"]["memory"]
VIEW_OPERATORS = frozenset((*DISPATCH["ignored"]["aten"], *DISPATCH["ignored"]["in_inference"]))
"""Operators that the host runs and that launch no kernel."""


class _Traffic(NamedTuple):
    """The traffic of an element-wise kernel.

    ``elements`` and ``main`` are the elements and bytes of the tensor that a chain may pass to the kernel. ``reads``
    and ``writes`` are the bytes of all its tensors, ``result`` the elements of its result.
    """

    elements: int
    main: int
    reads: int
    writes: int
    result: int


def fuse_layers(network: Network) -> Network:
    """Return the network with its layers fused as `torch.compile` fuses them.

    A layer joins the open chain if it reads the chain's result. A smaller layer (the cast of a weight) stays separate
    and does not end the chain. Any layer that is neither element-wise nor a reduction ends it. In training the backward
    pass is fused in the same way; it recomputes tensors that a chain of the forward pass did not write, as
    AOTAutograd's partitioner permits.
    """
    source_problems = {layer.problem for layer in network.layers}
    layers: list[Layer] = []
    chain: _Traffic | None = None
    chain_start = 0
    passes = [each for layer in network.layers for each in _split_norms(layer)]
    moved = [int(layer.problem.dram_bytes / ELEMENTS[layer.problem.dtype].output_bytes) for layer in passes]
    later_elements = [*accumulate(reversed(moved[1:]), max, initial=0)][::-1]  # the maximum of all later layers
    forward_passes = sum(len(list(_split_norms(layer))) for layer in network.layers[: network.forward_layers])
    forward_layers = 0
    for index, (layer, later) in enumerate(zip(passes, later_elements, strict=True)):
        problem = layer.problem
        if index == forward_passes:  # The backward pass is a program of its own, so no chain crosses.
            forward_layers = len(layers)
            chain = None
        if isinstance(problem, Operator) and problem.kind in FUSED_KINDS:
            kernel = _traffic(problem)
            reduces = isinstance(problem, Streamed) and problem.variant == REDUCE
            if chain is not None and kernel.elements == chain.result and kernel.reads >= kernel.main:
                # The kernel reads the chain's result: that tensor stays in registers, all other traffic adds up.
                # If the kernel reduces it, it is written as well when a later layer is large enough to read it.
                chain_writes = chain.writes if reduces and later >= chain.result else 0
                reads = chain.reads + kernel.reads - kernel.main
                chain = _Traffic(chain.elements, chain.main, reads, chain_writes + kernel.writes, kernel.result)
                layers[chain_start] = _fused_layer(layers[chain_start], layer, problem, chain)
            else:
                # The kernel stays separate. If it is larger than the open chain's result, a new chain begins here.
                layers.append(layer)
                if chain is None or kernel.elements > chain.result:
                    chain = kernel
                    chain_start = len(layers) - 1
            chain = None if reduces else chain
            continue
        chain = None
        if not isinstance(problem, Operator) or problem.kind in BATCH_KINDS:
            layer = replace(layer, problem=in_layout(problem, "NHWC")) if problem.dtype in HALF else layer
        elif problem.kind in WINDOW_KINDS:
            # The compiler generates its own pooling kernel, so only its traffic counts, not the library.
            moved = problem.dram_bytes // problem.itemsize
            layer = replace(layer, problem=Streamed(reads=moved - 1, writes=1, dtype=problem.dtype, variant="window"))
        layers.append(layer)
    changes_layout = any(layer.problem.HAS_ALGORITHMS and layer.problem not in source_problems for layer in layers)
    notes = (*network.notes, *((TEXTS["notes"]["layout"],) if changes_layout else ()))
    return replace(network, layers=tuple(layers), forward_layers=forward_layers, notes=notes)


def _split_norms(layer: Layer) -> Iterator[Layer]:
    """Yield the layer as it is, or a norm with rows too large for the chip as two passes over memory.

    The first pass reduces the rows to statistics, the second applies them.
    """
    problem = layer.problem
    if isinstance(problem, Image) and problem.APPLIED_BY and problem.elements > MAX_ROW_ON_CHIP * problem.extents.rows:
        sums = 2 * int(problem.extents.rows)
        flops = 4 * problem.elements // sums
        statistics = Streamed(reads=problem.elements, writes=sums, work=flops, dtype=problem.dtype, variant=REDUCE)
        yield replace(layer, name=f"{layer.name}.statistics", problem=statistics, parameters=0)
        problem = problem.of_kind(problem.APPLIED_BY)
    yield replace(layer, problem=problem)


def _traffic(problem: Operator) -> _Traffic:
    """Return the traffic of an element-wise operator."""
    if not isinstance(problem, Streamed):
        tensors = problem.ACCESSES if isinstance(problem, Image) else 2
        size = problem.dram_bytes // tensors
        return _Traffic(size // problem.itemsize, size, problem.dram_bytes - size, size, size // problem.itemsize)
    reads, writes = problem.reads * problem.itemsize, problem.writes * problem.itemsize
    if problem.variant == CAST:
        elements = min(problem.reads, problem.writes)
        return _Traffic(elements, reads, reads, writes, elements)
    elements = problem.reads if problem.variant == REDUCE else problem.writes
    return _Traffic(elements, elements * problem.itemsize, reads, writes, problem.writes)


def _fused_layer(first: Layer, last: Layer, problem: Operator, chain: _Traffic) -> Layer:
    """Return one layer for both, counted in the narrower type, with the name of the first."""
    dtype = min(first.problem.dtype, problem.dtype, key=DTYPES.__getitem__)
    size = DTYPES[dtype]
    flops = (first.problem.flops + problem.flops) * size // chain.writes
    fused = Streamed(reads=chain.reads // size, writes=chain.writes // size, work=flops, dtype=dtype, variant="fused")
    operator = f"{first.operator}+{last.operator.rpartition('.')[2]}"
    parameters = first.parameters + last.parameters
    return Layer(first.name, operator, fused, parameters=parameters, keeps_math=first.keeps_math)


class Launches(NamedTuple):
    """The number of host calls in a pass: into libraries, of other operators, and of views."""

    libraries: int
    operators: int
    views: int


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """The times in µs of `Launches` on a fast host.

    ``half_width`` is the half width in log time that covers 90 % of the held-out programs.
    """

    library_us: float
    operator_us: float
    view_us: float
    floor_us: float
    half_width: float

    def launch_us(self, launches: Launches) -> float:
        """Return the time of all launches of a pass in µs."""
        costs_us = self.library_us, self.operator_us, self.view_us
        return sum(us * count for us, count in zip(costs_us, launches, strict=True))


@dataclass(frozen=True, slots=True)
class HostCosts:
    """The shipped constants of hosts.

    ``launch_costs`` has the launch cost of each runtime. ``hosts`` has the time of each kind of host relative to a fast
    host.
    """

    origin: str
    hosts: Mapping[str, float]
    launch_costs: Mapping[str, LaunchCost]


@cache
def shipped_hosts() -> HostCosts:
    """Return the constants that ship with the package."""
    content = json.loads((bundled.FOLDER / HOSTS_FILE).read_bytes())
    return from_json_types(HostCosts, {**content, "launch_costs": content["laws"]})


def with_options(network: Network, options: ReadOptions) -> Network:
    """Return the network that a source gave, with the effect of all options except launches.

    The order of the steps matters. The backward pass comes first, because it is derived from the layers as the model
    has them. Math and layout come second, so that they apply to the convolutions of both passes. The number of GPUs
    comes third, because the GPUs exchange the gradients of a whole iteration. The caller adds `with_runtime` last: a
    compiler fuses the layers of both passes and changes the layout of convolutions, and the host launches the remaining
    kernels.
    """
    network = with_training(network, options.training, options.optimizer or OPTIMIZER)
    network = with_settings(network, options.math, options.layout)
    network = with_accumulation(network, options.accumulate)
    return with_cluster(network, cluster_of(network.name, options))


def with_runtime(network: Network, runtime: str | None = None, host: str | None = None) -> Network:
    """Return the network as a runtime runs it, with the time that a host takes to launch its kernels.

    ``runtime`` is one of `RUNTIMES` (None: the network's own), ``host`` one of `HOSTS` (None: the usual one). Launches
    are counted after fusion.
    """
    runtime, host = runtime or network.runtime, host or HOSTS[0]
    check_choice("runtime", runtime, RUNTIMES)
    check_choice("host", host, HOSTS)
    if runtime != "eager":
        network = fuse_layers(network)
        network = replace(network, notes=(*network.notes, MEMORY_NOTE))
    cost, host_factor = shipped_hosts().launch_costs[runtime], shipped_hosts().hosts[host]
    launch_us = host_factor * cost.launch_us(count_launches(network))
    return replace(network, host=HostTime(runtime, host, launch_us, host_factor * cost.floor_us, exp(cost.half_width)))


def count_launches(network: Network) -> Launches:
    """Count the host calls in one pass; operators without a known time are launched, too."""
    launches = sum(repeats(network, layer) for layer in network.layers)
    libraries = sum(repeats(network, layer) for layer in network.layers if _calls_library(layer.problem))
    views = sum(count for name, count in network.ignored.items() if name in VIEW_OPERATORS)
    others = launches - libraries + network.accumulate * sum(network.unsupported.values())
    return Launches(libraries, others, network.accumulate * views)


def _calls_library(problem: NetworkProblem) -> bool:
    """Return whether a library chooses a kernel for the problem: convolutions and products."""
    return problem.HAS_ALGORITHMS or (isinstance(problem, Operator) and problem.MULTIPLIES)
