"""The command line that every experiment shares: ``python -m experiments.NAME [--quick] [--data DIR] …``."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from experiments.effort import Effort
from experiments.experiment import HOME, Experiment, write_outcome
from experiments.sources import DEFAULT_FOLDER, FILES, Sources
from surrogate.features.errors import InputError

SKIPPED = 1
"""Exit status where a file that the experiment needs is missing."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums in one order: inside this, OpenMP and BLAS use one thread, so that a seed gives the same bits anywhere."""
    import sklearn.tree  # noqa: F401  loaded first: limits reach only libraries that are there
    import xgboost  # noqa: F401
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):
        yield


def read_sources(folder: Path, use: tuple[str, ...]) -> Sources:
    """Sources from the command line's ``--data`` and ``--use NAME=FILE``. Raises `InputError` for a malformed one."""
    others = {}
    for text in use:
        name, equals, path = text.partition("=")
        if not equals or not path:
            raise InputError(
                f"--use {text!r} is not readable; write NAME=FILE, with NAME one of {', '.join(FILES)}"
            )
        others[name] = Path(path)
    return Sources(folder, others)


def run_experiment(experiment: Experiment, sources: Sources, effort: Effort, home: Path = HOME) -> str:
    """Run, write table and figure, and give the answer back."""
    with one_thread():
        outcome = experiment.run(sources, effort)
    write_outcome(experiment.name, outcome, home)
    return outcome.answer


def shared_options(command: Any) -> Any:
    """The options of one experiment and of all of them."""
    path = click.Path(path_type=Path)
    for option in (
        click.option("--out", type=path, default=HOME, help="Where README.md, tables/ and figures/ lie."),
        click.option("--seed", default=0, show_default=True, help="Of folds, samples and fits."),
        click.option(
            "--use", multiple=True, metavar="NAME=FILE", help="Another dataset in the place of a source."
        ),
        click.option("--data", type=path, default=DEFAULT_FOLDER, help="Folder of the files."),
        click.option("--quick", is_flag=True, help="Fewer folds, sampled shapes."),
    ):
        command = option(command)
    return command


def run_script(experiment: Experiment, arguments: list[str] | None = None) -> None:
    """``main`` of one experiment: the answer on standard output, progress on standard error.

    Exit status 0, `SKIPPED` where a file is missing, 2 for a user's error.
    """

    @click.command(help=experiment.question, context_settings={"help_option_names": ["-h", "--help"]})
    @shared_options
    def command(quick: bool, data: Path, use: tuple[str, ...], seed: int, out: Path) -> None:
        from tqdm import tqdm

        try:
            sources = read_sources(data, use)
            absent = experiment.missing(sources)
            if absent:
                click.echo(absent, err=True)
                sys.exit(SKIPPED)
            with tqdm(desc=experiment.name, unit=" fits", disable=None, leave=False) as bar:

                def tick(text: str) -> None:
                    bar.set_postfix_str(text, refresh=False)
                    bar.update()

                answer = run_experiment(experiment, sources, Effort(quick, seed, tick=tick), out)
        except InputError as error:
            click.echo(f"{experiment.name}: {error}", err=True)
            sys.exit(2)
        click.echo(answer)

    command.main(args=arguments, prog_name=f"python -m experiments.{experiment.name}")
