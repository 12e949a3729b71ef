"""``seer compare``, the main job, and ``seer report``, which draws its report again."""

from pathlib import Path
from typing import Any

import click

from surrogate.cli import options as shared
from surrogate.cli.options import COUNT, FOLDER, HELP, PATH, Form, RowOptions, fit_options, option, output_options
from surrogate.features import InputError
from surrogate.models.registry import COMPARED

FITS = ".fits"
"""Folder of finished fits inside the output. With it, the same command resumes an interrupted comparison."""
REPORT_FILES = {"results.json", "report.html", "figures", "predictions.parquet", "choices.parquet"}
REPORT_FILES |= {"folds.csv", "choice_rows.csv", "time_rows.csv"}
"""Names of the files and folders that a comparison writes."""


@click.command()
@click.argument("data", required=False, type=PATH)
@option("--also-train", "Further training rows; they are never judged.", PATH, multiple=True)
@option("--by", HELP["compare"]["by"], ("shape", "network", "gpu", "random"), default="shape")
@option("--folds folds_count", "Folds per seed.", shared.IntegerRange(min=2), default=5)
@option("--seeds", "Number of runs, each with its own folds. Figures are taken over all of them.", COUNT, default=3)
@option(
    "--models",
    f"Models to compare, with commas or one per option; by default all of {', '.join(COMPARED)}.",
    multiple=True,
    metavar="A,B",
)
@option("--tune", "Trials inside each fold's training part: 0, 20 or 60.", ("none", "light", "full"), default="none")
@fit_options
@option("-o --output", "Folder to write.", FOLDER, default="out")
@option("--force", "Write into a folder even if it holds other files.", is_flag=True)
@output_options
def command(
    data: Path | None,
    also_train: tuple[Path, ...],
    models: tuple[str, ...],
    rows: RowOptions,
    output: Path,
    force: bool,
    form: Form,
    **settings: Any,
) -> None:
    """Fit every model on the training rows of every fold of DATA, predict the held-out rows, judge times and choices.

    DATA is a dataset (parquet, CSV or JSON; - for standard input). Without it, the command takes the public cuDNN 7
    measurements that ship with the package: forward, fp32, nine GPUs, four minutes on 2 cores. Partly measured networks
    are added to the training rows. The command writes results.json, CSV tables, figures and report.html into a folder,
    and prints the summary. An earlier report is overwritten. A folder with other files is refused unless `--force` is
    given. The same command resumes an interrupted comparison. `--where` filters DATA and the further training tables.
    The folds use all CPUs of the process or its container; OMP_NUM_THREADS=N limits them to N.

    Examples:
      seer compare
      seer compare run.parquet --models boosted-terms,roofline --by gpu -o out
      seer compare all.parquet --where dtype=fp32 --where direction=fwd
    """
    from surrogate.bundled import DATASET, TRAINING_DATASET
    from surrogate.cli.datasets import kept_fits, load_dataset, progress_bar
    from surrogate.dataset.files import staged
    from surrogate.evaluation.compare import compare
    from surrogate.report.comparison import FIGURE_FILES, write_report

    if not force:
        require_report_folder(output)
    if data is None:
        also_train = (TRAINING_DATASET, *also_train)
    table = load_dataset(data or DATASET, *rows)
    more = [load_dataset(path, *rows) for path in also_train]
    settings["models"] = ",".join(models) or None
    note = f"the same command resumes the comparison; the results in {output} are unchanged"
    # The folder comes first, so that an unwritable one is refused before the work.
    with (
        staged(output, FIGURE_FILES) as folder,
        kept_fits(output / FITS) as keep,
        progress_bar("compare", "fit", note) as step,
    ):
        result = compare(table, more, progress=step, keep=keep, **settings)
        try:
            result.write(folder)
            page = output / write_report(folder).name
        except InputError:  # if the disk is full, the answer is still printed
            _show(result.results, form)
            raise
    _show(result.results, form, page)


def require_report_folder(folder: Path) -> None:
    """Raise `InputError` if the folder holds other files than a report or the fits of an interrupted comparison."""
    if not folder.is_dir():
        return
    names = {path.name for path in folder.iterdir()} - {FITS}
    other_files = sorted(names - REPORT_FILES) or (sorted(names) if "results.json" not in names else [])
    if other_files:
        raise InputError(
            f"{folder} holds {', '.join(other_files[:3])}{', …' * (len(other_files) > 3)}, not a report of seer"
            " compare; choose another folder, or give --force to write into this one"
        )


@click.command()
@click.argument("directory", type=PATH)
@output_options
def report(directory: Path, form: Form) -> None:
    """Write figures, CSV tables and report.html again from the results in DIRECTORY, and print the summary.

    Examples:
      seer report out
    """
    from surrogate.report.comparison import write_report
    from surrogate.report.results import read_results

    page = write_report(directory)
    _show(read_results(directory), form, page)


def _show(results: dict[str, Any], form: Form, page: Path | None = None) -> None:
    """Print the results as JSON, the choice rows as CSV, or the summary and the path of the ``page``."""
    from surrogate.report.summary import terminal_summary

    if form:
        shared.show(results["choice_rows"], form, json_value=results)
    else:
        shared.echo(*terminal_summary(results).split("\n"), *(["", str(page)] if page else []))
