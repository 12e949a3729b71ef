"""Winograd convolution F(m×m, r×r): fewer multiplications for more additions.

Sources: Lavin & Gray 2016 §4 (tile α = m + r − 1, α² multiplications per tile and channel pair); SEER §2 (blocks).
Transform cost is counted as two small dense products per tile; sparse constants make real kernels cheaper by about two.
"""

from typing import Any

from ..elementwise import Number, ceil_div, maximum, where
from ..problem import Problem
from ..terms.kernel import TILES, WINOGRAD_BLOCKS, KernelTerms, Sized, gemm_launches, launch, sized


def _tile_counts(z: Sized, out_tile: Number) -> Number:
    """Output tiles of one image."""
    return ceil_div(z.result_h, out_tile) * ceil_div(z.result_w, out_tile)


def arithmetic(p: Problem, out_tile: Number, alpha: Number) -> Number:
    """Operations of F(m×m, r×r): α²-point products over channels (2 each) and the three transforms (additions).

    ``out_tile`` m and ``alpha`` = m + r − 1 in elements. A transform of an a×a tile to b×b costs a·b·(a + b).
    """
    z = sized(p)
    return _arithmetic(z, z.n * _tile_counts(z, out_tile) * z.groups, out_tile, alpha)


def transforms(p: Problem, out_tile: Number, alpha: Number) -> tuple[Number, Number, Number]:
    """What `arithmetic` counts for the transforms of the filters, of the input and of the output."""
    z = sized(p)
    return _transforms(z, z.n * _tile_counts(z, out_tile) * z.groups, out_tile, alpha)


def _arithmetic(z: Sized, tiles: Number, out_tile: Number, alpha: Number) -> Number:
    """`arithmetic` where the tiles of all images and groups are known."""
    products = 2 * (alpha * alpha) * tiles * z.channels_in * z.channels_out
    filters, inputs, outputs = _transforms(z, tiles, out_tile, alpha)
    return products + filters + inputs + outputs


def _transforms(z: Sized, tiles: Number, out_tile: Number, alpha: Number) -> tuple[Number, Number, Number]:
    reads, produces, r = z.channels_in, z.channels_out, z.r
    filters = z.groups * reads * produces * r * alpha * (r + alpha)
    inputs = tiles * reads * 2 * (alpha * alpha) * alpha
    outputs = tiles * produces * alpha * out_tile * (alpha + out_tile)
    return filters, inputs, outputs


def filter_pieces(p: Problem) -> Number:
    """3×3 pieces that a larger filter is cut into, as MIOpen's fused kernels do; 1 for the filters cuDNN takes."""
    return ceil_div(p.r, 3) * ceil_div(p.s, 3)


def winograd(p: Problem, b_max: Any) -> KernelTerms:
    """Fused Winograd F(2×2, 3×3): the filter transform is a small kernel of its own, the rest one kernel."""
    z = sized(p)
    n, height, width, groups = z.n, z.result_h, z.result_w, z.groups
    reads, produces = z.channels_in, z.channels_out
    tile_rows, tile_columns = ceil_div(height, 2), ceil_div(width, 2)
    channel_blocks = ceil_div(produces, 32) * groups
    useful = n * height * width * produces * groups
    launches = []
    for (images, rows, columns), slots in zip(WINOGRAD_BLOCKS, b_max, strict=True):
        blocks = -(-n // images) * -(-tile_rows // rows) * -(-tile_columns // columns) * channel_blocks
        computed = blocks * (images * rows * columns * 4 * 32)
        launches.append(launch(blocks, slots, useful / computed))
    small, middle, large = launches
    workspace = 16 * reads * produces * groups * z.itemsize
    operands = middle.blocks * reads * 16 * (32 + 32) * z.itemsize
    return KernelTerms(
        _arithmetic(z, n * (tile_rows * tile_columns) * groups, 2, 2 + 3 - 1) * filter_pieces(z),
        z.tensor_bytes + 2 * workspace,
        operands,
        workspace,
        2 + 0 * n,
        (small, middle, large),
    )


def winograd_nonfused(p: Problem, b_max: Any) -> KernelTerms:
    """Non-fused Winograd: F(4×4, 3×3) with 36 batched GEMMs, F(9×9, 5×5) with 169; four kernels, all in workspace."""
    z = sized(p)
    reads, produces, groups, longest = z.channels_in, z.channels_out, z.groups, maximum(z.r, z.s)
    out_tile = where(longest > 3, 9, 4)
    alpha = out_tile + longest - 1
    products = alpha * alpha * groups
    tiles = z.n * _tile_counts(z, out_tile)
    launches = gemm_launches(tiles, produces, TILES["winograd_nonfused"], products, b_max)
    elements = tiles * (reads + produces) + reads * produces
    workspace = products * elements * z.itemsize
    tile_m, tile_n = TILES["winograd_nonfused"][1]
    operands = launches[1].blocks * (tile_m + tile_n) * reads * z.itemsize
    return KernelTerms(
        _arithmetic(z, tiles * groups, out_tile, alpha),
        z.tensor_bytes + 2 * workspace,
        operands,
        workspace,
        4 + 0 * z.n,
        launches,
    )
