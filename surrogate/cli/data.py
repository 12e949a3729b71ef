"""``seer data``: check, describe and merge datasets, and list the meaning of their columns."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from surrogate.cli import options as shared
from surrogate.cli.groups import CommandGroup
from surrogate.cli.options import PATH, Form, echo, option, output_option, output_options, show
from surrogate.features import InputError, row_number
from surrogate.report.tables import MAX_CELL, format_value, shortened, to_csv

if TYPE_CHECKING:
    from surrogate.dataset.described import Kernel
    from surrogate.features.description import Description

WIDTH = 79
"""Maximum characters of a line of text."""
INDENT = "    "
"""Indent of all lines of a text after the first."""
_PATHS = click.argument("paths", nargs=-1, required=True, type=PATH)


@click.group(cls=CommandGroup, table="data")
def command() -> None:
    """Check, describe or merge datasets; list their columns.

    Examples:
      seer data check run.parquet
    """


@click.command()
@_PATHS
@shared.kernel_options
@output_options
def check(paths: tuple[Path, ...], form: Form, kernel: "Kernel | None") -> None:
    """List every violation in PATHS with its row. Exit status 1 if there is one.

    A warning is printed if times seem to have a wrong unit (ms for µs).

    Examples:
      seer data check a.parquet b.parquet --json
    """
    from surrogate.cli.datasets import print_warnings
    from surrogate.dataset.problem_list import unread_note
    from surrogate.dataset.problems import families_of
    from surrogate.dataset.store import check_table
    from surrogate.dataset.tables import read_table

    records = []
    for path in paths:
        frame, metadata = read_table(path)
        data, violations = check_table(frame, path, metadata, kernel)
        records += [{"file": str(path), **asdict(v), "row": row_number(path, v.row)} for v in violations]
        if not violations:
            print_warnings(path, data)
            families = families_of(data.frame)
            if data.description is None and len(families) == 1:
                notes = filter(None, [unread_note((*map(str, frame),), families[0])])
                echo(*(f"warning: {path}: {note}" for note in notes), err=True)
            if not form:
                echo(f"{path}: {len(frame)} rows, no violations")
    if form == "csv":
        click.echo(to_csv(records, ("file", "row", "column", "value", "rule")), nl=False)
    elif records or form:
        show(records, form)
    sys.exit(1 if records else 0)


@click.command()
@_PATHS
@shared.candidates_option
@shared.kernel_options
@output_options
def info(paths: tuple[Path, ...], candidates: str | None, form: Form, kernel: "Kernel | None") -> None:
    """Summarise PATHS: rows, problems, shapes, and how many can be evaluated, per GPU and setting.

    Examples:
      seer data info run.parquet
    """
    from surrogate.dataset.store import read_dataset, summarise_dataset

    summaries = {path: summarise_dataset(read_dataset(path, candidates=candidates, kernel=kernel)) for path in paths}
    if form:
        show([{"file": str(path), **record} for path, records in summaries.items() for record in records], form)
        return
    for path, records in summaries.items():
        first = records[0]
        common = [name for name in _FACTS if name in first and all(r.get(name) == first[name] for r in records)]
        facts = ", ".join(f"{name} {shortened(format_value(first[name]), MAX_CELL)}" for name in common)
        echo(f"{path}: {facts}", width=WIDTH, indent=INDENT)
        show([{_SHORT.get(k, k): v for k, v in record.items() if k not in common} for record in records])


_SHORT = {"judged_problems": "judged", "judged_shapes": "in_shapes"}
"""Short column heads, so that the counts fit 80 columns."""
_FACTS = ("family", "gpu", "library", "versions", "operator", "direction")
_FACTS += ("dtype", "math", "layout", "variant", "candidates")
"""Columns that are printed once if all records have the same value."""


@click.command()
@_PATHS
@output_option("The dataset to write: parquet, CSV or JSON by its name; - for CSV on standard output.")
@shared.candidates_option
@shared.kernel_options
def merge(paths: tuple[Path, ...], output: Path, candidates: str | None, kernel: "Kernel | None") -> None:
    """Merge datasets or collected runs (JSONL) in PATHS into one dataset; a later file's row wins.

    Examples:
      seer data merge run.jsonl -o run.parquet
      seer data merge a.parquet b.parquet -o both.parquet
    """
    from surrogate.cli.datasets import print_warnings
    from surrogate.dataset.store import merge_datasets as merged, read_dataset, write_dataset
    from surrogate.dataset.tables import is_log

    runs = [path for path in paths if is_log(path)]
    if runs and len(runs) < len(paths):
        raise InputError("PATHS mix runs and datasets; merge the runs first, then the datasets")
    if runs:
        from surrogate.collect.merge import merge_runs

        result = merge_runs(runs)
    else:
        parts = [read_dataset(path, candidates=candidates, kernel=kernel) for path in paths]
        for path, part in zip(paths, parts, strict=True):
            print_warnings(path, part)
        result = merged(parts)
    parts_written = {"candidates": result.candidates, "kernels": result.kernels, "metadata": result.metadata}
    write_dataset(result.frame, output, **parts_written)
    shared.print_written(output, f"{output}: {len(result)} rows")


@click.command()
@click.argument("path", type=PATH)
@option("--name", "The kernel's name.  [default: the file's]", default="", show_default=False)
@option("--sizes", "Columns that are numbers of a problem.  [default: guessed]", metavar="A,B")
@option("--parameters", "Columns that are tuned.  [default: guessed]", metavar="A,B")
@option("--settings", "Columns that are texts of a problem, as dtype.", metavar="A,B")
@output_option("The description to write, TOML; without it, it is printed.", required=False)
def describe(
    path: Path, name: str, sizes: str | None, parameters: str | None, settings: str | None, output: Path | None
) -> None:
    """Write a first description of the kernel of a table of configurations at PATH, with all their values.

    Check it before use: columns that are not given are guessed, unless the file's metadata lists them, as in imported
    files. Add conditions, and formulas of the costs of a launch
    (flops, bytes, blocks, threads_per_block, shared_bytes, registers_per_thread), in plain arithmetic.

    Examples:
      seer data describe tuned.csv --sizes m,n --parameters block,warps -o k.toml
    """
    from surrogate.dataset.described import KernelColumns, guessed_columns, named_columns
    from surrogate.dataset.tables import read_table
    from surrogate.features.description import description_of

    frame, metadata = read_table(path)
    if "kernel" in metadata and sizes is None and parameters is None and settings is None:
        own = description_of(metadata["kernel"], f"{path}: its metadata's kernel")
        _output_description(replace(own, name=name or own.name), output)
        return
    texts = named_columns(settings)
    guessed_sizes, guessed_parameters = guessed_columns(frame.drop(columns=list(texts), errors="ignore"))
    size_columns = tuple(guessed_sizes) if sizes is None else named_columns(sizes)
    left = tuple(column for column in guessed_parameters if column not in size_columns)
    tuned = left if parameters is None else named_columns(parameters)
    if not tuned:
        raise InputError(f"{path}: no column looks like a parameter; give them, --parameters block_m,num_warps")
    _output_description(KernelColumns(tuned, size_columns, texts, name).of(frame, path), output)


def _output_description(description: "Description", output: Path | None) -> None:
    """Print the description, or write it and print a line."""
    from surrogate.dataset.files import write_text

    if output is None:
        echo(*description.to_toml().rstrip("\n").split("\n"))
        return
    write_text(output, description.to_toml())
    columns = f"sizes {', '.join(description.sizes) or 'none'}; parameters {', '.join(description.parameters)}"
    shared.print_written(output, f"{output}: {description.name}: {columns}")


@click.command()
@option("--table", "One table only, as dataset or kernels.  [all]", metavar="TABLE")
@output_options
def columns(table: str | None, form: Form) -> None:
    """List every column of every table that seer reads or writes, with its unit and meaning.

    Examples:
      seer data columns --table kernels
    """
    from surrogate.dataset.columns import TABLES, columns as declared

    selected = declared(table)
    if form:
        show([asdict(column) for column in selected], form)
        return
    for name in dict.fromkeys(column.table for column in selected):
        echo(f"{name}: {TABLES[name]}", width=WIDTH, indent=INDENT)
        for column in selected:
            if column.table == name:
                need = "required" if column.required else "optional"
                facts = ", ".join(filter(None, (column.unit, column.kind, need)))
                echo(f"  {column.name}: {column.meaning} ({facts})", width=WIDTH, indent=f"  {INDENT}")
