"""Operators that touch every element once: activations, sums, products, bias, dropout, copies, layout transforms."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..elementwise import Number, ceil_div
from ..gpu import Gpu
from ..operators.operator import Image, Operator, image_class

ELEMENTS_PER_BLOCK = 512
"""128 threads of 4 elements each: PyTorch's vectorized_elementwise_kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointwise(Image):
    """An operator that does not care for the shape may put all its elements into ``n``."""

    @property
    def blocks(self) -> Number:
        """512 elements a block."""
        return ceil_div(self.elements, ELEMENTS_PER_BLOCK)


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
POINTWISE_CLASSES: dict[str, type[Pointwise]] = {
    kind: image_class(Pointwise, kind, *row) for kind, row in _TABLE.items()
}
"""Kind → class, one for every kind of the table."""


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
