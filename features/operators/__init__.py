"""Operators other than convolutions: sizes, FLOPs, DRAM bytes, blocks and roofline time, for numbers and arrays alike.

`OPERATORS` maps a kind to its class; `operator` makes one by name. Kinds and sizes that the project measures itself
(`surrogate.collect.operators`) carry the same names.
"""

from typing import Any

from ..errors import InputError, nearest
from ..operators.embedding import EmbeddingBag, EmbeddingBagBackward, EmbeddingBagBackwardAdagrad
from ..operators.embedding_traffic import (
    adagrad_us,
    forward_us,
    hit_rate,
    refined_forward_us,
    sgd_us,
)
from ..operators.gemm import Addmm, Bmm, Gemm, Linear
from ..operators.memory_rates import MemoryRates
from ..operators.operator import Operator
from ..operators.pointwise import POINTWISE_CLASSES, Concat, Pointwise
from ..operators.pool import AvgPool, AvgPoolBackward, MaxPool, MaxPoolBackward
from ..operators.rowwise import (
    BatchNorm,
    BatchNormBackward,
    BatchNormInference,
    BiasBackward,
    LayerNorm,
    Softmax,
    SoftmaxBackward,
)
from ..operators.transfer import AllReduce, AllToAll, CollectiveLaw, Memcpy

OPERATORS: dict[str, type[Operator]] = {
    **{
        cls.kind: cls
        for cls in (
            Gemm, Bmm, Addmm, Linear, EmbeddingBag, EmbeddingBagBackward, EmbeddingBagBackwardAdagrad,
            Softmax, SoftmaxBackward, LayerNorm, BatchNorm, BatchNormInference, BatchNormBackward, BiasBackward,
            MaxPool, MaxPoolBackward, AvgPool, AvgPoolBackward, Concat, Memcpy, AllReduce, AllToAll,
        )
    },
    **POINTWISE_CLASSES,
}  # fmt: skip
"""Kind → class of every operator."""


def operator_class(kind: str) -> type[Operator]:
    """The class of that kind. Raises `InputError` with the nearest kinds."""
    if kind not in OPERATORS:
        raise InputError(
            f"operator {kind!r} is unknown; known: {', '.join(OPERATORS)}{nearest(kind, OPERATORS)}"
        )
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
            f"{kind} needs {', '.join(cls.size_names())} (some have defaults) and may take dtype, math and variant;"
            f" {', '.join(sizes) or 'nothing'} came"
        ) from None


__all__ = [
    "OPERATORS",
    "Addmm",
    "AllReduce",
    "AllToAll",
    "AvgPool",
    "AvgPoolBackward",
    "BatchNorm",
    "BatchNormBackward",
    "BatchNormInference",
    "BiasBackward",
    "Bmm",
    "CollectiveLaw",
    "Concat",
    "EmbeddingBag",
    "EmbeddingBagBackward",
    "EmbeddingBagBackwardAdagrad",
    "Gemm",
    "LayerNorm",
    "Linear",
    "MaxPool",
    "MaxPoolBackward",
    "Memcpy",
    "MemoryRates",
    "Operator",
    "Pointwise",
    "Softmax",
    "SoftmaxBackward",
    "adagrad_us",
    "forward_us",
    "hit_rate",
    "operator",
    "operator_class",
    "refined_forward_us",
    "sgd_us",
]
