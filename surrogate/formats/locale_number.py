"""Numbers printed with some locale's thousands separator and decimal mark: ``4,963.19``, ``4.963,19``, ``4
963,19``.
"""

import re
from collections.abc import Iterable

from surrogate.features.errors import InputError

_SPACES = re.compile(r"[\s\u00a0\u202f'’]")
_SHAPE = re.compile(r"[+-]?\d[\d.,]*(?:[eE][+-]?\d+)?", re.ASCII)


def decimal_mark(texts: Iterable[str], name: str) -> str:
    """The decimal mark (``.`` or ``,``) that all ``texts`` of one file agree with.

    A mark that stands once and not before exactly three digits is the decimal one, or stands after the other
    mark; a mark that stands twice separates thousands. Without evidence: ``.``, as in the C and English
    locales. Raises `InputError` where the texts contradict one another.
    """
    votes: dict[str, str] = {}
    for text in texts:
        mark = _evidence(text)
        if mark:
            votes.setdefault(mark, text)
    if len(votes) > 1:
        raise InputError(
            f"{name}: {votes['.']!r} and {votes[',']!r} use different decimal marks; export it under LC_ALL=C"
        )
    return next(iter(votes), ".")


def parse_number(text: str, mark: str) -> float | None:
    """The number, or None where ``text`` is none (``n/a``, a word, empty)."""
    plain = _SPACES.sub("", text)
    if not _SHAPE.fullmatch(plain):
        return None
    plain = plain.replace("," if mark == "." else ".", "").replace(mark, ".")
    try:
        return float(plain)
    except ValueError:
        return None


def _evidence(text: str) -> str:
    """``.`` or ``,`` where the text alone shows which is the decimal mark, else nothing."""
    plain = _SPACES.sub("", text)
    if not _SHAPE.fullmatch(plain):
        return ""
    dots, commas = plain.count("."), plain.count(",")
    if dots and commas:
        return "." if plain.rindex(".") > plain.rindex(",") else ","
    for count, mark, other in ((dots, ".", ","), (commas, ",", ".")):
        if count > 1:
            return other
        if count == 1 and len(re.split(r"[eE]", plain.partition(mark)[2])[0]) != 3:
            return mark
    return ""
