"""All columns of all tables that this package writes (`columns.toml`), with name, type, unit and meaning."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from surrogate.features.errors import InputError, RowError, check_choice, nearest, read_toml
from surrogate.features.families import DEFAULT_FAMILY, FAMILIES

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1
"""Version of the parquet layout. History: 1, the first."""
STATUSES = ("ok", "not_supported", "workspace_too_large", "failed")
CANDIDATES = ("all", "listed")
"""``all``: every algorithm was tried, so a missing row is unmeasured. ``listed``: a censored list, such as MIOpen's."""
LAYOUT_ALIASES = {"NCHW-NCHW-NCHW": "NCHW", "NHWC-NHWC-NHWC": "NHWC"}
"""MIOpen's spelling → layout, if input, filter and output have the same layout."""
FAMILY_COLUMN = "family"
MICROSECONDS = {"time_s": 1e6, "time_ms": 1e3, "time_ns": 1e-3}
"""Column of times in another unit → its factor to µs."""
_CONTENT = read_toml(__file__)
TABLES: dict[str, str] = _CONTENT["tables"]
"""Table → a text with its file and rows."""


def absent_hint(column: str, names: Sequence[str]) -> str:
    """Return how to give an absent column: times of another unit, or the most similar of the ``names``."""
    other = next((each for each in MICROSECONDS if column == "time_us" and each in names), "")
    return f"; multiply {other} by {MICROSECONDS[other]:g} into time_us" if other else nearest(column, names)


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``kind`` is text, int64, float64 or boolean; ``unit`` is empty if the values have no unit."""

    table: str
    name: str
    kind: str
    unit: str
    required: bool
    meaning: str


def columns(table: str | None = None) -> tuple[Column, ...]:
    """Return the columns of ``table`` in order (None: of all tables). Raises `InputError` for an unknown table."""
    if table is not None:
        check_choice("table", table, TABLES)
    return tuple(column for column in COLUMNS if table in (None, column.table))


def names(table: str, *, required: bool | None = None) -> tuple[str, ...]:
    """Return the names of the table's columns; with ``required``, only the columns that are (or are not) required."""
    return tuple(column.name for column in columns(table) if required in (None, column.required))


def _declared(table: str, section: str = "") -> Iterator[Column]:
    """Yield the columns of ``table`` from `columns.toml`, required ones first; ``section`` overrides its section."""
    for need, rows in _CONTENT[section or table].items():
        for name, (kind, unit, meaning) in rows.items():
            yield Column(table, name, kind, unit, need == "required", meaning)


def _copied(table: str, source: Sequence[Column], names: Sequence[str], optional: str = "") -> Iterator[Column]:
    """Yield columns of another table, with the same names; all but ``optional`` are required."""
    by_name = {column.name: column for column in source}
    for name in names:
        yield replace(by_name[name], table=table, required=name != optional)


def _sizes() -> Iterator[Column]:
    """Yield every size of every family once, with its meaning in each family."""
    for name in dict.fromkeys(name for family in FAMILIES.values() for name in family.size_names):
        meanings: dict[str, list[str]] = {}
        units = {}
        for family in FAMILIES.values():
            for size in family.sizes:
                if size.name == name:
                    meanings.setdefault(size.meaning, []).append(family.name)
                    units[size.unit] = None
        meaning = "; ".join(f"{text} ({', '.join(families)})" for text, families in meanings.items())
        yield Column("dataset", name, "int64", next(iter(units)) if len(units) == 1 else "", True, meaning)


def _settings() -> Iterator[Column]:
    """Yield the settings in `columns.toml`, then the settings that only some families declare."""
    yield from _declared("dataset", "settings")
    for name in dict.fromkeys(name for family in FAMILIES.values() for name in family.setting_meanings):
        declaring = [family for family in FAMILIES.values() if name in family.setting_meanings]
        meaning = f"{declaring[0].setting_meanings[name]}; {', '.join(family.name for family in declaring)}"
        yield Column("dataset", name, "text", "", True, meaning)


SETTING_COLUMNS = tuple(column.name for column in _settings())
"""Text columns that are part of a row's key: device, library and settings."""
SIZE_COLUMNS = tuple(column.name for column in _sizes())
"""Sizes of all families. A size is 0 if the row's family does not have it."""
_DEFAULT = FAMILIES[DEFAULT_FAMILY]
ROW_KEY = _DEFAULT.row_key
"""Key of a row in a table of the default family; each other family has its own (`Family.row_key`)."""

_DATASET = (*_settings(), *_sizes(), *_declared("dataset"))
_PREDICTIONS = tuple(_declared("predictions"))
COLUMNS = (
    *_DATASET,
    *_copied("kernels", _DATASET, ROW_KEY),
    *_declared("kernels"),
    *_PREDICTIONS,
    *_declared("time_rows", "slice"),
    *_declared("time_rows"),
    *_declared("choice_rows", "slice"),
    *_declared("choice_rows"),
    *_declared("held_out"),
    *_copied("held_out", _DATASET, (*ROW_KEY, "solver", "status", "time_us"), optional="solver"),
    *_copied("held_out", _PREDICTIONS, ("predicted_us", "supported")),
    *_declared("choices"),
    *_copied("choices", _DATASET, (*_DEFAULT.problem_key, "networks"), optional="networks"),
    *_copied("folds", _DATASET, _DEFAULT.shape_names),
    *_declared("folds"),
)
"""All columns, table by table."""
_KERNELS = list(_CONTENT["kernels"]["optional"])
KERNEL_NUMBERS = tuple(_KERNELS[: _KERNELS.index("l2_read_sectors")])
"""Numeric columns of a kernel table, after its key, ``kernel_index`` and ``kernel_name``; more counters may follow."""
NUMBER_COLUMNS = (*(c.name for c in _DATASET if c.kind == "float64"), "repeats")
TEXT_COLUMNS = tuple(c.name for c in _DATASET if c.kind == "text")
"""Columns of a dataset that `normalise` turns into text. The columns in `NUMBER_COLUMNS` become float64."""


def numbers(values: "pd.Series", column: str, name: str) -> "pd.Series":
    """Return a column as float64, with NaN for empty cells.

    Raises `InputError`, which begins with ``name``, for a cell that is no number.
    """
    import pandas as pd  # imported here: a measuring process needs only the names, and starts in half the time

    if values.dtype.kind in "mM":  # pandas would count nanoseconds
        raise InputError(f"{name}: {column} holds dates or durations ({values.dtype}); a number is needed")
    try:
        return pd.to_numeric(values).astype(np.float64)
    except (TypeError, ValueError):
        found = pd.to_numeric(values, errors="coerce")
        row = int(np.flatnonzero((found.isna() & values.notna()).to_numpy())[0])
        remedy = "; if the row failed, leave it empty, and write failed in a column status" * (column == "time_us")
        cell = values.tolist()[row]
        raise RowError(name, row, f"{column} is {cell!r}; a number is needed, as in 7.5{remedy}") from None
