"""Make torch on fake CPU tensors call the operators that a GPU would, with any build of torch, also under autograd.

On a GPU, attention, dropout, recurrent layers and recurrent cells are fused kernels. Autocast uses CUDA's lists, which
are longer than the CPU's. Source: PyTorch, `torch.amp`, "CUDA Op-Specific Behavior"; `native_functions.yaml` for the
fused kernels; `aten/src/ATen/native/RNN.cpp` for the recurrent functions that call cuDNN.
"""

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from surrogate.features.problem import setting
from surrogate.network.aten_call import DISPATCH
from surrogate.network.network import refusal, refuse

if TYPE_CHECKING:
    from torch import Tensor
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.nn import Module

MAX_FLASH_HEAD_DIM = 256
"""Maximum size of a head in the flash kernel."""
FLEX_SETTINGS = {"_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True, "_validate_device": lambda *_: None}
"""Settings of torch's module of FlexAttention that let it run as one call, without its compiler."""
CUDNN_RNN_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""Layer → its number in cuDNN."""


@contextmanager
def dispatched_as_on_gpu(amp: str | None = None) -> Iterator[None]:
    """Dispatch as on a GPU during the block, with autocast to ``amp``, one of `HALF` or None for no autocast.

    The overrides affect the whole process until the end of the block.
    """
    import torch
    from torch.library import _scoped_library

    kinds = {"fp16": torch.float16, "bf16": torch.bfloat16}
    fast_path = torch.backends.mha.get_fastpath_enabled()
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    with _scoped_library("aten", "IMPL") as library, cuda_autocast(), overridden(flex, **FLEX_SETTINGS):
        fused_kernels = {"scaled_dot_product_attention": _attention, "dropout": _dropout, **recurrent_overrides()}
        fused_kernels["ctc_loss.IntList"] = _ctc_loss
        for name, fused in fused_kernels.items():
            for key in ("CPU", "AutogradCPU"):
                library.impl(name, fused, key)
        if hasattr(torch.ops.aten, "_fused_rms_norm_backward"):  # PyTorch 2.9: one kernel if its type has a kernel
            library.impl("_fused_rms_norm", torch.ops.aten._fused_rms_norm.default.decompose, "CPU")
        for part, names in DISPATCH["autocast"].items():
            cast = _with_fp32_result if part == "results" else partial(_with_cast_arguments, part)
            for name in names:
                base, _, overload = name.partition(".")
                op = getattr(getattr(torch.ops.aten, base), overload or "default")
                library.impl(name, partial(cast, op), "AutocastCPU")
        # The fast path is one call and hides the kernels of a whole block.
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with torch.autocast("cpu", dtype=kinds.get(amp or ""), enabled=amp is not None):
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)


@contextmanager
def overridden(owner: object, **values: object) -> Iterator[None]:
    """Give attributes of a class or module other values during the block; attributes that it lacks stay missing."""
    originals = {name: getattr(owner, name) for name in values if hasattr(owner, name)}
    try:
        for name in originals:
            setattr(owner, name, values[name])
        yield
    finally:
        for name, value in originals.items():
            setattr(owner, name, value)


@contextmanager
def cuda_autocast() -> Iterator[None]:
    """Make ``torch.autocast("cuda")`` mean the CPU's autocast during the block, for new blocks and for questions.

    The CPU's tensors represent a GPU's here; without CUDA, torch would disable such blocks.
    """
    import torch

    original_init, is_enabled, type_of = torch.autocast.__init__, torch.is_autocast_enabled, torch.get_autocast_dtype

    def on_cpu(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or type_of("cuda")
        original_init(self, device_type, dtype, *args, **kwargs)

    # `torch.amp.custom_fwd` asks the two functions.
    answers = {"is_autocast_enabled": lambda *_: is_enabled("cpu"), "get_autocast_dtype": lambda *_: type_of("cpu")}
    with overridden(torch.autocast, __init__=on_cpu), overridden(torch, **answers):
        yield


def current_autocast() -> str | None:
    """Return the type of the autocast block around the caller; None if there is none.

    Raises `InputError` if the block is disabled, as blocks for CUDA are if torch finds no CUDA.
    """
    import torch

    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return setting("dtype", torch.get_autocast_dtype(device))
    torch.autocast_increment_nesting()
    if torch.autocast_decrement_nesting():
        raise refusal("autocast")
    return None


def tf32_operations() -> tuple[str, ...]:
    """Return which of ``products`` and ``convolutions`` torch's settings currently run in TF32."""
    import torch

    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(products, "fp32_precision"):  # torch 2.9 and later may refuse to return allow_tf32
        allowed = [part.fp32_precision == "tf32" for part in (products, cudnn.conv)]
    else:
        allowed = [part.allow_tf32 for part in (products, cudnn)]
    return tuple(name for name, value in zip(("products", "convolutions"), allowed, strict=True) if value)


def _with_cast_arguments(kind: str, op: Callable[..., object], *args: object, **kwargs: object) -> object:
    """Call ``op`` with its arguments cast to one type.

    The type is fp32, autocast's type ("half"), or fp32 only if one argument is in fp32 ("promoted").
    """
    import torch
    from torch.utils._pytree import tree_leaves, tree_map

    def is_floating(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.is_floating_point()

    types = {value.dtype for value in tree_leaves((args, kwargs)) if is_floating(value)}
    is_half = kind == "half" or (kind == "promoted" and torch.float32 not in types)
    target = torch.get_autocast_dtype("cpu") if is_half else torch.float32
    args, kwargs = tree_map(lambda value: value.to(target) if is_floating(value) else value, (args, kwargs))
    with torch.autocast("cpu", enabled=False):
        return op(*args, **kwargs)


def _with_fp32_result(op: Callable[..., object], values: "Tensor", *args: object, **kwargs: object) -> object:
    """Call ``op`` on half-precision ``values`` in one kernel that returns fp32."""
    import torch

    aten = torch.ops.aten
    halves = values.dtype in (torch.float16, torch.bfloat16)
    fused_casts: dict[object, Any] = {aten.softmax.int: aten._softmax, aten.log_softmax.int: aten._log_softmax}
    with torch.autocast("cpu", enabled=False):
        if not halves or kwargs.get("dtype") is not None:
            return op(values, *args, **kwargs)
        if op in fused_casts:
            return fused_casts[op](values, args[0], True)
        return op(values, *args, **kwargs, dtype=torch.float32)


def _attention(
    query: "Tensor", key: "Tensor", value: "Tensor", *options: Any, scale: float | None = None, enable_gqa: bool = False
) -> "Tensor":
    """Call flash attention for half precision without a mask, else the memory-efficient kernel.

    ``options`` are a mask, the dropout probability and whether attention is causal; missing ones have their defaults.
    If neither kernel takes the shapes, two products and a softmax run, as in torch.
    """
    import torch

    aten = torch.ops.aten
    all_options: tuple[Any, ...] = (*options, *(None, 0.0, False)[len(options) :])
    mask, dropout, is_causal = all_options
    halves = query.dtype in (torch.float16, torch.bfloat16)
    is_flash = halves and mask is None and query.dim() == 4 and query.size(-1) % 8 == 0
    is_flash = is_flash and query.size(-1) == value.size(-1) <= MAX_FLASH_HEAD_DIM
    if enable_gqa and not is_flash:  # only the flash kernel reads keys and values of several heads of queries
        groups = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    if query.dim() != 4 or query.size(-1) % 4 or not (halves or query.dtype == torch.float32):
        unfused = aten._scaled_dot_product_attention_math
        return unfused(query, key, value, mask, dropout, is_causal, None, scale=scale)[0]
    if is_flash:
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout, is_causal, False, scale=scale)[0]
    trained = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, float("-inf"))
        mask = mask.to(query.dtype).expand(query.size(0), query.size(1), query.size(2), key.size(2))
    fused = aten._scaled_dot_product_efficient_attention
    return fused(query, key, value, mask, trained, dropout, is_causal, scale=scale)[0]


def _dropout(values: "Tensor", p: float, train: bool) -> "Tensor":
    """Call the one kernel that draws, drops and stores the mask."""
    import torch

    return torch.ops.aten.native_dropout(values, p, True)[0] if train and p else values


def _ctc_loss(log_probs: "Tensor", targets: "Tensor", lengths: "list[int]", labels: "list[int]", *options: Any) -> Any:
    """Call the loss with lengths in tensors; torch would write the lists into tensors without memory."""
    import torch

    return torch.ops.aten.ctc_loss.Tensor(log_probs, targets, torch.tensor(lengths), torch.tensor(labels), *options)


@cache
def recurrent_overrides() -> dict[str, Callable[..., object]]:
    """Return the GPU's implementation of each recurrent operator of ATen, by name and overload."""
    layers = {f"{name}.input": partial(_layers, mode) for name, mode in CUDNN_RNN_MODES.items()}
    packed = {f"{name}.data": partial(_packed_layers, mode) for name, mode in CUDNN_RNN_MODES.items()}
    cells = {f"{name}_cell": partial(_cell, f"_thnn_fused_{name}_cell") for name in ("lstm", "gru")}
    return {**layers, **packed, **cells}


class _RecurrentSettings(NamedTuple):
    """The last arguments of a recurrent layer in ATen; for packed sequences ``batch_first`` is missing."""

    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool = False


def _layers(
    mode: int, values: "Tensor", hx: Any, params: "list[Tensor]", *settings: Any, sizes: tuple[int, ...] = ()
) -> tuple[object, ...]:
    """Run all layers of a recurrent network in one call; ``sizes``: sequences at each step of a packed batch."""
    import torch

    has_biases, layers, dropout, train, bidirectional, batch_first = _RecurrentSettings(*settings)
    states = list(hx) if isinstance(hx, list | tuple) else [hx]
    if torch.is_autocast_enabled("cpu"):
        half = torch.get_autocast_dtype("cpu")
        values, states, params = values.to(half), [state.to(half) for state in states], [p.to(half) for p in params]
    weights = 2 + 2 * has_biases  # per layer and direction, without a projection
    projected = len(params) // layers // (1 + bidirectional) > weights
    is_lstm = mode == CUDNN_RNN_MODES["lstm"]
    operands = values, params, weights + projected, values.new_empty(0), states[0], states[1] if is_lstm else None
    widths = params[1].shape[0] // (1, 1, 4, 3)[mode], params[1].shape[1] if projected else 0  # hidden, projected
    options = layers, batch_first, dropout, train, bidirectional, list(sizes), None
    result = torch.ops.aten._cudnn_rnn(*operands, mode, *widths, *options)
    return result[:3] if is_lstm else result[:2]


def _packed_layers(
    mode: int, data: "Tensor", batch_sizes: "Tensor", hx: Any, params: "list[Tensor]", *settings: Any
) -> tuple[object, ...]:
    """Run all layers on packed sequences; without values their lengths are unknown, so all count as equal."""
    steps = batch_sizes.shape[0]
    return _layers(mode, data, hx, params, *settings, sizes=(-(-data.shape[0] // steps),) * steps)


def _cell(fused: str, values: "Tensor", hx: Any, w_ih: "Tensor", w_hh: "Tensor", *biases: Any) -> object:
    """Run an LSTM cell, with its states in a list, or a GRU cell: two products and one kernel for the rest."""
    import torch

    states = hx if isinstance(hx, list | tuple) else [hx]
    gates = values @ w_ih.t(), states[0] @ w_hh.t()
    results = getattr(torch.ops.aten, fused)(*gates, states[-1].to(gates[0].dtype), *biases)
    return results[: len(states)] if states is hx else results[0]


def without_memory(fake: "FakeTensorMode", module: "Module", inputs: Any) -> "tuple[Module, Any]":
    """Return copies of a module and its inputs without memory.

    Packed weights (``Params4bit`` of bitsandbytes) copy themselves, so that the copy has no device. They are replaced,
    and their scales become a buffer of the module, which counts in its memory.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeCopyMode
    from torch.utils._pytree import tree_leaves

    refuse({"nested": any(isinstance(each, torch.Tensor) and each.is_nested for each in tree_leaves(inputs))})
    # Tensors that are neither weights nor buffers keep their values, because modules read sizes from them.
    attributes = [each for part in module.modules() for each in vars(part).values() if isinstance(each, torch.Tensor)]
    memo = {id(each): each.detach().clone() for each in attributes}
    with FakeCopyMode(fake):
        copied, inputs = copy.deepcopy((module, inputs), memo)
    for source, part in zip(module.modules(), copied.modules(), strict=True):
        for name, weight in list(source._parameters.items()):
            state = getattr(part._parameters[name], "quant_state", None)
            if weight is None or state is None:
                continue
            with fake:
                packed: Any = torch.nn.Parameter(torch.empty_like(weight, device=weight.device), requires_grad=False)
            packed.quant_state = state
            part._parameters[name] = packed
            part.register_buffer(f"{name}_scales", state.absmax)
    return copied, inputs


def on_cpu(module: "Module", inputs: Any) -> Any:
    """Move a copy without memory to the CPU's tensors, in place, and return its inputs there.

    Only these run the operators of `dispatched_as_on_gpu`. A meta tensor runs no autocast.
    """
    import torch
    from torch.utils._pytree import tree_map_only

    moved: dict[int, torch.Tensor] = {}  # by the identity of a tensor: tied weights stay tied

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu" or hasattr(tensor, "quant_state"):
            return tensor
        if id(tensor) not in moved:
            copied = torch.empty_like(tensor, device="cpu", requires_grad=tensor.requires_grad)
            is_weight = isinstance(tensor, torch.nn.Parameter)
            moved[id(tensor)] = torch.nn.Parameter(copied, tensor.requires_grad) if is_weight else copied
        return moved[id(tensor)]

    for part in module.modules():
        for values in (part._parameters, part._buffers, vars(part)):
            values.update({name: move(value) for name, value in values.items() if isinstance(value, torch.Tensor)})
    return tree_map_only(torch.Tensor, move, inputs)


def stored_values(weight: Any) -> int:
    """Return the number of values of a weight; packed weights have several in an element."""
    state = getattr(weight, "quant_state", None)
    return weight.numel() if state is None else state.shape.numel()
