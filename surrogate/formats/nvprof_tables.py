"""The tables inside an nvprof log, whichever way it was printed: launches, metrics per launch, metrics on
average.
"""

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from surrogate.features.errors import InputError
from surrogate.formats.nvprof_values import TIME_US, duration_us, kernel_name, metric, size_bytes, whole

Kind = Literal["trace", "metrics", "averages", "summary"]
_GAP = re.compile(r"\s{2,}")
_TRIPLE = re.compile(r"\((\d+) (\d+) (\d+)\)", re.ASCII)
_NAMES = {
    "Regs*": "Registers Per Thread", "SSMem*": "Static SMem", "DSMem*": "Dynamic SMem",
}  # fmt: skip
_GRID = ("Grid X", "Grid Y", "Grid Z", "Block X", "Block Y", "Block Z")
_GRID_COLUMNS = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
_PERMISSION = "ERR_NVGPUCTRPERM"


@dataclass(slots=True)
class NvprofTables:
    """What a log holds. Each record has ``kernel_name``; ``device`` where the log says it."""

    launches: list[dict[str, Any]] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    averages: list[dict[str, Any]] = field(default_factory=list)
    copies: int = 0
    skipped: int = 0
    has_summary: bool = False


@dataclass(slots=True)
class _Open:
    """The table that the reader is in: its kind, its column names, its units (by column), CSV or aligned
    text.
    """

    kind: Kind
    header: list[str]
    is_csv: bool
    units: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    device: str = ""
    kernel: str = ""


def parse_tables(lines: Iterable[tuple[int, str]], name: str) -> NvprofTables:
    """All tables of a log; lines between them (the program's own output) are skipped, and counted inside a
    table.

    Raises `InputError` naming ``name`` and the line where a value cannot be read, or nvprof reports that it
    was not permitted to count.
    """
    found, table = NvprofTables(), None
    for number, line in lines:
        text = line.strip()
        where = f"{name}, line {number}"
        if text.startswith("=="):
            _check_message(text, where)
            continue
        if not text:
            table = table if table and table.is_csv else None
            continue
        opened = _header(text)
        if opened is not None:
            table = opened
            found.has_summary |= table.kind == "summary"
        elif table is not None and table.kind != "summary":
            _row(found, table, text, where)
    return found


def _check_message(text: str, where: str) -> None:
    if _PERMISSION in text or "permission to access" in text.lower():
        raise InputError(
            f"{where}: nvprof was not permitted to count; load the driver with"
            f" NVreg_RestrictProfilingToAdminUsers=0, or run as root"
        )


def _cells(text: str) -> list[str]:
    try:
        return next(csv.reader([text]))
    except (csv.Error, StopIteration):
        return []


def _header(text: str) -> _Open | None:
    """The table that ``text`` opens, or None."""
    if "Name" not in text and "Kernel" not in text:
        return None  # most lines: every header has one of these
    is_csv = "," in text and ("Duration" in text or "Kernel" in text or "Time(%)" in text)
    names = [name.strip() for name in (_cells(text) if is_csv else _GAP.split(text))]
    known = set(names)
    kind: Kind | None = None
    if {"Start", "Duration", "Name"} <= known:
        kind = "trace"
    elif "Metric Name" in known and ("Kernel" in known or "Invocations" in known):
        kind = "averages"
    elif {"Device", "Context", "Stream", "Kernel"} <= known:
        kind = "metrics"
    elif "Time(%)" in known and "Name" in known:
        kind = "summary"
    return None if kind is None else _Open(kind, [_NAMES.get(name, name) for name in names], is_csv)


def _row(found: NvprofTables, table: _Open, text: str, where: str) -> None:
    table.rows += 1
    if table.kind == "averages" and not table.is_csv and _caption(table, text):
        return
    cells = _cells(text) if table.is_csv else _GAP.split(text, maxsplit=len(table.header) - 1)
    if len(cells) != len(table.header):
        found.skipped += 1
        return
    row = {name: cell.strip() for name, cell in zip(table.header, cells, strict=True)}
    if table.is_csv and table.rows == 1 and _is_units(table, row):
        table.units = {name: unit for name, unit in row.items() if unit}
    elif table.kind == "trace":
        _launch(found, table, row, where)
    elif table.kind == "metrics":
        _metrics(found, table, row)
    else:
        _average(found, table, row, where)


def _is_units(table: _Open, row: dict[str, str]) -> bool:
    """True for the row of units that follows a CSV header."""
    if table.kind == "trace":
        return row["Duration"] in TIME_US
    return not row.get("Kernel", "")


def _caption(table: _Open, text: str) -> bool:
    """Take in a text log's ``Device "…"`` or ``Kernel: …`` line, under which its metrics stand."""
    if text.startswith("Device "):
        table.device = text[7:].strip().strip('"')
    elif text.startswith("Kernel: "):
        table.kernel = kernel_name(text[8:])
    else:
        return False
    return True


def _launch(found: NvprofTables, table: _Open, row: dict[str, str], where: str) -> None:
    if "Grid Size" in row:
        grid, block = _TRIPLE.fullmatch(row["Grid Size"]), _TRIPLE.fullmatch(row.get("Block Size", ""))
        launch = [*grid.groups(), *block.groups()] if grid and block else None
    else:
        launch = [row.get(name, "") for name in _GRID]
        launch = launch if all(launch) else None
    if launch is None:
        found.copies += row["Name"].startswith("[")
        found.skipped += not row["Name"].startswith("[")
        return
    if table.is_csv and "Duration" not in table.units:
        raise InputError(
            f"{where}: the header has no row of units below it; print the log anew, with its first lines"
        )
    units = table.units
    found.launches.append(
        {
            "kernel_name": kernel_name(row["Name"]),
            **{column: whole(value, where) for column, value in zip(_GRID_COLUMNS, launch, strict=True)},
            "registers_per_thread": whole(row.get("Registers Per Thread", ""), where),
            "static_shared_bytes": size_bytes(
                row.get("Static SMem", ""), where, units.get("Static SMem", "B")
            ),
            "dynamic_shared_bytes": size_bytes(
                row.get("Dynamic SMem", ""), where, units.get("Dynamic SMem", "B")
            ),
            "time_us": duration_us(row["Duration"], where, units.get("Duration", "")),
            "start_us": duration_us(row["Start"], where, units.get("Start", "")),
            "device": row.get("Device", ""),
            "stream": row.get("Stream", ""),
        }
    )


def _metrics(found: NvprofTables, table: _Open, row: dict[str, str]) -> None:
    fixed = ("Device", "Context", "Stream", "Kernel", "Correlation_ID", "ID")
    values = dict(
        metric(name, text, table.units.get(name, "")) for name, text in row.items() if name not in fixed
    )
    if not row["Kernel"].startswith("["):
        found.metrics.append({"kernel_name": kernel_name(row["Kernel"]), "device": row["Device"], **values})


def _average(found: NvprofTables, table: _Open, row: dict[str, str], where: str) -> None:
    """One metric of one kernel over its invocations; all of a kernel's metrics are gathered in one record."""
    name = kernel_name(row.get("Kernel", table.kernel))
    device = row.get("Device", table.device)
    column, value = metric(row["Metric Name"], row.get("Avg", row.get("Mean", "")))
    last = found.averages[-1] if found.averages else None
    if last is None or (last["kernel_name"], last["device"]) != (name, device):
        last = {
            "kernel_name": name,
            "device": device,
            "invocations": whole(row.get("Invocations", ""), where),
        }
        found.averages.append(last)
    last[column] = value
