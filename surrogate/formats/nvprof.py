"""nvprof logs as CSV or aligned text: launches with grids and times, and metrics.

How to get them (GPUs before compute capability 8.0). For times, run this several times; each file is one repeat:

    nvprof --print-gpu-trace --csv --log-file trace.csv PROGRAM

For counters:

    nvprof --print-gpu-trace --csv --log-file metrics.csv \\
        --metrics inst_fp_32,dram_read_transactions,dram_write_transactions \\
        --metrics single_precision_fu_utilization,dram_utilization,achieved_occupancy PROGRAM

The aligned text without --csv is read, too. If one call gets both kinds, they are joined launch by launch. If
--problems lists the problems that PROGRAM ran, the launches become dataset rows. Plain `nvprof PROGRAM` prints a
summary by kernel name without launches: its mean times are read, and `seer trace kernels LOG` shows it.

Nsight Systems has the same tables. CSV and the aligned text of --format column or table are read:

    nsys stats --report cuda_gpu_trace,cuda_gpu_kern_sum --format csv REPORT.nsys-rep > FILE.csv

A file may hold several tables. Numbers of another locale, such as 1.234,5, are read if the file's numbers show it.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Unpack

from surrogate.dataset.files import Progress
from surrogate.features import InputError, checked_int, read_toml
from surrogate.formats import Format
from surrogate.formats.foreign_file import DEFAULT_MAX_BYTES, Paths, ReadLimits, chunks, read_lines
from surrogate.formats.imported import Imported, plural
from surrogate.formats.launches import LaunchRow, LogOptions, check_permission, imported_launches
from surrogate.formats.printed import TIME_US, NumberStyle, cells_of, compiled, delimiter_of, ruled_columns

_REMEDY = "print the log with nvprof --print-gpu-trace --csv --log-file FILE PROGRAM"


def read(
    paths: Paths, *, max_bytes: int = DEFAULT_MAX_BYTES, progress: Progress | None = None, **options: Unpack[LogOptions]
) -> Imported:
    """Read logs as a kernel table, or with problems as dataset rows. ``options`` as in `imported_launches`.

    Raises `InputError` with file and line.
    """
    style = NumberStyle(", ".join(map(str, paths)))
    logs = [_Log(Path(path), style) for path in paths]
    for log in logs:
        log.see(max_bytes)
    for log in logs:
        log.read(max_bytes, progress)
    notes = [note for log in logs for note in log.notes] + style.notes
    launches = [log.launches for log in logs if log.launches]
    metrics = [log.metrics for log in logs if log.metrics]
    averages = [record for log in logs for record in log.averages]
    means = [] if launches or options.get("problems") else [log.mean_times for log in logs if log.mean_times]
    for log in logs:
        if not (log.launches or log.metrics or log.averages or (means and log.mean_times)):
            summary = "a summary by kernel name, without launches (`seer trace kernels` shows it)"
            raise InputError(f"{log.path}: {summary if log.has_summary else 'no launch and no metric'}; {_REMEDY}")
    if means:
        launches = means
        notes.append("a summary by kernel name has no launches: time_us is the mean of a kernel's invocations")
    return imported_launches(launches, metrics, averages, notes, options)


FORMAT = Format("nvprof", "nvprof logs and tables of `nsys stats`, CSV or text", read)


def is_summary(path: Path) -> bool:
    """Return True if the first MiB of a log has a summary by kernel name."""
    first = next(chunks(path), b"") if path.is_file() else b""
    return re.search(rb"Time ?\(%\)", first.replace(b"\0", b"")) is not None  # NUL: UTF-16


def read_summary(path: Path) -> tuple[str, list[str], list[LaunchRow]]:
    """Return the title, notes, and a record per kernel, copy and API call: type, name, share in %, times, calls."""
    log = _Log(path, NumberStyle(str(path)))
    log.see(DEFAULT_MAX_BYTES)
    log.read(DEFAULT_MAX_BYTES, None)
    is_nsys = any(table.is_nsys for table in log.listed.values())
    totals_us = Counter[str]()
    for row in log.summary:
        totals_us[row["type"]] += row["total_us"]
    for row in log.summary if is_nsys else ():  # a report of nsys may mix types, and a type may have several reports
        row["time_pct"] = 100 * row["total_us"] / (totals_us[row["type"]] or math.inf)
    return f"Summary of {'nsys stats' if is_nsys else 'nvprof'}", log.style.notes, log.summary


def database_error(path: Path) -> InputError:
    """Return the error for a SQLite file that ``nvprof -o`` wrote."""
    return InputError(
        f"{path} is nvprof's own database; `nvprof -i {path.name} --csv --log-file FILE` writes the summary for"
        " `seer trace kernels`, and with --print-gpu-trace the launches for `seer import nvprof`"
    )


GPU_ACTIVITIES, API_CALLS, OTHER_CALLS = "GPU activities", "API calls", "other calls"
_SUMMARY_NAMES = ("Type", "Time(%)", "Time", "Calls", "Avg", "Min", "Max", "Name")
_TEXT_NAMES = {"Regs*": "Registers Per Thread", "SSMem*": "Static SMem", "DSMem*": "Dynamic SMem"}
_GRID = {f"{what}_{axis.lower()}": f"{what.title()} {axis}" for what in ("grid", "block") for axis in "XYZ"}
_NO_METRICS = ("Device", "Context", "Stream", "Kernel", "Correlation_ID", "ID")


@dataclass(slots=True)
class _Table:
    """The current table of the reader: its kind, its column names, its units (by column), CSV or aligned text."""

    kind: Literal["trace", "metrics", "averages", "summary"]
    header: list[str]
    delimiter: str
    """Empty if the table is aligned text."""
    units: dict[str, str] = field(default_factory=dict)
    is_nsys: bool = False
    columns: list[slice] = field(default_factory=list)
    rows: int = 0
    device: str = ""
    kernel: str = ""

    def cells(self, line: str) -> list[str]:
        """Return the texts of a row."""
        if self.delimiter:
            return cells_of(line.strip(" |"), self.delimiter)
        return [line[column] for column in self.columns] or _GAP.split(line.strip(), len(self.header) - 1)


@dataclass(slots=True)
class _Log:
    """The content of a log: launches, metrics per launch, metrics averaged over a kernel's launches."""

    path: Path
    style: NumberStyle
    launches: list[LaunchRow] = field(default_factory=list)
    metrics: list[LaunchRow] = field(default_factory=list)
    averages: list[LaunchRow] = field(default_factory=list)
    summary: list[LaunchRow] = field(default_factory=list)
    has_summary: bool = False
    type: str = GPU_ACTIVITIES
    caption: str = ""
    listed: dict[tuple[str, str], _Table] = field(default_factory=dict)
    copies: int = 0
    skipped: int = 0

    @property
    def notes(self) -> list[str]:
        counts = {"memory operation": (self.copies, ""), "line": (self.skipped, " that nvprof did not print")}
        return [f"{self.path.name}: {plural(n, what)} left out{why}" for what, (n, why) in counts.items() if n]

    @property
    def mean_times(self) -> list[LaunchRow]:
        """One record per kernel of the summary, without copies and API calls."""
        kernels = [row for row in self.summary if row["type"] == GPU_ACTIVITIES and row["kernel"][:1] != "["]
        names = {"kernel_name": "kernel", "time_us": "avg_us", "invocations": "calls"}
        return [{column: row[name] for column, name in names.items()} for row in kernels]

    def see(self, max_bytes: int) -> None:
        """Read all tables for their style of numbers."""
        for text in (text for _, row, _ in self._rows(max_bytes=max_bytes) for text in row.values()):
            self.style.see(text)

    def read(self, max_bytes: int, progress: Progress | None) -> None:
        """Read all tables. The program's own output is skipped; its lines inside a table are counted."""
        self.skipped = 0
        handlers = {"trace": self._launch, "metrics": self._metrics, "averages": self._average}
        for table, row, where in self._rows(max_bytes=max_bytes, progress=progress):
            normalised = {name: self.style.normalised(text) for name, text in row.items()}
            handlers.get(table.kind, self._summarise)(table, normalised, where)

    def _rows(self, **limits: Unpack[ReadLimits]) -> Iterator[tuple[_Table, dict[str, str], str]]:
        """Yield the table, the texts by column, and the place of each row."""
        table: _Table | None = None
        for number, line in read_lines(self.path, **limits):
            text = line.strip()
            where = f"{self.path}, line {number}"
            if number == 1 and text.startswith("SQLite format 3"):
                raise database_error(self.path)
            if text.startswith("=="):
                check_permission(text, where)
                if text.endswith((" result:", "API calls:")):
                    table = None
                    # nvprof before CUDA 9 names the type here
                    self.type = API_CALLS if "API" in text else GPU_ACTIVITIES
            elif not text:
                table = table if table and table.delimiter and not table.is_nsys else None
            elif opened := _header(text, self.caption):
                table = opened
                self.has_summary |= table.kind == "summary"
                if table.is_nsys:
                    self.type = API_CALLS if "Calls" in text else GPU_ACTIVITIES
            elif table is None:
                self.caption = text
            elif not re.search(r"[^-+| ]", text):
                table.columns = ruled_columns(line)
            elif row := self._row(table, line):
                if any(map(str.isdigit, text)) or not (table.delimiter or table.columns):
                    yield table, row, where
                elif table.rows == 1 and not table.is_nsys:
                    table.units = {name: unit for name, unit in row.items() if unit}
                else:
                    table = None  # the header or caption of another table

    def _row(self, table: _Table, line: str) -> dict[str, str]:
        """Return the texts of a row by column; none for a caption or another line."""
        text = line.strip()
        if table.kind == "summary" and not table.delimiter and not table.is_nsys:
            match = _SUMMARY.fullmatch(text)
            return dict(zip(_SUMMARY_NAMES, match.groups(""), strict=True)) if match else {}
        table.rows += 1
        if table.kind == "averages" and not table.delimiter and _caption(table, text):
            return {}
        cells = table.cells(line)
        if len(cells) != len(table.header):
            self.skipped += 1
            return {}
        return {name: cell.strip() for name, cell in zip(table.header, cells, strict=True)}

    def _launch(self, table: _Table, row: dict[str, str], where: str) -> None:
        if "Grid Size" in row:
            sizes = [_TRIPLE.fullmatch(row.get(name, "")) for name in ("Grid Size", "Block Size")]
            dimensions = [value for match in sizes if match for value in match.groups()]
        else:
            dimensions = [row[name] for name in _GRID.values() if row.get(name)]
        if len(dimensions) != len(_GRID):
            self.copies += row["Name"].startswith("[")
            self.skipped += not row["Name"].startswith("[")
            return
        if table.delimiter and "Duration" not in table.units:
            raise InputError(f"{where}: the row of units below the header is missing; write the log again")

        def quantity(name: str, scales: dict[str, float], unit: str = "") -> float:
            return scaled(row.get(name, ""), table.units.get(name, unit), scales, where)

        launch: LaunchRow = {"kernel_name": kernel_name(row["Name"])}
        launch |= {column: count(column, value, where) for column, value in zip(_GRID, dimensions, strict=True)}
        launch |= {"time_us": quantity("Duration", TIME_US), "start_us": quantity("Start", TIME_US)}
        launch |= {"device": row.get("Device", ""), "stream": row.get("Stream", "")}
        if row.get("Registers Per Thread"):
            launch["registers_per_thread"] = count("Registers Per Thread", row["Registers Per Thread"], where)
        for kind in ("static", "dynamic"):
            column = f"{kind.title()} SMem"
            if row.get(column):  # The log has five digits of a size.
                launch[f"{kind}_shared_bytes"] = float(round(quantity(column, SIZE_BYTES, "B")))
        self.launches.append(launch)

    def _summarise(self, table: _Table, row: dict[str, str], where: str) -> None:
        """Add a line of the summary. In text, only the first line of a type names the type.

        Several reports of nsys may list a kernel; the first one counts.
        """
        self.type = activity = row.get("Type") or self.type
        if category := row.get("Category"):
            activity = API_CALLS if category.endswith("API") else GPU_ACTIVITIES
        if table.is_nsys and activity == API_CALLS and not row["Name"].lower().startswith("cu"):
            activity = OTHER_CALLS
        first = self.listed.setdefault((activity, row["Name"]), table)
        if table.is_nsys and first is not table:
            return
        share = scaled(row["Time(%)"], "%", {"%": 1}, where)
        calls = count("Calls", row["Calls"], where)
        record: LaunchRow = {"type": activity, "kernel": row["Name"], "time_pct": share, "calls": calls}
        for name, column in {"total_us": "Time", "avg_us": "Avg", "min_us": "Min", "max_us": "Max"}.items():
            record[name] = scaled(row[column], table.units.get(column, ""), TIME_US, where) if column in row else None
        if record["avg_us"] is None:
            record["avg_us"] = record["total_us"] / max(calls, 1)
        self.summary.append(record)

    def _metrics(self, table: _Table, row: dict[str, str], _: str) -> None:
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


TIME_COLUMNS = ("Time", "Avg", "Min", "Max", "Start", "Duration")


def _header(text: str, caption: str) -> _Table | None:
    """Return the table with the header ``text``; None if ``text`` is no header.

    nsys writes the unit of a time into its column, or before 2021 into the ``caption`` of the table.
    """
    words = ("Name|Kernel|Operation", "Time|Duration|Metric|Context")
    if text[:1].isdigit() or not all(re.search(word, text) for word in words):
        return None  # a fast path for most lines: every header has these words
    delimiter = delimiter_of(text)
    cells = cells_of(text.strip(" |"), delimiter) if delimiter else _GAP.split(text)
    header, units, is_nsys = list[str](), dict[str, str](), False
    for cell in (cell.replace(" (", "(") for cell in cells):
        base, _, unit = cell.removesuffix(")").rpartition("(")
        unit = unit if unit in TIME_US else ""
        alias = _NSYS.get(re.sub(r"[\s_]", "", base if unit else cell).lower())
        is_nsys |= alias is not None
        header.append(alias or _TEXT_NAMES.get(cell) or (base if unit else cell))
        units |= {header[-1]: unit} if unit else {}
    names = set(header)
    if is_nsys:
        unit = caption.rpartition("(")[2].rstrip("):")
        unit = unit if unit in TIME_US else "ns"
        units = dict.fromkeys(TIME_COLUMNS, unit) | units
    if {"Start", "Duration", "Name"} <= names:
        return _Table("trace", header, delimiter, units, is_nsys)
    if "Metric Name" in names and ("Kernel" in names or "Invocations" in names):
        return _Table("averages", header, delimiter)
    if {"Device", "Context", "Stream", "Kernel"} <= names:
        return _Table("metrics", header, delimiter)
    is_summary = {"Time(%)", "Time", "Calls", "Name"} <= names
    return _Table("summary", header, delimiter, units, is_nsys) if is_summary else None


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
SIZE_BYTES = {"B": 1.0, "KB": 1024.0, "MB": 1024.0**2, "GB": 1024.0**3}
"""nvprof's sizes are binary; its rates are decimal."""
_RATE_GBS = {"B/s": 1e-9, "KB/s": 1e-6, "MB/s": 1e-3, "GB/s": 1.0, "TB/s": 1e3}
_TABLE: dict[str, dict[str, str]] = read_toml(__file__)
_SUMMARY, _GAP, _TRIPLE, _QUANTITY, _LEVEL = compiled(_TABLE["patterns"])
_COLUMNS = _TABLE["columns"]
"""nvprof metric → kernel table column. Other metrics keep their name, with the suffix of their unit."""
_NSYS = _TABLE["nsys"]
"""Column of `nsys stats` → nvprof's column."""


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
        raise InputError(f"{where}: the value is {value!r}; give a number with a unit of {', '.join([*scales][:4])}")
    return float(match[1]) * scale
