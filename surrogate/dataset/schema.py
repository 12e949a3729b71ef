"""The dataset's columns: one row per (device, library, settings, problem, algorithm[, solver])."""

from features.problem import SHAPE_COLUMNS, SIZE_COLUMNS

SCHEMA_VERSION = 1
"""Version of the parquet layout. History: 1, the first."""

SETTING_COLUMNS = ("gpu", "library", "library_version", "direction", "dtype", "math", "layout")
"""Text columns that, with a problem, say what was measured where."""

PROBLEM_KEY = (*SETTING_COLUMNS, *SIZE_COLUMNS)
"""Columns whose values name one problem on one device: the set over which a choice is made."""

ROW_KEY = (*PROBLEM_KEY, "algorithm")
"""Columns whose values name one row; ``solver`` joins them where the table has it."""

REQUIRED_COLUMNS = (*PROBLEM_KEY, "algorithm", "status", "time_us")
PREDICTABLE_COLUMNS = (*PROBLEM_KEY, "algorithm")
"""What a table must hold to be predicted: neither status nor time."""

STATUSES = ("ok", "not_supported", "workspace_too_large", "failed")
CANDIDATES = ("all", "listed")
"""``all``: every algorithm was tried, a missing row is unmeasured. ``listed``: a censored list, such as MIOpen's."""

OPTIONAL_NUMBERS = ("time_us_min", "time_us_max", "repeats", "workspace_bytes", "find_time_us")
OPTIONAL_TEXTS = ("heuristic_algorithm", "networks", "origin", "solver")

LAYOUT_ALIASES = {"NCHW-NCHW-NCHW": "NCHW", "NHWC-NHWC-NHWC": "NHWC"}
"""MIOpen's spelling of a layout shared by input, filter and output."""

KERNEL_NUMBERS = (
    "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers_per_thread", "static_shared_bytes",
    "dynamic_shared_bytes", "time_us", "blocks", "b_max", "waves", "fp32_instructions", "dram_read_transactions",
    "dram_write_transactions", "fp32_utilization_pct", "dram_utilization_pct", "achieved_occupancy_pct",
)  # fmt: skip
KERNEL_COLUMNS = (*ROW_KEY, "kernel_index", "kernel_name", *KERNEL_NUMBERS)
"""Columns of ``NAME.kernels.parquet``, keyed like the dataset plus ``kernel_index``."""

__all__ = [
    "CANDIDATES",
    "KERNEL_COLUMNS",
    "KERNEL_NUMBERS",
    "LAYOUT_ALIASES",
    "OPTIONAL_NUMBERS",
    "OPTIONAL_TEXTS",
    "PREDICTABLE_COLUMNS",
    "PROBLEM_KEY",
    "REQUIRED_COLUMNS",
    "ROW_KEY",
    "SCHEMA_VERSION",
    "SETTING_COLUMNS",
    "SHAPE_COLUMNS",
    "SIZE_COLUMNS",
    "STATUSES",
]
