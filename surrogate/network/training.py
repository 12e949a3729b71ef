"""Build a training iteration from a forward pass: forward, backward in reverse order, optimizer.

A problem declares the problems of its backward pass (`NetworkProblem`). If several layers contribute to a tensor's
gradient, the gradients are summed at the sum of the branches.
"""

from collections.abc import Iterator
from dataclasses import replace

from surrogate.features import DTYPES, INPUT, WEIGHT, InputError, checked_int
from surrogate.features.families import NetworkProblem, Operator
from surrogate.features.families.operator import Streamed
from surrogate.network.memory import with_chain_memory
from surrogate.network.network import TEXTS, Layer, Network, NetworkBuilder, Work
from surrogate.network.optimizers import OPTIMIZER, OPTIMIZERS, add_step, step_text, total_state_bytes, trained_weights

NORM_NOTE = TEXTS["notes"]["norms"]
TRAINING_WORK = 3
"""Work of an unsupported operator in an iteration / in the forward pass: a product has two products as gradients."""
CAST = "cast_weights"
"""The operator that casts a unit's fp32 weights to the type of its products, and the gradients back."""
ACCUMULATION = "accumulation"
"""The operator that adds gradients to the gradients of earlier microbatches."""

RECOMPUTED = ".recomputed"
"""End of the name of a layer that the backward pass computes again, under checkpointing."""


def with_training(network: Network, training: bool, optimizer: str = OPTIMIZER) -> Network:
    """Return the network with its memory and, under ``training``, with the layers of a whole iteration.

    If the source gives no memory, it is derived from a chain of layers. The last layer of an iteration is the step of
    ``optimizer``, one of `OPTIMIZERS`.
    """
    network = with_chain_memory(network, training=training)
    if not training:
        return network
    loss = "the sum of the module's results" if network.training else "the last layer's result"
    network = training_iteration(network, optimizer)
    note = TEXTS["notes"]["training"].format(optimizer=step_text(optimizer), loss=loss)
    return replace(network, notes=(*network.notes, note))


def training_iteration(network: Network, optimizer: str = OPTIMIZER) -> Network:
    """Return the whole iteration of a forward network; an iteration is returned unchanged."""
    if network.training:
        return network
    builder = NetworkBuilder()
    forward = [replace(layer, problem=_in_training(layer.problem)) for layer in network.layers]
    builder.add(forward)
    for layer in reversed(forward):
        gradients = list(backward(layer))
        complete = 0 if layer.problem.UPDATES_WEIGHTS else layer.parameters
        builder.add([*gradients[:-1], *(replace(each, parameters=complete) for each in gradients[-1:])])
    # The gradient of an embedding updates only the rows that it uses, so the optimizer's step does not cover the table.
    weights = list(trained_weights(layer for layer in forward if not layer.problem.UPDATES_WEIGHTS))
    dtype = next((layer.problem.dtype for layer in forward if layer.parameters), "fp32")
    add_step(builder, weights, optimizer, dtype)
    state = total_state_bytes(trained_weights(forward), optimizer, dtype)
    missing = {name: Work(*(TRAINING_WORK * part for part in work)) for name, work in network.missing.items()}
    fields = {"state_bytes": state, "forward_layers": len(forward), "missing": missing}
    return replace(network, layers=tuple(builder.layers), training=True, **fields)


def with_accumulation(network: Network, steps: int) -> Network:
    """Return the iteration with ``steps`` microbatches; each gradient after the first one is added to their sum.

    Raises `InputError` if the network is not an iteration, or ``steps`` is not a whole number above 0.
    """
    if checked_int(network.name, "accumulate", steps) > 1 and not network.training:
        raise InputError(f"{network.name}: --accumulate {steps} is for training; add --training")
    passes = [layer for layer in network.layers if layer.operator in OPTIMIZERS]
    if steps == 1 or not passes:
        return replace(network, accumulate=steps)
    layers = list(network.layers)
    for each in passes:
        added = (steps - 1) * each.parameters
        addition = Streamed(reads=2 * added, writes=added, dtype=each.problem.dtype, variant=ACCUMULATION)
        name = each.name.replace("optimizer", ACCUMULATION)
        layers.insert(layers.index(each), Layer(name, ACCUMULATION, addition))
    gradients = sum(DTYPES[each.problem.dtype] * each.parameters for each in passes)
    activations = (network.activation_bytes or 0) - (network.gradient_bytes or 0) + gradients
    sizes = {} if network.activation_bytes is None else {"activation_bytes": activations, "gradient_bytes": gradients}
    return replace(network, layers=tuple(layers), accumulate=steps, **sizes)


def is_update(layer: Layer) -> bool:
    """Return whether a layer runs once per iteration: the optimizer's step, and the sums of gradients before it."""
    return layer.operator.partition(".")[0] in OPTIMIZERS or layer.operator == ACCUMULATION


def is_recomputed(layer: Layer) -> bool:
    """Return whether the backward pass computes the layer again; ``#2`` may follow the name's end."""
    return layer.name.partition("#")[0].endswith(RECOMPUTED)


def repeats(network: Network, layer: Layer) -> int:
    """Return how often a layer runs in a pass: once per microbatch, unless it `is_update`."""
    return 1 if is_update(layer) else network.accumulate


def backward(layer: Layer) -> Iterator[Layer]:
    """Yield the layers of the gradients of one layer."""
    problem = layer.problem
    parts = [part for gradient in layer.gradients for part in problem.gradients(gradient)]
    has_weights = layer.parameters > 0 or WEIGHT in layer.gradients
    if isinstance(problem, Operator) and problem.WEIGHT_GRADIENT and has_weights:
        parts.append((f"grad_{problem.kind}", problem.of_kind(problem.WEIGHT_GRADIENT)))
    if layer.parameters and not parts:  # the kernel of the input's gradient, or the first of several, computes it
        parts.extend(problem.gradients(INPUT)[:1])
    for name, gradient in parts:
        yield Layer(f"{layer.name}.{name}", f"{layer.operator}.{name}", gradient, keeps_math=layer.keeps_math)


def _in_training(problem: NetworkProblem) -> NetworkProblem:
    """Return the problem in training; batch norm, for example, then computes the statistics of the batch."""
    return problem.of_kind(problem.IN_TRAINING) if isinstance(problem, Operator) and problem.IN_TRAINING else problem
