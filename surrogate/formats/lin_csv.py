"""GEMM timings of the recommendation-model notebook (Lin et al.): ``fully_connected_forward.csv`` and the like.

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
from surrogate.formats.foreign_file import DEFAULT_MAX_BYTES, Progress, read_lines
from surrogate.formats.imported import Imported, family_rows

_SIZES = {"batch": "batch_size", "m": "M", "n": "N", "k": "K"}
_COLUMNS = ("kernel_name", "kernel_runtime", *_SIZES.values())
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
    """Matrix products in fp32: a row per problem, the median of its kernels' times; other columns survive as text.

    Raises `InputError` naming file and line, and where the rates that follow from the times are impossible.
    """
    if time_unit not in _UNITS_US:
        raise InputError(
            f"time unit {time_unit!r} is unknown; known: {', '.join(_UNITS_US)}{nearest(time_unit, _UNITS_US)}"
        )
    frames = [_frame(Path(path), _UNITS_US[time_unit], max_bytes, progress) for path in paths]
    kernels = pd.concat(frames, ignore_index=True)
    rows = family_rows(kernels.assign(operator="gemm", gpu=gpu, library="cublas", origin="lin_csv"))
    return Imported(rows, candidates="listed", notes=(f"kernel_runtime taken as {time_unit}",))


def _frame(path: Path, unit_us: float, max_bytes: int, progress: Progress | None) -> pd.DataFrame:
    lines = (line for _, line in read_lines(path, max_bytes=max_bytes, progress=progress))
    reader = csv.DictReader(lines, skipinitialspace=True)
    try:
        _check_header(reader.fieldnames or _COLUMNS, path)
        records = [_record(row, unit_us, f"{path}, line {reader.line_num}") for row in reader]
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not CSV ({error})") from None
    if not records:
        raise InputError(
            f"{path}: no rows; the columns {', '.join(_COLUMNS)} and a row per kernel are needed"
        )
    frame = pd.DataFrame(records)
    _check_rates(frame, path)
    return frame


def _check_header(header: Sequence[str], path: Path) -> None:
    for name in _COLUMNS:
        if name not in header:
            raise InputError(
                f"{path}: column {name} is missing from {', '.join(header)[:120]};"
                f" {', '.join(_COLUMNS)} are needed{nearest(name, header)}"
            )


def _record(row: dict[str, str], unit_us: float, where: str) -> dict[str, object]:
    if None in row or None in row.values():
        raise InputError(f"{where}: more or fewer values than columns; give one for each")
    sizes = {name: _number(row[column], column, where) for name, column in _SIZES.items()}
    for name, size in sizes.items():
        if size != int(size) or not 1 <= size < 2**31:
            raise InputError(
                f"{where}: {_SIZES[name]} is {size:g}; a whole number from 1 to 2147483647 is needed"
            )
    time_us = _number(row["kernel_runtime"], "kernel_runtime", where) * unit_us
    if time_us <= 0:
        raise InputError(f"{where}: kernel_runtime is {row['kernel_runtime']!r}; a time above 0 is needed")
    rest = {name: value for name, value in row.items() if name and name not in _COLUMNS}
    return {**rest, **sizes, "time_us": time_us, "kernel_name": row["kernel_name"]}


def _number(text: str, column: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{where}: {column} is {text[:40]!r}; a number is needed")
    return value


def _check_rates(frame: pd.DataFrame, path: Path) -> None:
    """Refuse times whose unit cannot be right, by the fastest row's rate, 2·batch·M·N·K / time.

    No GPU to date does more than 5,000 TFLOP/s; and some product of 10 GFLOP or more reaches 0.02 TFLOP/s on any.
    """
    flops = 2.0 * frame[list(_SIZES)].astype(float).prod(axis=1)
    fastest = float((flops / frame["time_us"]).max()) / 1e6
    if fastest > _MOST_TFLOPS:
        raise InputError(
            f"{path}: its times mean {fastest:,.0f} TFLOP/s; are they in ms? then give --time-unit ms"
        )
    if flops.max() >= _LARGE_FLOPS and fastest < _LEAST_TFLOPS:
        raise InputError(
            f"{path}: its times mean {fastest:.2g} TFLOP/s at best; are they in ns? then give --time-unit ns"
        )
