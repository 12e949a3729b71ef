"""A user's own list of problems: text (one PROBLEM a line), CSV or JSON lines (problem columns), or SEER's Test-set-II.

Settings columns ``dtype math layout direction`` and ``networks`` (comma-separated) are optional in CSV and
JSON lines.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from surrogate.collect.plan import PlannedProblem
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError, nearest
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.features.regular_file import read_bounded
from surrogate.features.text import parse

SETTING_NAMES = ("dtype", "math", "layout", "direction")
MAX_BYTES = 64 << 20
"""Most bytes of a plan; a million problems take 40 MB."""
NEEDED = ("n", "c", "h", "k", "r")
NUMBERS_ONLY = re.compile(r"[\d\s,;.+-]+")


def file_problems(path: str | Path) -> list[PlannedProblem]:
    """The problems of ``path``, in its order, with their own settings (or the defaults fp32 fma NCHW fwd).

    Raises `InputError` naming the file, the line, what came and the rule.
    """
    path = Path(path)
    try:
        text = read_bounded(path, MAX_BYTES, streams=True).decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(
            f"{path}: no such plan file; give a list of problems, one n…c…h…k…r… a line"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a readable plan file ({error}); it must be UTF-8 text") from None
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if not lines:
        raise InputError(f"{path}: holds no problem; give one a line, as in n32c256h14w14k256r3s3p1u1")
    problems = list(_problems(path, lines))
    if not problems:
        raise InputError(f"{path}: a header without problems; give one a line below it")
    return problems


def _problems(path: Path, lines: list[tuple[int, str]]) -> Iterator[PlannedProblem]:
    """By the look of the first line: JSON object, CSV header, bare numbers (Test-set-II), or PROBLEM text."""
    first = lines[0][1]
    if first.startswith("{"):
        for number, line in lines:
            yield _row(_json_object(line, path, number), f"{path}:{number}")
    elif "," in first and re.match(r"[A-Za-z_]+\s*,", first):
        yield from _csv(path, lines)
    elif NUMBERS_ONLY.fullmatch(first):
        from surrogate.formats.test_set_ii import read_test_set_ii

        for conv in read_test_set_ii(path):
            yield PlannedProblem(conv, "test-set-ii")
    else:
        for number, line in lines:
            yield _text(line, f"{path}:{number}", {})


def _csv(path: Path, lines: list[tuple[int, str]]) -> Iterator[PlannedProblem]:
    rows = csv.reader(line for _, line in lines)
    header = [name.strip() for name in next(rows)]
    for name in NEEDED:
        if name not in header and "problem" not in header:
            raise InputError(
                f"{path}:{lines[0][0]}: column {name} is missing from {', '.join(header)};"
                f" a CSV plan has {', '.join(SIZE_COLUMNS)} (w, s and the last nine may be left out)"
                f"{nearest(name, header)}"
            )
    for (number, _), values in zip(lines[1:], rows, strict=True):
        if len(values) != len(header):
            raise InputError(
                f"{path}:{number}: {len(values)} values for {len(header)} columns; give one for each"
            )
        row = {name: value.strip() for name, value in zip(header, values, strict=True) if value.strip()}
        yield _row(row, f"{path}:{number}")


def _row(row: Mapping[str, Any], where: str) -> PlannedProblem:
    """A problem from named values: a ``problem`` text or the size columns."""
    settings = {name: str(row[name]) for name in SETTING_NAMES if name in row}
    networks = tuple(name for name in str(row.get("networks", "")).split(",") if name)
    if "problem" in row:
        return _text(str(row["problem"]), where, settings, networks)
    missing = [name for name in NEEDED if name not in row]
    if missing:
        raise InputError(f"{where}: {', '.join(missing)} missing; a problem needs {', '.join(NEEDED)}")
    try:
        sizes = {name: _whole(name, row[name]) for name in SIZE_COLUMNS if name in row}
        values: dict[str, Any] = {**sizes, **settings}
        return PlannedProblem(Conv(**values), "plan", networks)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _text(text: str, where: str, settings: dict[str, str], networks: tuple[str, ...] = ()) -> PlannedProblem:
    try:
        return PlannedProblem(parse(text, **settings), "plan", networks)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _whole(name: str, value: Any) -> int:
    try:
        number = float(value)
        if number == int(number):
            return int(number)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InputError(f"{name} is {value!r}; a whole number is needed")


def _json_object(line: str, path: Path, number: int) -> Mapping[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f'{path}:{number}: not JSON ({error}); each line is one object such as {{"problem": …}}'
        ) from None
    if not isinstance(value, dict):
        raise InputError(
            f"{path}:{number}: {type(value).__name__} came; each line is one object with problem columns"
        )
    return value
