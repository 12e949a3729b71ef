"""google-benchmark JSON of cudnn_scope / dlperf: every cuDNN algorithm of a convolution, in both generations.

How to get one: build c3sr/scope (2018) or rai-project/dlperf's benchmarks (2019) on the GPU and run ``scope
--benchmark_filter=CUDNN_CONV --benchmark_out=FILE.json --benchmark_out_format=json``. Files may be packed as .gz. The
second generation names the GPU and the cuDNN version in every successful benchmark. For the first, give --gpu and
--library-version. A time is one event pair around the API call, so it includes launch gaps.

If CUPTI counted metrics, the time includes the replays of the kernels (in dlperf's files 3 to 2,600 times the time of
cudnnFind). Such a benchmark gives its kernels and no time. Add files of the same problems without metrics; otherwise
only the refusals become rows. A file lists kernels by name, so ``kernel_index`` is not the launch order.
"""

import math
import re
from pathlib import Path
from statistics import median
from typing import Unpack

import pandas as pd

from surrogate.features import Conv, InputError, read_toml
from surrogate.features.algorithms import algorithms
from surrogate.features.errors import parsed_json
from surrogate.formats import Format
from surrogate.formats.foreign_file import Paths, ReadLimits, read_bytes, readable
from surrogate.formats.imported import KEY_COLUMNS, Imported, medians, no_rows, plural
from surrogate.formats.nvprof import metric
from surrogate.formats.printed import TIME_US, compiled


def read(
    paths: Paths, *, gpu: str | None = None, library_version: str | None = None, **limits: Unpack[ReadLimits]
) -> Imported:
    """Read benchmark files as dataset rows. Repetitions become one row with median, minimum, maximum and count.

    ``gpu`` and ``library_version`` override the files. Raises `InputError` with file and benchmark.
    """
    frames = []
    notes = list[str]()
    for path in map(Path, paths):
        benchmarks, is_cut = _benchmarks(path, read_bytes(path, **limits))
        parsed = [_row(item, f"{path}, benchmark {number}") for number, item in enumerate(benchmarks, 1)]
        rows = [row for row in parsed if row]
        if not rows:
            counted = f"{plural(len(parsed), 'benchmark')} and no cuDNN convolution (…CUDNN_CONV_…<…_ALGO_…>)"
            raise InputError(f"{path}: {counted}; give a file of cudnn_scope")
        frame = pd.DataFrame(rows)
        frame["gpu"] = gpu or _only(path, "GPU", frame["gpu"], "--gpu")
        versions = frame["library_version"]
        frame["library_version"] = library_version or _only(path, "cuDNN version", versions, "--library-version")
        frames.append(frame)
        left_out, complete = plural(len(parsed) - len(rows), "benchmark"), plural(len(rows), "complete benchmark")
        if len(rows) < len(parsed):
            notes.append(f"{path.name}: {left_out} left out: not a convolution, or an aggregate")
        if is_cut:
            notes.append(f"{path.name}: the file ends within its last benchmark; {complete} read")
    raw = pd.concat(frames, ignore_index=True)
    counted = raw["kernels"].map(bool)
    timed = raw[~counted].drop(columns="kernels")
    if not counted.any():
        return Imported(_aggregate(timed), notes=tuple(notes))
    untimed = plural(int(counted.sum()), "benchmark")
    notes.append(f"{untimed} counted metrics, which lengthens the time: the kernels are kept, the times are not")
    rows = _aggregate(timed) if len(timed) else no_rows()
    return Imported(rows, _kernel_table(raw[counted]), notes=tuple(notes))


FORMAT = Format("cudnn-scope", "google-benchmark JSON of cudnn_scope / dlperf", read)


def _benchmarks(path: Path, data: bytes) -> tuple[list[object], bool]:
    """Return the list ``benchmarks``, and whether the file ends within it (as after a killed run)."""
    with readable(path, "give the file that google-benchmark's --benchmark_out named"):
        try:
            return [*parsed_json(data, "replace")["benchmarks"]], False
        except ValueError:
            if b"}," not in data:
                raise
            return [*parsed_json(data[: data.rfind(b"},") + 1] + b"]}", "replace")["benchmarks"]], True


def _only(path: Path, what: str, values: pd.Series, option: str) -> str:
    """Return the one value of a file. A failed benchmark has no value and takes the file's."""
    distinct = [value for value in values.unique() if value]
    if len(distinct) != 1:
        statement = f"names {' and '.join(distinct)} as its" if distinct else "names no"
        raise InputError(f"{path}: the file {statement} {what}; give one with {option}")
    return distinct[0]


def _aggregate(raw: pd.DataFrame) -> pd.DataFrame:
    """Return one row per key, in the order of the files. A row is ok if any repetition is."""
    key = list(KEY_COLUMNS)
    ok_first = raw.sort_values("status", key=lambda status: status != "ok", kind="stable")
    aggregations = {"workspace_bytes": ("workspace_bytes", "max"), "find_time_us": ("find_time_us", "median")}
    return raw[key].drop_duplicates().merge(medians(ok_first, key, **aggregations), on=key)


def _kernel_table(raw: pd.DataFrame) -> pd.DataFrame:
    """Return kernels with the key columns of the rows. A metric is the median of its repetitions."""
    records = [
        {**{name: row[name] for name in KEY_COLUMNS}, "kernel_name": name, **metrics}
        for row in raw.to_dict("records")
        for name, metrics in row["kernels"].items()
    ]
    key = list(KEY_COLUMNS)
    kernels = pd.DataFrame(records).groupby([*key, "kernel_name"], sort=False).median().reset_index()
    kernels.insert(len(key), "kernel_index", kernels.groupby(key, sort=False).cumcount())
    return kernels


# A benchmark's name holds the problem and the algorithm; its counters hold the outcome.
_CONTENT = read_toml(__file__)
_NAME, _METRIC = compiled(_CONTENT["patterns"])
_DTYPES, _SIZES = _CONTENT["dtypes"], _CONTENT["sizes"]
_DTYPE = re.compile(rf"_(?:TENSORCORE)?({'|'.join(_DTYPES)})(?=_|$)")
_DEFAULT_ONE = ("dilation_h", "dilation_w", "groups")
_REFUSALS = ("NOT_SUPPORTED", "WorkspaceSize", "BAD_PARAM", "ARCH_MISMATCH")
"""Words of a message if cuDNN refuses the problem. Other errors are failures, such as a lack of memory."""


def _row(benchmark: object, where: str) -> dict[str, object] | None:
    """Return a dataset row, or None for another benchmark and for an aggregate of repetitions.

    Raises `InputError` for a damaged benchmark.
    """
    if not isinstance(benchmark, dict) or not isinstance(benchmark.get("name"), str):
        raise InputError(f"{where}: the benchmark has no name; give google-benchmark's own JSON")
    match = _NAME.fullmatch(benchmark["name"])
    if match is None or benchmark.get("run_type") == "aggregate":
        return None
    direction = match["direction"].lower()
    arguments = dict(re.findall(r"/([^/:]+):(\d+)", match["arguments"] or "", re.ASCII))
    conv = _conv(arguments, match["layer"], benchmark, direction, where)
    algorithm = match["algorithm"]
    is_second = "input[0]" in arguments
    unit = benchmark.get("time_unit", "ns")
    if not isinstance(unit, str) or unit not in TIME_US:
        raise InputError(f"{where}: time unit {unit!r} is unknown; known: {', '.join([*TIME_US][:4])}")
    time_us = _number(benchmark, "real_time", where) * TIME_US[unit]
    ok = not benchmark.get("error_occurred") and math.isfinite(time_us) and time_us > 0
    refused = any(word in str(benchmark.get("error_message", "")) for word in _REFUSALS)
    find_ms = _number(benchmark, "advised_time", where, math.nan)
    advised = _number(benchmark, "advised_convolution_algorithm", where, math.nan)
    heuristic = next((a.name for a in algorithms("cudnn", direction) if a.enum == advised), None)
    algorithm = f"ALGO_{algorithm}" if algorithm.isdigit() else algorithm
    workspace = _number(benchmark, "workspace_bytes", where, math.nan) if ok else math.nan
    status = "ok" if ok else "not_supported" if refused else "failed"
    row = {"gpu": _tag(benchmark, "gpu_name"), "library": "cudnn", "library_version": _tag(benchmark, "cudnn_version")}
    row |= {**conv.to_dict(), "algorithm": algorithm, "status": status, "time_us": time_us if ok else math.nan}
    row |= {"workspace_bytes": workspace, "find_time_us": find_ms * 1000 if find_ms > 0 else math.nan}
    row |= {"heuristic_algorithm": heuristic if is_second and ok else None}
    return row | {"origin": "dlperf" if is_second else "c3sr_scope", "kernels": _kernels(benchmark, where)}


def _kernels(benchmark: dict[str, object], where: str) -> dict[str, dict[str, float]]:
    """Return kernel → column → the median over iterations of CUPTI's count.

    The columns are named as for nvprof's metrics. CUPTI gives a utilisation as a level from 0 to 10.
    """
    values: dict[str, dict[str, list[float]]] = {}
    for key in benchmark:
        match = _METRIC.fullmatch(key)
        if match:
            number = _number(benchmark, key, where)
            text = f"({number:.0f})" if match["metric"].endswith("_utilization") else repr(number)
            column, value = metric(match["metric"], text)
            values.setdefault(match["kernel"], {}).setdefault(column, []).append(value)
    return {kernel: {name: float(median(v)) for name, v in columns.items()} for kernel, columns in values.items()}


def _conv(arguments: dict[str, str], layer: str, benchmark: dict[str, object], direction: str, where: str) -> Conv:
    sizes: dict[str, int] = {}
    for name, labels in _SIZES.items():
        value = next((arguments[label] for label in labels if label in arguments), None)
        if value is None and name not in _DEFAULT_ONE:
            raise InputError(f"{where}: the name has no {labels[0]} (or {labels[-1]}); give a name with all sizes")
        sizes[name] = 1 if value is None else int(value[:12])
    dtype = _DTYPE.search(layer)
    if dtype is None:
        raise InputError(f"{where}: {layer[-60:]!r} names no element type; known: {', '.join(_DTYPES)}")
    has_tensor_name = any(word in layer.replace("_", "") for word in ("TENSOROP", "TENSORCORE"))
    tensor_op = has_tensor_name or _number(benchmark, "math_type", where, 0.0) == 1
    math_mode = "tensor_op" if tensor_op else "fma"
    layout = "NHWC" if "NHWC" in layer else "NCHW"
    try:
        return Conv(**sizes, dtype=_DTYPES[dtype[1]], math=math_mode, layout=layout, direction=direction)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _tag(benchmark: dict[str, object], prefix: str) -> str:
    """Return the rest of the counter named ``prefix:…``. Its value is an unused hash."""
    return next((key.partition(":")[2] for key in benchmark if key.startswith(f"{prefix}:")), "")


def _number(benchmark: dict[str, object], name: str, where: str, default: float | None = None) -> float:
    value = benchmark.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{where}: {name} is {str(value)[:40]!r}; give a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf
