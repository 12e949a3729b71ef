"""Standard streams that never fail on a character, and signals that end a command as Ctrl-C does."""

import codecs
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import TextIO

PLAIN = {
    "×": "x", "µ": "u", "…": "...", "–": "-", "−": "-", "≤": "<=", "≥": ">=", "²": "2", "◀": "<", "→": "->", "·": "*",
}  # fmt: skip
"""What is printed of our own signs where the encoding of a stream lacks them."""
ENDING_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Stopped(KeyboardInterrupt):
    """A signal asked the program to end: temporary files vanish, as with Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.strsignal(number))
        self.number = number


def _plain(error: UnicodeError) -> tuple[str, int]:
    """A codec's error handler: `PLAIN`, else the character's backslash escape (a path that is no UTF-8, too)."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in text), error.end


codecs.register_error("seer-plain", _plain)


def usable_streams() -> None:
    """Give closed streams a place, and make both print a substitute for what their encoding lacks."""
    if sys.stdout is None:  # `seer … >&-`; progress bars and others take a stream for granted
        sys.stdout = _nowhere()
    if sys.stderr is None:
        sys.stderr = _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="seer-plain")


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


@contextmanager
def ending_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into `Stopped`, unless the program was started to ignore them (`nohup`)."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        defaults = [number for number in ENDING_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
        before = {number: signal.signal(number, stop) for number in defaults}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def flush_output() -> None:
    """Send what standard output still holds. Raises `OSError` where nobody takes it."""
    if not sys.stdout.closed:
        sys.stdout.flush()


def drop_output() -> None:
    """Point standard output at nothing: the interpreter flushes it once more at its end, and a failure shows there."""
    with suppress(OSError, ValueError, AttributeError):  # closed, or no file at all
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
