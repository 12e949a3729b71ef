"""Which measured kind of problem stands in for one that was not: it moves the same bytes with the same kind of kernel."""

from dataclasses import replace
from typing import Any

from .operator import Operator

TWO_ACCESSES = "relu"
PRODUCTS = ("gemm", "bmm", "addmm", "linear")
"""Matrix products, which stand in for one another."""
STAND_INS: dict[str, tuple[str, ...]] = {
    "sub": ("add",),
    "div": ("mul", "add"),
    "pow": ("mul", "add"),
    "mul": ("add",),
    "sub_scalar": ("add_scalar", TWO_ACCESSES),
    **dict.fromkeys(
        ("leaky_relu", "silu", "hardswish", "exp", "sqrt", "copy", "clipped_relu", "elu", "add_scalar"),
        (TWO_ACCESSES,),
    ),
    "gelu_backward": ("tanh_backward", "relu_backward"),
}
"""Kind → kinds that move the same bytes, nearest first."""


def stand_ins(problem: Any) -> tuple[Any, ...]:
    """The problem itself, then those that may stand in for it, nearest first."""
    if not isinstance(problem, Operator):
        return (problem,)
    from . import OPERATORS

    kinds = STAND_INS.get(problem.kind, ())
    if problem.kind in PRODUCTS:
        order = ("bmm", "gemm") if problem.sizes["batch"] > 1 else ("linear", "gemm", "bmm")
        kinds = tuple(kind for kind in order if kind != problem.kind)
    settings = {**problem.sizes, "dtype": problem.dtype, "math": problem.math}
    likes = (problem, *(OPERATORS[kind](**settings) for kind in kinds))
    return (*likes, *(replace(like, variant="") for like in likes if like.variant))
