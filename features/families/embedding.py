"""The family of embedding bags: forward, and backward with SGD or row-wise Adagrad."""

from typing import Annotated, ClassVar

from ..elementwise import Number, ceil_div
from ..gpu import Gpu
from ..size import Size
from . import embedding_traffic as traffic
from .embedding_traffic import MemoryRates
from .operator import Extents, MemoryBound, declared
from .operator_family import memory_family

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
        per_sample = traffic.sectors(self.bag) + 3 * traffic.SECTOR_BYTES + traffic.sectors(self.dim)
        unique = traffic.unique_rows(self.batch, self.rows, self.bag)
        return self.tables * (self.batch * per_sample + unique * traffic.sectors(self.dim))

    @property
    def blocks(self) -> Number:
        """⌈T·B / rows_per_block⌉."""
        return ceil_div(self.tables * self.batch, self.rows_per_block)

    def roofline_us(self, gpu: Gpu) -> Number:
        """The refined traffic model on the GPU, L2 included."""
        return traffic.refined_forward_us(
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
        return traffic.sgd_bytes(self.batch, self.tables, self.bag, self.dim, True)

    def roofline_us(self, gpu: Gpu) -> Number:
        """Lin et al.'s model on the GPU, indices and gradient in shared memory."""
        rates = MemoryRates.of(gpu)
        return traffic.sgd_us(self.batch, self.tables, self.bag, self.dim, rates, shared_memory=True)


# Two sectors of offsets, two of indices, 3·1 + 1 of rows, gradients and momenta: 8 for each sample.
@declared("embedding_bag_backward_adagrad:batch10rows1dim8", flops=160, dram_bytes=2560, blocks=1)
class EmbeddingBagBackwardAdagrad(EmbeddingBagBackward):
    """Row-wise Adagrad: one momentum per row besides."""

    @property
    def dram_bytes(self) -> Number:
        """Lin et al.'s traffic."""
        return traffic.adagrad_bytes(self.batch, self.tables, self.bag, self.dim)

    def roofline_us(self, gpu: Gpu) -> Number:
        """Lin et al.'s model on the GPU."""
        return traffic.adagrad_us(self.batch, self.tables, self.bag, self.dim, MemoryRates.of(gpu))


EMBEDDING = memory_family("embedding")
