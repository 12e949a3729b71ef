"""``seer trace kernels``: kernels as nvprof prints them, with occupancy, roofline and bound."""

from pathlib import Path

import click

from surrogate.cli import trace as shared
from surrogate.cli.options import Form, html_option, option, output_options, show
from surrogate.features.errors import InputError

COLUMNS = (
    *("time_pct", "total_us", "calls", "avg_us", "bound", "unit", "tflops", "dram_gbs", "occupancy_pct", "limited_by"),
    *("min_us", "max_us"),
)
"""Columns that people see behind the name; the last ones go first if a line is too long."""
COUNTED = (
    *("time_pct", "total_us", "calls", "counted", "bound", "measured_bound", "occupancy_pct"),
    *("measured_occupancy_pct", "gflop", "measured_gflop", "dram_mb", "read_mb", "write_mb"),
    "measured_flop_per_byte",
)
"""The same with --counters."""


@click.command()
@shared.file_argument
@shared.part_options
@option(
    "--by",
    "One row per kernel name, layer, layer type, or for the whole model.",
    ("name", "layer", "type", "model"),
    default="name",
)
@shared.counters_option
@shared.gpu_option
@shared.top_option
@html_option
@output_options
def command(
    file: Path,
    by: str,
    counters: tuple[Path, ...],
    gpu: str | None,
    top: int | None,
    html: Path | None,
    form: Form,
    part: shared.Part,
) -> None:
    """Time %, total, calls, average, minimum and maximum of the kernels in FILE, the longest total first.

    Where shapes tell the work: the rate reached and the bound. Under 60 % of both peaks a launch is latency-bound for
    too few bytes, FLOPs or blocks; a full one is below both peaks. Occupancy is the launch's, with what limits it.
    Names are shortened; --json and --csv hold the full ones, and grid, block, registers, FLOPs and bytes.
    With --counters what was counted stands beside it: FLOPs, DRAM traffic, achieved occupancy and the bound by them.
    FILE may be what `nvprof PROGRAM` prints, too: its kernels, copies and API calls by name.

    Examples:
      seer trace kernels trace.json.gz --by layer --top 20
      seer trace kernels trace.json.gz --counters ncu.csv
      seer trace kernels nvprof.log --counters metrics.csv --gpu "GTX 1080 Ti"
    """
    from surrogate.formats.nvprof import is_summary, read_summary
    from surrogate.trace.kernels import kernel_table, summary_table, with_counters
    from surrogate.trace.profiling import profile, renamed_note, steady

    if is_summary(file):
        from surrogate.features.gpu import gpu as gpu_named

        if by != "name" or html or part != shared.Part():
            raise InputError(
                f"{file}: nvprof's summary knows kernels by name alone; leave out every option for a trace"
            )
        summarised = summary_table(read_summary(file), counters, gpu_named(gpu) if gpu else None).top(top)
        show(summarised.rows, form, table=shared.for_people(summarised))
        return
    profiled = steady(profile(part.load(file), gpu))
    shared.echo_notes(filter(None, [profiled.left_out, renamed_note(profiled)]))
    profiled = with_counters(profiled, counters) if counters else profiled
    shared.write_page(profiled, html)
    result = kernel_table(profiled, by).top(top)
    names = ("kernel" if by == "name" else by, *(COUNTED if counters else COLUMNS))
    show(result.rows, form, table=shared.for_people(result, names))
