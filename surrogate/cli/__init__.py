"""The ``seer`` command: one small file per command, each imported only when it runs."""

import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress

import click

from surrogate.cli.groups import TABLE, CommandGroup
from surrogate.cli.process import EXPECTED, ending_signals, flush_output, line_and_status, usable_streams
from surrogate.features.errors import naming_options

COMMANDS = TABLE["seer"]
"""Command → where it is, and its one-line help."""
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


def main() -> None:
    """Run ``seer``; what a user, the machine or a signal causes is one line on standard error, no traceback."""
    usable_streams()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait for others leave the CPU to whoever works
    with ending_signals(), naming_options(), warnings.catch_warnings():
        warnings.showwarning = _warn
        try:
            try:
                status = _run(sys.argv[1:])
            finally:
                flush_output()
        except EXPECTED as error:
            line, status = line_and_status(error)
            with suppress(OSError):  # standard error may be full or closed, too
                if line:
                    click.echo(f"seer: {line}", err=True)
    sys.exit(status)


def _warn(message: Warning | str, *_: object) -> None:
    """Show a warning as a line, without the line of code that gave it."""
    click.echo(f"warning: {message}", err=True)


def _run(words: Sequence[str]) -> int:
    """The exit status of the command that ``words`` name; or a shell's completions.

    Not click's own ``main``, which turns a reader that left into exit status 1 and a signal into a blank line.
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
