"""The result of a reader (`Imported`), and the columns that several readers fill."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from surrogate.dataset.tables import csv_frame
from surrogate.features import DEFAULT_ALGORITHM, SIZE_COLUMNS, Conv, InputError, check_choice, nearest
from surrogate.features.algorithms import algorithms
from surrogate.features.families import CONV, FAMILIES, FAMILY_OF_KIND
from surrogate.formats.foreign_file import ReadLimits, read_lines
from surrogate.formats.printed import NumberStyle, delimiter_of

KEY_COLUMNS = CONV.row_key
"""The columns that identify one row of a convolution."""
UNKNOWN_VERSION = "unknown"


@dataclass(frozen=True, slots=True)
class Imported:
    """The content of one or more foreign files.

    Attributes
    ----------
    rows
        Dataset rows. Empty if the files hold kernel launches only.
    kernels
        Kernels with the key columns of the rows, or with ``run`` and ``kernel_index`` if there are no rows.
    candidates
        ``all`` or ``listed``, as a dataset stores it.
    notes
        One sentence for each omission and each assumption.
    metadata
        JSON values that are added to the metadata of the dataset.
    """

    rows: pd.DataFrame
    kernels: pd.DataFrame | None = None
    candidates: Literal["all", "listed"] = "all"
    notes: tuple[str, ...] = ()
    metadata: dict[str, object] = field(default_factory=dict)


def no_rows() -> pd.DataFrame:
    """Return a dataset without rows."""
    return pd.DataFrame({name: [] for name in (*KEY_COLUMNS, "status", "time_us")})


def conv_sizes(conv: Conv) -> dict[str, int]:
    """Return the size columns of a convolution."""
    return dict(zip(SIZE_COLUMNS, conv.sizes, strict=True))


def cudnn_settings(gpu: str, library_version: str) -> dict[str, str]:
    """Return the setting columns of a cuDNN forward convolution in fp32 FMA arithmetic and NCHW layout."""
    return {"gpu": gpu, "library": "cudnn", "library_version": library_version, **CONV.setting_defaults}


def family_rows(measured: pd.DataFrame) -> pd.DataFrame:
    """Return dataset rows of any families: one row per key, with the median time of the repeats.

    Required columns of ``measured`` are ``operator`` (a kind of problem, such as ``conv``), its sizes, ``gpu``,
    ``library`` and ``time_us``. Optional are ``library_version`` and the settings of the family. Other columns keep
    the value of the first repeat. If a family lacks a size, the cell is 0; if it lacks a setting, the cell is empty.
    Raises `InputError` if a size or a time is not a number.
    """
    filled = measured.assign(family=measured["operator"].map(FAMILY_OF_KIND), algorithm=DEFAULT_ALGORITHM, status="ok")
    families = [FAMILIES[name] for name in filled["family"].unique()]
    sizes = dict.fromkeys(size for family in families for size in family.size_names)
    settings = dict.fromkeys(["operator", *(name for family in families for name in family.setting_names)])
    for name in ("library_version", *settings):
        defaults = {family.name: family.setting_defaults.get(name, "") for family in families}
        default = filled["family"].map(defaults) if name in settings else UNKNOWN_VERSION
        filled[name] = filled[name].fillna(default) if name in filled else default
        filled[name] = filled[name].astype(str)
    try:
        filled["time_us"] = filled["time_us"].astype("float64")
        for name in sizes:
            filled[name] = filled[name].fillna(0).astype("int64") if name in filled else 0
    except (TypeError, ValueError) as error:
        raise InputError(f"a size or time is not a number ({error}); fetch the table again") from None
    return medians(filled, ["family", "gpu", "library", "library_version", *settings, *sizes, "algorithm", "status"])


def fastest(rows: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Return the row with the shortest time of each ``key``, in the order of ``rows``."""
    return rows.iloc[np.argsort(rows["time_us"].to_numpy(), kind="stable")].drop_duplicates(key).sort_index()


def csv_table(path: Path, whose: str, numbers: Collection[str], notes: list[str], limits: ReadLimits) -> pd.DataFrame:
    """Return a CSV file with a header as texts, without blank lines; its index counts the lines below the header.

    The columns in ``numbers`` are rewritten as Python reads them; ``notes`` get a doubt about their decimal mark.
    Raises `InputError` if it is not CSV.
    """
    lines = [line for _, line in read_lines(path, **limits)] or ["nothing"]
    style = NumberStyle(str(path), delimiter=delimiter_of(lines[0]) or ",")
    how: dict[str, Any] = {"dtype": str, "keep_default_na": False, "skip_blank_lines": False}
    try:
        table: Any = csv_frame("\n".join(lines), style.delimiter, **how)
    except ValueError as error:  # a ParserError is one
        reason = str(error).rpartition("C error: ")[2].strip()
        raise InputError(f"{path} is not CSV ({reason}); give {whose}") from None
    table = table.fillna("")[~(table.isna() | (table == "")).all(axis=1)]
    rows = style.of_rows(table[[name for name in table if name in numbers]].to_dict("records"))
    notes += style.notes
    return table.assign(**pd.DataFrame(rows, table.index))


def check_columns(table: pd.DataFrame, path: Path, needed: Sequence[str]) -> None:
    """Raise `InputError` if a table of texts lacks a column of ``needed``, or has no rows."""
    missing = next((name for name in needed if name not in table), None)
    if missing:
        hint = nearest(missing, map(str, table))
        raise InputError(f"{path}: column {missing} is missing; {', '.join(needed)} are needed{hint}")
    if table.empty:
        raise InputError(f"{path} has no rows; {', '.join(needed)} and one row per measurement are needed")


def medians(repeats: pd.DataFrame, key: list[str], **rest: tuple[str, str]) -> pd.DataFrame:
    """Return one row per ``key`` with the median, minimum, maximum and number of its times.

    ``rest`` names the aggregation of other columns. A column that it does not name keeps its first non-null value.
    """
    aggregations = {"time_us": "median", "time_us_min": "min", "time_us_max": "max", "repeats": "count"}
    times = {name: ("time_us", how) for name, how in aggregations.items()}
    first = {name: (name, "first") for name in repeats if name not in (*key, *times)}
    grouped = repeats.groupby(key, sort=False, dropna=False)
    return grouped.agg(**{**times, **first, **rest}).reset_index()  # type: ignore[arg-type]  # pandas' stubs


def rows_within(rules: Mapping[str, np.ndarray], left_out: Counter[str]) -> np.ndarray:
    """Return (rows,) True where every rule holds. The others are counted by the first rule that they break.

    ``rules`` is reason → (rows,) True for rows to keep.
    """
    kept = np.asarray(True)
    for reason, holds in rules.items():
        left_out[reason] += int((kept & ~holds).sum())
        kept = kept & holds
    return kept


def left_out_notes(left_out: Counter[str], noun: str) -> list[str]:
    """Return a sentence for each reason to leave out lines or rows."""
    return [f"left out: {plural(count, noun)}, {why}" for why, count in left_out.items() if count]


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 row``, ``2 rows`` or ``2 launches``."""
    ending = "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def algorithm_names(numbering: str) -> tuple[str, ...]:
    """Return the names of algorithms 0 … 7.

    ``enum`` is the order of cuDNN's enum. ``readme`` numbers 4 … 7 as the README of SEER's repository does.
    """
    names = [algorithm.name for algorithm in algorithms("cudnn", "fwd")]
    numberings = {"enum": names, "readme": [*names[:4], *names[6:], *names[4:6]]}
    check_choice("numbering", numbering, numberings)
    return tuple(numberings[numbering])
