"""Tables of problems: columns in, columns out, in chunks of bounded memory, every distinct problem worked out once."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from surrogate.dataset.columns import LAYOUT_ALIASES
from surrogate.dataset.tables import read_table
from surrogate.features.errors import InputError, nearest
from surrogate.features.families import DEFAULT_FAMILY, FAMILY_OF_KIND, AnyProblem, Family, family
from surrogate.features.gpu import canonical
from surrogate.prediction.prepared import SettingCache
from surrogate.prediction.results import Predictions

CHUNK_ROWS = 65_536
MAX_SIZE = 2**53
PLACE = ("gpu", "library", "library_version")
NOTHING: dict[str, Any] = {
    **dict.fromkeys(("library", "algorithm"), ""),
    **dict.fromkeys(("predicted_us", "lower_us", "upper_us", "workspace_bytes"), np.nan),
    **dict.fromkeys(("in_domain", "supported"), False),
}
"""Columns of an answer → what stands there where no candidate is feasible."""
Column = tuple[list[str], np.ndarray]
"""Distinct texts, and each row's place (rows,) among them."""
Columns = dict[str, np.ndarray]


def predict_table(
    settings: SettingCache, table: Any, defaults: Mapping[str, str | None], algorithm: str | None = None
) -> Predictions:
    """Predictions for every row; ``defaults`` stand for the columns ``gpu``, ``library`` and ``library_version``.

    ``algorithm`` overrides the column of that name; without either the best feasible one is taken. Raises `InputError`
    naming the first row that is wrong, and where the table names another GPU than ``defaults``.
    """
    columns = _columns(table)
    rows = len(next(iter(columns.values()), ()))
    column = "solver" if settings.bundle.candidate == "solver" else "algorithm"
    named: Column | None = None
    if algorithm is not None or column in columns:
        named = _text({} if algorithm else columns, column, algorithm or "", rows)
    out = _empty(rows)
    for kind, setting, sizes, positions in _groups(settings, columns, rows, defaults):
        for start in range(0, len(sizes), CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            predicted = _predict_setting(settings, kind, setting, sizes[chunk], named, positions[chunk])
            for name, values in predicted.items():
                out[name][positions[chunk]] = values
    return Predictions(**out)


def _groups(
    settings: SettingCache, columns: Mapping[str, Any], rows: int, defaults: Mapping[str, str | None]
) -> Iterator[tuple[Family, dict[str, str], np.ndarray, np.ndarray]]:
    """The rows of each family and setting: both, the sizes (rows, sizes) and where in the table they stand (rows,)."""
    for kind, positions in _families(columns, rows):
        whole = len(positions) == rows
        part = columns if whole else {name: np.asarray(v)[positions] for name, v in columns.items()}
        sizes, texts = _read(kind, part, len(positions), defaults)
        code = np.zeros(len(sizes), dtype=np.int64)
        for values, number in texts.values():
            code = code * len(values) + number
        for group in np.unique(code):
            members = np.flatnonzero(code == group)
            setting = {name: values[int(number[members[0]])] for name, (values, number) in texts.items()}
            yield kind, _with_math(settings, kind, setting), sizes[members], positions[members]


def _with_math(settings: SettingCache, kind: Family, setting: dict[str, str]) -> dict[str, str]:
    """The setting with the math type that PyTorch runs by default, where the table names none."""
    if not setting["gpu"]:
        raise InputError("the table has no column `gpu`; add it, or say which one, as in load(path, gpu=…)")
    if setting.get("math", "fma"):
        return setting
    device = settings.device(setting["gpu"])
    return {**setting, "math": kind.default_math(setting["dtype"], device)}


def asked_problems(
    settings: SettingCache, table: Any, defaults: Mapping[str, str | None]
) -> list[tuple[AnyProblem, tuple[str, ...]]]:
    """The distinct problems of a table in order, each with its GPU, library and library version ("" where unknown).

    Raises `InputError` as `predict_table` does.
    """
    columns = _columns(table)
    rows = len(next(iter(columns.values()), ()))
    problems: list[tuple[int, AnyProblem, tuple[str, ...]]] = []
    for kind, setting, sizes, positions in _groups(settings, columns, rows, defaults):
        for row in np.unique(sizes, axis=0, return_index=True)[1]:
            problem = kind.problem(dict(zip(kind.size_names, sizes[row].tolist(), strict=True)), setting)
            problems.append((int(positions[row]), problem, tuple(setting[name] for name in PLACE)))
    problems.sort(key=lambda entry: entry[0])
    return list(dict.fromkeys((problem, where) for _, problem, where in problems))


def _read(
    kind: Family, columns: Mapping[str, Any], rows: int, defaults: Mapping[str, str | None]
) -> tuple[np.ndarray, dict[str, Column]]:
    """Sizes (rows, sizes) and the columns of texts of one family's rows, checked."""
    sizes = _sizes(columns, kind, rows)
    texts = {name: _text(columns, name, defaults[name] or "", rows) for name in PLACE}
    if others := [name for name in texts["gpu"][0] if defaults["gpu"] not in (None, canonical(name))]:
        raise InputError(
            f"the table has rows of {others[0]}, and the GPU asked about is {defaults['gpu']}; leave one of the two out"
        )
    for name, known in kind.settings.items():
        texts[name] = _text(columns, name, "" if name == "math" else kind.setting_defaults[name], rows)
        wrong = [value for value in texts[name][0] if known and value and value not in known]
        if wrong:
            raise InputError(f"column {name} holds {wrong[0]!r}; known: {', '.join(known)}{nearest(wrong[0], known)}")
    _check_geometry(kind, sizes, texts["library"])
    return sizes, texts


def _predict_setting(
    settings: SettingCache,
    kind: Family,
    setting: Mapping[str, str],
    sizes: np.ndarray,
    named: Column | None,
    members: np.ndarray,
) -> Columns:
    """The columns of rows of one setting: the named algorithm or the fastest, of the fastest library."""
    values = tuple(setting[name] for name in kind.setting_names)
    where = (settings.device(setting["gpu"]).name, values, setting["library"] or None)
    prepared = settings.prepared(kind, *where, setting["library_version"] or None)
    # Neighbouring rows of one problem are one problem.
    new = np.append(True, (sizes[1:] != sizes[:-1]).any(axis=1))
    problem, distinct = np.cumsum(new) - 1, sizes[new]
    allowed, candidates = prepared.rules.allowed(distinct), prepared.candidates
    if named:
        names, number = named[0], named[1][members]
        is_named = np.zeros((len(names), len(candidates)), dtype=bool)
        for row in map(int, np.unique(number)):
            is_named[row, prepared.named(names[row])] = True
        rows, index = np.nonzero(is_named[number])
        at = problem[rows]
    else:
        at, index = np.nonzero(allowed & np.isin(np.arange(len(candidates)), prepared.ranked))
        rows = at
    columns = prepared.many(distinct, at, index) | {"supported": allowed[at, index]}
    columns["algorithm"] = np.array([candidate.name for candidate in candidates], dtype=object)[index]
    columns["library"] = np.array([candidate.library for candidate in candidates], dtype=object)[index]
    out = _empty(len(members) if named else len(distinct))
    # Of a row's candidates the fastest stays, of equals the first: what is written last.
    order = np.argsort(columns["predicted_us"], kind="stable")[::-1]
    for name, values in columns.items():
        out[name][rows[order]] = values[order]
    return out if named else {name: column[problem] for name, column in out.items()}


def _empty(length: int) -> Columns:
    return {name: np.full(length, value, dtype=object if value == "" else None) for name, value in NOTHING.items()}


def _columns(table: Any) -> dict[str, Any]:
    """Name → values of a DataFrame, a mapping, a list of rows, a structured array, or the table that a `Path` names."""
    if isinstance(table, Path):
        table = read_table(table)[0]
    elif isinstance(table, Mapping) and not any(map(np.ndim, table.values())):
        table = pd.DataFrame([table])
    elif isinstance(table, list | tuple):
        table = pd.DataFrame(table)
    names = table if isinstance(table, Mapping) else getattr(table, "columns", None)
    if isinstance(table, np.ndarray):
        names = table.dtype.names
    if names is None or callable(names):
        raise InputError(
            f"a {type(table).__name__} is no problem; give a Conv, an operator, its text, a list of them, or a table:"
            " a DataFrame, a mapping of columns, a list of rows or a Path"
        )
    return {str(name): table[name] for name in names}


def _families(columns: Mapping[str, Any], rows: int) -> list[tuple[Family, np.ndarray]]:
    """Each family of the table, by its columns ``family`` or ``operator``, with the positions of its rows."""
    source = next((name for name in ("family", "operator") if name in columns), "")
    names, name_index = _text(columns, source, "", rows)
    kinds = [family(FAMILY_OF_KIND.get(name, name or DEFAULT_FAMILY)) for name in names]
    code = np.array([kinds.index(kind) for kind in kinds], dtype=int)[name_index]
    return [(kinds[number], np.flatnonzero(code == number)) for number in np.unique(code).tolist()]


def _sizes(columns: Mapping[str, Any], kind: Family, rows: int) -> np.ndarray:
    """(rows, sizes) int64, missing columns filled with the family's defaults."""
    missing = [size.name for size in kind.sizes if size.default is None and size.name not in columns]
    if missing:
        needed = ", ".join(size.name for size in kind.sizes if size.default is None)
        raise InputError(f"the table lacks column {', '.join(missing)}; {kind.name} needs {needed}")
    filled: Columns = {}
    for size in kind.sizes:
        if size.name in columns:
            filled[size.name] = _whole(np.asarray(columns[size.name]), size.name, size.least)
        elif isinstance(size.default, str):
            filled[size.name] = filled[size.default]
        else:
            filled[size.name] = np.full(rows, size.default, dtype=np.int64)
    return np.column_stack(list(filled.values())) if rows else np.empty((0, len(kind.sizes)), dtype=np.int64)


def _whole(values: np.ndarray, name: str, least: int) -> np.ndarray:
    if values.dtype.kind not in "iuf":
        raise InputError(f"column {name} holds {values.dtype.name}; whole numbers are needed")
    with np.errstate(invalid="ignore"):
        wrong = ~((values >= least) & (values <= MAX_SIZE))
        if values.dtype.kind == "f":
            wrong |= values != np.floor(values)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InputError(f"row {row}: {name} is {values[row]}; a whole number of at least {least} is needed")
    return values.astype(np.int64)


def _check_geometry(kind: Family, sizes: np.ndarray, library: Column) -> None:
    """Raises `InputError` for sizes that do not fit one another."""
    of_row = np.array(library[0], dtype=object)[library[1]]
    for column, wrong, rule in kind.geometry(dict(zip(kind.size_names, sizes.T, strict=True)), of_row):
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise InputError(f"row {row}: {column} is {sizes[row, kind.size_names.index(column)]}; {rule}")


def _text(columns: Mapping[str, Any], name: str, default: str, rows: int) -> Column:
    """A text column, or its default in every row; a cell that is missing takes the default as well."""
    if name not in columns:
        return [default], np.zeros(rows, dtype=np.int64)
    number, values = pd.factorize(np.asarray(columns[name], dtype=object), use_na_sentinel=False)
    return [default if pd.isna(value) else LAYOUT_ALIASES.get(str(value), str(value)) for value in values], number
