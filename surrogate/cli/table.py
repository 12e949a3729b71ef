"""Records as a table that fits the terminal: long texts are cut in the middle, wide tables go on below."""

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import Any

Records = Sequence[dict[str, Any]]
GAP = "  "
NARROWEST = 12
"""No text is cut below this, in characters."""
NARROWEST_KEY = 24
"""Nor the first column, which tells the rows apart."""


def terminal_width() -> int | None:
    """Columns of the terminal that standard output is; None where it is a file or a pipe: nothing is cut there."""
    if sys.stdout.closed or not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def to_table(records: Records, width: int | None = None) -> str:
    """Columns padded to their widest cell, numbers to the right; in ``width`` characters, by default the terminal's.

    Long texts are cut, those of the first column last. Where that is not enough, the columns that do not fit go on in
    a further table below, each behind the first column again.
    """
    if not records:
        return "(no rows)"
    width = terminal_width() if width is None else width
    names = list(dict.fromkeys(key for record in records for key in record))
    texts = [any(isinstance(record.get(name), str) for record in records) for name in names]
    columns = [[name, *(_cell(record.get(name)) for record in records)] for name in names]
    tables = [list(range(len(names)))]
    if width is not None:
        columns, tables = _fitted(columns, texts, width)
    return _joined(columns, texts, tables)


def fitted(text: str, width: int | None = None) -> str:
    """``text`` with the tables in it laid out anew as `to_table` does; as it is where it fits, or in a pipe.

    For objects that print themselves. Lines with gaps of two blanks make a table; other long lines are wrapped.
    """
    width = terminal_width() if width is None else width
    lines = text.split("\n")
    if width is None or max(map(len, lines)) <= width:
        return text
    blocks: list[str] = []
    for tabular, group in groupby(lines, lambda line: re.search(r"\S {2,}\S", line) is not None):
        block = list(group)
        if tabular and max(map(len, block)) > width:
            blocks.append(_refitted(block, width))
        else:
            blocks += [textwrap.fill(line, width, subsequent_indent=GAP) if line else line for line in block]
    return "\n".join(blocks)


def _refitted(lines: list[str], width: int) -> str:
    """A printed table in ``width`` characters; its columns are parted by two blanks or more in every line."""
    longest = max(map(len, lines))
    rows = [line.ljust(longest) for line in lines]
    filled = "".join(" " if all(row[i] == " " for row in rows) else "x" for i in range(longest))
    spans = [found.span() for found in re.finditer(r"x(?: ?x)*", filled)]
    raw = [[row[start:end] for row in rows] for start, end in spans]
    texts = [not any(cell.startswith(" ") and cell.strip() for cell in column) for column in raw]
    columns, tables = _fitted([[cell.strip() for cell in column] for column in raw], texts, width)
    return _joined(columns, texts, tables)


def _width(column: list[str]) -> int:
    return max(map(len, column))


def _fitted(
    columns: list[list[str]], texts: list[bool], width: int
) -> tuple[list[list[str]], list[list[int]]]:
    """The columns with cut texts, and the places of the columns of each table."""
    widths = [_width(column) for column in columns]
    key, *others = (place for place, text in enumerate(texts) if text or place == 0)
    _shrink(widths, others, NARROWEST, width)
    _shrink(widths, [key], NARROWEST_KEY, width)
    if _total(widths) > width:  # it takes several tables, so texts may have more room
        widths = [
            min(_width(column), max(width // 3, NARROWEST)) if text else _width(column)
            for column, text in zip(columns, texts, strict=True)
        ]
    cut = [
        [_short(cell, wide) for cell in column] if text else column
        for column, wide, text in zip(columns, widths, texts, strict=True)
    ]
    return cut, _split(list(map(_width, cut)), width)


def _total(widths: list[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _shrink(widths: list[int], places: list[int], least: int, width: int) -> None:
    """Take from the widest of ``places`` until the line fits or all of them are down at ``least``."""
    over = _total(widths) - width
    while over > 0 and any(widths[place] > least for place in places):
        widest = max(places, key=widths.__getitem__)
        widths[widest] -= 1
        over -= 1


def _short(text: str, width: int) -> str:
    """``text`` with its middle left out; the beginning gets two thirds."""
    if len(text) <= width:
        return text
    end = (width - 1) // 3
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def _split(widths: list[int], width: int) -> list[list[int]]:
    """The columns of each table: as many as fit behind the first one, at least one."""
    tables: list[list[int]] = [[0]]
    used = widths[0]
    for i in range(1, len(widths)):
        if used + len(GAP) + widths[i] > width and len(tables[-1]) > 1:
            tables.append([0])
            used = widths[0]
        tables[-1].append(i)
        used += len(GAP) + widths[i]
    return tables


def _joined(columns: list[list[str]], texts: list[bool], tables: list[list[int]]) -> str:
    return "\n\n".join(_lines([columns[i] for i in table], [texts[i] for i in table]) for table in tables)


def _lines(columns: list[list[str]], texts: list[bool]) -> str:
    widths = [_width(column) for column in columns]
    return "\n".join(
        GAP.join(
            cell.ljust(wide) if text else cell.rjust(wide)
            for cell, wide, text in zip(row, widths, texts, strict=True)
        ).rstrip()
        for row in zip(*columns, strict=True)
    )


def _cell(value: Any) -> str:
    """A value for people: four significant digits, no exponent before a thousand million."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(_cell(v) for v in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(v)}" for key, v in value.items())
    return str(value).replace("\n", " ")
