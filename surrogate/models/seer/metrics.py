"""What `seer-paper` learns from: the main kernel of every row, joined from a dataset's kernel table."""

import numpy as np
import pandas as pd

from surrogate.dataset.columns import ROW_KEY
from surrogate.features.errors import InputError
from surrogate.features.gpu import gpu
from surrogate.features.occupancy import LIMITS, b_max
from surrogate.models.seer.classify import kernel_class
from surrogate.models.seer.variants import variant_name

COUNTERS = (
    "blocks", "b_max", "waves", "fp32_instructions", "dram_read_transactions", "dram_write_transactions",
    "fp32_utilization_pct", "dram_utilization_pct",
)  # fmt: skip
METRIC_COLUMNS = ("variant", *COUNTERS, "main_kernel_us", "other_kernels_us", "kernel_class")
"""Columns that `with_kernel_metrics` adds; counters are those of the whole main kernel, not per block."""
_OPTIONAL = ("time_us", *COUNTERS, "kernel_class", "tile")
_LAUNCH = (
    "block_x",
    "block_y",
    "block_z",
    "registers_per_thread",
    "static_shared_bytes",
    "dynamic_shared_bytes",
)


def with_kernel_metrics(frame: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """``frame`` (dataset rows, in order) with `METRIC_COLUMNS` of each row's main kernel; NaN where it has no kernels.

    ``kernels``: the table of ``NAME.kernels.parquet``. The main kernel is the one with the most FP32 instructions (else
    the longest, else the first); the rest is im2col, transforms and the like, of which only the summed time counts.
    ``kernel_class``: 0, 1, 2 as in `kernel_class`, from the table or the two utilisations. A missing B_max comes from
    the launch's occupancy. Raises `InputError` where the kernel table lacks its key.
    """
    key = [*ROW_KEY, *(["solver"] if "solver" in frame and "solver" in kernels else [])]
    missing = [name for name in (*key, "kernel_index", "kernel_name") if name not in kernels]
    if missing:
        raise InputError(
            f"the kernel table lacks {', '.join(missing)}; it must be keyed like its dataset, as `seer import` does"
        )
    absent = dict.fromkeys((name for name in _OPTIONAL if name not in kernels), np.nan)
    main = _main_kernels(kernels.assign(**absent), key)
    bare = frame.drop(columns=list(METRIC_COLUMNS), errors="ignore")
    joined = bare.merge(main, on=key, how="left", validate="many_to_one")
    return joined.set_index(frame.index)


def _main_kernels(kernels: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """One row per key: `METRIC_COLUMNS` of its main kernel."""
    rank = kernels.assign(
        _work=-kernels["fp32_instructions"].fillna(-1), _time=-kernels["time_us"].fillna(-1)
    ).sort_values(["_work", "_time", "kernel_index"], kind="stable")
    main = rank.drop_duplicates(key).copy()
    whole = kernels.groupby(key, sort=False).agg(
        total_us=("time_us", "sum"), known_class=("kernel_class", "first")
    )
    main = main.merge(whole.reset_index(), on=key, validate="one_to_one")
    main["main_kernel_us"] = main["time_us"]
    main["other_kernels_us"] = main["total_us"] - main["time_us"].fillna(0.0)
    main["variant"] = [
        variant_name(algorithm, name, tile)
        for algorithm, name, tile in zip(main["algorithm"], main["kernel_name"], main["tile"], strict=True)
    ]
    main["b_max"] = main["b_max"].astype(float).fillna(_occupied(main))
    counted = main["fp32_utilization_pct"].notna() & main["dram_utilization_pct"].notna()
    bound = kernel_class(main["fp32_utilization_pct"].to_numpy(), main["dram_utilization_pct"].to_numpy())
    main["kernel_class"] = main["known_class"].astype(float).fillna(pd.Series(bound).where(counted))
    return main[[*key, *METRIC_COLUMNS]]


def _occupied(main: pd.DataFrame) -> pd.Series:
    """B_max of each launch by the occupancy formula; NaN where the launch or the GPU's limits are not known."""
    result = pd.Series(np.nan, index=main.index)
    if not set(_LAUNCH) <= set(main):
        return result
    known = main["b_max"].isna() & main[list(_LAUNCH)].notna().all(axis=1)
    for name, part in main[known].groupby("gpu"):
        device = gpu(str(name))
        if device.compute_capability in LIMITS:
            x, y, z, registers, static, dynamic = (part[c].to_numpy(dtype=np.int64) for c in _LAUNCH)
            result[part.index] = b_max(device, x * y * z, registers, static, dynamic)
    return result.where(result > 0)
