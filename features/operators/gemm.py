"""Matrix products: gemm, bmm, and linear and addmm with their bias."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from .. import roofline
from ..elementwise import Number, ceil_div, where
from ..gpu import Gpu
from ..operators.operator import Operator
from ..problem import ELEMENTS, MATHS

TILES = (32, 64, 128)
"""Edges of the output tiles that SGEMM kernels of cuBLAS and cuDNN use (their names tell)."""


def tile_edge(size: Number) -> Number:
    """The smallest edge of `TILES` that covers ``size``; the largest where none does."""
    small, middle, large = TILES
    return where(size <= small, small, where(size <= middle, middle, large))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm(Operator):
    """``batch`` products C (m × n) = A (m × k) · B (k × n).

    ``math`` other than "fma" lets matrix units run (fp32 data: TF32, or AMD's fp32 matrix cores, under "default"). A
    holds activations, B weights: they differ in bytes where values are quantised.
    """

    kind: ClassVar[str] = "gemm"
    BATCH: ClassVar[str] = "batch"
    MULTIPLIES: ClassVar[bool] = True
    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {"dtype": tuple(ELEMENTS), "math": MATHS}

    batch: int = 1
    m: int
    n: int
    k: int

    @classmethod
    def peak_tflops(cls, gpu: Gpu, dtype: str, math: str) -> float:
        """In fp32 what the board sustains, on AMD's matrix units where they may run."""
        peak = roofline.peak_tflops(gpu, dtype, cls.tensor_cores(dtype, math))
        if dtype != "fp32" or (gpu.vendor != "amd" and peak > gpu.fp32_tflops):
            return peak
        matrix = gpu.fp32_matrix_tflops if cls.tensor_cores(dtype, math) else 0.0
        return gpu.sustained_tflops(matrix or gpu.fp32_tflops)

    @property
    def flops(self) -> Number:
        """2·batch·M·N·K."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def dram_bytes(self) -> Number:
        """A, B and C once each: batch·(MK + KN + MN) values. Source: Lin et al. (HiPC 2022)."""
        return self._matrix_bytes()

    def _matrix_bytes(self) -> Number:
        value = self.element
        a, b, c = self.m * self.k, self.k * self.n, self.m * self.n
        return self.batch * (value.activation_bytes * a + value.weight_bytes * b + value.output_bytes * c)

    @property
    def blocks(self) -> Number:
        """One block per output tile, the edges by `tile_edge`."""
        return self.batch * ceil_div(self.m, tile_edge(self.m)) * ceil_div(self.n, tile_edge(self.n))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bmm(Gemm):
    """A batched product without bias (torch.bmm)."""

    kind: ClassVar[str] = "bmm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Addmm(Gemm):
    """A product plus a bias of n values for every row (torch.addmm with a vector)."""

    kind: ClassVar[str] = "addmm"
    BATCH: ClassVar[str] = "m"

    @property
    def flops(self) -> Number:
        """2·batch·M·N·K, and one addition per output."""
        return 2 * self.batch * self.m * self.n * self.k + self.batch * self.m * self.n

    @property
    def dram_bytes(self) -> Number:
        """The three matrices and the bias."""
        return self._matrix_bytes() + self.element.output_bytes * self.batch * self.n


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear(Addmm):
    """A fully connected layer: m rows of k features in, n features out, with bias (torch.nn.Linear)."""

    kind: ClassVar[str] = "linear"
