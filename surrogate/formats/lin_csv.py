"""GEMM timings of the recommendation-model notebook (Lin et al.), such as ``fully_connected_forward.csv``.

How to get one: run the notebook's GEMM benchmark under a profiler. The columns are kernel_name, kernel_runtime,
batch_size, M, N, K. A row is one kernel of a batch of (M × K)·(K × N) products. The file has no unit of time: µs are
assumed and checked.
"""

from pathlib import Path
from typing import Unpack

import numpy as np
import pandas as pd

from surrogate.features import MAX_INT32, InputError, check_choice, checked_int
from surrogate.formats import Format, Option
from surrogate.formats.foreign_file import Paths, ReadLimits
from surrogate.formats.imported import Imported, check_columns, csv_table, family_rows
from surrogate.formats.printed import TIME_US

_SIZES = {"batch": "batch_size", "m": "M", "n": "N", "k": "K"}
_COLUMNS = ("kernel_name", "kernel_runtime", *_SIZES.values())
_UNITS_US = {name: TIME_US[name] for name in ("us", "ms", "ns")}
_MAX_TFLOPS = 5000.0
_MIN_TFLOPS = 0.02
_LARGE_FLOPS = 1e10


def read(paths: Paths, *, gpu: str, time_unit: str = "us", **limits: Unpack[ReadLimits]) -> Imported:
    """Read matrix products in fp32: one row per problem with the median of its kernels' times.

    Other columns are kept as text. Raises `InputError` with file and line, and if a time means an impossible rate.
    """
    check_choice("time unit", time_unit, _UNITS_US)
    notes = [f"kernel_runtime is read in {time_unit}"]
    kernels = pd.concat([_frame(Path(path), _UNITS_US[time_unit], notes, limits) for path in paths], ignore_index=True)
    rows = family_rows(kernels.assign(operator="gemm", gpu=gpu, library="cublas", origin="lin_csv"))
    return Imported(rows, candidates="listed", notes=tuple(notes))


_UNIT = Option("Unit of lin-csv's kernel_runtime (default us).", choices=tuple(_UNITS_US))
FORMAT = Format("lin-csv", "GEMM times of the recommendation-model notebook", read, extra_options={"time_unit": _UNIT})


def _frame(path: Path, unit_us: float, notes: list[str], limits: ReadLimits) -> pd.DataFrame:
    table = csv_table(path, "the notebook's CSV file", _COLUMNS[1:], notes, limits)
    check_columns(table, path, _COLUMNS)
    for column in _COLUMNS[1:]:
        values = pd.to_numeric(table[column], errors="coerce")
        wrong = ~(np.isfinite(values) & (values > 0))
        if wrong.any():
            line = int(table.index[wrong][0])  # the header is line 1
            raise InputError(f"{path}, line {line + 2}: {column} is {table[column][line]!r}; give a number above 0")
        if column == "kernel_runtime":
            table[column] = values * unit_us
        else:
            lines = zip(table.index.tolist(), values, strict=True)
            sizes = [checked_int(f"{path}, line {line + 2}", column, size, maximum=MAX_INT32) for line, size in lines]
            table[column] = np.array(sizes, dtype=np.int64)
    frame = table.rename(columns={"kernel_runtime": "time_us", **{_SIZES[name]: name for name in _SIZES}})
    _check_rates(frame, path)
    return frame


def _check_rates(frame: pd.DataFrame, path: Path) -> None:
    """Refuse times in a wrong unit. The test is the rate of the fastest row, 2·batch·M·N·K / time.

    No GPU to date reaches 5,000 TFLOP/s. Every GPU reaches 0.02 TFLOP/s on some product of 10 GFLOP or more.
    """
    flops = 2.0 * frame[list(_SIZES)].astype(float).prod(axis=1)
    fastest = float((flops / frame["time_us"]).max()) / 1e6
    if fastest > _MAX_TFLOPS:
        raise InputError(f"{path}: the times mean {fastest:,.0f} TFLOP/s; if they are in ms, give --time-unit ms")
    if flops.max() >= _LARGE_FLOPS and fastest < _MIN_TFLOPS:
        raise InputError(f"{path}: the times mean {fastest:.2g} TFLOP/s; if they are in ns, give --time-unit ns")
