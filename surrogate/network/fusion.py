"""A network as a compiler runs it: chains of element-wise operators become one pass over memory.

``torch.compile`` leaves convolutions and products to their libraries, keeps half-precision convolutions in NHWC, and
fuses what lies between: biases, batch norm by stored statistics, activations, sums with a residual, casts, norms and
the reduction at a chain's end. Source: PyTorch, TorchInductor's scheduler and its layout optimisation.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from surrogate.features.errors import InputError
from surrogate.features.operators import POINTWISE_CLASSES, Operator
from surrogate.network.network import Layer, Network
from surrogate.network.work import Streamed

REDUCE, CAST = "reduce", "cast"
FUSED_KINDS = {*POINTWISE_CLASSES, "batch_norm_inference", "layer_norm", "softmax", "streamed"} - {
    "layout_transform"
}
HALF = ("fp16", "bf16")


@dataclass(frozen=True, slots=True)
class _Chain:
    """Layers of one kernel: bytes read and written in all, elements that it hands on, and where it stands."""

    layers: tuple[Layer, ...]
    reads: int
    writes: int
    result: int
    place: int


def compiled(network: Network) -> Network:
    """The network's layers after fusion. Raises `InputError` for a training iteration, which keeps intermediates."""
    if network.training:
        raise InputError(
            "a compiled training iteration is not modelled; drop --training or --runtime compiled"
        )
    layers: list[Layer] = []
    chain: _Chain | None = None
    for layer in network.layers:
        work = layer.work
        if not isinstance(work, Operator):
            layers.append(replace(layer, work=replace(work, layout="NHWC")) if work.dtype in HALF else layer)
            chain = None
        elif work.kind not in FUSED_KINDS:
            layers.append(layer)
            chain = None
        else:
            chain = _extended(chain, layer, work, layers)
    return replace(network, layers=tuple(layers))


def _extended(chain: _Chain | None, layer: Layer, work: Operator, layers: list[Layer]) -> _Chain | None:
    """The open chain after one more layer, which ``layers`` show in the chain's place or apart.

    A layer belongs to the chain if it reads what the chain hands on; a smaller one (the cast of a weight) stands apart
    without ending it.
    """
    passed = _traffic(work)
    reduces = isinstance(work, Streamed) and work.variant == REDUCE
    if chain is None or passed.elements != chain.result:
        layers.append(layer)
        if chain is not None and passed.elements < chain.result:
            return chain
        own = _Chain((layer,), passed.reads, passed.writes, passed.result, len(layers) - 1)
        return None if reduces else own
    kept = chain.writes if reduces else 0  # others still read what is reduced
    reads = chain.reads + passed.reads - passed.main
    joined = _Chain((*chain.layers, layer), reads, kept + passed.writes, passed.result, chain.place)
    layers[chain.place] = _kernel(joined)
    return None if reduces else joined


class _Traffic(NamedTuple):
    """``elements`` of the tensor that a chain may hand on and its bytes ``main``, bytes of all that is read and
    written, and elements of the result."""

    elements: int
    main: int
    reads: int
    writes: int
    result: int


def _traffic(work: Operator) -> _Traffic:
    """What an element-wise operator moves."""
    size = work.itemsize
    if not isinstance(work, Streamed):
        accesses = POINTWISE_CLASSES[work.kind].ACCESSES if work.kind in POINTWISE_CLASSES else 2
        elements, one = work.dram_bytes // size // accesses, work.dram_bytes // accesses
        return _Traffic(elements, one, work.dram_bytes - one, one, elements)
    reads, writes = work.reads * size, work.writes * size
    if work.variant == CAST:
        elements = min(work.reads, work.writes)
        return _Traffic(elements, reads, reads, writes, elements)
    elements = work.reads if work.variant == REDUCE else work.writes
    return _Traffic(elements, elements * size, reads, writes, work.writes)


def _kernel(chain: _Chain) -> Layer:
    """The chain as one layer, in the type of its last work."""
    works = [layer.work for layer in chain.layers]
    last = works[-1]
    size = last.itemsize
    work = Streamed(
        reads=chain.reads // size,
        writes=chain.writes // size,
        work=max(1, sum(work.flops for work in works) * size // chain.writes),
        dtype=last.dtype,
        variant="fused",
    )
    operator = "+".join(dict.fromkeys(layer.operator.rpartition(".")[2] for layer in chain.layers))
    return Layer(chain.layers[0].name, operator, work)
