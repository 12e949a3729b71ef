"""The workspace of a convolution where it is not all values that pass through buffers.

Libraries process a large problem in parts, so that the workspace is smaller than the traffic through it. The formulas
reproduce the workspaces that cuDNN 7 (FFT, FFT_TILING, WINOGRAD_NONFUSED) and MIOpen (GEMM) state.
"""

from .elementwise import Number, ceil_div, maximum, minimum, round_up, where
from .terms import COMPLEX_ITEMS, FFT_TILE, Sized, transform_size

GROUP_BYTES = 48 * 2**10
"""Bytes that the FFTs add if there are groups."""
WINOGRAD_BATCH = 16
TILES_AT_ONCE = 2
"""Maximum number of tiles of an image that FFT_TILING transforms at once."""


def workspace_bytes(z: Sized, mechanism: str, vendor: str, moved_bytes: Number) -> Number:
    """Return the workspace in bytes of a mechanism on a GPU of a ``vendor``.

    ``moved_bytes`` are the bytes of all values that pass through the workspace.
    """
    if vendor == "amd":  # GEMM's buffer holds all groups of one image
        return z.c * z.r * z.s * z.out_h * z.out_w * z.itemsize if mechanism == "gemm" else moved_bytes
    if mechanism == "winograd_nonfused":
        return _of_groups(z, _winograd_bytes(z), further_bytes=0)
    if mechanism == "fft":
        side = transform_size(z)
        planes = (z.n + z.channels_out) * z.channels_in
        return 2 * planes * _frequency_bytes(z, side, side) + where(z.groups > 1, GROUP_BYTES, 0)
    if mechanism == "fft_tiling":
        return _of_groups(z, _tiling_bytes(z), further_bytes=GROUP_BYTES)
    return moved_bytes


def _of_groups(z: Sized, group_bytes: Number, further_bytes: int) -> Number:
    """Return the bytes for one group; several groups have two buffers."""
    return where(z.groups > 1, 2 * group_bytes + further_bytes, group_bytes)


def _frequency_bytes(z: Sized, rows: Number, side: Number) -> Number:
    """Return the bytes of the complex frequencies of ``rows`` rows of ``side`` real values."""
    return rows * (side // 2 + 1) * COMPLEX_ITEMS * z.itemsize


def _winograd_bytes(z: Sized) -> Number:
    """Return the bytes of one group of F(4×4, 3×3) or F(9×9, 5×5): filters, images and results.

    Except for the filter's gradient, images are in batches of 16.
    """
    longest = maximum(z.r, z.s)
    out_tile = where(longest > 3, 9, 4)
    points = (out_tile + longest - 1) ** 2
    images = where(z.is_bwd_filter, z.n, round_up(z.n, WINOGRAD_BATCH))
    tiles = images * ceil_div(z.result_h, out_tile) * ceil_div(z.result_w, out_tile)
    return points * (tiles * (z.channels_in + z.channels_out) + z.channels_in * z.channels_out) * z.itemsize


def _tiling_bytes(z: Sized) -> Number:
    """Return the bytes of one group of FFT_TILING: filters, and some tiles of all images and results.

    For filters of one element with stride 1, the transform is along rows of 32 elements.
    """
    along_rows = (z.r == 1) & (z.s == 1) & (z.stride_h == 1) & (z.stride_w == 1)
    axes = (z.h, z.pad_h, z.r), (z.w, z.pad_w, z.s)
    rows, columns = (
        ceil_div(size + 2 * pad - taps + 1, FFT_TILE + 1 - minimum(taps, FFT_TILE)) for size, pad, taps in axes
    )
    tiles_of_rows = z.h * minimum(ceil_div(z.w, FFT_TILE), TILES_AT_ONCE)
    tiles = where(along_rows, tiles_of_rows, minimum(rows * columns, TILES_AT_ONCE))
    planes = z.n * tiles * (z.channels_in + z.channels_out) + z.channels_in * z.channels_out
    return planes * _frequency_bytes(z, where(along_rows, 1, FFT_TILE), FFT_TILE)
