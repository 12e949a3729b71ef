"""Operators that reduce along rows or channels: softmax, layer norm, batch norm, the gradient of a bias."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..elementwise import Number
from ..operators.operator import Image, image_class


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
class ChannelReduction(Reduction):
    """One reduction per channel, over n, h and w."""

    @property
    def rows(self) -> Number:
        """Channels."""
        return self.c


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


_TABLE: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ROWWISE_CLASSES: dict[str, type[Reduction]] = {
    kind: image_class(base, kind, *row)
    for base, rows in ((Reduction, "rows"), (ChannelReduction, "channels"))
    for kind, row in _TABLE[rows].items()
}
"""Kind → class, one for every kind of the table."""
Softmax, SoftmaxBackward, LayerNorm = (ROWWISE_CLASSES[kind] for kind in _TABLE["rows"])
BatchNorm, BatchNormInference, BatchNormBackward, BiasBackward = (ROWWISE_CLASSES[kind] for kind in _TABLE["channels"])
