"""The tile variants of each mechanism's main kernel, small to large, as (tile_m, tile_n) = (pixels, channels).

Source: SEER §2 (GEMM-I, GEMM-P, GEMM, WINO, WINO-N); FFT's pointwise stage is a batched complex GEMM, for which cuBLAS'
common tiles stand.
"""

from ..algorithms import Mechanism

Tile = tuple[int, int]

TILES: dict[Mechanism, tuple[Tile, Tile, Tile]] = {
    "direct": ((8, 8), (16, 16), (32, 32)),
    "implicit_gemm": ((32, 32), (64, 128), (128, 128)),
    "precomp_gemm": ((128, 32), (128, 64), (128, 128)),
    "gemm": ((32, 32), (64, 128), (128, 128)),
    "fft": ((32, 32), (64, 64), (128, 128)),
    "fft_tiling": ((32, 32), (64, 64), (128, 128)),
    "winograd": ((32, 32), (32, 32), (32, 32)),
    "winograd_nonfused": ((32, 128), (128, 64), (128, 128)),
}

WINOGRAD_BLOCKS = ((1, 4, 8), (2, 2, 8), (4, 1, 8))
"""Images × tile rows × tile columns of one block of the fused Winograd kernel (SEER §2, launched blocks)."""
