"""Predict the memory of a network on a device: weights, peak activations, state, workspace, and reserves.

A buffer lives from the call that writes it to the last call that reads it. Reserves are memory outside tensors: the
CUDA context, the allocator's rounding, workspaces of libraries, buffers of collectives, and captured graphs.

PyTorch's caching allocator reserves segments for tensors and keeps them. Source: PyTorch,
``c10/cuda/CUDACachingAllocator.cpp``, with its default settings:

- Sizes are multiples of 512 B.
- A block of up to 1 MiB comes from a segment of 2 MiB, and a block below 10 MiB from a segment of 20 MiB. A larger
  block has its own segment, in multiples of 2 MiB.
- The allocator takes the smallest free block that is large enough. It splits the block if more than 1 MiB is left, and
  for a tensor of up to 1 MiB if at least 512 B are left.
- Free neighbours are merged.
- If the GPU has no memory left for a segment, the segments without any tensor are released first.
"""

import re
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import prod
from pathlib import Path
from typing import Any, Optional

from surrogate.features.elementwise import round_up
from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu
from surrogate.features.kernels import device_attributes
from surrogate.features.problem import ELEMENTS
from surrogate.network import dispatch_rules as rules
from surrogate.network.aten_call import Call, Tensor
from surrogate.network.dispatch import ELEMENTWISE, RULES, add_call, is_view
from surrogate.network.dispatch_passes import passes
from surrogate.network.network import Network, NetworkBuilder
from surrogate.network.optimizers import OPTIMIZER, OPTIMIZERS

MIB = 2**20
UNIT = 512
SMALL = MIB
SMALL_SEGMENT = 2 * MIB
LARGE = 10 * MIB
LARGE_SEGMENT = 20 * MIB
DRIVER_BYTES, DRIVER_SHARE = 220 * MIB, 0.0074
"""Bytes that an NVIDIA GPU's driver keeps, and their growth with the memory. Source: a line through the totals of 12
boards in PyTorch's errors and vLLM's logs (`tests/network/test_memory.toml`). A board left out is 0.2 GiB off or less:
H100 79.2 of 80 GiB, RTX 4090 23.6 of 24, V100 15.8 of 16, RTX 5090 31.4 of 32."""
ECC_SHARE = 1 / 16
"""Share of GDDR memory that error correction takes on boards for servers. Source: the same logs (T4 14.8 of 16 GiB,
L40S 44.5 of 48), and NVIDIA's T4 and A10 product briefs."""
UTILISATION = 0.9
"""Share of a GPU's memory that a server takes: the default of vLLM's ``gpu_memory_utilization``."""
MAX_BATCHED_TOKENS = 8192
"""Maximum tokens of a step, which limits its activations: the default of vLLM and SGLang on data-centre GPUs."""
STACK_BYTES = 1024
"""Stack of a thread in bytes: CUDA's default `cudaLimitStackSize`, reserved for all threads that an SM can hold."""
MODULES_BYTES = 200 * MIB
"""Loaded kernels and the driver's own memory. Source: a Titan V's bare context has 320 MB (pytorch/pytorch#28394), and
PyTorch's context has about 400 MB (#109888). The stacks take 160 to 264 MiB of it."""
LINKED_BYTES = {1: 0, 2: 544 * MIB}
MANY_LINKED_BYTES = 688 * MIB
"""NCCL's buffers on A100 with NVLink, for 2 GPUs and for more (NVIDIA/nccl#964)."""
PCIE_BYTES = 256 * MIB
"""NCCL's buffers over PCIe. Source: vLLM's logs of RTX 3090, 4090 and 5090 have 0.20 to 0.33 GiB outside torch
(vllm#14447, #13061, #14452)."""
GRAPH_KERNEL_BYTES, SERVER_GRAPHS = 32 * 2**10, 51
"""Bytes of a kernel in a captured graph, and the number of graphs that a server captures. Source: vLLM captures 51
batch sizes and estimates 0.73 GiB for them (vllm#39559), and 0.36 GiB for 16 (gpustack/runner#251)."""


SAMPLING = "sampling"
"""The operator after a language model's last product; it reads the logits."""
SAMPLER_BYTES = 10 * 256 * 4
"""Peak bytes of a server's sampler per word of the vocabulary: ten fp32 copies of 256 requests' logits. Source: vLLM's
logs have a peak of 1.26 GiB for 128,256 words (vllm#10511), and 1.39 and 1.42 GiB for 152,064 (#12529, #13882)."""
_SAVE_RESULT = ("relu", "sigmoid", "tanh", "exp", "sqrt", "rsqrt", "reciprocal")
_SAVE_BOTH = ("mul", "div", "maximum", "minimum", "pow")
_SAVE_MASKS = ("where", "masked_fill")
_SAVE_NOTHING = ("add", "sub", "neg", "cast")
_MOVEMENTS = (rules.copy, rules.concat, rules.fill, rules.reduction, rules.gather, passes)


def with_chain_memory(network: Network, *, training: bool = False) -> Network:
    """Return the network with the memory of a chain of layers for the fields that the source does not give.

    A list of problems, for example, has no tensors. The forward pass holds the tensors of one layer. Training holds the
    tensors of all layers; two neighbours share each tensor.
    """
    weights = [round(layer.parameters * ELEMENTS[layer.problem.dtype].weight_bytes) for layer in network.layers]
    moved = [max(0, int(each.problem.dram_bytes) - size) for each, size in zip(network.layers, weights, strict=True)]
    chain = {
        "parameters": sum(layer.parameters for layer in network.layers),
        "weights_bytes": sum(weights),
        "activation_bytes": sum(moved) // 2 + sum(weights) if training else max(moved, default=0),
        "gradient_bytes": sum(weights) if training else 0,
        "rounding_bytes": sum(segment_bytes(size) - size for size in weights if size >= LARGE),
    }
    return replace(network, **{k: value for k, value in chain.items() if getattr(network, k) is None})


def memory(network: Network, workspace_bytes: int, gpu: Gpu) -> dict[str, int]:
    """Return bytes by use; empty if the network's weights or activations are unknown.

    ``weights``, ``activations`` and ``gradients`` are bytes at the peak; ``activations`` includes inputs and the
    activations' gradients, and ``gradients`` are the weights' gradients. ``state`` is the KV cache or the optimizer's
    state, and ``workspace`` the largest workspace of a layer. The other keys are reserves.
    """
    if network.weights_bytes is None or network.activation_bytes is None:
        return {}
    gradient_bytes = network.gradient_bytes or 0
    return {
        "weights": network.weights_bytes,
        "activations": max(network.activation_bytes, _sampler_bytes(network)) - gradient_bytes,
        "gradients": gradient_bytes,
        "state": network.state_bytes,
        "workspace": workspace_bytes,
        "rounding": (network.rounding_bytes or 0) // network.stages,
        "context": context_bytes(gpu),
        "libraries": _libraries_bytes(network, gpu),
        "communication": _communication_bytes(network, gpu),
        "graphs": _graphs_bytes(network),
    }


def _sampler_bytes(network: Network) -> int:
    """Return the bytes of a server's sampler; 0 if the network has no sampler."""
    words = (each.problem.dram_bytes / each.problem.itemsize for each in network.layers if each.operator == SAMPLING)
    return round(SAMPLER_BYTES * next(words, 0) / (network.batch or 1))


def usable_bytes(gpu: Gpu) -> int:
    """Return the bytes of a GPU's memory that programs can use.

    The driver's share is subtracted, and error correction's share on boards for servers with GDDR. Boards for servers
    have names of one letter and a number (T4, A10, L40S). They have GDDR if their memory bus has at most 512 bits.
    """
    if gpu.vendor != "nvidia":
        return gpu.memory_bytes
    corrected = 0 < gpu.memory_bus_bits <= 512 and re.fullmatch(r"[a-z]\d+[a-z]?", gpu.name) is not None
    return round(gpu.memory_bytes * (1 - ECC_SHARE * corrected) * (1 - DRIVER_SHARE)) - DRIVER_BYTES


def context_bytes(gpu: Gpu) -> int:
    """Return the bytes of a process's context: `MODULES_BYTES`, and on NVIDIA's GPUs a stack for every thread."""
    threads = device_attributes(gpu)["threads_per_sm"] if gpu.vendor == "nvidia" else None
    return MODULES_BYTES + int(gpu.sms * (threads or 0) * STACK_BYTES)


def _libraries_bytes(network: Network, gpu: Gpu) -> int:
    """Return the workspace of matrix products; the backward pass runs in its own thread with its own workspace.

    Source: PyTorch, ``aten/src/ATen/cuda/CublasHandlePool.cpp``: 8 MiB + 128 KiB before Hopper and 32 MiB since Hopper;
    32 MiB on AMD, and 128 MiB since CDNA 3.
    """
    multiplies = any(getattr(layer.problem, "MULTIPLIES", False) for layer in network.layers)
    mib = 128 if gpu.architecture.startswith(("gfx94", "gfx95")) else 32
    if gpu.vendor == "nvidia" and gpu.compute_capability < 9:
        mib = 8.125
    return multiplies * round(mib * MIB) * (1 + network.training)


def _communication_bytes(network: Network, gpu: Gpu) -> int:
    """Return the bytes of collectives' buffers."""
    ranks = max([network.cluster.gpus, *(getattr(layer.problem, "ranks", 1) for layer in network.layers)])
    return LINKED_BYTES.get(ranks, MANY_LINKED_BYTES) if gpu.link_gbs or ranks < 2 else PCIE_BYTES


def _graphs_bytes(network: Network) -> int:
    """Return the bytes of captured CUDA graphs; a server (a network with gaps) captures one per batch size."""
    graphs = SERVER_GRAPHS if network.gap_us else int(network.host is not None and network.host.runtime == "graphs")
    return graphs * len(network.layers) * GRAPH_KERNEL_BYTES // network.stages


def network_of(
    path: Path, tensors: Iterable[Tensor], calls: Sequence[Call], batch: int | None, *, training: bool
) -> Network:
    """Return the network of a file's ``tensors`` and ``calls``, with its memory.

    Raises `InputError` if no call costs time.
    """
    stored = {tensor.buffer or index: tensor for index, tensor in enumerate(tensors) if tensor.constant}.values()
    allocator = Allocator()
    for tensor in stored:
        for _ in range(1 + OPTIMIZERS[OPTIMIZER].states * (training and tensor.parameter)):
            allocator.allocate(tensor.bytes)
    persistent_bytes = allocator.allocated
    simulate_pass(allocator, calls, backward=training)
    builder = NetworkBuilder()
    for call in calls:
        add_call(call, builder, training=training)
    if not builder.layers and not builder.unsupported:
        raise InputError(f"{path}: no operator costs time (only views and constants); give a network that computes")
    parameters = sum(prod(tensor.shape or ()) for tensor in stored if tensor.parameter)
    sizes = {"parameters": parameters, "weights_bytes": sum(tensor.bytes for tensor in stored)}
    return builder.network(path.stem, batch, **sizes, **allocator.peak_fields(persistent_bytes))


def simulate_pass(allocator: "Allocator", calls: Sequence[Call], *, backward: bool) -> None:
    """Allocate and release the buffers of a pass over ``calls``; inputs are included, stored weights are not.

    ``backward`` adds the backward pass, which computes the calls' gradients in reverse order. A tensor that autograd
    saves lives until its call's gradient. A tensor's gradient lives from its last reader's turn to its writer's turn. A
    weight's gradient lives from its layer's turn to the end.
    """
    turns = 2 * len(calls) if backward else len(calls)
    spans: dict[Hashable, tuple[int, int, int]] = {}  # buffer → first turn, last turn, bytes

    def hold(key: Hashable, tensor: Tensor, start: int, stop: int) -> None:
        first, last, size = spans.get(key, (start, stop, 0))
        spans[key] = min(first, start), max(last, stop), max(size, tensor.bytes)

    gelu_buffers: set[str] = set()  # buffers within a GELU that a file stores as Erf, Add and Mul

    for turn, call in enumerate(calls):
        mirrored = turns - 1 - turn  # turn of this call's gradients
        for tensor in call.tensors():
            # Stored weights are counted before the pass. A weight's gradient lives from this turn to the end. A tensor
            # that no call wrote is an input, which exists from the first turn on.
            if tensor.constant and backward and tensor.parameter:
                hold(("gradient", tensor.buffer), tensor, mirrored, turns)
            elif not tensor.constant:
                hold(tensor.buffer, tensor, *((turn, turn) if tensor.buffer in spans else (0, turns)))
        for tensor in (result for result in call.outputs if not result.constant):
            hold(tensor.buffer, tensor, turn, turn)
        if backward:
            # A saved tensor lives until the turn of the gradient that reads it. The gradients of this call's tensors
            # live at that turn; `hold` extends them over all turns between their first and last reader.
            is_in_gelu = any(tensor.buffer in gelu_buffers for tensor in call.tensors())
            if call.op == "Erf" or (is_in_gelu and call.op == "Add"):
                gelu_buffers.update(tensor.buffer for tensor in call.outputs)
            for tensor in saved_tensors(call) if call.op != "Erf" else ():
                if tensor.buffer in gelu_buffers:  # a GELU saves its input only
                    continue
                # A batched product copies an operand that is a part of a larger buffer.
                copied = call.op == "matmul" and len(tensor.shape or ()) > 3 and tensor.bytes < spans[tensor.buffer][2]
                hold((tensor.buffer, tensor.shape, turn) if copied else tensor.buffer, tensor, turn, mirrored)
            for tensor in (t for t in (*call.tensors(), *call.outputs) if t.needs_gradient):
                hold(("gradient", tensor.buffer), tensor, mirrored, mirrored)
    begins: dict[int, list[tuple[int, int, bool]]] = {}  # first turn → (last turn, bytes, is a weight's gradient)
    for key, (first, last, size) in spans.items():
        begins.setdefault(first, []).append((last, size, last == turns and isinstance(key, tuple)))
    ends: dict[int, list[Block]] = {}
    for turn in range(turns + 1):
        for block in ends.pop(turn - 1, []):
            allocator.release(block)
        for last, size, is_gradient in begins.get(turn, []):
            ends.setdefault(last, []).append(allocator.allocate(size))
            if is_gradient:
                allocator.mark_gradient(ends[last][-1])


def saved_tensors(call: Call) -> Iterable[Tensor]:
    """Return the tensors that autograd saves for a call's gradient.

    A mask takes one byte per element, and an index of max pooling eight bytes.
    """
    kind = ELEMENTWISE.get(call.op, "")
    rule = RULES.get(call.op)
    inputs = [tensor for tensor in call.tensors() if not tensor.constant]
    saves_nothing = rule in _MOVEMENTS or rule is None or kind in _SAVE_NOTHING or is_view(call, training=True)
    is_scaled = kind in ("mul", "div") and len(call.tensors()) == 1  # by a number
    if saves_nothing or is_scaled or not any(out.needs_gradient for out in call.outputs):
        return []
    if kind == "dropout":
        return [replace(out, dtype="int8", buffer=f"{out.buffer} mask") for out in call.outputs[:1]]
    if kind in _SAVE_MASKS:
        return [tensor for tensor in inputs if not tensor.floating]
    if kind in _SAVE_BOTH:
        return inputs if all(t.needs_gradient or t.parameter for t in call.tensors()) else []
    if kind in _SAVE_RESULT or rule is rules.softmax:
        return call.outputs
    if rule is rules.pool and "max" in call.op.lower():
        return [*inputs, *(replace(out, dtype="fp64", buffer=f"{out.buffer} index") for out in call.outputs[:1])]
    return [*inputs, *call.outputs] if rule is rules.attention else inputs


@dataclass(slots=True, eq=False)
class Block:
    """A block of ``size`` bytes in a segment.

    A tensor requested ``requested`` bytes of it; ``gradient`` is True if the tensor is a weight's gradient. ``number``
    orders blocks of one size.
    """

    small: bool
    size: int
    number: int
    free: bool = True
    requested: int = 0
    gradient: bool = False
    previous: Optional["Block"] = None
    next: Optional["Block"] = None


def _order(block: Block) -> tuple[bool, int, int]:
    """Return the sort key of free blocks: the pool, then the size."""
    return block.small, block.size, block.number


class Allocator:
    """The state of the allocator, in bytes.

    ``allocated`` is the memory of all tensors now and ``peak`` its maximum so far. ``peak_gradients`` is the part of
    the peak that holds weights' gradients. ``reserved`` is the memory of all segments while the GPU has enough, and
    ``peak_occupied`` the maximum of the segments that hold a tensor: the GPU must have so much.
    """

    def __init__(self) -> None:
        self.allocated = self.peak = self.reserved = self.peak_gradients = self._gradients = 0
        self.peak_occupied = self._occupied = self.peak_activations = 0
        self._free: list[Block] = []  # sorted by `_order`
        self._numbers = count(1)

    def allocate(self, requested: int) -> Block:
        """Return a block for a tensor of ``requested`` bytes."""
        size = int(round_up(max(requested, 1), UNIT))
        small = size <= SMALL
        place = bisect_left(self._free, (small, size, 0), key=_order)
        if place < len(self._free) and self._free[place].small == small:
            block = self._free.pop(place)
        else:
            block = Block(small, segment_bytes(size), next(self._numbers))
            self.reserved += block.size
        self._occupied += block.size if block.previous is block.next is None else 0  # a whole segment
        self.peak_occupied = max(self.peak_occupied, self._occupied)
        rest = block.size - size
        if rest >= UNIT if small else rest > SMALL:
            block.size = size
            left = Block(small, rest, next(self._numbers))
            _link(left, block.next)
            _link(block, left)
            insort(self._free, left, key=_order)
        block.free = False
        block.requested = requested
        self.allocated += requested
        self._note_peak()
        return block

    def mark_gradient(self, block: Block) -> None:
        """Mark a block that holds a weight's gradient."""
        self._gradients += 0 if block.gradient else block.requested
        block.gradient = True
        self._note_peak()

    def _note_peak(self) -> None:
        self.peak_activations = max(self.peak_activations, self.allocated - self._gradients)
        if self.allocated >= self.peak:
            self.peak, self.peak_gradients = self.allocated, self._gradients

    def peak_fields(self, persistent_bytes: int) -> dict[str, Any]:
        """Return the memory fields of a `Network`; ``persistent_bytes`` were allocated before the pass."""
        return {
            "activation_bytes": self.peak - persistent_bytes,
            "gradient_bytes": self.peak_gradients,
            "peak_activation_bytes": self.peak_activations - persistent_bytes,
            "rounding_bytes": self.peak_occupied - self.peak,
        }

    def release(self, block: Block) -> None:
        """Free a block and merge it with its free neighbours."""
        self.allocated -= block.requested
        self._gradients -= block.requested if block.gradient else 0
        block.free, block.gradient = True, False
        for first in (block, block.previous):
            if first and first.free and first.next and first.next.free:
                for each in (first, first.next):
                    if each is not block:
                        self._free.pop(bisect_left(self._free, _order(each), key=_order))
                first.size += first.next.size
                _link(first, first.next.next)
                block = first
        self._occupied -= block.size if block.previous is block.next is None else 0
        insort(self._free, block, key=_order)


def _link(first: Block, second: Block | None) -> None:
    """Make two blocks neighbours."""
    first.next = second
    if second:
        second.previous = first


def segment_bytes(size: int) -> int:
    """Return the bytes of a new segment for a block of ``size`` bytes."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < LARGE else int(round_up(size, SMALL_SEGMENT))
