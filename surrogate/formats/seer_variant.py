"""One workbook of a SEER kernel variant: its rows with counters, or (FFT, pre/post kernels, classes) ten
columns.
"""

import re
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.formats.seer_numbering import algorithm_name, check_possible, square_conv
from surrogate.formats.workbook import Sheet

_COUNTERS = 18
_TIMES = 10
_TILE = re.compile(r"algo\d+_(\d+x\d+|148|228|418)", re.IGNORECASE)
_LEVELS = 10


@dataclass(frozen=True, slots=True)
class VariantRow:
    """One measured row: problem, algorithm, time in µs, and what the workbook says of the kernel."""

    conv: Conv
    algorithm: str
    time_us: float
    part: str
    kernel: dict[str, Any]


def variant_rows(path: Path, sheets: tuple[Sheet, ...], names: tuple[str, ...]) -> list[VariantRow]:
    """All rows of a variant's workbook: sheets ``train`` and ``test``, or one sheet (Test-set-II's measured
    form).

    ``names``: algorithm names by number. Raises `InputError` naming file, sheet and row.
    """
    wrong = [sheet.name for sheet in sheets if sheet.name.lower() not in ("train", "test")]
    if wrong and len(sheets) > 1:
        raise InputError(f"{path}: sheet {wrong[0]!r}; a variant's workbook has the sheets train and test")
    rows: list[VariantRow] = []
    for sheet in sheets:
        columns = _columns(sheet)
        part = "train" if sheet.name.lower() == "train" else "test"
        rows += [_row(path, cells, columns, names, part, where) for where, cells in sheet.numbers(columns)]
    if not rows:
        raise InputError(f"{path}: no rows under its header; the sheets train and test hold the measurements")
    return rows


def is_classes(path: Path) -> bool:
    """True for the workbook of FFT_TILING's kernel classes, whose tenth column is a class and no time."""
    return "ctree" in path.stem.lower()


def is_pre(path: Path) -> bool:
    """True for the workbook of an algorithm's kernels before and after its main one (im2col, Winograd
    transforms).
    """
    return path.stem.lower().endswith("_pre")


def tile_name(path: Path) -> str:
    """The tile in a variant's file name: ``128x64`` or (Winograd) ``1x4x8``; empty where there is none."""
    match = _TILE.search(path.stem)
    if not match:
        return ""
    return match[1] if "x" in match[1] else "x".join(match[1])


def _columns(sheet: Sheet) -> int:
    if sheet.width in (_TIMES, _COUNTERS, _COUNTERS + 1):
        return min(sheet.width, _COUNTERS)
    raise InputError(
        f"{sheet.path}, sheet {sheet.name!r}: {sheet.width} columns; a variant has 18 (19 with a type),"
        f" an FFT or pre/post workbook 10"
    )


def _row(
    path: Path, cells: list[float], columns: int, names: tuple[str, ...], part: str, where: str
) -> VariantRow:
    conv = square_conv(cells, where)
    algorithm = algorithm_name(cells[8], names, where)
    kernel: dict[str, Any] = {"kernel_name": path.stem, "tile": tile_name(path)}
    if is_classes(path):
        if cells[9] not in (0, 1, 2):
            raise InputError(
                f"{where}, column 10: class {cells[9]:g}; 0 compute-, 1 memory-bound or 2 under-utilised"
            )
        return VariantRow(conv, algorithm, float("nan"), part, {**kernel, "kernel_class": int(cells[9])})
    time_us = cells[9] * 1000
    if time_us > 0:
        check_possible(conv, algorithm, where)
    if columns == _COUNTERS:
        kernel |= _counters(cells, where)
    return VariantRow(conv, algorithm, time_us, part, {**kernel, "time_us": time_us})


def _counters(cells: list[float], where: str) -> dict[str, float]:
    """Columns 11–18. Waves are computed anew, as the original does: ⌈launched blocks / B_max⌉."""
    instructions, reads, writes, b_max, blocks, _, fp32_level, dram_level = cells[10:18]
    if b_max < 1 or blocks < 1:
        raise InputError(f"{where}: B_max {b_max:g} and {blocks:g} launched blocks; both must be at least 1")
    for name, level in (("fp32", fp32_level), ("dram", dram_level)):
        if not 0 <= level <= _LEVELS:
            raise InputError(f"{where}: {name} utilisation {level:g}; nvprof's levels go from 0 to 10")
    return {
        "blocks": blocks,
        "b_max": b_max,
        "waves": ceil(blocks / b_max),
        "fp32_instructions": instructions,
        "dram_read_transactions": reads,
        "dram_write_transactions": writes,
        "fp32_utilization_pct": fp32_level * 10,
        "dram_utilization_pct": dram_level * 10,
    }
