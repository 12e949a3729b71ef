"""One training iteration from a forward pass: forward, backward in reverse order, optimizer; also on several GPUs.

What the backward pass of a problem launches is what the problem declares (`InNetwork`). A gradient that several layers
give to one tensor is summed where branches were added.

Several GPUs of one machine train with a batch each, and sum their gradients in buckets, beside the backward pass.
Buckets fill in the order in which gradients are ready, and are sent one after the other while the pass goes on; the
optimizer waits for the sums that end after it. Source: Li et al., "PyTorch Distributed" (VLDB 2020).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from surrogate.features.elementwise import checked_int
from surrogate.features.errors import InputError, check_choice
from surrogate.features.families import NetworkProblem, Operator
from surrogate.features.families.operator import Streamed
from surrogate.features.problem import DTYPES
from surrogate.network.memory import OPTIMIZER, OPTIMIZERS, with_chain_memory
from surrogate.network.network import Layer, Network, Tally
from surrogate.network.operators import all_reduce

LOSS_NOTE = (
    "the iteration ends with {optimizer} (fused: one pass over all weights); the gradient is that of {loss}, so that a"
    " loss outside it, clipping and scaling of gradients are in no sum; no training step was public to judge times by"
)
Timing = Callable[[Sequence[NetworkProblem]], Sequence[tuple[float, float, float]]]
"""Problems → of each its time in µs and the ends of its interval."""
BUCKET_BYTES = 25 * 2**20
"""Gradients that are summed at once. Source: PyTorch, ``DistributedDataParallel``, ``bucket_cap_mb``."""
MACHINE = 8
"""Most GPUs that the links of one machine join."""


def completed(network: Network, training: bool, optimizer: str = OPTIMIZER) -> Network:
    """With the memory of a chain where the source tells none, and under ``training`` a whole iteration's layers, whose
    last is the step of ``optimizer``, one of `OPTIMIZERS`."""
    network = with_chain_memory(network, training=training)
    check_choice("optimizer", optimizer, OPTIMIZERS)
    if not training:
        return network
    loss = "the sum of the module's results" if network.training else "the last layer's result"
    network = iteration(network)
    layers = tuple(
        replace(layer, operator=optimizer, problem=_step(layer.parameters, optimizer))
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
    forward = [replace(layer, problem=_in_training(layer.problem)) for layer in network.layers]
    tally.add(forward)
    for layer in reversed(forward):
        tally.add(backward(layer))
    # Of an embedding the gradient updates the rows it touches; a dense step over the whole table does not happen.
    parameters = sum(layer.parameters for layer in forward if not layer.problem.UPDATES_WEIGHTS)
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
        for part, work in layer.problem.gradients(wanted):
            yield _named(layer, part, work)
    work = layer.problem
    if isinstance(work, Operator) and work.WEIGHT_GRADIENT and layer.parameters:
        yield _named(layer, f"grad_{work.kind}", work.of_kind(work.WEIGHT_GRADIENT))


def _named(layer: Layer, part: str, work: NetworkProblem) -> Layer:
    return Layer(f"{layer.name}.{part}", f"{layer.operator}.{part}", work)


def _in_training(work: NetworkProblem) -> NetworkProblem:
    """What runs in its place in training, as batch norm goes by the batch's own statistics then."""
    return work.of_kind(work.IN_TRAINING) if isinstance(work, Operator) and work.IN_TRAINING else work


@dataclass(frozen=True, slots=True)
class Exchange:
    """The sum of gradients over ``gpus``: µs of all buckets, and ``time_us`` of it, with its ends, that come after the
    backward pass, and which the optimizer waits for."""

    gpus: int
    all_reduce_us: float
    time_us: float
    lower_us: float
    upper_us: float


def require_data_parallel(source: str, gpus: int, *, training: bool) -> None:
    """Raises `InputError` for no number of GPUs of a machine, for networks that are not trained, and where ``training``
    is no answer to that."""
    checked_int(source, "data_parallel", gpus)
    if training not in (True, False):
        raise InputError(f"{source}: training is {training!r}; give True or False")
    if gpus > MACHINE:
        raise InputError(
            f"{source}: --data-parallel {gpus}: up to {MACHINE} GPUs of one machine are known; for more give a trace to"
            " `seer trace whatif FILE data-parallel`, with its --bandwidth"
        )
    if gpus > 1 and not training:
        raise InputError(f"{source}: --data-parallel exchanges gradients; add --training")


def exchange(network: Network, times_us: Sequence[float], timed: Timing) -> Exchange:
    """The exchange of a training iteration whose layers take ``times_us`` one after another, 0 where not known.

    ``timed`` gives the time of each sum over the GPUs, with its ends.

    Gradients are ready behind the layers of the backward pass that say so. Where none does, as in an iteration that is
    derived from a forward pass, one is ready when the backward pass is through its layer; the pass takes as large a
    share of its time for a layer and those behind it as the forward pass takes for them.
    """
    forward, backward = network.layers[: network.forward_layers], network.layers[network.forward_layers :]
    taken = [
        0.0 if layer.operator in OPTIMIZERS else time_us
        for layer, time_us in zip(backward, times_us[network.forward_layers :], strict=True)
    ]
    backward_us = sum(taken)
    dtype = "fp32" if (network.weights_bytes or 4) >= 3 * (network.parameters or 1) else "fp16"
    gradients = [
        (ready_us, layer.parameters)
        for layer, ready_us in zip(backward, accumulate(taken), strict=True)
        if layer.parameters and layer.operator not in OPTIMIZERS
    ]
    if not gradients:
        forward_us = list(accumulate(reversed(times_us[: network.forward_layers]), initial=0.0))[::-1]
        gradients = [
            (backward_us * (behind_us / forward_us[0] if forward_us[0] else 1.0), layer.parameters)
            for layer, behind_us in zip(forward, forward_us, strict=False)
            if layer.parameters and not layer.problem.UPDATES_WEIGHTS
        ][::-1]
    full = list(buckets(iter(gradients), BUCKET_BYTES // DTYPES[dtype]))
    works = [all_reduce(elements, network.gpus, dtype) for _, elements in full]
    ready_us = [ready for ready, _ in full]
    messages_us = list(zip(*timed(works), strict=True)) or [(), (), ()]  # of all buckets their times, and either end
    expected, lower, upper = (_waits_us(ready_us, each_us, backward_us) for each_us in messages_us)
    return Exchange(network.gpus, sum(messages_us[0]), expected, lower, upper)


def buckets(gradients: Iterator[tuple[float, int]], maximum: float) -> Iterator[tuple[float, int]]:
    """(time at which they are ready, size) of gradients in their order → the same of the buckets that they fill."""
    held = 0
    ready = 0.0
    for time, size in gradients:
        held += size
        ready = max(ready, time)
        if held >= maximum:
            yield ready, held
            held = 0
    if held:
        yield ready, held


def _waits_us(ready_us: Sequence[float], times_us: Sequence[float], backward_us: float) -> float:
    """How long after the backward pass the last message ends; each begins when it is ready and the last one through."""
    end_us = 0.0
    for ready, time_us in zip(ready_us, times_us, strict=True):
        end_us = max(end_us, ready) + time_us
    return max(end_us - backward_us, 0.0)
