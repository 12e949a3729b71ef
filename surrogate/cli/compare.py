"""``seer compare``: the main job."""

from pathlib import Path

import click

from surrogate.cli.options import candidate_option, candidates_option, where_option
from surrogate.cli.output import output_options


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
@click.option("--models", help="Models to compare, separated by commas; all by default.")
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
    models: str | None,
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
    from surrogate.cli.datasets import load, progress_bar
    from surrogate.comparison import compare
    from surrogate.report import terminal_summary, write_report

    step, close = progress_bar("compare")
    try:
        result = compare(
            load(data or default_dataset(), candidates, where),
            [load(path, candidates, where) for path in also_train],
            by=by,
            folds_count=folds_count,
            seeds=seeds,
            models=[name.strip() for name in models.split(",")] if models else None,
            tune=tune,
            candidate=candidate,
            progress=step,
        )
    finally:
        close()
    result.write(output)
    page = write_report(output)
    if as_json or as_csv:
        from surrogate.cli.output import show

        show(result.results["choice_rows"], as_json=as_json, as_csv=as_csv, whole=result.results)
    else:
        click.echo(terminal_summary(result.results))
        click.echo(f"\n{page}")
