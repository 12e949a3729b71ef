"""Every column of every table that this package writes (`columns.toml`): its name, type, unit and meaning."""

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from surrogate.features.errors import InputError, RowError, check_choice
from surrogate.features.families import DEFAULT_FAMILY, FAMILIES

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1
"""Version of the parquet layout. History: 1, the first."""
STATUSES = ("ok", "not_supported", "workspace_too_large", "failed")
CANDIDATES = ("all", "listed")
"""``all``: every algorithm was tried, a missing row is unmeasured. ``listed``: a censored list, such as MIOpen's."""
LAYOUT_ALIASES = {"NCHW-NCHW-NCHW": "NCHW", "NHWC-NHWC-NHWC": "NHWC"}
"""MIOpen's spelling of a layout shared by input, filter and output."""
FAMILY_COLUMN = "family"
_CONTENT = tomllib.loads(Path(__file__).with_name("columns.toml").read_text(encoding="utf-8"))
TABLES: dict[str, str] = _CONTENT["tables"]
"""Table → the file that holds it."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``kind`` is text, int64, float64 or boolean; ``unit`` is empty where there is none."""

    table: str
    name: str
    kind: str
    unit: str
    required: bool
    meaning: str


def columns(table: str | None = None) -> tuple[Column, ...]:
    """The columns of ``table`` (all tables: None) in their order. Raises `InputError` for an unknown table."""
    if table is not None:
        check_choice("table", table, TABLES)
    return tuple(column for column in COLUMNS if table in (None, column.table))


def names(table: str, *, required: bool | None = None) -> tuple[str, ...]:
    """Names of the table's columns, of those that are (or are not) ``required`` only."""
    return tuple(column.name for column in columns(table) if required in (None, column.required))


def _declared(table: str, section: str = "") -> Iterator[Column]:
    """The columns of ``table`` that the file declares, required ones first, under ``section`` if not its own name."""
    for need, rows in _CONTENT[section or table].items():
        for name, (kind, unit, meaning) in rows.items():
            yield Column(table, name, kind, unit, need == "required", meaning)


def _taken(table: str, source: Sequence[Column], wanted: Sequence[str], optional: str = "") -> Iterator[Column]:
    """Columns of another table under the same name; ``optional``: the one that need not be there."""
    by_name = {column.name: column for column in source}
    for name in wanted:
        yield replace(by_name[name], table=table, required=name != optional)


def _sizes() -> Iterator[Column]:
    """Every size of every family once, with what it means in which family."""
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
    """The settings that the file explains, then those that only some families have and explain themselves."""
    yield from _declared("dataset", "settings")
    for name in dict.fromkeys(name for family in FAMILIES.values() for name in family.setting_meanings):
        having = [family for family in FAMILIES.values() if name in family.setting_meanings]
        meaning = f"{having[0].setting_meanings[name]}; {', '.join(family.name for family in having)}"
        yield Column("dataset", name, "text", "", True, meaning)


SETTING_COLUMNS = tuple(column.name for column in _settings())
"""Text columns that, with a problem, say what was measured where."""
SIZE_COLUMNS = tuple(column.name for column in _sizes())
"""Sizes of all families; 0 where a row's family lacks one."""
_DEFAULT = FAMILIES[DEFAULT_FAMILY]
ROW_KEY = _DEFAULT.row_key
"""Columns that name one row of a table of the default family; others have their own (`Family.row_key`)."""

_DATASET = (*_settings(), *_sizes(), *_declared("dataset"))
_PREDICTIONS = tuple(_declared("predictions"))
COLUMNS = (
    *_DATASET,
    *_taken("kernels", _DATASET, ROW_KEY),
    *_declared("kernels"),
    *_PREDICTIONS,
    *_declared("time_rows", "slice"),
    *_declared("time_rows"),
    *_declared("choice_rows", "slice"),
    *_declared("choice_rows"),
    *_declared("held_out"),
    *_taken("held_out", _DATASET, (*ROW_KEY, "solver", "status", "time_us"), optional="solver"),
    *_taken("held_out", _PREDICTIONS, ("predicted_us", "supported")),
    *_declared("choices"),
    *_taken("choices", _DATASET, (*_DEFAULT.problem_key, "networks"), optional="networks"),
    *_taken("folds", _DATASET, _DEFAULT.shape_names),
    *_declared("folds"),
)
"""All of them, table by table."""
_KERNELS = list(_CONTENT["kernels"]["optional"])
KERNEL_NUMBERS = tuple(_KERNELS[: _KERNELS.index("l2_read_sectors")])
"""The numbers of a kernel table, after its key, ``kernel_index`` and ``kernel_name``; other counters may join them."""
NUMBER_COLUMNS = (*(c.name for c in _DATASET if c.kind == "float64"), "repeats")
TEXT_COLUMNS = tuple(c.name for c in _DATASET if c.kind == "text")
"""Columns of a dataset that are normalised to float64 and to plain texts."""


def numbers(values: "pd.Series", column: str, name: str) -> "pd.Series":
    """A column as float64, NaN where a cell is empty. Raises `InputError`, which begins with ``name``, for a cell that
    is no number."""
    import pandas as pd  # a measuring process needs the names alone, and starts in half the time

    if values.dtype.kind in "mM":  # pandas would count nanoseconds
        raise InputError(f"{name}: {column} holds dates or durations ({values.dtype}); a number is needed")
    try:
        return pd.to_numeric(values).astype(np.float64)
    except (TypeError, ValueError):
        found = pd.to_numeric(values, errors="coerce")
        row = int(np.flatnonzero((found.isna() & values.notna()).to_numpy())[0])
        remedy = "; of a row that failed leave it empty, and write failed in a column status" * (column == "time_us")
        raise RowError(
            name, row, f"{column} is {values.tolist()[row]!r}; a number is needed, as in 7.5{remedy}"
        ) from None
