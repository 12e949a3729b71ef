"""The embedding bag: forward, and backward with SGD or row-wise Adagrad."""

from dataclasses import dataclass
from typing import ClassVar

from ..elementwise import Number, ceil_div
from ..gpu import Gpu
from ..operators import embedding_traffic as traffic
from ..operators.embedding_traffic import MemoryRates
from ..operators.operator import Operator

USUAL_ROWS_PER_BLOCK = 45
"""Samples that a block serves where it is not known. Source: Lin et al. (HiPC 2022)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingBag(Operator):
    """Sums ``bag`` rows of ``dim`` values from each of ``tables`` tables of ``rows``, for ``batch`` samples.

    Indices are int32 and uniform. ``rows_per_block`` samples share a thread block.
    """

    kind: ClassVar[str] = "embedding_bag"
    BATCH: ClassVar[str] = "batch"

    batch: int
    rows: int
    tables: int = 1
    bag: int = 1
    dim: int
    rows_per_block: int = USUAL_ROWS_PER_BLOCK

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

    def bound(self, gpu: Gpu) -> str:
        """Memory-bound on every GPU: one addition per 4 bytes read."""
        return "memory-bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingBagBackward(EmbeddingBag):
    """SGD: every row named takes −rate · its sample's gradient, as often as it is named."""

    kind: ClassVar[str] = "embedding_bag_backward"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingBagBackwardAdagrad(EmbeddingBagBackward):
    """Row-wise Adagrad: one momentum per row besides."""

    kind: ClassVar[str] = "embedding_bag_backward_adagrad"

    @property
    def dram_bytes(self) -> Number:
        """Lin et al.'s traffic."""
        return traffic.adagrad_bytes(self.batch, self.tables, self.bag, self.dim)

    def roofline_us(self, gpu: Gpu) -> Number:
        """Lin et al.'s model on the GPU."""
        return traffic.adagrad_us(self.batch, self.tables, self.bag, self.dim, MemoryRates.of(gpu))
