"""Standard streams that print every character, and errors and signals as one line and an exit status."""

import codecs
import os
import re
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import click

from surrogate.features import InputError, printable, read_toml

_TABLE = read_toml(__file__)
ASCII: dict[str, str] = _TABLE["ascii"]
"""Character of our own output → its substitute if the encoding of a stream lacks it."""
ALARM = getattr(signal, "SIGALRM", None)
ENDING_SIGNALS = *(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)), ALARM
DEFAULT_HANDLERS = (signal.SIG_DFL, signal.default_int_handler)
AGAIN_S = 0.1
"""Seconds until a dropped `Stopped` is raised again."""


class Stopped(KeyboardInterrupt):
    """A signal asked the program to end. Temporary files are removed, as after Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.strsignal(number))
        self.number = number


def _ascii(error: UnicodeError) -> tuple[str, int]:
    """Handle a codec's error: return the substitute in `ASCII`, or the backslash escape of the character."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(ASCII.get(c) or c.encode("ascii", "backslashreplace").decode() for c in text), error.end


codecs.register_error("seer-ascii", _ascii)


def usable_streams() -> None:
    """Open closed streams on the null device, and make both print substitutes for characters they cannot encode."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # `seer … >&-`; progress bars need a stream
            setattr(sys, name, _null_stream())
        if isinstance(stream := getattr(sys, name), TextIOWrapper):
            stream.reconfigure(errors="seer-ascii")


def _null_stream() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


@contextmanager
def ending_signals() -> Iterator[None]:
    """Turn signals into `Stopped`, unless the program was started to ignore them (`nohup`).

    Python drops an exception that is raised in a finaliser or in a callback of C code, and some code drops every
    exception. A `Stopped` that no code holds was dropped: an alarm raises it again.
    """
    latest = 0
    raised: list[weakref.ref[Stopped]] = []

    def stopped(number: int) -> Stopped:
        nonlocal latest
        latest = (number == ALARM and latest) or number  # an alarm raises the latest signal again
        error = Stopped(latest)
        raised[:] = [weakref.ref(error, again)] if ALARM in before else []
        return error

    def again(_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)

    def stop(number: int, frame: FrameType | None) -> None:
        raise stopped(number)  # no variable of this frame holds the error, so that it goes when it is dropped

    def report(dropped: "sys.UnraisableHookArgs") -> None:
        if not isinstance(dropped.exc_value, Stopped):
            report_before(dropped)

    before: dict[int, Any] = {}
    report_before = sys.unraisablehook
    if threading.current_thread() is threading.main_thread():
        defaults = [each for each in ENDING_SIGNALS if each and signal.getsignal(each) in DEFAULT_HANDLERS]
        before = {number: signal.signal(number, stop) for number in defaults}
        sys.unraisablehook = report
    try:
        yield
    finally:
        raised.clear()
        sys.unraisablehook = report_before
        if ALARM in before:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in before.items():
            signal.signal(number, handler)


def flush_output() -> None:
    """Flush standard output. Raises `OSError` if the reader has left or the disk is full."""
    if not sys.stdout.closed:
        sys.stdout.flush()


def drop_output() -> None:
    """Redirect standard output to the null device. Otherwise the interpreter's last flush would print an error."""
    with suppress(OSError, ValueError, AttributeError):  # closed, or not a file
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


REPLACEMENTS: dict[str, dict[str, str]] = _TABLE["replacements"]
"""Command or group → option of an older version or of another program → its replacement."""
EXPECTED = (click.ClickException, InputError, OSError, MemoryError, UnicodeError, KeyboardInterrupt)
"""Errors that a user, a machine or a signal can cause. Other errors are bugs and keep their traceback."""


def line_and_status(error: BaseException) -> tuple[str, int]:
    """Return the line to print and the exit status. ``error`` is `EXPECTED`.

    The line is empty if the reader of a pipe has left.
    """
    if isinstance(error, KeyboardInterrupt):
        return _interruption(error)
    if isinstance(error, OSError):
        return _system_error(error)
    if isinstance(error, click.ClickException):
        return one_line(_usage_message(error)), 2
    if isinstance(error, MemoryError):
        reason = f" ({error})" if str(error) else ""
        return one_line(f"the memory is exhausted{reason}; give fewer rows, or use a larger machine"), 2
    if isinstance(error, UnicodeEncodeError):
        return one_line(f"{error.object!r} is not UTF-8; rename the file or folder"), 2
    if isinstance(error, UnicodeError):
        return one_line(f"a text is not UTF-8 ({error}); save it as UTF-8"), 2
    return one_line(str(error)), 2


def _usage_message(error: click.ClickException) -> str:
    """Return the message with a replacement from `REPLACEMENTS` or click's remedy, and the command that shows help."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    text = error.format_message()
    if context is None:
        return text.strip().rstrip(".")
    path = context.command_path
    option = getattr(error, "option_name", None) or getattr(getattr(error, "param", None), "opts", [""])[0]
    for command, options in REPLACEMENTS.items():
        if option in options and f"{path} ".startswith(f"{command} "):
            text = f"{error.message.rstrip('.')}; use {options[option]}"
    return f"{text.strip().rstrip('.')}; see `{path} --help`"


def one_line(text: str) -> str:
    """Return ``text`` on one line, with control characters escaped (a path may hold any)."""
    return printable(re.sub(r"\s*\n\s*", " ", text.strip()))


def _interruption(error: KeyboardInterrupt) -> tuple[str, int]:
    """Return the line for Ctrl-C or a signal, with the command's note on resuming, and the exit status."""
    number = error.number if isinstance(error, Stopped) else signal.SIGINT
    name = "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"
    return one_line("; ".join([name, *getattr(error, "__notes__", [])])), 128 + number


def _system_error(error: OSError) -> tuple[str, int]:
    """Return the line and status for a system error. An error without a file usually comes from standard output."""
    if error.filename is None:
        drop_output()
    if isinstance(error, BrokenPipeError):
        return "", 0
    reason = error.strerror or str(error) or type(error).__name__
    name = "standard output or a file" if error.filename is None else error.filename
    return one_line(f"{name}: {reason}"), 2
