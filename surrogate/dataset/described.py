"""Tables of described kernels: turn a user's columns into a dataset's, and build a first description from a table.

A row needs gpu, the sizes, the parameters and time_us, and also status if some rows failed. The kernel's name becomes
the family, the algorithm and, unless the table has a column, the library. The text of the row's configuration becomes
its solver.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd

from surrogate.dataset.columns import absent_hint, numbers
from surrogate.features.description import RESERVED, UNSIZED, Description, Value, read_description
from surrogate.features.elementwise import checked_int
from surrogate.features.errors import InputError, RowError, nearest, row_number
from surrogate.features.families import FAMILIES

MAX_VALUES = 4096
"""Largest number of distinct values of a parameter. A column with more values holds measurements."""


@dataclass(frozen=True, slots=True)
class KernelColumns:
    """The columns of a table of configurations that are ``sizes``, ``parameters`` and ``settings``.

    ``name`` is the kernel's name; the default is the file's name. ``existing`` is an earlier description of the kernel;
    the table may have further values.
    """

    parameters: tuple[str, ...]
    sizes: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    name: str = ""
    existing: Description | None = None

    @classmethod
    def of_description(cls, existing: Description) -> Self:
        """Return the columns of a described kernel."""
        return cls((*existing.parameters,), existing.sizes, (*existing.settings,), existing.name, existing)

    def of(self, frame: pd.DataFrame, path: str | Path) -> Description:
        """Return the description of a table: the columns with their values.

        Raises `InputError`, which begins with the path, for a missing column, or one that cannot be a parameter.
        """
        of_file = re.sub(r"\W+", "_", Path(path).name.partition(".")[0]).strip("_") if Path(path).suffix else ""
        of_file = of_file or "kernel"
        name = self.name or (f"{of_file}_kernel" if FAMILIES.is_built_in(of_file) else of_file)
        for column in (*self.sizes, *self.parameters, *self.settings):
            if column not in frame:
                names = [str(name) for name in frame.columns]
                missing = f"column {column} is missing; it has {', '.join(names)}{nearest(column, names)}"
                raise InputError(f"{path}: {missing}")
        texts = {column: tuple(sorted(frame[column].dropna().astype(str).unique())) for column in self.settings}
        values = {column: _values(frame[column], str(path), column) for column in self.parameters}
        description = Description(name, self.sizes, values, texts)
        return merge_descriptions(self.existing, description) if self.existing else description


Kernel = Description | KernelColumns
"""A description of the kernel of a table's rows, or the columns from which to build one."""


@dataclass(frozen=True)
class KernelOptions:
    """A caller's options for a table's kernel: a description or its file, or a ``name`` and the names of columns."""

    kernel: Kernel | str | Path | None = None
    sizes: str | Sequence[str] | None = None
    parameters: str | Sequence[str] | None = None
    settings: str | Sequence[str] | None = None
    name: str | None = None

    @property
    def description_or_columns(self) -> Kernel | None:
        """Return the kernel; None if no option is given.

        Raises `InputError` if a description and columns are given, or a name, sizes or settings without parameters.
        """
        kernel = self.kernel
        columns = KernelColumns(*map(named_columns, (self.parameters, self.sizes, self.settings)), name=self.name or "")
        is_named = columns != KernelColumns(())
        if kernel is None:
            if is_named and not columns.parameters:
                missing = "a name, sizes and settings need parameters, which are missing"
                raise InputError(f"{missing}; give a configuration's columns (--parameters)")
            return columns if is_named else None
        if is_named:
            raise InputError("the kernel has its name, sizes, parameters and settings; leave those options out")
        if isinstance(kernel, str | Path):
            return read_description(kernel)
        if not isinstance(kernel, Kernel):
            raise InputError(f"a {type(kernel).__name__} is no kernel; give a description or the path of its TOML file")
        return kernel


def guessed_columns(frame: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Return the columns that look like sizes, and the columns that look like parameters; the user should check both.

    Sizes are integer columns with a name of one or two small letters, or a name that begins with ``size``. Parameters
    are other columns with at least two distinct values, and with at most one distinct value per two rows.
    """
    names = [str(name) for name in frame.columns if name not in RESERVED and not str(name).startswith("time")]
    integers = [name for name in names if frame[name].dtype.kind in "iu"]
    sizes = [name for name in integers if (name.islower() and len(name) <= 2) or name.startswith("size")]
    distinct = {name: frame[name].nunique() for name in names if name not in sizes}
    return sizes, [name for name, count in distinct.items() if 1 < count <= min(MAX_VALUES, len(frame) // 2)]


def described_frame(frame: pd.DataFrame, description: Description, where: str) -> pd.DataFrame:
    """Return a copy with the columns of a dataset, rows in order. Columns outside the description are kept.

    Raises `InputError`, which begins with ``where``, for a missing column, a size that is no whole number, and a value
    that the description does not list.
    """
    out = frame.reset_index(drop=True).copy()
    needed = ["gpu", *description.sizes, *description.parameters, "time_us"]
    if missing := [column for column in needed if column not in out]:
        rule = f"a table of {description.name} has {', '.join(needed)}{absent_hint(missing[0], [*map(str, out)])}"
        raise InputError(f"{where}: column {missing[0]} is missing; {rule}")
    out["family"] = description.name
    out["algorithm"] = _text(out, "algorithm", description.name)
    out["library"] = _text(out, "library", description.name)
    out["library_version"] = _text(out, "library_version", "")
    for name, values in description.settings.items():
        out[name] = _text(out, name, values[0] if values else "")
    for name in ("gpu", "library", "library_version", *description.settings):
        if (separated := out[name].astype(str).str.contains("|", regex=False)).any():
            row = int(separated.argmax())
            raise RowError(where, row, f"{name} {out[name][row]!r} holds |, which joins names in bundles; rename it")
    for name in description.sizes:
        out[name] = checked_int(where, name, numbers(out[name], name, where).to_numpy(), minimum=0)
    if not description.sizes:
        out[UNSIZED] = 1
    out["solver"] = configuration_texts(out, description, where)
    # The time of a failed row is ignored.
    failed = out["status"].eq("failed") if "status" in out else np.full(len(out), False)
    time_us = numbers(out["time_us"].mask(failed), "time_us", where).to_numpy()
    if "status" not in out:
        out["status"] = np.where(np.isfinite(time_us), "ok", "failed")
    return out.assign(time_us=time_us)


def described_key(description: Description) -> list[str]:
    """Return the columns whose values repeats of a described kernel share."""
    sizes = description.sizes or (UNSIZED,)
    return ["gpu", *description.settings, *sizes, "library", "library_version", "solver"]


def merge_repeats(
    frame: pd.DataFrame, key: Sequence[str], ignored: Iterable[str], where: str
) -> tuple[pd.DataFrame, int]:
    """Return the rows of a checked table with repeats merged, and the number of removed rows.

    Repeats are rows with equal values of the ``key``; the merged row has the median of their times. Raises
    `InputError`, which begins with ``where``, if repeats differ in a column that looks like a size or a parameter and
    is not ``ignored``.
    """
    key = list(key)
    repeated = frame[frame.duplicated(key, keep=False)]
    if repeated.empty:
        return frame, 0
    groups = repeated.groupby(key, sort=False, dropna=False)
    sizes, parameters = guessed_columns(frame.drop(columns=[*key, *ignored], errors="ignore"))
    for name in (*sizes, *parameters):
        differs = groups[name].transform("nunique", dropna=False) > 1
        if differs.any():
            number = groups.ngroup().to_numpy()
            first, second, *_ = repeated.index[number == number[differs.to_numpy().argmax()]]
            difference = f"it repeats row {row_number(where, first)}, but differs in {name}"
            remedy = "if it is a parameter or a size of your own kernel, name it, too; if not, delete the column"
            raise RowError(where, second, f"{difference}; {remedy}")
    ran = frame["time_us"].where(frame["status"] == "ok")
    median_us = ran.groupby([frame[name] for name in key], dropna=False).transform("median")
    merged = frame.assign(time_us=median_us, status=frame["status"].where(median_us.isna(), "ok"))
    for name, end in (("time_us_min", pd.Series.min), ("time_us_max", pd.Series.max)):
        if name in frame:
            merged[name] = frame.groupby(key, dropna=False)[name].transform(end)
    kept = merged[~frame.duplicated(key)].reset_index(drop=True)
    return kept, len(frame) - len(kept)


def configuration_texts(frame: pd.DataFrame, description: Description, where: str) -> np.ndarray:
    """Return (rows,) each row's configuration as text (`Description.text`); "" for a row without parameters.

    Raises `InputError` for a value that the description does not list.
    """
    # 1. The text of each row's value of every parameter, computed once for equal values.
    columns = []
    absent = np.full(len(frame), True)
    for name, codes in description.codes.items():
        code, distinct = pd.factorize(frame[name])
        texts = [_text_of(value, description.parameters[name]) for value in distinct]
        if wrong := [text for text in texts if text not in codes]:
            row = int(np.flatnonzero(code == texts.index(wrong[0]))[0])
            listed = ", ".join(list(codes)[:20])
            raise RowError(where, row, f"{name} is {wrong[0]}; the description lists {listed}")
        columns.append(np.array([*texts, ""], dtype=object)[code])
        absent &= code < 0
    # 2. Rows without parameters, such as a library's own kernel, have no configuration. Other rows need all parameters.
    table = np.column_stack(columns)
    partly = (table == "").any(axis=1) & ~absent
    if partly.any():
        row = int(np.flatnonzero(partly)[0])
        name = list(description.codes)[int(np.flatnonzero(table[row] == "")[0])]
        raise RowError(where, row, f"{name} is missing; a configuration has all parameters, or none")
    words = [",".join(map("=".join, zip(description.parameters, row, strict=True))) for row in table.tolist()]
    return np.where(absent, "", np.array(words, dtype=object))


def merge_descriptions(first: Description, second: Description) -> Description:
    """Return the first description with the second's values appended; the codes of the first one's values stay.

    Raises `InputError` if the descriptions are of two kernels.
    """
    keys = [(each.name, each.sizes, (*each.settings,), (*each.parameters,)) for each in (first, second)]
    if keys[0] != keys[1]:
        raise InputError(f"the tables describe two kernels, {keys[0]} and {keys[1]}; train one bundle of each")
    joined = {name: tuple(dict.fromkeys((*own, *second.parameters[name]))) for name, own in first.parameters.items()}
    texts = {name: tuple(dict.fromkeys((*own, *second.settings[name]))) for name, own in first.settings.items()}
    conditions, formulas = first.conditions or second.conditions, {**second.formulas, **first.formulas}
    return replace(first, parameters=joined, settings=texts, conditions=conditions, formulas=formulas)


def _values(cells: pd.Series, where: str, column: str) -> tuple[Value, ...]:
    """Return the distinct values of a parameter's column, with integers as int."""
    distinct = cells.dropna().unique().tolist()
    if not distinct:
        raise InputError(f"{where}: parameter {column} has no value in any row; leave it out")
    if len(distinct) > MAX_VALUES:
        raise InputError(f"{where}: {column} has {len(distinct)} values; a parameter has at most {MAX_VALUES}")
    values = {_python_value(value) for value in distinct}
    kinds = {isinstance(value, str) for value in values}
    return tuple(sorted(values, key=str if True in kinds else float)) if len(kinds) == 1 else tuple(values)


def _python_value(value: object) -> Value:
    """Return a cell as a Python value; a number without a fraction becomes an int."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, str):
        return value
    number = float(value)  # type: ignore[arg-type]
    return int(number) if number.is_integer() else number


def _text_of(value: object, listed: Sequence[Value]) -> str:
    """Return the text of a cell's value, in the type that the description lists (such as True for 1)."""
    cell = _python_value(value)
    return str(next((each for each in listed if each == cell and type(each) is not type(cell)), cell))


def _text(frame: pd.DataFrame, column: str, default: str) -> pd.Series | str:
    if column not in frame:
        return default
    cells = frame[column]
    return cells.astype(str).where(cells.notna() & (cells.astype(str) != ""), default)


def named_columns(text: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of columns from a list, or from one text with commas."""
    if text is None:
        return ()
    words = text.split(",") if isinstance(text, str) else text
    return tuple(word.strip() for word in words if word.strip())
