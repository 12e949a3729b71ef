"""The one writer of tables: aligned text for a terminal or a pipe, CSV, JSON and HTML.

A table is a list of records, column name → value. The values stay numbers; a formatter per column (`format_value` where there
is none) says how they read, and numbers stand to the right because they are numbers. Only the standard library is
imported here, because commands that must answer at once print tables.
"""

import csv
import io
import json
import math
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

from surrogate.features.errors import as_parameters

if TYPE_CHECKING:
    from jinja2 import Template

UNKNOWN = "–"
GAP = "  "
NARROWEST = 12
"""No column of texts is cut below this, in characters."""
NARROWEST_KEY = 24
"""Nor the first column, which tells the rows apart."""
SHORTENED_KEY = 36
"""The first column is cut to this before anything else is, and further after the others."""
LONGEST_NAME = 80
"""Characters of a row's name on a page: three lines of it."""
LONGEST_WORD = 40
"""A column on a page with a longer text is broken into lines."""

Format = Callable[[Any], str]


def format_value(value: object) -> str:
    """Any value: four significant digits, no exponent from 1e-4 to 1e9; yes or no; lists and mappings joined."""
    if value is None or value != value:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Real) and not isinstance(value, Integral):
        return f"{float(value):.0f}" if 1e4 <= abs(float(value)) < 1e9 else f"{float(value):.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(format_value, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {format_value(item)}" for key, item in value.items())
    return str(value).replace("\n", " ")


def format_count(value: float) -> str:
    """A count, with thousands separated."""
    return f"{value:,.0f}"


def binary_size(count: float) -> str:
    """Bytes in MiB, as in ``12.3 MiB``, below 0.05 MiB in KiB; nothing is ``0``."""
    if not count:
        return "0"
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 / 20 else f"{count / 2**10:.1f} KiB"


def interval_us(ends: tuple[float, float], digits: int = 3, between: str = "–") -> str:
    """Both ends rounded outwards to ``digits`` significant ones, as in ``257–402``, so that what lies inside does so in
    print; to one more where the interval is narrower than a unit of the last. A dash for an interval of no width."""
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
    """Three significant digits without an exponent; ``to_whole`` rounds, which for bounds is `math.floor` or `ceil`."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2) if value else 1.0
    return f"{float(f'{to_whole(round(value / unit, 6)) * unit:.3g}'):.12g}"


def ratio(value: float) -> str:
    """A slowdown or other ratio: three decimals near 1, fewer where they say nothing."""
    if abs(value) >= 1e6:
        return f"{value:.1e}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}"


def interval_ratio(ends: tuple[float, ...]) -> str:
    """An interval of ratios: ``1.008–1.017``."""
    return "–".join(map(ratio, ends))


def percent(fraction: float) -> str:
    """A fraction as percent, without the sign: ``0.1234`` → ``12.3``."""
    value = 100 * fraction
    if abs(value) >= 1e6:
        return f"{value:.1e}"
    return f"{value:.2f}" if abs(value) < 1 else f"{value:.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def share(fraction: float) -> str:
    """A share of problems in percent; never ``100`` for what is not all of them."""
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
    """A value that a page shows with a smaller second line (``detail``) or as the best of its kind."""

    value: object
    detail: str = ""
    best: bool = False


def _cell(value: object) -> Cell:
    return value if isinstance(value, Cell) else Cell(value)


@dataclass(frozen=True)
class Table:
    """Records with what a reader needs around them.

    ``formats``: column → how its values read, never asked about None or NaN. ``note`` stands behind the title in
    parentheses, ``notes`` stand below the table. The last ``references`` records are yardsticks: a rule parts them from
    the others. ``empty`` is printed where there is no record. With ``widest``, the characters of a
    line where output is no terminal, the last columns are left out where a line is too long, which a note says.
    On a page the records behind the first ``open_rows`` are folded away. In text, ``best_mark`` follows the best cells.
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
        """Title, columns padded to their widest cell with numbers to the right, and notes; no trailing newline.

        In ``width`` characters where one is given: sentences are wrapped, long texts cut in the middle, and columns
        that still do not fit left out (``widest``), or go on in a further table below, behind the first column again.
        """
        key = SHORTENED_KEY if width else LONGEST_NAME
        width = width or self.widest
        title = f"{self.title} ({self.note})" if self.note else self.title
        dropped = self._dropped(width, key) if width and self.widest else []
        notes = list(self.notes)
        if dropped:
            notes.append(f"left out for want of room: {', '.join(dropped)}; --csv and --json have every column")
        shown = replace(self, records=[{k: v for k, v in row.items() if k not in dropped} for row in self.records])
        notes += [f"{self.best_mark} best of its row"] if self.best_mark else []
        lines = [*([wrapped(title, width)] if title else []), shown._grid(width)]
        return printable("\n".join([*lines, *(wrapped(note, width) for note in notes)]))

    def __html__(self) -> str:
        """A heading and a table in a container that scrolls sideways on its own; every text is escaped."""
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
        given = {"table": self, "heads": list(zip(names, sides, strict=True)), "bodies": bodies, "closed": closed}
        return template("table.html.j2").render(given, longest=LONGEST_NAME, shortened=shortened)

    def _repr_html_(self) -> str:
        return self.__html__()

    def _cells(self, column: str) -> list[Cell]:
        return [_cell(record.get(column)) for record in self.records]

    def _texts(self, column: str, best_mark: str = "") -> list[str]:
        form = self.formats.get(column, format_value)
        return [
            UNKNOWN if value is None or value != value else form(value) + best_mark * best
            for value, _, best in self._cells(column)
        ]

    def _leftward(self, column: str) -> bool:
        """Whether a column stands to the left: it holds something that is no number, nor an interval of numbers."""
        return any(
            value is not None and (isinstance(value, bool) or not isinstance(value, Number | tuple))
            for value, _, _ in self._cells(column)
        )

    def _dropped(self, width: int, key: int) -> list[str]:
        """The last columns that do not fit ``width`` behind the others with texts cut, the first column to ``key``."""
        room = width + len(GAP)
        for i, name in enumerate(self.columns):
            room -= len(GAP) + min(max(map(len, [name, *self._texts(name)])), 2 * NARROWEST if i else key)
            if room < 0 and i:
                return self.columns[i:]
        return []

    def _grid(self, width: int | None) -> str:
        if not self.records:
            return self.empty
        columns = [[name, *self._texts(name, self.best_mark)] for name in self.columns]
        left = [self._leftward(name) for name in self.columns]
        tables = [list(range(len(columns)))]
        if width is not None:
            columns, tables = _fitted(columns, left, width)
        rule = len(self.records) - self.references if 0 < self.references < len(self.records) else None
        return "\n\n".join(_aligned([columns[i] for i in table], [left[i] for i in table], rule) for table in tables)

    def _side(self, column: str, texts: list[str]) -> str:
        """Of a column's cells on a page: "" to the right, else ``left``, or ``text`` where lines are broken."""
        if not self._leftward(column):
            return ""
        return "text" if max(map(len, texts)) > LONGEST_WORD else "left"


class TableResult(ABC):
    """A result that shows itself as a table, as text and in a notebook."""

    __slots__ = ()

    @abstractmethod
    def table(self) -> Table:
        """What people see."""

    def __repr__(self) -> str:
        return as_parameters(self.table().text())

    def _repr_html_(self) -> str:
        return as_parameters(self.table().__html__())


@dataclass(frozen=True)
class FactTable:
    """Names and what is said of each, as two columns."""

    pairs: Sequence[tuple[str, str]]

    def text(self, width: int) -> str:
        """A line or more for each pair, in ``width`` characters."""
        names = max((len(name) for name, _ in self.pairs), default=0) + len(GAP)
        indent = " " * names
        lines = [textwrap.fill(f"{name:{names}}{text}", width, subsequent_indent=indent) for name, text in self.pairs]
        return printable("\n".join(lines))

    def __html__(self) -> str:
        items = "\n".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in self.pairs)
        return f'<dl class="facts">\n{items}\n</dl>'


@cache
def template(name: str, package: str = "surrogate.report") -> "Template":
    """A template of a package; every text that fills one of HTML is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    settings = {"autoescape": ".html" in name, "undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    return Environment(loader=PackageLoader(package, ""), **settings).get_template(name)


def to_csv(records: Iterable[Mapping[str, object]], columns: Sequence[str] = ()) -> str:
    """A header line and a line per record: ``columns`` first, then the others as they first occur.

    None and NaN are empty fields; nested values stand as JSON.
    """
    records = list(records)
    names = list(dict.fromkeys([*columns, *(key for record in records for key in record)]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_field(record.get(name)) for name in names] for record in records)
    return text.getvalue()


def to_json(value: object) -> str:
    """Indented JSON; what JSON does not know stands as text."""
    return json.dumps(value, indent=1, default=str)


def terminal_width() -> int | None:
    """Columns of the terminal that standard output is; None where it is a file or a pipe: nothing is cut there."""
    if sys.stdout.closed or not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def wrapped(text: str, width: int | None, indent: str = GAP) -> str:
    """Sentences in lines of ``width`` characters, those that go on indented; as they are without a width."""
    if width is None:
        return text
    fill = textwrap.TextWrapper(width, subsequent_indent=indent).fill
    return "\n".join(line if len(line) <= width else fill(line) for line in text.split("\n"))


def shortened(text: str, width: int) -> str:
    """``text`` with its middle left out; the beginning gets two thirds of ``width`` characters."""
    if len(text) <= width:
        return text
    end = (width - 1) // 3
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def printable(text: str) -> str:
    """``text`` with a question mark for every character that would steer a terminal; names come from data."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def _field(value: object) -> object:
    if value is None or value != value:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _fitted(columns: list[list[str]], left: list[bool], width: int) -> tuple[list[list[str]], list[list[int]]]:
    """The columns with texts cut so that they fit ``width``, and the indices of the columns of each table."""
    widths = [max(map(len, column)) for column in columns]
    others = [i for i, is_text in enumerate(left) if is_text and i > 0]
    for indices, minimum in ([0], SHORTENED_KEY), (others, NARROWEST), ([0], NARROWEST_KEY):
        _shrink(widths, indices, minimum, width)
    if _total(widths) > width:  # it takes several tables, so texts may be longer
        longest = max(width // 3, NARROWEST)
        widths = [max(map(len, column)) for column in columns]
        widths = [min(w, longest) if i == 0 or left[i] else w for i, w in enumerate(widths)]
    cut = [[shortened(cell, w) for cell in column] for column, w in zip(columns, widths, strict=True)]
    return cut, _split([max(map(len, column)) for column in cut], width)


def _shrink(widths: list[int], indices: list[int], minimum: int, width: int) -> None:
    """Take from the widest of ``indices`` until the line fits or all of them are down at ``minimum``."""
    over = _total(widths) - width
    while over > 0 and any(widths[i] > minimum for i in indices):
        widths[max(indices, key=widths.__getitem__)] -= 1
        over -= 1


def _total(widths: list[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _split(widths: list[int], width: int) -> list[list[int]]:
    """The columns of each table: as many as fit behind the first one, at least one."""
    tables = [[0]]
    for i in range(1, len(widths)):
        if _total([widths[j] for j in (*tables[-1], i)]) > width and len(tables[-1]) > 1:
            tables.append([0])
        tables[-1].append(i)
    return tables


def _aligned(columns: list[list[str]], left: list[bool], rule: int | None) -> str:
    """The lines of a table with a head; a rule stands before the record with the index ``rule``."""
    widths = [max(map(len, column)) for column in columns]
    cells = [
        map(str.ljust if is_text else str.rjust, column, repeat(width))
        for column, width, is_text in zip(columns, widths, left, strict=True)
    ]
    lines = [GAP.join(row).rstrip() for row in zip(*cells, strict=True)]
    if rule is not None:
        lines.insert(1 + rule, "-" * _total(widths))
    return "\n".join(lines)
