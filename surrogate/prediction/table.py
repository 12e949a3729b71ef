"""Tables of problems: columns in, columns out, in chunks of bounded memory, every distinct problem worked out once."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from surrogate.dataset.columns import LAYOUT_ALIASES
from surrogate.dataset.tables import read_table
from surrogate.dataset.threads import in_parallel, threads_for
from surrogate.features.errors import InputError, RowError, require_known
from surrogate.features.families import DEFAULT_FAMILY, AnyProblem, Family
from surrogate.features.families import family as family_named
from surrogate.features.gpu import canonical
from surrogate.features.whole import whole
from surrogate.prediction.configuration_engine import predict_configurations
from surrogate.prediction.prepared import PreparedSetting
from surrogate.prediction.results import Predictions
from surrogate.prediction.settings import Question, SettingCache

CHUNK_ROWS = 16_384
PLACE = ("gpu", "library", "library_version")
NOTHING: dict[str, object] = {
    **dict.fromkeys(("library", "algorithm", "source"), ""),
    **dict.fromkeys(("predicted_us", "lower_us", "upper_us", "workspace_bytes"), np.nan),
    **dict.fromkeys(("in_domain", "supported"), False),
}
"""Columns of an answer → what stands there where no candidate is feasible."""
Column = tuple[list[str], np.ndarray]
"""Distinct texts, and each row's place (rows,) among them."""
Columns = dict[str, np.ndarray]
Cells = pd.Series | np.ndarray | Sequence[object]
"""A column as it comes."""


Defaults = Mapping[str, str | None]
"""What stands for the columns ``gpu``, ``library`` and ``library_version``."""


class Group(NamedTuple):
    """Rows of one family and setting: their sizes (rows, sizes), and their positions (rows,) in the table."""

    family: Family
    setting: Mapping[str, str]
    sizes: np.ndarray
    positions: np.ndarray

    def take(self, rows: np.ndarray) -> "Group":
        """Some of its rows, by their positions in it."""
        return self._replace(sizes=self.sizes[rows], positions=self.positions[rows])


def predict_table(
    settings: SettingCache, table: object, defaults: Defaults, algorithm: str | None = None
) -> Predictions:
    """Predictions for every row.

    ``algorithm`` overrides the column of that name; without either the best feasible one is taken. Raises `InputError`
    naming the first row that is wrong, and where the table names another GPU than ``defaults``.
    """
    columns = _columns(table)
    described = settings.bundle.described
    if described is not None and described.description.parameters.keys() & columns.keys():
        filled = pd.DataFrame(dict(columns))
        missing = {name: value for name, value in defaults.items() if value and name not in filled}
        part = next(iter(settings.bundle.parts.values()))
        return predict_configurations(part, described, filled.assign(**missing), settings.device)
    rows = _length(columns)
    column = "solver" if settings.bundle.candidate == "solver" else "algorithm"
    named: Column | None = None
    if algorithm is not None or column in columns:
        named = _text({} if algorithm else columns, column, algorithm or "", rows)
    chunks: list[tuple[PreparedSetting, Group]] = []
    for whole_group in _groups(settings, columns, defaults):
        for prepared, group in _answering(settings, whole_group, named):
            for start in range(0, len(group.sizes), CHUNK_ROWS):
                sizes, positions = (part[start : start + CHUNK_ROWS] for part in (group.sizes, group.positions))
                chunks.append((prepared, group._replace(sizes=sizes, positions=positions)))
    # Chunks share nothing but what is remembered of a setting, so that each thread works through whole ones; inside a
    # chunk everything runs on its own thread alone.
    out = _empty(rows)

    def answer(chunk: tuple[PreparedSetting, Group], stopped: object) -> None:
        prepared, group = chunk
        for name, values in _predict_group(prepared, group, named).items():
            out[name][group.positions] = values

    in_parallel(answer, chunks, threads_for(rows))
    return Predictions(**out)


def asked_problems(
    settings: SettingCache, table: object, defaults: Defaults
) -> list[tuple[AnyProblem, tuple[str, ...]]]:
    """The distinct problems of a table in order, each with its GPU, library and library version ("" where unknown).

    Raises `InputError` as `predict_table` does.
    """
    problems: list[tuple[int, AnyProblem, tuple[str, ...]]] = []
    for family, setting, sizes, positions in _groups(settings, _columns(table), defaults):
        for row in np.unique(sizes, axis=0, return_index=True)[1]:
            problem = family.problem(dict(zip(family.size_names, sizes[row].tolist(), strict=True)), setting)
            problems.append((int(positions[row]), problem, tuple(setting[name] for name in PLACE)))
    problems.sort(key=lambda entry: entry[0])
    return list(dict.fromkeys((problem, where) for _, problem, where in problems))


def _groups(settings: SettingCache, columns: Mapping[str, Cells], defaults: Defaults) -> Iterator[Group]:
    """The rows of each family and setting."""
    for family, positions in _families(columns, settings.bundle.described):
        every = len(positions) == _length(columns)
        part = columns if every else {name: np.asarray(values)[positions] for name, values in columns.items()}
        sizes, texts = _read(family, part, len(positions), defaults)
        # Rows of equal texts get one code (rows,).
        code = np.zeros(len(sizes), dtype=np.int64)
        for values, number in texts.values():
            if len(values) > 1:
                code = code * len(values) + number
        for group in np.unique(code):
            members = np.flatnonzero(code == group)
            setting = {name: values[int(number[members[0]])] for name, (values, number) in texts.items()}
            yield Group(family, _with_math(settings, family, setting), sizes[members], positions[members])


def _with_math(settings: SettingCache, family: Family, setting: dict[str, str]) -> dict[str, str]:
    """The setting with the math type that PyTorch runs by default, where the table names none."""
    if not setting["gpu"]:
        raise InputError("the table has no column `gpu`; add it, or name one: --gpu, in Python load(path, gpu=…)")
    if setting.get("math", "fma"):
        return setting
    return {**setting, "math": family.default_math(setting["dtype"], settings.device(setting["gpu"]))}


def _read(
    family: Family, columns: Mapping[str, Cells], rows: int, defaults: Defaults
) -> tuple[np.ndarray, dict[str, Column]]:
    """Sizes (rows, sizes) and the columns of texts of one family's rows, checked."""
    sizes = _sizes(columns, family, rows)
    texts = {name: _text(columns, name, defaults[name] or "", rows) for name in PLACE}
    if others := [name for name in texts["gpu"][0] if defaults["gpu"] not in (None, canonical(name))]:
        raise InputError(
            f"the table has rows of {others[0]}, and the GPU asked about is {defaults['gpu']}; leave one of the two out"
        )
    for name, known in family.settings.items():
        texts[name] = _text(columns, name, "" if name == "math" else family.setting_defaults[name], rows)
        for value in filter(None, texts[name][0] if known else ()):
            require_known(f"the table's {name}", value, known)
    _check_geometry(family, sizes, texts["library"])
    return sizes, texts


def _answering(settings: SettingCache, group: Group, named: Column | None) -> Iterator[tuple[PreparedSetting, Group]]:
    """What answers a group, and the rows that it answers; a candidate that other GPUs alone ran is asked apart.

    Rows of a candidate that the bundle knows in other settings alone get no answer.
    """
    values = tuple(group.setting[name] for name in group.family.setting_names)
    gpu, library, version = (group.setting[name] for name in PLACE)
    question = Question(group.family, settings.device(gpu).name, values, library or None, version or None)
    prepared = settings.prepared(question)
    if named is None:
        yield prepared, group
        return
    number = named[1][group.positions]
    codes_of: dict[PreparedSetting, list[int]] = {}
    for code in np.unique(number).tolist():
        answering = settings.naming(question, named[0][code])
        if answering is prepared or answering.has(named[0][code]):
            codes_of.setdefault(answering, []).append(code)
    for answering, codes in codes_of.items():
        yield answering, group.take(np.flatnonzero(np.isin(number, codes)))


def _predict_group(prepared: PreparedSetting, group: Group, named: Column | None) -> Columns:
    """The columns of a group's rows: the ``named`` algorithm or the fastest, of the fastest library."""
    candidates = prepared.candidates
    # 1. Neighbouring rows of one problem are one problem: ``distinct`` (problems, sizes), ``problem`` (rows,).
    new = np.append(True, (group.sizes[1:] != group.sizes[:-1]).any(axis=1))
    problem = np.cumsum(new) - 1
    distinct = group.sizes[new]
    allowed = prepared.rules.allowed(distinct)
    # 2. Which candidate is asked on which problem, for which row of the answer.
    if named:
        number = named[1][group.positions]
        is_named = np.zeros((len(named[0]), len(candidates)), dtype=bool)
        for code in map(int, np.unique(number)):
            is_named[code, prepared.named(named[0][code])] = True
        rows, index = np.nonzero(is_named[number])
        problems = problem[rows]
    else:
        problems, index = np.nonzero(allowed & np.isin(np.arange(len(candidates)), prepared.ranked))
        rows = problems
    columns = prepared.many(distinct, problems, index) | {"supported": allowed[problems, index]}
    runs = columns["predicted_us"] < np.inf  # a configuration that fails, or that conditions rule out, answers no row
    columns = {name: values[runs] for name, values in columns.items()}
    rows, index = rows[runs], index[runs]
    # 3. Of a row's candidates the fastest stays, of equals the first: what is written last.
    length = len(problem) if named else len(distinct)
    order = np.argsort(columns["predicted_us"], kind="stable")[::-1] if len(rows) > length else slice(None)
    columns["algorithm"] = np.array([candidate.name for candidate in candidates], dtype=object)[index]
    columns["library"] = np.array([candidate.library for candidate in candidates], dtype=object)[index]
    out = _empty(length)
    for name, values in columns.items():
        out[name][rows[order]] = values[order]
    return out if named else {name: column[problem] for name, column in out.items()}


def _empty(length: int) -> Columns:
    return {name: np.full(length, value, dtype=object if value == "" else None) for name, value in NOTHING.items()}


def _columns(table: Any) -> dict[str, Cells]:
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


def _length(columns: Mapping[str, Cells]) -> int:
    return len(next(iter(columns.values()), ()))


def _families(columns: Mapping[str, Cells], own: Family | None) -> list[tuple[Family, np.ndarray]]:
    """Each family of the table, by its columns ``family`` or ``operator``, with the positions of its rows; ``own`` is
    the described kernel of a bundle."""
    source = next((name for name in ("family", "operator") if name in columns), "")
    names, name_index = _text(columns, source, "", _length(columns))
    families = [own if own and name in ("", own.name) else family_named(name or DEFAULT_FAMILY) for name in names]
    code = np.array([families.index(family) for family in families], dtype=int)[name_index]
    return [(families[number], np.flatnonzero(code == number)) for number in np.unique(code).tolist()]


def _sizes(columns: Mapping[str, Cells], family: Family, rows: int) -> np.ndarray:
    """(rows, sizes) int64, missing columns filled with the family's defaults."""
    missing = [size.name for size in family.sizes if size.default is None and size.name not in columns]
    if missing:
        needed = ", ".join(size.name for size in family.sizes if size.default is None)
        raise InputError(f"the table lacks column {', '.join(missing)}; {family.name} needs {needed}")
    filled: Columns = {}
    for size in family.sizes:
        if size.name in columns:
            filled[size.name] = whole("the table", size.name, np.asarray(columns[size.name]), size.least)
        elif isinstance(size.default, str):
            filled[size.name] = filled[size.default]
        else:
            filled[size.name] = np.full(rows, size.default, dtype=np.int64)
    return np.column_stack(list(filled.values())) if rows else np.empty((0, len(family.sizes)), dtype=np.int64)


def _check_geometry(family: Family, sizes: np.ndarray, library: Column) -> None:
    """Raises `InputError` for sizes that do not fit one another."""
    of_row = np.array(library[0], dtype=object)[library[1]]
    for column, wrong, rule in family.geometry(dict(zip(family.size_names, sizes.T, strict=True)), of_row):
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            value = sizes[row, family.size_names.index(column)]
            raise RowError("the table", row, f"{column} is {value}; {rule}")


def _text(columns: Mapping[str, Cells], name: str, default: str, rows: int) -> Column:
    """A text column, or its default in every row; a cell that is missing takes the default as well."""
    if name not in columns:
        return [default], np.zeros(rows, dtype=np.int64)
    cells = columns[name]
    if not isinstance(cells, pd.Series):
        cells = np.asarray(cells, dtype=object)
    number, values = pd.factorize(cells, use_na_sentinel=False)
    return [default if pd.isna(value) else LAYOUT_ALIASES.get(str(value), str(value)) for value in values], number
