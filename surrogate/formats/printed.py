"""Printed tables: their cells, units of time, numbers of another locale, and the columns below a ruler."""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from surrogate.features import InputError

DELIMITERS = "|;\t,"
"""Delimiters of a table, in the order in which they are looked for: a comma may also be a decimal mark."""
_SPACES = " '\u2019\u2009\u00a0\u202f\ufffd"  # the last one is Latin-1's no-break space after decoding
_PRINTED = re.compile(rf"([+-]?)([\d.,{_SPACES}]*\d[.,]?)((?:[eE][+-]?\d+)?\s*[A-Za-zµμ%]*(?:/s)?)", re.ASCII)
_BODY = {
    mark: re.compile(rf"(?:\d+|[1-9]\d{{0,2}}([{other}{_SPACES}])(?:\d{{2,3}}\1)*\d{{3}})?(?:[{mark}]\d*)?", re.ASCII)
    for mark, other in (".,", ",.")
}
_MARK_NAMES = {".": "point", ",": "comma"}
_SCALES_US = {"": 1e6, "m": 1e3, "u": 1.0, "n": 1e-3, "milli": 1e3, "mili": 1e3, "nano": 1e-3}
_SCALES_US |= dict.fromkeys(("µ", "μ", "micro"), 1.0)
TIME_US = {f"{p}{word}": us for word in ("s", "sec", "second", "seconds", "secs") for p, us in _SCALES_US.items()}
"""Unit of time, short or in full, → µs."""


@dataclass(slots=True)
class NumberStyle:
    """The decimal mark of files, by the evidence of all numbers: ``1.234,5``, ``1 234,5`` or ``1'234.5``.

    First `see` gets every number, then `normalised` rewrites each as Python reads it. Without evidence, as in
    ``212,480`` alone, the mark is a point, and a note says so.
    """

    file: str
    evidence: dict[str, str] = field(default_factory=dict)
    """Decimal mark → the first number that only this mark explains."""
    undecided: str = ""
    delimiter: str = ""
    """The delimiter of a table, if it shows that no number has a decimal comma."""

    def see(self, text: str) -> None:
        """Take a number as evidence, with or without a unit. Any other text is ignored."""
        if "," not in text and ("." in self.evidence or "." not in text) and text.count(".") < 2:
            return
        if match := _PRINTED.fullmatch(text.strip()):
            marks = [mark for mark, body in _BODY.items() if body.fullmatch(match[2])]
            if len(marks) == 1:
                self.evidence.setdefault(marks[0], text.strip()[:40])
            elif marks:
                self.undecided = self.undecided or text.strip()[:40]

    def normalised(self, text: str) -> str:
        """Return a number without separators and with a decimal point, and its unit; any other text is unchanged.

        Raises `InputError` if the file's numbers contradict each other.
        """
        mark = next(iter(self.evidence), ".")
        if len(self.evidence) > 1:
            marks = [f"{number!r} has a decimal {_MARK_NAMES[mark]}" for mark, number in self.evidence.items()]
            readings = " and ".join(marks)
            raise InputError(f"{self.file}: {readings}; export it again under LC_ALL=C")
        match = None if text.isalnum() or not text else _PRINTED.fullmatch(text.strip())
        if match is None or not _BODY[mark].fullmatch(match[2]):
            return text
        integer, point, decimals = match[2].partition(mark)
        return match[1] + re.sub(r"\D", "", integer) + "." * bool(point) + decimals + match[3]

    def of_rows(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return all rows of a table with normalised texts."""
        for text in (text for row in rows for text in row.values()):
            self.see(text)
        return [{name: self.normalised(text) for name, text in row.items()} for row in rows]

    @property
    def notes(self) -> list[str]:
        """One sentence if the file does not decide the decimal mark."""
        if self.evidence or not self.undecided or (self.delimiter == "," and "," not in self.undecided):
            return []
        assumed = f"{self.undecided!r} is read with a decimal point and commas between thousands"
        return [f"{self.file}: no number shows the decimal mark; {assumed}; LC_ALL=C makes sure"]


def compiled(patterns: Mapping[str, str]) -> Iterator[re.Pattern[str]]:
    """Return the regular expressions of a table in their order."""
    return map(re.compile, patterns.values())


def delimiter_of(line: str) -> str:
    """Return the delimiter of a table by its header; "" for a line without one."""
    return next((mark for mark in DELIMITERS if mark in line), "")


def cells_of(line: str, delimiter: str = "") -> list[str]:
    """Return the cells of a line of CSV without blanks around them; none if it is not CSV."""
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter or delimiter_of(line) or ","), ())]
    except csv.Error:
        return []


def ruled_columns(line: str) -> list[slice]:
    """Return the columns of an aligned table by its ruler, ``------ ---``; none for any other line."""
    if not re.fullmatch(r"\s*-{2,}(?: +-{2,})+\s*", line):
        return []
    starts = [match.start() for match in re.finditer(r"-+", line)]
    return [slice(*bounds) for bounds in pairwise([*starts, None])]
