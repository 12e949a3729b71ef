"""Which measured kind stands in for one that was not: the same traffic and the same kind of kernel."""

from dataclasses import replace

from surrogate.features.operators import Bmm, Gemm, Linear, Operator, operator, operator_class

TWO_ACCESSES = "relu"
LIKE_RELU = ("leaky_relu", "silu", "hardswish", "exp", "sqrt", "copy", "clipped_relu", "elu", "add_scalar")
STAND_INS: dict[str, tuple[str, ...]] = {
    "sub": ("add",),
    "div": ("mul", "add"),
    "pow": ("mul", "add"),
    "mul": ("add",),
    "sub_scalar": ("add_scalar", TWO_ACCESSES),
    **dict.fromkeys(LIKE_RELU, (TWO_ACCESSES,)),
    "gelu_backward": ("tanh_backward", "relu_backward"),
}
"""Kind → kinds that move the same bytes, nearest first. Matrix products: `candidates`."""


def candidates(op: Operator) -> list[Operator]:
    """The operator itself, then those that may stand in for it."""
    found = [op]
    if isinstance(op, Gemm):
        return [*found, *_products(op)]
    settings = {**op.sizes, "dtype": op.dtype, "math": op.math}
    found += [operator_class(kind)(**settings) for kind in STAND_INS.get(op.kind, ())]
    if op.variant:
        found.extend([replace(one, variant="") for one in found])
    return found


def _products(op: Gemm) -> list[Operator]:
    if op.batch > 1:
        kinds: tuple[type[Gemm], ...] = (Bmm, Gemm)
    else:
        kinds = (Linear, Gemm, Bmm)
    settings = {**op.sizes, "dtype": op.dtype, "math": op.math}
    return [operator(cls.kind, **settings) for cls in kinds if cls is not type(op)]
