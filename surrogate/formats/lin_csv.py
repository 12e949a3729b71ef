"""GEMM timings of the recommendation-model notebook (Lin et al.): ``fully_connected_forward.csv`` and its
kin.

How to get one: run the notebook's GEMM benchmark under a profiler; columns kernel_name, kernel_runtime,
batch_size, M, N, K, one row per kernel of a batch of (M × K)·(K × N) products. The runtimes carry no unit: µs
are assumed and checked.
"""

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from surrogate.features.errors import InputError, nearest
from surrogate.formats.foreign_file import DEFAULT_MAX_BYTES, read_lines
from surrogate.formats.imported import Imported, Progress

_COLUMNS = ("kernel_name", "kernel_runtime", "batch_size", "M", "N", "K")
_UNITS_US = {"us": 1.0, "ms": 1e3, "ns": 1e-3}
_MOST_TFLOPS = 5000.0
_LEAST_TFLOPS = 0.02
_LARGE_FLOPS = 1e10


def read(
    paths: Sequence[str | Path],
    *,
    gpu: str,
    time_unit: str = "us",
    max_bytes: int = DEFAULT_MAX_BYTES,
    progress: Progress | None = None,
) -> Imported:
    """A GEMM table: gpu, operator "gemm", batch, m, n, k, time_us, kernel_name, dtype; other columns survive
    as text.

    Raises `InputError` naming file and line, and where the rates that follow from the times are impossible.
    """
    if time_unit not in _UNITS_US:
        raise InputError(
            f"time unit {time_unit!r} is unknown; known:"
            f" {', '.join(_UNITS_US)}{nearest(time_unit, _UNITS_US)}"
        )
    frames = [_frame(Path(path), gpu, _UNITS_US[time_unit], max_bytes, progress) for path in paths]
    return Imported(
        pd.concat(frames, ignore_index=True), notes=(f"kernel_runtime taken as {time_unit}",), table="gemm"
    )


def _frame(path: Path, gpu: str, unit_us: float, max_bytes: int, progress: Progress | None) -> pd.DataFrame:
    lines = read_lines(path, max_bytes=max_bytes, progress=progress)
    header: list[str] = []
    records: list[dict[str, object]] = []
    for number, line in lines:
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        cells = _cells(line, where)
        if not header:
            header = [cell.strip() for cell in cells]
            _check_header(header, path)
        elif len(cells) != len(header):
            raise InputError(f"{where}: {len(cells)} values for {len(header)} columns; give one for each")
        else:
            records.append(_record(dict(zip(header, cells, strict=True)), unit_us, where))
    if not records:
        raise InputError(
            f"{path}: no rows; the columns {', '.join(_COLUMNS)} and a row per kernel are needed"
        )
    _check_rates(records, path)
    return pd.DataFrame(records).assign(gpu=gpu, dtype="fp32", origin="lin_csv")


def _cells(line: str, where: str) -> list[str]:
    try:
        return next(csv.reader([line]))
    except csv.Error as error:
        raise InputError(f"{where}: not CSV ({error}); separate the values with commas") from None


def _check_header(header: list[str], path: Path) -> None:
    for name in _COLUMNS:
        if name not in header:
            raise InputError(
                f"{path}: column {name} is missing from {', '.join(header)[:120]};"
                f" {', '.join(_COLUMNS)} are needed{nearest(name, header)}"
            )


def _record(row: dict[str, str], unit_us: float, where: str) -> dict[str, object]:
    sizes = {}
    for name, column in (("batch", "batch_size"), ("m", "M"), ("n", "N"), ("k", "K")):
        value = _number(row[column], column, where)
        if value != int(value) or not 1 <= value < 2**31:
            raise InputError(
                f"{where}: {column} is {row[column]!r}; a whole number from 1 to 2147483647 is needed"
            )
        sizes[name] = int(value)
    time_us = _number(row["kernel_runtime"], "kernel_runtime", where) * unit_us
    if time_us <= 0:
        raise InputError(f"{where}: kernel_runtime is {row['kernel_runtime']!r}; a time above 0 is needed")
    rest = {name: value for name, value in row.items() if name and name not in _COLUMNS}
    return {"operator": "gemm", **sizes, "time_us": time_us, "kernel_name": row["kernel_name"], **rest}


def _number(text: str, column: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{where}: {column} is {text[:40]!r}; a number is needed")
    return value


def _check_rates(records: list[dict[str, object]], path: Path) -> None:
    """Refuse times whose unit cannot be right: the fastest row's rate, 2·batch·M·N·K / time, bounds it on
    both sides.

    No GPU to date does more than 5,000 TFLOP/s; and some product of 10 GFLOP or more reaches 0.02 TFLOP/s on
    any.
    """
    rates = []
    for row in records:
        flops = 2.0 * math.prod(float(str(row[name])) for name in ("batch", "m", "n", "k"))
        rates.append((flops / float(str(row["time_us"])) / 1e6, flops))
    fastest = max(rate for rate, _ in rates)
    if fastest > _MOST_TFLOPS:
        raise InputError(
            f"{path}: its times mean {fastest:,.0f} TFLOP/s; are they in ms? then give --time-unit ms"
        )
    if max(flops for _, flops in rates) >= _LARGE_FLOPS and fastest < _LEAST_TFLOPS:
        raise InputError(
            f"{path}: its times mean {fastest:.2g} TFLOP/s at best; are they in ns? then give --time-unit ns"
        )
