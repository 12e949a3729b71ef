"""What launches a network's kernels, which a compiler fuses first, and the time that launches take.

**Fusion**: chains of element-wise operators become one pass over memory. ``torch.compile`` leaves convolutions and
products to their libraries, keeps half-precision convolutions in NHWC, and fuses the operators between: biases, batch
norm by stored statistics, activations, sums with a residual, casts, norms and the reduction at a chain's end. Source:
PyTorch, TorchInductor's scheduler and its layout optimisation.

**Launches**: a pass takes ``max(kernels, launches) + floor``: the host runs ahead of the GPU, or the GPU waits for it.
``launches`` grow with the library calls (convolutions and products, whose libraries choose a kernel first), the other
operators and the views of the network; ``floor`` is from the pass's call to its first kernel and from the last one to
whoever waits. The constants are fitted to small programs (`experiments/small_networks.py`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from math import exp
from typing import NamedTuple

from surrogate import bundled
from surrogate.features.analytical import STREAMING
from surrogate.features.errors import check_choice
from surrogate.features.families import NetworkProblem, Operator
from surrogate.features.families.operator import CAST, REDUCE, Image, Streamed
from surrogate.features.families.rowwise import POINTWISE_CLASSES
from surrogate.features.problem import DTYPES, ELEMENTS, HALF
from surrogate.models.json_types import from_json_types
from surrogate.network.aten_call import DISPATCH_TABLE
from surrogate.network.memory import OPTIMIZER
from surrogate.network.network import HostTime, Layer, Network, ReadOptions, with_settings
from surrogate.network.training import completed

WINDOWS = {kind for kind, share in STREAMING.items() if share == "pool_bandwidth"}
FUSED = set(STREAMING) - WINDOWS - {"layout_transform", "concat"}
ON_CHIP = 32_768
"""Elements of a row that a block keeps on chip while it reduces and normalises them: 128 KiB in fp32."""

LAYOUT_NOTE = (
    "torch.compile lays half-precision convolutions out NHWC; that part of its gain eager code has, too, where"
    " model and inputs are .to(memory_format=torch.channels_last)"
)
HOSTS_FILE = "hosts.json"
RUNTIMES = {
    "eager": "a kernel per operator",
    "compiled": "fused by torch.compile",
    "graphs": "fused, and launched as one CUDA graph (its mode reduce-overhead)",
}
HOSTS = ("usual", "fast", "slow")
"""Kinds of hosts, by how long they take to launch a kernel: most of those measured, the fastest and the slowest."""
MEMORY_NOTE = "the memory is that of eager execution; a compiled program, which keeps less between kernels, needs less"
VIEWS = frozenset((*DISPATCH_TABLE["ignored"]["aten"], *DISPATCH_TABLE["ignored"]["in_inference"]))
"""Operators that the host runs, and that no kernel follows."""


class _Kernel(NamedTuple):
    """An element-wise kernel: elements of the tensor that a chain may hand on to it and its bytes ``main``, bytes of
    all that it reads and writes, elements of its result."""

    elements: int
    main: int
    reads: int
    writes: int
    result: int


def fuse_layers(network: Network) -> Network:
    """The network's layers after fusion.

    A layer joins the open chain if it reads what the chain hands on. A smaller one (the cast of a weight) stands apart
    without ending the chain; what is neither element-wise nor a reduction ends it. In training the backward pass fuses
    alike, and computes again what a chain of the forward pass did not write, as AOTAutograd's partitioner lets it.
    """
    given = {layer.problem for layer in network.layers}
    layers: list[Layer] = []
    chain: _Kernel | None = None
    chain_index = 0
    passes = [each for layer in network.layers for each in _passes(layer)]
    latest = _latest([layer.problem for layer in passes])
    forward_passes = sum(len(list(_passes(layer))) for layer in network.layers[: network.forward_layers])
    forward_layers = 0
    for index, (layer, later) in enumerate(zip(passes, latest, strict=True)):
        work = layer.problem
        if index == forward_passes:  # two programs, so that no chain crosses
            forward_layers = len(layers)
            chain = None
        if isinstance(work, Operator) and work.kind in FUSED:
            kernel = _kernel(work)
            reduces = isinstance(work, Streamed) and work.variant == REDUCE
            if chain is not None and kernel.elements == chain.result and kernel.reads >= kernel.main:
                # It reads what the chain would write: that tensor stays in registers, the rest of its traffic adds up.
                # What is reduced is written, too, where a later layer is large enough to read it.
                chain_writes = chain.writes if reduces and later >= chain.result else 0
                reads = chain.reads + kernel.reads - kernel.main
                chain = _Kernel(chain.elements, chain.main, reads, chain_writes + kernel.writes, kernel.result)
                layers[chain_index] = _joined(layers[chain_index], layer, work, chain)
            else:
                # It stands alone; where it is larger than the open chain's result, the next chain begins here.
                layers.append(layer)
                if chain is None or kernel.elements > chain.result:
                    chain = kernel
                    chain_index = len(layers) - 1
            chain = None if reduces else chain
            continue
        chain = None
        if not isinstance(work, Operator):
            layer = replace(layer, problem=replace(work, layout="NHWC")) if work.dtype in HALF else layer
        elif work.kind in WINDOWS:
            # The compiler's own kernel of a pooling: its traffic alone counts, whatever library would have run it.
            moved = work.dram_bytes // work.itemsize
            layer = replace(layer, problem=Streamed(reads=moved - 1, writes=1, dtype=work.dtype, variant="window"))
        layers.append(layer)
    relaid = any(layer.problem.HAS_ALGORITHMS and layer.problem not in given for layer in layers)
    notes = (*network.notes, *((LAYOUT_NOTE,) if relaid else ()))
    return replace(network, layers=tuple(layers), forward_layers=forward_layers, notes=notes)


def _passes(layer: Layer) -> Iterator[Layer]:
    """The layer; a norm whose rows no block keeps on chip as a reduction, and a pass that applies what it found."""
    work = layer.problem
    if isinstance(work, Image) and work.APPLIED_BY and work.elements > ON_CHIP * work.extents.rows:
        sums = 2 * int(work.extents.rows)
        flops = 4 * work.elements // sums
        statistics = Streamed(reads=work.elements, writes=sums, work=flops, dtype=work.dtype, variant=REDUCE)
        yield replace(layer, name=f"{layer.name}.statistics", problem=statistics, parameters=0)
        work = work.of_kind(work.APPLIED_BY)
    yield replace(layer, problem=work)


def _latest(works: Sequence[NetworkProblem]) -> list[int]:
    """Of each work, the most elements that one behind it moves."""
    moved = [int(work.dram_bytes / ELEMENTS[work.dtype].output_bytes) for work in works]
    return [*accumulate(reversed(moved[1:]), max, initial=0)][::-1]


def _kernel(work: Operator) -> _Kernel:
    """What an element-wise operator moves."""
    if not isinstance(work, Streamed):
        tensors = POINTWISE_CLASSES[work.kind].ACCESSES if work.kind in POINTWISE_CLASSES else 2
        size = work.dram_bytes // tensors
        return _Kernel(size // work.itemsize, size, work.dram_bytes - size, size, size // work.itemsize)
    reads, writes = work.reads * work.itemsize, work.writes * work.itemsize
    if work.variant == CAST:
        elements = min(work.reads, work.writes)
        return _Kernel(elements, reads, reads, writes, elements)
    elements = work.reads if work.variant == REDUCE else work.writes
    return _Kernel(elements, elements * work.itemsize, reads, writes, work.writes)


def _joined(first: Layer, last: Layer, work: Operator, chain: _Kernel) -> Layer:
    """One layer of both, counted in the narrower type; it keeps the first one's name."""
    dtype = min(first.problem.dtype, work.dtype, key=DTYPES.__getitem__)
    size = DTYPES[dtype]
    flops = (first.problem.flops + work.flops) * size // chain.writes
    both = Streamed(reads=chain.reads // size, writes=chain.writes // size, work=flops, dtype=dtype, variant="fused")
    operator = f"{first.operator}+{last.operator.rpartition('.')[2]}"
    return Layer(first.name, operator, both, parameters=first.parameters + last.parameters)


class Launches(NamedTuple):
    """How many calls of a network the host makes: into libraries, of other operators, and of views."""

    libraries: int
    operators: int
    views: int


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """Times in µs of `Launches` on a fast host; ``half_width`` holds 90 % of the programs left out, in log time."""

    library_us: float
    operator_us: float
    view_us: float
    floor_us: float
    half_width: float

    def launch_us(self, launches: Launches) -> float:
        """All launches of a pass."""
        return (
            self.library_us * launches.libraries + self.operator_us * launches.operators + self.view_us * launches.views
        )


@dataclass(frozen=True, slots=True)
class HostCosts:
    """The cost of launches by runtime, and by kind of host the factor on the time of a fast host."""

    origin: str
    hosts: Mapping[str, float]
    launch_costs: Mapping[str, LaunchCost]


@cache
def shipped_hosts() -> HostCosts:
    """Return the constants that ship with the package."""
    content = json.loads((bundled.FOLDER / HOSTS_FILE).read_bytes())
    return from_json_types(HostCosts, {**content, "launch_costs": content["laws"]})


def with_options(network: Network, options: ReadOptions) -> Network:
    """The network as a source has it, with all that the options add but its launches.

    The steps depend on their order. The backward pass comes first, since it is derived from the layers as the model has
    them. Math and layout follow, so that they hold for convolutions of both passes. The number of GPUs is third: their
    exchange is that of an iteration. A table or `with_runtime` adds its part last: a compiler fuses the layers of both
    passes and lays out convolutions anew, and the host launches the kernels that are left.
    """
    network = completed(network, options.training, options.optimizer or OPTIMIZER)
    network = with_settings(network, options.math, options.layout)
    return replace(network, gpus=options.data_parallel)


def with_runtime(network: Network, runtime: str | None = None, host: str | None = None) -> Network:
    """The network as a runtime (of `RUNTIMES`; None: its own) runs it, with the time that a host (of `HOSTS`; None: the
    usual one) takes. Launches are counted behind fusion."""
    runtime, host = runtime or network.runtime, host or HOSTS[0]
    check_choice("runtime", runtime, RUNTIMES)
    check_choice("host", host, HOSTS)
    if runtime != "eager":
        network = fuse_layers(network)
        network = replace(network, notes=(*network.notes, MEMORY_NOTE))
    cost, slower = shipped_hosts().launch_costs[runtime], shipped_hosts().hosts[host]
    launch_us = slower * cost.launch_us(count_launches(network))
    time = HostTime(runtime, host, launch_us, slower * cost.floor_us, exp(cost.half_width))
    return replace(network, host=time)


def count_launches(network: Network) -> Launches:
    """What the host calls in one pass; operators without a known time are launched, too."""
    libraries = sum(_calls_library(layer.problem) for layer in network.layers)
    views = sum(count for name, count in network.ignored.items() if name in VIEWS)
    return Launches(libraries, len(network.layers) - libraries + sum(network.unsupported.values()), views)


def _calls_library(work: NetworkProblem) -> bool:
    """Whether a library chooses among kernels: of convolutions and products."""
    return work.HAS_ALGORITHMS or (isinstance(work, Operator) and work.MULTIPLIES)
