"""The ``seer`` command: one small file per command, each imported only when it runs."""

import importlib
import sys

import click

from features.errors import InputError

COMMANDS = {
    "collect": ("collect", "Measure kernel times on a device, resumably."),
    "import": ("import_", "Other people's files as a dataset."),
    "data": ("data", "Check, describe or merge datasets."),
    "compare": ("compare", "Judge predictors and pickers on measured data: the main job."),
    "report": ("report", "Draw the report of a comparison again."),
    "train": ("train", "Fit a model on datasets and save it as a bundle."),
    "tune": ("tune", "Search a model's settings, with any number of processes and machines."),
    "evaluate": ("evaluate", "Judge a bundle on a dataset, seen and unseen shapes apart."),
    "calibrate": ("calibrate", "Adapt a bundle to a GPU from a few measurements, or plan them."),
    "predict": ("predict", "Predict the time of a problem, or of a table of them."),
    "select": ("select", "Rank a problem's algorithms by predicted time."),
    "export": ("export", "Picks as a table that other programs load: JSON, C header, MIOpen user find-db."),
    "network": ("network", "Predict how long a whole network takes, and where the time goes."),
    "info": ("info", "Show a bundle's model card."),
    "trace": ("trace", "Analyse profiler traces: kernels, layers, spans."),
    "gpus": ("gpus", "List the known GPUs."),
}
"""Command → (module, one-line help); the help of all is shown without importing any."""


class LazyGroup(click.Group):
    """Imports a command's module when the command is asked for, so that ``seer --help`` stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order people need them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command object of a module, or None."""
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f"surrogate.cli.{COMMANDS[cmd_name][0]}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands from `COMMANDS`, no module imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="seer-surrogate", prog_name="seer")
def seer() -> None:
    """Predict how long a GPU kernel takes without running it, and pick the fastest cuDNN convolution algorithm.

    Exit status: 0 done, 1 a negative answer (a check found violations, nothing is feasible), 2 a user's error.
    """


def main() -> None:
    """Run ``seer``; a user's error is one line on standard error and exit status 2."""
    try:
        sys.exit(seer.main(prog_name="seer", standalone_mode=False) or 0)
    except click.Abort:
        click.echo("seer: interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        click.echo(f"seer: {error.format_message()}", err=True)
        sys.exit(2)
    except InputError as error:
        click.echo(f"seer: {error}", err=True)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # the reader left (`seer … | head`); nothing more to say
        sys.exit(0)
