"""Build a training iteration from a forward pass: forward, backward in reverse order, optimizer; also on several GPUs.

A problem declares the problems of its backward pass (`NetworkProblem`). If several layers contribute to a tensor's
gradient, the gradients are summed at the sum of the branches.

Several GPUs of one machine train with a batch each. They sum their gradients in buckets during the backward pass.
Buckets fill in the order in which gradients are ready, and are sent one after another. The optimizer waits for sums
that end after the backward pass. Source: Li et al., "PyTorch Distributed" (VLDB 2020).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from surrogate.features.elementwise import checked_int
from surrogate.features.errors import InputError, check_choice
from surrogate.features.families import NetworkProblem, Operator
from surrogate.features.families.operator import Streamed
from surrogate.features.problem import DTYPES
from surrogate.network.memory import OPTIMIZER, OPTIMIZERS, with_chain_memory
from surrogate.network.network import Layer, Network, NetworkBuilder, Work
from surrogate.network.operators import all_reduce
from surrogate.network.result import GradientExchange, ProblemTime

LOSS_NOTE = (
    "the iteration ends with {optimizer} (fused: one pass over all weights) and computes the gradient of {loss}; a loss"
    " outside it, and clipping and scaling of gradients are not included; times of training steps were not evaluated"
)
Predict = Callable[[Sequence[Operator]], Mapping[Operator, ProblemTime]]
"""A function of problems that returns the time of each."""
BUCKET_BYTES = 25 * 2**20
"""Bytes of gradients that are summed at once. Source: PyTorch, ``DistributedDataParallel``, ``bucket_cap_mb``."""
TRAINING_WORK = 3
"""Work of an unsupported operator in an iteration / in the forward pass: a product has two products as gradients."""
MAX_MACHINE_GPUS = 8
"""Maximum GPUs in one machine."""


def with_training(network: Network, training: bool, optimizer: str = OPTIMIZER) -> Network:
    """Return the network with its memory and, under ``training``, with the layers of a whole iteration.

    If the source gives no memory, it is derived from a chain of layers. The last layer of an iteration is the step of
    ``optimizer``, one of `OPTIMIZERS`.
    """
    network = with_chain_memory(network, training=training)
    check_choice("optimizer", optimizer, OPTIMIZERS)
    if not training:
        return network
    loss = "the sum of the module's results" if network.training else "the last layer's result"
    network = training_iteration(network, optimizer)
    return replace(network, notes=(*network.notes, LOSS_NOTE.format(optimizer=optimizer, loss=loss)))


def training_iteration(network: Network, optimizer: str = OPTIMIZER) -> Network:
    """Return the whole iteration of a forward network; an iteration is returned unchanged."""
    if network.training:
        return network
    builder = NetworkBuilder()
    forward = [replace(layer, problem=_in_training(layer.problem)) for layer in network.layers]
    builder.add(forward)
    for layer in reversed(forward):
        builder.add(backward(layer))
    # The gradient of an embedding updates only the rows that it uses, so the optimizer's step does not cover the table.
    parameters = sum(layer.parameters for layer in forward if not layer.problem.UPDATES_WEIGHTS)
    builder.add(optimizer_step(parameters, optimizer))
    state = OPTIMIZERS[optimizer].states * (network.weights_bytes or 0)
    missing = {
        name: Work(TRAINING_WORK * work.flops, TRAINING_WORK * work.bytes) for name, work in network.missing.items()
    }
    fields = {"state_bytes": state, "forward_layers": len(forward), "missing": missing}
    return replace(network, layers=tuple(builder.layers), training=True, **fields)


def optimizer_step(parameters: int, optimizer: str) -> list[Layer]:
    """Return one fused step over all weights; empty without weights."""
    if not parameters:
        return []
    states, operations = OPTIMIZERS[optimizer]
    reads, writes = (2 + states) * parameters, (1 + states) * parameters
    step = Streamed(reads=reads, writes=writes, work=operations, variant=optimizer)
    return [Layer("optimizer", optimizer, step, parameters=parameters)]


def backward(layer: Layer) -> Iterator[Layer]:
    """Yield the layers of the gradients of one layer."""
    for gradient in layer.gradients:
        for name, problem in layer.problem.gradients(gradient):
            yield _gradient_layer(layer, name, problem)
    problem = layer.problem
    if isinstance(problem, Operator) and problem.WEIGHT_GRADIENT and layer.parameters:
        yield _gradient_layer(layer, f"grad_{problem.kind}", problem.of_kind(problem.WEIGHT_GRADIENT))


def _gradient_layer(layer: Layer, name: str, problem: NetworkProblem) -> Layer:
    return Layer(f"{layer.name}.{name}", f"{layer.operator}.{name}", problem)


def _in_training(problem: NetworkProblem) -> NetworkProblem:
    """Return the problem in training; batch norm, for example, then computes the statistics of the batch."""
    return problem.of_kind(problem.IN_TRAINING) if isinstance(problem, Operator) and problem.IN_TRAINING else problem


def require_data_parallel(source: str, gpus: int, *, training: bool) -> None:
    """Raise `InputError` if ``gpus`` is not a valid number of GPUs, or if the network is not trained on several GPUs.

    ``training`` must be True or False.
    """
    checked_int(source, "data_parallel", gpus)
    if training not in (True, False):
        raise InputError(f"{source}: training is {training!r}; give True or False")
    if gpus > MAX_MACHINE_GPUS:
        raise InputError(
            f"{source}: --data-parallel is {gpus}; give at most {MAX_MACHINE_GPUS}, the GPUs of one machine, or use a"
            " trace: `seer trace whatif FILE data-parallel` with --bandwidth"
        )
    if gpus > 1 and not training:
        raise InputError(f"{source}: --data-parallel is for training; add --training")


def gradient_exchange(network: Network, times_us: Sequence[float], predict: Predict) -> GradientExchange:
    """Return the exchange of gradients in a training iteration.

    ``times_us`` has the time of each layer, 0 if unknown. ``predict`` returns the time of each sum over the GPUs, with
    the ends of its interval.

    A gradient is ready after the layer of the backward pass that has its parameters. If the iteration is derived from a
    forward pass, no layer of the backward pass has parameters. A gradient is then ready when the backward pass has
    finished its layer: a layer and all later layers take the same share of the backward pass as of the forward pass.
    """
    forward, backward = network.layers[: network.forward_layers], network.layers[network.forward_layers :]
    backward_times_us = [
        0.0 if layer.operator in OPTIMIZERS else time_us
        for layer, time_us in zip(backward, times_us[network.forward_layers :], strict=True)
    ]
    backward_us = sum(backward_times_us)
    dtype = "fp32" if (network.weights_bytes or 4) >= 3 * (network.parameters or 1) else "fp16"
    gradients = [
        (ready_us, layer.parameters)
        for layer, ready_us in zip(backward, accumulate(backward_times_us), strict=True)
        if layer.parameters and layer.operator not in OPTIMIZERS
    ]
    if not gradients:
        forward_us = list(accumulate(reversed(times_us[: network.forward_layers]), initial=0.0))[::-1]
        gradients = [
            (backward_us * (behind_us / forward_us[0] if forward_us[0] else 1.0), layer.parameters)
            for layer, behind_us in zip(forward, forward_us, strict=False)
            if layer.parameters and not layer.problem.UPDATES_WEIGHTS
        ][::-1]
    filled_buckets = list(gradient_buckets(iter(gradients), BUCKET_BYTES // DTYPES[dtype]))
    sums = [all_reduce(elements, network.gpus, dtype) for _, elements in filled_buckets]
    ready_us = [ready for ready, _ in filled_buckets]
    answers = predict(sums)
    messages_us = [[getattr(answers[each], end) for each in sums] for end in ("time_us", "lower_us", "upper_us")]
    expected, lower, upper = (_waits_us(ready_us, each_us, backward_us) for each_us in messages_us)
    return GradientExchange(network.gpus, sum(messages_us[0]), expected, lower, upper)


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


def _waits_us(ready_us: Sequence[float], times_us: Sequence[float], backward_us: float) -> float:
    """Return the time from the end of the backward pass to the end of the last message.

    A message begins when its bucket is ready and the previous message has ended.
    """
    end_us = 0.0
    for ready, time_us in zip(ready_us, times_us, strict=True):
        end_us = max(end_us, ready) + time_us
    return max(end_us - backward_us, 0.0)
