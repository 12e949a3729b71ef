"""One training iteration from a forward pass: forward, backward in reverse order, optimizer.

A convolution's backward pass is its two gradients; a matrix product's are two products; the others read and write what
their gradient formulas need. A gradient that several layers give to one tensor is summed where branches were added.
"""

from collections.abc import Iterator
from dataclasses import replace

from surrogate.features import operators
from surrogate.features.conv import Conv
from surrogate.network.call_rules import GRADIENT
from surrogate.network.memory import OPTIMIZER_STATES
from surrogate.network.network import INPUT, Layer, Network, Tally, Work
from surrogate.network.work import Streamed, elementwise, gradient

OPTIMIZER = "adam"
"""Reads weights, gradients and two moments, writes weights and moments: 12 operations a weight, one fused pass."""


def iteration(network: Network) -> Network:
    """The whole iteration of a forward network; one that is an iteration already comes back as it is."""
    if network.training:
        return network
    tally = Tally()
    forward = [replace(layer, work=_in_training(layer.work)) for layer in network.layers]
    tally.add(forward)
    for layer in reversed(forward):
        tally.add(backward(layer))
    # An embedding's gradient updates the rows it touches; a dense step over the whole table does not happen.
    parameters = sum(layer.parameters for layer in forward if not isinstance(layer.work, operators.EmbeddingBag))
    tally.add(optimizer_step(parameters))
    state = OPTIMIZER_STATES * (network.weights_bytes or 0)
    return replace(network, layers=tuple(tally.layers), training=True, state_bytes=state)


def optimizer_step(parameters: int) -> list[Layer]:
    """One fused step over all weights; none where there are none."""
    if not parameters:
        return []
    states = OPTIMIZER_STATES * parameters
    step = Streamed(reads=2 * parameters + states, writes=parameters + states, work=4, variant=OPTIMIZER)
    return [Layer("optimizer", OPTIMIZER, step)]


def backward(layer: Layer) -> Iterator[Layer]:
    """The layers that the gradients of one layer take; none where it has none."""
    work = layer.work
    for wanted in layer.gradients:
        if isinstance(work, Conv):
            direction = GRADIENT[work.direction] if wanted == INPUT else "bwd_filter"
            yield _named(layer, direction, replace(work, direction=direction))
        elif isinstance(work, operators.Gemm):
            yield _named(layer, f"grad_{wanted}", _product(work, wanted))
        elif wanted == INPUT or isinstance(work, operators.EmbeddingBag):
            for part in _gradient(work):
                yield _named(layer, "backward", part)
    if isinstance(work, operators.Pointwise) and work.kind == "bias" and layer.parameters:
        total = operators.BiasBackward(n=work.n, c=work.c, h=work.h, w=work.w, dtype=work.dtype)
        yield _named(layer, "grad_bias", total)


def _named(layer: Layer, part: str, work: Work) -> Layer:
    return Layer(f"{layer.name}.{part}", f"{layer.operator}.{part}", work)


def _in_training(work: Work) -> Work:
    """Batch norm by the batch's own statistics; everything else as it is."""
    if isinstance(work, operators.BatchNormInference):
        return operators.BatchNorm(n=work.n, c=work.c, h=work.h, w=work.w, dtype=work.dtype)
    return work


def _product(work: operators.Gemm, wanted: str) -> operators.Operator:
    """dA (m × k) = dC · Bᵀ, or dB (k × n) = Aᵀ · dC."""
    m, n, k = (work.m, work.k, work.n) if wanted == INPUT else (work.k, work.n, work.m)
    if work.batch > 1:
        return operators.Bmm(batch=work.batch, m=m, n=n, k=k, dtype=work.dtype, math=work.math)
    return operators.Gemm(m=m, n=n, k=k, dtype=work.dtype, math=work.math)


def _gradient(work: operators.Operator) -> Iterator[operators.Operator]:
    """The input's gradient of an operator that is no product: the kind's own, else dy and x in, dx out.

    A sum passes its gradient on, which is added where the other branch's arrives; a bias or an added number passes it
    on as it is.
    """
    if work.kind in ("bias", "add_scalar", "sub_scalar"):
        return
    if operator := gradient(work):
        yield operator
    elif isinstance(work, operators.Concat):
        yield elementwise("copy", (work.elements,), work.dtype)
    elif isinstance(work, Streamed):
        yield _streamed_gradient(work)
    elif work.kind in ("add", "copy", "layout_transform") or work.kind.endswith("_scalar"):
        yield work
    elif work.kind in ("mul", "div"):
        yield from (work, work)
    elif isinstance(work, operators.LayerNorm | operators.Pointwise):
        reads, writes = 2 * work.elements, work.elements
        yield Streamed(reads=reads, writes=writes, dtype=work.dtype, variant=f"{work.kind}_backward")


def _streamed_gradient(work: Streamed) -> Streamed:
    """The gradient of a reduction is broadcast; any other reads its inputs and dy, and writes dx."""
    if work.variant == "reduce":
        reads, writes = work.writes, work.reads
    else:
        reads, writes = work.reads + work.writes, max(work.reads, 1)
    return Streamed(reads=reads, writes=writes, dtype=work.dtype, variant=f"{work.variant}_backward")
