"""The family of matrix products: gemm, bmm, and linear and addmm with their bias."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from .. import roofline
from ..elementwise import Number, ceil_div, log2, where
from ..gpu import Gpu
from ..problem import ELEMENTS, INPUT, MATHS, Gradients, Size
from ..roofline import Machine, mechanism_b_max
from .operator import Choices, Operator, register_operator
from .operator_family import FamilyDeclaration
from .rowwise import BiasBackward

TILES = (32, 64, 128)
"""Edges of the output tiles of SGEMM kernels in cuBLAS and cuDNN, from the kernels' names."""

ROW_BYTES = 16
"""Tensor-core kernels load rows that begin at multiples of this many bytes. Source: CUTLASS, functionality tables."""
LOADS_PER_CLOCK = 32
"""Values that one SM loads in a clock if rows are not aligned, one by each load unit (NVIDIA's white paper of A100)."""


def tile_edge(size: Number) -> Number:
    """Return the smallest edge of `TILES` that covers ``size``, or the largest edge."""
    small, middle, large = TILES
    return where(size <= small, small, where(size <= middle, middle, large))


@register_operator("gemm:m2n3k4", flops=48, dram_bytes=104, blocks=1)
class Gemm(Operator):
    """``batch`` products C (m × n) = A (m × k) · B (k × n).

    ``math`` other than "fma" allows matrix units (fp32 data: TF32, or AMD's fp32 matrix cores, under "default"). A
    holds activations and B holds weights; they differ in bytes if values are quantised.
    """

    FAMILY: ClassVar[str] = "gemm"
    BATCH: ClassVar[str] = "batch"
    BATCHES: ClassVar[tuple[str, ...]] = ("batch", "m", "k", "n")  # in the weight's gradient the batch is k
    MULTIPLIES: ClassVar[bool] = True
    DETERMINISTIC: ClassVar[Mapping[str, bool]] = {"cublas": True}  # cuBLAS documentation, "Results reproducibility"
    CHOICES: ClassVar[Choices] = {"dtype": tuple(ELEMENTS), "math": MATHS}

    batch: Annotated[int, Size("independent products, or samples")] = 1
    m: Annotated[int, Size("rows of the result")]
    n: Annotated[int, Size("columns of the result")]
    k: Annotated[int, Size("length of the sums")]

    @classmethod
    def peak_tflops(cls, gpu: Gpu, dtype: str, math: str) -> float:
        """Return the peak in TFLOP/s that measured products approach.

        In fp32 without TF32 it is the board's sustained rate; AMD's matrix units give this rate if ``math`` allows
        them. In int8 it is at most fp16's matrix peak: cuBLAS's measured products reach a fifth of a T4's int8 peak.
        """
        is_tensor = cls.tensor_cores(dtype, math)
        peak = roofline.peak_tflops(gpu, dtype, is_tensor)
        if dtype == "int8":
            return max(gpu.fp32_tflops, is_tensor and min(gpu.fp16_tensor_tflops, gpu.int8_tensor_tflops))
        if dtype != "fp32" or (gpu.vendor != "amd" and peak > gpu.fp32_tflops):
            return peak
        matrix = gpu.fp32_matrix_tflops if is_tensor else 0.0
        return gpu.sustained_tflops(matrix or gpu.fp32_tflops)

    @property
    def flops(self) -> Number:
        """2·batch·M·N·K."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def dram_bytes(self) -> Number:
        """Bytes of A, B and C, each once: batch·(MK + KN + MN) values. Source: Lin et al. (HiPC 2022)."""
        return self._matrix_bytes()

    @property
    def weight_bytes(self) -> Number:
        """Bytes of B for one product. For several products it is 0, since B may hold activations."""
        return (self.batch == 1) * self.k * self.n * self.element.weight_bytes

    def _matrix_bytes(self) -> Number:
        value = self.element
        a, b, c = self.m * self.k, self.k * self.n, self.m * self.n
        return self.batch * (value.activation_bytes * a + value.weight_bytes * b + value.output_bytes * c)

    @property
    def blocks(self) -> Number:
        """One block per output tile, with edges by `tile_edge`."""
        return self.batch * ceil_div(self.m, tile_edge(self.m)) * ceil_div(self.n, tile_edge(self.n))

    def size_rule(self, gpu: Gpu) -> tuple[Number, str]:
        """Return the rule for fp8 and fp4 products on NVIDIA's GPUs. Sources: torch._scaled_mm, CUTLASS, cuBLASLt."""
        unit = self.element.unit if gpu.vendor == "nvidia" else ""
        if unit == "fp4":  # two values a byte
            return self.k % (2 * ROW_BYTES) > 0, f"{self.dtype} products need k divisible by {2 * ROW_BYTES}"
        broken = (unit == "fp8") & ((self.k % ROW_BYTES > 0) | (self.n % ROW_BYTES > 0))
        return broken, f"{self.dtype} products need n and k divisible by {ROW_BYTES}"

    def unaligned_us(self, gpu: Gpu) -> Number:
        """Return the time in µs in which an NVIDIA GPU loads all operands of its middle tiles value by value.

        It is 0 if the rows of operands and result are multiples of `ROW_BYTES`, or without tensor cores.
        """
        if gpu.vendor != "nvidia" or not self.uses_tensor_cores:
            return 0.0 * self.k
        operand, result = min(self.element[:2]), self.element.output_bytes
        operand = int(2 * operand) / 2  # without the scales
        is_unaligned = (self.k * operand % ROW_BYTES > 0) | ((self.n > 1) & (self.n * result % ROW_BYTES > 0))
        edge = TILES[1]
        values = self.batch * ceil_div(self.m, edge) * ceil_div(self.n, edge) * (2 * edge * self.k)
        return where(is_unaligned, values / (LOADS_PER_CLOCK * gpu.sms * gpu.boost_mhz), 0.0)

    def fallback_kinds(self) -> tuple[str, ...]:
        """Return the other kinds of products: batched ones for a batch, else products with and without bias."""
        order = ("bmm", "gemm") if self.batch > 1 else ("linear", "gemm", "bmm")
        return tuple(kind for kind in order if kind != self.kind)

    def waves(self, gpu: Gpu) -> float:
        """Return how often its output tiles fill the GPU, by the number of middle tiles that fit at once."""
        _, middle, _ = mechanism_b_max(gpu, "gemm")
        return self.blocks / middle

    @property
    def weights(self) -> int:
        """Elements of B."""
        return self.batch * self.k * self.n

    @property
    def multiply_adds(self) -> int:
        """Half of `flops`, as an integer."""
        return int(self.flops) // 2

    def gradients(self, of: str) -> Gradients:
        """Return dA (m × k) = dC · Bᵀ, or dB (k × n) = Aᵀ · dC: a product of the same three sizes."""
        m, n, k = (self.m, self.k, self.n) if of == INPUT else (self.k, self.n, self.m)
        product = Bmm if self.batch > 1 else Gemm
        return ((f"grad_{of}", product(batch=self.batch, m=m, n=n, k=k, dtype=self.dtype, math=self.math)),)


@register_operator("bmm:batch5m2n3k4", flops=240, dram_bytes=520, blocks=5)
class Bmm(Gemm):
    """A batched product without bias (torch.bmm)."""


@register_operator("addmm:m2n3k4", flops=54, dram_bytes=116, blocks=1)
class Addmm(Gemm):
    """A product plus a bias of n values for every row (torch.addmm with a vector)."""

    BATCH: ClassVar[str] = "m"

    @property
    def flops(self) -> Number:
        """2·batch·M·N·K, and one addition per output."""
        return 2 * self.batch * self.m * self.n * self.k + self.batch * self.m * self.n

    @property
    def dram_bytes(self) -> Number:
        """The three matrices and the bias."""
        return self._matrix_bytes() + self.element.output_bytes * self.batch * self.n


@register_operator("linear:m200n130k4", flops=234_000, dram_bytes=109_800, blocks=4)
class Linear(Addmm):
    """A fully connected layer: m rows of k features in, n features out, with bias (torch.nn.Linear).

    On five GPUs its shortest calls take 1.8 to 2.1 times as long as a pointwise operator's (NeuSight's table).
    """

    CALLS: ClassVar[float] = 2.0

    def gradients(self, of: str) -> Gradients:
        """Return the product of `Gemm`; the bias's gradient comes with the weight's, and is a sum over the rows."""
        bias = (("grad_bias", BiasBackward(n=self.m, c=self.n, dtype=self.dtype)),)
        return Gemm.gradients(self, of) + bias * (of != INPUT)


def columns(op: Gemm, m: Machine) -> tuple[Number, ...]:
    """Return the family's columns of a product on a machine: sizes, alignment, and tiles with three edges."""
    values = [log2(op.batch), log2(op.m), log2(op.n), log2(op.k), op.m % 4, op.n % 4, op.k % 4, op.k % 8]
    for edge in TILES:
        rows = ceil_div(op.m, edge)
        tile_columns = ceil_div(op.n, edge)
        tiles = op.batch * rows * tile_columns
        # One wave holds a tile on every SM; the last wave costs as much as a full one.
        wave_us = 2.0 * edge * edge * op.k * m.sms / (m.peak_tflops * 1e6)
        # The share of the tiles' elements in the result: the remainder is padding at its edges.
        useful = op.m / (rows * edge) * (op.n / (tile_columns * edge))
        values += [log2(tiles / m.sms), log2(ceil_div(tiles, m.sms) * wave_us), useful]
    return tuple(values)


GEMM = FamilyDeclaration.of("gemm", columns)
