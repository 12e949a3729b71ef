"""Result tables of analyses, and short names of kernels.

Short names are only for display. Code that matches, counts or simulates uses the full names.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from surrogate.collect.device import demangled
from surrogate.features.kernels import word_rank
from surrogate.report.tables import Table, TableResult, format_value, shortened

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
MAX_OPEN_ROWS = 15
"""Rows of a long table that a page shows without a click."""
MAX_NAME_LENGTH = 60
"""Maximum characters of a short name."""
_HEAD_LENGTH = 40
"""Characters that a long name without arguments keeps at its start."""
_MAX_WORDS = 300
_GENERIC = re.compile(r"elementwise|^reduce_kernel|multi_tensor_apply")
"""Kernels that run another function, which their short names must show."""
_ANY_KERNEL = re.compile(r"(?:device_)?kernel\d?", re.I)
_IGNORED = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\{anonymous\})(?:::)?|^void | \[clone .*")
_GROUP = re.compile(r"\([^()<]*\)|<[^<>()]*>")
_WORD = re.compile(r"[A-Za-z_]\w*(?!\w*::)|\b\d\w*")
_PIECE = re.compile(r"_*[A-Z]*[a-z0-9]+|_*[A-Z]+|_+|[^\W_]")
"""A piece of a name without arguments: ``_MT256x16x64``, ``_Paged``, ``Kv``."""


@dataclass(frozen=True, slots=True, repr=False)
class ResultTable(TableResult):
    """A table that an analysis returns. It prints as text, and converts to dicts, a DataFrame and HTML.

    Attributes
    ----------
    title : str
        The table's title.
    rows : tuple of dict
        Rows with the same keys. The key of a quantity ends with its unit; an unknown value is None.
    notes : tuple of str
        Notes below the table.
    short : mapping of str to str
        Short forms of long texts, such as kernel names, for display.
    """

    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    short: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def table(self, maximum: int | None = None) -> Table:
        """Return the table for display; with ``maximum`` for a page: only its first rows, most of them folded."""
        note = f"first {maximum} of {len(self):,}" if maximum is not None and len(self) > maximum else ""
        formats = {key: self._formatted for row in self.rows[:1] for key in row}
        folds = {"note": note, "open_rows": maximum and MAX_OPEN_ROWS}
        return Table(self.rows[:maximum], formats, self.title, notes=self.notes, empty="None in this trace.", **folds)

    def to_dict(self) -> dict[str, object]:
        """Return title, rows and notes as plain JSON values."""
        return {"title": self.title, "rows": list(self.rows), "notes": list(self.notes)}

    def to_frame(self) -> "pd.DataFrame":
        """Return the rows as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(list(self.rows))

    def top(self, count: int | None) -> "ResultTable":
        """Return a table of the first ``count`` rows, or of all rows if it is None."""
        return replace(self, rows=self.rows[:count])

    def _formatted(self, value: object) -> str:
        """Return numbers from 1,000 as integers with separators, short names, and all else as in `format_value`.

        Below 0.001, a number is a bound.
        """
        text = format_value(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            if 1e3 <= abs(value) < 1e15:
                text = f"{value:,.0f}"
            elif 0 < abs(value) < 1e-3:
                text = "<0.001" if value > 0 else ">-0.001"
        return text.replace(name := text.lstrip(), self.short.get(name, name))


def deduplicated(remarks: Iterable[tuple[str, str]]) -> list[str]:
    """Return one line per distinct text of (name, text) pairs, with all names of the text in front."""
    names_by_text: dict[str, list[str]] = {}
    for name, text in remarks:
        names_by_text.setdefault(text, []).append(name)
    return [f"{', '.join(names)}: {text}" for text, names in names_by_text.items()]


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return full name → short name of at most `MAX_NAME_LENGTH` characters; distinct names stay distinct.

    A short name is the function without result, namespaces, arguments and template arguments. If a kernel only runs
    another function (elementwise, reductions, CUTLASS), the short name has this function, too. If several names would
    get the same short name, each keeps the words that distinguish it: functions first, then types, then the rest. A
    name that is still too long loses its middle. If nothing else distinguishes two names, one gets a number.
    """
    words: dict[str, list[str]] = {}
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        base, all_words = _split(_IGNORED.sub("", demangled(name)))
        words[name] = all_words[:_MAX_WORDS]
        groups.setdefault(base, []).append(name)
    distinct_words: dict[str, list[str]] = {}
    for group in groups.values():
        distinct_words |= _distinct_words(group, words)
    short: dict[str, str] = {}
    taken: set[str] = set()
    for (function, inner), group in groups.items():
        for name in dict.fromkeys(group):
            label = shortened(_joined(function, inner, distinct_words[name], words[name]), MAX_NAME_LENGTH)
            numbered = (f"{shortened(label, MAX_NAME_LENGTH - 6)} #{number}" for number in count(2))
            short[name] = label if label not in taken else next(text for text in numbered if text not in taken)
            taken.add(short[name])
    return {name: short[name] for name in words}


def _split(text: str) -> tuple[tuple[str, str], list[str]]:
    """Return a function and the function that it runs ("…" for a shortened name), and its other words by rank."""
    path = text
    arguments = list[str]()
    removed = 1
    while removed:
        path, removed = _GROUP.subn("", path)
    path = text if path == text else path.rpartition(" ")[2] or text  # only a function has a result type in front
    function = path.rpartition("::")[2] or path
    inner = ""
    if path != text:
        arguments = _WORD.findall(text.partition(function)[2])
    elif start := re.match(r"_ZN?(?=\d)", text):  # truncated, or newer than the demangler
        end = start.end()
        while length := re.match(r"\d+", text[end:]):
            function = text[end + length.end() :][: int(length[0])]
            end = end + length.end() + int(length[0])
        arguments = re.findall(r"(?<=L[a-z])\d+(?=E)", text[end:])
    if _ANY_KERNEL.fullmatch(function) and arguments:
        function = arguments[0] if not word_rank(arguments[0]) else "::".join(path.split("::")[-2:])
    elif _GENERIC.search(function):
        inner = next((word for word in arguments if not word_rank(word)), "")
    arguments.sort(key=word_rank)
    if len(function) <= MAX_NAME_LENGTH:
        return (function, inner), arguments
    head = function.rfind("_", 0, _HEAD_LENGTH) if "_" in function[1:_HEAD_LENGTH] else _HEAD_LENGTH
    return (function[:head], "…"), [*_PIECE.findall(function[head:]), *(f"_{word}" for word in arguments)]


def _distinct_words(group: Sequence[str], words: dict[str, list[str]], index: int = 0) -> dict[str, list[str]]:
    """Return for each name the words from ``index`` on that differ between names with the same words before them."""
    names_by_word: dict[str, list[str]] = {}
    for name in group:
        names_by_word.setdefault(words[name][index] if index < len(words[name]) else "", []).append(name)
    distinct: dict[str, list[str]] = {}
    for word, names in names_by_word.items():
        later = _distinct_words(names, words, index + 1) if word and len(names) > 1 else {name: [] for name in names}
        own = [word] if word and len(names_by_word) > 1 else []
        distinct |= {name: [*own, *rest] for name, rest in later.items()}
    return distinct


def _joined(function: str, inner: str, distinct: Sequence[str], words: Sequence[str]) -> str:
    """Return the short name of a function, the function that it runs, and its distinct words."""
    if inner != "…":
        arguments = list(dict.fromkeys([inner, *distinct] if inner else distinct))
        return f"{function}<{', '.join(arguments)}>" if arguments else function
    tail = "".join(distinct).removeprefix("_")
    head = function + "".join(words[: words.index(distinct[0])] if distinct else words)
    if distinct and len(head) + len(tail) < MAX_NAME_LENGTH:
        return f"{head}_{tail}"
    return f"{head[: MAX_NAME_LENGTH - 1 - len(tail)]}…{tail}"
