"""Tables of tuned kernels. The readers of tuners' files share these steps from times to rows and a description."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, TypeGuard

import pandas as pd

from surrogate.features import MAX_EXACT, Description, ElementwiseFormula, InputError, Value
from surrogate.features.families import FAMILIES
from surrogate.formats.imported import Imported

_MAX_LISTED = 12
"""Maximum kernels that an error lists."""
_NUMBER = re.compile(r"-?\d{1,15}|(-?\d{0,15}\.?\d{1,30}(?:e[+-]?\d{1,2})?)", re.ASCII | re.IGNORECASE)
TunedRow = tuple[dict[str, object], Mapping[str, Any]]
"""A row without its parameters, and the configuration. The configuration of a library's own kernel is empty."""
_JOINED = {"status": "first", "time_us": "median", "time_us_min": "min", "time_us_max": "max", "repeats": "sum"}
_JOINED |= {"reason": "first", "origin": "first"}
"""Column → aggregation of repeated measurements."""


def outcome(
    problem: Mapping[str, object],
    configuration: Mapping[str, Any],
    time_ms: Any,
    *,
    spread_ms: Sequence[Any] = (),
    repeats: int = 1,
    reason: str = "no time",
) -> TunedRow:
    """Return the row and the configuration of a measurement on a ``problem`` (gpu, sizes, settings, library, origin).

    ``time_ms`` is a number, or a value that marks a failure. A text is the reason of the failure. ``spread_ms`` are
    the times of single runs. Raises `UnicodeEncodeError` for half of a surrogate pair, which no table can hold.
    """
    "".join(map(str, (*problem.values(), *configuration.values()))).encode()
    is_ok = is_time(time_ms)
    runs_ms = [*filter(is_time, spread_ms)] or [time_ms]
    times_ms = (time_ms, min(runs_ms), max(runs_ms)) if is_ok else [math.nan] * 3
    times = dict(zip(("time_us", "time_us_min", "time_us_max"), (1e3 * each for each in times_ms), strict=True))
    why = None if is_ok else time_ms if isinstance(time_ms, str) else reason
    status = "ok" if is_ok else "failed"
    return {**problem, "status": status, **times, "repeats": repeats * is_ok, "reason": why}, configuration


def is_time(value: Any) -> TypeGuard[float]:
    """Return True for a time above 0. Older files write 1e20 for a failure."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e20


def number(value: Any) -> Any:
    """Return the number in a text; other values are returned unchanged."""
    found = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    return value if not found else float(value) if found[1] else int(value)


@dataclass(frozen=True, slots=True)
class TunedKernel:
    """A kernel as its tuner's files describe it: its name, the columns of its problems, the values of its parameters.

    ``values`` (parameter → list, one mapping per file) may hold values without a measurement. ``conditions`` that are
    not plain arithmetic are skipped. ``formulas`` maps a cost of a launch to its formula.
    """

    name: str
    sizes: Sequence[str]
    settings: Sequence[str] = ()
    values: Sequence[Mapping[str, Sequence[Any]]] = ()
    conditions: Sequence[str] | None = None
    formulas: Mapping[str, str] = field(default_factory=dict)


def tuned(kernel: TunedKernel, outcomes: Sequence[TunedRow], where: str | Path, notes: Sequence[str] = ()) -> Imported:
    """Return the table of one kernel: one row per problem and configuration, with the median of repeated times.

    Raises `InputError`. Its message begins with ``where``.
    """
    sizes, settings = kernel.sizes, kernel.settings
    if not any(configuration for _, configuration in outcomes):
        raise InputError(f"{where}: no configuration found; give the file of a finished or interrupted tuning run")
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
        # 2. The description. It refuses names that contradict each other.
        frame = pd.DataFrame([row for row, _ in outcomes])
        texts = {setting: tuple(sorted(frame[setting].unique())) for setting in settings}
        numeric = [parameter for parameter, values in parameters.items() if not isinstance(values[0], str)]
        names = frozenset((*sizes, *numeric))
        conditions = None if kernel.conditions is None else _formulas(kernel.conditions, names, notes)
        costs = {name: ElementwiseFormula.parse(text, name, names) for name, text in kernel.formulas.items()}
        described = Description(identifier(kernel.name), tuple(sizes), parameters, texts, conditions, costs)
    except (InputError, UnicodeEncodeError) as error:  # a JSON text may hold half a character
        raise InputError(f"{where}: {error}") from None
    # 3. The rows. If a configuration ran at least once, its failures do not count.
    frame = frame.assign(**columns)
    key = ["gpu", *sizes, *settings, *(name for name in ("library", "algorithm") if name in frame), *parameters]
    ran = frame.groupby(key, dropna=False)["time_us"].transform("count") > 0
    repeats = frame[~ran | (frame["status"] == "ok")].groupby(key, sort=False, dropna=False, as_index=False)
    rows = repeats.agg(_JOINED)
    return Imported(rows, candidates="listed", notes=tuple(notes), metadata={"kernel": described.to_dict()})


def identifier(name: str) -> str:
    """Return a kernel's name as an identifier that is not the name of a built-in family."""
    name = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")[:60] or "kernel"
    return f"{name[:50]}_kernel" if FAMILIES.is_built_in(name) else f"k{name}" if name[0].isdigit() else name


def one_kernel(names: Iterable[str], requested: str | None, where: str | Path) -> str:
    """Return the ``requested`` kernel, or the only one. Raises `InputError` that lists the names."""
    available = sorted({*names})
    chosen = [name for name in available if requested in (None, name, identifier(name))]
    if len(chosen) != 1:
        unknown = f"the files have no kernel {requested}"
        several = f"a table holds one kernel, the files have {len(available)}"
        message = f"{where}: {several if requested is None else unknown}; choose with --name:"
        raise InputError(f"{message} {', '.join(available[:_MAX_LISTED])}{' …' * (len(available) > _MAX_LISTED)}")
    return chosen[0]


def _of_one_type(cells: list[Any], name: str) -> tuple[list[Any], str]:
    """Return the cells converted to one type, and a note on the conversion. No cells are left if all are None."""
    kinds = {type(cell) for cell in cells}
    if kinds == {NoneType}:
        return [], "None everywhere, left out"
    if not kinds <= {bool, int, float, str, NoneType} or any(isinstance(c, int) and abs(c) > MAX_EXACT for c in cells):
        raise InputError(f"parameter {name}: a value is neither a number up to 2^53 nor a text, true or false")
    if len(kinds) == 1 and kinds <= {str, bool}:
        return cells, ""
    if str in kinds or (NoneType in kinds and (bool in kinds or 0 in cells)):
        return [str(cell) for cell in cells], "values of several types are read as texts"
    kind = float if float in kinds else int
    return [kind(cell or 0) for cell in cells], "None is 0" if NoneType in kinds else ""


def _formulas(texts: Sequence[str], names: frozenset[str], notes: list[str]) -> tuple[ElementwiseFormula, ...] | None:
    """Return the conditions that are plain arithmetic; None if no condition is. The others are added to ``notes``."""
    formulas = []
    for text in texts:
        try:
            formulas.append(ElementwiseFormula.parse(text, "condition", names))
        except InputError as error:
            notes.append(f"left out: {error}")
    return tuple(formulas) if formulas or not texts else None
