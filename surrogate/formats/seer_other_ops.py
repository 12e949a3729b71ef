"""SEER's ``Other-ops-*`` workbooks: pooling, 1×1 convolution, layout transform, convolution gradients in TensorFlow.

Columns after the first (an operator number, dropped): batch, C, W, K, out W, filter, stride, padding (both
sides together), forward time, input gradient or pool gradient, filter gradient, their sum, and the two
ratios. Times in ms.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from surrogate.features.conv import Conv
from surrogate.features.errors import InputError, require_known
from surrogate.features.operators import OPERATORS
from surrogate.features.shape import output_size
from surrogate.formats.imported import conv_sizes
from surrogate.formats.workbook import Sheet

COLUMNS = {"maxpool": 10, "avgpool": 10, "conv_1x1": 9, "data_layout": 10, "layout": 9, "conv_grad": 14}
"""Operator of a workbook → columns needed after the first one is dropped."""
_SIZES = ("n", "c", "w", "k", "out_w", "r", "stride", "pad_total")
_TIME = len(_SIZES)


def is_other_ops(path: Path) -> bool:
    """True for a workbook named ``Other-ops-…``."""
    return path.stem.lower().startswith("other-ops")


def other_ops_rows(path: Path, sheets: tuple[Sheet, ...]) -> list[dict[str, Any]]:
    """What `family_rows` takes: a row per timed pass of each measurement.

    ``Other-ops-data_layout`` has no column to drop: the original writes it with the ten columns of a variant. Raises
    `InputError` naming sheet and row.
    """
    name = re.sub(r"^other-ops-?", "", path.stem, flags=re.IGNORECASE).lower()
    require_known(f"{path}: operator", name, COLUMNS)
    dropped = 0 if name == "data_layout" else 1
    needed = COLUMNS[name] + dropped
    rows: list[dict[str, Any]] = []
    for sheet in sheets:
        if sheet.rows and sheet.width < needed:
            raise InputError(f"{path}, sheet {sheet.name!r}: {sheet.width} columns; {name} needs {needed}")
        for where, cells in sheet.numbers(needed):
            try:
                rows += _passes(name, cells[dropped:])
            except InputError as error:
                raise InputError(f"{where}: {error}") from None
    if not rows:
        raise InputError(f"{path}: no rows under its header; a row per measurement is needed")
    return rows


def _passes(name: str, cells: list[float]) -> Iterator[dict[str, Any]]:
    """Each pass of one measurement whose time is above 0; the forward pass must be."""
    n, c, w, k, _, r, stride, pad_total = cells[:_TIME]
    if name in ("maxpool", "avgpool"):
        kind = name.replace("pool", "_pool")
        window = {"window": r, "stride": stride, "pad": _pad(w, r, stride, pad_total)}
        pool = OPERATORS[kind](n=n, c=c, h=w, w=w, **window).sizes  # type: ignore[arg-type]  # the class checks
        passes = [{"operator": f"{kind}{ending}", **pool} for ending in ("", "_backward")]
        times_ms = cells[_TIME : _TIME + 2]
    elif name in ("layout", "data_layout"):
        passes = [{"operator": "layout_transform", "n": n, "c": c, "h": w, "w": w}]
        times_ms = cells[-1:]
    else:
        pad = _pad(w, r, stride, pad_total)
        conv = conv_sizes(Conv(n=n, c=c, h=w, k=k, r=r, pad_h=pad, stride_h=stride))  # type: ignore[arg-type]
        directions = ("fwd", "bwd_data", "bwd_filter") if name == "conv_grad" else ("fwd",)
        passes = [{"operator": "conv", "direction": direction, **conv} for direction in directions]
        times_ms = cells[_TIME : _TIME + len(passes)]
    if times_ms[0] <= 0:
        raise InputError(f"time {times_ms[0]:g} ms; it must be above 0")
    for row, time_ms in zip(passes, times_ms, strict=True):
        if time_ms > 0:
            yield {**row, "time_us": time_ms * 1000}


def _pad(width: float, window: float, stride: float, total: float) -> float:
    """Padding of a side that gives the output width which ``total``, the padding of both sides, gives.

    TensorFlow pads an odd total by one more on the right; symmetric padding reaches that width by the larger half or
    the smaller one, but not where the window is even and the stride 1: `InputError`.
    """
    if stride < 1:
        raise InputError(f"stride {stride:g}; at least 1 is needed")
    out = (width + total - window) // stride + 1
    for pad in (-(-total // 2), total // 2):
        if output_size(width, window, pad, stride, 1) == out:
            return pad
    raise InputError(f"padding {total:g} in all; no equal padding of both sides gives the width {out:g}")
