"""A tensor n × c × h × w that is walked over element by element: what pointwise and reducing operators share."""

from dataclasses import dataclass
from typing import ClassVar

from ..elementwise import Number
from ..operators.operator import Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Image(Operator):
    """A tensor n × c × h × w; the class's FLOPs and accesses are per element.

    Traffic: ``ACCESSES`` tensors read or written once each; what a reduction reads again, masks and per-channel values
    are left to a fitted correction. A matrix of rows × columns has n rows and c columns.
    """

    FLOPS: ClassVar[int] = 0
    ACCESSES: ClassVar[int] = 2

    n: int
    c: int = 1
    h: int = 1
    w: int = 1

    @property
    def elements(self) -> Number:
        """n·c·h·w."""
        return self.n * self.c * self.h * self.w

    @property
    def flops(self) -> Number:
        """Elements × FLOPs per element."""
        return self.FLOPS * self.elements

    @property
    def dram_bytes(self) -> Number:
        """Elements × accesses × itemsize."""
        return self.ACCESSES * self.itemsize * self.elements
