"""SEER's ``Other-ops-*`` workbooks: pooling, 1×1 convolution, layout transform and convolution gradients in
TensorFlow.

Columns after the first (an operator number, dropped): batch, C, W, K, out W, filter, stride, padding (both
sides together), forward time, input gradient or pool gradient, filter gradient, their sum, and the two
ratios. Times in ms.
"""

import re
from pathlib import Path
from typing import Any

from surrogate.features.errors import InputError, nearest
from surrogate.formats.workbook import Sheet

OPERATORS = {"maxpool": 10, "avgpool": 10, "conv_1x1": 9, "data_layout": 10, "layout": 9, "conv_grad": 14}
"""Operator → columns needed after the first one is dropped."""
_SIZES = ("n", "c", "w", "k", "out_w", "r", "stride", "pad_total")


def is_other_ops(path: Path) -> bool:
    """True for a workbook named ``Other-ops-…``."""
    return path.stem.lower().startswith("other-ops")


def other_ops_rows(path: Path, sheets: tuple[Sheet, ...]) -> list[dict[str, Any]]:
    """One row per measurement: ``operator``, sizes, ``time_us``, and for gradients their times and ratios.

    ``Other-ops-data_layout`` has no column to drop: the original writes it with the ten columns of a variant.
    """
    operator = re.sub(r"^other-ops-?", "", path.stem, flags=re.IGNORECASE).lower()
    if operator not in OPERATORS:
        raise InputError(
            f"{path}: operator {operator!r} is unknown; known:"
            f" {', '.join(OPERATORS)}{nearest(operator, OPERATORS)}"
        )
    dropped = 0 if operator == "data_layout" else 1
    needed = OPERATORS[operator] + dropped
    rows: list[dict[str, Any]] = []
    for sheet in sheets:
        if sheet.rows and sheet.width < needed:
            raise InputError(
                f"{path}, sheet {sheet.name!r}: {sheet.width} columns; {operator} needs {needed}"
            )
        for where, cells in sheet.numbers(needed):
            rows.append(_row(operator, cells[dropped:], where))
    if not rows:
        raise InputError(f"{path}: no rows under its header; a row per measurement is needed")
    return rows


def _row(operator: str, cells: list[float], where: str) -> dict[str, Any]:
    for name, cell in zip(_SIZES, cells, strict=False):
        if cell != int(cell) or cell < 0:
            raise InputError(f"{where}: {name} is {cell:g}; a whole number of at least 0 is needed")
    time_ms = cells[9] if operator == "data_layout" else cells[8]
    if time_ms <= 0:
        raise InputError(f"{where}: time {time_ms:g} ms; it must be above 0")
    row: dict[str, Any] = {
        "operator": operator,
        **{name: int(cell) for name, cell in zip(_SIZES, cells, strict=False)},
        "time_us": time_ms * 1000,
    }
    if operator in ("maxpool", "avgpool"):
        row["gradient_us"] = cells[9] * 1000
    if operator == "conv_grad":
        row |= {
            "input_gradient_us": cells[9] * 1000,
            "filter_gradient_us": cells[10] * 1000,
            "input_gradient_ratio": cells[12],
            "filter_gradient_ratio": cells[13],
        }
    return row
