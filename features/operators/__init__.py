"""Operators other than convolutions: sizes, FLOPs, DRAM bytes, blocks and roofline time, for numbers and arrays alike.

`OPERATORS` maps a kind to its class; `operator` makes one by name; `stand_ins` names measured kinds for others.
Kinds and sizes that the project measures itself (`surrogate.collect.operators`) carry the same names.
"""

from dataclasses import replace
from typing import Any

from ..errors import InputError, require_known
from ..operators.attention import Attention, Mla
from ..operators.embedding import EmbeddingBag, EmbeddingBagBackward, EmbeddingBagBackwardAdagrad
from ..operators.embedding_traffic import MemoryRates, adagrad_us, forward_us, hit_rate, refined_forward_us, sgd_us
from ..operators.gemm import Addmm, Bmm, Gemm, Linear
from ..operators.moe import Moe
from ..operators.operator import Operator
from ..operators.pointwise import POINTWISE_CLASSES, Concat, Pointwise
from ..operators.pool import AvgPool, AvgPoolBackward, MaxPool, MaxPoolBackward
from ..operators.rowwise import (
    ROWWISE_CLASSES,
    BatchNorm,
    BatchNormBackward,
    BatchNormInference,
    BiasBackward,
    LayerNorm,
    Quantise,
    Softmax,
    SoftmaxBackward,
)
from ..operators.transfer import AllGather, AllReduce, AllToAll, Collective, CollectiveLaw, Memcpy, ReduceScatter

OPERATORS: dict[str, type[Operator]] = {
    **{
        cls.kind: cls
        for cls in (
            Gemm, Bmm, Addmm, Linear, EmbeddingBag, EmbeddingBagBackward, EmbeddingBagBackwardAdagrad,
            *ROWWISE_CLASSES.values(), Quantise, MaxPool, MaxPoolBackward, AvgPool, AvgPoolBackward, Concat, Memcpy,
            AllReduce, AllToAll, AllGather, ReduceScatter, Attention, Mla, Moe,
        )
    },
    **POINTWISE_CLASSES,
}  # fmt: skip
"""Kind → class of every operator."""


def operator_class(kind: str) -> type[Operator]:
    """The class of that kind. Raises `InputError` with the nearest kinds."""
    require_known("operator", kind, OPERATORS)
    return OPERATORS[kind]


def operator(kind: str, **sizes: Any) -> Operator:
    """An operator by kind and named sizes, as in ``operator("softmax", n=32, c=1000)``.

    Raises `InputError` for an unknown kind, and for missing, unknown or bad sizes.
    """
    cls = operator_class(kind)
    try:
        return cls(**sizes)
    except TypeError:
        raise InputError(
            f"{kind} needs {', '.join(cls.size_names())} (some have defaults) and may take"
            f" {', '.join(cls.setting_names())}; {', '.join(sizes) or 'nothing'} came"
        ) from None


TWO_ACCESSES = "relu"
PRODUCTS = ("gemm", "bmm", "addmm", "linear")
"""Matrix products, which stand in for one another."""
STAND_INS: dict[str, tuple[str, ...]] = {
    "sub": ("add",),
    "div": ("mul", "add"),
    "pow": ("mul", "add"),
    "mul": ("add",),
    "sub_scalar": ("add_scalar", TWO_ACCESSES),
    **dict.fromkeys((
        "leaky_relu", "silu", "hardswish", "exp", "sqrt", "copy", "clipped_relu", "elu", "add_scalar",
        "layout_transform", "bias", "dropout", "dropout_backward",
    ), (TWO_ACCESSES,)),
    "gelu_backward": ("tanh_backward", "relu_backward"),
}  # fmt: skip
"""Kind → kinds that move the same bytes, nearest first."""


def stand_ins(problem: Any) -> tuple[Any, ...]:
    """The problem itself, then those that may stand in for it, nearest first."""
    if not isinstance(problem, Operator):
        return (problem,)
    kinds = STAND_INS.get(problem.kind, ())
    if problem.kind in PRODUCTS:
        order = ("bmm", "gemm") if problem.sizes["batch"] > 1 else ("linear", "gemm", "bmm")
        kinds = tuple(kind for kind in order if kind != problem.kind)
    settings = {**problem.sizes, "dtype": problem.dtype, "math": problem.math}
    likes = (problem, *(OPERATORS[kind](**settings) for kind in kinds))
    return (*likes, *(replace(like, variant="") for like in likes if like.variant))


__all__ = [
    "OPERATORS", "Addmm", "AllGather", "AllReduce", "AllToAll", "Attention", "AvgPool", "AvgPoolBackward",
    "BatchNorm", "BatchNormBackward", "BatchNormInference", "BiasBackward", "Bmm", "Collective", "CollectiveLaw",
    "Concat", "EmbeddingBag", "EmbeddingBagBackward", "EmbeddingBagBackwardAdagrad", "Gemm", "LayerNorm", "Linear",
    "MaxPool", "MaxPoolBackward", "Memcpy", "MemoryRates", "Mla", "Moe", "Operator", "Pointwise", "Quantise",
    "ReduceScatter", "Softmax", "SoftmaxBackward", "adagrad_us", "forward_us", "hit_rate", "operator",
    "operator_class", "refined_forward_us", "sgd_us", "stand_ins",
]  # fmt: skip
