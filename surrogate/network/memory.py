"""Memory that a network takes on a device: weights, what a pass holds at its peak, state, and workspace.

A buffer lives from the call that writes it to the last call that reads it. The device's own context (hundreds of MB)
and what an allocator rounds up are not counted.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod

from surrogate.features.problem import DTYPES, ELEMENTS
from surrogate.network import call_rules as rules
from surrogate.network.call import Call, Tensor
from surrogate.network.calls import ELEMENTWISE, RULES
from surrogate.network.network import Held, Network

HOLDERS = ("weights", "activations", "state", "workspace")
"""What holds memory."""
OPTIMIZER_STATES = 2
"""Values that the optimizer keeps for a trained weight, in the weight's type: Adam's two moments."""
_OF_RESULT = ("relu", "sigmoid", "tanh", "exp", "sqrt", "rsqrt", "reciprocal")
_OF_BOTH = ("mul", "div", "maximum", "minimum", "pow")
_OF_NEITHER = ("add", "sub", "neg", "cast")
_MOVES = (rules.moved, rules.concat, rules.fill, rules.reduction, rules.gather)


def chained(network: Network, *, training: bool = False) -> Network:
    """With the memory of a chain of layers, as far as the source does not say its own (a list of problems has no
    tensors): forward a layer's own tensors are held, in training those of all, each shared by two neighbours."""
    weights = [round(layer.parameters * ELEMENTS[layer.work.dtype].weight_bytes) for layer in network.layers]
    moved = [max(0, int(layer.work.dram_bytes) - stored) for layer, stored in zip(network.layers, weights, strict=True)]
    chain = {
        "parameters": sum(layer.parameters for layer in network.layers),
        "weights_bytes": sum(weights),
        "activation_bytes": sum(moved) // 2 + sum(weights) if training else max(moved, default=0),
    }
    return replace(network, **{k: value for k, value in chain.items() if getattr(network, k) is None})


def memory(network: Network, workspace_bytes: int) -> dict[str, int]:
    """Bytes by what holds them: weights; inputs, activations and gradients at their peak; KV cache or optimizer's
    state; the largest workspace of a layer. Empty where the network does not say what it holds."""
    if network.weights_bytes is None or network.activation_bytes is None:
        return {}
    held = (network.weights_bytes, network.activation_bytes, network.state_bytes, workspace_bytes)
    return dict(zip(HOLDERS, held, strict=True))


def held_by(tensors: Iterable[Tensor], calls: Sequence[Call], *, training: bool) -> Held:
    """The fields of a `Network` that follow from its stored ``tensors`` and its ``calls``."""
    stored = [tensor for tensor in tensors if tensor.constant]
    return {
        "parameters": sum(prod(tensor.shape or ()) for tensor in stored if tensor.parameter),
        "weights_bytes": sum(map(tensor_bytes, stored)),
        "activation_bytes": peak_bytes(calls, backward=training),
    }


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor, 0 where its shape is unknown."""
    return prod(tensor.shape) * DTYPES[tensor.dtype] if tensor.shape is not None else 0


def peak_bytes(calls: Sequence[Call], *, backward: bool = False) -> int:
    """The most bytes that a pass over ``calls`` holds at once; stored weights are not among them, inputs are.

    ``backward`` adds the pass that runs the calls' gradients in reverse order: what autograd saves lives until then, a
    tensor's gradient from its last reader's turn to its writer's, a weight's gradient from its layer's to the end.
    """
    turns = 2 * len(calls) if backward else len(calls)
    spans: dict[Hashable, tuple[int, int, int]] = {}  # buffer → first turn, last turn, bytes

    def hold(key: Hashable, tensor: Tensor, start: int, stop: int) -> None:
        first, last, size = spans.get(key, (start, stop, 0))
        spans[key] = min(first, start), max(last, stop), max(size, tensor_bytes(tensor))

    for turn, call in enumerate(calls):
        mirrored = turns - 1 - turn  # the turn of this call's gradients
        for tensor in call.tensors():
            # A weight lives elsewhere, its gradient from here to the end; an input that no call wrote is there from the
            # first turn on.
            if tensor.constant and backward and tensor.parameter:
                hold(("gradient", tensor.buffer), tensor, mirrored, turns)
            elif not tensor.constant:
                hold(tensor.buffer, tensor, *((turn, turn) if tensor.buffer in spans else (0, turns)))
        for tensor in (result for result in call.outputs if not result.constant):
            hold(tensor.buffer, tensor, turn, turn)
        if backward:
            # What the gradient reads lives until its turn; gradients of this call's tensors live at that turn at least,
            # and by `hold` over all turns between their first and their last reader.
            for tensor in _saved(call):
                hold(tensor.buffer, tensor, turn, mirrored)
            for tensor in (t for t in (*call.tensors(), *call.outputs) if t.trained):
                hold(("gradient", tensor.buffer), tensor, mirrored, mirrored)
    # Bytes that appear and vanish at each turn; their running sum is what is held.
    changes = [0] * (turns + 2)
    for first, last, size in spans.values():
        changes[first] += size
        changes[last + 1] -= size
    return max(accumulate(changes))


def _saved(call: Call) -> Iterable[Tensor]:
    """What autograd keeps of a call for its gradient."""
    kind = ELEMENTWISE.get(call.op, "")
    rule = RULES.get(call.op)
    inputs = [tensor for tensor in call.tensors() if not tensor.constant]
    if rule in _MOVES or rule is None or kind in _OF_NEITHER or not any(out.trained for out in call.outputs):
        return []
    if kind in _OF_BOTH:
        return inputs if all(t.trained or t.parameter for t in call.tensors()) else []
    if kind in _OF_RESULT or rule is rules.softmax:
        return call.outputs
    return [*inputs, *call.outputs] if rule in (rules.attention, rules.pool) else inputs
