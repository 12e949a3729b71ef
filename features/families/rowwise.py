"""The families of operators on images: pointwise ones (activations, sums, copies) touch every element once, and rowwise
ones reduce along rows or channels (softmax, norms, a bias's gradient), or quantise."""

from dataclasses import dataclass
from typing import ClassVar

from ..elementwise import Number, ceil_div, maximum, where
from ..errors import read_table
from ..gpu import Gpu
from ..problem import STREAMED
from .operator import ELEMENTS_PER_BLOCK, Image, image_classes, register_operator
from .operator_family import memory_family

CHEAP_FLOPS = 5
"""Operations per element up to which an operator is a pass over memory on every GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointwise(Image):
    """An operator that does not care for the shape may put all its elements into ``n``."""

    FAMILY: ClassVar[str] = "pointwise"
    MAX_TRAFFIC: ClassVar[float] = 1.25
    BANDWIDTH: ClassVar[str] = "streaming"
    GRADIENT: ClassVar[tuple[str, ...]] = (STREAMED,)

    @classmethod
    def is_streaming(cls) -> bool:
        """Where the operations are few: the counted ones of gelu and tanh would blur the slope over bytes."""
        return cls.FLOPS <= CHEAP_FLOPS

    @property
    def blocks(self) -> Number:
        """512 elements a block."""
        return ceil_div(self.elements, ELEMENTS_PER_BLOCK)


_POINTWISE = read_table("families/pointwise.toml")
POINTWISE_CLASSES: dict[str, type[Pointwise]] = image_classes(Pointwise, _POINTWISE)
"""Kind → class, one for every kind of the table."""
POINTWISE = memory_family("pointwise")


LATENCY_US = 0.6
"""From a load's request to its values, from DRAM on a busy GPU: 0.5 to 0.8 µs in microbenchmarks of Volta to Hopper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction(Image):
    """One thread block per reduced row."""

    FAMILY: ClassVar[str] = "rowwise"
    MAX_TRAFFIC: ClassVar[float] = 1.15

    @property
    def rows(self) -> Number:
        """Independent reductions: over c, one at every n, h and w."""
        return self.n * self.h * self.w

    @property
    def blocks(self) -> Number:
        """One per row."""
        return self.rows

    def traffic_us(self, gpu: Gpu) -> Number:
        """Time of its traffic in µs: rows of a tensor larger than L2 are read again from DRAM in each pass."""
        again = max(self.SERIAL[0] + 1, self.ACCESSES) / self.ACCESSES if self.SERIAL else 1.0
        return self.roofline_us(gpu) * where(self.itemsize * self.elements > gpu.l2_bytes, again, 1.0)

    def serial_us(self, gpu: Gpu) -> Number:
        """A long row takes its block's loads one after another, however few the rows; many short ones their start."""
        if not self.SERIAL:
            return 0.0
        passes, in_flight, rows_per_us = self.SERIAL
        row_bytes = self.itemsize * self.elements / self.rows
        row_us = passes * row_bytes * LATENCY_US / in_flight
        return maximum(row_us, self.rows / (rows_per_us * gpu.sms)) if rows_per_us else row_us


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelReduction(Reduction):
    """One reduction per channel, over n, h and w."""

    @property
    def rows(self) -> Number:
        """Channels."""
        return self.c


@register_operator("quantise:n2c3", flops=12, dram_bytes=18, blocks=2)
class Quantise(Reduction):
    """n rows of c values times one static scale, rounded to fp8: each is read once, and one byte written for it."""

    FAMILY: ClassVar[str] = "quantise"
    FLOPS: ClassVar[int] = 2

    dtype: str = "bf16"
    math: str = "default"

    @property
    def dram_bytes(self) -> Number:
        """Elements × (itemsize + 1)."""
        return (self.itemsize + 1) * self.elements


_ROWWISE = read_table("families/rowwise.toml")
_ROWS: dict[str, type[Reduction]] = image_classes(Reduction, _ROWWISE["rows"])
_CHANNELS: dict[str, type[Reduction]] = image_classes(ChannelReduction, _ROWWISE["channels"])
Softmax = _ROWS["softmax"]
LayerNorm = _ROWS["layer_norm"]
GroupNorm = _ROWS["group_norm"]
BatchNormInference = _CHANNELS["batch_norm_inference"]
BiasBackward = _CHANNELS["bias_backward"]

ROWWISE = memory_family("rowwise")
QUANTISE = memory_family("quantise")
