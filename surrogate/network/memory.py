"""Memory that a network takes on a device: weights, what a pass holds at its peak, state, workspace, and reserves.

A buffer lives from the call that writes it to the last call that reads it. Reserves are what no tensor is: the CUDA
context, what the allocator keeps beyond tensors, workspaces of libraries, buffers of collectives, captured graphs.
"""

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import NamedTuple

from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu
from surrogate.features.kernels import device_attributes
from surrogate.features.problem import DTYPES, ELEMENTS
from surrogate.network import dispatch_rules as rules
from surrogate.network.allocator import LARGE, MIB, Allocator, Block, segment_bytes
from surrogate.network.aten_call import Call, Tensor
from surrogate.network.dispatch import ELEMENTWISE, RULES, add_call, is_view
from surrogate.network.network import Network, Tally

DRIVER_SHARE = 0.015
"""Share of an NVIDIA GPU's memory that its driver keeps: PyTorch's errors and vLLM's logs name totals of 0.976 to 0.992
of the board's on 16 boards (H100 79.2 of 80 GiB, RTX 4090 23.6 of 24, V100 15.8 of 16, RTX 5090 31.4 of 32)."""
ECC_SHARE = 1 / 16
"""What error correction takes of GDDR on boards for servers. Source: the same logs: T4 14.8 of 16 GiB, L40S 44.5 of
48; NVIDIA's T4 and A10 product briefs."""
UTILISATION = 0.9
"""Share of a GPU's memory that a server takes: the default of vLLM's ``gpu_memory_utilization``."""
STACK_BYTES = 1024
"""Of a thread: CUDA's default `cudaLimitStackSize`, kept for all threads that an SM can hold."""
MODULES_BYTES = 200 * MIB
"""Kernels that were loaded, and the driver's own. A Titan V's bare context has 320 MB (pytorch/pytorch#28394), one of
PyTorch about 400 MB (#109888): its stacks take 160 to 264."""
LINKED_BYTES = {2: 544 * MIB}
MANY_LINKED_BYTES = 688 * MIB
"""NCCL's buffers on A100 by NVLink, of 2 GPUs and of more (NVIDIA/nccl#964)."""
PCIE_BYTES = 256 * MIB
"""The same over PCIe: vLLM's logs of 3090, 4090 and 5090 have 0.20 to 0.33 GiB outside torch (vllm#14447, #13061,
#14452)."""
GRAPH_KERNEL_BYTES = 32 * 2**10
SERVER_GRAPHS = 51
"""Of a kernel in a captured graph, and graphs that a server captures: vLLM captures 51 batch sizes and estimates 0.73
GiB for them (vllm#39559), 0.36 GiB for 16 (gpustack/runner#251)."""


class Optimizer(NamedTuple):
    """``states``: values kept for a trained weight, in its type; ``work``: operations for each value written."""

    states: int
    work: int


OPTIMIZERS = {
    "adam": Optimizer(states=2, work=4),
    "adamw": Optimizer(states=2, work=4),
    "sgd": Optimizer(states=0, work=2),
    "sgd-momentum": Optimizer(states=1, work=2),
}
"""Each as one fused pass: it reads weights, gradients and states, and writes weights and states."""
OPTIMIZER = "adam"
"""Which one trains where nobody says."""
SAMPLING = "sampling"
"""The operator behind a language model's last product, which reads the logits."""
SAMPLER_BYTES = 10 * 256 * 4
"""Of a word of the vocabulary: ten fp32 copies of 256 requests' logits, which a server's sampler holds at once. vLLM's
logs have a peak of 1.26 GiB for 128,256 words (vllm#10511), of 1.39 and 1.42 for 152,064 (#12529, #13882)."""
_OF_RESULT = ("relu", "sigmoid", "tanh", "exp", "sqrt", "rsqrt", "reciprocal")
_OF_BOTH = ("mul", "div", "maximum", "minimum", "pow")
_OF_MASKS = ("where", "masked_fill")
_OF_NEITHER = ("add", "sub", "neg", "cast")
_MOVES = (rules.copy, rules.concat, rules.fill, rules.reduction, rules.gather)


def chained(network: Network, *, training: bool = False) -> Network:
    """With the memory of a chain of layers, as far as the source does not say its own (a list of problems has no
    tensors): forward a layer's own tensors are held, in training those of all, each shared by two neighbours."""
    weights = [round(layer.parameters * ELEMENTS[layer.problem.dtype].weight_bytes) for layer in network.layers]
    moved = [
        max(0, int(layer.problem.dram_bytes) - stored) for layer, stored in zip(network.layers, weights, strict=True)
    ]
    chain = {
        "parameters": sum(layer.parameters for layer in network.layers),
        "weights_bytes": sum(weights),
        "activation_bytes": sum(moved) // 2 + sum(weights) if training else max(moved, default=0),
        "gradient_bytes": sum(weights) if training else 0,
        "rounding_bytes": sum(segment_bytes(size) - size for size in weights if size >= LARGE),
    }
    return replace(network, **{k: value for k, value in chain.items() if getattr(network, k) is None})


def memory(network: Network, workspace_bytes: int, gpu: Gpu) -> dict[str, int]:
    """Bytes by what holds them; empty where the network does not say what it holds.

    These are weights; inputs, activations and gradients at their peak, those of weights apart; KV cache or optimizer's
    state; the largest workspace of a layer; and reserves.
    """
    if network.weights_bytes is None or network.activation_bytes is None:
        return {}
    activation_bytes = max(network.activation_bytes, _sampler_bytes(network))
    gradient_bytes = network.gradient_bytes or 0
    activation_bytes -= gradient_bytes
    return {
        "weights": network.weights_bytes,
        "activations": activation_bytes,
        "gradients": gradient_bytes,
        "state": network.state_bytes,
        "workspace": workspace_bytes,
        "rounding": network.rounding_bytes or 0,
        "context": context_bytes(gpu),
        "libraries": _libraries_bytes(network, gpu),
        "communication": _communication_bytes(network, gpu),
        "graphs": _graphs_bytes(network),
    }


def _sampler_bytes(network: Network) -> int:
    """What a server's sampler holds; 0 where there is none."""
    words = (
        layer.problem.dram_bytes / layer.problem.itemsize for layer in network.layers if layer.operator == SAMPLING
    )
    return round(SAMPLER_BYTES * next(words, 0) / (network.batch or 1))


def usable_bytes(gpu: Gpu) -> int:
    """What programs see of a GPU's memory: without the driver's share, and where it is GDDR of a server without ECC's.

    Boards for servers are those that one letter names (T4, A10, L40S); all of them with a narrow interface have GDDR.
    """
    if gpu.vendor != "nvidia":
        return gpu.memory_bytes
    corrected = 0 < gpu.memory_bus_bits <= 512 and re.fullmatch(r"[a-z]\d+[a-z]?", gpu.name) is not None
    return round(gpu.memory_bytes * (1 - DRIVER_SHARE) * (1 - ECC_SHARE * corrected))


def context_bytes(gpu: Gpu) -> int:
    """The context of a process: `MODULES_BYTES`, and on NVIDIA's GPUs a stack for every thread."""
    threads = device_attributes(gpu)["threads_per_sm"] if gpu.vendor == "nvidia" else None
    return MODULES_BYTES + int(gpu.sms * (threads or 0) * STACK_BYTES)


def _libraries_bytes(network: Network, gpu: Gpu) -> int:
    """The workspace of matrix products; a backward pass has a thread, and so a workspace, of its own.

    Source: PyTorch, ``aten/src/ATen/cuda/CublasHandlePool.cpp``: 8 MiB + 128 KiB, from Hopper on 32 MiB; on AMD 32
    MiB, on CDNA 3 and later 128 MiB.
    """
    if not any(getattr(layer.problem, "MULTIPLIES", False) for layer in network.layers):
        return 0
    mib = 128 if gpu.architecture.startswith(("gfx94", "gfx95")) else 32
    if gpu.vendor == "nvidia" and gpu.compute_capability < 9:
        mib = 8.125
    return round(mib * MIB) * (2 if network.training else 1)


def _communication_bytes(network: Network, gpu: Gpu) -> int:
    """Buffers of collectives; of data-parallel training also the buckets, which are a second copy of all gradients.

    Source of the latter: PyTorch, ``DistributedDataParallel``, ``gradient_as_bucket_view``.
    """
    ranks = max((getattr(layer.problem, "ranks", 1) for layer in network.layers), default=1)
    if max(ranks, network.gpus) < 2:
        return 0
    buffers_bytes = LINKED_BYTES.get(max(ranks, network.gpus), MANY_LINKED_BYTES) if gpu.link_gbs else PCIE_BYTES
    return buffers_bytes + (network.weights_bytes or 0 if network.gpus > 1 else 0)


def _graphs_bytes(network: Network) -> int:
    """Captured graphs: a server's, whose steps have gaps between kernels, one for each of many batch sizes."""
    graphs = SERVER_GRAPHS if network.gap_us else int(network.host is not None and network.host.runtime == "graphs")
    return graphs * len(network.layers) * GRAPH_KERNEL_BYTES


def network_of(
    path: Path, tensors: Iterable[Tensor], calls: Sequence[Call], batch: int | None, *, training: bool
) -> Network:
    """The network of a file's ``tensors`` and ``calls``, with what it holds in memory.

    Raises `InputError` where no call costs time.
    """
    stored = {tensor.buffer or index: tensor for index, tensor in enumerate(tensors) if tensor.constant}.values()
    allocator = Allocator()
    for tensor in stored:
        for _ in range(1 + OPTIMIZERS[OPTIMIZER].states * (training and tensor.parameter)):
            allocator.take(tensor_bytes(tensor))
    lasting_bytes = allocator.held
    run_through(allocator, calls, backward=training)
    tally = Tally()
    for call in calls:
        add_call(call, tally, training=training)
    if not tally.layers and not tally.unsupported:
        raise InputError(f"{path}: nothing in it costs time (only views and constants); give a network that computes")
    return tally.network(
        path.stem,
        batch,
        parameters=sum(prod(tensor.shape or ()) for tensor in stored if tensor.parameter),
        weights_bytes=sum(map(tensor_bytes, stored)),
        **allocator.peaks(lasting_bytes),
    )


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor, 0 where its shape is unknown."""
    return prod(tensor.shape) * DTYPES[tensor.dtype] if tensor.shape is not None else 0


def run_through(allocator: Allocator, calls: Sequence[Call], *, backward: bool) -> None:
    """Take and give what a pass over ``calls`` holds; stored weights are not among it, inputs are.

    ``backward`` adds the pass that runs the calls' gradients in reverse order: what autograd saves lives until then, a
    tensor's gradient from its last reader's turn to its writer's, a weight's gradient from its layer's to the end.
    """
    turns = 2 * len(calls) if backward else len(calls)
    spans: dict[Hashable, tuple[int, int, int]] = {}  # buffer → first turn, last turn, bytes

    def hold(key: Hashable, tensor: Tensor, start: int, stop: int) -> None:
        first, last, size = spans.get(key, (start, stop, 0))
        spans[key] = min(first, start), max(last, stop), max(size, tensor_bytes(tensor))

    spelled: set[str] = set()  # buffers within a GELU that a file spells out: Erf, Add, Mul

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
            inside = any(tensor.buffer in spelled for tensor in call.tensors())
            if call.op == "Erf" or (inside and call.op == "Add"):
                spelled.update(tensor.buffer for tensor in call.outputs)
            for tensor in saved(call) if call.op != "Erf" else ():
                if tensor.buffer in spelled:  # a GELU keeps its input alone
                    continue
                # A batched product makes a copy of an operand that is a part of something larger.
                part = call.op == "matmul" and len(tensor.shape or ()) > 3
                part = part and tensor_bytes(tensor) < spans[tensor.buffer][2]
                hold((tensor.buffer, tensor.shape, turn) if part else tensor.buffer, tensor, turn, mirrored)
            for tensor in (t for t in (*call.tensors(), *call.outputs) if t.trained):
                hold(("gradient", tensor.buffer), tensor, mirrored, mirrored)
    begins: dict[int, list[tuple[int, int, bool]]] = {}  # turn → last turn, bytes, a weight's gradient: what appears
    for key, (first, last, size) in spans.items():
        begins.setdefault(first, []).append((last, size, last == turns and isinstance(key, tuple)))
    ends: dict[int, list[Block]] = {}
    for turn in range(turns + 1):
        for block in ends.pop(turn - 1, []):
            allocator.give(block)
        for last, size, is_gradient in begins.get(turn, []):
            ends.setdefault(last, []).append(allocator.take(size))
            if is_gradient:
                allocator.mark(ends[last][-1])


def saved(call: Call) -> Iterable[Tensor]:
    """What autograd keeps of a call for its gradient; a mask takes a byte an element, an index eight."""
    kind = ELEMENTWISE.get(call.op, "")
    rule = RULES.get(call.op)
    inputs = [tensor for tensor in call.tensors() if not tensor.constant]
    passes = rule in _MOVES or rule is None or kind in _OF_NEITHER or is_view(call, training=True)
    if passes or not any(out.trained for out in call.outputs):
        return []
    if kind == "dropout":
        return [replace(out, dtype="int8", buffer=f"{out.buffer} mask") for out in call.outputs[:1]]
    if kind in _OF_MASKS:
        return [tensor for tensor in inputs if not tensor.floating]
    if kind in ("mul", "div") and len(call.tensors()) == 1:  # by a number
        return []
    if kind in _OF_BOTH:
        return inputs if all(t.trained or t.parameter for t in call.tensors()) else []
    if kind in _OF_RESULT or rule is rules.softmax:
        return call.outputs
    if rule is rules.pool and "max" in call.op.lower():
        return [*inputs, *(replace(out, dtype="fp64", buffer=f"{out.buffer} index") for out in call.outputs[:1])]
    return [*inputs, *call.outputs] if rule is rules.attention else inputs
