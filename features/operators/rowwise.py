"""Operators that reduce along rows or channels: softmax, layer norm, batch norm, the gradient of a bias."""

from dataclasses import dataclass
from typing import ClassVar

from ..elementwise import Number
from ..operators.operator import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction(Image):
    """One thread block per reduced row."""

    @property
    def rows(self) -> Number:
        """Independent reductions: over c, one at every n, h and w."""
        return self.n * self.h * self.w

    @property
    def blocks(self) -> Number:
        """One per row."""
        return self.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax(Reduction):
    """Softmax over c, at every n, h and w. 174 FLOPs and 2 accesses per element: Lin et al. (HiPC 2022)."""

    kind: ClassVar[str] = "softmax"
    FLOPS: ClassVar[int] = 174


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxBackward(Reduction):
    """y·(dy − Σ y·dy) over c: 2 tensors in, 1 out."""

    kind: ClassVar[str] = "softmax_backward"
    FLOPS: ClassVar[int] = 4
    ACCESSES: ClassVar[int] = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorm(Reduction):
    """Mean 0 and variance 1 over c, then scale and shift: 8 FLOPs per element (mean 1, variance 3, the rest 4)."""

    kind: ClassVar[str] = "layer_norm"
    FLOPS: ClassVar[int] = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantise(Reduction):
    """n rows of c values times one static scale, rounded to fp8: each is read once, and one byte written for it."""

    kind: ClassVar[str] = "quantise"
    FLOPS: ClassVar[int] = 2

    dtype: str = "bf16"
    math: str = "default"

    @property
    def dram_bytes(self) -> Number:
        """Elements × (itemsize + 1)."""
        return (self.itemsize + 1) * self.elements


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNorm(Reduction):
    """Training's forward pass: mean and variance of every channel, then scale and shift. 8 FLOPs per element.

    Two passes read x twice where a channel does not fit on chip: 3 accesses.
    """

    kind: ClassVar[str] = "batch_norm"
    FLOPS: ClassVar[int] = 8
    ACCESSES: ClassVar[int] = 3

    @property
    def rows(self) -> Number:
        """Channels."""
        return self.c


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNormInference(BatchNorm):
    """Scale and shift by stored statistics: one multiply-add per element, 2 accesses."""

    kind: ClassVar[str] = "batch_norm_inference"
    FLOPS: ClassVar[int] = 2
    ACCESSES: ClassVar[int] = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNormBackward(BatchNorm):
    """Two sums per channel over x and dy, then dx from both: 5 accesses, 11 FLOPs per element."""

    kind: ClassVar[str] = "batch_norm_backward"
    FLOPS: ClassVar[int] = 11
    ACCESSES: ClassVar[int] = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BiasBackward(BatchNorm):
    """The sum of the gradient (n × c × h × w) over all but the channels: 1 FLOP and 1 access per element."""

    kind: ClassVar[str] = "bias_backward"
    FLOPS: ClassVar[int] = 1
    ACCESSES: ClassVar[int] = 1
