"""``seer trace kernels``: the aggregated kernel table."""

from pathlib import Path
from typing import Any

import click

from surrogate.cli.options import output_options, show
from surrogate.cli.trace.options import (
    file_argument,
    gpu_option,
    html_option,
    load,
    part_options,
    top_option,
)

_NARROW = (
    "kernel", "time_pct", "total_us", "calls", "avg_us", "min_us", "max_us", "bound", "tflops", "dram_gbs",
    "occupancy_pct", "limited_by",
)  # fmt: skip


@click.command()
@file_argument
@part_options
@click.option(
    "--by",
    type=click.Choice(["name", "layer", "type", "model"]),
    default="name",
    show_default=True,
    help="One row per kernel name, layer, layer type, or for the whole model.",
)
@gpu_option
@top_option
@html_option
@output_options
def command(
    file: Path,
    by: str,
    gpu: str | None,
    top: int | None,
    html: Path | None,
    as_json: bool,
    as_csv: bool,
    **part: Any,
) -> None:
    """Time %, total, calls, average, minimum and maximum of the kernels in FILE, the longest total first.

    Where shapes tell the work: the rate reached and the bound (under 60 % of both peaks: latency-bound). Occupancy
    is the launch's, with what limits it. --json and --csv also give grid, block, registers, FLOPs and bytes.
    """
    from surrogate.trace.kernels import kernel_table
    from surrogate.trace.profiling import profile

    one = profile(load(file, **part), gpu)
    if html:
        from surrogate.trace.page import write_page

        write_page(one, html)
    found = kernel_table(one, by).top(top)
    if as_json or as_csv:
        show(found.rows, as_json=as_json, as_csv=as_csv)
        return
    click.echo(found.title)
    show([{key: row[key] for key in _NARROW} for row in found.rows], as_json=False, as_csv=False)
    for note in found.notes:
        click.echo(note)
