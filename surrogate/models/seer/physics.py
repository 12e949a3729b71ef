"""SEER's formulas: launched blocks, waves, classes and the three time forms.

Source: SEER (PACT 2021) and its public repository.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from surrogate.dataset.rows import Rows
from surrogate.features.elementwise import Number, ceil_div, where
from surrogate.features.errors import InputError
from surrogate.features.families import CONV
from surrogate.features.terms import output_size


class Sizes(NamedTuple):
    """N, C, K, W, O, k and the stride: numbers, or arrays of one length."""

    batch: Number
    channels: Number
    outputs: Number
    width: Number
    out_width: Number
    filter_width: Number
    stride: Number

    def take(self, index: np.ndarray) -> "Sizes":
        """Return the rows that ``index`` selects from arrays."""
        return Sizes(*(column[index] for column in self))


def sizes_of(frame: pd.DataFrame) -> Sizes:
    """Return the sizes of a table of square problems, int64."""
    names = ("n", "c", "k", "w", "s", "pad_w", "stride_w")
    n, c, k, w, s, pad, stride = (frame[name].to_numpy(dtype=np.int64) for name in names)
    return Sizes(n, c, k, w, out_width=output_size(w, s, pad, stride, dilation=1), filter_width=s, stride=stride)


def in_domain(frame: pd.DataFrame) -> np.ndarray:
    """Return True (rows,) in SEER's domain: cuDNN, forward, fp32, NCHW, square, undilated, ungrouped."""
    square = np.ones(len(frame), dtype=bool)
    for height, width in (("h", "w"), ("r", "s"), ("stride_h", "stride_w"), ("pad_h", "pad_w")):
        square &= (frame[height] == frame[width]).to_numpy()
    simple = (frame[["dilation_h", "dilation_w", "groups"]] == 1).all(axis=1).to_numpy()
    settings = {"library": "cudnn", "direction": "fwd", "dtype": "fp32", "layout": "NCHW"}
    return square & simple & np.logical_and.reduce([(frame[n] == v).to_numpy() for n, v in settings.items()])


def require_convolutions(rows: Rows, model: str) -> None:
    """Raise `InputError` if the rows are of another family: SEER models convolutions."""
    if rows.family is not CONV:
        raise InputError(f"{model} predicts convolutions; these rows are of family {rows.family.name}")


def feasible(algorithm: str, sizes: Sizes) -> np.ndarray:
    """Return True (rows,) if SEER lets the algorithm run.

    WINOGRAD needs k = 3, non-fused Winograd 3 or 5. All algorithms but GEMMs need stride 1.
    """
    k = sizes.filter_width
    ones = sizes.stride == 1
    fitting = {"WINOGRAD": k == 3, "WINOGRAD_NONFUSED": (k == 3) | (k == 5)}
    fitting |= {"FFT": sizes.width <= 256, "FFT_TILING": k <= 32}
    return ones & fitting[algorithm] if algorithm in fitting else np.ones_like(ones)


COMPUTE, MEMORY, UNDER_UTILISED = range(3)
HIGH_PCT = 80.0
"""Utilisation from which a unit limits the kernel: level 8 of nvprof's 0 … 10."""


def kernel_class(fp32_utilization_pct: Number, dram_utilization_pct: Number) -> Number:
    """Return 0 (compute-bound) if FP32 utilisation is at least 80 %, else 1 (memory-bound) if DRAM's is, else 2."""
    otherwise = where(dram_utilization_pct >= HIGH_PCT, MEMORY, UNDER_UTILISED)
    return where(fp32_utilization_pct >= HIGH_PCT, COMPUTE, otherwise)


def roofline_class(compute_us: np.ndarray, memory_us: np.ndarray, waves: np.ndarray) -> np.ndarray:
    """Return the class (rows,) without counters: 2 below one wave, else 0 or 1 by the longer roofline time."""
    return np.where(waves < 1, UNDER_UTILISED, np.where(compute_us >= memory_us, COMPUTE, MEMORY))


WINOGRAD_NONFUSED_STAGE = {3: (4, 36), 5: (9, 169)}
"""Filter width → (output tile's side, batched GEMMs) of non-fused Winograd."""


def gemm_blocks(batch: Number, out_width: Number, outputs: Number, tile_m: int, tile_n: int) -> Number:
    """Return the blocks of the GEMM family: ⌈N·O²/t_m⌉·⌈K/t_n⌉."""
    return ceil_div(batch * out_width * out_width, tile_m) * ceil_div(outputs, tile_n)


def winograd_blocks(batch: Number, width: Number, outputs: Number, tile: tuple[int, int, int]) -> Number:
    """Return the blocks of fused Winograd with tile (b, p, q): ⌈N/b⌉·⌈⌈W/2⌉/p⌉·⌈⌈W/2⌉/q⌉·⌈K/32⌉."""
    images, rows, columns = tile
    across = ceil_div(width, 2)
    spatial = ceil_div(across, rows) * ceil_div(across, columns)
    return ceil_div(batch, images) * spatial * ceil_div(outputs, 32)


def winograd_nonfused_blocks(
    batch: Number, out_width: Number, outputs: Number, filter_width: int, tile_n: int
) -> Number:
    """Return the blocks of non-fused Winograd's GEMMs.

    k = 3: ⌈N·⌈O/4⌉²/128⌉·⌈K/t_n⌉·36; k = 5: ⌈N·⌈O/9⌉²/128⌉·⌈K/t_n⌉·169. The original predicts with t_n = 64 for every
    tile, which doubles the blocks of 128×128.
    """
    side, gemms = WINOGRAD_NONFUSED_STAGE[filter_width]
    across = ceil_div(out_width, side)
    return ceil_div(batch * across * across, 128) * ceil_div(outputs, tile_n) * gemms


PUBLISHED_TILE_N = 64
"""t_n of every tile of non-fused Winograd in the original's predictions."""


def launched_blocks(algorithm: str, tile: str, s: Sizes, published: bool = False) -> Number:
    """Return the blocks of one algorithm's main kernel for a tile (``128x64``, ``1x4x8``); NaN without a rule.

    All problems of non-fused Winograd must have the first one's filter width. If ``published``, t_n is the original's.
    """
    sizes = tile_sizes(tile)
    if algorithm == "WINOGRAD" and len(sizes) == 3:
        return winograd_blocks(s.batch, s.width, s.outputs, (sizes[0], sizes[1], sizes[2]))
    filter_width = int(np.ravel(s.filter_width)[0])
    if algorithm == "WINOGRAD_NONFUSED" and len(sizes) == 2 and filter_width in WINOGRAD_NONFUSED_STAGE:
        tile_n = PUBLISHED_TILE_N if published else sizes[1]
        return winograd_nonfused_blocks(s.batch, s.out_width, s.outputs, filter_width=filter_width, tile_n=tile_n)
    if not algorithm.startswith("WINOGRAD") and len(sizes) == 2:
        return gemm_blocks(s.batch, s.out_width, s.outputs, tile_m=sizes[0], tile_n=sizes[1])
    return 0 * s.batch + float("nan")


def tile_sizes(tile: str) -> tuple[int, ...]:
    """Return ``128x64`` as (128, 64), or () for a name that is not a tile."""
    parts = tile.split("x")
    return tuple(map(int, parts)) if len(parts) in (2, 3) and all(part.isdigit() for part in parts) else ()


Terms = tuple[Number, ...]
FFT_TILE = 32


class Waves(NamedTuple):
    """``count`` n = ⌈B / B_max⌉, and ``last_share`` ε = (B − (n − 1)·B_max) / B_max in (0, 1]."""

    count: Number
    last_share: Number


def waves(blocks: Number, b_max: Number) -> Waves:
    """Return the waves of ``blocks`` launched blocks B on a device that holds ``b_max`` of them."""
    count = ceil_div(blocks, b_max)
    return Waves(count, (blocks - (count - 1) * b_max) / b_max)


def compute_terms(w: Waves, b_max: Number, instructions: Number) -> Terms:
    """Return the terms of compute-bound time: n·(a·B_max·I + b)."""
    return w.count * b_max * instructions, w.count


def memory_terms(w: Waves, b_max: Number, reads: Number, writes: Number) -> Terms:
    """Return the terms of memory-bound time: (n − 1 + ε)·a·B_max·(R + Wr) + b."""
    return (w.count - 1 + w.last_share) * b_max * (reads + writes), 1.0


def under_utilised_terms(w: Waves, b_max: Number, instructions: Number, reads: Number, writes: Number) -> Terms:
    """Return the terms of under-utilised time, with coefficients a, b, c, d.

    The time is (n − 1 + ε)·(a·B_max·R + d·B_max·Wr) + b·n·B_max·I + c.
    """
    filled = (w.count - 1 + w.last_share) * b_max
    return filled * reads, w.count * b_max * instructions, 1.0, filled * writes


def time_terms(bound: int, w: Waves, b_max: Number, instructions: Number, reads: Number, writes: Number) -> Terms:
    """Return the terms of a class's time form: compute-bound, memory-bound or under-utilised."""
    if bound == COMPUTE:
        return compute_terms(w, b_max, instructions)
    if bound == MEMORY:
        return memory_terms(w, b_max, reads, writes)
    return under_utilised_terms(w, b_max, instructions=instructions, reads=reads, writes=writes)


def gemm_instruction_terms(channels: Number, filter_width: Number) -> Terms:
    """Return the terms of instructions per block of the GEMM family: a·k²·C + b."""
    return filter_width * filter_width * channels, 1.0


def winograd_instruction_terms(channels: Number) -> Terms:
    """Return the terms of instructions per block of both Winograd algorithms: a·⌈C/8⌉ + b."""
    return ceil_div(channels, 8), 1.0


def im2col_terms(s: Sizes) -> Terms:
    """Return the terms of the time of GEMM's im2col: a·N·O²·k²·C + b·K·k²·C + c."""
    depth = s.filter_width**2 * s.channels
    return s.batch * s.out_width**2 * depth, s.outputs * depth, 1.0


def transform_terms(s: Sizes) -> Terms:
    """Return the terms of the time of non-fused Winograd's transforms (data, filter, output).

    The time is a·N·C·W² + b·N·C·K·k² + c·N·K·O² + d.
    """
    data = s.batch * s.channels * s.width**2
    filters = s.batch * s.channels * s.outputs * s.filter_width**2
    return data, filters, s.batch * s.outputs * s.out_width**2, 1.0


def fft_terms(channels: Number, outputs: Number) -> Terms:
    """Return the terms of FFT's time in one width bucket: a·C + b·C·K + c·K + d."""
    return channels, channels * outputs, outputs, 1.0


def fft_tiling_terms(channels: Number, outputs: Number, out_width: Number, filter_width: Number) -> Terms:
    """Return the terms of FFT_TILING's time: FFT's form times ⌈O / (32 − k + 1)⌉² tiles.

    The filter width must be below 33.
    """
    across = ceil_div(out_width, FFT_TILE - filter_width + 1)
    tiles = across * across
    return channels * tiles, channels * outputs * tiles, outputs * tiles, tiles


def term_matrix(terms: Terms) -> np.ndarray:
    """Return the terms as columns (rows, terms), float64. Constants are repeated."""
    return np.column_stack(np.broadcast_arrays(*terms)).astype(np.float64)
