"""Write tables as aligned text for a terminal or a pipe, as CSV, as JSON and as HTML.

A table is a list of records, column name → value. The values stay numbers. A formatter per column (by default
`format_value`) turns them into text. Numbers are aligned to the right. This module imports the standard library only,
because fast commands print tables.
"""

import csv
import io
import json
import math
import re
import shutil
import sys
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import cache
from html import escape
from itertools import repeat
from numbers import Integral, Number, Real
from typing import TYPE_CHECKING, Any, NamedTuple

from surrogate.features import as_parameters, printable

if TYPE_CHECKING:
    from jinja2 import Template

UNKNOWN = "–"
GAP = "  "
MIN_TEXT_WIDTH = 12
"""Minimum width of a shortened text column, in characters."""
MIN_KEY_WIDTH = 24
"""Minimum width of the first column, which identifies the rows."""
KEY_WIDTH = 36
"""Width of the first column, in characters. The first column is shortened to it before any other column."""
MAX_NAME = 80
"""Maximum characters of a row's name on a page (three lines)."""
MAX_UNBROKEN = 40
"""A column on a page is broken into lines if a text is longer."""
MAX_CELL = 1000
"""Maximum characters of a cell. A file may hold a name of megabytes; JSON and CSV have it whole."""
KEPT = "\n\xa0"
"""Characters of texts on a page that are kept although they are not printable: line ends and hard spaces."""
_FORMULA = re.compile(r"(?![+-]?[\d.,]+%?$)[=+\-@＝＋－＠]")
"""The beginning of a text that a spreadsheet would evaluate as a formula. A number is none."""

Format = Callable[[Any], str]


def format_value(value: object) -> str:
    """Return any value as text.

    A number has four significant digits, at most eight decimals, and no exponent from 1e-7 to 1e15. A bool is yes or
    no. Lists and mappings are joined by commas.
    """
    if value is None or value != value:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Real) and not isinstance(value, Integral):
        size = abs(float(value))
        if 9999.5 <= size < 1e15:
            return f"{float(value):.0f}"
        is_small = 1e-7 <= size < 1e-4
        return f"{float(value):.8f}".rstrip("0") if is_small else f"{float(value):.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(format_value, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {format_value(item)}" for key, item in value.items())
    return str(value).replace("\n", " ")


def format_number(value: float, digits: int = 4) -> str:
    """Return a number for a sentence: ``digits`` significant digits, thousands separated, never an exponent."""
    if not value or not math.isfinite(value):
        return f"{value:g}"
    text = f"{value:,.{max(digits - 1 - math.floor(math.log10(abs(value))), 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_count(value: float) -> str:
    """Return a count with separated thousands."""
    return f"{value:,.0f}"


def binary_size(count: float) -> str:
    """Return bytes in MiB, as in ``12.3 MiB``; below 0.05 MiB in KiB; no bytes as ``0``."""
    if not count:
        return "0"
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 / 20 else f"{count / 2**10:.1f} KiB"


def interval_us(ends: tuple[float, float], digits: int = 3, between: str = "–") -> str:
    """Return both ends rounded outwards to ``digits`` significant digits, as in ``257–402``.

    A value inside the interval is then inside the printed one. If the interval is narrower than a unit of the last
    digit, the ends have one more digit. An interval without width is a dash.
    """
    lower, upper = ends
    if lower == upper:
        return UNKNOWN
    texts = []
    for end, rounding in ((lower, ROUND_FLOOR), (upper, ROUND_CEILING)):
        if not math.isfinite(end) or not end:
            texts.append(f"{end:g}")
            continue
        last = math.floor(math.log10(abs(end))) - digits + 1
        unit = Decimal(1).scaleb(last - (upper - lower < 10.0**last))
        texts.append(f"{Decimal(repr(float(end))).quantize(unit, rounding).normalize():f}")
    return between.join(texts)


def significant(value: float, to_whole: Callable[[float], int] = round) -> str:
    """Return three significant digits without an exponent. ``to_whole`` rounds: `math.floor` or `ceil` for a bound."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2) if value else 1.0
    return f"{float(f'{to_whole(round(value / unit, 6)) * unit:.3g}'):.12g}"


def ratio(value: float) -> str:
    """Return a ratio, such as a slowdown: three decimals below 10, fewer above."""
    if abs(value) >= 1e6:
        return f"{value:.1e}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}"


def interval_ratio(ends: tuple[float, ...]) -> str:
    """Return an interval of ratios: ``1.008–1.017``."""
    return "–".join(map(ratio, ends))


def percent(fraction: float) -> str:
    """Return a fraction in percent, without the sign: ``0.1234`` → ``12.3``."""
    value = 100 * fraction
    if abs(value) >= 1e6:
        return f"{value:.1e}"
    return f"{value:.2f}" if abs(value) < 1 else f"{value:.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def share(fraction: float) -> str:
    """Return a share of problems in percent. ``100`` means all problems: a smaller share is at most ``99.9``."""
    return f"{100 * fraction:.0f}" if fraction in (0.0, 1.0) else f"{min(100 * fraction, 99.9):.1f}"


def interval_share(ends: tuple[float, float]) -> str:
    """Return an interval of shares in percent: ``88.7–93.1``."""
    return "–".join(map(share, ends))


def change(fraction: float) -> str:
    """Return a relative difference as a signed change in percent: ``-0.072`` → ``−7.2``."""
    percents = 100 * fraction
    return f"{percents:+.1f}".replace("-", "−") if abs(percents) < 1e4 else f"{percents:+.0e}"


def interval_change(ends: tuple[float, float, float]) -> str:
    """Return low end, middle and high end of a relative difference in percent: ``−5.8 [−7.7, −3.9]``."""
    low, middle, high = map(change, ends)
    return f"{middle} [{low}, {high}]"


class Cell(NamedTuple):
    """A value with a smaller second line on a page (``detail``), or marked as the best of its row or column."""

    value: object
    detail: str = ""
    best: bool = False


def _cell(value: object) -> Cell:
    return value if isinstance(value, Cell) else Cell(value)


@dataclass(frozen=True)
class Table:
    """Records with a title, notes and formats.

    Attributes
    ----------
    records
        Column name → value, for each row.
    formats
        Column → formatter of its values. The formatter is not called for None and NaN.
    title, note, notes
        The title, a note in parentheses after it, and notes below the table.
    references
        Number of reference records at the end. A rule separates them from the others.
    empty
        Text of a table without records.
    widest
        Maximum characters of a line if the output is not a terminal. Columns that do not fit are left out, and a note
        names them.
    open_rows
        Number of records that a page shows; the others are folded.
    best_mark
        Mark after the best cells, in text.
    """

    records: Sequence[Mapping[str, object]]
    formats: Mapping[str, Format] = field(default_factory=dict)
    title: str = ""
    note: str = ""
    notes: Sequence[str] = ()
    references: int = 0
    empty: str = "(no rows)"
    widest: int | None = None
    open_rows: int | None = None
    best_mark: str = ""

    @property
    def columns(self) -> list[str]:
        """The keys of all records in the order in which they first occur."""
        return list(dict.fromkeys(key for record in self.records for key in record))

    def text(self, width: int | None = None) -> str:
        """Return title, aligned columns and notes, without a trailing newline.

        With a ``width`` in characters, sentences are wrapped and long texts are shortened in the middle. Columns that
        still do not fit are left out (``widest``), or follow in a further table with the first column repeated.
        """
        is_narrow = bool(width) or (self.widest or 2 * MAX_NAME) < 2 * MAX_NAME
        key = KEY_WIDTH if is_narrow else MAX_NAME
        width = width or self.widest
        title = f"{self.title} ({self.note})" if self.note else self.title
        dropped = self._dropped(width, key) if width and self.widest else []
        notes = list(self.notes)
        if dropped:
            notes.append(f"columns that do not fit: {', '.join(dropped)}; --csv and --json have every column")
        kept = replace(self, records=[{k: v for k, v in row.items() if k not in dropped} for row in self.records])
        notes += [f"{self.best_mark} best of its row"] if self.best_mark else []
        lines = [*([wrapped(printable(title), width)] if title else []), kept._grid(width)]
        return "\n".join([*lines, *(wrapped(printable(note), width) for note in notes)])

    def __html__(self) -> str:
        """Return a heading and a table that scrolls sideways. Every text is escaped."""
        names = self.columns
        texts = [self._texts(name) for name in names]
        sides = [self._side(name, column) for name, column in zip(names, texts, strict=True)]
        rows = [
            list(zip(cells, map(_cell, map(record.get, names)), sides, strict=True))
            for record, cells in zip(self.records, zip(*texts, strict=True), strict=True)
        ]
        split = len(rows) - self.references
        bodies = [("", rows[:split][: self.open_rows]), ("references", rows[split:])]
        closed = rows[self.open_rows : split] if self.open_rows else []
        heads = list(zip(map(_cell_text, names), sides, strict=True))
        given = {"table": self, "heads": heads, "bodies": bodies, "closed": closed, "max_cell": MAX_CELL}
        return template("table.html.j2").render(given, longest=MAX_NAME, shortened=shortened)

    _repr_html_ = __html__

    def _cells(self, column: str) -> list[Cell]:
        return [_cell(record.get(column)) for record in self.records]

    def _texts(self, column: str, best_mark: str = "") -> list[str]:
        form = self.formats.get(column, format_value)
        return [
            UNKNOWN if value is None or value != value else _cell_text(form(value)) + best_mark * best
            for value, _, best in self._cells(column)
        ]

    def _is_left_aligned(self, column: str) -> bool:
        """Return True if a column is aligned to the left: it holds a value other than numbers and intervals."""
        values = (value for value, _, _ in self._cells(column) if value is not None)
        return any(isinstance(value, bool) or not isinstance(value, Number | tuple) for value in values)

    def _dropped(self, width: int, key: int) -> list[str]:
        """Return the last columns that exceed ``width`` with shortened texts. ``key`` limits the first column."""
        remaining = width + len(GAP)
        for i, name in enumerate(self.columns):
            longest = max(map(len, [_cell_text(name), *self._texts(name)]))
            remaining -= len(GAP) + min(longest, 2 * MIN_TEXT_WIDTH if i else key)
            if remaining < 0 and i:
                return self.columns[i:]
        return []

    def _grid(self, width: int | None) -> str:
        if not self.records:
            return self.empty
        columns = [[_cell_text(name), *self._texts(name, self.best_mark)] for name in self.columns]
        left = [self._is_left_aligned(name) for name in self.columns]
        tables = [list(range(len(columns)))]
        if width is not None:
            columns, tables = _fitted(columns, left, width)
        rule = len(self.records) - self.references if 0 < self.references < len(self.records) else None
        return "\n\n".join(_aligned([columns[i] for i in table], [left[i] for i in table], rule) for table in tables)

    def _side(self, column: str, texts: list[str]) -> str:
        """Return the style of a column on a page: "" (right), ``left``, or ``text`` for broken lines."""
        if not self._is_left_aligned(column):
            return ""
        return "text" if max(map(len, texts)) > MAX_UNBROKEN else "left"


class TableResult(ABC):
    """A result that is displayed as a table, as text and in a notebook."""

    __slots__ = ()

    @abstractmethod
    def table(self) -> Table:
        """Return the table that people see."""

    def __repr__(self) -> str:
        return as_parameters(self.table().text())

    def _repr_html_(self) -> str:
        return as_parameters(self.table().__html__())


@dataclass(frozen=True)
class FactTable:
    """Pairs of a name and a text, displayed as two columns."""

    pairs: Sequence[tuple[str, str]]

    def text(self, width: int) -> str:
        """Return one or more lines per pair, in ``width`` characters."""
        names = max((len(name) for name, _ in self.pairs), default=0) + len(GAP)
        indent = " " * names
        texts = [printable(f"{name:{names}}{text}") for name, text in self.pairs]
        return "\n".join(textwrap.fill(text, width, subsequent_indent=indent) for text in texts)

    def __html__(self) -> str:
        items = "\n".join(f"<dt>{html_text(name)}</dt><dd>{html_text(text)}</dd>" for name, text in self.pairs)
        return f'<dl class="facts">\n{items}\n</dl>'


@cache
def template(name: str, package: str = "surrogate.report") -> "Template":
    """Return a template of a package. Every text is printable; a template of HTML also escapes its markup."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    def finalize(value: object) -> object:
        return printable(value, KEPT) if type(value) is str else value  # not of Markup, which is a subclass

    settings = {"autoescape": ".html" in name, "undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    return Environment(loader=PackageLoader(package, ""), finalize=finalize, **settings).get_template(name)


def to_csv(records: Iterable[Mapping[str, object]], columns: Sequence[str] = ()) -> str:
    """Return a header line and one line per record: ``columns`` first, then the others as they first occur.

    None and NaN are empty fields. Nested values are JSON. A text is one line of printable characters, and one that a
    spreadsheet would evaluate gets an apostrophe before it.
    """
    records = list(records)
    names = list(dict.fromkeys([*columns, *(key for record in records for key in record)]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_field, names))
    writer.writerows([_field(record.get(name)) for name in names] for record in records)
    return text.getvalue()


def to_json(value: object) -> str:
    """Return indented JSON. Values of other types are texts."""
    return json.dumps(value, indent=1, default=str).replace("\x7f", "\\u007f")  # the only raw control character


def terminal_width() -> int | None:
    """Return the columns of the terminal, or None if standard output is a file or a pipe."""
    if sys.stdout.closed or not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def wrapped(text: str, width: int | None, indent: str = GAP) -> str:
    """Return the text in lines of ``width`` characters, with continued lines indented; unchanged without a width."""
    if width is None:
        return text
    fill = textwrap.TextWrapper(width, subsequent_indent=indent).fill
    return "\n".join(line if len(line) <= width else fill(line) for line in text.split("\n"))


def shortened(text: str, width: int) -> str:
    """Return ``text`` without its middle. The beginning gets two thirds of ``width`` characters."""
    if len(text) <= width:
        return text
    end = (width - 1) // 3
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def html_text(text: str) -> str:
    """Return ``text`` for HTML, printable and with its markup escaped."""
    return escape(printable(text, KEPT))


def _cell_text(text: str) -> str:
    """Return the text of a cell: one line of at most `MAX_CELL` printable characters."""
    return printable(shortened(text, MAX_CELL))


def _field(value: object) -> object:
    if value is None or value != value:
        return ""
    if isinstance(value, list | dict):
        text = json.dumps(value, ensure_ascii=False)
        return text if text.isprintable() else to_json(value).replace("\n", "")
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if _FORMULA.match(text) else text


def _fitted(columns: list[list[str]], left: list[bool], width: int) -> tuple[list[list[str]], list[list[int]]]:
    """Return the columns with shortened texts that fit ``width``, and the indices of the columns of each table."""
    widths = [max(map(len, column)) for column in columns]
    others = [i for i, is_text in enumerate(left) if is_text and i > 0]
    for indices, minimum in ([0], KEY_WIDTH), (others, MIN_TEXT_WIDTH), ([0], MIN_KEY_WIDTH):
        _shrink(widths, indices, minimum, width)
    if _total(widths) > width:  # several tables are needed, so texts may be longer
        longest = max(width // 3, MIN_TEXT_WIDTH)
        widths = [max(map(len, column)) for column in columns]
        widths = [min(w, longest) if i == 0 or left[i] else w for i, w in enumerate(widths)]
    cut = [[shortened(cell, w) for cell in column] for column, w in zip(columns, widths, strict=True)]
    return cut, _split([max(map(len, column)) for column in cut], width)


def _shrink(widths: list[int], indices: list[int], minimum: int, width: int) -> None:
    """Reduce the widest of ``indices`` until the line fits, or until all of them are at the ``minimum``."""
    excess = _total(widths) - width
    while excess > 0 and any(widths[i] > minimum for i in indices):
        widths[max(indices, key=widths.__getitem__)] -= 1
        excess -= 1


def _total(widths: list[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _split(widths: list[int], width: int) -> list[list[int]]:
    """Return the columns of each table: the first one, and at least one other, as many as fit."""
    tables = [[0]]
    for i in range(1, len(widths)):
        if _total([widths[j] for j in (*tables[-1], i)]) > width and len(tables[-1]) > 1:
            tables.append([0])
        tables[-1].append(i)
    return tables


def _aligned(columns: list[list[str]], left: list[bool], rule: int | None) -> str:
    """Return the lines of a table with a head. A horizontal rule precedes the record with the index ``rule``."""
    widths = [max(map(len, column)) for column in columns]
    pads = [str.ljust if is_text else str.rjust for is_text in left]
    cells = [map(pad, column, repeat(width)) for pad, column, width in zip(pads, columns, widths, strict=True)]
    lines = [GAP.join(row).rstrip() for row in zip(*cells, strict=True)]
    if rule is not None:
        lines.insert(1 + rule, "-" * _total(widths))
    return "\n".join(lines)
