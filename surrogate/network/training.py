"""One training iteration from a forward pass: forward, backward in reverse order, optimizer.

What the backward pass of a problem launches is what the problem declares (`InNetwork`). A gradient that several layers
give to one tensor is summed where branches were added.
"""

from collections.abc import Iterator
from dataclasses import replace

from surrogate.features.errors import require_known
from surrogate.features.families import Operator
from surrogate.features.families.operator import Streamed
from surrogate.network.memory import OPTIMIZER, OPTIMIZERS, chained
from surrogate.network.network import Layer, Network, Tally, Work

LOSS_NOTE = (
    "the iteration ends with {optimizer} (fused: one pass over all weights); the gradient is that of {loss}, so that a"
    " loss outside it, clipping and scaling of gradients are in no sum; no training step was public to judge times by"
)


def completed(network: Network, training: bool, optimizer: str = OPTIMIZER) -> Network:
    """With the memory of a chain where the source tells none, and under ``training`` a whole iteration's layers, whose
    last is the step of ``optimizer``, one of `OPTIMIZERS`."""
    network = chained(network, training=training)
    require_known("optimizer", optimizer, OPTIMIZERS)
    if not training:
        return network
    loss = "the sum of the module's results" if network.training else "the last layer's result"
    network = iteration(network)
    layers = tuple(
        replace(layer, operator=optimizer, work=_step(layer.parameters, optimizer))
        if layer.operator == OPTIMIZER
        else layer
        for layer in network.layers
    )
    states = network.state_bytes * OPTIMIZERS[optimizer].states // OPTIMIZERS[OPTIMIZER].states
    notes = (*network.notes, LOSS_NOTE.format(optimizer=optimizer, loss=loss))
    return replace(network, layers=layers, state_bytes=states, notes=notes)


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
    state = OPTIMIZERS[OPTIMIZER].states * (network.weights_bytes or 0)
    return replace(network, layers=tuple(tally.layers), training=True, state_bytes=state, forward_layers=len(forward))


def optimizer_step(parameters: int) -> list[Layer]:
    """One fused step over all weights; none where there are none."""
    return [Layer("optimizer", OPTIMIZER, _step(parameters, OPTIMIZER), parameters=parameters)] if parameters else []


def _step(parameters: int, optimizer: str) -> Streamed:
    states, work = OPTIMIZERS[optimizer]
    reads, writes = (2 + states) * parameters, (1 + states) * parameters
    return Streamed(reads=reads, writes=writes, work=work, variant=optimizer)


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
