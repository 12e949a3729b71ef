"""nvprof logs as CSV or aligned text: launches with grids and times, and metrics.

How to get them (GPUs before compute capability 8.0). For times, run this several times; each file is one repeat:

    nvprof --print-gpu-trace --csv --log-file trace.csv PROGRAM

For counters:

    nvprof --print-gpu-trace --csv --log-file metrics.csv \\
        --metrics inst_fp_32,dram_read_transactions,dram_write_transactions \\
        --metrics single_precision_fu_utilization,dram_utilization,achieved_occupancy PROGRAM

The aligned text without --csv is read, too. If one call gets both kinds, they are joined launch by launch. If
--problems lists the problems that PROGRAM ran, the launches become dataset rows. Plain `nvprof PROGRAM` prints a
summary by kernel name without launches; `seer trace kernels LOG` shows it.
"""

import csv
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Unpack

from surrogate.dataset.files import Progress
from surrogate.features.elementwise import checked_int
from surrogate.features.errors import InputError, first_bytes, read_toml
from surrogate.formats import Format
from surrogate.formats.foreign_file import DEFAULT_MAX_BYTES, Paths, read_lines
from surrogate.formats.imported import Imported, plural
from surrogate.formats.launches import LaunchRow, LogOptions, imported_launches

_REMEDY = "print the log with nvprof --print-gpu-trace --csv --log-file FILE PROGRAM"


def read(
    paths: Paths, *, max_bytes: int = DEFAULT_MAX_BYTES, progress: Progress | None = None, **options: Unpack[LogOptions]
) -> Imported:
    """Read logs as a kernel table, or with problems as dataset rows. ``options`` as in `imported_launches`.

    Raises `InputError` with file and line.
    """
    logs = [_Log(Path(path)).read(max_bytes, progress) for path in paths]
    for log in logs:
        if not (log.launches or log.metrics or log.averages):
            summary = "a summary by kernel name, without launches (`seer trace kernels` shows it)"
            raise InputError(f"{log.path}: {summary if log.has_summary else 'no launch and no metric'}; {_REMEDY}")
    launches = [log.launches for log in logs if log.launches]
    metrics = [log.metrics for log in logs if log.metrics]
    averages = [record for log in logs for record in log.averages]
    return imported_launches(launches, metrics, averages, [note for log in logs for note in log.notes], options)


FORMAT = Format("nvprof", "nvprof logs: launches and metrics, CSV or text", read)


def is_summary(path: Path) -> bool:
    """Return True if the first MiB of a log has a summary by kernel name."""
    return b"Time(%)" in first_bytes(path, 1 << 20)


def read_summary(path: Path) -> list[LaunchRow]:
    """Return a record per kernel, copy and API call: ``type``, name, ``time_pct`` of its type, times, calls."""
    return _Log(path).read(DEFAULT_MAX_BYTES, None).summary


def database_error(path: Path) -> InputError:
    """Return the error for a SQLite file that ``nvprof -o`` wrote."""
    return InputError(
        f"{path} is nvprof's own database; `nvprof -i {path.name} --csv --log-file FILE` writes the summary for"
        " `seer trace kernels`, and with --print-gpu-trace the launches for `seer import nvprof`"
    )


GPU_ACTIVITIES = "GPU activities"
_SUMMARY = re.compile(r"(?:([A-Z][^%]*):\s+)?([\d.]+)%\s+(\S+)\s+(\d+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(.+)")
_SUMMARY_NAMES = ("Type", "Time(%)", "Time", "Calls", "Avg", "Min", "Max", "Name")
_GAP = re.compile(r"\s{2,}")
_TRIPLE = re.compile(r"\((\d+) (\d+) (\d+)\)", re.ASCII)
_TEXT_NAMES = {"Regs*": "Registers Per Thread", "SSMem*": "Static SMem", "DSMem*": "Dynamic SMem"}
_GRID = {f"{what}_{axis.lower()}": f"{what.title()} {axis}" for what in ("grid", "block") for axis in "XYZ"}
_NO_METRICS = ("Device", "Context", "Stream", "Kernel", "Correlation_ID", "ID")


@dataclass(slots=True)
class _Table:
    """The current table of the reader: its kind, its column names, its units (by column), CSV or aligned text."""

    kind: Literal["trace", "metrics", "averages", "summary"]
    header: list[str]
    is_csv: bool
    units: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    device: str = ""
    kernel: str = ""


@dataclass(slots=True)
class _Log:
    """The content of a log: launches, metrics per launch, metrics averaged over a kernel's launches."""

    path: Path
    launches: list[LaunchRow] = field(default_factory=list)
    metrics: list[LaunchRow] = field(default_factory=list)
    averages: list[LaunchRow] = field(default_factory=list)
    summary: list[LaunchRow] = field(default_factory=list)
    has_summary: bool = False
    type: str = GPU_ACTIVITIES
    copies: int = 0
    skipped: int = 0

    @property
    def notes(self) -> list[str]:
        foreign = "left out that nvprof did not print"
        counts = ((self.copies, "memory operation", "left out"), (self.skipped, "line", foreign))
        return [f"{self.path.name}: {plural(count, what)} {outcome}" for count, what, outcome in counts if count]

    def read(self, max_bytes: int, progress: Progress | None) -> "_Log":
        """Read all tables. The program's own output is skipped; its lines inside a table are counted."""
        table: _Table | None = None
        for number, line in read_lines(self.path, max_bytes=max_bytes, progress=progress):
            text = line.strip()
            where = f"{self.path}, line {number}"
            if number == 1 and text.startswith("SQLite format 3"):
                raise database_error(self.path)
            if text.startswith("=="):
                _check_message(text, where)
                if text.endswith(("API calls:", "Profiling result:")):  # nvprof before CUDA 9 names the type here
                    self.type = "API calls" if "API" in text else GPU_ACTIVITIES
            elif not text:
                table = table if table and table.is_csv else None
            elif opened := _header(text):
                table = opened
                self.has_summary |= table.kind == "summary"
            elif table is not None and table.kind == "summary" and not table.is_csv:
                match = _SUMMARY.fullmatch(text)
                if match:
                    self._summarise(table, dict(zip(_SUMMARY_NAMES, match.groups(""), strict=True)), where)
            elif table is not None:
                self._row(table, text, where)
        return self

    def _row(self, table: _Table, text: str, where: str) -> None:
        table.rows += 1
        if table.kind == "averages" and not table.is_csv and _caption(table, text):
            return
        cells = _cells(text) if table.is_csv else _GAP.split(text, maxsplit=len(table.header) - 1)
        if len(cells) != len(table.header):
            self.skipped += 1
            return
        row = {name: cell.strip() for name, cell in zip(table.header, cells, strict=True)}
        if table.is_csv and table.rows == 1 and _is_units(table, row):
            table.units = {name: unit for name, unit in row.items() if unit}
        elif table.kind == "trace":
            self._launch(table, row, where)
        elif table.kind == "metrics":
            self._metrics(table, row)
        elif table.kind == "summary":
            self._summarise(table, row, where)
        else:
            self._average(table, row, where)

    def _launch(self, table: _Table, row: dict[str, str], where: str) -> None:
        if "Grid Size" in row:
            sizes = [_TRIPLE.fullmatch(row.get(name, "")) for name in ("Grid Size", "Block Size")]
            dimensions = [value for match in sizes if match for value in match.groups()]
        else:
            dimensions = [row[name] for name in _GRID.values() if row.get(name)]
        if len(dimensions) != len(_GRID):
            is_copy = row["Name"].startswith("[")
            self.copies += is_copy
            self.skipped += not is_copy
            return
        if table.is_csv and "Duration" not in table.units:
            raise InputError(f"{where}: the row of units below the header is missing; write the log again")

        def quantity(name: str, scales: dict[str, float], unit: str = "") -> float:
            return scaled(row.get(name, ""), table.units.get(name, unit), scales, where)

        # The log has five digits of a size.
        static, dynamic = (float(round(quantity(f"{kind} SMem", SIZE_BYTES, "B"))) for kind in ("Static", "Dynamic"))
        self.launches.append(
            {
                "kernel_name": kernel_name(row["Name"]),
                **{column: count(column, value, where) for column, value in zip(_GRID, dimensions, strict=True)},
                "registers_per_thread": count("Registers Per Thread", row.get("Registers Per Thread", ""), where),
                "static_shared_bytes": static,
                "dynamic_shared_bytes": dynamic,
                "time_us": quantity("Duration", TIME_US),
                "start_us": quantity("Start", TIME_US),
                "device": row.get("Device", ""),
                "stream": row.get("Stream", ""),
            }
        )

    def _summarise(self, table: _Table, row: dict[str, str], where: str) -> None:
        """Add a line of the summary. In text, only the first line of a type names the type."""
        self.type = row.get("Type") or self.type
        share = scaled(row["Time(%)"], "%", {"%": 1}, where)
        calls = count("Calls", row["Calls"], where)
        record: LaunchRow = {"type": self.type, "kernel": row["Name"], "time_pct": share, "calls": calls}
        for name, column in {"total_us": "Time", "avg_us": "Avg", "min_us": "Min", "max_us": "Max"}.items():
            record[name] = scaled(row[column], table.units.get(column, ""), TIME_US, where)
        self.summary.append(record)

    def _metrics(self, table: _Table, row: dict[str, str]) -> None:
        counted = {name: text for name, text in row.items() if name not in _NO_METRICS}
        values = dict(metric(name, text, table.units.get(name, "")) for name, text in counted.items())
        if not row["Kernel"].startswith("["):
            self.metrics.append({"kernel_name": kernel_name(row["Kernel"]), "device": row["Device"]} | values)

    def _average(self, table: _Table, row: dict[str, str], where: str) -> None:
        """Add a metric of a kernel, averaged over its invocations, to the record of the kernel."""
        kernel = kernel_name(row.get("Kernel", table.kernel))
        identity = {"kernel_name": kernel, "device": row.get("Device", table.device)}
        if not self.averages or not identity.items() <= self.averages[-1].items():
            self.averages.append({**identity, "invocations": count("Invocations", row.get("Invocations", ""), where)})
        column, value = metric(row["Metric Name"], row.get("Avg", row.get("Mean", "")))
        self.averages[-1][column] = value


def _check_message(text: str, where: str) -> None:
    if "ERR_NVGPUCTRPERM" in text or "permission to access" in text.lower():
        remedy = "load the driver with NVreg_RestrictProfilingToAdminUsers=0, or run as root"
        raise InputError(f"{where}: nvprof lacked the permission to count; {remedy}")


def _cells(text: str) -> list[str]:
    try:
        return next(csv.reader([text]))
    except csv.Error:
        return []


def _header(text: str) -> _Table | None:
    """Return the table with the header ``text``; None if ``text`` is no header."""
    if "Name" not in text and "Kernel" not in text:
        return None  # a fast path for most lines: every header has one of these words
    is_csv = "," in text and ("Duration" in text or "Kernel" in text or "Time(%)" in text)
    header = [_TEXT_NAMES.get(name.strip(), name.strip()) for name in (_cells(text) if is_csv else _GAP.split(text))]
    names = set(header)
    if {"Start", "Duration", "Name"} <= names:
        return _Table("trace", header, is_csv)
    if "Metric Name" in names and ("Kernel" in names or "Invocations" in names):
        return _Table("averages", header, is_csv)
    if {"Device", "Context", "Stream", "Kernel"} <= names:
        return _Table("metrics", header, is_csv)
    return _Table("summary", header, is_csv) if {"Time(%)", "Name"} <= names else None


def _is_units(table: _Table, row: dict[str, str]) -> bool:
    """Return True for the row of units after a CSV header."""
    if table.kind == "summary":
        return row["Time"] in TIME_US
    return row["Duration"] in TIME_US if table.kind == "trace" else not row.get("Kernel", "")


def _caption(table: _Table, text: str) -> bool:
    """Store the ``Device "…"`` or ``Kernel: …`` line above the metrics of a text log. Return False for another line."""
    if text.startswith("Device "):
        table.device = text[7:].strip().strip('"')
    elif text.startswith("Kernel: "):
        table.kernel = kernel_name(text[8:])
    else:
        return False
    return True


# Formats of nvprof's values: `466.21ms`, `1.1152KB`, `99.3%`, `199.4GB/s`, `Low (1)`.
TIME_US = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}
SIZE_BYTES = {"B": 1.0, "KB": 1024.0, "MB": 1024.0**2, "GB": 1024.0**3}
"""nvprof's sizes are binary; its rates are decimal."""
_RATE_GBS = {"B/s": 1e-9, "KB/s": 1e-6, "MB/s": 1e-3, "GB/s": 1.0, "TB/s": 1e3}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z%]*(?:/s)?)", re.ASCII)
_LEVEL = re.compile(r"(?:Idle|Low|Mid|High|Max)?\s*\((\d+)\)", re.ASCII)
_COLUMNS: dict[str, str] = read_toml(__file__)["columns"]
"""nvprof metric → kernel table column. Other metrics keep their name, with the suffix of their unit."""


def count(name: str, text: str, where: str) -> int:
    """Return the count ``name`` of a log. Raises `InputError` for a text that is not an integer."""
    return checked_int(where, name, int(text) if re.fullmatch(r"\d{1,18}", text, re.ASCII) else text, minimum=0)


def metric(name: str, text: str, unit: str = "") -> tuple[str, float]:
    """Return (column, value) of a metric. The value is NaN if nvprof could not measure it (``<OVERFLOW>``, ``n/a``).

    In percent, a level is ten times its number, and the achieved occupancy (a share) is multiplied by 100.
    """
    column = _COLUMNS.get(name, name)
    percent = column if column.endswith("_pct") else f"{name}_pct"
    if level := _LEVEL.fullmatch(text):
        return percent, float(min(int(level[1]), 10)) * 10
    match = _QUANTITY.fullmatch(text)
    if not match:
        return column, math.nan
    value = float(match[1])
    unit = match[2] or unit
    if unit in _RATE_GBS:
        return f"{name}_gbs", value * _RATE_GBS[unit]
    if unit == "%":
        return percent, value
    return column, value * 100 if name == "achieved_occupancy" else value


def kernel_name(text: str) -> str:
    """Return the name without the number of the launch: ``name(args) [130]`` → ``name(args)``."""
    return re.sub(r"\s*\[\d+\]$", "", text.strip())


def scaled(text: str, unit: str, scales: dict[str, float], where: str) -> float:
    """Return a time in µs or a size in bytes. ``unit`` is the unit of the column, for a text without a unit."""
    match = _QUANTITY.fullmatch(text)
    scale = scales.get(match[2] or unit) if match else None
    if match is None or scale is None or not math.isfinite(float(match[1]) * scale):
        value = f"{text} {unit}".strip()[:40]
        raise InputError(f"{where}: the value is {value!r}; give a number with a unit of {', '.join(scales)}")
    return float(match[1]) * scale
