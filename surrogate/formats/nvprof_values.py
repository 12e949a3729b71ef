"""Values as nvprof writes them: ``466.21ms``, ``1.1152KB``, ``99.3%``, ``199.4GB/s``, ``Low (1)``."""

import math
import re

from surrogate.features.errors import InputError

TIME_US = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}
SIZE_BYTES = {"B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3}
"""nvprof's sizes are binary; its rates are decimal."""
_RATE_GBS = {"B/s": 1e-9, "KB/s": 1e-6, "MB/s": 1e-3, "GB/s": 1.0, "TB/s": 1e3}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z%]*(?:/s)?)", re.ASCII)
_LEVEL = re.compile(r"(?:Idle|Low|Mid|High|Max)?\s*\((\d+)\)", re.ASCII)

COLUMNS = {
    "inst_fp_32": "fp32_instructions",
    "dram_read_transactions": "dram_read_transactions",
    "dram_write_transactions": "dram_write_transactions",
    "single_precision_fu_utilization": "fp32_utilization_pct",
    "dram_utilization": "dram_utilization_pct",
    "achieved_occupancy": "achieved_occupancy_pct",
}
"""nvprof metric → kernel table column; other metrics keep their name, with their unit's suffix."""


def duration_us(text: str, where: str, unit: str = "") -> float:
    """A time in µs; ``unit`` is its column's, where the text has none."""
    return _scaled(text, unit, TIME_US, where)


def size_bytes(text: str, where: str, unit: str = "") -> float:
    """A size in whole bytes; nvprof rounds what it prints to five digits."""
    return float(round(_scaled(text, unit, SIZE_BYTES, where)))


def whole(text: str, where: str) -> int:
    """A count. Raises `InputError` unless it is a whole number."""
    if not re.fullmatch(r"\d{1,18}", text.strip(), re.ASCII):
        raise InputError(f"{where}: {text[:40]!r}; a whole number is needed")
    return int(text)


def metric(name: str, text: str, unit: str = "") -> tuple[str, float]:
    """(column, value) of a metric; NaN where nvprof could not measure it (``<OVERFLOW>``, ``n/a``).

    A level is taken as ten times its number in percent, achieved occupancy (a share) times 100 likewise.
    """
    text = text.strip()
    level = _LEVEL.fullmatch(text)
    column = COLUMNS.get(name, name)
    if level:
        return column if column.endswith("_pct") else f"{name}_pct", float(min(int(level[1]), 10)) * 10
    match = _QUANTITY.fullmatch(text)
    if not match:
        return column, math.nan
    value, unit = float(match[1]), match[2] or unit
    if unit in _RATE_GBS:
        return f"{name}_gbs", value * _RATE_GBS[unit]
    if unit == "%":
        return column if column.endswith("_pct") else f"{name}_pct", value
    if name == "achieved_occupancy":
        value *= 100
    return column, value


def kernel_name(text: str) -> str:
    """The name without the launch's number, ``name(args) [130]`` → ``name(args)``."""
    return re.sub(r"\s*\[\d+\]$", "", text.strip())


def _scaled(text: str, unit: str, scales: dict[str, float] | dict[str, int], where: str) -> float:
    match = _QUANTITY.fullmatch(text.strip())
    scale = scales.get(match[2] or unit) if match else None
    if match is None or scale is None or not math.isfinite(float(match[1]) * scale):
        shown = text if match and match[2] else f"{text} {unit}".strip()
        raise InputError(f"{where}: {shown[:40]!r}; a number with a unit of {', '.join(scales)} is needed")
    return float(match[1]) * scale
