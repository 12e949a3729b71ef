"""``seer data``: check, describe and merge datasets."""

import sys
from pathlib import Path

import click

from surrogate.cli.options import candidates_option
from surrogate.cli.output import output_options, show


@click.group()
def command() -> None:
    """Check, describe or merge datasets."""


@command.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@output_options
def check(paths: tuple[Path, ...], as_json: bool, as_csv: bool) -> None:
    """Name every violation in PATHS with its row. Exit status 1 if there is one."""
    from surrogate.dataset.check import check as violations_of
    from surrogate.dataset.normalise import normalise, require_columns
    from surrogate.dataset.schema import REQUIRED_COLUMNS
    from surrogate.dataset.store import read_table

    records = []
    for path in paths:
        frame, _ = read_table(path)
        require_columns(frame, REQUIRED_COLUMNS, str(path))
        found = violations_of(normalise(frame, str(path)))
        records += [
            {"file": str(path), "row": v.row, "column": v.column, "value": v.value, "rule": v.rule}
            for v in found
        ]
        if not found and not (as_json or as_csv):
            click.echo(f"{path}: {len(frame)} rows, no violations")
    if records or as_json or as_csv:
        show(records, as_json=as_json, as_csv=as_csv)
    sys.exit(1 if records else 0)


@command.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@candidates_option
@output_options
def info(paths: tuple[Path, ...], candidates: str | None, as_json: bool, as_csv: bool) -> None:
    """Describe PATHS: rows, problems, shapes and what can be judged, per GPU and setting."""
    from surrogate.dataset.describe import describe
    from surrogate.dataset.store import read_dataset

    records = [
        {"file": str(path), **record}
        for path in paths
        for record in describe(read_dataset(path, candidates=candidates))
    ]
    show(records, as_json=as_json, as_csv=as_csv)


@command.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The parquet file to write."
)
@candidates_option
def merge(paths: tuple[Path, ...], output: Path, candidates: str | None) -> None:
    """Merge datasets (parquet) or collected runs (JSONL) in PATHS into one dataset; a later file's row wins."""
    from features.errors import InputError
    from surrogate.dataset.merge import merge as merged
    from surrogate.dataset.store import read_dataset, write_dataset

    runs = [path for path in paths if path.suffix == ".jsonl"]
    if runs and len(runs) < len(paths):
        raise InputError("PATHS mix runs (.jsonl) and datasets; merge the runs first, then the datasets")
    if runs:
        from surrogate.collect.merge import merge_runs

        merged_runs = merge_runs(runs)
        frame = merged_runs.rows
        write_dataset(
            frame, output, candidates="all", kernels=merged_runs.kernels, metadata=merged_runs.metadata
        )
    else:
        result = merged([read_dataset(path, candidates=candidates) for path in paths])
        frame = result.frame
        write_dataset(
            frame, output, candidates=result.candidates, kernels=result.kernels, metadata=result.metadata
        )
    click.echo(f"{output}: {len(frame)} rows")
