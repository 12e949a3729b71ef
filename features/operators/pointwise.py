"""Operators that touch every element once: activations, sums, products, bias, dropout, copies, layout transforms."""

from dataclasses import dataclass
from typing import ClassVar

from ..elementwise import Number, ceil_div
from ..gpu import Gpu
from ..operators.operator import Image, Operator

ELEMENTS_PER_BLOCK = 512
"""128 threads of 4 elements each: PyTorch's vectorized_elementwise_kernel."""

POINTWISE: dict[str, tuple[int, int, str]] = {
    "relu": (1, 2, "max(x, 0)"),
    "clipped_relu": (2, 2, "min(max(x, 0), ceiling)"),
    "leaky_relu": (2, 2, "x, or slope·x where x < 0"),
    "elu": (3, 2, "x, or α·(eˣ − 1) where x < 0"),
    "sigmoid": (4, 2, "1 / (1 + e⁻ˣ)"),
    "silu": (5, 2, "x·sigmoid(x)"),
    "hardswish": (4, 2, "x·clip(x + 3, 0, 6)/6"),
    "gelu": (175, 2, "x·Φ(x)"),
    "tanh": (180, 2, "hyperbolic tangent"),
    "exp": (2, 2, "eˣ"),
    "sqrt": (1, 2, "square root"),
    "add": (1, 3, "x + y"),
    "sub": (1, 3, "x − y"),
    "mul": (1, 3, "x·y"),
    "div": (1, 3, "x / y"),
    "pow": (2, 3, "x to the power of y"),
    "add_scalar": (1, 2, "x + number"),
    "sub_scalar": (1, 2, "x − number"),
    "mul_scalar": (1, 2, "x·number"),
    "div_scalar": (1, 2, "x / number"),
    "pow_scalar": (1, 2, "x to the power of a number"),
    "bias": (1, 2, "x plus one value per channel"),
    "dropout": (2, 2, "x, or 0 by a random mask, scaled"),
    "dropout_backward": (2, 2, "the gradient where the mask is 1, scaled"),
    "relu_backward": (1, 3, "the gradient where x > 0"),
    "clipped_relu_backward": (1, 3, "the gradient where 0 < x < ceiling"),
    "elu_backward": (3, 3, "gradient of elu"),
    "sigmoid_backward": (3, 3, "gradient of sigmoid"),
    "tanh_backward": (3, 3, "gradient of tanh"),
    "gelu_backward": (180, 3, "gradient of gelu"),
    "copy": (0, 2, "y = x in device memory"),
    "fill": (0, 1, "y = number"),
    "layout_transform": (0, 2, "NCHW to NHWC, or back"),
}
"""Kind → (FLOPs per element, tensors read or written, meaning). relu, add, mul, sigmoid, gelu, tanh: Lin et al. (HiPC
2022); the others count operations of the formula, a transcendental function as 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointwise(Image):
    """An operator that does not care for the shape may put all its elements into ``n``."""

    @property
    def blocks(self) -> Number:
        """512 elements a block."""
        return ceil_div(self.elements, ELEMENTS_PER_BLOCK)


def _made(kind: str, flops: int, accesses: int, meaning: str) -> type[Pointwise]:
    """The class of one kind of the table."""
    name = "".join(word.capitalize() for word in kind.split("_"))
    members = {"__slots__": (), "__doc__": f"{kind}: {meaning}.", "__module__": __name__}
    members |= {"kind": kind, "FLOPS": flops, "ACCESSES": accesses}
    return type(name, (Pointwise,), members)


POINTWISE_CLASSES: dict[str, type[Pointwise]] = {kind: _made(kind, *row) for kind, row in POINTWISE.items()}
"""Kind → class, one for every kind of `POINTWISE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Concat(Operator):
    """Several tensors laid into one: ``elements`` in all."""

    kind: ClassVar[str] = "concat"
    BATCH: ClassVar[str] = ""
    DRAM_SHARE: ClassVar[float] = 0.79
    """Share of the DRAM bandwidth that it reaches. Source: Lin et al. (HiPC 2022)."""

    elements: int

    @property
    def flops(self) -> Number:
        """None."""
        return 0 * self.elements

    @property
    def dram_bytes(self) -> Number:
        """Each element is read and written."""
        return 2 * self.itemsize * self.elements

    @property
    def blocks(self) -> Number:
        """512 elements a block."""
        return ceil_div(self.elements, ELEMENTS_PER_BLOCK)

    def roofline_us(self, gpu: Gpu) -> Number:
        """2·elements·itemsize / (0.79·DRAM bandwidth)."""
        return self.dram_bytes / (self.DRAM_SHARE * gpu.dram_gbs * 1e3)
