"""What ended a command, as one line for the user and an exit status."""

import re
import signal

import click

from surrogate.cli.streams import Stopped, drop_output
from surrogate.features.errors import InputError

EXPECTED = (click.ClickException, InputError, OSError, MemoryError, UnicodeError, KeyboardInterrupt)
"""What a user, a machine or a signal can cause. Anything else is our mistake and keeps its traceback."""


def line_and_status(error: BaseException) -> tuple[str, int]:
    """The line to print (none where the reader of a pipe has left) and the exit status. ``error`` is `EXPECTED`."""
    if isinstance(error, KeyboardInterrupt):
        return _stopped(error)
    if isinstance(error, OSError):
        return _system(error)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return one_line(f"{_message(error)}; see `{error.ctx.command_path} --help`"), 2
    if isinstance(error, click.ClickException):
        return one_line(_message(error)), 2
    if isinstance(error, MemoryError):
        return one_line(f"out of memory{_in_brackets(error)}; give fewer rows, or use a larger machine"), 2
    if isinstance(error, UnicodeEncodeError):
        return one_line(f"{error.object!r} is not UTF-8; give files and folders names that are"), 2
    if isinstance(error, UnicodeError):
        return one_line(f"a text that is not UTF-8 ({error}); save it as UTF-8"), 2
    return one_line(str(error)), 2


def one_line(text: str) -> str:
    """``text`` on one line, its control characters (a path may hold any) escaped."""
    joined = re.sub(r"\s*\n\s*", " ", text.strip())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in joined)


def _message(error: click.ClickException) -> str:
    return error.format_message().strip().rstrip(".")


def _stopped(error: KeyboardInterrupt) -> tuple[str, int]:
    """Ctrl-C or a signal, with what the command noted about going on; the status is the shells'."""
    number = error.number if isinstance(error, Stopped) else signal.SIGINT
    name = "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"
    return one_line("; ".join([name, *getattr(error, "__notes__", [])])), 128 + number


def _system(error: OSError) -> tuple[str, int]:
    """What the system refused, and on which file; an error without a file is mostly standard output's."""
    if error.filename is None:
        drop_output()
    if isinstance(error, BrokenPipeError):
        return "", 0
    reason = error.strerror or str(error) or type(error).__name__
    return one_line(f"{_name(error)}: {reason}"), 2


def _name(error: OSError) -> str:
    return "standard output or a file" if error.filename is None else str(error.filename)


def _in_brackets(error: MemoryError) -> str:
    return f" ({error})" if str(error) else ""
