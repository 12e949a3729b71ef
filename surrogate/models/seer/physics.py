"""SEER's formulas: launched blocks, waves, classes, the three time forms; and the main kernel of every row.

Source: SEER (PACT 2021) and its public repository. `seer-paper` learns from main kernels and their variants.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from surrogate.dataset.columns import ROW_KEY
from surrogate.dataset.rows import Rows
from surrogate.features import LIMITS, InputError, Number, ceil_div, identify, launch_b_max, output_size, where
from surrogate.features.families import CONV
from surrogate.features.gpu import gpu
from surrogate.models.seer.trees import Tree, tuned_tree


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


PUBLISHED_TILE_N = 64
"""t_n of every tile of non-fused Winograd in the original's predictions."""


def launched_blocks(algorithm: str, tile: str, s: Sizes, published: bool = False) -> Number:
    """Return the blocks of one algorithm's main kernel for a tile (``128x64``, ``1x4x8``); NaN without a rule.

    GEMM family: ⌈N·O²/t_m⌉·⌈K/t_n⌉. Fused Winograd with tile (b, p, q): ⌈N/b⌉·⌈⌈W/2⌉/p⌉·⌈⌈W/2⌉/q⌉·⌈K/32⌉. Non-fused
    Winograd: ⌈N·⌈O/4⌉²/128⌉·⌈K/t_n⌉·36 for k = 3, ⌈N·⌈O/9⌉²/128⌉·⌈K/t_n⌉·169 for k = 5. All its problems must have the
    first one's filter width. If ``published``, t_n is 64 for every tile as in the original's predictions, which doubles
    the blocks of 128×128.
    """
    sizes = tile_sizes(tile)
    if algorithm == "WINOGRAD" and len(sizes) == 3:
        across, (images, rows, columns) = ceil_div(s.width, 2), sizes
        spatial = ceil_div(across, rows) * ceil_div(across, columns)
        return ceil_div(s.batch, images) * spatial * ceil_div(s.outputs, 32)
    filter_width = int(np.ravel(s.filter_width)[0])
    if algorithm == "WINOGRAD_NONFUSED" and len(sizes) == 2 and filter_width in WINOGRAD_NONFUSED_STAGE:
        side, gemms = WINOGRAD_NONFUSED_STAGE[filter_width]
        across = ceil_div(s.out_width, side)
        tile_n = PUBLISHED_TILE_N if published else sizes[1]
        return ceil_div(s.batch * across * across, 128) * ceil_div(s.outputs, tile_n) * gemms
    if not algorithm.startswith("WINOGRAD") and len(sizes) == 2:
        return ceil_div(s.batch * s.out_width * s.out_width, sizes[0]) * ceil_div(s.outputs, sizes[1])
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


def time_terms(bound: int, w: Waves, b_max: Number, instructions: Number, reads: Number, writes: Number) -> Terms:
    """Return the terms of a class's time form.

    Compute-bound: n·(a·B_max·I + b). Memory-bound: (n − 1 + ε)·a·B_max·(R + Wr) + b. Under-utilised, with the
    coefficients a, b, c, d: (n − 1 + ε)·(a·B_max·R + d·B_max·Wr) + b·n·B_max·I + c.
    """
    computed, filled = w.count * b_max * instructions, (w.count - 1 + w.last_share) * b_max
    if bound == COMPUTE:
        return computed, w.count
    if bound == MEMORY:
        return filled * (reads + writes), 1.0
    return filled * reads, computed, 1.0, filled * writes


def is_winograd(algorithm: str) -> bool:
    """Return whether the algorithm is fused or non-fused Winograd."""
    return algorithm.startswith("WINOGRAD")


def instruction_terms(algorithm: str, s: Sizes) -> Terms:
    """Return the terms of instructions per block: a·k²·C + b in the GEMM family, a·⌈C/8⌉ + b for Winograd."""
    return ceil_div(s.channels, 8) if is_winograd(algorithm) else s.filter_width**2 * s.channels, 1.0


def extra_terms(algorithm: str, s: Sizes) -> Terms:
    """Return the terms of the time of the kernels before and after the main kernel.

    GEMM's im2col: a·N·O²·k²·C + b·K·k²·C + c. Non-fused Winograd's transforms of data, filter and output:
    a·N·C·W² + b·N·C·K·k² + c·N·K·O² + d.
    """
    if algorithm == "GEMM":
        depth = s.filter_width**2 * s.channels
        return s.batch * s.out_width**2 * depth, s.outputs * depth, 1.0
    filters = s.batch * s.channels * s.outputs * s.filter_width**2
    return s.batch * s.channels * s.width**2, filters, s.batch * s.outputs * s.out_width**2, 1.0


def fft_terms(algorithm: str, s: Sizes) -> Terms:
    """Return the terms of FFT's time in one width bucket: a·C + b·C·K + c·K + d.

    FFT_TILING's time is this form times ⌈O / (32 − k + 1)⌉² tiles. Its filter width must be below 33.
    """
    tiles = ceil_div(s.out_width, FFT_TILE - s.filter_width + 1) ** 2 if algorithm == "FFT_TILING" else 1.0
    return s.channels * tiles, s.channels * s.outputs * tiles, s.outputs * tiles, tiles


def term_matrix(terms: Terms) -> np.ndarray:
    """Return the terms as columns (rows, terms), float64. Constants are repeated."""
    return np.column_stack(np.broadcast_arrays(*terms)).astype(np.float64)


GEMM_P = "IMPLICIT_PRECOMP_GEMM"
GEMM_P_TILES = ("128x32", "128x64", "128x128")
MIN_OUTPUTS = 32
"""Minimum K in the inputs of trees that clamp K."""
_WINOGRAD_TILE = re.compile(r"tile(\d)(\d)(\d)")


def variant_name(algorithm: str, kernel_name: str, tile: object = None) -> str:
    """Return the tile of a main kernel (``128x64``, ``1x4x8``), from the table's ``tile`` or the kernel's name.

    If the name has no tile, it is the variant's name.
    """
    if isinstance(tile, str) and tile:
        return tile
    images = _WINOGRAD_TILE.search(kernel_name) if algorithm == "WINOGRAD" else None
    if images:
        return "x".join(images.groups())
    kernel = identify(kernel_name)
    return f"{kernel.tile_m}x{kernel.tile_n}" if kernel and kernel.tile_m else kernel_name


def gemm_p_tile(outputs: Number) -> Number:
    """Return the position in `GEMM_P_TILES` of GEMM-P's tile for K (SEER, PACT 2021, measured on cuDNN 7).

    128×32 if K ≤ 32 or 64 < K ≤ 96; 128×64 if 32 < K ≤ 64, 128 < K ≤ 192 or 256 < K ≤ 320; else 128×128.
    """
    k = outputs
    narrow = (k <= 32) | ((k > 64) & (k <= 96))
    middle = ((k > 32) & (k <= 64)) | ((k > 128) & (k <= 192)) | ((k > 256) & (k <= 320))
    return where(narrow, 0, where(middle, 1, 2))


@dataclass(frozen=True, slots=True)
class TilePredictor:
    """Predictor of the tile: a classification tree on C, W, K, O, k and stride, or (no tree) `gemm_p_tile`."""

    tiles: tuple[str, ...]
    tree: Tree | None

    @classmethod
    def fit(cls, algorithm: str, sizes: Sizes, tiles: np.ndarray, seed: int, evaluations: int) -> "TilePredictor":
        """Fit on measured rows. GEMM-P's rule is used if all its kernels have the three tiles of the rule."""
        names = tuple(sorted(set(tiles), key=lambda name: (tile_sizes(name), name)))
        if algorithm == GEMM_P and set(names) <= set(GEMM_P_TILES):
            return cls(GEMM_P_TILES, None)
        code = np.array([names.index(name) for name in tiles])
        return cls(names, tuned_tree(tree_inputs(sizes), code, classify=True, seed=seed, evaluations=evaluations))

    def choose(self, sizes: Sizes) -> np.ndarray:
        """Return positions in ``tiles`` (rows,)."""
        if self.tree is None:
            return np.asarray(gemm_p_tile(sizes.outputs))
        return self.tree.predict(tree_inputs(sizes)).astype(np.int64)


def tree_inputs(s: Sizes, clamp: bool = False) -> np.ndarray:
    """Return the columns C, W, K, O, k and stride, (rows, 6)."""
    outputs = np.maximum(s.outputs, MIN_OUTPUTS) if clamp else s.outputs
    return np.column_stack([s.channels, s.width, outputs, s.out_width, s.filter_width, s.stride])


COUNTERS = (
    *("blocks", "b_max", "waves", "fp32_instructions", "dram_read_transactions", "dram_write_transactions"),
    *("fp32_utilization_pct", "dram_utilization_pct"),
)
METRIC_COLUMNS = ("variant", *COUNTERS, "main_kernel_us", "other_kernels_us", "kernel_class")
"""Columns that `with_kernel_metrics` adds. Counters are of the main kernel in total, not per block."""
_OPTIONAL = ("time_us", *COUNTERS, "kernel_class", "tile")
_LAUNCH = ("block_x", "block_y", "block_z", "registers_per_thread", "static_shared_bytes", "dynamic_shared_bytes")


def with_kernel_metrics(frame: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """Add the `METRIC_COLUMNS` of each row's main kernel; NaN if the row has no kernels.

    The main kernel has the most FP32 instructions, or else the longest time, or else the first index. The other kernels
    (im2col, transforms and similar) count by their summed time only. The column ``kernel_class`` is 0, 1, 2 as in
    `kernel_class`, from the table or from the two utilisations. A missing B_max comes from the launch's occupancy.

    Parameters
    ----------
    frame
        Dataset rows. Their order is kept.
    kernels
        The table of ``NAME.kernels.parquet``.

    Raises
    ------
    InputError
        If the kernel table lacks its key.
    """
    key = [*ROW_KEY, *(["solver"] if "solver" in frame and "solver" in kernels else [])]
    missing = [name for name in (*key, "kernel_index", "kernel_name") if name not in kernels]
    if missing:
        raise InputError(f"the kernel table lacks {', '.join(missing)}; give it the key columns of its dataset")
    absent = dict.fromkeys((name for name in _OPTIONAL if name not in kernels), np.nan)
    main = _main_kernels(kernels.assign(**absent), key)
    bare = frame.drop(columns=list(METRIC_COLUMNS), errors="ignore")
    return bare.merge(main, on=key, how="left", validate="many_to_one").set_index(frame.index)


def _main_kernels(kernels: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Return one row per key: `METRIC_COLUMNS` of its main kernel."""
    work, time_us = (-kernels[name].fillna(-1) for name in ("fp32_instructions", "time_us"))
    order = ["_work", "_time", "kernel_index"]
    rank = kernels.assign(_work=work, _time=time_us).sort_values(order, kind="stable")
    main = rank.drop_duplicates(key).copy()
    totals = kernels.groupby(key, sort=False).agg(total_us=("time_us", "sum"), table_class=("kernel_class", "first"))
    main = main.merge(totals.reset_index(), on=key, validate="one_to_one")
    main["main_kernel_us"] = main["time_us"]
    main["other_kernels_us"] = main["total_us"] - main["time_us"].fillna(0.0)
    names = zip(main["algorithm"], main["kernel_name"], main["tile"], strict=True)
    main["variant"] = [variant_name(*each) for each in names]
    main["b_max"] = main["b_max"].astype(float).fillna(_occupied(main))
    counted = main["fp32_utilization_pct"].notna() & main["dram_utilization_pct"].notna()
    bound = kernel_class(main["fp32_utilization_pct"].to_numpy(), main["dram_utilization_pct"].to_numpy())
    main["kernel_class"] = main["table_class"].astype(float).fillna(pd.Series(bound).where(counted))
    return main[[*key, *METRIC_COLUMNS]]


def _occupied(main: pd.DataFrame) -> pd.Series:
    """Return B_max of each launch by the occupancy formula; NaN if the launch or the GPU's limits are unknown."""
    result = pd.Series(np.nan, index=main.index)
    if not set(_LAUNCH) <= set(main):
        return result
    computable = main["b_max"].isna() & main[list(_LAUNCH)].notna().all(axis=1)
    for name, part in main[computable].groupby("gpu"):
        device = gpu(str(name))
        if device.compute_capability in LIMITS:
            x, y, z, registers, static, dynamic = (part[c].to_numpy(dtype=np.int64) for c in _LAUNCH)
            result[part.index] = launch_b_max(device, x * y * z, registers, static, dynamic_shared_bytes=dynamic)
    return result.where(result > 0)
