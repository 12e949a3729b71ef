"""The one error a user's input can cause, and the nearest-match hint that goes with a name."""

import difflib
from collections.abc import Iterable
from itertools import islice

LONGEST_MESSAGE = 1000
"""Characters of a message; a damaged file may hold a name of megabytes, and messages repeat names."""
_END = 250
_LONGEST_NAME, _MOST_KNOWN = 200, 2000
"""Bounds within which a name is compared: a damaged table may have a million columns."""


class InputError(ValueError):
    """Bad input: one line that says what came, the rule, and the remedy. The command line prints it and exits 2.

    A message is one line of printable characters whatever the input holds: others are escaped, as in ``\\n``, and from
    the middle of one longer than `LONGEST_MESSAGE` characters a piece is left out (its end tells the remedy).
    """

    def __init__(self, message: str = "") -> None:
        if len(message) > LONGEST_MESSAGE:
            message = f"{message[: LONGEST_MESSAGE - _END - 3]} … {message[-_END:]}"
        if not message.isprintable():
            message = "".join(c if c.isprintable() or c == " " else ascii(c)[1:-1] for c in message)
        super().__init__(message)


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """``; did you mean …?`` with the closest of ``known``, or nothing when none is close."""
    if len(name) > _LONGEST_NAME:
        return ""
    by_lower = {candidate.lower(): candidate for candidate in islice(known, _MOST_KNOWN)}
    close = difflib.get_close_matches(name.lower(), by_lower, n=count, cutoff=0.5)
    return f"; did you mean {' or '.join(by_lower[c] for c in close)}?" if close else ""
