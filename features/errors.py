"""The one error a user's input can cause, and the nearest-match hint that goes with a name."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input: one line that says what came, the rule, and the remedy. The command line prints it and exits 2."""


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """``; did you mean …?`` with the closest of ``known``, or nothing when none is close."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=count, cutoff=0.5)
    return f"; did you mean {' or '.join(by_lower[c] for c in close)}?" if close else ""
