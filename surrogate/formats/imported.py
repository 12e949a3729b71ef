"""What every reader of a foreign file hands back, and the columns it fills."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from surrogate.features.problem import SIZE_COLUMNS

Progress = Callable[[int, int], None]
"""Called with (bytes read so far, bytes in all) of the file at hand."""

Table = Literal["problems", "launches", "gemm", "operators"]
"""What a row is: a measured convolution, a kernel launch without a problem, a GEMM, or another operator."""

KEY_COLUMNS = (
    "gpu", "library", "library_version", "direction", "dtype", "math", "layout", *SIZE_COLUMNS, "algorithm",
)  # fmt: skip
"""The columns that name one dataset row."""

KERNEL_NUMBERS = (
    "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers_per_thread",
    "static_shared_bytes", "dynamic_shared_bytes", "time_us", "blocks", "b_max", "waves", "fp32_instructions",
    "dram_read_transactions", "dram_write_transactions", "fp32_utilization_pct", "dram_utilization_pct",
    "achieved_occupancy_pct",
)  # fmt: skip
"""The numbers of a kernel table, after its key, ``kernel_index`` and ``kernel_name``."""

KERNEL_COUNTERS = (
    "l2_read_sectors", "l2_write_sectors", "fma_pipe_instructions", "tensor_pipe_instructions", "sm_cycles",
    "ffma_instructions", "fadd_instructions", "fmul_instructions", "fp16_instructions", "integer_instructions",
)  # fmt: skip
"""What joins them where Nsight Compute counted it."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The content of one or more foreign files.

    ``rows``: dataset rows (`KEY_COLUMNS`, ``status``, ``time_us`` …), or the rows of another ``table``; empty
    where the files hold kernel launches only. ``kernels``: kernels keyed like the rows (or, for ``launches``,
    by ``kernel_index`` alone). ``candidates``: ``all`` or ``listed``, as a dataset stores it. ``notes``: what
    was left out or assumed, one sentence each.
    """

    rows: pd.DataFrame
    kernels: pd.DataFrame | None = None
    candidates: Literal["all", "listed"] = "all"
    notes: tuple[str, ...] = ()
    table: Table = "problems"


def no_rows() -> pd.DataFrame:
    """A dataset without rows, with the key, status and time columns."""
    return pd.DataFrame({name: [] for name in (*KEY_COLUMNS, "status", "time_us")})


def cudnn_settings(gpu: str, library_version: str) -> dict[str, Any]:
    """The setting columns of a cuDNN forward convolution in fp32 FMA arithmetic and NCHW layout."""
    return {
        "gpu": gpu,
        "library": "cudnn",
        "library_version": library_version,
        "direction": "fwd",
        "dtype": "fp32",
        "math": "fma",
        "layout": "NCHW",
    }


def plural(count: int, noun: str) -> str:
    """``1 row``, ``2 rows``, ``2 launches``."""
    ending = "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{'' if count == 1 else ending}"
