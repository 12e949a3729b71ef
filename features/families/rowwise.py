"""The families of operators on images, and of quantisation.

Pointwise operators (activations, sums, copies) access every element once. Rowwise operators (softmax, norms, a bias's
gradient) reduce along rows or channels.
"""

from dataclasses import dataclass
from typing import ClassVar

from ..elementwise import Number, ceil_div, maximum, where
from ..errors import read_toml
from ..gpu import Gpu
from ..problem import STREAMED
from .operator import ELEMENTS_PER_BLOCK, Choices, Image, image_classes, register_operator
from .operator_family import memory_family

CHEAP_FLOPS = 5
"""Maximum operations per element of an operator that is a pass over memory on every GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointwise(Image):
    """A pointwise operator. If the shape does not matter, all elements may be in ``n``."""

    FAMILY: ClassVar[str] = "pointwise"
    MAX_TRAFFIC_RATIO: ClassVar[float] = 1.25
    BANDWIDTH_SHARE: ClassVar[str] = "streaming"
    GRADIENT: ClassVar[tuple[str, ...]] = (STREAMED,)

    @classmethod
    def is_streaming(cls) -> bool:
        """Return True for at most `CHEAP_FLOPS` per element. More operations would disturb the fit of time to bytes."""
        return cls.FLOPS <= CHEAP_FLOPS

    @property
    def blocks(self) -> Number:
        """512 elements per block."""
        return ceil_div(self.elements, ELEMENTS_PER_BLOCK)


_POINTWISE = read_toml(__file__, "pointwise.toml")
POINTWISE_CLASSES: dict[str, type[Pointwise]] = image_classes(Pointwise, _POINTWISE)
"""Kind → class, one for every kind of the table."""
POINTWISE = memory_family("pointwise")


LATENCY_US = 0.6
"""Time in µs from a load's request to its values, from DRAM on a busy GPU.

Microbenchmarks of Volta to Hopper give 0.5 to 0.8 µs.
"""


CHANNELS_LAST = "NHWC"
"""Variant of the norms of images whose channels are innermost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction(Image):
    """A reduction with one thread block per reduced row."""

    FAMILY: ClassVar[str] = "rowwise"
    MAX_TRAFFIC_RATIO: ClassVar[float] = 1.15

    @property
    def rows(self) -> Number:
        """Independent reductions: one over c for each n, h and w."""
        return self.n * self.h * self.w

    @property
    def blocks(self) -> Number:
        """One block per row."""
        return self.rows

    def traffic_us(self, gpu: Gpu) -> Number:
        """Return the time of its traffic in µs. If a tensor exceeds L2, each pass reads its rows from DRAM again."""
        repeats = max(self.SERIAL[0] + 1, self.ACCESSES) / self.ACCESSES if self.SERIAL else 1.0
        return self.roofline_us(gpu) * where(self.itemsize * self.elements > gpu.l2_bytes, repeats, 1.0)

    def serial_us(self, gpu: Gpu) -> Number:
        """Return the minimum time in µs of one row, of starting all rows, or of computing all values.

        The block of a row loads its parts one after another, however few rows there are. Many short rows are limited by
        the rate at which an SM starts them, and a gradient by the rate at which an SM computes values.
        """
        if not self.SERIAL:
            return 0.0
        passes, in_flight, rows_per_us, values_per_clock = (*self.SERIAL, 0.0)[:4]
        row_us = passes * self.itemsize * self.elements / self.rows * LATENCY_US / in_flight
        start_us = self.rows / (rows_per_us * gpu.sms) if rows_per_us else 0.0
        values_us = self.elements / (values_per_clock * gpu.sms * gpu.boost_mhz) if values_per_clock else 0.0
        return maximum(maximum(row_us, start_us), values_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelReduction(Reduction):
    """A reduction per channel, over n, h and w."""

    @property
    def rows(self) -> Number:
        """Channels."""
        return self.c

    def serial_us(self, gpu: Gpu) -> Number:
        """Return the minimum time in µs of one channel, whose block loads a value per thread and step.

        Channels-last kernels split a channel over blocks, and keep twice as many values in flight.
        """
        if not self.SERIAL:
            return 0.0
        passes, in_flight = self.SERIAL[:2]
        blocks = 2.0 if self.variant == CHANNELS_LAST else 1.0
        return passes * self.elements / self.rows * LATENCY_US / (in_flight * blocks)


@register_operator("quantise:n2c3", flops=12, dram_bytes=18, blocks=2)
class Quantise(Reduction):
    """n rows of c values, multiplied by one static scale and rounded to fp8. Each value is read; one byte is written
    for it."""

    FAMILY: ClassVar[str] = "quantise"
    CHOICES: ClassVar[Choices] = {**Reduction.CHOICES, "dtype": ("fp32", "fp16", "bf16")}
    FLOPS: ClassVar[int] = 2

    dtype: str = "bf16"
    math: str = "default"

    @property
    def dram_bytes(self) -> Number:
        """Elements × (itemsize + 1)."""
        return (self.itemsize + 1) * self.elements


_ROWWISE = read_toml(__file__)
_ROWS: dict[str, type[Reduction]] = image_classes(Reduction, _ROWWISE["rows"])
_CHANNELS: dict[str, type[Reduction]] = image_classes(ChannelReduction, _ROWWISE["channels"])
Softmax = _ROWS["softmax"]
LayerNorm = _ROWS["layer_norm"]
RmsNorm = _ROWS["rms_norm"]
GroupNorm = _ROWS["group_norm"]
BatchNormInference = _CHANNELS["batch_norm_inference"]
BiasBackward = _CHANNELS["bias_backward"]

ROWWISE = memory_family("rowwise")
QUANTISE = memory_family("quantise")
