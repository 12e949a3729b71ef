"""Predict the rows of tables, in chunks of bounded memory. Consecutive rows of the same problem are computed once."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from surrogate.dataset.problem_list import GPU_AND_LIBRARY, expand_problems, stated_setting, unread_note
from surrogate.dataset.tables import TableParts, read_table, table_parts
from surrogate.dataset.threads import in_parallel, threads_for
from surrogate.features import InputError, RowError, canonical, check_choice, checked_int
from surrogate.features.errors import first_bytes
from surrogate.features.families import (
    DEFAULT_FAMILY,
    AnyProblem,
    DescribedFamily,
    Family,
    family as family_named,
    parse_problem,
)
from surrogate.models.requirements import UNKNOWN
from surrogate.prediction.ranking import AnswerRows, Ranker, has_engines, is_listed
from surrogate.prediction.resolve import Question, Resolver
from surrogate.prediction.results import FLOOR, NOTES, Predictions

CHUNK_ROWS = 16_384
MAX_LINE = 4096
"""Maximum length of a problem's text."""
NO_ANSWER: dict[str, object] = {
    **dict.fromkeys(("library", "algorithm", "source", "reason"), ""),
    **dict.fromkeys(("predicted_us", "lower_us", "upper_us", "workspace_bytes"), np.nan),
    **dict.fromkeys(("in_domain", "supported"), False),
}
"""Column of an answer → its value if no candidate is feasible."""
Columns = dict[str, np.ndarray]


class Defaults(NamedTuple):
    """Values for rows without their own: ``gpu``, ``library`` and ``library_version``, and settings of problems."""

    gpu: str | None = None
    library: str | None = None
    library_version: str | None = None
    settings: Mapping[str, str] = {}


class CodedTexts(NamedTuple):
    """Distinct texts, and the position of each row's text among them: ``codes`` (rows,)."""

    texts: list[str]
    codes: np.ndarray


class Group(NamedTuple):
    """Rows of one family and setting: their sizes (rows, sizes), and their positions (rows,) in the table."""

    family: Family
    setting: Mapping[str, str]
    sizes: np.ndarray
    positions: np.ndarray

    def take(self, rows: np.ndarray | slice) -> "Group":
        """Return some of the group's rows, by their positions in the group."""
        return self._replace(sizes=self.sizes[rows], positions=self.positions[rows])

    def sorted_by_grid(self) -> "Group":
        """Return several chunks of rows in the order of `Family.grid_sizes`: a chunk then has few measured corners."""
        columns = [self.family.size_names.index(name) for name in reversed(self.family.grid_sizes)]
        if not columns or len(self.sizes) <= CHUNK_ROWS:
            return self
        return self.take(np.lexsort(self.sizes[:, columns].T))


@contextmanager
def problem_table(path: Path, described: DescribedFamily | None = None) -> Iterator[TableParts]:
    """Yield a table as `table_parts` does. A text with a problem a line is a table with the column ``problem``."""
    if texts := _problem_texts(path, described):
        yield TableParts(len(texts), {}, iter([pd.DataFrame({"problem": texts})]))
        return
    with table_parts(path) as parts:
        yield parts


def _problem_texts(path: Path, described: DescribedFamily | None) -> list[str]:
    """Return the lines of a file whose first line is a problem, without comments; empty for any other file."""
    if not path.is_file() or first_bytes(path, 4) == b"PAR1":
        return []
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        lines = (line.strip() for line in iter(lambda: file.readline(MAX_LINE), ""))
        texts = (line for line in lines if line and not line.startswith("#"))
        first = next(texts, "")
        try:
            parse_problem(described.full_text(first) if described else first, described)
        except InputError:
            return []
        return [first, *texts]


def predict_table(resolver: Resolver, table: object, defaults: Defaults, algorithm: str | None = None) -> Predictions:
    """Return predictions for every row.

    ``algorithm`` is the candidate of all rows. Without it, the table's column of that name holds the candidates
    (``solver`` if the bundle chooses solvers, or the parameters of a described kernel). Without either, the prediction
    is of the fastest feasible candidate. Raises `InputError` with the first wrong row, and if the table has another
    GPU than ``defaults``.
    """
    described_family = resolver.bundle.described_family
    frame = _frame(table, described_family)
    family: Family | None = described_family
    requested: CodedTexts | None = None
    if described_family is not None and {*described_family.description.parameters} & {*frame}:
        family, requested = _configurations(described_family, frame)
    else:
        column = "solver" if resolver.bundle.candidate == "solver" else "algorithm"
        if algorithm is not None or column in frame:
            requested = _text_column(frame[[]] if algorithm else frame, column, algorithm or "")
    chunks: list[tuple[Ranker, Group]] = []
    for setting_group in _groups(resolver, frame, defaults, family):
        for ranker, unsorted in _rankers(resolver, setting_group, requested):
            group = unsorted.sorted_by_grid()
            starts = range(0, len(group.sizes), CHUNK_ROWS)
            chunks += [(ranker, group.take(slice(start, start + CHUNK_ROWS))) for start in starts]
    # Chunks share only a ranker's caches, so that each thread computes a chunk by itself.
    out = _empty_answers(len(frame))

    def answer(chunk: tuple[Ranker, Group], stopped: object) -> None:
        ranker, group = chunk
        for name, values in _predict_group(ranker, group, requested).items():
            out[name][group.positions] = values

    in_parallel(answer, chunks, threads_for(len(frame)))
    return Predictions(**out)


def _configurations(family: DescribedFamily, frame: pd.DataFrame) -> tuple[DescribedFamily, CodedTexts]:
    """Return the described kernel with the table's parameter values, and each row's configuration as text.

    A value without training data is accepted as out of domain. Raises `InputError` for a missing column,
    and for a cell that is not a value of its parameter.
    """
    from surrogate.dataset.described import KernelColumns, configuration_texts

    description = KernelColumns.of_description(family.description).of(frame, "the table")
    texts = configuration_texts(frame, description, "the table")
    own = frame["algorithm"].fillna(description.name) if "algorithm" in frame else description.name
    codes, names = pd.factorize(np.where(texts == "", own, texts))  # a library's kernel has its own name
    return DescribedFamily(description), CodedTexts([str(name) for name in names], codes)


def table_problems(resolver: Resolver, table: object, defaults: Defaults) -> list[tuple[AnyProblem, tuple[str, ...]]]:
    """Return the problem of each row, with its GPU, library and version ("" if unknown).

    Raises `InputError` as `predict_table` does.
    """
    problems: list[tuple[int, AnyProblem, tuple[str, ...]]] = []
    described = resolver.bundle.described_family
    groups = _groups(resolver, _frame(table, described), defaults, described)
    for family, setting, sizes, positions in groups:
        distinct, code = np.unique(sizes, axis=0, return_inverse=True)
        place = tuple(setting[name] for name in GPU_AND_LIBRARY)
        of_code = [family.problem(dict(zip(family.size_names, row, strict=True)), setting) for row in distinct.tolist()]
        problems += [(row, of_code[i], place) for row, i in zip(positions.tolist(), code.ravel().tolist(), strict=True)]
    problems.sort(key=lambda entry: entry[0])
    return [(problem, place) for _, problem, place in problems]


def _groups(resolver: Resolver, frame: pd.DataFrame, defaults: Defaults, described: Family | None) -> Iterator[Group]:
    """Yield the rows of each family and setting; ``described`` is the described kernel of a bundle."""
    names = (*frame.columns,)
    frame = expand_problems(frame, described, "the table", defaults.settings)
    families = _families(frame, described)
    is_of_problems = described is None and "time_us" not in names  # measurements may have any columns
    if is_of_problems and len(families) == 1 and (note := unread_note(names, families[0][0])):
        warnings.warn(note, stacklevel=4)
    setting_names = {name for family, _ in families for name in family.setting_names}
    if unknown := [name for name in defaults.settings if name not in setting_names]:
        kinds = ", ".join(family.name for family, _ in families)
        raise InputError(f"{', '.join(unknown)} is not a setting of {kinds}; leave it out")
    for family, positions in families:
        part = frame if len(positions) == len(frame) else frame.iloc[positions]
        sizes, texts = _columns_of(family, part, defaults)
        # Rows of equal texts get one code (rows,).
        code = np.zeros(len(sizes), dtype=np.int64)
        for distinct, codes in texts.values():
            if len(distinct) > 1:
                code = code * len(distinct) + codes
        for group in np.unique(code):
            members = np.flatnonzero(code == group)
            setting = {name: distinct[int(codes[members[0]])] for name, (distinct, codes) in texts.items()}
            yield Group(family, _with_math(resolver, family, setting), sizes[members], positions[members])


def _with_math(resolver: Resolver, family: Family, setting: dict[str, str]) -> dict[str, str]:
    """Return the setting. If the table has no math type, it is the bundle's default."""
    if not setting["gpu"]:
        raise InputError("the table has no column `gpu`; add it, or give --gpu, in Python load(path, gpu=…)")
    if setting.get("math", "fma"):
        return setting
    device = resolver.device(setting["gpu"])
    return {**setting, "math": resolver.bundle.default_math(family, setting["dtype"], device)}


def _columns_of(family: Family, frame: pd.DataFrame, defaults: Defaults) -> tuple[np.ndarray, dict[str, CodedTexts]]:
    """Return the checked sizes (rows, sizes) and text columns of one family's rows."""
    sizes = _sizes(frame, family)
    texts = {name: _text_column(frame, name, getattr(defaults, name) or "") for name in GPU_AND_LIBRARY}
    if others := [name for name in texts["gpu"].texts if defaults.gpu not in (None, canonical(name))]:
        raise InputError(f"the table has rows of {others[0]}, but {defaults.gpu} is requested; leave one of them out")
    for name, values in family.settings.items():
        default = defaults.settings.get(name) or ("" if name == "math" else family.setting_defaults[name])
        texts[name] = _text_column(frame, name, default)
        for value in filter(None, texts[name].texts if values else ()):
            check_choice(f"the table's {name}", value, values)
    _check_geometry(family, sizes, texts["library"])
    return sizes, texts


def _rankers(resolver: Resolver, group: Group, requested: CodedTexts | None) -> Iterator[tuple[Ranker, Group]]:
    """Yield the rankers of a group, each with its rows. A candidate that only other GPUs ran gets its own ranker.

    Rows get no answer if the bundle has their candidate only in other settings.
    """
    values = tuple(group.setting[name] for name in group.family.setting_names)
    gpu, library, version = (group.setting[name] for name in GPU_AND_LIBRARY)
    question = Question(group.family, resolver.device(gpu).name, values, library or None, version or None)
    ranker = resolver.ranker(question)
    if requested is None:
        yield ranker, group
        return
    code_of_row = requested.codes[group.positions]
    codes_of: dict[Ranker, list[int]] = {}
    ranked = {candidate.name for candidate in ranker.candidates}
    further = [name for code in np.unique(code_of_row).tolist() if (name := requested.texts[code]) not in ranked]
    if further and group.family.parameter_names:  # unlisted configurations share one ranker
        ranker = resolver.ranker(question._replace(requested=tuple(further)))
        ranked = {candidate.name for candidate in ranker.candidates}
    for code in np.unique(code_of_row).tolist():
        name = requested.texts[code]
        named_ranker = ranker if name in ranked else resolver.ranker(question._replace(requested=(name,)))
        if named_ranker is ranker or named_ranker.has(name):
            codes_of.setdefault(named_ranker, []).append(code)
    for codes_ranker, codes in codes_of.items():
        yield codes_ranker, group.take(np.flatnonzero(np.isin(code_of_row, codes)))


def _predict_group(ranker: Ranker, group: Group, requested: CodedTexts | None) -> Columns:
    """Return the columns of a group's rows, for the ``requested`` candidate of the fastest library, or the fastest."""
    candidates = ranker.candidates
    # 1. Consecutive rows of the same problem are computed once: ``distinct`` (problems, sizes), ``problem`` (rows,).
    new = np.append(True, (group.sizes[1:] != group.sizes[:-1]).any(axis=1))
    problem = np.cumsum(new) - 1
    distinct = group.sizes[new]
    allowed = ranker.rules.allowed(distinct)
    # 2. Triples of arrays: candidate ``index``, its position in ``problems``, and its row in the answer.
    if requested:
        positions = _positions(ranker, requested, group)
        code_of_row = requested.codes[group.positions]
        rows = np.repeat(np.arange(len(code_of_row)), [len(positions[code]) for code in code_of_row.tolist()])
        index = np.concatenate([positions[code] for code in code_of_row.tolist()])
        problems = problem[rows]
    else:
        choosable = allowed & np.isin(np.arange(len(candidates)), ranker.choosable)
        if has_engines(ranker):
            choosable &= is_listed(ranker, distinct)
        problems, index = np.nonzero(choosable)
        rows = problems
    answers = ranker.answers(distinct, problems, index)
    # 3. The fastest candidate of each row. A candidate that fails is kept only if the row requests it.
    ranked = answers._replace(problem=rows).ranked()
    if not requested:
        ranked = ranked[~answers.fails[ranked]]
    best = ranked[np.append(True, rows[ranked][1:] != rows[ranked][:-1])] if len(ranked) else ranked
    out = _empty_answers(len(problem) if requested else len(distinct))
    chosen = answers.candidate[best]
    is_configuration = bool(requested) and bool(group.family.parameter_names)  # the table has the parameters
    name_of = attrgetter("algorithm" if is_configuration else "name")
    notes = _notes(ranker)[ranker.library_of[chosen]]
    too_large = ranker.tensors_exceed_memory(ranker.setting.problem(distinct.T))
    for row in np.flatnonzero(np.broadcast_to(too_large, len(distinct))[problems[best]]).tolist():
        problem_of_best = ranker.setting.problem(distinct[problems[best[row]]].tolist())
        notes[row] = ranker.notes_of(problem_of_best, candidates[chosen[row]].library)
    failing = np.flatnonzero(answers.fails[best])
    for number in np.unique(problems[best[failing]]).tolist():
        of_problem = failing[problems[best[failing]] == number]
        reasons = ranker.failures(ranker.setting.problem(distinct[number].tolist()), answers, best[of_problem])
        for row, reason in zip(of_problem.tolist(), reasons, strict=True):
            notes[row] = (*notes[row], reason)
    unlisted = ranker.evidence.unlisted
    is_unlisted = np.isin(chosen, [*unlisted])
    for row in np.flatnonzero(is_unlisted).tolist():
        notes[row] = (*notes[row], unlisted[int(chosen[row])])
    supported = allowed[problems[best], chosen] & ~answers.fails[best] & ~is_unlisted
    filled = {
        "library": np.array([candidate.library for candidate in candidates], dtype=object)[chosen],
        "algorithm": np.array([name_of(candidate) for candidate in candidates], dtype=object)[chosen],
        "predicted_us": answers.time_us[best],
        "supported": supported,
        "reason": _reasons(ranker, distinct, problems, answers, best, supported),
        "notes": notes,
        **{name: getattr(answers, name)[best] for name in ("lower_us", "upper_us", "in_domain", "source")},
        "workspace_bytes": np.where(answers.workspace_bytes == UNKNOWN, np.nan, answers.workspace_bytes)[best],
    }
    for name, values in filled.items():
        out[name][rows[best]] = values
    for i in np.setdiff1d(np.arange(len(distinct)), rows[best]).tolist() if not requested else ():
        refusals = ranker.rules.of(ranker.setting.problem(distinct[i].tolist()))
        out["reason"][i] = NOTES["nothing_runs"].format("; ".join(dict.fromkeys(filter(None, refusals))))
    return out if requested else {name: column[problem] for name, column in out.items()}


def _reasons(
    ranker: Ranker,
    sizes: np.ndarray,
    problems: np.ndarray,
    answers: AnswerRows,
    best: np.ndarray,
    supported: np.ndarray,
) -> np.ndarray:
    """Return `Prediction.reason` of the ``best`` answers, "" for None, (rows,), of problems with these ``sizes``."""
    reasons = np.full(len(best), "", dtype=object)
    by_key: dict[tuple[int, int], str | None] = {}
    for row in np.flatnonzero(~answers.in_domain[best] | ~supported).tolist():
        key = int(problems[best[row]]), int(answers.candidate[best[row]])
        if key not in by_key:
            problem = ranker.setting.problem(sizes[key[0]].tolist())
            refusal = None if supported[row] else ranker.rules.of(problem)[key[1]]
            at_floor = bool(answers.source[best[row]] == FLOOR)
            by_key[key] = refusal or ranker.outside_reason(problem, key[1], at_floor)
        reasons[row] = by_key[key] or ""
    return reasons


def _positions(ranker: Ranker, requested: CodedTexts, group: Group) -> dict[int, np.ndarray]:
    """Return code of each name in the group's rows → positions of its candidates."""
    codes = np.unique(requested.codes[group.positions]).tolist()
    positions = ranker.positions_of(requested.texts[code] for code in codes)
    return {code: positions[requested.texts[code]] for code in codes}


def _notes(ranker: Ranker) -> np.ndarray:
    """Return the caveats of each library's answers, (libraries,)."""
    out = np.empty(len(ranker.references), dtype=object)
    out[:] = [ranker.notes[library] for library in ranker.references]
    return out


def _empty_answers(length: int) -> Columns:
    out = {name: np.full(length, value, dtype=object if value == "" else None) for name, value in NO_ANSWER.items()}
    out["notes"] = np.fromiter(((),) * length, dtype=object, count=length)
    return out


def _frame(table: Any, described: DescribedFamily | None) -> pd.DataFrame:
    """Return the table of a DataFrame, a mapping, a list of rows, a structured array or a `Path`."""
    if isinstance(table, Path):
        texts = _problem_texts(table, described)
        table = pd.DataFrame({"problem": texts}) if texts else read_table(table)[0]
    elif isinstance(table, Mapping) and not any(map(np.ndim, table.values())):
        table = [table]
    names = table if isinstance(table, Mapping) else getattr(table, "columns", None)
    if isinstance(table, list | tuple) or (isinstance(table, np.ndarray) and table.dtype.names):
        return pd.DataFrame(table).rename(columns=str)
    if names is None or callable(names):
        raise InputError(
            f"a value of type {type(table).__name__} is not a problem; give a Conv, an operator, its text, a list of"
            " them, or a table: a DataFrame, a mapping of columns, a list of rows or a Path"
        )
    return pd.DataFrame({str(name): table[name] for name in names}).reset_index(drop=True)


def _families(frame: pd.DataFrame, described_family: Family | None) -> list[tuple[Family, np.ndarray]]:
    """Return each family of the table, from its column ``family``, with the positions of its rows.

    ``described_family`` is the described kernel of a bundle.
    """
    described = {each.name: each for each in (described_family,) if each}
    names, codes = _text_column(frame, "family", DEFAULT_FAMILY)
    families = [described.get(name) or family_named(name) for name in names]
    return [(family, np.flatnonzero(codes == code)) for code, family in enumerate(families)]


def _sizes(frame: pd.DataFrame, family: Family) -> np.ndarray:
    """Return the sizes (rows, sizes) int64; a missing column is filled with the family's default."""
    missing = [size.name for size in family.sizes if size.default is None and size.name not in frame]
    if missing:
        needed = ", ".join(size.name for size in family.sizes if size.default is None)
        raise InputError(f"the table lacks column {', '.join(missing)}; {family.name} needs {needed}")
    filled: Columns = {}
    for size in family.sizes:
        if size.name in frame:
            filled[size.name] = checked_int("the table", size.name, np.asarray(frame[size.name]), size.minimum)
        elif isinstance(size.default, str):
            filled[size.name] = filled[size.default]
        else:
            filled[size.name] = np.full(len(frame), size.default, dtype=np.int64)
    return np.column_stack(list(filled.values()))


def _check_geometry(family: Family, sizes: np.ndarray, library: CodedTexts) -> None:
    """Raise `InputError` for sizes that contradict each other."""
    library_of_row = np.array(library.texts, dtype=object)[library.codes]
    for column, wrong, rule in family.misfits(dict(zip(family.size_names, sizes.T, strict=True)), library_of_row):
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise RowError("the table", row, f"{column} is {sizes[row, family.size_names.index(column)]}; {rule}")


def _text_column(frame: pd.DataFrame, name: str, default: str) -> CodedTexts:
    """Return a text column. A missing column or cell takes the default."""
    if name not in frame:
        return CodedTexts([default], np.zeros(len(frame), dtype=np.int64))
    codes, values = pd.factorize(frame[name], use_na_sentinel=False)
    texts = [default if pd.isna(value) else stated_setting(name, value) for value in values]
    return CodedTexts(texts, codes)
