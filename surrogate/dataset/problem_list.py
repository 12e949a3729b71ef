"""Problems in lists and tables: the columns that state a problem, and the reader of lists.

A row states its problem in one of three ways:

- a column ``problem`` with a text,
- a column ``operator`` (or ``family``, or ``op``) and the sizes,
- only the sizes, if one family has them: ``m,n,k`` is a matrix product, ``n,c,h,k,r`` a convolution.

Settings such as ``dtype`` are columns; constant settings may be left out. `expand_problems` reads a complete table.

`read_list` reads lines of text, CSV, JSON lines, a parquet table, or SEER's lists of numbers. A line of text is a
problem as on the command line (``n32c256h14w14k256r3s3p1u1``, flags, ``gemm:m64n64k64``). Further columns are
``networks`` (comma-separated), ``name`` and ``heuristic_algorithm``.
"""

import csv
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from surrogate.dataset.columns import COLUMNS, LAYOUT_ALIASES
from surrogate.features import families
from surrogate.features.conv import EXAMPLE, LETTERS
from surrogate.features.elementwise import checked_int
from surrogate.features.errors import InputError, RowError, first_bytes, nearest, read_bounded, require_regular
from surrogate.features.families import FAMILIES, AnyProblem, DescribedProblem, Family, family_of, parse_problem
from surrogate.features.gpu import canonical
from surrogate.features.problem import setting

if TYPE_CHECKING:
    import pandas as pd

    from surrogate.features.conv import Conv

DefaultMath = Callable[[Family[Any], str], str]
"""Function of a family and an element type that returns the math type of problems that do not state it."""
GPU_AND_LIBRARY = ("gpu", "library", "library_version")
FAMILY_COLUMNS = ("operator", "op", "family")
"""Columns with a family or an operator. In each row the first column that is not empty counts."""
SETTINGS = tuple(dict.fromkeys(name for family in FAMILIES.values() for name in family.setting_names))
_DEFAULT = FAMILIES[families.DEFAULT_FAMILY]
MAX_BYTES = 64 << 20
"""Largest size of a list as text; a million problems take 40 MB."""
_NUMBERS = "a line has 8 numbers: batch, C, W, K, out W, filter, stride, pad (and 9: algorithm)"
_HEADER = re.compile(r"\s*[A-Za-z_]+\s*[,;\t]")
_NUMBERS_ONLY = re.compile(r"[\d\s,;.+-]+(#.*)?")
_TEXT_COLUMNS = ("problem", "networks", "name", *FAMILY_COLUMNS, "heuristic_algorithm", "algorithm")
_SIZES = tuple(dict.fromkeys(name for family in FAMILIES.values() for name in family.size_names))
_COMMON = {"pad": "pad_h", "padding": "pad_h", "stride": "stride_h", "dilation": "dilation_h", "batch_size": "batch"}
"""Usual name of a size → its column. A width has the value of its height by default."""
_DECLARED = {column.name for column in COLUMNS} | {*GPU_AND_LIBRARY, *_TEXT_COLUMNS, *SETTINGS}


@lru_cache(256)
def aliased(names: tuple[str, ...], family: Family[Any]) -> dict[str, str]:
    """Return size → the column that gives it under another name: a letter of problems' texts, or a usual name."""
    if "problem" in names or FAMILIES.get(family.name) is not family:
        return {}
    letters = {**_COMMON, **(LETTERS if family is _DEFAULT else {})}
    for kind in family.kinds.values() if isinstance(family.kinds, Mapping) else ():
        letters |= getattr(kind, "ALSO_READ", {}) | getattr(kind, "LETTERS", {})
    pairs = [(size, alias) for alias, size in letters.items() if alias in names and alias not in family.size_names]
    return {size: alias for size, alias in pairs if size in family.size_names and size not in names}


@lru_cache(256)
def unread_note(names: tuple[str, ...], family: Family[Any]) -> str:
    """Return a note on the columns of a table of problems that are not read, or an empty text."""
    aliases = aliased(names, family)
    read_columns = (*family.size_names, *family.setting_names)
    unread = [name for name in names if name not in {*_DECLARED, *aliases.values()} and "Unnamed: " not in name]
    paddings = {size: alias for size, alias in aliases.items() if alias in "pq" and size in ("pad_h", "pad_w")}
    notes = [f"column {alias} is read as {size}, not as an output size" for size, alias in paddings.items()]
    if unread:
        hint = next(filter(None, (nearest(name, read_columns, count=1) for name in unread)), "")
        verb = "columns {} are" if len(unread) > 1 else "column {} is"
        listed = f"the columns of {family.name} are {', '.join(read_columns)}{hint}"
        notes.append(f"{verb.format(', '.join(unread))} not read; {listed}")
    return "; ".join(notes)


def family_of_columns(names: Iterable[str], where: str) -> Family:
    """Return the family that has the sizes ``names``. Raises `InputError` if no family fits, or if several fit."""
    present = {*names}
    sized = {size for family in FAMILIES.values() for size in family.size_names} & present
    # The best family has the most of these sizes. Among several such families, it lacks the fewest required sizes.
    scores = [(len(sized & {*each.size_names}), -len({*required(each)} - present)) for each in FAMILIES.values()]
    best = [each for each, score in zip(FAMILIES.values(), scores, strict=True) if sized and score == max(scores)]
    if not best:
        sizes = "; ".join(f"{','.join(required(f))} ({f.name})" for f in FAMILIES.values() if f.name in f.kinds)
        forms = "give a column problem with texts, or operator and its sizes, or only sizes"
        raise InputError(f"{where}: no column names a problem; {forms}: {sizes}")
    family, *others = best
    if others or family.name not in family.kinds:
        families = ", ".join(each.name for each in best)
        remedy = f"add a column operator, or the sizes of a {_DEFAULT.name}, {', '.join(required(_DEFAULT))}"
        raise InputError(f"{where}: {', '.join(sorted(sized))} are sizes of several operators ({families}); {remedy}")
    if missing := [name for name in required(family) if name not in present]:
        rule = f"a problem of {family.name} has {', '.join(required(family))}"
        hint = nearest(missing[0], [*present - sized])
        raise InputError(f"{where}: column {', '.join(missing)} is missing; {rule}{hint}")
    return family


def required(family: Family) -> tuple[str, ...]:
    """Return the sizes of a family without a default."""
    return tuple(size.name for size in family.sizes if size.default is None)


def problem_of(
    text: str, described_family: Family | None, stated: Mapping[str, str], settings: Mapping[str, str]
) -> AnyProblem:
    """Return the problem of a text, with the ``stated`` settings, and with ``settings`` for the others."""
    text = described_family.full_text(text) if described_family else text
    problem = parse_problem(text, described_family, **stated)
    further = unstated_settings(family_of(problem), stated, settings)
    return parse_problem(text, described_family, **further, **stated) if further else problem


def unstated_settings(family: Family, stated: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Return the ``settings`` of a family that a row does not state."""
    return {name: value for name, value in settings.items() if name in family.setting_names and name not in stated}


def stated_setting(name: str, value: object) -> str:
    """Return a cell of a setting in the spelling of problems."""
    return setting(name, LAYOUT_ALIASES.get(str(value), value) if name == "layout" else value)


@dataclass(frozen=True, slots=True)
class ListedProblem:
    """One line or row of a list. ``problem`` is None if no family has the ``operator``.

    ``where`` is the line or row. ``name`` is the layer's name, ``heuristic`` the library's own pick, and ``algorithm``
    the algorithm in a table with a row per algorithm. ``states_math`` is true if the row has a math type.
    """

    problem: AnyProblem | None
    where: str
    name: str = ""
    networks: tuple[str, ...] = ()
    operator: str = ""
    heuristic: str | None = None
    algorithm: str | None = None
    states_math: bool = False


@dataclass(frozen=True, slots=True)
class ListDefaults:
    """A caller's defaults for a list: ``described_family`` is the described kernel of rows without a family.

    ``settings`` are the settings of rows that do not state them. ``default_math`` returns the math type of problems
    that do not state it. ``gpu`` is the registry name of the GPU that every row must have, if it states one.
    """

    described_family: Family[Any] | None = None
    default_math: DefaultMath | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    gpu: str | None = None

    @property
    def sizes(self) -> tuple[str, ...]:
        """Return the columns of sizes."""
        return self.described_family.size_names if self.described_family else _SIZES

    @property
    def setting_names(self) -> tuple[str, ...]:
        """Return the columns of settings."""
        return self.described_family.setting_names if self.described_family else SETTINGS

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the columns of texts."""
        return tuple(dict.fromkeys((*self.setting_names, "gpu", *_TEXT_COLUMNS)))

    def spelled(self, name: str) -> str:
        """Return a column of a CSV header in its declared spelling; capital letters do not matter."""
        declared = (*self.sizes, *self.texts)
        by_lower = {column.lower(): column for column in declared}
        return name if name in declared else by_lower.get(name.lower(), name.lower())

    def check_header(self, header: Iterable[object], where: str) -> None:
        """Raise `InputError` if the columns state no problem."""
        names = {str(name) for name in header}
        if names & {"problem", *FAMILY_COLUMNS}:
            return
        if self.described_family is None:
            family_of_columns(names, where)
        elif missing := [name for name in required(self.described_family) if name not in names]:
            rule = f"a problem has {', '.join(self.described_family.size_names)}"
            raise InputError(f"{where}: column {', '.join(missing)} is missing; {rule}")

    def problem(self, row: Mapping[str, object], stated: Mapping[str, str], operator: str) -> AnyProblem | None:
        """Return the problem of a row; None for an operator that no family has."""
        if "problem" in row:
            problem = problem_of(str(row["problem"]), self.described_family, stated, self.settings)
            family = family_of(problem)
        else:
            family = self._family(row, operator)
            if family is None:
                return None
            row = {**row, **{size: row[alias] for size, alias in aliased((*row,), family).items()}}
            sizes = {name: _number(row[name]) for name in family.size_names if name in row}
            kind = {"operator": operator} if operator in family.kinds else {}
            problem = family.problem(sizes, {**unstated_settings(family, stated, self.settings), **stated, **kind})
        is_stated = "math" in {*stated, *unstated_settings(family, stated, self.settings)}
        if self.default_math is None or is_stated or isinstance(problem, DescribedProblem):
            return problem
        return replace(problem, math=self.default_math(family, problem.dtype))

    def _family(self, row: Mapping[str, object], operator: str) -> Family[Any] | None:
        """Return the family of a row of sizes; None for an operator that no family has.

        Raises `InputError` for missing sizes.
        """
        if self.described_family is not None:
            family = self.described_family
        elif operator in FAMILIES.of_kind or operator in FAMILIES:
            family = families.family(operator)
        elif operator and not {*required(_DEFAULT)} <= row.keys():
            return None
        else:
            family = _DEFAULT if operator else family_of_columns(row, "the row")
        present = {*row, *aliased((*row,), family)}
        if missing := [name for name in required(family) if name not in present]:
            raise InputError(f"{', '.join(missing)} missing; a problem needs {', '.join(required(family))}")
        return family


def read_list(
    path: str | Path,
    described_family: Family | None = None,
    default_math: DefaultMath | None = None,
    settings: Mapping[str, str] = {},
    gpu: str | None = None,
) -> list[ListedProblem]:
    """Return every line or row of a list in order, with its own settings.

    Parameters
    ----------
    path : str or Path
        The file.
    described_family : Family, optional
        The described kernel of texts without a name and of rows without a family.
    default_math : callable, optional
        Family and element type → math type of rows that do not state it. Without it, such a convolution has fma.
    settings : dict of str to str, optional
        Settings of rows that do not state them.
    gpu : str, optional
        Registry name of a GPU. A row of another GPU is refused.

    Returns
    -------
    list of ListedProblem

    Raises
    ------
    InputError
        With the file, the line, the wrong value and the rule.
    """
    path = Path(path)
    listed = list(_listed(path, ListDefaults(described_family, default_math, settings, gpu)))
    if not listed:
        raise InputError(f"{path}: holds no problem; give one per line, as in {EXAMPLE}")
    return listed


def _listed(path: Path, defaults: ListDefaults) -> Iterator[ListedProblem]:
    if _is_parquet(path):
        from surrogate.dataset.tables import read_table  # imported here: it loads pandas, which texts do not need

        frame = read_table(path)[0]
        defaults.check_header(frame.columns, str(path))
        columns = [name for name in frame if isinstance(name, str)]
        values = enumerate(frame[columns].itertuples(index=False, name=None), 1)
        rows = ((f"row {number}", dict(zip(columns, row, strict=True))) for number, row in values)
        yield from _from_rows(rows, path, defaults)
        return
    lines = [(number, line.strip()) for number, line in enumerate(_text(path).splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    first = lines[0][1] if lines else ""
    if first.startswith("{"):
        rows = ((f"line {number}", _json_object(line, path, number)) for number, line in lines)
        yield from _from_rows(rows, path, defaults)
    elif _HEADER.match(first) or defaults.spelled(re.split(r"\s*[,;\t]", first)[0]) in ("problem", *defaults.sizes):
        yield from _from_rows(_csv(path, lines, defaults), path, defaults)
    elif first and _NUMBERS_ONLY.fullmatch(first):
        for number, (conv, _) in enumerate(numbered_problems(lines, path), 1):
            yield ListedProblem(conv, f"line {number}")
    else:
        for number, line in lines:
            yield from _from_rows([(f"line {number}", {"problem": line})], path, defaults)


def _is_parquet(path: Path) -> bool:
    """Return True if the content of the file is parquet; its name does not matter."""
    require_regular(path, streams=True)
    return first_bytes(path, 4) == b"PAR1"  # `_text` reports an unreadable file


def _text(path: Path) -> str:
    try:
        return read_bounded(path, MAX_BYTES, streams=True).decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give a list of problems, one {EXAMPLE} a line") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a list of problems") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: neither text nor parquet; a list of problems must be UTF-8 text") from None


def _csv(path: Path, lines: list[tuple[int, str]], defaults: ListDefaults) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (where, column → text) for the rows of a CSV with commas, semicolons or tabs; empty cells are left out."""
    delimiter = max(",;\t", key=lines[0][1].count)
    cells = csv.reader((line for _, line in lines), delimiter=delimiter, skipinitialspace=True)
    try:
        header = [defaults.spelled(name.strip()) for name in next(cells)]
        doubled = next((name for name in header if header.count(name) > 1), None)
        if doubled is not None:
            raise InputError(f"{path}: column {doubled!r} occurs twice; keep one")
        defaults.check_header(header, f"{path}: line {lines[0][0]}")
        for (number, _), values in zip(lines[1:], cells, strict=True):
            if len(values) != len(header):
                raise InputError(f"{path}: line {number}: {len(values)} values for {len(header)} columns")
            row = {name: text.strip() for name, text in zip(header, values, strict=True) if text.strip()}
            yield f"line {number}", row
    except (csv.Error, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not a readable CSV table ({error})") from None


def _json_object(line: str, path: Path, number: int) -> Mapping[str, object]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: line {number}: not JSON ({error}); each line is one object") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: line {number}: {type(value).__name__} came; a line is an object of columns")
    return value


def _from_rows(
    rows: Iterable[tuple[str, Mapping[str, object]]], path: Path, defaults: ListDefaults
) -> Iterator[ListedProblem]:
    """Yield the problem of each row (where, column → value). None and NaN count as absent."""
    texts = defaults.texts
    columns_of: dict[Family[Any], dict[str, object]] = {}
    for where, row in rows:
        given = {
            name: value
            for name, value in row.items()
            if value is not None and (isinstance(value, np.ndarray) or value == value)
        }
        text = {name: str(given[name]) for name in texts if name in given}
        operator = next((text[name] for name in FAMILY_COLUMNS if text.get(name)), "")
        if defaults.gpu and canonical(text.get("gpu", defaults.gpu)) != defaults.gpu:
            conflict = f"{where} is of {text['gpu']}, but {defaults.gpu} is requested"
            raise InputError(f"{path}: {conflict}; list one GPU's rows")
        try:
            names = [name for name in defaults.setting_names if name in text and name != "operator"]
            problem = defaults.problem(given, {name: stated_setting(name, text[name]) for name in names}, operator)
        except InputError as error:
            raise InputError(f"{path}: {where}: {error}") from None
        if problem is not None and defaults.described_family is None and "time_us" not in row:
            columns_of.setdefault(family_of(problem), {}).update(row)
        yield ListedProblem(
            problem=problem,
            where=where,
            name=text.get("name", ""),
            networks=tuple(name.strip() for name in text.get("networks", "").split(",") if name.strip()),
            operator=operator,
            heuristic=text.get("heuristic_algorithm"),
            algorithm=text.get("algorithm"),
            states_math="math" in text,
        )
    for family, columns in columns_of.items():
        if note := unread_note((*columns,), family):
            warnings.warn(f"{path}: {note}", stacklevel=4)


def _number(value: object) -> object:
    """Return the number of a text; any other value unchanged, so that the check of integers can report it."""
    try:
        return float(value) if isinstance(value, str) and value.isascii() and "_" not in value else value
    except ValueError:
        return value


def numbered_problems(lines: Iterable[tuple[int, str]], path: Path | str) -> "list[tuple[Conv, int | None]]":
    """Return the problems of SEER's Test-set-II or ``prof-ops`` files (square, fp32, FMA, NCHW, fwd), with algorithms.

    A line has these numbers, with blanks, tabs, commas or semicolons between them: batch, input channels, input width,
    output channels, output width (0: computed), filter width, stride, padding. In ``prof-ops`` files the ninth is the
    algorithm's number. The first line may be the number of problems. Text after # is skipped. Raises `InputError` with
    the line.
    """
    declared: int | None = None
    problems: list[tuple[Conv, int | None]] = []
    for number, line in lines:
        words = re.split(r"[\s,;]+", line.split("#")[0].strip().strip(",;"))
        if words == [""]:
            continue
        where = f"{path}, line {number}"
        values = [checked_int(where, f"number {place}", _number(word), 0) for place, word in enumerate(words, 1)]
        if len(values) == 1 and declared is None and not problems:
            declared = values[0]
            continue
        if len(values) not in (8, 9):
            raise InputError(f"{where}: {len(values)} numbers; {_NUMBERS}")
        algorithm = checked_int(where, "algorithm", values[8], minimum=0, maximum=7) if len(values) == 9 else None
        problems.append((square_conv(values, where), algorithm))
    if not problems:
        raise InputError(f"{path}: holds no problem; {_NUMBERS}")
    if declared is not None and declared != len(problems):
        raise InputError(f"{path}: the first line declares {declared} problems, but {len(problems)} follow; correct it")
    return problems


def square_conv(cells: Sequence[float], where: str) -> "Conv":
    """Return the problem of the numbers 1–8: batch, channels, width, out channels, out width, filter, stride, padding.

    An output width of 0 is computed; any other must agree with the rest. An `InputError` begins with ``where``.
    """
    n, c, w, k, out_w, r, stride, pad = cells[:8]
    try:
        conv = _DEFAULT.problem({"n": n, "c": c, "h": w, "k": k, "r": r, "pad_h": pad, "stride_h": stride}, {})
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if out_w not in (0, conv.out_w):
        rule = f"⌊(W + 2·pad − filter) / stride⌋ + 1 gives {conv.out_w}"
        raise InputError(f"{where}: out width {out_w:g}; {rule}: correct the row, or write 0 to have it computed")
    return conv


def expand_problems(
    frame: "pd.DataFrame", described_family: Family | None, where: str, settings: Mapping[str, str]
) -> "pd.DataFrame":
    """Return a table with the column ``family``, and with the sizes and settings in texts of problems.

    Parameters
    ----------
    frame : DataFrame
        A user's table, with the default index.
    described_family : Family or None
        The described kernel of rows without a family.
    where : str
        The first words of an error.
    settings : mapping of str to str
        Settings of rows that do not state them.

    Returns
    -------
    DataFrame
        The same rows.

    Raises
    ------
    InputError
        For a table without problems, and for the first text that cannot be read.
    """
    import pandas as pd

    stated = [frame[name].astype(object) for name in FAMILY_COLUMNS if name in frame]
    families: list[Family] = []
    if stated:
        number, values = pd.factorize(reduce(pd.Series.combine_first, stated), use_na_sentinel=False)
        families = [_family_by_name(value, described_family) for value in values]
        expanded = frame.assign(family=np.array([family.name for family in families], dtype=object)[number])
        if "operator" not in frame:
            pairs = zip(values, families, strict=True)
            operators = [value if value in family.kinds else None for value, family in pairs]
            expanded["operator"] = np.array(operators, dtype=object)[number]
        complete = all({*required(family)} <= {*frame} for family in families)
    elif described_family is not None:
        expanded = frame.assign(family=described_family.name)
        complete = {*required(described_family)} <= {*frame}
    else:
        expanded, complete = frame, "problem" not in frame
    if "problem" in frame and not complete:
        return _with_problems(frame, described_family, where, settings)
    if not stated and described_family is None:
        expanded = frame.assign(family=family_of_columns(map(str, frame), where).name)
        families = [FAMILIES[name] for name in expanded["family"].head(1)]
    if len(families) == 1:
        aliases = aliased((*map(str, frame),), families[0])
        return expanded.assign(**{size: expanded[alias] for size, alias in aliases.items()})
    return expanded


def _family_by_name(name: object, described_family: Family | None) -> Family:
    """Return the family of an operator's or a family's name. Without a name it is the described one, or conv."""
    text = str(name) if name is not None and name == name else ""
    if described_family is not None and text in ("", described_family.name):
        return described_family
    return families.family(text or families.DEFAULT_FAMILY)


def _with_problems(
    frame: "pd.DataFrame", described_family: Family | None, where: str, settings: Mapping[str, str]
) -> "pd.DataFrame":
    """Return the table with the sizes and settings of the texts in ``problem``; equal texts are read once."""
    import pandas as pd

    further = described_family.setting_names if described_family else ()
    names = [name for name in dict.fromkeys((*SETTINGS, *further)) if name in frame and name != "operator"]
    texts = frame[["problem", *names]].astype(object)
    number = texts.groupby(list(texts), sort=False, dropna=False).ngroup().to_numpy()
    first = np.unique(number, return_index=True)[1]
    problems: list[AnyProblem] = []
    for row, cells in zip(first.tolist(), texts.iloc[first].to_dict("records"), strict=True):
        stated = {name: stated_setting(name, cells[name]) for name in names if not pd.isna(cells[name])}
        try:
            problems.append(problem_of(str(cells["problem"]), described_family, stated, settings))
        except InputError as error:
            raise RowError(where, row, str(error)) from None
    records = []
    for problem in problems:
        family = family_of(problem)
        texts = dict(zip(family.setting_names, family.setting_of(problem), strict=True))
        if "math" not in names and "math" not in settings:
            texts.pop("math", None)  # filled in later: PyTorch's default math on the GPU
        sizes = dict(zip(family.size_names, family.sizes_of(problem), strict=True))
        records.append({"family": family.name, **sizes, **texts})
    table = pd.DataFrame(records).iloc[number].reset_index(drop=True)
    out = frame.drop(columns=[*FAMILY_COLUMNS], errors="ignore")
    return out.assign(**{str(name): table[name] for name in table})
