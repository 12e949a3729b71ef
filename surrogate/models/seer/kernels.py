"""Find the main kernel of every row and its variant, from which `seer-paper` learns."""

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from surrogate.dataset.columns import ROW_KEY
from surrogate.features.elementwise import Number, where
from surrogate.features.errors import InputError
from surrogate.features.gpu import gpu
from surrogate.features.kernels import LIMITS, identify, launch_b_max
from surrogate.models.seer.physics import Sizes, kernel_class, tile_sizes
from surrogate.models.seer.trees import Tree, tuned_tree

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
