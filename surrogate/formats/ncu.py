"""Launches and counters of Nsight Compute: ``ncu --csv`` in both its formats, and ``.ncu-rep`` reports.

How to get them:

    LC_ALL=C ncu --target-processes all --cache-control all --clock-control none -o REPORT \\
        --metrics gpu__time_duration.sum,smsp__sass_thread_inst_executed_op_fp32_pred_on.sum,\\
    dram__sectors_read.sum,dram__sectors_write.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,\\
    smsp__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active PROGRAM
    LC_ALL=C ncu --import REPORT.ncu-rep --csv --page raw > FILE.csv

The raw page has all digits. ``--page details`` is read, too, with its rounded numbers. If --problems lists the problems
that PROGRAM ran, the launches become dataset rows.
"""

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from surrogate.dataset.files import Progress
from surrogate.features.elementwise import ceil_div
from surrogate.features.errors import InputError, read_toml
from surrogate.formats import Format
from surrogate.formats.foreign_file import DEFAULT_MAX_BYTES, Paths, read_lines
from surrogate.formats.imported import Imported, plural
from surrogate.formats.launches import LaunchRow, LogOptions, imported_launches
from surrogate.formats.nvprof import TIME_US

Metrics = Mapping[str, tuple[str, float]]
"""Metric name or section label → (unit as printed, value)."""

_TIME_US = TIME_US | {f"{unit}econd": scale for unit, scale in TIME_US.items()}
_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_PREFIXED = re.compile(r"([kKMGT]?)(byte|sector|inst|block|register|thread|warp|cycle)(?:/.*)?")

# Metric → label in the details page. Source: the nvprof table of the Nsight Compute CLI manual.
_TABLE: dict[str, Any] = read_toml(__file__, "ncu_metrics.toml")
_NAMES: dict[str, list[str]] = _TABLE["columns"]
_BYTES: dict[str, list[str]] = _TABLE["bytes"]
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
    numbers: dict[str, float] = {}
    for column, names in _NAMES.items():
        value = _first(metrics, names)
        if value is not None:
            numbers[column] = value
    for column, names in _BYTES.items():
        value = _first(metrics, names)
        if column not in numbers and value is not None:
            numbers[column] = value / _SECTOR_BYTES
    for what, shape in (("grid", grid), ("block", block)):
        for index, axis in enumerate("xyz"):
            value = float(shape[index]) if shape else _first(metrics, (_DIMENSIONS[f"{what}_{axis}"],))
            if value is not None:
                numbers[f"{what}_{axis}"] = value
    if all(f"grid_{axis}" in numbers for axis in "xyz"):
        numbers["blocks"] = numbers["grid_x"] * numbers["grid_y"] * numbers["grid_z"]
        b_max = _b_max(metrics, numbers["blocks"])
        if b_max:
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
    for name in names:
        if name in metrics:
            unit, value = metrics[name]
            if unit in _TIME_US:
                return value * _TIME_US[unit]
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
    for path in map(Path, paths):
        if path.suffix == ".ncu-rep":
            records = read_report(path)
        else:
            export = _NcuExport(str(path), read_lines(path, max_bytes=max_bytes, progress=progress))
            records = export.records()
            if export.skipped:
                notes.append(f"{path.name}: {plural(export.skipped, 'line')} left out that ncu did not print")
        (timed if any("time_us" in record for record in records) else counted).append(records)
    return imported_launches(timed, counted, [], notes, options)


FORMAT = Format("ncu", "Nsight Compute CSV and .ncu-rep reports", read)


_SHAPE = re.compile(r"\((\d{1,10}), ?(\d{1,10}), ?(\d{1,10})\)", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_DEVICE_NAME = "device__attribute_display_name"


@dataclass(slots=True)
class _Launch:
    """One profiled launch: metric → (its unit, its value as printed)."""

    name: str
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    facts: dict[str, str]
    texts: dict[str, tuple[str, str]] = field(default_factory=dict)


class _NcuExport:
    """Output of ``ncu --csv``: the long format (one row per metric), or ``--page raw`` (one row per launch)."""

    def __init__(self, name: str, lines: Iterable[tuple[int, str]]) -> None:
        self.name = name
        self.skipped = 0
        self._tables = 0
        self._launches: dict[tuple[int, str, str], _Launch] = {}
        self._read(lines)

    def _read(self, lines: Iterable[tuple[int, str]]) -> None:
        header: list[str] = []
        units: dict[str, str] | None = None
        try:
            for cells in csv.reader(self._content(lines)):
                if {"ID", "Kernel Name"} <= set(cells):
                    header = cells
                    units = None
                    self._tables += 1
                elif header and cells and not _belongs(cells, header):
                    self.skipped += 1
                elif header and cells:
                    row = dict(zip(header, cells + [""] * (len(header) - len(cells)), strict=True))
                    if "Metric Name" in row:
                        self._add_metric(row)
                    elif units is None and not row["ID"].strip():
                        units = row
                    else:
                        self._add_launch(row, units or {})
        except csv.Error as error:
            raise InputError(f"{self.name} is not CSV ({error}); export it with `ncu --csv`") from None
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
            if "ERR_NVGPUCTRPERM" in line:
                remedy = "load the driver with NVreg_RestrictProfilingToAdminUsers=0, or give the container"
                raise InputError(f"{where}: ncu was not permitted to count; {remedy} CAP_SYS_ADMIN")
            if "Profiling is not supported on device" in line:
                raise InputError(f"{where}: {line.strip('= ')[:120]}; use another GPU, or a newer ncu")

    def _launch(self, row: dict[str, str]) -> _Launch:
        key = (self._tables, row.get("Process ID", ""), row["ID"])
        if key not in self._launches:
            facts = {"device": row.get("Device", ""), "stream": row.get("Stream", ""), "cc": row.get("CC", "")}
            grid, block = (_triple(row, f"{what} Size") for what in ("Grid", "Block"))
            self._launches[key] = _Launch(row["Kernel Name"], grid, block, facts)
        return self._launches[key]

    def _add_metric(self, row: dict[str, str]) -> None:
        """Add a metric to its launch. Rows of rules name no metric. The first of two equal labels counts."""
        launch = self._launch(row)
        if row["Metric Name"]:
            launch.texts.setdefault(row["Metric Name"], (row.get("Metric Unit", ""), row.get("Metric Value", "")))

    def _add_launch(self, row: dict[str, str], units: dict[str, str]) -> None:
        launch = self._launch(row)
        launch.texts |= {name: (units.get(name, ""), text) for name, text in row.items() if name in METRICS}
        if row.get(_DEVICE_NAME):
            launch.facts["device"] = row[_DEVICE_NAME]

    def records(self) -> list[LaunchRow]:
        """Return one record per profiled launch. Raises `InputError` for numbers of another locale."""
        records = []
        for launch in self._launches.values():
            counted = {name: pair for name, pair in launch.texts.items() if name in METRICS}
            metrics = {
                name: (unit, value)
                for name, (unit, text) in counted.items()
                if (value := self._number(name, text)) is not None
            }
            numbers = kernel_numbers(metrics, launch.grid, launch.block)
            records.append({"kernel_name": launch.name, **numbers, **launch.facts})
        return records

    def _number(self, name: str, text: str) -> float | None:
        """Return a number with or without English thousands separators; None for a word or an empty text."""
        if _NUMBER.fullmatch(text):
            return float(text.replace(",", ""))
        if text[:1].isdigit():
            raise InputError(f"{self.name}: {name} is {text[:40]!r}; export it under LC_ALL=C")
        return None


def _belongs(cells: list[str], header: list[str]) -> bool:
    """Return True for a row of the table. In the long format, ncu omits the empty cells at the end of a rule's row."""
    if "Metric Name" not in header:
        return len(cells) == len(header)
    return header.index("Metric Name") < len(cells) <= len(header) and cells[header.index("ID")].isdigit()


def _triple(row: dict[str, str], column: str) -> tuple[int, ...] | None:
    match = _SHAPE.fullmatch(row.get(column, "").strip())
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
