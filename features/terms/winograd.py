"""Winograd convolution F(m×m, r×r): fewer multiplications for more additions.

Sources: Lavin & Gray 2016 §4 (tile α = m + r − 1, α² multiplications per tile and channel pair; the transforms' counts
of instructions); SEER §2 (blocks). A multiply-add counts 2 FLOPs everywhere.
"""

from ..elementwise import Number, ceil_div, maximum, where
from ..problem import Problem
from ..terms.kernel import TILES, WINOGRAD_BLOCKS, KernelTerms, Sized, Slots, gemm_launches, launch, sized

FUSED_FLOPS = (6, 4, 4)
"""`vector_flops` of F(2, 3): additions alone for input and output (Lavin & Gray: 32 for 8 vectors, 24 for 6); for
filters an addition, a multiplication by ½ and two multiply-adds (28 instructions for 7 vectors)."""


def vector_flops(out_tile: Number, alpha: Number, taps: Number) -> tuple[Number, Number, Number]:
    """FLOPs of one 1-D transform of a filter's, an input tile's and a product tile's vector, for F(m, r).

    ``out_tile`` m, ``alpha`` = m + r − 1, ``taps`` r. The points are 0, ∞, pairs ±1, ±2 … and, where α is odd, a single
    one. The rows of a pair share their even and their odd part; the output's transform holds the fractions of all.
    F(4, 3) comes to 9, 20 and 19, exactly what cuDNN's kernels execute (`experiments/counters.py`). Nobody has counted
    F(9, 5), and the points that cuDNN takes for it are not public: points of whole numbers stand for them.
    """
    pairs = (alpha - 2) // 2
    single = alpha % 2
    # A pair's even and odd part are polynomials in p², then comes one sum and one difference; ±1 takes additions alone.
    # A single point takes a polynomial of its own, and breaks the others' symmetry: each of them takes a scale.
    filters = (2 * pairs - 1) * taps + single * 2 * (taps + pairs)
    # Rows of 0 and ∞ take a multiply-add for each pair; a pair's rows take the product over the other pairs, twice. A
    # single point u takes the differences d(i + 1) − u·d(i) before all that, and a row of its own.
    inputs = 4 * pairs * (pairs + 1) - 2 - 2 * (pairs < 3) + single * 2 * (alpha - 1 + pairs)
    # Sums and differences of the pairs, then in each output a product for each; 0 and ∞ reach one output each.
    outputs = 2 * pairs + out_tile * (2 * pairs - 1) + 3 + single * 2 * out_tile
    return filters, inputs, outputs


def transforms(
    z: Sized, tiles: Number, out_tile: Number, alpha: Number, vector: tuple[Number, Number, Number]
) -> tuple[Number, Number, Number]:
    """FLOPs of the filters', the input's and the output's transform over ``tiles`` of all images and groups.

    ``vector``: of one vector, as `vector_flops` gives them. A transform of an a×a tile to b×b takes a + b vectors.
    """
    filters, inputs, outputs = vector
    return (
        z.groups * z.channels_in * z.channels_out * (z.r + alpha) * filters,
        tiles * z.channels_in * (2 * alpha) * inputs,
        tiles * z.channels_out * (alpha + out_tile) * outputs,
    )


def _arithmetic(
    z: Sized, tiles: Number, out_tile: Number, alpha: Number, vector: tuple[Number, Number, Number]
) -> Number:
    """α²-point products over channels and the three transforms, in FLOPs."""
    filters, inputs, outputs = transforms(z, tiles, out_tile, alpha, vector)
    return 2 * (alpha * alpha) * tiles * z.channels_in * z.channels_out + filters + inputs + outputs


def filter_pieces(p: Problem) -> Number:
    """3×3 pieces that a larger filter is cut into, as MIOpen's fused kernels do; 1 for the filters cuDNN takes."""
    return ceil_div(p.r, 3) * ceil_div(p.s, 3)


def winograd(p: Problem, b_max: Slots) -> KernelTerms:
    """Fused Winograd F(2×2, 3×3): the filter transform is a small kernel of its own, the rest one kernel."""
    z = sized(p)
    # An output tile has 2 × 2 pixels; a block takes 32 output channels of several tiles.
    tile_rows = ceil_div(z.result_h, 2)
    tile_columns = ceil_div(z.result_w, 2)
    channel_blocks = ceil_div(z.channels_out, 32) * z.groups
    useful = z.n * z.result_h * z.result_w * z.channels_out * z.groups
    launches = []
    for (images, rows, columns), slots in zip(WINOGRAD_BLOCKS, b_max, strict=True):
        blocks = -(-z.n // images) * -(-tile_rows // rows) * -(-tile_columns // columns) * channel_blocks
        computed = blocks * (images * rows * columns * 4 * 32)
        launches.append(launch(blocks, slots, useful / computed))
    small, middle, large = launches
    # The transformed filters, 4 × 4 values each, are written by one kernel and read by the other.
    workspace = 16 * z.channels_in * z.channels_out * z.groups * z.itemsize
    operands = middle.blocks * z.channels_in * 16 * (32 + 32) * z.itemsize
    return KernelTerms(
        _arithmetic(z, z.n * (tile_rows * tile_columns) * z.groups, 2, 2 + 3 - 1, FUSED_FLOPS) * filter_pieces(z),
        z.tensor_bytes + 2 * workspace,
        operands,
        workspace,
        2 + 0 * z.n,
        (small, middle, large),
    )


def winograd_nonfused(p: Problem, b_max: Slots) -> KernelTerms:
    """Non-fused Winograd: F(4×4, 3×3) with 36 batched GEMMs, F(9×9, 5×5) with 169; four kernels, all in workspace."""
    z = sized(p)
    longest = maximum(z.r, z.s)
    out_tile = where(longest > 3, 9, 4)
    alpha = out_tile + longest - 1
    # A batched GEMM over channels for each of the α² points of a tile.
    products = alpha * alpha * z.groups
    tiles = z.n * ceil_div(z.result_h, out_tile) * ceil_div(z.result_w, out_tile)
    launches = gemm_launches(tiles, z.channels_out, TILES["winograd_nonfused"], products, b_max)
    # Transformed input, products and transformed filters all lie in the workspace.
    elements = tiles * (z.channels_in + z.channels_out) + z.channels_in * z.channels_out
    workspace = products * elements * z.itemsize
    tile_m, tile_n = TILES["winograd_nonfused"][1]
    operands = launches[1].blocks * (tile_m + tile_n) * z.channels_in * z.itemsize
    return KernelTerms(
        _arithmetic(z, tiles * z.groups, out_tile, alpha, vector_flops(out_tile, alpha, longest)),
        z.tensor_bytes + 2 * workspace,
        operands,
        workspace,
        4 + 0 * z.n,
        launches,
    )
