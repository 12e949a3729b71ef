"""One training iteration from a forward pass: forward, backward in reverse order, optimizer.

What the backward pass of a problem launches is what the problem declares (`InNetwork`). A gradient that several layers
give to one tensor is summed where branches were added.
"""

from collections.abc import Iterator
from dataclasses import replace

from surrogate.features.families import Operator
from surrogate.features.families.operator import Streamed
from surrogate.network.memory import OPTIMIZER_STATES, chained
from surrogate.network.network import Layer, Network, Tally, Work

OPTIMIZER = "adam"
"""Reads weights, gradients and two moments, writes weights and moments: 12 operations a weight, one fused pass."""


def completed(network: Network, training: bool) -> Network:
    """With the memory of a chain where the source tells none, and under ``training`` a whole iteration's layers."""
    network = chained(network, training=training)
    return iteration(network) if training else network


def iteration(network: Network) -> Network:
    """The whole iteration of a forward network; one that is an iteration already comes back as it is."""
    if network.training:
        return network
    tally = Tally()
    forward = [replace(layer, work=_in_training(layer.work)) for layer in network.layers]
    tally.add(forward)
    for layer in reversed(forward):
        tally.add(backward(layer))
    # Of an embedding the gradient updates the rows it touches; a dense step over the whole table does not happen.
    parameters = sum(layer.parameters for layer in forward if not layer.work.UPDATES_WEIGHTS)
    tally.add(optimizer_step(parameters))
    state = OPTIMIZER_STATES * (network.weights_bytes or 0)
    return replace(
        network, layers=tuple(tally.layers), training=True, state_bytes=state, forward_layers=len(forward)
    )  # fmt: skip


def optimizer_step(parameters: int) -> list[Layer]:
    """One fused step over all weights; none where there are none."""
    if not parameters:
        return []
    states = OPTIMIZER_STATES * parameters
    step = Streamed(reads=2 * parameters + states, writes=parameters + states, work=4, variant=OPTIMIZER)
    return [Layer("optimizer", OPTIMIZER, step)]


def backward(layer: Layer) -> Iterator[Layer]:
    """The layers that the gradients of one layer take; none where it has none."""
    for wanted in layer.gradients:
        for part, work in layer.work.gradients(wanted):
            yield _named(layer, part, work)
    work = layer.work
    if isinstance(work, Operator) and work.WEIGHT_GRADIENT and layer.parameters:
        yield _named(layer, f"grad_{work.kind}", work.of_kind(work.WEIGHT_GRADIENT))


def _named(layer: Layer, part: str, work: Work) -> Layer:
    return Layer(f"{layer.name}.{part}", f"{layer.operator}.{part}", work)


def _in_training(work: Work) -> Work:
    """What runs in its place in training, as batch norm goes by the batch's own statistics then."""
    return work.of_kind(work.IN_TRAINING) if isinstance(work, Operator) and work.IN_TRAINING else work
