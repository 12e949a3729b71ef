"""SEER's algorithm-pick workbook (and Test-set-II's): the times of all eight algorithms of each problem."""

from typing import Any

from surrogate.features.errors import InputError
from surrogate.formats.seer_numbering import check_possible, square_conv
from surrogate.formats.workbook import Sheet

_PROBLEM = 8
_ALGORITHMS = 8


def is_pick(sheets: tuple[Sheet, ...]) -> bool:
    """True where the workbook has the one sheet ``test`` with a time per algorithm: 16 columns, or 18 with
    the picks.
    """
    if len(sheets) != 1 or sheets[0].name.lower() != "test":
        return False
    header = sheets[0].header
    named = len(header) > _PROBLEM and "algo0" in header[_PROBLEM].lower().replace(" ", "").replace("_", "")
    return named or sheets[0].width == _PROBLEM + _ALGORITHMS


def pick_rows(sheet: Sheet, names: tuple[str, ...]) -> tuple[list[dict[str, Any]], int]:
    """One row per (problem, algorithm), and how many problems have a "measured best" that is not their least
    time.

    A time ≤ 0 is a failed algorithm. Column 18 is cuDNN's pick (−1: none). Times have a resolution of 0.01
    ms.
    """
    if sheet.width not in (16, 18):
        raise InputError(
            f"{sheet.path}, sheet {sheet.name!r}: {sheet.width} columns; a pick workbook has 16 or 18"
        )
    rows: list[dict[str, Any]] = []
    disagreeing = 0
    for where, cells in sheet.numbers(sheet.width):
        conv = square_conv(cells, where)
        times_ms = cells[_PROBLEM : _PROBLEM + _ALGORITHMS]
        heuristic = None
        if len(cells) > _PROBLEM + _ALGORITHMS:
            best = _code(cells[16], where, 17)
            heuristic = _code(cells[17], where, 18)
            timed = [time for time in times_ms if time > 0]
            disagreeing += bool(timed) and (
                best is None or times_ms[best] > min(timed) or times_ms[best] <= 0
            )
        sizes = {name: getattr(conv, name) for name in conv.__slots__}
        for name, time_ms in zip(names, times_ms, strict=True):
            if time_ms > 0:
                check_possible(conv, name, where)
            rows.append(
                {
                    **sizes,
                    "algorithm": name,
                    "status": "ok" if time_ms > 0 else "failed",
                    "time_us": time_ms * 1000 if time_ms > 0 else float("nan"),
                    "heuristic_algorithm": None if heuristic is None else names[heuristic],
                }
            )
    if not rows:
        raise InputError(f"{sheet.path}: no rows under its header; a row per problem is needed")
    return rows, disagreeing


def _code(cell: float, where: str, column: int) -> int | None:
    if cell != int(cell) or not -1 <= cell < _ALGORITHMS:
        raise InputError(
            f"{where}, column {column}: algorithm {cell:g}; a whole number from −1 (none) to 7 is needed"
        )
    return None if cell < 0 else int(cell)
