"""The analytical terms of a convolution: what follows from its sizes, and what each algorithm does on it.

Every function takes a `Problem` of numbers or of arrays and returns the same kind. One function per mechanism returns
`KernelTerms`; its ``b_max`` is three numbers (or arrays): how many blocks of the mechanism's small, middle and large
tile the GPU holds at once. A multiply-add counts 2 FLOPs everywhere.

- Tile variants of each mechanism's main kernel are SEER's (PACT 2021, §2: GEMM-I, GEMM-P, GEMM, WINO, WINO-N), and so
  are launched blocks; FFT's pointwise stage is a batched complex GEMM, for which cuBLAS' common tiles stand.
  Workspaces: cuDNN developer guide.
- FFT transforms are counted as 2.5·F²·log2(F²) operations for a real F × F transform; the pointwise stage is a complex
  GEMM over channels at F·(F/2 + 1) frequencies, 8 operations per complex multiply-add. Sources: Mathieu, Henaff & LeCun
  2013 §2; SEER §2 (width buckets 16 … 256, tiles of 32).
- Winograd convolution F(m×m, r×r): fewer multiplications for more additions. Sources: Lavin & Gray 2016 §4 (tile
  α = m + r − 1, α² multiplications per tile and channel pair; the transforms' counts of instructions); SEER §2.
"""

from collections import namedtuple
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from .algorithms import MECHANISM_ROWS
from .elementwise import Number, ceil_div, log2, maximum, round_up, where
from .problem import ConvColumns, Problem

Extents = tuple[Number, Number]
"""Output height and width."""


def output_size(size: Number, filter_size: Number, pad: Number, stride: Number, dilation: Number) -> Number:
    """Elements along one output dimension: ⌊(size + 2·pad − (dilation·(filter − 1) + 1)) / stride⌋ + 1.

    Source: cuDNN API reference, cudnnGetConvolution2dForwardOutputDim.
    """
    return (size + 2 * pad - (dilation * (filter_size - 1) + 1)) // stride + 1


def fits(size: Number, filter_size: Number, pad: Number, dilation: Number) -> Number:
    """True where the filter, dilation included, is no larger than the padded input along that dimension."""
    return dilation * (filter_size - 1) + 1 <= size + 2 * pad


def out_h(p: Problem) -> Number:
    """Output height P, in elements; at least 1, as MIOpen takes (and times) problems whose filter does not fit."""
    return maximum(output_size(p.h, p.r, p.pad_h, p.stride_h, p.dilation_h), 1)


def out_w(p: Problem) -> Number:
    """Output width Q, in elements; at least 1."""
    return maximum(output_size(p.w, p.s, p.pad_w, p.stride_w, p.dilation_w), 1)


def flops(p: Problem, extents: Extents | None = None) -> Number:
    """Floating-point operations of the direct algorithm, 2 per multiply-add: 2·N·K·P·Q·(C/groups)·R·S.

    The same for all three directions (each pairs every input, filter and output element once).
    """
    height, width = extents or (out_h(p), out_w(p))
    return 2 * p.n * p.k * height * width * (p.c // p.groups) * p.r * p.s


def input_bytes(p: Problem) -> Number:
    """Bytes of the input tensor (n, c, h, w)."""
    return p.n * p.c * p.h * p.w * p.itemsize


def filter_bytes(p: Problem) -> Number:
    """Bytes of the filter tensor (k, c/groups, r, s)."""
    return p.k * (p.c // p.groups) * p.r * p.s * p.itemsize


def output_bytes(p: Problem, extents: Extents | None = None) -> Number:
    """Bytes of the output tensor (n, k, out_h, out_w)."""
    height, width = extents or (out_h(p), out_w(p))
    return p.n * p.k * height * width * p.itemsize


def tensor_bytes(p: Problem, extents: Extents | None = None) -> Number:
    """Compulsory DRAM traffic in bytes: the three tensors, each touched once."""
    return input_bytes(p) + filter_bytes(p) + output_bytes(p, extents)


def gemm_m(p: Problem, extents: Extents | None = None) -> Number:
    """Rows of the implicit GEMM of one group: fwd N·P·Q, bwd_data N·H·W, bwd_filter (C/groups)·R·S."""
    height, width = extents or (out_h(p), out_w(p))
    return where(
        p.is_bwd_filter, (p.c // p.groups) * p.r * p.s, where(p.is_bwd_data, p.n * p.h * p.w, p.n * height * width)
    )


def gemm_n(p: Problem) -> Number:
    """Columns of the implicit GEMM of one group: fwd and bwd_filter K/groups, bwd_data C/groups."""
    return where(p.is_bwd_data, p.c // p.groups, p.k // p.groups)


def gemm_k(p: Problem, extents: Extents | None = None) -> Number:
    """Reduction length of one group's GEMM: fwd (C/groups)·R·S, bwd_data (K/groups)·R·S, bwd_filter N·P·Q."""
    height, width = extents or (out_h(p), out_w(p))
    return where(
        p.is_bwd_filter, p.n * height * width, where(p.is_bwd_data, p.k // p.groups, p.c // p.groups) * p.r * p.s
    )


def is_depthwise(p: Problem) -> Number:
    """True where every input channel is its own group (and there is more than one)."""
    return (p.groups == p.c) & (p.groups > 1)


Tile = tuple[int, int]
Slots = Sequence[Number] | np.ndarray
"""B_max: how many blocks of a mechanism's small, middle and large tile the GPU holds at once."""


TILES: dict[str, tuple[Tile, ...]] = {name: tuple(map(tuple, row["tiles"])) for name, row in MECHANISM_ROWS.items()}
"""Mechanism → (tile_m, tile_n) = (pixels, channels) of its small, middle and large tile."""

WINOGRAD_BLOCKS = ((1, 4, 8), (2, 2, 8), (4, 1, 8))
"""Images × tile rows × tile columns of one block of the fused Winograd kernel (SEER §2, launched blocks)."""


_DERIVED = "out_h out_w flops tensor_bytes gemm_m gemm_n gemm_k c_per_group k_per_group channels_in channels_out"
Sized = namedtuple("Sized", (*ConvColumns._fields, *_DERIVED.split(), "result_h", "result_w"))
"""A `Problem` of numbers or of arrays, and the sizes derived from it.

``channels_in`` and ``channels_out`` are *per group* as the direction sees them (forward and filter gradient read c and
produce k, the data gradient swaps), ``result_h`` and ``result_w`` the extents of what it produces; the other derived
sizes are those of this file.
"""
_COLUMNS = attrgetter(*ConvColumns._fields)
_sized = partial(tuple.__new__, Sized)
"""`Sized` of its values in order, in half the time."""


def sized(p: Problem) -> Sized:
    """``p`` with its derived sizes; ``p`` itself where it has them."""
    if isinstance(p, Sized):
        return p
    extents = (out_h(p), out_w(p))
    c = p.c // p.groups  # per group
    k = p.k // p.groups
    back = p.is_bwd_data
    produced = gemm_n(p)
    work = flops(p, extents), tensor_bytes(p, extents)
    product = gemm_m(p, extents), produced, gemm_k(p, extents)
    result = where(back, p.h, extents[0]), where(back, p.w, extents[1])
    return _sized((*_COLUMNS(p), *extents, *work, *product, c, k, where(back, k, c), produced, *result))


class KernelLaunchTerms(NamedTuple):
    """The main kernel at one tile size: SEER §2 items 1 and 4.

    ``blocks`` launched; ``waves`` = blocks / B_max, not rounded; ``last_wave_share`` ε in (0, 1], the filled part of
    the last wave; ``tile_utilisation`` in (0, 1], useful outputs over computed ones (the rest is tile quantisation).
    """

    blocks: Number
    waves: Number
    last_wave_share: Number
    tile_utilisation: Number


_launch = partial(tuple.__new__, KernelLaunchTerms)
"""`KernelLaunchTerms` of its four values, in half the time: a prediction makes three for each algorithm."""


class KernelTerms(NamedTuple):
    """What an algorithm does on a problem.

    ``arithmetic_flops``: operations really done, transforms included, tile padding not; ``dram_bytes``: compulsory
    tensor traffic plus the workspace written and read back; ``operand_bytes``: operands that blocks of the middle tile
    load before any reuse between blocks (L2 traffic at worst); ``workspace_bytes``; ``kernels`` launched;
    ``launches``: the main kernel at a small, a middle and a large tile.
    """

    arithmetic_flops: Number
    dram_bytes: Number
    operand_bytes: Number
    workspace_bytes: Number
    kernels: Number
    launches: tuple[KernelLaunchTerms, ...]


def launch(blocks: Number, b_max: Number, tile_utilisation: Number) -> KernelLaunchTerms:
    """The launch of ``blocks`` blocks on a device that holds ``b_max`` of them at once (SEER §2 item 4)."""
    waves = blocks / b_max
    return _launch((blocks, waves, waves - (-(-blocks // b_max) - 1), tile_utilisation))


def gemm_launch(m: Number, n: Number, tile_m: int, tile_n: int, count: Number, b_max: Number) -> KernelLaunchTerms:
    """``count`` independent m × n GEMMs cut into tile_m × tile_n tiles: ⌈m/t_m⌉·⌈n/t_n⌉·count blocks."""
    tiles = -(-m // tile_m) * -(-n // tile_n)
    blocks = tiles * count
    waves = blocks / b_max
    return _launch((blocks, waves, waves - (-(-blocks // b_max) - 1), m * n / (tiles * (tile_m * tile_n))))


def gemm_launches(
    m: Number, n: Number, tiles: tuple[Tile, ...], count: Number, b_max: Slots
) -> tuple[KernelLaunchTerms, ...]:
    """`gemm_launch` at the small, the middle and the large tile."""
    (small_m, small_n), (middle_m, middle_n), (large_m, large_n) = tiles
    small, middle, large = b_max
    return (
        gemm_launch(m, n, small_m, small_n, count, small),
        gemm_launch(m, n, middle_m, middle_n, count, middle),
        gemm_launch(m, n, large_m, large_n, count, large),
    )


INDEX_BYTES = 4


def _gemm(
    z: Sized, mechanism: str, b_max: Slots, moved: Number = 0, workspace: Number = 0, kernels: Number = 1
) -> KernelTerms:
    """An implicit GEMM's terms, where buffers of ``moved`` bytes are written once and read once.

    Operands are those of both sides over all blocks of the middle tile, (t_m + t_n)·K each: no reuse (SEER §7's R).
    """
    tiles = TILES[mechanism]
    launches = gemm_launches(z.gemm_m, z.gemm_n, tiles, z.groups, b_max)
    operands = launches[1].blocks * sum(tiles[1]) * z.gemm_k * z.itemsize
    none = 0 * z.n
    return KernelTerms(z.flops, z.tensor_bytes + 2 * moved, operands, workspace + none, kernels + none, launches)


def implicit_gemm(p: Problem, b_max: Slots) -> KernelTerms:
    """Implicit GEMM: no workspace, one kernel, indices computed on the fly."""
    return _gemm(sized(p), "implicit_gemm", b_max)


def precomp_gemm(p: Problem, b_max: Slots) -> KernelTerms:
    """Implicit GEMM with precomputed indices, filled by a second tiny kernel.

    The index buffer holds ⌊1.5·P·Q⌋ + 2 int32, as cuDNN 7 reports it for ungrouped problems since Maxwell.
    """
    z = sized(p)
    workspace = (3 * z.out_h * z.out_w // 2 + 2) * INDEX_BYTES
    return _gemm(z, "precomp_gemm", b_max, workspace, workspace, kernels=2)


def im2col_bytes(p: Problem) -> Number:
    """Bytes of the im2col buffer: N·C·R·S·P·Q elements; with groups 2·round_up(…, 16) of one group on cuDNN 7."""
    z = sized(p)
    one_group = z.n * z.c_per_group * z.r * z.s * z.out_h * z.out_w * z.itemsize
    return where(z.groups > 1, 2 * round_up(one_group, 16), one_group)


def explicit_gemm(p: Problem, b_max: Slots) -> KernelTerms:
    """im2col, then GEMM: the buffer is written once and read once, for every group."""
    z = sized(p)
    columns = z.n * z.c * z.r * z.s * z.out_h * z.out_w * z.itemsize
    return _gemm(z, "gemm", b_max, columns, im2col_bytes(z), kernels=2 * z.groups)


def direct(p: Problem, b_max: Slots) -> KernelTerms:
    """Blocks of t × t output pixels for one output channel each; operands are a halo of the input and one filter."""
    z = sized(p)
    launches = []
    for (tile_h, tile_w), slots in zip(TILES["direct"], b_max, strict=True):
        rows = ceil_div(z.result_h, tile_h)
        columns = ceil_div(z.result_w, tile_w)
        count = z.n * z.channels_out * z.groups
        # The tiles at the lower and right edge reach beyond the image.
        useful = (z.result_h * z.result_w) / (rows * columns * (tile_h * tile_w))
        launches.append(launch(rows * columns * count, slots, useful))
    tile_h, tile_w = TILES["direct"][1]
    operands = launches[1].blocks * z.channels_in * ((tile_h + z.r - 1) * (tile_w + z.s - 1) + z.r * z.s) * z.itemsize
    return KernelTerms(z.flops, z.tensor_bytes, operands, 0 * z.n, 1 + 0 * z.n, tuple(launches))


TILE = 32
COMPLEX_ITEMS = 2


def transform_size(p: Problem) -> Number:
    """The side F of the whole-image transform: the least of 16, 32 … 256 that covers the padded input (SEER §2)."""
    extent = maximum(p.h + 2 * p.pad_h, p.w + 2 * p.pad_w)
    size = where(extent <= 16, 16, where(extent <= 32, 32, where(extent <= 64, 64, where(extent <= 128, 128, 256))))
    return where(extent > 256, extent, size)


def _terms(z: Sized, side: Number, tiles_per_image: Number, b_max: Slots, mechanism: str) -> KernelTerms:
    """The terms of transforms of ``side`` × ``side`` elements, ``tiles_per_image`` of them in an image."""
    # A real transform has side · (side/2 + 1) complex frequencies.
    frequencies = side * (side // 2 + 1)
    images = z.n * tiles_per_image
    pairs = z.channels_in * z.channels_out * z.groups
    # Planes to transform: every tile of input and output channels, and every filter once.
    planes = images * (z.channels_in + z.channels_out) * z.groups + pairs
    transforms = planes * 2.5 * side * side * 2 * log2(1.0 * side)
    # All transformed planes lie in the workspace between the stages.
    workspace = planes * frequencies * COMPLEX_ITEMS * z.itemsize
    # The pointwise stage is a complex GEMM over channels at each frequency.
    launches = gemm_launches(images, z.channels_out, TILES[mechanism], frequencies * z.groups, b_max)
    tile_m, tile_n = TILES[mechanism][1]
    operands = launches[1].blocks * (tile_m + tile_n) * z.channels_in * COMPLEX_ITEMS * z.itemsize
    arithmetic = 8 * frequencies * images * pairs + transforms
    return KernelTerms(arithmetic, z.tensor_bytes + 2 * workspace, operands, workspace, 4 + 0 * z.n, launches)


def fft(p: Problem, b_max: Slots) -> KernelTerms:
    """One transform per image and channel."""
    return _terms(sized(p), transform_size(p), 1, b_max, "fft")


def fft_tiling(p: Problem, b_max: Slots) -> KernelTerms:
    """Transforms of 32 × 32 tiles that overlap by the filter: ⌈P/(33 − r)⌉·⌈Q/(33 − s)⌉ tiles per image (SEER §2).

    A transform yields every output, so P and Q are those of stride 1: a strided problem throws most of them away.
    """
    # Outputs of a tile that no other tile yields: the rest of it overlaps by the filter.
    fresh_h = maximum(TILE + 1 - p.r, 1)
    fresh_w = maximum(TILE + 1 - p.s, 1)
    dense_h = where(p.is_bwd_data, p.h, maximum(p.h + 2 * p.pad_h - p.r + 1, 1))
    dense_w = where(p.is_bwd_data, p.w, maximum(p.w + 2 * p.pad_w - p.s + 1, 1))
    tiles = ceil_div(dense_h, fresh_h) * ceil_div(dense_w, fresh_w)
    return _terms(sized(p), TILE + 0 * p.n, tiles, b_max, "fft_tiling")


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
    # The transformed filters, 4 × 4 values each, are written by one kernel and read by the other.
    workspace = 16 * z.channels_in * z.channels_out * z.groups * z.itemsize
    operands = launches[1].blocks * z.channels_in * 16 * (32 + 32) * z.itemsize
    tiles = z.n * (tile_rows * tile_columns) * z.groups
    arithmetic = _arithmetic(z, tiles, 2, 2 + 3 - 1, FUSED_FLOPS) * filter_pieces(z)
    return KernelTerms(arithmetic, z.tensor_bytes + 2 * workspace, operands, workspace, 2 + 0 * z.n, tuple(launches))


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
    arithmetic = _arithmetic(z, tiles * z.groups, out_tile, alpha, vector_flops(out_tile, alpha, longest))
    return KernelTerms(arithmetic, z.tensor_bytes + 2 * workspace, operands, workspace, 4 + 0 * z.n, launches)


MECHANISM_TERMS = {
    "direct": direct,
    "implicit_gemm": implicit_gemm,
    "precomp_gemm": precomp_gemm,
    "gemm": explicit_gemm,
    "fft": fft,
    "fft_tiling": fft_tiling,
    "winograd": winograd,
    "winograd_nonfused": winograd_nonfused,
}
"""Mechanism → function (problem, b_max) → `KernelTerms`."""
