"""The ``seer`` command: one small file per command, each imported only when it runs."""

import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress

import click

from surrogate.cli.groups import TABLE, CommandGroup
from surrogate.cli.options import echo
from surrogate.cli.process import EXPECTED, ending_signals, flush_output, line_and_status, one_line, usable_streams
from surrogate.features import InputError, naming_options

COMMANDS = TABLE["seer"]
"""Command → its module, and its one-line help."""
COMPLETE = "_SEER_COMPLETE"
"""The environment variable by which a shell asks for completions."""


@click.group(
    cls=CommandGroup, table="seer", context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.version_option(package_name="seer-surrogate", prog_name="seer")
def seer() -> None:
    """Predict how long a GPU kernel takes without running it, and pick the fastest implementation.

    `seer COMMAND --help` explains a command and shows examples.

    Exit status: 0 done, 1 a negative answer (a check found violations, nothing is feasible), 2 a user's error.
    """
    if os.environ.get("SEER_GPUS") and not {"-h", "--help"} & set(sys.argv):
        from surrogate.features.gpu import registry

        registry()  # an unreadable file ends every command; some would otherwise answer without its GPUs


def main() -> None:
    """Run ``seer``. An error that a user, the machine or a signal causes is one line on standard error."""
    usable_streams()
    words = sys.argv[1:]
    files = [word for word in words if os.access(word, os.R_OK)]  # a file that the command creates is no input
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads leave the CPU to working ones
    with ending_signals(), naming_options(), warnings.catch_warnings():
        warnings.showwarning = _warn
        try:
            try:
                status = _run(words)
            finally:
                flush_output()
        except EXPECTED as error:
            line, status = line_and_status(error)
            if isinstance(error, InputError):
                from surrogate.formats.recognise import explained  # only an error needs it

                readers = [*words[:1], " ".join(words[:2]), *(" ".join([*words[:2], word]) for word in words[2:])]
                line = explained(line, files, *readers)
            with suppress(OSError):  # standard error may be full or closed, too
                if line:
                    echo(f"seer: {line}", err=True)
    sys.exit(status)


def _warn(message: Warning | str, *_: object) -> None:
    """Print a warning as one line, without the line of code that raised it."""
    echo(one_line(f"warning: {message}"), err=True)


def _run(words: Sequence[str]) -> int:
    """Run the command that ``words`` name, or print a shell's completions; return the exit status.

    click's own ``main`` is not used. It exits with 1 if the reader of a pipe has left, and prints a blank line for a
    signal.
    """
    if os.environ.get(COMPLETE):
        from click.shell_completion import shell_complete

        return shell_complete(seer, {}, "seer", COMPLETE, os.environ[COMPLETE])
    try:
        with seer.make_context("seer", list(words)) as context:
            seer.invoke(context)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    return 0
