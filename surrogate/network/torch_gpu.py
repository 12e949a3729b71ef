"""Torch on fake tensors of the CPU, calling what a GPU would: any build of torch runs it, also under autograd.

Attention and dropout are the fused kernels there, and autocast casts by CUDA's lists, which are longer than the CPU's.
Source: PyTorch, `torch.amp`, "CUDA Op-Specific Behavior"; `native_functions.yaml` for the fused kernels.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from surrogate.features.errors import InputError
from surrogate.features.problem import setting
from surrogate.network.call import TABLE
from surrogate.network.torch_recurrent import overrides as recurrent_overrides

if TYPE_CHECKING:
    from torch import Tensor

FLASH_WIDTH = 256
"""Most values of a head in the flash kernel."""


@contextmanager
def gpu_calls(amp: str | None = None) -> Iterator[None]:
    """While it lasts, torch dispatches as on a GPU, under autocast to ``amp``, one of `HALF` or None for none.

    The overrides are the whole process's until the end of the block.
    """
    import torch
    from torch.library import _scoped_library

    kinds = {"fp16": torch.float16, "bf16": torch.bfloat16}
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with _scoped_library("aten", "IMPL") as library, cuda_autocast():
        fused_kernels = {"scaled_dot_product_attention": _attention, "dropout": _dropout, **recurrent_overrides()}
        for name, fused in fused_kernels.items():
            for key in ("CPU", "AutogradCPU"):
                library.impl(name, fused, key)
        for way, cast in (("arguments", _of_fp32), ("results", _to_fp32)):
            for name in TABLE["autocast"][way]:
                base, _, overload = name.partition(".")
                op = getattr(getattr(torch.ops.aten, base), overload or "default")
                library.impl(name, partial(cast, op), "AutocastCPU")
        torch.backends.mha.set_fastpath_enabled(False)  # one call that hides a whole block's kernels
        try:
            with torch.autocast("cpu", dtype=kinds.get(amp or ""), enabled=amp is not None):
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)


@contextmanager
def cuda_autocast() -> Iterator[None]:
    """While it lasts, new ``torch.autocast("cuda")`` blocks are the CPU's, whose tensors stand for a GPU's; without
    CUDA torch turns them off."""
    import torch

    begin = torch.autocast.__init__

    def on_cpu(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        begin(self, device_type, dtype, *args, **kwargs)

    torch.autocast.__init__ = on_cpu
    try:
        yield
    finally:
        torch.autocast.__init__ = begin


def autocast_around() -> str | None:
    """The type of the autocast block that the caller stands in, None for none.

    Raises `InputError` for one that is off, as CUDA's is where torch finds no CUDA.
    """
    import torch

    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return setting("dtype", torch.get_autocast_dtype(device))
    torch.autocast_increment_nesting()
    if torch.autocast_decrement_nesting():
        raise InputError(
            "the autocast block around it is off, as CUDA's is without CUDA; leave it, and give --amp bf16"
        )
    return None


def in_tf32() -> tuple[str, ...]:
    """Which of ``products`` and ``convolutions`` torch's settings let run in TF32 now."""
    import torch

    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(products, "fp32_precision"):  # torch 2.9 and later, which may refuse to say allow_tf32
        allowed = [part.fp32_precision == "tf32" for part in (products, cudnn.conv)]
    else:
        allowed = [part.allow_tf32 for part in (products, cudnn)]
    return tuple(name for name, value in zip(("products", "convolutions"), allowed, strict=True) if value)


def _of_fp32(op: Callable[..., object], *args: object, **kwargs: object) -> object:
    """``op`` of its arguments cast to fp32."""
    import torch

    def cast(value: Any) -> object:
        return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    with torch.autocast("cpu", enabled=False):
        return op(*map(cast, args), **{name: cast(value) for name, value in kwargs.items()})


def _to_fp32(op: Callable[..., object], values: "Tensor", *args: object, **kwargs: object) -> object:
    """``op`` of what half-precision ``values`` are, in one kernel that gives fp32."""
    import torch

    aten = torch.ops.aten
    halves = values.dtype in (torch.float16, torch.bfloat16)
    at_once: dict[object, Callable[..., object]] = {
        aten.softmax.int: aten._softmax,
        aten.log_softmax.int: aten._log_softmax,
    }
    with torch.autocast("cpu", enabled=False):
        if not halves or kwargs.get("dtype") is not None:
            return op(values, *args, **kwargs)
        if op in at_once:
            return at_once[op](values, args[0], True)
        return op(values, *args, **kwargs, dtype=torch.float32)


def _attention(
    query: "Tensor",
    key: "Tensor",
    value: "Tensor",
    attn_mask: "Tensor | None" = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> "Tensor":
    """Flash attention of half precision without a mask, else the memory-efficient kernel.

    As torch does, those whose shape neither takes go by their products and a softmax.
    """
    import torch

    aten = torch.ops.aten
    if enable_gqa:
        groups = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    halves = query.dtype in (torch.float16, torch.bfloat16)
    if query.dim() != 4 or query.size(-1) % 4 or not (halves or query.dtype == torch.float32):
        return aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale
        )[0]
    if halves and attn_mask is None and query.size(-1) == value.size(-1) <= FLASH_WIDTH and query.size(-1) % 8 == 0:
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    trained = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    mask: Any = attn_mask
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, float("-inf"))
        mask = mask.to(query.dtype).expand(query.size(0), query.size(1), query.size(2), key.size(2))
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, trained, dropout_p, is_causal, scale=scale
    )[0]


def _dropout(values: "Tensor", p: float, train: bool) -> "Tensor":
    """One kernel that draws, drops and keeps the mask."""
    import torch

    return torch.ops.aten.native_dropout(values, p, True)[0] if train and p else values
