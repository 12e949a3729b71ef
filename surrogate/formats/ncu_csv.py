"""``ncu --csv`` output: the long format (a row per metric) and the wide one (``--page raw``, a row per
launch).
"""

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from surrogate.features.errors import InputError
from surrogate.formats.locale_number import decimal_mark, parse_number
from surrogate.formats.ncu_metrics import METRICS, kernel_numbers

_SHAPE = re.compile(r"\((\d{1,10}), ?(\d{1,10}), ?(\d{1,10})\)", re.ASCII)
_DEVICE_NAME = "device__attribute_display_name"


@dataclass(slots=True)
class _Launch:
    name: str
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    facts: dict[str, str]
    texts: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class _Reading:
    launches: dict[tuple[int, str, str], _Launch] = field(default_factory=dict)
    tables: int = 0
    skipped: int = 0


def parse_ncu(lines: Iterable[tuple[int, str]], name: str) -> tuple[list[dict[str, Any]], int]:
    """(one record per profiled launch, lines left out). Raises `InputError` naming ``name`` where nothing can
    be read.
    """
    reading = _Reading()
    header: list[str] = []
    units: dict[str, str] | None = None
    for record in _records(lines, name):
        if {"ID", "Kernel Name"} <= set(record):
            header, units = record, None
            reading.tables += 1
        elif not header:
            continue
        elif not _belongs(record, header):
            reading.skipped += 1
        else:
            row = dict(zip(header, record + [""] * (len(header) - len(record)), strict=True))
            if "Metric Name" in row:
                _long(reading, row)
            elif units is None and not row["ID"].strip():
                units = row
            else:
                _wide(reading, row, units or {})
    if not reading.launches:
        came = "a header without launches" if reading.tables else "no header with ID and Kernel Name"
        raise InputError(f"{name}: {came}; export it with ncu --import REPORT --csv --page raw")
    return _numbers(reading, name), reading.skipped


def _belongs(record: list[str], header: list[str]) -> bool:
    """True for a row of the table. In the long format ncu leaves out the empty cells of rules at a row's end."""
    if "Metric Name" not in header:
        return len(record) == len(header)
    return header.index("Metric Name") < len(record) <= len(header) and record[header.index("ID")].isdigit()


def _records(lines: Iterable[tuple[int, str]], name: str) -> Iterator[list[str]]:
    """CSV records; ncu's own messages are taken out, and an error among them that explains an empty file is
    raised.
    """
    at = 0

    def content() -> Iterator[str]:
        nonlocal at
        for number, line in lines:
            at = number
            if line.startswith("=="):
                _check_message(line, f"{name}, line {number}")
            else:
                yield line.replace("\0", "") + "\n"

    reader = csv.reader(content())
    while True:
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(f"{name}, line {at}: not CSV ({error}); export it with ncu --csv") from None
        if record:
            yield record


def _check_message(line: str, where: str) -> None:
    if "ERR_NVGPUCTRPERM" in line:
        raise InputError(
            f"{where}: ncu was not permitted to count; load the driver with"
            " NVreg_RestrictProfilingToAdminUsers=0,"
            f" or give the container CAP_SYS_ADMIN"
        )
    if "Profiling is not supported on device" in line:
        raise InputError(f"{where}: {line.strip('= ')[:120]}; profile on another GPU, or with a newer ncu")


def _launch(reading: _Reading, row: dict[str, str]) -> _Launch:
    key = (reading.tables, row.get("Process ID", ""), row["ID"])
    if key not in reading.launches:
        facts = {"device": row.get("Device", ""), "stream": row.get("Stream", ""), "cc": row.get("CC", "")}
        reading.launches[key] = _Launch(
            row["Kernel Name"], _triple(row, "Grid Size"), _triple(row, "Block Size"), facts
        )
    return reading.launches[key]


def _triple(row: dict[str, str], column: str) -> tuple[int, ...] | None:
    match = _SHAPE.fullmatch(row.get(column, "").strip())
    return tuple(map(int, match.groups())) if match else None


def _long(reading: _Reading, row: dict[str, str]) -> None:
    """One metric; rows of rules have no metric's name. A label that two sections share counts where it is
    first.
    """
    launch = _launch(reading, row)
    if row["Metric Name"]:
        launch.texts.setdefault(row["Metric Name"], (row.get("Metric Unit", ""), row.get("Metric Value", "")))


def _wide(reading: _Reading, row: dict[str, str], units: dict[str, str]) -> None:
    launch = _launch(reading, row)
    launch.texts |= {
        metric: (units.get(metric, ""), text) for metric, text in row.items() if metric in METRICS
    }
    if row.get(_DEVICE_NAME):
        launch.facts["device"] = row[_DEVICE_NAME]


def _numbers(reading: _Reading, name: str) -> list[dict[str, Any]]:
    mark = decimal_mark(
        (text for launch in reading.launches.values() for _, text in launch.texts.values()), name
    )
    records = []
    for launch in reading.launches.values():
        parsed = {metric: (unit, parse_number(text, mark)) for metric, (unit, text) in launch.texts.items()}
        metrics = {metric: (unit, value) for metric, (unit, value) in parsed.items() if value is not None}
        numbers = kernel_numbers(metrics, launch.grid, launch.block)
        records.append({"kernel_name": launch.name, **numbers, **launch.facts})
    return records
