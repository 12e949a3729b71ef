"""The family of embedding bags: forward, and backward with SGD or row-wise Adagrad.

Traffic through DRAM and L2, and times, are from Lin et al., "Building a Performance Model for Deep Learning
Recommendation Model Training on GPUs" (HiPC 2022; TPDS 2024), and its notebook. Symbols: B batch, T tables, E rows of a
table, L bag size, D dimension. Rows are fp32 and indices int32. Transfers are rounded up to sectors of 32 bytes. Every
size is a number or an array.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ..elementwise import Number, ceil_div, maximum, minimum, round_up, where
from ..errors import check_choice
from ..gpu import Gpu
from ..problem import Size
from .operator import Extents, MemoryBound, register_operator
from .operator_family import memory_family

SECTOR_BYTES = 32
VALUE_BYTES = 4
USABLE_L2 = 0.9
"""Share of L2 that holds rows, in the refined model."""
SMALL_DIM_FACTORS = ((32, 1.55), (64, 1.1))
"""Maximum dimension → factor on the refined model's time."""

L2_BYTES_PER_SM_CLOCK = 23.6
"""The assumed L2 rate of GPUs without a measured one.

It is V100's: 2,888 GB/s measured (Lin et al., HiPC 2022) / 80 SMs / 1,530 MHz.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRates:
    """DRAM and L2 bandwidth in GB/s, fp32 peak in GFLOP/s (2 per multiply-add), SMs, L2 size in bytes."""

    dram_gbs: float
    l2_gbs: float
    peak_gflops: float
    sms: int
    l2_bytes: int

    @classmethod
    def of(cls, gpu: Gpu) -> "MemoryRates":
        """Return a GPU's measured figures, or the datasheet's if they were not measured."""
        measured = gpu.measured
        return cls(
            dram_gbs=measured.get("dram_gbs", gpu.dram_gbs),
            l2_gbs=measured.get("l2_gbs", gpu.sms * gpu.boost_mhz * L2_BYTES_PER_SM_CLOCK / 1e3),
            peak_gflops=measured.get("fp32_gflops", gpu.fp32_tflops * 1e3),
            sms=gpu.sms,
            l2_bytes=gpu.l2_bytes,
        )


def sectors(values: Number) -> Number:
    """Return the bytes of 4-byte ``values``, rounded up to sectors: ⌈4·values⌉₃₂."""
    return round_up(VALUE_BYTES * values, SECTOR_BYTES)


USUAL_ROWS_PER_BLOCK = 45
"""Samples per block, if unknown. Source: Lin et al. (HiPC 2022)."""
UNSHARED = "unshared"
"""The variant of kernels without shared memory."""


# A row of 8 values is one sector of 32 bytes. A sample reads one sector of indices and three of offsets, and it writes
# one of sums: 5 sectors. All 10 draws read the only row: 1 sector.
@register_operator("embedding_bag:batch10rows1dim8", flops=80, dram_bytes=1632, blocks=1)
class EmbeddingBag(MemoryBound):
    """Sums of ``bag`` rows of ``dim`` values from each of ``tables`` tables of ``rows`` rows, for ``batch`` samples.

    Indices are int32 and uniform. ``rows_per_block`` samples share a thread block, which holds their indices in shared
    memory unless the variant is `UNSHARED`.
    """

    FAMILY: ClassVar[str] = "embedding"
    BATCH: ClassVar[str] = "batch"
    GRADIENT: ClassVar[tuple[str, ...]] = ("embedding_bag_backward",)
    UPDATES_WEIGHTS: ClassVar[bool] = True

    batch: Annotated[int, Size("samples")]
    rows: Annotated[int, Size("rows of an embedding table")]
    tables: Annotated[int, Size("embedding tables")] = 1
    bag: Annotated[int, Size("rows summed for a sample")] = 1
    dim: Annotated[int, Size("values of a row")]
    rows_per_block: Annotated[int, Size("samples that share a thread block")] = USUAL_ROWS_PER_BLOCK

    def __post_init__(self) -> None:
        MemoryBound.__post_init__(self)
        check_choice(f"{self.kind}: variant", self.variant, ("", UNSHARED))

    @property
    def extents(self) -> Extents:
        """The sums of one table, and the sizes of the rows that they read."""
        return Extents(self.batch * self.dim, c=self.dim, tables=self.tables, bag=self.bag, rows=self.rows)

    @property
    def flops(self) -> Number:
        """One addition per value read."""
        return self.batch * self.tables * self.bag * self.dim

    @property
    def unique_rows(self) -> Number:
        """Expected distinct rows of a table in B·L uniform draws: E·(1 − (1 − 1/E)^(B·L))."""
        return self.rows * (1 - (1 - 1 / self.rows) ** (self.batch * self.bag))

    @property
    def sample_bytes(self) -> Number:
        """Bytes of a sample without the rows that it sums: indices, offsets and sums, in sectors."""
        return sectors(self.bag) + 3 * SECTOR_BYTES + sectors(self.dim)

    @property
    def dram_bytes(self) -> Number:
        """Compulsory traffic in bytes: expected distinct rows once, indices, offsets and sums."""
        return self.tables * (self.batch * self.sample_bytes + self.unique_rows * sectors(self.dim))

    @property
    def blocks(self) -> Number:
        """⌈T·B / rows_per_block⌉."""
        return ceil_div(self.tables * self.batch, self.rows_per_block)

    def hit_rate(self, rates: MemoryRates) -> Number:
        """Return the share of row reads that L2 serves, by the refined model (2022).

        If the expected distinct rows fit, only the first reads miss. Otherwise reads beyond the cached rows X miss with
        probability (E − X)/E.
        """
        draws = self.batch * self.bag
        # Tables share the cache if their samples run at the same time.
        concurrent_tables = ceil_div(rates.sms * self.rows_per_block, self.batch)
        cacheable_rows = USABLE_L2 * rates.l2_bytes / concurrent_tables / VALUE_BYTES / self.dim // 1
        cached = minimum(minimum(cacheable_rows, self.rows), draws)
        unique = self.unique_rows
        fitting = 1 - unique / draws
        exceeding = 1 - (cached + (draws - cached) * (self.rows - cached) / self.rows) / draws
        return where(unique <= cached, fitting, exceeding)

    def model_us(self, rates: MemoryRates) -> Number:
        """Return the time in µs by the refined model, L2 included. Its traffic has no term for filling the cache."""
        hit = self.hit_rate(rates)
        row = sectors(self.dim)
        dram_bytes = self.tables * (self.batch * self.sample_bytes + self.batch * (1 - hit) * self.bag * row)
        # Without shared memory, each pass of a block's threads over a row, 4 values each, reads the indices again.
        passes = self.dim // (4 * minimum(self.dim / 4, 1024 / self.rows_per_block))
        indices = passes * sectors(self.bag) if self.variant == UNSHARED else 0
        l2_bytes = self.tables * self.batch * (hit * self.bag * row + indices)
        transfer_us = maximum(l2_bytes / rates.l2_gbs, dram_bytes / rates.dram_gbs) / 1e3
        (narrow, narrow_factor), (middle, middle_factor) = SMALL_DIM_FACTORS
        return transfer_us * where(self.dim <= narrow, narrow_factor, where(self.dim <= middle, middle_factor, 1.0))

    def roofline_us(self, gpu: Gpu) -> Number:
        """Return `model_us` on the GPU."""
        return self.model_us(MemoryRates.of(gpu))


# Two sectors of offsets, one of indices, two for the row (read and written), one of the gradient: 6 for each sample.
@register_operator("embedding_bag_backward:batch10rows1dim8", flops=160, dram_bytes=1920, blocks=1)
class EmbeddingBagBackward(EmbeddingBag):
    """The update by SGD: each named row is changed by −rate · its sample's gradient, once per index."""

    GRADIENT: ClassVar[tuple[str, ...]] = ()

    @property
    def flops(self) -> Number:
        """One multiply-add per updated value."""
        return 2 * self.batch * self.tables * self.bag * self.dim

    @property
    def dram_bytes(self) -> Number:
        """Traffic in bytes: each index reads and writes its row.

        Without shared memory, each index is read by itself, and reads its sample's gradient twice.
        """
        row = sectors(self.dim)
        indices, gradient = sectors(self.bag), row
        if self.variant == UNSHARED:
            indices, gradient = SECTOR_BYTES * self.bag, 2 * self.bag * row
        return (2 * SECTOR_BYTES + indices + 2 * self.bag * row + gradient) * self.batch * self.tables

    def model_us(self, rates: MemoryRates) -> Number:
        """Return the time in µs: the larger of DRAM traffic and L·4·⌊D/4⌋ multiply-adds per sample at the peak."""
        multiply_adds = self.bag * 4 * (self.dim // 4) * self.batch * self.tables
        return maximum(self.dram_bytes / rates.dram_gbs / 1e3, multiply_adds / rates.peak_gflops / 1e3)


# Two sectors of offsets, two of indices, and 3·1 + 1 of rows, gradients and momenta: 8 for each sample.
@register_operator("embedding_bag_backward_adagrad:batch10rows1dim8", flops=160, dram_bytes=2560, blocks=1)
class EmbeddingBagBackwardAdagrad(EmbeddingBagBackward):
    """The update by row-wise Adagrad, with one momentum per row."""

    @property
    def dram_bytes(self) -> Number:
        """Traffic in bytes: 64 + 2⌈4L⌉₃₂ + (3L + 1)·⌈4D⌉₃₂ per sample.

        Rows are read and written; gradients and momenta are read once more.
        """
        per_sample = 2 * SECTOR_BYTES + 2 * sectors(self.bag) + (3 * self.bag + 1) * sectors(self.dim)
        return per_sample * self.batch * self.tables

    def model_us(self, rates: MemoryRates) -> Number:
        """Return the time in µs of the DRAM traffic."""
        return self.dram_bytes / rates.dram_gbs / 1e3


EMBEDDING = memory_family("embedding")
