"""The dataset's columns: one row per (device, library, settings, problem, algorithm[, solver])."""

from surrogate.dataset.columns import ROW_KEY, SETTING_COLUMNS, names
from surrogate.features.problem import SHAPE_COLUMNS, SIZE_COLUMNS

SCHEMA_VERSION = 1
"""Version of the parquet layout. History: 1, the first."""

PROBLEM_KEY = (*SETTING_COLUMNS, *SIZE_COLUMNS)
"""Columns whose values name one problem on one device: the set over which a choice is made."""

REQUIRED_COLUMNS = names("dataset", required=True)
PREDICTABLE_COLUMNS = ROW_KEY
"""What a table must hold to be predicted: neither status nor time."""

STATUSES = ("ok", "not_supported", "workspace_too_large", "failed")
CANDIDATES = ("all", "listed")
"""``all``: every algorithm was tried, a missing row is unmeasured. ``listed``: a censored list, such as MIOpen's."""

OPTIONAL_NUMBERS = (*names("dataset", required=False, kinds=("float64",)), "repeats")
OPTIONAL_TEXTS = names("dataset", required=False, kinds=("text",))

LAYOUT_ALIASES = {"NCHW-NCHW-NCHW": "NCHW", "NHWC-NHWC-NHWC": "NHWC"}
"""MIOpen's spelling of a layout shared by input, filter and output."""

_KERNELS = names("kernels")
_COUNTERS_FROM = _KERNELS.index("l2_read_sectors")
KERNEL_COLUMNS, KERNEL_COUNTERS = _KERNELS[:_COUNTERS_FROM], _KERNELS[_COUNTERS_FROM:]
"""Columns of ``NAME.kernels.parquet``, keyed like the dataset plus ``kernel_index``, and what joins them where it was
counted.
"""
KERNEL_NUMBERS = KERNEL_COLUMNS[KERNEL_COLUMNS.index("grid_x") :]

__all__ = [
    "CANDIDATES",
    "KERNEL_COLUMNS",
    "KERNEL_COUNTERS",
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
