"""``seer trace summary``: one trace as a whole, or several as a sweep over batch sizes."""

from pathlib import Path
from typing import Any

import click

from surrogate.cli.options import output_options, show
from surrogate.cli.trace.options import gpu_option, html_option, load, part_options, top_option

_VIEWS = ("model", "layer", "type", "copy")


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@part_options
@click.option(
    "--by",
    type=click.Choice(_VIEWS),
    default="model",
    show_default=True,
    help="The whole model, or a table of its layers, layer types or copies.",
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    multiple=True,
    help="Batch size of each file, where no shape tells.",
)
@gpu_option
@top_option
@html_option
@output_options
def command(
    files: tuple[Path, ...],
    by: str,
    batch: tuple[int, ...],
    gpu: str | None,
    top: int | None,
    html: Path | None,
    as_json: bool,
    as_csv: bool,
    **part: Any,
) -> None:
    """Iteration times, busy and idle time of the device, layers, layer types and copies of a trace.

    Several FILES are one model at several batch sizes: a row each, with throughput and the best batch.
    """
    from surrogate.features.errors import InputError
    from surrogate.trace.profiling import profile
    from surrogate.trace.tables import batch_sweep, copy_table, layer_table, summary, type_table

    if len(files) > 1 and (by != "model" or html):
        raise InputError(
            f"{len(files)} files make one table of batch sizes; give one file with --by {by} or --html"
        )
    profiles = [profile(load(file, **part), gpu) for file in files]
    if len(files) > 1:
        sweep = batch_sweep(profiles, batch).top(top)
        show(sweep.rows if as_json or as_csv else _sweep_columns(sweep.rows), as_json=as_json, as_csv=as_csv)
        return
    one = profiles[0]
    if html:
        from surrogate.trace.page import write_page

        write_page(one, html)
    if by != "model":
        found = {"layer": layer_table, "type": type_table, "copy": copy_table}[by](one).top(top)
        show(found.rows, as_json=as_json, as_csv=as_csv)
        return
    facts = {**summary(one)}
    if batch:
        facts |= {"batch": batch[0], "samples_per_s": batch[0] / facts["iteration_ms"] * 1e3}
    types, copies = type_table(one).top(top), copy_table(one).top(top)
    whole = {"summary": facts, "types": list(types), "copies": list(copies)}
    if as_json or as_csv:
        show([facts], as_json=as_json, as_csv=as_csv, whole=whole)
        return
    show([{"figure": key, "value": value} for key, value in facts.items()], as_json=False, as_csv=False)
    for table in (types, copies):
        if len(table):
            click.echo(f"\n{table.title}")
            show(table.rows, as_json=False, as_csv=False)


def _sweep_columns(rows: Any) -> list[dict[str, Any]]:
    kept = ("trace", "gpu", "batch", "iteration_ms", "samples_per_s", "busy_pct", "kernel_ms", "best")
    return [{key: row[key] for key in kept} for row in rows]
