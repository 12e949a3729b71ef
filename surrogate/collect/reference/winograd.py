"""WINOGRAD and WINOGRAD_NONFUSED: minimal filtering F(m×m, r×r) as batched GEMMs over transformed tiles.

The fused one, F(2×2, 3×3), transforms, multiplies and transforms back one cache-sized block of tiles after
the other; its workspace is the transformed filter and one block. The other one, F(4×4, 3×3) or F(4×4, 5×5),
passes the whole tensors through memory in each stage, with fewer multiplications. Source: Lavin and Gray
2015, §4.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from surrogate.collect.reference.blocks import Block, blocks
from surrogate.collect.reference.buffers import Buffer, Buffers, part
from surrogate.collect.reference.cook_toom import transforms
from surrogate.collect.reference.tiles import TileGrid, fill_strip, tile_view
from surrogate.features.conv import Conv

FUSED_BLOCK_BYTES = 2**21
"""Aim for all buffers of a fused block together: they stay in the core's cache."""
FUSED_LEAST_TILES = 32
"""Fewer columns than this and the GEMMs would degrade to matrix-vector products."""


@dataclass(frozen=True)
class Plan:
    """How one problem is cut into tiles: F(m×m, r×r), at most ``limit`` tiles at a time."""

    conv: Conv
    m: int
    limit: int

    @property
    def tile(self) -> int:
        """Inputs per tile and axis, m + r − 1."""
        return self.m + self.conv.r - 1

    @cached_property
    def grid(self) -> TileGrid:
        """The grid of tiles."""
        return TileGrid.of(self.conv, self.tile, self.tile)

    def buffers(self) -> Buffers:
        """Transformed filter (t, t, k, c/groups), and per block the stages of input and output."""
        conv, t, m = self.conv, self.tile, self.m
        block = self.grid.largest_block(conv, self.limit)
        tiles = block[0] * block[1] * block[2]
        return {
            "filter": Buffer((t, t, conv.k, conv.c // conv.groups)),
            "strip": Buffer(self.grid.strip_shape(conv, block)),
            "tiles": Buffer((t, t, conv.c, tiles)),
            "half_input": Buffer((t, t, conv.c, tiles)),
            "product": Buffer((t, t, conv.k, tiles)),
            "half_output": Buffer((m, t, conv.k, tiles)),
            "output": Buffer((m, m, conv.k, tiles)),
        }


def fused_plan(conv: Conv) -> Plan:
    """F(2×2, 3×3), in blocks of about `FUSED_BLOCK_BYTES`."""
    m, t = 2, 4
    tile_bytes = 4 * ((2 * t * t + m * m) * conv.c + (t * t + m * t + m * m) * conv.k)
    return Plan(conv, m, max(FUSED_LEAST_TILES, FUSED_BLOCK_BYTES // tile_bytes))


def nonfused_plan(conv: Conv) -> Plan:
    """F(4×4, 3×3) or F(4×4, 5×5), all tiles at once."""
    m = 4
    return Plan(conv, m, TileGrid.of(conv, m + conv.r - 1, m + conv.s - 1).count(conv))


def fused_buffers(conv: Conv) -> Buffers:
    """The fused algorithm's buffers."""
    return fused_plan(conv).buffers()


def nonfused_buffers(conv: Conv) -> Buffers:
    """The non-fused algorithm's buffers."""
    return nonfused_plan(conv).buffers()


def fused_kernel(x: np.ndarray, w: np.ndarray, y: np.ndarray, conv: Conv) -> None:
    """Write the convolution of ``x`` (n, c, h, w) and ``w`` (k, c/groups, r, s) to ``y`` (n, k, p, q)."""
    _run(x, w, y, fused_plan(conv))


def nonfused_kernel(x: np.ndarray, w: np.ndarray, y: np.ndarray, conv: Conv) -> None:
    """Write the convolution of ``x`` (n, c, h, w) and ``w`` (k, c/groups, r, s) to ``y`` (n, k, p, q)."""
    _run(x, w, y, nonfused_plan(conv))


def _run(x: np.ndarray, w: np.ndarray, y: np.ndarray, plan: Plan) -> None:
    conv, grid = plan.conv, plan.grid
    work = {name: buffer.empty() for name, buffer in plan.buffers().items()}
    at, g, bt = transforms(plan.m, conv.r).float32()
    # one GEMM by G ⊗ G reads the filter as it lies and needs no intermediate
    taps = conv.r * conv.s
    np.matmul(np.kron(g, g), w.reshape(-1, taps).T, out=work["filter"].reshape(plan.tile**2, -1))
    for block in blocks(conv.n, grid.rows, grid.columns, plan.limit):
        strip = part(work["strip"], grid.strip_shape(conv, block.shape))
        fill_strip(x, conv, grid, block, strip)
        tiles = part(work["tiles"], (plan.tile, plan.tile, conv.c, *block.shape))
        tiles[...] = tile_view(strip, grid, block)
        _transform(bt, tiles, work["half_input"], work["tiles"])
        product = _multiply(work, plan, block)
        output = _transform(at, product, work["half_output"], work["output"])
        _scatter(output.reshape(plan.m, plan.m, conv.k, *block.shape), y, plan, block)


def _transform(matrix: np.ndarray, source: np.ndarray, half: np.ndarray, out: np.ndarray) -> np.ndarray:
    """``matrix`` (a × t) applied to both leading axes of ``source`` (t, t, …): (a, a, rest), in ``out``.

    ``out`` may be the buffer of ``source``: the first pass has read it all.
    """
    a, t = matrix.shape
    rest = source.size // (t * t)
    rows = part(half, (a, t * rest))
    np.matmul(matrix, source.reshape(t, t * rest), out=rows)
    return np.matmul(matrix, rows.reshape(a, t, rest), out=part(out, (a, a, rest)))


def _multiply(work: dict[str, np.ndarray], plan: Plan, block: Block) -> np.ndarray:
    """The t² GEMMs (per group): (k/groups × c/groups) · (c/groups × tiles); gives (t, t, k, tiles)."""
    conv, points = plan.conv, plan.tile**2
    groups, k, c = conv.groups, conv.k // conv.groups, conv.c // conv.groups
    product = part(work["product"], (plan.tile, plan.tile, conv.k, block.size))
    np.matmul(
        work["filter"].reshape(points, groups, k, c),
        part(work["tiles"], (points, groups, c, block.size)),
        out=product.reshape(points, groups, k, block.size),
    )
    return product


def _scatter(output: np.ndarray, y: np.ndarray, plan: Plan, block: Block) -> None:
    """Interleave ``output`` (m, m, k, images, rows, columns) into ``y``, less what lies beyond its edge."""
    m, (_, _, out_h, out_w) = plan.m, y.shape
    for i in range(m):
        for j in range(m):
            rows = range(block.p0 * m + i, min(block.p1 * m, out_h), m)
            columns = range(block.q0 * m + j, min(block.q1 * m, out_w), m)
            target = y[block.n0 : block.n1, :, rows.start : rows.stop : m, columns.start : columns.stop : m]
            target[...] = output[i, j, :, :, : len(rows), : len(columns)].transpose(1, 0, 2, 3)
