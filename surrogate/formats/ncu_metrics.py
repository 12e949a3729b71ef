"""Nsight Compute's metrics and section labels as columns of the kernel table, in the table's units."""

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from surrogate.features.elementwise import ceil_div

Metrics = Mapping[str, tuple[str, float]]
"""Metric name or section label → (unit as printed, value)."""

_TIME_US = {
    "s": 1e6, "second": 1e6, "ms": 1e3, "msecond": 1e3, "us": 1.0, "usecond": 1.0, "ns": 1e-3, "nsecond": 1e-3,
}  # fmt: skip
_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_PREFIXED = re.compile(r"([kKMGT]?)(byte|sector|inst|block|register|thread|warp|cycle)(?:/.*)?")


# Metric → label in the details page. Source: the nvprof table of the Nsight Compute CLI manual.
_TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("ncu_metrics.toml").read_text(encoding="utf-8"))
_NAMES: dict[str, list[str]] = _TABLE["columns"]
_BYTES: dict[str, str] = _TABLE["bytes"]
_SECTOR_BYTES = 32
_LIMITS, _SMS, _WAVES = (_TABLE["launch"][name] for name in ("limits", "sms", "waves"))
_SHAPE = {f"{what}_{axis}": f"launch__{what}_dim_{axis}" for what in ("grid", "block") for axis in "xyz"}
METRICS = frozenset(
    [n for names in _NAMES.values() for n in names]
    + [*_BYTES.values(), *(n for pair in _LIMITS for n in pair), *_SMS, _WAVES, *_SHAPE.values()]
)
"""Every name that `kernel_numbers` looks at."""


def kernel_numbers(metrics: Metrics, grid: tuple[int, ...] | None, block: tuple[int, ...] | None) -> dict[str, Any]:
    """The kernel table's numbers that ``metrics`` hold; what they lack is left out.

    Sectors follow from bytes (32 B each) where only those were counted. Blocks per launch come from ``grid``
    or the launch's metrics; B_max from the occupancy limits times the SMs, else from the exact waves per SM
    (the details page rounds them to two digits, and is not used); waves = ⌈blocks / B_max⌉.
    """
    numbers: dict[str, Any] = {}
    for column, names in _NAMES.items():
        value = _first(metrics, names)
        if value is not None:
            numbers[column] = value
    for column, name in _BYTES.items():
        value = _first(metrics, (name,))
        if column not in numbers and value is not None:
            numbers[column] = value / _SECTOR_BYTES
    for what, shape in (("grid", grid), ("block", block)):
        for at, axis in enumerate("xyz"):
            value = float(shape[at]) if shape else _first(metrics, (_SHAPE[f"{what}_{axis}"],))
            if value is not None:
                numbers[f"{what}_{axis}"] = value
    if all(f"grid_{axis}" in numbers for axis in "xyz"):
        numbers["blocks"] = numbers["grid_x"] * numbers["grid_y"] * numbers["grid_z"]
        b_max = _b_max(metrics, numbers["blocks"])
        if b_max:
            numbers |= {"b_max": b_max, "waves": ceil_div(numbers["blocks"], b_max)}
    return numbers


def _b_max(metrics: Metrics, blocks: float) -> float | None:
    """Resident blocks of the whole GPU, or None."""
    limits = [_first(metrics, names) for names in _LIMITS]
    sms = _first(metrics, _SMS)
    if sms and all(limits):
        return sms * min(limit for limit in limits if limit)
    waves = _first(metrics, (_WAVES,))
    return float(round(blocks / waves)) if waves and blocks / waves >= 1 else None


def _first(metrics: Metrics, names: Sequence[str]) -> float | None:
    """The first of ``names`` that was measured, in µs, bytes, percent or pieces."""
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
