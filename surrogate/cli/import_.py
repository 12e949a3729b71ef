"""``seer import``: read other programs' files as a dataset."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from surrogate.cli import options as shared
from surrogate.cli.options import COUNT, HELP, PATH, WordChoice, echo, option, output_option, print_written
from surrogate.features import InputError
from surrogate.formats import FORMATS
from surrogate.formats.imported import Imported, plural

_FORMATS = "\n".join(f"  {each.name:<15} {each.summary}" for each in FORMATS.values())
_OPTIONS = {name: each for chosen in FORMATS.values() for name, each in chosen.options.items()}
_TYPES = {"text": None, "file": PATH, "count": COUNT}


def _with_reader_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add every option that a reader declares."""
    for name, each in reversed(_OPTIONS.items()):
        kind = each.choices or _TYPES[each.takes]
        function = option(f"--{name.replace('_', '-')}", each.help, kind, metavar=each.metavar or None)(function)
    return function


@click.command(name="import", help=HELP["import"]["command"].format(formats=_FORMATS))
@click.argument("format_name", metavar="FORMAT", type=WordChoice(list(FORMATS)))
@click.argument("paths", nargs=-1, type=PATH)
@output_option("The dataset to write: parquet, CSV or JSON by its name; - for CSV on standard output.", required=False)
@option("--how", "Explain how to get files of this format, and exit.", is_flag=True)
@option("--gpu", HELP["import"]["gpu"], multiple=True, metavar="G")
@_with_reader_options
@option("--quiet", "No progress bar and no notes on standard error.", is_flag=True)
def command(
    format_name: str,
    paths: tuple[Path, ...],
    output: Path | None,
    how: bool,
    quiet: bool,
    gpu: tuple[str, ...],
    **options: Any,
) -> None:
    """Import PATHS and write them to OUTPUT."""
    from surrogate.cli.datasets import progress_bar

    chosen = FORMATS[format_name]
    if how:
        echo(*chosen.how_to_get().split("\n"))
        return
    if output is None:
        raise InputError("no output given; give the dataset to write with -o DATA.parquet")
    shared.refuse_input(output, *paths)
    if gpu:
        options |= {"gpus": gpu} if "gpus" in chosen.parameters else {"gpu": gpu[-1]}
    with progress_bar(chosen.name, "byte", unit_scale=True, disable=quiet or None) as step:
        imported = chosen.read(paths, progress=step, **options)
    written = _write(imported, output)
    if not quiet:
        for note in imported.notes:
            echo(f"note: {note}", err=True)
    for line in written:
        print_written(output, line)


def _write(imported: Imported, output: Path) -> list[str]:
    """Write the dataset and its kernels, or only a kernel table. Return one line per written file."""
    from surrogate.dataset.store import kernels_path, write_dataset
    from surrogate.dataset.tables import write_table

    kernels = imported.kernels
    if imported.rows.empty:
        if kernels is None or kernels.empty:
            raise InputError("the files hold neither a problem nor a launch; give other files")
        write_table(kernels, output, {"schema": 1, "table": "launches"})
        is_by_name = "invocations" in kernels and kernels["blocks"].isna().all()
        counted = plural(len(kernels), "kernel" if is_by_name else "launch")
        return [f"{output}: a kernel table of {counted} without problems, not a dataset"]
    write_dataset(imported.rows, output, candidates=imported.candidates, kernels=kernels, metadata=imported.metadata)
    lines = [f"{output}: {plural(len(imported.rows), 'row')}, candidates {imported.candidates}"]
    if kernels is not None and len(kernels):
        lines.append(f"{kernels_path(output)}: {plural(len(kernels), 'kernel')}")
    return lines
