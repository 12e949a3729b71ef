"""Tables of tuned kernels: what the readers of tuners' files share, from times to rows and a described kernel."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, TypeGuard

import pandas as pd

from surrogate.features.description import Description, Value
from surrogate.features.elementwise import MAX_EXACT, ElementwiseFormula
from surrogate.features.errors import InputError
from surrogate.features.families import FAMILIES
from surrogate.formats.imported import Imported

Outcome = tuple[dict[str, object], Mapping[str, Any]]
"""A row but for its parameters, and the configuration, which is empty for a library's own kernel."""
_JOINED = {"status": "first", "time_us": "median", "time_us_min": "min", "time_us_max": "max", "repeats": "sum"}
_JOINED |= {"reason": "first", "origin": "first"}
"""Column → how repeated measurements become one."""


def outcome(
    problem: Mapping[str, object],
    configuration: Mapping[str, Any],
    time_ms: Any,
    *,
    spread_ms: Sequence[Any] = (),
    repeats: int = 1,
    reason: str = "no time",
) -> Outcome:
    """A configuration's outcome on a ``problem`` (gpu, sizes, settings, library, origin), which may be without a time.

    ``time_ms`` is a number, or what stands in its place: a text is the reason. ``spread_ms`` are times of its runs.
    """
    is_ok = is_time(time_ms)
    runs_ms = [*filter(is_time, spread_ms)] or [time_ms]
    times_ms = (time_ms, min(runs_ms), max(runs_ms)) if is_ok else [math.nan] * 3
    times = dict(zip(("time_us", "time_us_min", "time_us_max"), (1e3 * each for each in times_ms), strict=True))
    why = None if is_ok else time_ms if isinstance(time_ms, str) else reason
    status = "ok" if is_ok else "failed"
    return {**problem, "status": status, **times, "repeats": repeats * is_ok, "reason": why}, configuration


def is_time(value: Any) -> TypeGuard[float]:
    """True for a number above 0 that stands for no failure, as 1e20 does in older files."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e20


@dataclass(frozen=True, slots=True)
class TunedKernel:
    """A kernel as its tuner's files describe it: its name, its problems' columns, the values of its parameters.

    ``values`` (parameter → list, by file) may hold more than the measured ones; of ``conditions`` those are left out
    that are no plain arithmetic.
    """

    name: str
    sizes: Sequence[str]
    settings: Sequence[str] = ()
    values: Sequence[Mapping[str, Sequence[Any]]] = ()
    conditions: Sequence[str] | None = None


def tuned(kernel: TunedKernel, outcomes: Sequence[Outcome], where: str | Path, notes: Sequence[str] = ()) -> Imported:
    """The table of one kernel: a row per problem and configuration, the median where it was measured several times.

    Raises `InputError`, which begins with ``where``.
    """
    sizes, settings = kernel.sizes, kernel.settings
    if not any(configuration for _, configuration in outcomes):
        raise InputError(f"{where}: holds no configuration; give the file of a finished or interrupted tuning run")
    notes = list(notes)
    columns: dict[str, pd.Series] = {}
    parameters: dict[str, tuple[Value, ...]] = {}
    try:
        # 1. Each parameter gets values of one type, for its column and for the description.
        for parameter in dict.fromkeys(parameter for _, configuration in outcomes for parameter in configuration):
            measured = [configuration.get(parameter) for _, configuration in outcomes if configuration]
            listed = [value for file in kernel.values for value in file.get(parameter, ())]
            cells, note = _of_one_type([*measured, *listed], parameter)
            notes += [f"{parameter}: {note}"] if note else []
            if cells:
                parameters[parameter] = tuple(dict.fromkeys(cells if isinstance(cells[0], str) else sorted(cells)))
                rows = [place for place, (_, configuration) in enumerate(outcomes) if configuration]
                column = pd.Series(cells[: len(rows)], index=rows)
                columns[parameter] = column if len(rows) == len(outcomes) else column.convert_dtypes()
        # 2. The description, which refuses names that do not fit together.
        frame = pd.DataFrame([row for row, _ in outcomes])
        texts = {setting: tuple(sorted(frame[setting].unique())) for setting in settings}
        numeric = [parameter for parameter, known in parameters.items() if not isinstance(known[0], str)]
        formulas = (
            None if kernel.conditions is None else _formulas(kernel.conditions, frozenset((*sizes, *numeric)), notes)
        )
        described = Description(identifier(kernel.name), tuple(sizes), parameters, texts, formulas)
    except (InputError, UnicodeEncodeError) as error:  # a JSON text may hold half a character
        raise InputError(f"{where}: {error}") from None
    # 3. The rows: where a configuration ran once, its failures do not count.
    frame = frame.assign(**columns)
    key = ["gpu", *sizes, *settings, *(name for name in ("library", "algorithm") if name in frame), *parameters]
    ran = frame.groupby(key, dropna=False)["time_us"].transform("count") > 0
    repeats = frame[~ran | (frame["status"] == "ok")].groupby(key, sort=False, dropna=False, as_index=False)
    rows = repeats.agg(_JOINED)
    return Imported(rows, candidates="listed", notes=tuple(notes), metadata={"kernel": described.to_plain()})


def identifier(name: str) -> str:
    """A kernel's name as a description takes it, without templates and signs; none that is a built-in family's."""
    name = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")[:60] or "kernel"
    return f"{name[:50]}_kernel" if FAMILIES.is_built_in(name) else f"k{name}" if name[0].isdigit() else name


def one_kernel(names: Iterable[str], wanted: str | None, where: str | Path) -> str:
    """The kernel that ``wanted`` chooses, or the only one. Raises `InputError` that lists the names."""
    known = sorted({*names})
    chosen = [name for name in known if wanted in (None, name, identifier(name))]
    if len(chosen) != 1:
        raise InputError(f"{where}: a table is of one kernel; choose with --name: {', '.join(known)}")
    return chosen[0]


@contextmanager
def readable(path: Path, remedy: str) -> Iterator[None]:
    """What a file's content makes the reader raise becomes an `InputError`, which ends with ``remedy``."""
    try:
        yield
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        what = {json.JSONDecodeError: "not JSON", KeyError: "it lacks"}.get(type(error), "not as expected")
        message = f"{path}: {what} ({str(error)[:80]}); {remedy}"
        raise error if isinstance(error, InputError) else InputError(message) from None


def _of_one_type(cells: list[Any], name: str) -> tuple[list[Any], str]:
    """Cells that have one type, and what was changed; none where all are None."""
    kinds = {type(cell) for cell in cells}
    if kinds == {NoneType}:
        return [], "None everywhere, left out"
    if not kinds <= {bool, int, float, str, NoneType} or any(isinstance(c, int) and abs(c) > MAX_EXACT for c in cells):
        raise InputError(f"parameter {name} has a value that is neither a number up to 2^53 nor a text, true or false")
    if len(kinds) == 1 and kinds <= {str, bool}:
        return cells, ""
    if str in kinds or (NoneType in kinds and (bool in kinds or 0 in cells)):
        return [str(cell) for cell in cells], "values of several types, taken as texts"
    kind = float if float in kinds else int
    return [kind(cell or 0) for cell in cells], "None is 0" if NoneType in kinds else ""


def _formulas(texts: Sequence[str], known: frozenset[str], notes: list[str]) -> tuple[ElementwiseFormula, ...] | None:
    """Conditions that are plain arithmetic; None where there are some and none is. ``notes`` gets the others."""
    formulas = []
    for text in texts:
        try:
            formulas.append(ElementwiseFormula.parse(text, "condition", known))
        except InputError as error:
            notes.append(f"left out: {error}")
    return tuple(formulas) if formulas or not texts else None
