"""The analytical terms of a convolution: quantities that follow from its sizes, and each algorithm's work.

Every function takes a `Problem` of numbers or of arrays and returns the same kind. One function per mechanism returns
`KernelTerms`. Its ``b_max`` is three numbers (or arrays): the blocks of the mechanism's small, middle and large tile
that the GPU holds at once. A multiply-add counts 2 FLOPs everywhere.

- Tile variants of each mechanism's main kernel are SEER's (PACT 2021, §2: GEMM-I, GEMM-P, GEMM, WINO, WINO-N), and so
  are launched blocks. FFT's pointwise stage is a batched complex GEMM with common tiles of cuBLAS. Workspaces: cuDNN
  developer guide.
- FFT transforms are counted as 2.5·F²·log2(F²) operations for a real F × F transform. The pointwise stage is a complex
  GEMM over channels at F·(F/2 + 1) frequencies, 8 operations per complex multiply-add. Sources: Mathieu, Henaff & LeCun
  2013 §2; SEER §2 (width buckets 16 … 256, tiles of 32).
- Winograd convolution F(m×m, r×r) replaces multiplications by more additions. Sources: Lavin & Gray 2016 §4 (tile α = m
  + r − 1, α² multiplications per tile and channel pair; the transforms' counts of instructions); SEER §2.
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

OutputSize = tuple[Number, Number]
"""Output height and width."""


def output_size(size: Number, filter_size: Number, pad: Number, stride: Number, dilation: Number) -> Number:
    """Return the elements of an output dimension: ⌊(size + 2·pad − (dilation·(filter − 1) + 1)) / stride⌋ + 1.

    Source: cuDNN API reference, cudnnGetConvolution2dForwardOutputDim.
    """
    return (size + 2 * pad - (dilation * (filter_size - 1) + 1)) // stride + 1


def fits(size: Number, filter_size: Number, pad: Number, dilation: Number) -> Number:
    """Return True if the filter, dilation included, is no larger than the padded input in that dimension."""
    return dilation * (filter_size - 1) + 1 <= size + 2 * pad


def out_h(p: Problem) -> Number:
    """Return the output height P in elements, at least 1: MIOpen runs and times filters that exceed the input."""
    return maximum(output_size(p.h, p.r, p.pad_h, p.stride_h, p.dilation_h), 1)


def out_w(p: Problem) -> Number:
    """Return the output width Q in elements, at least 1."""
    return maximum(output_size(p.w, p.s, p.pad_w, p.stride_w, p.dilation_w), 1)


def flops(p: Problem, extents: OutputSize | None = None) -> Number:
    """Return the floating-point operations of the direct algorithm, 2 per multiply-add: 2·N·K·P·Q·(C/groups)·R·S.

    All three directions have the same number: each pairs every input, filter and output element once.
    """
    height, width = extents or (out_h(p), out_w(p))
    return 2 * p.n * p.k * height * width * (p.c // p.groups) * p.r * p.s


def input_bytes(p: Problem) -> Number:
    """Return the bytes of the input tensor (n, c, h, w)."""
    return p.n * p.c * p.h * p.w * p.itemsize


def filter_bytes(p: Problem) -> Number:
    """Return the bytes of the filter tensor (k, c/groups, r, s)."""
    return p.k * (p.c // p.groups) * p.r * p.s * p.itemsize


def output_bytes(p: Problem, extents: OutputSize | None = None) -> Number:
    """Return the bytes of the output tensor (n, k, out_h, out_w)."""
    height, width = extents or (out_h(p), out_w(p))
    return p.n * p.k * height * width * p.itemsize


def tensor_bytes(p: Problem, extents: OutputSize | None = None) -> Number:
    """Return the compulsory DRAM traffic in bytes: each of the three tensors once."""
    return input_bytes(p) + filter_bytes(p) + output_bytes(p, extents)


def gemm_m(p: Problem, extents: OutputSize | None = None) -> Number:
    """Return the rows of one group's implicit GEMM: fwd N·P·Q, bwd_data N·H·W, bwd_filter (C/groups)·R·S."""
    height, width = extents or (out_h(p), out_w(p))
    pixels = where(p.is_bwd_data, p.n * p.h * p.w, p.n * height * width)
    return where(p.is_bwd_filter, (p.c // p.groups) * p.r * p.s, pixels)


def gemm_n(p: Problem) -> Number:
    """Return the columns of one group's implicit GEMM: fwd and bwd_filter K/groups, bwd_data C/groups."""
    return where(p.is_bwd_data, p.c // p.groups, p.k // p.groups)


def gemm_k(p: Problem, extents: OutputSize | None = None) -> Number:
    """Return the reduction length of one group's GEMM: fwd (C/groups)·R·S, bwd_data (K/groups)·R·S, bwd_filter
    N·P·Q."""
    height, width = extents or (out_h(p), out_w(p))
    taps = where(p.is_bwd_data, p.k // p.groups, p.c // p.groups) * p.r * p.s
    return where(p.is_bwd_filter, p.n * height * width, taps)


def is_depthwise(p: Problem) -> Number:
    """Return True if every input channel is its own group, and there are several."""
    return (p.groups == p.c) & (p.groups > 1)


Tile = tuple[int, int]
Vector = tuple[Number, Number, Number]
"""FLOPs of the 1-D transforms of a filter's, an input tile's and a product tile's vector."""
Slots = Sequence[Number] | np.ndarray
"""B_max: the blocks of a mechanism's small, middle and large tile that the GPU holds at once."""


TILES: dict[str, tuple[Tile, ...]] = {name: tuple(map(tuple, row["tiles"])) for name, row in MECHANISM_ROWS.items()}
"""Mechanism → (tile_m, tile_n) = (pixels, channels) of its small, middle and large tile."""

WINOGRAD_BLOCKS = ((1, 4, 8), (2, 2, 8), (4, 1, 8))
"""Images × tile rows × tile columns of one block of the fused Winograd kernel (SEER §2, launched blocks)."""


_DERIVED = "out_h out_w flops tensor_bytes gemm_m gemm_n gemm_k c_per_group k_per_group channels_in channels_out"
Sized = namedtuple("Sized", (*ConvColumns._fields, *_DERIVED.split(), "result_h", "result_w"))
"""A `Problem` of numbers or of arrays with its derived sizes.

``channels_in`` and ``channels_out`` are *per group* in the direction: forward and filter gradient read c and produce k;
the data gradient reads k and produces c. ``result_h`` and ``result_w`` are the extents of the result. The functions of
this file define the other derived sizes.
"""
_COLUMNS = attrgetter(*ConvColumns._fields)
_sized = partial(tuple.__new__, Sized)
"""Return `Sized` of its values in order, in half the time of its constructor."""


def sized(p: Problem) -> Sized:
    """Return ``p`` with its derived sizes."""
    if isinstance(p, Sized):
        return p
    extents = (out_h(p), out_w(p))
    c = p.c // p.groups  # per group
    k = p.k // p.groups
    is_bwd_data = p.is_bwd_data
    produced = gemm_n(p)
    work = flops(p, extents), tensor_bytes(p, extents)
    product = gemm_m(p, extents), produced, gemm_k(p, extents)
    result = where(is_bwd_data, p.h, extents[0]), where(is_bwd_data, p.w, extents[1])
    return _sized((*_COLUMNS(p), *extents, *work, *product, c, k, where(is_bwd_data, k, c), produced, *result))


class KernelLaunchTerms(NamedTuple):
    """The main kernel at one tile size: SEER §2 items 1 and 4.

    ``blocks`` is the number of launched blocks. ``waves`` is blocks / B_max, not rounded. ``last_wave_share`` ε in (0,
    1] is the filled part of the last wave. ``tile_utilisation`` in (0, 1] is useful outputs / computed outputs (the
    rest is tile quantisation).
    """

    blocks: Number
    waves: Number
    last_wave_share: Number
    tile_utilisation: Number


_launch = partial(tuple.__new__, KernelLaunchTerms)
"""Return `KernelLaunchTerms` of its four values, in half the time of its constructor.

A prediction makes three for each algorithm.
"""


class KernelTerms(NamedTuple):
    """The work of an algorithm on a problem.

    ``arithmetic_flops`` are the operations performed: transforms included, tile padding excluded. ``dram_bytes`` is the
    compulsory tensor traffic plus the workspace, written and read. ``operand_bytes`` are the operands that blocks of
    the middle tile load without reuse between blocks (the maximum L2 traffic). ``kernels`` is the number of launched
    kernels. ``launches`` is the main kernel at a small, a middle and a large tile.
    """

    arithmetic_flops: Number
    dram_bytes: Number
    operand_bytes: Number
    workspace_bytes: Number
    kernels: Number
    launches: tuple[KernelLaunchTerms, ...]


def launch(blocks: Number, b_max: Number, tile_utilisation: Number) -> KernelLaunchTerms:
    """Return the launch of ``blocks`` blocks on a device that holds ``b_max`` of them at once (SEER §2 item 4)."""
    waves = blocks / b_max
    return _launch((blocks, waves, waves - (-(-blocks // b_max) - 1), tile_utilisation))


def gemm_launch(m: Number, n: Number, tile_m: int, tile_n: int, count: Number, b_max: Number) -> KernelLaunchTerms:
    """Return the launch of ``count`` independent m × n GEMMs in tile_m × tile_n tiles: ⌈m/t_m⌉·⌈n/t_n⌉·count blocks."""
    tiles = -(-m // tile_m) * -(-n // tile_n)
    blocks = tiles * count
    waves = blocks / b_max
    return _launch((blocks, waves, waves - (-(-blocks // b_max) - 1), m * n / (tiles * (tile_m * tile_n))))


def gemm_launches(
    m: Number, n: Number, tiles: tuple[Tile, ...], count: Number, b_max: Slots
) -> tuple[KernelLaunchTerms, ...]:
    """Return the `gemm_launch` of the small, the middle and the large tile."""
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
    """Return the terms of an implicit GEMM that writes and reads buffers of ``moved`` bytes once.

    Operands are the rows and columns of all blocks of the middle tile, (t_m + t_n)·K each, without reuse (SEER §7's R).
    """
    tiles = TILES[mechanism]
    launches = gemm_launches(z.gemm_m, z.gemm_n, tiles, z.groups, b_max)
    operands = launches[1].blocks * sum(tiles[1]) * z.gemm_k * z.itemsize
    zero = 0 * z.n
    return KernelTerms(z.flops, z.tensor_bytes + 2 * moved, operands, workspace + zero, kernels + zero, launches)


def implicit_gemm(p: Problem, b_max: Slots) -> KernelTerms:
    """Return the terms of an implicit GEMM: no workspace, one kernel, indices computed on the fly."""
    return _gemm(sized(p), "implicit_gemm", b_max)


def precomp_gemm(p: Problem, b_max: Slots) -> KernelTerms:
    """Return the terms of an implicit GEMM with precomputed indices; a second small kernel writes them.

    The index buffer holds ⌊1.5·P·Q⌋ + 2 int32, as cuDNN 7 reports it for ungrouped problems since Maxwell.
    """
    z = sized(p)
    workspace = (3 * z.out_h * z.out_w // 2 + 2) * INDEX_BYTES
    return _gemm(z, "precomp_gemm", b_max, workspace, workspace, kernels=2)


def im2col_bytes(p: Problem) -> Number:
    """Return the bytes of the im2col buffer: N·C·R·S·P·Q elements. With groups: 2·round_up(bytes of one group, 16),
    cuDNN 7."""
    z = sized(p)
    one_group = z.n * z.c_per_group * z.r * z.s * z.out_h * z.out_w * z.itemsize
    return where(z.groups > 1, 2 * round_up(one_group, 16), one_group)


def explicit_gemm(p: Problem, b_max: Slots) -> KernelTerms:
    """Return the terms of im2col and GEMM: the buffer is written once and read once, for every group."""
    z = sized(p)
    columns = z.n * z.c * z.r * z.s * z.out_h * z.out_w * z.itemsize
    return _gemm(z, "gemm", b_max, columns, im2col_bytes(z), kernels=2 * z.groups)


def direct(p: Problem, b_max: Slots) -> KernelTerms:
    """Return the terms of blocks of t × t output pixels for one output channel each.

    Operands are a halo of the input and one filter.
    """
    z = sized(p)
    launches = []
    for (tile_h, tile_w), slots in zip(TILES["direct"], b_max, strict=True):
        rows = ceil_div(z.result_h, tile_h)
        columns = ceil_div(z.result_w, tile_w)
        count = z.n * z.channels_out * z.groups
        # The tiles at the lower and right edges exceed the image.
        useful = (z.result_h * z.result_w) / (rows * columns * (tile_h * tile_w))
        launches.append(launch(rows * columns * count, slots, useful))
    tile_h, tile_w = TILES["direct"][1]
    operands = launches[1].blocks * z.channels_in * ((tile_h + z.r - 1) * (tile_w + z.s - 1) + z.r * z.s) * z.itemsize
    return KernelTerms(z.flops, z.tensor_bytes, operands, 0 * z.n, 1 + 0 * z.n, tuple(launches))


FFT_TILE = 32
COMPLEX_ITEMS = 2


def transform_size(p: Problem) -> Number:
    """Return the side F of the transform of a whole image: the smallest of 16, 32 … 256 that covers the padded input
    (SEER §2)."""
    extent = maximum(p.h + 2 * p.pad_h, p.w + 2 * p.pad_w)
    size = where(extent <= 16, 16, where(extent <= 32, 32, where(extent <= 64, 64, where(extent <= 128, 128, 256))))
    return where(extent > 256, extent, size)


def _fft_terms(z: Sized, side: Number, tiles_per_image: Number, b_max: Slots, mechanism: str) -> KernelTerms:
    """Return the terms of transforms of ``side`` × ``side`` elements, ``tiles_per_image`` per image."""
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
    """Return the terms of one transform per image and channel."""
    return _fft_terms(sized(p), transform_size(p), 1, b_max, "fft")


def fft_tiling(p: Problem, b_max: Slots) -> KernelTerms:
    """Return the terms of 32 × 32 tiles that overlap by the filter: ⌈P/(33 − r)⌉·⌈Q/(33 − s)⌉ tiles per image (SEER
    §2).

    A transform computes every output, so P and Q are for stride 1: a strided problem discards most of them.
    """
    # Outputs that only one tile computes: the remainder of a tile overlaps by the filter.
    new_h = maximum(FFT_TILE + 1 - p.r, 1)
    new_w = maximum(FFT_TILE + 1 - p.s, 1)
    dense_h = where(p.is_bwd_data, p.h, maximum(p.h + 2 * p.pad_h - p.r + 1, 1))
    dense_w = where(p.is_bwd_data, p.w, maximum(p.w + 2 * p.pad_w - p.s + 1, 1))
    tiles = ceil_div(dense_h, new_h) * ceil_div(dense_w, new_w)
    return _fft_terms(sized(p), FFT_TILE + 0 * p.n, tiles, b_max, "fft_tiling")


FUSED_FLOPS = (6, 4, 4)
"""`vector_flops` of F(2, 3).

Input and output take only additions (Lavin & Gray: 32 for 8 vectors, 24 for 6). Filters take an addition, a
multiplication by ½ and two multiply-adds (28 instructions for 7 vectors).
"""


def vector_flops(out_tile: Number, alpha: Number, taps: Number) -> Vector:
    """Return the FLOPs of the 1-D transforms of a filter's, an input tile's and a product tile's vector, for F(m, r).

    ``out_tile`` is m, ``alpha`` is m + r − 1, ``taps`` is r. The points are 0, ∞, pairs ±1, ±2 …, and a single point if
    α is odd. The rows of a pair share their even and their odd part. The output's transform includes the fractions of
    all. F(4, 3) gives 9, 20 and 19, exactly as cuDNN's kernels execute (`experiments/counters.py`). F(9, 5) was never
    counted, and cuDNN's points for it are not public: integer points are assumed.
    """
    pairs = (alpha - 2) // 2
    single = alpha % 2
    # The even and the odd part of a pair are polynomials in p², followed by one sum and one difference; ±1 takes only
    # additions. A single point has its own polynomial and breaks the symmetry: every other point needs a scale.
    filters = (2 * pairs - 1) * taps + single * 2 * (taps + pairs)
    # Rows of 0 and ∞ take a multiply-add per pair. The rows of a pair take the product over the other pairs, twice. A
    # single point u first takes the differences d(i + 1) − u·d(i), and has its own row.
    inputs = 4 * pairs * (pairs + 1) - 2 - 2 * (pairs < 3) + single * 2 * (alpha - 1 + pairs)
    # Sums and differences of the pairs, then one product per pair and output; 0 and ∞ contribute to one output each.
    outputs = 2 * pairs + out_tile * (2 * pairs - 1) + 3 + single * 2 * out_tile
    return filters, inputs, outputs


def transforms(z: Sized, tiles: Number, out_tile: Number, alpha: Number, vector: Vector) -> Vector:
    """Return the FLOPs of the filters', the input's and the output's transform over ``tiles`` of all images and groups.

    ``vector`` is the result of `vector_flops`. A transform of an a × a tile to b × b takes a + b vectors.
    """
    filters, inputs, outputs = vector
    return (
        z.groups * z.channels_in * z.channels_out * (z.r + alpha) * filters,
        tiles * z.channels_in * (2 * alpha) * inputs,
        tiles * z.channels_out * (alpha + out_tile) * outputs,
    )


def _winograd_flops(z: Sized, tiles: Number, out_tile: Number, alpha: Number, vector: Vector) -> Number:
    """Return the FLOPs of the α²-point products over channels and of the three transforms."""
    filters, inputs, outputs = transforms(z, tiles, out_tile, alpha, vector)
    return 2 * (alpha * alpha) * tiles * z.channels_in * z.channels_out + filters + inputs + outputs


def filter_pieces(p: Problem) -> Number:
    """Return the number of 3 × 3 pieces of a larger filter in MIOpen's fused kernels; 1 for the filters of cuDNN."""
    return ceil_div(p.r, 3) * ceil_div(p.s, 3)


def winograd(p: Problem, b_max: Slots) -> KernelTerms:
    """Return the terms of fused Winograd F(2×2, 3×3).

    A small kernel transforms the filter, and the main kernel does everything else.
    """
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
    arithmetic = _winograd_flops(z, tiles, 2, 2 + 3 - 1, FUSED_FLOPS) * filter_pieces(z)
    return KernelTerms(arithmetic, z.tensor_bytes + 2 * workspace, operands, workspace, 2 + 0 * z.n, tuple(launches))


def winograd_nonfused(p: Problem, b_max: Slots) -> KernelTerms:
    """Return the terms of non-fused Winograd: F(4×4, 3×3) with 36 batched GEMMs, F(9×9, 5×5) with 169.

    It runs four kernels, with all intermediate values in the workspace.
    """
    z = sized(p)
    longest = maximum(z.r, z.s)
    out_tile = where(longest > 3, 9, 4)
    alpha = out_tile + longest - 1
    # One batched GEMM over channels for each of the α² points of a tile.
    products = alpha * alpha * z.groups
    tiles = z.n * ceil_div(z.result_h, out_tile) * ceil_div(z.result_w, out_tile)
    launches = gemm_launches(tiles, z.channels_out, TILES["winograd_nonfused"], products, b_max)
    # The workspace holds the transformed input, the products and the transformed filters.
    elements = tiles * (z.channels_in + z.channels_out) + z.channels_in * z.channels_out
    workspace = products * elements * z.itemsize
    tile_m, tile_n = TILES["winograd_nonfused"][1]
    operands = launches[1].blocks * (tile_m + tile_n) * z.channels_in * z.itemsize
    arithmetic = _winograd_flops(z, tiles * z.groups, out_tile, alpha, vector_flops(out_tile, alpha, longest))
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
