"""``seer compare``: the main job."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from surrogate.cli.options import (
    candidate_option,
    candidates_option,
    output_options,
    where_option,
)
from surrogate.features.errors import InputError

if TYPE_CHECKING:
    from surrogate.evaluation.comparison import Comparison

Step = Callable[[int, int, str], None]
FITS = ".fits"
"""Folder of finished fits inside the output, so that the same command goes on after an interruption."""


@click.command()
@click.argument("data", required=False, type=click.Path(path_type=Path))
@click.option(
    "--also-train",
    multiple=True,
    type=click.Path(path_type=Path),
    help="More rows to train on, never judged.",
)
@click.option(
    "--by",
    type=click.Choice(["shape", "network", "gpu", "random"]),
    default="shape",
    show_default=True,
    help="What a fold holds out; random rows flatter, and are there to show by how much.",
)
@click.option(
    "--folds",
    "folds_count",
    default=10,
    show_default=True,
    type=click.IntRange(min=2),
    help="Folds per seed.",
)
@click.option(
    "--seeds", default=1, show_default=True, type=click.IntRange(min=1), help="Runs, each with its own folds."
)
@click.option(
    "--models",
    metavar="A,B",
    multiple=True,
    help="Models to compare, separated by commas or by repeating the option; all by default.",
)
@click.option(
    "--tune",
    type=click.Choice(["none", "light", "full"]),
    default="none",
    show_default=True,
    help="Search settings inside the training part of every fold: 0, 12 or 60 trials.",
)
@candidates_option
@candidate_option
@where_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("out"),
    show_default=True,
    help="Folder to write.",
)
@output_options
def command(
    data: Path | None,
    also_train: tuple[Path, ...],
    by: str,
    folds_count: int,
    seeds: int,
    models: tuple[str, ...],
    tune: str,
    candidates: str | None,
    candidate: str,
    where: tuple[str, ...],
    output: Path,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Fit every model on the training rows of every fold of DATA, predict the held-out rows, judge times and choices.

    DATA is a parquet dataset; without it, the measured data that ships with the package. Writes results.json, CSV
    tables, figures and report.html into a folder, and prints the summary. `--where` filters DATA and the further
    training tables alike.
    """
    from surrogate.bundled import default_dataset
    from surrogate.cli.datasets import load
    from surrogate.dataset.files import staged
    from surrogate.evaluation.compare import compare
    from surrogate.report.page import FIGURE_FILES, write_report

    names, fits = _names(models), output / FITS
    table = load(data or default_dataset(), candidates, where)
    more = [load(path, candidates, where) for path in also_train]
    # The folder first: whoever cannot write it is told before the work, not after.
    with staged(output, FIGURE_FILES) as folder, _counted(output) as step:
        result = compare(
            table,
            more,
            by=by,
            folds_count=folds_count,
            seeds=seeds,
            models=names,
            tune=tune,
            candidate=candidate,
            progress=step,
            keep=fits,
        )
        try:
            result.write(folder)
            page = output / write_report(folder).name
        except InputError:  # a full disk does not cost the answer
            _show(result, as_json, as_csv)
            raise
    shutil.rmtree(fits, ignore_errors=True)
    _show(result, as_json, as_csv)
    if not (as_json or as_csv):
        click.echo(f"\n{page}")


def _show(result: "Comparison", as_json: bool, as_csv: bool) -> None:
    from surrogate.cli.options import show
    from surrogate.report.summary import terminal_summary

    if as_json or as_csv:
        show(result.results["choice_rows"], as_json=as_json, as_csv=as_csv, whole=result.results)
    else:
        click.echo(terminal_summary(result.results))


def _names(models: Sequence[str]) -> list[str] | None:
    """The models that ``--models`` names, in the order typed; None where it was not given."""
    if not models:
        return None
    names = [name.strip() for text in models for name in text.split(",")]
    if not all(names):
        raise click.UsageError(
            f"--models {','.join(models)!r} has an empty name; write them with one comma between"
        )
    return names


@contextmanager
def _counted(output: Path) -> Iterator[Step]:
    """A bar of the fits on standard error; an interrupted run says how far it came and how to go on."""
    from surrogate.cli.datasets import progress_bar

    draw, close = progress_bar("compare")
    at = "before the first fit"

    def step(done: int, total: int, text: str) -> None:
        nonlocal at
        at = f"after {done:,} of {total:,} fits"
        draw(done, total, text)

    try:
        yield step
    except KeyboardInterrupt as stopped:
        stopped.add_note(f"{at}; the same command goes on, the results in {output} are unchanged")
        raise
    finally:
        close()
