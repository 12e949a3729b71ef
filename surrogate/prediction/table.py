"""Tables of questions: columns in, columns out, in chunks of bounded memory, each distinct problem computed once."""

from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from surrogate.dataset.columns import LAYOUT_ALIASES
from surrogate.dataset.problem_list import PLACE, Cells, expand_problems
from surrogate.dataset.tables import read_table
from surrogate.dataset.threads import in_parallel, threads_for
from surrogate.features.elementwise import checked_int
from surrogate.features.errors import InputError, RowError, check_choice
from surrogate.features.families import DEFAULT_FAMILY, AnyProblem, DescribedFamily, Family
from surrogate.features.families import family as family_named
from surrogate.features.gpu import canonical
from surrogate.prediction.ranking import Ranker
from surrogate.prediction.resolve import Question, Resolver
from surrogate.prediction.results import Predictions

CHUNK_ROWS = 16_384
NOTHING: dict[str, object] = {
    **dict.fromkeys(("library", "algorithm", "source"), ""),
    **dict.fromkeys(("predicted_us", "lower_us", "upper_us", "workspace_bytes"), np.nan),
    **dict.fromkeys(("in_domain", "supported"), False),
}
"""Columns of an answer → the value if no candidate is feasible."""
Column = tuple[list[str], np.ndarray]
"""Distinct texts, and each row's place (rows,) among them."""
Columns = dict[str, np.ndarray]


class Defaults(NamedTuple):
    """What rows do not state: the columns ``gpu``, ``library`` and ``library_version``, and settings of problems."""

    gpu: str | None = None
    library: str | None = None
    library_version: str | None = None
    settings: Mapping[str, str] = {}


class Group(NamedTuple):
    """Rows of one family and setting: their sizes (rows, sizes), and their positions (rows,) in the table."""

    family: Family
    setting: Mapping[str, str]
    sizes: np.ndarray
    positions: np.ndarray

    def take(self, rows: np.ndarray) -> "Group":
        """Some of its rows, by their positions in it."""
        return self._replace(sizes=self.sizes[rows], positions=self.positions[rows])


def predict_table(resolver: Resolver, table: object, defaults: Defaults, algorithm: str | None = None) -> Predictions:
    """Return predictions for every row.

    ``algorithm`` names the candidate of all rows; else the table's own column of that name (``solver`` if the bundle
    chooses solvers; the parameters of a described kernel) does, and without one the best feasible candidate answers.
    Raises `InputError` naming the first row that is wrong, and if the table names another GPU than ``defaults``.
    """
    columns = _columns(table)
    rows = _length(columns)
    described = resolver.bundle.described
    family: Family | None = described
    named: Column | None = None
    if described is not None and described.description.parameters.keys() & columns.keys():
        family, named = _configurations(described, columns)
    else:
        column = "solver" if resolver.bundle.candidate == "solver" else "algorithm"
        if algorithm is not None or column in columns:
            named = _text({} if algorithm else columns, column, algorithm or "", rows)
    chunks: list[tuple[Ranker, Group]] = []
    for whole_group in _groups(resolver, columns, defaults, family):
        for ranker, group in _answering(resolver, whole_group, named):
            for start in range(0, len(group.sizes), CHUNK_ROWS):
                sizes, positions = (part[start : start + CHUNK_ROWS] for part in (group.sizes, group.positions))
                chunks.append((ranker, group._replace(sizes=sizes, positions=positions)))
    # Chunks share nothing but what a ranker remembers, so that each thread works through whole ones; inside a chunk
    # everything runs on its own thread alone.
    out = _empty(rows)

    def answer(chunk: tuple[Ranker, Group], stopped: object) -> None:
        ranker, group = chunk
        for name, values in _predict_group(ranker, group, named).items():
            out[name][group.positions] = values

    in_parallel(answer, chunks, threads_for(rows))
    if described is not None:
        out["workspace_bytes"][:] = np.nan  # nothing states the workspace of a configuration
    return Predictions(**out)


def _configurations(described: DescribedFamily, columns: Mapping[str, Cells]) -> tuple[DescribedFamily, Column]:
    """Return the described kernel with the values that the table has, and each row's configuration as text.

    A value that training never saw is a number like others, out of domain. Raises `InputError` for a missing column
    and for a cell that is no value of its parameter.
    """
    from surrogate.dataset.described import KernelColumns, configuration_texts

    frame = pd.DataFrame(dict(columns))
    description = KernelColumns.of_description(described.description).of(frame, "the table")
    texts = configuration_texts(frame, description, "the table")
    own = frame["algorithm"].fillna(description.name) if "algorithm" in frame else description.name
    number, names = pd.factorize(np.where(texts == "", own, texts))  # a library's kernel goes by its own name
    return DescribedFamily(description), ([str(name) for name in names], number)


def distinct_problems(
    resolver: Resolver, table: object, defaults: Defaults
) -> list[tuple[AnyProblem, tuple[str, ...]]]:
    """Return the distinct problems of a table in order, each with its GPU, library and version ("" if unknown).

    Raises `InputError` as `predict_table` does.
    """
    problems: list[tuple[int, AnyProblem, tuple[str, ...]]] = []
    for family, setting, sizes, positions in _groups(resolver, _columns(table), defaults, resolver.bundle.described):
        for row in np.unique(sizes, axis=0, return_index=True)[1]:
            problem = family.problem(dict(zip(family.size_names, sizes[row].tolist(), strict=True)), setting)
            problems.append((int(positions[row]), problem, tuple(setting[name] for name in PLACE)))
    problems.sort(key=lambda entry: entry[0])
    return list(dict.fromkeys((problem, where) for _, problem, where in problems))


def _groups(
    resolver: Resolver, columns: Mapping[str, Cells], defaults: Defaults, own: Family | None
) -> Iterator[Group]:
    """Yield the rows of each family and setting; ``own`` is the described kernel of a bundle."""
    columns = expand_problems(columns, own, "the table", defaults.settings)
    families = _families(columns, own)
    known = {name for family, _ in families for name in family.setting_names}
    if foreign := [name for name in defaults.settings if name not in known]:
        kinds = ", ".join(family.name for family, _ in families)
        raise InputError(f"{', '.join(foreign)} is no setting of {kinds}; leave it out")
    for family, positions in families:
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
            yield Group(family, _with_math(resolver, family, setting), sizes[members], positions[members])


def _with_math(resolver: Resolver, family: Family, setting: dict[str, str]) -> dict[str, str]:
    """The setting with the math type that PyTorch runs by default, where the table names none."""
    if not setting["gpu"]:
        raise InputError("the table has no column `gpu`; add it, or name one: --gpu, in Python load(path, gpu=…)")
    if setting.get("math", "fma"):
        return setting
    return {**setting, "math": family.default_math(setting["dtype"], resolver.device(setting["gpu"]))}


def _read(
    family: Family, columns: Mapping[str, Cells], rows: int, defaults: Defaults
) -> tuple[np.ndarray, dict[str, Column]]:
    """Sizes (rows, sizes) and the columns of texts of one family's rows, checked."""
    sizes = _sizes(columns, family, rows)
    texts = {name: _text(columns, name, getattr(defaults, name) or "", rows) for name in PLACE}
    if others := [name for name in texts["gpu"][0] if defaults.gpu not in (None, canonical(name))]:
        raise InputError(
            f"the table has rows of {others[0]}, and the GPU asked about is {defaults.gpu}; leave one of the two out"
        )
    for name, known in family.settings.items():
        default = defaults.settings.get(name) or ("" if name == "math" else family.setting_defaults[name])
        texts[name] = _text(columns, name, default, rows)
        for value in filter(None, texts[name][0] if known else ()):
            check_choice(f"the table's {name}", value, known)
    _check_geometry(family, sizes, texts["library"])
    return sizes, texts


def _answering(resolver: Resolver, group: Group, named: Column | None) -> Iterator[tuple[Ranker, Group]]:
    """Yield what answers a group, and the rows that it answers; a candidate that other GPUs alone ran is asked apart.

    Rows of a candidate that the bundle knows in other settings alone get no answer.
    """
    values = tuple(group.setting[name] for name in group.family.setting_names)
    gpu, library, version = (group.setting[name] for name in PLACE)
    question = Question(group.family, resolver.device(gpu).name, values, library or None, version or None)
    ranker = resolver.ranker(question)
    if named is None:
        yield ranker, group
        return
    number = named[1][group.positions]
    codes_of: dict[Ranker, list[int]] = {}
    known = {candidate.name for candidate in ranker.candidates}
    further = [name for code in np.unique(number).tolist() if (name := named[0][code]) not in known]
    if further and group.family.parameter_names:  # configurations that the description does not list: all at once
        ranker = resolver.ranker(question._replace(named=tuple(further)))
        known = {candidate.name for candidate in ranker.candidates}
    for code in np.unique(number).tolist():
        name = named[0][code]
        answering = ranker if name in known else resolver.ranker(question._replace(named=(name,)))
        if answering is ranker or answering.has(name):
            codes_of.setdefault(answering, []).append(code)
    for answering, codes in codes_of.items():
        yield answering, group.take(np.flatnonzero(np.isin(number, codes)))


def _predict_group(ranker: Ranker, group: Group, named: Column | None) -> Columns:
    """Return the columns of a group's rows: the ``named`` candidate or the fastest, of the fastest library."""
    candidates = ranker.candidates
    # 1. Neighbouring rows of one problem are one problem: ``distinct`` (problems, sizes), ``problem`` (rows,).
    new = np.append(True, (group.sizes[1:] != group.sizes[:-1]).any(axis=1))
    problem = np.cumsum(new) - 1
    distinct = group.sizes[new]
    allowed = ranker.rules.allowed(distinct)
    # 2. The candidates that are asked, on which problem, for which row of the answer.
    if named:
        places = _places(ranker, named, group)
        number = named[1][group.positions]
        rows = np.repeat(np.arange(len(number)), [len(places[code]) for code in number.tolist()])
        index = np.concatenate([places[code] for code in number.tolist()])
        problems = problem[rows]
    else:
        problems, index = np.nonzero(allowed & np.isin(np.arange(len(candidates)), ranker.choosable))
        rows = problems
    answers = ranker.answers(distinct, problems, index)
    # 3. The best candidate of each row; a candidate that fails answers a row that names it alone.
    ranked = answers._replace(problem=rows).ranked()
    if not named:
        ranked = ranked[~answers.fails[ranked]]
    best = ranked[np.append(True, rows[ranked][1:] != rows[ranked][:-1])] if len(ranked) else ranked
    length = len(problem) if named else len(distinct)
    out = _empty(length)
    chosen = answers.candidate[best]
    is_configuration = bool(named) and bool(group.family.parameter_names)  # whose parameters the table has
    name_of = attrgetter("algorithm" if is_configuration else "name")
    filled = {
        "library": np.array([candidate.library for candidate in candidates], dtype=object)[chosen],
        "algorithm": np.array([name_of(candidate) for candidate in candidates], dtype=object)[chosen],
        "predicted_us": answers.time_us[best],
        "supported": allowed[problems[best], chosen] & ~answers.fails[best],
        "notes": _notes(ranker)[ranker.library_of[chosen]],
        **{name: getattr(answers, name)[best] for name in ("lower_us", "upper_us", "in_domain", "source")},
        "workspace_bytes": answers.workspace_bytes[best],
    }
    for name, values in filled.items():
        out[name][rows[best]] = values
    return out if named else {name: column[problem] for name, column in out.items()}


def _places(ranker: Ranker, named: Column, group: Group) -> dict[int, np.ndarray]:
    """Return the code of each name in the group's rows → the positions of its candidates."""
    places: dict[str, dict[str, int]] = {}
    for i, candidate in enumerate(ranker.candidates):
        places.setdefault(candidate.name, {}).setdefault(candidate.library, i)
    codes = np.unique(named[1][group.positions]).tolist()
    unknown = [named[0][code] for code in codes if named[0][code] not in places]
    if unknown:
        ranker.named(unknown[0])
    return {code: np.array(sorted(places[named[0][code]].values())) for code in codes}


def _notes(ranker: Ranker) -> np.ndarray:
    """Return (libraries,) the caveats of each library's answers."""
    out = np.empty(len(ranker.references), dtype=object)
    out[:] = [ranker.notes[library] for library in ranker.references]
    return out


def _empty(length: int) -> Columns:
    out = {name: np.full(length, value, dtype=object if value == "" else None) for name, value in NOTHING.items()}
    out["notes"] = np.fromiter(((),) * length, dtype=object, count=length)
    return out


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
    """Return each family of the table, by its column ``family``, with the positions of its rows; ``own`` is the
    described kernel of a bundle."""
    names, name_index = _text(columns, "family", own.name if own else DEFAULT_FAMILY, _length(columns))
    families = [own if own and name == own.name else family_named(name) for name in names]
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
            filled[size.name] = checked_int("the table", size.name, np.asarray(columns[size.name]), size.minimum)
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
