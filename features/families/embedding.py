"""The family of embedding bags: forward, and backward with SGD or row-wise Adagrad.

Traffic through DRAM and L2 and the times that follow: Lin et al., "Building a Performance Model for Deep Learning
Recommendation Model Training on GPUs" (HiPC 2022; TPDS 2024) and its notebook. Symbols: B batch, T tables, E rows of a
table, L bag size, D dimension; fp32 rows, int32 indices. Transfers round up to sectors of 32 bytes. Every size is a
number or an array.
"""

from dataclasses import dataclass
from math import floor
from typing import Annotated, ClassVar

import numpy as np

from ..elementwise import Number, ceil_div, maximum, minimum, round_up, where
from ..gpu import Gpu
from ..problem import Size
from .operator import Extents, MemoryBound, declared
from .operator_family import memory_family

SECTOR_BYTES = 32
VALUE_BYTES = 4
USABLE_L2 = 0.9
"""Share of L2 that holds rows, in the refined model."""
SMALL_DIM_FACTORS = ((32, 1.55), (64, 1.1))
"""Dimension up to … → the refined model's time is multiplied by …"""

L2_BYTES_PER_SM_CLOCK = 23.6
"""V100: 2,888 GB/s measured (Lin et al., HiPC 2022) / 80 SMs / 1,530 MHz; stands in where L2's rate is not measured."""


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
        """A GPU's measured figures where the registry has them, else its specification."""
        measured = gpu.measured
        estimated_l2_gbs = gpu.sms * gpu.boost_mhz * L2_BYTES_PER_SM_CLOCK / 1e3
        return cls(
            dram_gbs=measured.get("dram_gbs", gpu.dram_gbs),
            l2_gbs=measured.get("l2_gbs", estimated_l2_gbs),
            peak_gflops=measured.get("fp32_gflops", gpu.fp32_tflops * 1e3),
            sms=gpu.sms,
            l2_bytes=gpu.l2_bytes,
        )


def sectors(values: Number) -> Number:
    """Bytes of ``values`` 4-byte values, rounded up to sectors: ⌈4·values⌉₃₂."""
    return round_up(VALUE_BYTES * values, SECTOR_BYTES)


def concurrent_tables(batch: Number, rows_per_block: Number, sms: int) -> Number:
    """Tables whose samples run at the same time: ⌈SMs·rows_per_block / B⌉."""
    return ceil_div(sms * rows_per_block, batch)


def all_cached_share(cached_rows: Number, rows: Number, draws: Number) -> Number:
    """Probability that ``draws`` rows drawn without repetition are all among the cached: ∏ (X − i)/(E − i), i < draws.

    1 where everything is cached (X ≥ E), 0 where fewer rows than draws are (X < draws).
    """
    if any(isinstance(value, np.ndarray) for value in (cached_rows, rows, draws)):
        return np.vectorize(all_cached_share, otypes=[float])(cached_rows, rows, draws)
    if cached_rows >= rows:
        return 1.0
    if cached_rows < draws:
        return 0.0
    share = 1.0
    for i in range(int(draws)):
        share *= (cached_rows - i) / (rows - i)
    return share


def forward_us(
    batch: Number,
    rows: Number,
    tables: Number,
    bag: Number,
    dim: Number,
    rows_per_block: Number,
    rates: MemoryRates,
    *,
    shared_memory: bool = True,
    draws: Number = None,
) -> Number:
    """Forward pass in µs by the first model: the larger of the L2 and the DRAM time.

    ``draws`` rows must all be cached for a hit: by default the bag size L (the paper's text; its notebook takes B).
    ``shared_memory`` True where the kernel keeps a bag's indices there.
    """
    at_once = concurrent_tables(batch, rows_per_block, rates.sms)
    cached = minimum(rates.l2_bytes // at_once, rows * dim * VALUE_BYTES)
    indices = sectors(bag)
    row = sectors(dim)
    cached_rows = (cached - (0 if shared_memory else indices)) // VALUE_BYTES // dim
    hit = all_cached_share(cached_rows, rows, bag if draws is None else draws)
    readers = dim // (4 * maximum(dim / 4, 1024 / rows_per_block))
    l2_indices = 0 if shared_memory else readers * indices
    rest = bag * row * batch - cached
    l2_bytes = ((2 * SECTOR_BYTES + l2_indices) * batch + hit * rest) * tables
    dram_bytes = ((indices + row) * batch + (1 - hit) * rest + cached) * tables
    return maximum(l2_bytes / rates.l2_gbs, dram_bytes / rates.dram_gbs) / 1e3


def unique_rows(batch: Number, rows: Number, bag: Number) -> Number:
    """Expected distinct rows of a table that B·L uniform draws touch: E·(1 − (1 − 1/E)^(B·L))."""
    return rows * (1 - (1 - 1 / rows) ** (batch * bag))


def hit_rate(
    batch: Number, rows: Number, bag: Number, dim: Number, rows_per_block: Number, rates: MemoryRates
) -> Number:
    """Share of row reads that L2 serves, by the refined model (2022).

    Where the expected distinct rows fit, only first touches miss; else what exceeds the cached rows X misses with
    probability (E − X)/E.
    """
    draws = batch * bag
    at_once = concurrent_tables(batch, rows_per_block, rates.sms)
    room = _floor(USABLE_L2 * rates.l2_bytes / at_once / VALUE_BYTES / dim)
    cached = minimum(minimum(room, rows), draws)
    unique = unique_rows(batch, rows, bag)
    fitting = 1 - unique / draws
    exceeding = 1 - (cached + (draws - cached) * (rows - cached) / rows) / draws
    return where(unique <= cached, fitting, exceeding)


def refined_forward_us(
    batch: Number, rows: Number, tables: Number, bag: Number, dim: Number, rows_per_block: Number, rates: MemoryRates
) -> Number:
    """Forward pass in µs by the refined model; its traffic has no term for filling the cache."""
    hit = hit_rate(batch, rows, bag, dim, rows_per_block, rates)
    row = sectors(dim)
    per_sample = sectors(bag) + 3 * SECTOR_BYTES + row
    dram_bytes = tables * (batch * per_sample + batch * (1 - hit) * bag * row)
    l2_bytes = tables * batch * hit * bag * row
    slower = maximum(l2_bytes / rates.l2_gbs, dram_bytes / rates.dram_gbs) / 1e3
    (narrow, narrow_factor), (middle, middle_factor) = SMALL_DIM_FACTORS
    return slower * where(dim <= narrow, narrow_factor, where(dim <= middle, middle_factor, 1.0))


def sgd_bytes(batch: Number, tables: Number, bag: Number, dim: Number, shared_memory: bool) -> Number:
    """DRAM traffic of the backward pass with SGD: every row is read and written, as often as it is named."""
    row = sectors(dim)
    indices = sectors(bag) if shared_memory else SECTOR_BYTES * bag
    gradient = row if shared_memory else 2 * bag * row
    return (2 * SECTOR_BYTES + indices + 2 * bag * row + gradient) * batch * tables


def sgd_us(
    batch: Number, tables: Number, bag: Number, dim: Number, rates: MemoryRates, *, shared_memory: bool = False
) -> Number:
    """Backward pass with SGD in µs: DRAM traffic against L·4·⌊D/4⌋ multiply-adds per sample at the peak."""
    dram_us = sgd_bytes(batch, tables, bag, dim, shared_memory) / rates.dram_gbs / 1e3
    return maximum(dram_us, bag * 4 * (dim // 4) * batch * tables / rates.peak_gflops / 1e3)


def adagrad_bytes(batch: Number, tables: Number, bag: Number, dim: Number) -> Number:
    """DRAM traffic of the backward pass with row-wise Adagrad.

    Rows are read and written, gradients and momenta read once more: 64 + 2⌈4L⌉₃₂ + (3L + 1)·⌈4D⌉₃₂ per sample.
    """
    row = sectors(dim)
    return (2 * SECTOR_BYTES + 2 * sectors(bag) + (3 * bag + 1) * row) * batch * tables


def adagrad_us(batch: Number, tables: Number, bag: Number, dim: Number, rates: MemoryRates) -> Number:
    """Backward pass with row-wise Adagrad in µs: bound by DRAM."""
    return adagrad_bytes(batch, tables, bag, dim) / rates.dram_gbs / 1e3


def _floor(x: Number) -> Number:
    return np.floor(x) if isinstance(x, np.ndarray) else floor(x)


USUAL_ROWS_PER_BLOCK = 45
"""Samples that a block serves where it is not known. Source: Lin et al. (HiPC 2022)."""


# A row of 8 values is one sector of 32 bytes. A sample reads a sector of indices, three of offsets and writes
# one of sums: 5 sectors; 10 draws from one row meet one row: 1 sector.
@declared("embedding_bag:batch10rows1dim8", flops=80, dram_bytes=1632, blocks=1)
class EmbeddingBag(MemoryBound):
    """Sums ``bag`` rows of ``dim`` values from each of ``tables`` tables of ``rows``, for ``batch`` samples.

    Indices are int32 and uniform. ``rows_per_block`` samples share a thread block.
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

    @property
    def extents(self) -> Extents:
        """The sums of one table, and what is read for them."""
        return Extents(self.batch * self.dim, c=self.dim, tables=self.tables, bag=self.bag, rows=self.rows)

    @property
    def flops(self) -> Number:
        """One addition per value read."""
        return self.batch * self.tables * self.bag * self.dim

    @property
    def dram_bytes(self) -> Number:
        """Compulsory traffic: expected distinct rows once, indices, offsets and sums, in 32-byte sectors."""
        per_sample = sectors(self.bag) + 3 * SECTOR_BYTES + sectors(self.dim)
        unique = unique_rows(self.batch, self.rows, self.bag)
        return self.tables * (self.batch * per_sample + unique * sectors(self.dim))

    @property
    def blocks(self) -> Number:
        """⌈T·B / rows_per_block⌉."""
        return ceil_div(self.tables * self.batch, self.rows_per_block)

    def roofline_us(self, gpu: Gpu) -> Number:
        """The refined traffic model on the GPU, L2 included."""
        return refined_forward_us(
            self.batch, self.rows, self.tables, self.bag, self.dim, self.rows_per_block, MemoryRates.of(gpu)
        )


# Two sectors of offsets, one of indices, the row read and written, one of the gradient: 6 for each sample.
@declared("embedding_bag_backward:batch10rows1dim8", flops=160, dram_bytes=1920, blocks=1)
class EmbeddingBagBackward(EmbeddingBag):
    """SGD: every row named takes −rate · its sample's gradient, as often as it is named."""

    GRADIENT: ClassVar[tuple[str, ...]] = ()

    @property
    def flops(self) -> Number:
        """One multiply-add per value updated."""
        return 2 * self.batch * self.tables * self.bag * self.dim

    @property
    def dram_bytes(self) -> Number:
        """Lin et al.'s traffic, indices and gradient in shared memory."""
        return sgd_bytes(self.batch, self.tables, self.bag, self.dim, True)

    def roofline_us(self, gpu: Gpu) -> Number:
        """Lin et al.'s model on the GPU, indices and gradient in shared memory."""
        rates = MemoryRates.of(gpu)
        return sgd_us(self.batch, self.tables, self.bag, self.dim, rates, shared_memory=True)


# Two sectors of offsets, two of indices, 3·1 + 1 of rows, gradients and momenta: 8 for each sample.
@declared("embedding_bag_backward_adagrad:batch10rows1dim8", flops=160, dram_bytes=2560, blocks=1)
class EmbeddingBagBackwardAdagrad(EmbeddingBagBackward):
    """Row-wise Adagrad: one momentum per row besides."""

    @property
    def dram_bytes(self) -> Number:
        """Lin et al.'s"""
        return adagrad_bytes(self.batch, self.tables, self.bag, self.dim)

    def roofline_us(self, gpu: Gpu) -> Number:
        """Lin et al.'s model on the GPU."""
        return adagrad_us(self.batch, self.tables, self.bag, self.dim, MemoryRates.of(gpu))


EMBEDDING = memory_family("embedding")
