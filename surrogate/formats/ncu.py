"""Launches and counters of Nsight Compute: ``ncu`` as CSV or text, its graphical interface's CSV, ``.ncu-rep`` reports.

How to get them:

    LC_ALL=C ncu --target-processes all --cache-control all --clock-control none -o REPORT \\
        --metrics gpu__time_duration.sum,smsp__sass_thread_inst_executed_op_fp32_pred_on.sum,\\
    dram__sectors_read.sum,dram__sectors_write.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,\\
    smsp__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active PROGRAM
    LC_ALL=C ncu --import REPORT.ncu-rep --csv --page raw > FILE.csv

The raw page has all digits. ``--page details`` is read, too, with its rounded numbers, and the text of both pages
without --csv. In the graphical interface, export the summary or the raw page as CSV with the column of the duration.
Numbers of another locale, such as 1.234,5, are read if the file's numbers show it. If --problems lists the problems
that PROGRAM ran, the launches become dataset rows.
"""

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Unpack

from surrogate.dataset.files import Progress
from surrogate.features import InputError, ceil_div, read_toml
from surrogate.formats import Format
from surrogate.formats.foreign_file import DEFAULT_MAX_BYTES, Paths, ReadLimits, read_lines
from surrogate.formats.imported import Imported, plural
from surrogate.formats.launches import LaunchRow, LogOptions, check_permission, imported_launches
from surrogate.formats.printed import TIME_US, NumberStyle, cells_of, compiled, delimiter_of, ruled_columns

Metrics = Mapping[str, tuple[str, float]]
"""Metric name or section label → (unit as printed, value)."""

_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
_PREFIXED = re.compile(r"(k|[KMG]i?|T|)(bytes?|B|sector|inst|block|register|thread|warp|cycle)(?:/.*)?")

# Metric → label in the details page. Source: the nvprof table of the Nsight Compute CLI manual.
_TABLE: dict[str, Any] = read_toml(__file__, "ncu_metrics.toml")
_NAMES: dict[str, list[str]] = _TABLE["columns"]
_BYTES: dict[str, list[str]] = _TABLE["bytes"]
_SIZES = {name for column in _NAMES if column.endswith("_bytes") for name in _NAMES[column]}.union(*_BYTES.values())
"""Metrics in bytes."""
_SECTOR_BYTES = 32
_LIMITS, _SMS, _WAVES = (_TABLE["launch"][name] for name in ("limits", "sms", "waves"))
_DIMENSIONS = {f"{what}_{axis}": f"launch__{what}_dim_{axis}" for what in ("grid", "block") for axis in "xyz"}
METRICS = frozenset(
    [n for names in (*_NAMES.values(), *_BYTES.values()) for n in names]
    + [*(n for pair in _LIMITS for n in pair), *_SMS, _WAVES, *_DIMENSIONS.values()]
)
"""Every metric that `kernel_numbers` reads."""


def kernel_numbers(metrics: Metrics, grid: tuple[int, ...] | None, block: tuple[int, ...] | None) -> dict[str, float]:
    """Return the numbers of the kernel table that follow from ``metrics``.

    If only bytes were counted, sectors are bytes / 32. Blocks per launch come from ``grid`` or the launch's metrics.
    B_max is the occupancy limit times the number of SMs, or follows from the exact waves per SM. The details page
    rounds the waves to two digits, so its number is not used. waves = ⌈blocks / B_max⌉.
    """
    counted_bytes = {column: value for column, names in _BYTES.items() if (value := _first(metrics, names)) is not None}
    counted = {column: value for column, names in _NAMES.items() if (value := _first(metrics, names)) is not None}
    numbers = {column: value / _SECTOR_BYTES for column, value in counted_bytes.items()} | counted
    for what, shape in (("grid", grid), ("block", block)):
        for index, axis in enumerate("xyz"):
            value = float(shape[index]) if shape else _first(metrics, (_DIMENSIONS[f"{what}_{axis}"],))
            if value is not None:
                numbers[f"{what}_{axis}"] = value
    if all(f"grid_{axis}" in numbers for axis in "xyz"):
        numbers["blocks"] = numbers["grid_x"] * numbers["grid_y"] * numbers["grid_z"]
    if "blocks" in numbers and (b_max := _b_max(metrics, numbers["blocks"])):
        numbers |= {"b_max": b_max, "waves": ceil_div(numbers["blocks"], b_max)}
    return numbers


def _b_max(metrics: Metrics, blocks: float) -> float | None:
    """Return the number of resident blocks of the whole GPU, or None."""
    limits = [_first(metrics, names) for names in _LIMITS]
    sms = _first(metrics, _SMS)
    if sms and all(limits):
        return sms * min(limit for limit in limits if limit)
    waves = _first(metrics, (_WAVES,))
    return float(round(blocks / waves)) if waves and blocks / waves >= 1 else None


def _first(metrics: Metrics, names: Sequence[str]) -> float | None:
    """Return the first of ``names`` that was measured, in µs, bytes, percent or a count."""
    for unit, value in (metrics[name] for name in names if name in metrics):
        if unit in TIME_US:
            return value * TIME_US[unit]
        match = _PREFIXED.fullmatch(unit)
        scaled = value * _PREFIX[match[1]] if match else value
        if math.isfinite(scaled):
            return round(scaled, 6)
    return None


def read(
    paths: Paths, *, max_bytes: int = DEFAULT_MAX_BYTES, progress: Progress | None = None, **options: Unpack[LogOptions]
) -> Imported:
    """Read reports as a kernel table, or with problems as dataset rows. Each file is one run.

    ``options`` as in `imported_launches`. Files of one-pass metric groups of the same program are joined: a run without
    times adds its counters to the others. Raises `InputError` with the file.
    """
    timed = []
    counted = []
    notes = list[str]()
    style = NumberStyle(", ".join(map(str, paths)))
    limits: ReadLimits = {"max_bytes": max_bytes, "progress": progress}
    texts = {path: _NcuExport(path, style, limits) for path in map(Path, paths) if path.suffix != ".ncu-rep"}
    for path in map(Path, paths):
        records = texts[path].records() if path in texts else read_report(path)
        if path in texts and texts[path].skipped:
            notes.append(f"{path.name}: {plural(texts[path].skipped, 'line')} left out that ncu did not print")
        (timed if any("time_us" in record for record in records) else counted).append(records)
    return imported_launches(timed, counted, [], notes + style.notes, options)


FORMAT = Format("ncu", "Nsight Compute's CSV, text and .ncu-rep reports", read)


_SHAPE, _LAUNCH, _UNIT, _TURNED = compiled(_TABLE["patterns"])
"""``8, 1, 1``; the line of a launch, ``name (8, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 8.9``; the unit in
a column's name; a line of a table with a row per metric, as the graphical interface may write it."""
_KERNEL_NAMES = ("Kernel Name", "Demangled Name", "Function Name")


def is_ncu(line: str) -> bool:
    """Return True for a line that only Nsight Compute's tables and texts have: a header, or a text's launch."""
    return any(name in line for name in _KERNEL_NAMES) or _LAUNCH.fullmatch(line.strip()) is not None


LAUNCH_COLUMNS: Sequence[str] = ("Grid Size", "Block Size", "Stream", "Device", "CC")
"""Columns of a launch in text, in the order of `_LAUNCH`."""


@dataclass(slots=True)
class _Launch:
    """One profiled launch: metric → (its unit, its value as printed)."""

    name: str
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    facts: dict[str, str]
    texts: dict[str, tuple[str, str]] = field(default_factory=dict)


class _NcuExport:
    """Output of ``ncu``: CSV with one row per metric or one per launch, or text; or the CSV of its graphical interface.

    A column is known by its name, so the order of the columns does not matter.
    """

    def __init__(self, path: Path, style: NumberStyle, limits: ReadLimits) -> None:
        self.name = name = str(path)
        self.skipped = 0
        self.style = style
        self._tables = 0
        self._launches: list[_Launch] = []
        self._by_id: dict[tuple[int, str, str], _Launch] = {}
        try:
            self._read(self._content(read_lines(path, **limits)))
        except csv.Error as error:
            raise InputError(f"{name} is not CSV ({error}); export it with `ncu --csv`") from None

    def _read(self, lines: Iterator[str]) -> None:
        header, units, delimiter = list[str](), dict[str, str](), ","
        columns, turned, previous = list[slice](), list[list[str]](), ""
        for line in lines:
            if opened := _header(line):
                header, units, delimiter = opened
                self._tables += 1
            elif match := None if header else _LAUNCH.fullmatch(line.strip()):
                name, *texts = match.groups("")
                row = dict(zip(LAUNCH_COLUMNS, texts, strict=True))
                self._add_launch(name.strip() or previous, row)
            elif not header:
                columns = (ruled_columns(line) or columns) if line.strip() else []
                if not columns and _TURNED.match(line):
                    turned.append(cells_of(line))
                elif self._launches and len(columns) == 3:
                    self._add_metric(self._launches[-1], *(line[column].strip() for column in columns))
            elif cells := next(csv.reader(chain([line], lines), delimiter=delimiter)):  # a row may have several lines
                if _belongs(cells, header):
                    self._add_row(dict(zip_longest(header, cells, fillvalue="")), units)
                else:
                    self.skipped += 1
            previous = line.strip()
        if turned and not (self._launches or self._tables):
            cells, *launches = zip_longest(*turned, fillvalue="")
            header, units = _names(cells)
            for texts in launches:
                self._add_row(dict(zip(header, texts, strict=True)), units)
        if not self._launches:
            what = "the table has no launches" if self._tables else "no header has ID and Kernel Name"
            raise InputError(f"{self.name}: {what}; export it with `ncu --import REPORT --csv --page raw`")

    def _content(self, lines: Iterable[tuple[int, str]]) -> Iterator[str]:
        """Yield the lines without ncu's own messages. Raises `InputError` for a message that explains an empty file."""
        for number, line in lines:
            if not line.startswith("=="):
                yield line.replace("\0", "") + "\n"
                continue
            where = f"{self.name}, line {number}"
            check_permission(line, where)
            if "Profiling is not supported on device" in line:
                raise InputError(f"{where}: {line.strip('= ')[:120]}; use another GPU, or a newer ncu")

    def _add_row(self, row: dict[str, str], units: dict[str, str]) -> None:
        """Add a metric of a launch, or a launch with its metrics, or the units of the columns."""
        name = next((row[column] for column in _KERNEL_NAMES if row.get(column)), "")
        if "Metric Name" in row:
            key = (self._tables, row.get("Process ID", ""), row["ID"])
            launch = self._by_id.get(key) or self._by_id.setdefault(key, self._add_launch(name, row))
            self._add_metric(launch, row["Metric Name"], row.get("Metric Unit", ""), row.get("Metric Value", ""))
        elif name:
            launch = self._add_launch(name, row)
            for column, text in row.items():
                if column != "Grid Size" and ("__" in column or column in units or column in METRICS):
                    self._add_metric(launch, column, units.get(column, ""), text)
        else:
            units |= {column: unit for column, unit in row.items() if unit}

    def _add_launch(self, name: str, row: Mapping[str, str]) -> _Launch:
        device = row.get("Device Name") or row.get("Device", "")
        facts = {"device": device, "stream": row.get("Stream", ""), "cc": row.get("CC", "")}
        grid, block = (_triple(row.get(f"{what} Size", "")) for what in ("Grid", "Block"))
        self._launches.append(_Launch(name, grid, block, facts))
        return self._launches[-1]

    def _add_metric(self, launch: _Launch, name: str, unit: str, text: str) -> None:
        """Add a metric to its launch. Rows of rules name no metric. The first of two equal labels counts.

        Some metrics print the values of their instances after their own: ``5 (2; 3)``.
        """
        if name == "device__attribute_display_name" and text:
            launch.facts["device"] = text
        text = re.split(r"[({]", text, maxsplit=1)[0].strip()
        self.style.see(text)
        if name in METRICS:
            launch.texts.setdefault(name, (unit, text))

    def records(self) -> list[LaunchRow]:
        """Return one record per profiled launch. Raises `InputError` for a wrong number or unit."""
        records = []
        for launch in self._launches:
            read = ((name, unit, self._number(name, unit, text)) for name, (unit, text) in launch.texts.items())
            metrics = {name: (unit, value) for name, unit, value in read if value is not None}
            numbers = kernel_numbers(metrics, launch.grid, launch.block)
            records.append({"kernel_name": launch.name, **numbers, **launch.facts})
        return records

    def _number(self, name: str, unit: str, text: str) -> float | None:
        """Return a number; None for a word or an empty text."""
        normalised = self.style.normalised(text)
        if not normalised[:1].isdigit():
            return None
        if not re.fullmatch(r"\d+\.?\d*(?:[eE][+-]?\d+)?", normalised, re.ASCII):
            raise InputError(f"{self.name}: {name} is {text[:40]!r}; export it under LC_ALL=C")
        if name in _NAMES["time_us"] and unit not in TIME_US:
            raise InputError(f"{self.name}: {name} has no unit of time ({unit[:20]!r}); export the report again")
        if unit and name in _SIZES and not _PREFIXED.fullmatch(unit):
            raise InputError(f"{self.name}: {name} has the unit {unit[:20]!r}; give byte, KB or KiB, and so on")
        return float(normalised)


def _header(line: str) -> tuple[list[str], dict[str, str], str] | None:
    """Return the columns, their units and the delimiter of a header; None for another line."""
    if not any(name in line for name in _KERNEL_NAMES):
        return None
    header, units = _names(cells_of(line))
    is_table = "ID" in header or ("Metric Name" not in header and not METRICS.isdisjoint(header))
    return (header, units, delimiter_of(line) or ",") if is_table else None


def _names(cells: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Return names without their units, and name → unit. The graphical interface writes both: ``Duration [us]``."""
    names = [_UNIT.sub("", cell) for cell in cells]
    return names, {name: match[1] for name, cell in zip(names, cells, strict=True) if (match := _UNIT.search(cell))}


def _belongs(cells: list[str], header: list[str]) -> bool:
    """Return True for a row of the table. In the long format, ncu omits the empty cells at the end of a rule's row."""
    if "Metric Name" not in header:
        return len(cells) == len(header)
    return header.index("Metric Name") < len(cells) <= len(header) and cells[header.index("ID")].isdigit()


def _triple(text: str) -> tuple[int, ...] | None:
    match = _SHAPE.fullmatch(text.strip())
    return tuple(map(int, match.groups())) if match else None


def read_report(path: Path) -> list[LaunchRow]:
    """Return one record per launch of a ``.ncu-rep``, in full precision, by the module that Nsight Compute installs.

    Raises `InputError` if the module is missing, or if the report has no launch.
    """
    try:
        import ncu_report  # type: ignore[import-not-found]  # Nsight Compute's
    except ImportError:
        remedy = f"add its extras/python folder to PYTHONPATH, or export: `ncu --import {path.name} --csv --page raw`"
        raise InputError(f"{path}: a report needs Nsight Compute's module ncu_report; {remedy}") from None
    try:
        context = ncu_report.load_report(str(path))
        ranges = [context.range_by_idx(index) for index in range(context.num_ranges())]
        records = [_record(r.action_by_idx(index)) for r in ranges for index in range(r.num_actions())]
    except Exception as error:  # the C++ binding may raise any exception
        reason = str(error).splitlines()[:1]
        raise InputError(f"{path} is not a readable report ({reason}); write it again with ncu -o") from None
    if not records:
        raise InputError(f"{path} has no profiled kernel; profile again with ncu -o REPORT PROGRAM")
    return records


def _record(action: Any) -> LaunchRow:
    counted = {name: action.metric_by_name(name) for name in action.metric_names() if name in METRICS}
    metrics = {name: (metric.unit() or "", float(metric.as_double())) for name, metric in counted.items()}
    return {"kernel_name": action.name(), **kernel_numbers(metrics, None, None)}
