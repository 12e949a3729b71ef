"""One benchmark of a cudnn_scope file: its problem, algorithm and outcome, from its name and its counters."""

import math
import re
from dataclasses import dataclass
from typing import Any

from surrogate.features.algorithms import algorithms
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError

_NAME = re.compile(
    r"(?P<layer>[^<]*CUDNN_CONV_[^<]*)"
    r"<CUDNN_CONVOLUTION_(?P<direction>FWD|BWD_DATA|BWD_FILTER)_ALGO_(?P<algorithm>\w+)>(?P<arguments>/.*)?"
)
_DIRECTIONS = {"FWD": "fwd", "BWD_DATA": "bwd_data", "BWD_FILTER": "bwd_filter"}
_DTYPES = {
    "FLOAT16": "fp16", "HALF": "fp16", "FLOAT32": "fp32", "FLOAT": "fp32", "FLOAT64": "fp64",
    "DOUBLE": "fp64", "INT8": "int8",
}  # fmt: skip
_DTYPE = re.compile(rf"_({'|'.join(_DTYPES)})(?=_|$)")
_UNITS_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
_SIZES = {
    "n": ("input[0]", "N"), "c": ("input[1]", "C"), "h": ("input[2]", "H"), "w": ("input[3]", "W"),
    "k": ("filter_count", "K"), "r": ("filter_height", "filter_h(r)"), "s": ("filter_width", "filter_w(s)"),
    "pad_h": ("pad_height", "pad_h"), "pad_w": ("pad_width", "pad_w"),
    "stride_h": ("stride_height", "hstride"), "stride_w": ("stride_width", "wstride"),
    "dilation_h": ("dilation_height",), "dilation_w": ("dilation_width",), "groups": ("group",),
}  # fmt: skip
"""Field → its label in the arguments of the name, in the second generation (2019) and the first (2018)."""
_DEFAULT_ONE = ("dilation_h", "dilation_w", "groups")


@dataclass(frozen=True, slots=True)
class Entry:
    """A measured convolution; ``time_us`` is NaN unless ``status`` is ok; ``gpu``, ``version`` if named."""

    conv: Conv
    algorithm: str
    status: str
    time_us: float
    workspace_bytes: float
    find_time_us: float
    heuristic_algorithm: str | None
    gpu: str
    version: str
    second_generation: bool


def parse_entry(benchmark: Any, where: str) -> Entry | None:
    """The entry, or None where it is no convolution or an aggregate of repetitions. `InputError` where it is
    damaged.
    """
    if not isinstance(benchmark, dict) or not isinstance(benchmark.get("name"), str):
        raise InputError(f"{where}: not a benchmark with a name; is this google-benchmark's own JSON?")
    match = _NAME.fullmatch(benchmark["name"])
    if match is None or benchmark.get("run_type") == "aggregate":
        return None
    direction = _DIRECTIONS[match["direction"]]
    arguments = dict(re.findall(r"/([^/:]+):(\d+)", match["arguments"] or "", re.ASCII))
    algorithm = match["algorithm"] if not match["algorithm"].isdigit() else f"ALGO_{match['algorithm']}"
    tagged = {prefix: _tag(benchmark, prefix) for prefix in ("gpu_name", "cudnn_version")}
    second = "input[0]" in arguments
    failed = bool(benchmark.get("error_occurred"))
    real_time = _float(benchmark, "real_time", where)
    time_us = math.nan if failed else real_time * _unit(benchmark, where)
    ok = math.isfinite(time_us) and time_us > 0
    find_ms = _float(benchmark, "advised_time", where, math.nan)
    advised = _float(benchmark, "advised_convolution_algorithm", where, math.nan)
    return Entry(
        _conv(arguments, match["layer"], benchmark, direction, where),
        algorithm,
        "ok" if ok else _failure(str(benchmark.get("error_message", ""))),
        time_us if ok else math.nan,
        _float(benchmark, "workspace_bytes", where, math.nan) if ok else math.nan,
        find_ms * 1000 if find_ms > 0 else math.nan,
        _heuristic(advised, direction) if second and ok else None,
        tagged["gpu_name"],
        tagged["cudnn_version"],
        second,
    )


def _conv(
    arguments: dict[str, str], layer: str, benchmark: dict[str, Any], direction: str, where: str
) -> Conv:
    sizes: dict[str, int] = {}
    for name, labels in _SIZES.items():
        value = next((arguments[label] for label in labels if label in arguments), None)
        if value is None and name not in _DEFAULT_ONE:
            raise InputError(
                f"{where}: its name has no {labels[0]} (or {labels[-1]}); a convolution names all its sizes"
            )
        sizes[name] = 1 if value is None else int(value[:12])
    dtype = _DTYPE.search(layer)
    if dtype is None:
        raise InputError(
            f"{where}: {layer[-60:]!r} names no element type; one of {', '.join(_DTYPES)} is needed"
        )
    tensor_op = "TENSOROP" in layer.replace("_", "") or _float(benchmark, "math_type", where, 0.0) == 1
    layout = "NHWC" if "NHWC" in layer else "NCHW"
    try:
        return Conv(
            **sizes,
            dtype=_DTYPES[dtype[1]],
            math="tensor_op" if tensor_op else "fma",
            layout=layout,
            direction=direction,
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _failure(message: str) -> str:
    """Status of an error message: what cuDNN refuses is not supported, a lack of memory or a fault is a
    failure.
    """
    refused = ("NOT_SUPPORTED", "WorkspaceSize", "BAD_PARAM", "ARCH_MISMATCH")
    return "not_supported" if any(word in message for word in refused) else "failed"


def _heuristic(code: float, direction: str) -> str | None:
    return next((a.name for a in algorithms("cudnn", direction) if a.enum == code), None)


def _tag(benchmark: dict[str, Any], prefix: str) -> str:
    """The rest of the counter named ``prefix:…`` (the value is a hash of no use)."""
    return next((key.partition(":")[2] for key in benchmark if key.startswith(f"{prefix}:")), "")


def _unit(benchmark: dict[str, Any], where: str) -> float:
    unit = benchmark.get("time_unit", "ns")
    if not isinstance(unit, str) or unit not in _UNITS_US:
        raise InputError(f"{where}: time unit {unit!r}; known: {', '.join(_UNITS_US)}")
    return _UNITS_US[unit]


def _float(benchmark: dict[str, Any], name: str, where: str, default: float | None = None) -> float:
    value = benchmark.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{where}: {name} is {str(value)[:40]!r}; a number is needed")
    try:
        return float(value)
    except OverflowError:
        return math.inf
