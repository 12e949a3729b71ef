"""The family of transfers: copies between host and device, copies on the device, and collectives between devices."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from ..elementwise import Number, ceil_div, log2, maximum, where
from ..errors import refusal
from ..gpu import Gpu
from ..problem import INPUT, Gradients, Size
from ..roofline import Machine
from .operator import ELEMENTS_PER_BLOCK, MemoryBound, register_operator
from .operator_family import FamilyDeclaration, memory_columns
from .rowwise import POINTWISE_CLASSES

HANDSHAKE_US = 4.0
"""Minimum time in µs of a collective, because ranks wait for one another.

Source: the shortest all-reduces of SGLang's own kernel in ai-dynamo/aiconfigurator's tables. They take 4.2 to 5.6 µs on
A100, H100 and H200 with 2 to 8 ranks.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveModel:
    """Time of a collective by message size, fitted on a machine. Source: Lin et al. (TPDS 2024).

    With x = log2(bytes): up to ``a`` the time is only the overhead. Above ``c`` the bandwidth is ``max_gbs``. Between
    them the bandwidth is 10^(l / (1 + e^(−k·(x − x0))) + b) GB/s. Raises `InputError` if ``a`` exceeds ``c``, the
    bandwidth is not positive, or the overhead is negative.
    """

    overhead_us: float
    max_gbs: float
    a: float
    c: float
    l: float  # noqa: E741  the paper's symbol
    k: float
    x0: float
    b: float

    def __post_init__(self) -> None:
        if not self.a <= self.c or self.max_gbs <= 0 or self.overhead_us < 0:
            raise refusal("collective", model=self)

    def time_us(self, message_bytes: Number, factor: Number) -> Number:
        """Return the time in µs; ``factor`` is (n − 1)/n for all-to-all and 2(n − 1)/n for all-reduce."""
        x = log2(message_bytes)
        sigmoid_gbs = 10 ** (self.l / (1 + np.exp(-self.k * (x - self.x0))) + self.b)
        middle = message_bytes / sigmoid_gbs * factor / 1e3
        full = message_bytes / self.max_gbs * factor / 1e3 + self.overhead_us
        return where(x <= self.a, self.overhead_us + 0 * middle, where(x > self.c, full, middle))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(MemoryBound):
    """``elements`` values that are moved without a change."""

    FAMILY: ClassVar[str] = "transfer"
    BATCH: ClassVar[str] = ""

    elements: Annotated[int, Size("values in all")]

    @property
    def flops(self) -> Number:
        """0: nothing is computed."""
        return 0 * self.elements


@register_operator("memcpy:elements1000", flops=0, dram_bytes=4000, blocks=0)
class Memcpy(Transfer):
    """``elements`` values between host and device over PCIe; ``direction`` host_to_device or device_to_host."""

    CROSSES_LINKS: ClassVar[bool] = True

    @property
    def dram_bytes(self) -> Number:
        """Bytes that cross PCIe: the device reads or writes each once."""
        return self.itemsize * self.elements

    @property
    def blocks(self) -> Number:
        """0: a copy engine moves the bytes."""
        return 0 * self.elements

    def roofline_us(self, gpu: Gpu) -> Number:
        """Return bytes / PCIe bandwidth, in µs."""
        return self.dram_bytes / (gpu.pcie_gbs * 1e3)


@register_operator("concat:elements1000", flops=0, dram_bytes=8000, blocks=2)
class Concat(Transfer):
    """Several tensors, copied into one of ``elements`` values."""

    BANDWIDTH_SHARE: ClassVar[str] = "streaming"
    DRAM_SHARE: ClassVar[float] = 0.79
    """Share of the DRAM bandwidth that it reaches. Source: Lin et al. (HiPC 2022)."""

    @property
    def dram_bytes(self) -> Number:
        """Bytes of all elements, each read and written."""
        return 2 * self.itemsize * self.elements

    @property
    def blocks(self) -> Number:
        """512 elements per block."""
        return ceil_div(self.elements, ELEMENTS_PER_BLOCK)

    def roofline_us(self, gpu: Gpu) -> Number:
        """Return 2·elements·itemsize / (0.79·DRAM bandwidth), in µs."""
        return self.dram_bytes / (self.DRAM_SHARE * gpu.dram_gbs * 1e3)

    def gradients(self, of: str) -> Gradients:
        """Return one copy of all elements: each input's gradient is a part of the result's gradient."""
        return (("backward", POINTWISE_CLASSES["copy"](n=self.elements, dtype=self.dtype)),) if of == INPUT else ()


@register_operator("all_reduce:elements1000ranks4", flops=750, dram_bytes=4000, blocks=0)
class AllReduce(Memcpy):
    """The sum of ``elements`` values over ``ranks`` devices, on all of them. A ring moves 2(n − 1)/n of the bytes."""

    MIN_SHARE: ClassVar[float] = 0.5
    """Switches that add halve the bytes on a link; the fastest of H100's take 0.56 of the ring's time."""
    STEPS: ClassVar[int] = 2
    ADDS: ClassVar[int] = 1

    ranks: Annotated[int, Size("devices that take part")] = 2

    @property
    def factor(self) -> Number:
        """Share of the message that crosses a device's link."""
        return self.STEPS * (self.ranks - 1) / self.ranks

    @property
    def flops(self) -> Number:
        """(n − 1)/n additions per element and device."""
        return self.ADDS * self.elements * (self.ranks - 1) / self.ranks

    def roofline_us(self, gpu: Gpu) -> Number:
        """Return `HANDSHAKE_US` plus the time in µs of the bytes on the links to other GPUs, or on PCIe if there are no
        links.

        `CollectiveModel` is more accurate for a machine with fitted constants.
        """
        return HANDSHAKE_US + self.factor * self.dram_bytes / (gpu.exchange_gbs(self.ranks) * 1e3)


@register_operator("all_to_all:elements1000ranks4", flops=0, dram_bytes=4000, blocks=0)
class AllToAll(AllReduce):
    """Every device sends each other device its share of ``elements``: (n − 1)/n of the bytes cross."""

    STEPS: ClassVar[int] = 1
    ADDS: ClassVar[int] = 0


@register_operator("all_gather:elements1000ranks4", flops=0, dram_bytes=4000, blocks=0)
class AllGather(AllToAll):
    """Every device holds a share of the ``elements`` values and gets all of them: (n − 1)/n of the bytes cross."""


@register_operator("reduce_scatter:elements1000ranks4", flops=750, dram_bytes=4000, blocks=0)
class ReduceScatter(AllReduce):
    """Every device gets its share of the sum of ``elements`` values. A ring moves (n − 1)/n of the bytes."""

    STEPS: ClassVar[int] = 1


Collective = AllReduce
"""The base of all collectives: the sizes ``elements`` and ``ranks``, and the `factor` of the bytes on a link."""


def columns(op: Transfer, m: Machine) -> tuple[Number, ...]:
    """Return the columns of a pass over memory, and the ranks."""
    return *memory_columns(op, m), log2(maximum(op.extents.ranks, 1))


TRANSFER = FamilyDeclaration.of("transfer", columns)
