"""Small tables for ``repr`` and notebooks, and sizes in bytes as people write them."""

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from features.errors import InputError

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


def mib(count: float) -> str:
    """Bytes in MiB, as in ``12.3 MiB``; nothing is ``0``."""
    if not count:
        return "0"
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 / 20 else f"{count / 2**20:.2g} MiB"


def microseconds(time_us: float) -> str:
    """Four significant digits."""
    return f"{time_us:.4g}" if time_us < 1e4 else f"{time_us:.0f}"


def text_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Header and rows, columns padded to their widest cell; numbers and texts of numbers to the right."""
    if not records:
        return ""
    columns = list(records[0])
    rows = [[str(record[column]) for column in columns] for record in records]
    right = [all(re.match(r"[\d.–-]", row[i]) for row in rows) for i in range(len(columns))]
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
    columns = list(records[0]) if records else []
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(record[column]))}</td>" for column in columns) + "</tr>"
        for record in records
    )
    below = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    return (
        f"<table><caption>{html.escape(title)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>{below}"
    )
