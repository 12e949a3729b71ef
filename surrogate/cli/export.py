"""``seer export``: picks as a table that other programs load."""

import sys
from pathlib import Path
from typing import Any

import click

from surrogate.cli.options import GPU, PATH, limit_options, named_gpu, option, output_option, said

PROBLEMS = "Parquet or CSV table, JSON lines, one PROBLEM a line, or SEER's Test-set-II text."
FORM = "JSON; a C99 header with a lookup; MIOpen's user find-db (bundles of MIOpen solvers)."


@click.command()
@click.argument("bundle")
@option("--problems", PROBLEMS, PATH, required=True, metavar="FILE")
@option("--as form", FORM, click.Choice(["json", "c-header", "miopen-user-db"]), required=True)
@option("--gpu", "The GPU to pick for, where the bundle knows several.", GPU)
@option("--library-version", "Of the library; by default the newest that the bundle knows.", metavar="V")
@limit_options
@output_option("The file to write.")
def command(bundle: str, problems: Path, form: str, gpu: str | None, output: Path, **settings: Any) -> None:
    """Pick the fastest algorithm of every problem and write the picks as a table.

    BUNDLE is a folder, or a GPU's name for the bundle that ships for it.

    Exit status 1 where no problem has a pick within the limits; problems without one are counted.

    Examples:
      seer export bundle --problems problems.txt --as c-header -o picks.h
    """
    from surrogate.dataset.files import write_text
    from surrogate.dataset.problem_list import read_convs
    from surrogate.prediction.export import export, picks_for
    from surrogate.prediction.shipped import bundle_path, load

    predictor = load(bundle_path(bundle), gpu=named_gpu(bundle, gpu))
    picks = picks_for(predictor, read_convs(problems), **settings)
    if not picks.feasible:
        click.echo(f"seer export: none of {len(picks.selections)} problems has a pick", err=True)
        sys.exit(1)
    write_text(output, export(picks, form))
    left, count = len(picks.infeasible), len(picks.feasible)
    none = f"; {left} {'has' if left == 1 else 'have'} none" if left else ""
    said(output, f"{output}: picks of {count} problem{'s' * (count != 1)}{none}")
