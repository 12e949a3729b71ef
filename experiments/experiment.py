"""An experiment: its question, the files it needs, the effort of a run, and the shared command line.

``python -m experiments.NAME [--quick] [--data DIR] …`` writes a table and a figure, and prints the tables that
the pages show of it.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd

from experiments.sources import DEFAULT_FOLDER, FILES, HOME, Sources
from surrogate import Dataset, InputError
from surrogate.dataset.files import write_text
from surrogate.dataset.problems import shape_names
from surrogate.dataset.splits import fold_of_names
from surrogate.features.families import CONV, Family
from surrogate.models import TimeModel, model_class
from surrogate.models.registry import COMPARED, DECLARED


@dataclass(frozen=True, slots=True)
class Effort:
    """The limits of a run.

    ``seed`` decides folds, samples and fits. ``models`` limits the registry (None: all models). ``tick`` is called with
    a text before every fit. ``only`` names the parts of an experiment to run (empty: all).
    """

    quick: bool = False
    seed: int = 0
    models: tuple[str, ...] | None = None
    tick: Callable[[str], None] = lambda text: None
    quick_shapes: int = 900
    only: tuple[str, ...] = ()

    @property
    def folds(self) -> int:
        """Number of folds of a cross-validation."""
        return 3 if self.quick else 10

    def by_name(self, *requested: str) -> dict[str, TimeModel]:
        """Return name → unfitted model, in the registry's order: those of ``requested``, or all compared."""
        return {
            name: seeded(model_class(name), self.seed)
            for name in DECLARED
            if name in (requested or COMPARED) and (self.models is None or name in self.models)
        }

    def timed(self, *requested: str) -> dict[str, TimeModel]:
        """Return the models of `by_name` that predict times."""
        return {name: model for name, model in self.by_name(*requested).items() if model.predicts_time}

    def sample(self, data: Dataset, shapes: int | None = None) -> Dataset:
        """Return a dataset with a sample of its convolutions (`sampled`)."""
        return data.with_frame(self.sampled(data.frame, CONV, shapes))

    def sampled(self, frame: pd.DataFrame, kind: Family, shapes: int | None = None) -> pd.DataFrame:
        """Return a family's table with at most ``shapes`` shapes, drawn by a seeded hash.

        A quick run is also limited to ``quick_shapes``. Without a limit all shapes stay.
        """
        limits = [limit for limit in (shapes, self.quick_shapes if self.quick else None) if limit is not None]
        names = shape_names(frame, kind)
        distinct = len(set(names))
        if not limits or distinct <= min(limits):
            return frame
        fold_of = fold_of_names(names, distinct, self.seed)
        return frame[np.array([fold_of[name] < min(limits) for name in names])]


def seeded(cls: type[TimeModel], seed: int) -> TimeModel:
    """Return an unfitted model of a class with its stored settings, and with the seed if it accepts one."""
    model = cls()
    return model.set_params(random_state=seed) if "random_state" in model.get_params() else model


@dataclass(frozen=True)
class ExperimentResult:
    """The result of an experiment.

    ``table`` has plain columns. ``figure`` is SVG text (None: no figure). ``note`` says what is missing in this run.
    ``further`` holds more tables by the names of their files.
    """

    table: pd.DataFrame
    figure: str | None = None
    note: str = ""
    further: Mapping[str, pd.DataFrame] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment. ``needs`` are the required source names of `experiments.sources.FILES`."""

    name: str
    question: str
    needs: tuple[str, ...]
    run: Callable[[Sources, Effort], ExperimentResult]

    @classmethod
    def of(cls, run: Callable[[Sources, Effort], ExperimentResult], needs: tuple[str, ...]) -> "Experiment":
        """Return the experiment of the module that defines ``run``. The module's docstring begins with the question."""
        module = sys.modules[run.__module__]
        name = Path(str(module.__file__)).stem
        return cls(name, str(module.__doc__).split("\n")[0], needs, run)

    def missing(self, sources: Sources) -> str | None:
        """Return one line that names the missing files, or None if all exist."""
        absent = sources.missing(self.needs)
        if not absent:
            return None
        return f"{self.name}: skipped, {', '.join(map(str, absent))} missing; --data DIR says where the files lie"


def columns_first(table: pd.DataFrame, *first: str) -> pd.DataFrame:
    """Return ``table`` with these columns first. The others keep their order."""
    return table[[*first, *(column for column in table.columns if column not in first)]]


def write_outcome(name: str, outcome: ExperimentResult, home: Path = HOME) -> None:
    """Write ``tables/NAME.csv`` (six significant digits), further tables and ``figures/NAME.svg``, atomically."""
    for folder in ("tables", "figures"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    for title, table in {name: outcome.table, **outcome.further}.items():
        text = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
        write_text(home / "tables" / f"{title}.csv", text)
    drawn = home / "figures" / f"{name}.svg"
    if outcome.figure is None:
        drawn.unlink(missing_ok=True)  # a figure of an earlier run must not remain
    else:
        write_text(drawn, outcome.figure)


SKIPPED = 1
"""Exit status if a needed file is missing."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit all libraries to one thread inside this context, so that a seed gives the same bits on every machine."""
    import sklearn.tree  # noqa: F401  loaded first: limits reach only libraries that are there
    import xgboost  # noqa: F401

    from surrogate.dataset.threads import limit_threads

    with limit_threads(1):
        yield


@contextmanager
def in_one_line(name: str) -> Iterator[None]:
    """Print a user's error inside this context as one line on standard error, and exit with status 2."""
    try:
        yield
    except (InputError, OSError) as error:
        click.echo(f"{name}: {error}", err=True)
        sys.exit(2)


def read_sources(folder: Path, use: tuple[str, ...]) -> Sources:
    """Return the sources of ``--data`` and ``--use NAME=FILE``. Raises `InputError` for a malformed option."""
    others = {}
    for text in use:
        name, equals, path = text.partition("=")
        if not equals or not path:
            raise InputError(f"--use {text!r} is not readable; write NAME=FILE, with NAME one of {', '.join(FILES)}")
        others[name] = Path(path)
    return Sources(folder, others)


def shared_options(command: Any) -> Any:
    """Add the options that one experiment and `experiments.all` share."""
    path = click.Path(path_type=Path)
    for option in (
        click.option("--out", type=path, default=HOME, help="Folder of tables/ and figures/."),
        click.option("--seed", default=0, show_default=True, help="Seed of folds, samples and fits."),
        click.option("--use", multiple=True, metavar="NAME=FILE", help="Replace a source by another dataset."),
        click.option("--data", type=path, default=DEFAULT_FOLDER, help="Folder of the files."),
        click.option("--quick", is_flag=True, help="Use fewer folds and a sample of the shapes."),
    ):
        command = option(command)
    return command


def run_script(experiment: Experiment, arguments: list[str] | None = None, choices: tuple[str, ...] = ()) -> None:
    """Run one experiment as a program: tables of the pages on standard output, progress on standard error.

    ``choices`` are the experiment's parts. Exit status 0; `SKIPPED` if a file is missing; 2 for a user's error.
    """

    @click.command(help=experiment.question, context_settings={"help_option_names": ["-h", "--help"]})
    @shared_options
    @click.option("--only", type=click.Choice(choices), multiple=True, hidden=not choices, help="Run only these parts.")
    def command(quick: bool, data: Path, use: tuple[str, ...], seed: int, out: Path, only: tuple[str, ...]) -> None:
        from tqdm import tqdm

        from experiments.pages import shown

        with in_one_line(experiment.name):
            sources = read_sources(data, use)
            absent = experiment.missing(sources)
            if absent:
                click.echo(absent, err=True)
                sys.exit(SKIPPED)
            with tqdm(desc=experiment.name, unit=" fits", disable=None, leave=False) as bar, one_thread():

                def tick(text: str) -> None:
                    bar.set_postfix_str(text, refresh=False)
                    bar.update()

                outcome = experiment.run(sources, Effort(quick, seed, tick=tick, only=only))
            write_outcome(experiment.name, outcome, out)
        click.echo("\n\n".join(filter(None, (shown(experiment.name, out), outcome.note))))

    command.main(args=arguments, prog_name=f"python -m experiments.{experiment.name}")


def program(
    run: Callable[[Sources, Effort], ExperimentResult], *needs: str, choices: tuple[str, ...] = ()
) -> Experiment:
    """Return the experiment of the module that defines ``run``. Run it if the module is the main program."""
    experiment = Experiment.of(run, needs)
    if run.__module__ == "__main__":
        run_script(experiment, choices=choices)
    return experiment
