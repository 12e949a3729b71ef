"""Small tables for ``repr`` and notebooks, and sizes in bytes as people write them."""

import html
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from surrogate.features.errors import InputError

if TYPE_CHECKING:
    from surrogate.features.conv import Conv

UNITS = {
    "": 1, "b": 1, "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "ki": 2**10, "kib": 2**10, "mi": 2**20, "mib": 2**20, "gi": 2**30, "gib": 2**30, "ti": 2**40, "tib": 2**40,
}  # fmt: skip
"""Unit in lower case → bytes: decimal ones as SI has them, binary ones with an i."""


def parse_bytes(text: str) -> int:
    """Bytes from ``64MiB``, ``1GB``, ``1.5 GiB`` or ``1048576``. Raises `InputError` for anything else."""
    found = re.fullmatch(r"\s*(\d{1,20}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*", text)
    if not found or found[2].lower() not in UNITS:
        raise InputError(
            f"size {text!r} is not readable; write bytes, or a unit, as in 1048576, 64MiB or 1GB"
        )
    whole, _, part = found[1].partition(".")
    factor = UNITS[found[2].lower()]
    return int(whole) * factor + (int(part) * factor // 10 ** len(part) if part else 0)


def binary_size(count: float) -> str:
    """Bytes in MiB, as in ``12.3 MiB``, below 0.05 MiB in KiB; nothing is ``0``."""
    if not count:
        return "0"
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 / 20 else f"{count / 2**10:.1f} KiB"


def microseconds(time_us: float) -> str:
    """Four significant digits."""
    return f"{time_us:.4g}" if time_us < 1e4 else f"{time_us:.0f}"


def interval_us(lower_us: float, upper_us: float) -> str:
    """Both ends to three significant digits, as in ``257–402``; a dash for an interval of no width."""
    if lower_us == upper_us:
        return "–"
    return "–".join(f"{float(f'{end:.3g}'):.12g}" for end in (lower_us, upper_us))


def right_columns(rows: Sequence[Sequence[str]]) -> list[bool]:
    """Of every column, whether it stands to the right: it holds numbers, or texts of numbers."""
    return [all(re.match(r"[\d.–-]", cell) for cell in column) for column in zip(*rows, strict=True)]


def setting_line(problem: "Conv") -> str:
    """A problem with everything that is asked about it: sizes, direction, element type, math and layout."""
    p = problem
    return f"{p} {p.direction} {p.dtype} {p.math} {p.layout}"


def text_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Header and rows, columns padded to their widest cell; numbers and texts of numbers to the right."""
    if not records:
        return ""
    columns = list(records[0])
    rows = [[str(record[column]) for column in columns] for record in records]
    right = right_columns(rows)
    widths = [max(len(column), *(len(row[i]) for row in rows)) for i, column in enumerate(columns)]
    lines = [
        "  ".join(
            c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in [columns, *rows]
    ]
    return "\n".join(lines)


def html_table(title: str, records: Sequence[Mapping[str, Any]], notes: Sequence[str] = ()) -> str:
    """The same as a table element with a caption; every text is escaped."""
    rows = [[str(value) for value in record.values()] for record in records]
    sides = ["right" if right else "left" for right in right_columns(rows)]

    def line(tag: str, cells: Sequence[str]) -> str:
        inside = (
            f'<{tag} style="text-align:{side}">{html.escape(cell)}</{tag}>'
            for cell, side in zip(cells, sides, strict=True)
        )
        return f"<tr>{''.join(inside)}</tr>"

    head = line("th", list(records[0])) if records else ""
    body = "".join(line("td", row) for row in rows)
    below = "<br>".join(map(html.escape, notes))
    return (
        f'<table><caption style="text-align:left">{html.escape(title)}</caption><thead>{head}</thead>'
        f"<tbody>{body}</tbody></table>" + (f"<p>{below}</p>" if notes else "")
    )
