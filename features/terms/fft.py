"""FFT convolution: whole images, or tiles of 32 × 32 elements.

Transforms are counted as 2.5·F²·log2(F²) operations for a real F × F transform; the pointwise stage is a complex GEMM
over channels at F·(F/2 + 1) frequencies, 8 operations per complex multiply-add. Sources: Mathieu, Henaff & LeCun 2013
§2; SEER §2 (width buckets 16 … 256, tiles of 32).
"""

from ..elementwise import Number, ceil_div, log2, maximum, where
from ..problem import Problem
from ..terms.kernel import TILES, KernelTerms, Sized, Slots, gemm_launches, sized

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
    return KernelTerms(
        8 * frequencies * images * pairs + transforms,
        z.tensor_bytes + 2 * workspace,
        operands,
        workspace,
        4 + 0 * z.n,
        launches,
    )


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
