"""SEER's formulas: each time or count is a sum of coefficient × term, and these are the terms.

Source: "SEER: A Time Prediction Model for CNNs from GPU Kernel's View" (PACT 2021) and its public fits. Symbols: N
batch, C input channels, K output channels, W input width, O output width, k filter width; I, R, Wr are FP32
instructions and 32-byte DRAM reads and writes *per block*. Every function takes numbers or arrays and returns the same
kind; a constant term is the number 1.0. `weighted_sum` joins terms with coefficients, whose unit is that of the
fitted target.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from surrogate.features.elementwise import Number, ceil_div

Terms = tuple[Number, ...]
FFT_TILE = 32


class Waves(NamedTuple):
    """``count`` n = ⌈B / B_max⌉, and ``last_share`` ε = (B − (n − 1)·B_max) / B_max in (0, 1]."""

    count: Number
    last_share: Number


def waves(blocks: Number, b_max: Number) -> Waves:
    """Waves of ``blocks`` launched blocks B on a device that holds ``b_max`` of them."""
    count = ceil_div(blocks, b_max)
    return Waves(count, (blocks - (count - 1) * b_max) / b_max)


def compute_terms(w: Waves, b_max: Number, instructions: Number) -> Terms:
    """Compute-bound time: n·(a·B_max·I + b)."""
    return w.count * b_max * instructions, w.count


def memory_terms(w: Waves, b_max: Number, reads: Number, writes: Number) -> Terms:
    """Memory-bound time: (n − 1 + ε)·a·B_max·(R + Wr) + b."""
    return (w.count - 1 + w.last_share) * b_max * (reads + writes), 1.0


def under_utilised_terms(
    w: Waves, b_max: Number, instructions: Number, reads: Number, writes: Number
) -> Terms:
    """Under-utilised time, coefficients a, b, c, d: (n − 1 + ε)·(a·B_max·R + d·B_max·Wr) + b·n·B_max·I + c."""
    filled = (w.count - 1 + w.last_share) * b_max
    return filled * reads, w.count * b_max * instructions, 1.0, filled * writes


def gemm_instruction_terms(channels: Number, filter_width: Number) -> Terms:
    """Instructions per block of the GEMM family: a·k²·C + b."""
    return filter_width * filter_width * channels, 1.0


def winograd_instruction_terms(channels: Number) -> Terms:
    """Instructions per block of both Winograd algorithms: a·⌈C/8⌉ + b."""
    return ceil_div(channels, 8), 1.0


def im2col_terms(
    batch: Number, channels: Number, outputs: Number, out_width: Number, filter_width: Number
) -> Terms:
    """Time of GEMM's im2col: a·N·O²·k²·C + b·K·k²·C + c."""
    depth = filter_width * filter_width * channels
    return batch * out_width * out_width * depth, outputs * depth, 1.0


def transform_terms(
    batch: Number, channels: Number, outputs: Number, width: Number, out_width: Number, filter_width: Number
) -> Terms:
    """Time of non-fused Winograd's transforms: a·N·C·W² + b·N·C·K·k² + c·N·K·O² + d (data, filter, output)."""
    return (
        batch * channels * width * width,
        batch * channels * outputs * filter_width * filter_width,
        batch * outputs * out_width * out_width,
        1.0,
    )


def fft_terms(channels: Number, outputs: Number) -> Terms:
    """FFT's time within one width bucket: a·C + b·C·K + c·K + d."""
    return channels, channels * outputs, outputs, 1.0


def fft_tiling_terms(channels: Number, outputs: Number, out_width: Number, filter_width: Number) -> Terms:
    """FFT_TILING's time: FFT's form times ⌈O / (32 − k + 1)⌉² tiles. The filter must be narrower than 33."""
    across = ceil_div(out_width, FFT_TILE - filter_width + 1)
    tiles = across * across
    return channels * tiles, channels * outputs * tiles, outputs * tiles, tiles


def weighted_sum(coefficients: Sequence[float], terms: Terms) -> Any:
    """Σ coefficient · term, in the unit of the fitted target."""
    if len(coefficients) != len(terms):
        raise ValueError(f"{len(coefficients)} coefficients for {len(terms)} terms")
    return sum(coefficient * term for coefficient, term in zip(coefficients, terms, strict=True))


def term_matrix(terms: Terms, length: int) -> np.ndarray:
    """Terms as columns (length, terms), float64; constants are repeated."""
    return np.column_stack([np.broadcast_to(np.asarray(term, dtype=np.float64), (length,)) for term in terms])
