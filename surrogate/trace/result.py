"""The result every analysis returns: titled rows that print as a table and convert to dicts, frames and HTML; and names
of kernels as people read them. What matches, counts or simulates takes the full names.
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
"""Rows of a long table on a page that are not folded away."""
MAX_NAME_LENGTH = 60
"""Characters of a short name."""
_HEAD = 40
"""Characters of a plain name that stay, whatever of its end must be told."""
_MAX_WORDS = 300
_CARRIER = re.compile(r"elementwise|^reduce_kernel|multi_tensor_apply")
"""Kernels that say nothing without the function they run."""
_ANY_KERNEL = re.compile(r"(?:device_)?kernel\d?", re.I)
_NOWHERE = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\{anonymous\})(?:::)?|^void | \[clone .*")
_GROUP = re.compile(r"\([^()<]*\)|<[^<>()]*>")
_WORD = re.compile(r"[A-Za-z_]\w*(?!\w*::)|\b\d\w*")
_PIECE = re.compile(r"_*[A-Z]*[a-z0-9]+|_*[A-Z]+|_+|[^\W_]")
"""Of a plain name: ``_MT256x16x64``, ``_Paged``, ``Kv``."""


@dataclass(frozen=True, slots=True, repr=False)
class ResultTable(TableResult):
    """A table: ``rows`` share their keys, every key that is a quantity ends in its unit; None where unknown.

    ``short`` holds what people read in the place of a long text, such as the name of a kernel.
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
        """The table to print; for a page, of more than ``maximum`` rows the first ones, many of them folded away."""
        more = f"first {maximum} of {len(self):,}" if maximum is not None and len(self) > maximum else ""
        formats = {key: self._shown for row in self.rows[:1] for key in row}
        folds = {"note": more, "open_rows": maximum and MAX_OPEN_ROWS}
        return Table(self.rows[:maximum], formats, self.title, notes=self.notes, empty="None in this trace.", **folds)

    def to_dict(self) -> dict[str, object]:
        """Title, rows and notes as plain JSON values."""
        return {"title": self.title, "rows": list(self.rows), "notes": list(self.notes)}

    def to_frame(self) -> "pd.DataFrame":
        """The rows as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(list(self.rows))

    def top(self, count: int | None) -> "ResultTable":
        """The first ``count`` rows, all where it is None."""
        return replace(self, rows=self.rows[:count])

    def _shown(self, value: object) -> str:
        """Whole numbers from 1,000 with thousands separated, short names; the rest as `format_value` has it."""
        text = format_value(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and 1e3 <= abs(value) < 1e15:
            text = f"{value:,.0f}"
        return text.replace(name := text.lstrip(), self.short.get(name, name))


def deduplicated(remarks: Iterable[tuple[str, str]]) -> list[str]:
    """(whom it is of, text) → a line for each text: all whom it is of, and the text."""
    names: dict[str, list[str]] = {}
    for name, text in remarks:
        names.setdefault(text, []).append(name)
    return [f"{', '.join(of)}: {text}" for text, of in names.items()]


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Full name → short one of at most `MAX_NAME_LENGTH` characters, distinct for distinct names.

    The function alone, without its result, namespaces, arguments and template arguments; where a kernel only runs
    another function (elementwise, reductions, CUTLASS) that one, too. Of names that would become the same each keeps
    the words that tell it from the others: functions first, then types, then the rest. What is still too long loses
    its middle, and a number tells apart what nothing else does.
    """
    words: dict[str, list[str]] = {}
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        base, every = _split(_NOWHERE.sub("", demangled(name)))
        words[name] = every[:_MAX_WORDS]
        groups.setdefault(base, []).append(name)
    parting_words = {name: parted for group in groups.values() for name, parted in _parting(group, words).items()}
    short: dict[str, str] = {}
    taken: set[str] = set()
    for (function, lead), group in groups.items():
        for name in dict.fromkeys(group):
            label = shortened(_joined(function, lead, parting_words[name], words[name]), MAX_NAME_LENGTH)
            numbered = (f"{shortened(label, MAX_NAME_LENGTH - 6)} #{number}" for number in count(2))
            short[name] = label if label not in taken else next(text for text in numbered if text not in taken)
            taken.add(short[name])
    return {name: short[name] for name in words}


def _split(text: str) -> tuple[tuple[str, str], list[str]]:
    """A function and what it runs ("…": a part of a long name), and all other words, the most telling first."""
    path = text
    inside = list[str]()
    removed = 1
    while removed:
        path, removed = _GROUP.subn("", path)
    path = path.rpartition(" ")[2] or text
    function = path.rpartition("::")[2] or path
    lead = ""
    if path != text:
        inside = _WORD.findall(text.partition(function)[2])
    elif start := re.match(r"_ZN?(?=\d)", text):  # cut short, or newer than what demangles
        at = start.end()
        while length := re.match(r"\d+", text[at:]):
            function = text[at + length.end() :][: int(length[0])]
            at = at + length.end() + int(length[0])
        inside = re.findall(r"(?<=L[a-z])\d+(?=E)", text[at:])
    if _ANY_KERNEL.fullmatch(function) and inside:
        function = inside[0] if not word_rank(inside[0]) else "::".join(path.split("::")[-2:])
    elif _CARRIER.search(function):
        lead = next((word for word in inside if not word_rank(word)), "")
    inside.sort(key=word_rank)
    if len(function) <= MAX_NAME_LENGTH:
        return (function, lead), inside
    head = function.rfind("_", 0, _HEAD) if "_" in function[1:_HEAD] else _HEAD
    return (function[:head], "…"), [*_PIECE.findall(function[head:]), *(f"_{word}" for word in inside)]


def _parting(group: Sequence[str], words: dict[str, list[str]], at: int = 0) -> dict[str, list[str]]:
    """Of the words of each name those at which it parts from others of the group that agree with it up to there."""
    parts: dict[str, list[str]] = {}
    for name in group:
        parts.setdefault(words[name][at] if at < len(words[name]) else "", []).append(name)
    parting_words = {}
    for word, names in parts.items():
        below = _parting(names, words, at + 1) if word and len(names) > 1 else {name: [] for name in names}
        parting_words |= {name: [*([word] if word and len(parts) > 1 else []), *rest] for name, rest in below.items()}
    return parting_words


def _joined(function: str, lead: str, parting_words: Sequence[str], words: Sequence[str]) -> str:
    if lead != "…":
        inside = list(dict.fromkeys([lead, *parting_words] if lead else parting_words))
        return f"{function}<{', '.join(inside)}>" if inside else function
    tail = "".join(parting_words).removeprefix("_")
    whole = function + "".join(words[: words.index(parting_words[0])] if parting_words else words)
    if parting_words and len(whole) + len(tail) < MAX_NAME_LENGTH:
        return f"{whole}_{tail}"
    return f"{whole[: MAX_NAME_LENGTH - 1 - len(tail)]}…{tail}"
