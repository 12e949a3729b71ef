"""Winograd convolution F(m×m, r×r): fewer multiplications for more additions.

Sources: Lavin & Gray 2016 §4 (tile α = m + r − 1, α² multiplications per tile and channel pair); SEER §2 (blocks).
Transform cost is counted as two small dense products per tile; sparse constants make real kernels cheaper by about two.
"""

from typing import Any

from features.elementwise import Number, ceil_div, maximum, where
from features.problem import Problem
from features.shape import tensor_bytes
from features.terms.kernel import KernelTerms, Roles, gemm_launch, launch, roles
from features.terms.tiles import TILES, WINOGRAD_BLOCKS


def _tile_counts(r: Roles, out_tile: Number) -> Number:
    """Output tiles of one image."""
    return ceil_div(r.out_h, out_tile) * ceil_div(r.out_w, out_tile)


def arithmetic(p: Problem, out_tile: Number, alpha: Number) -> Number:
    """Operations of F(m×m, r×r): α²-point products over channels (2 each) and the three transforms (additions).

    ``out_tile`` m and ``alpha`` = m + r − 1 in elements. A transform of an a×a tile to b×b costs a·b·(a + b).
    """
    r = roles(p)
    tiles = p.n * _tile_counts(r, out_tile) * p.groups
    products = 2 * alpha * alpha * tiles * r.channels_in * r.channels_out
    filters = p.groups * r.channels_in * r.channels_out * p.r * alpha * (p.r + alpha)
    inputs = tiles * r.channels_in * 2 * alpha * alpha * alpha
    outputs = tiles * r.channels_out * alpha * out_tile * (alpha + out_tile)
    return products + filters + inputs + outputs


def filter_pieces(p: Problem) -> Number:
    """3×3 pieces that a larger filter is cut into, as MIOpen's fused kernels do; 1 for the filters cuDNN takes."""
    return ceil_div(p.r, 3) * ceil_div(p.s, 3)


def winograd(p: Problem, b_max: Any) -> KernelTerms:
    """Fused Winograd F(2×2, 3×3): the filter transform is a small kernel of its own, the rest one kernel."""
    r = roles(p)
    tile_rows, tile_columns = ceil_div(r.out_h, 2), ceil_div(r.out_w, 2)
    channel_blocks = ceil_div(r.channels_out, 32) * p.groups
    launches = []
    for (images, rows, columns), slots in zip(WINOGRAD_BLOCKS, b_max, strict=True):
        blocks = (
            ceil_div(p.n, images)
            * ceil_div(tile_rows, rows)
            * ceil_div(tile_columns, columns)
            * channel_blocks
        )
        computed = blocks * (images * rows * columns * 4 * 32)
        launches.append(launch(blocks, slots, p.n * r.out_h * r.out_w * r.channels_out * p.groups / computed))
    small, middle, large = launches
    workspace = 16 * r.channels_in * r.channels_out * p.groups * p.itemsize
    operands = middle.blocks * r.channels_in * 16 * (32 + 32) * p.itemsize
    return KernelTerms(
        arithmetic(p, 2, 2 + 3 - 1) * filter_pieces(p),
        tensor_bytes(p) + 2 * workspace,
        operands,
        workspace,
        2 + 0 * p.n,
        (small, middle, large),
    )


def winograd_nonfused(p: Problem, b_max: Any) -> KernelTerms:
    """Non-fused Winograd: F(4×4, 3×3) with 36 batched GEMMs, F(9×9, 5×5) with 169; four kernels, all in workspace."""
    r = roles(p)
    out_tile = where(maximum(p.r, p.s) > 3, 9, 4)
    alpha = out_tile + maximum(p.r, p.s) - 1
    points = alpha * alpha
    tiles = p.n * _tile_counts(r, out_tile)
    small, middle, large = (
        gemm_launch(tiles, r.channels_out, tile_m, tile_n, points * p.groups, slots)
        for (tile_m, tile_n), slots in zip(TILES["winograd_nonfused"], b_max, strict=True)
    )
    elements = tiles * (r.channels_in + r.channels_out) + r.channels_in * r.channels_out
    workspace = points * p.groups * elements * p.itemsize
    tile_m, tile_n = TILES["winograd_nonfused"][1]
    operands = middle.blocks * (tile_m + tile_n) * r.channels_in * p.itemsize
    return KernelTerms(
        arithmetic(p, out_tile, alpha),
        tensor_bytes(p) + 2 * workspace,
        operands,
        workspace,
        4 + 0 * p.n,
        (small, middle, large),
    )
