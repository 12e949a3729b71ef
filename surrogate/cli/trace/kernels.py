"""``seer trace kernels``: kernels as nvprof prints them, with occupancy, roofline and bound. ``seer trace diff``: two
traces of one program compared.
"""

import re
from dataclasses import asdict, replace
from pathlib import Path

import click

from surrogate.cli import trace as shared
from surrogate.cli.options import INDEX, PATH, Form, option, output_options, show
from surrogate.features.errors import InputError
from surrogate.report.tables import Table, terminal_width, wrapped

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
_BETWEEN_NAMES = re.compile(r"( → | and \d+ more(?= → |$))")


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
@shared.table_options
def command(
    file: Path, by: str, counters: tuple[Path, ...], gpu: str | None, out: shared.Output, part: shared.TracePart
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

    if is_summary(file):
        from surrogate.features.gpu import gpu as gpu_named

        if by != "name" or out.html or part != shared.TracePart():
            raise InputError(
                f"{file}: nvprof's summary knows kernels by name alone; leave out every option for a trace"
            )
        summarised = summary_table(read_summary(file), counters, gpu_named(gpu) if gpu else None).top(out.top)
        show(summarised.rows, out.form, table=shared.for_people(summarised))
        return
    profiled = part.steady(file, gpu)
    profiled = with_counters(profiled, counters) if counters else profiled
    out.write_page(profiled)
    result = kernel_table(profiled, by).top(out.top)
    names = ("kernel" if by == "name" else by, *(COUNTED if counters else COLUMNS))
    show(result.rows, out.form, table=shared.for_people(result, names))


@click.command()
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@shared.part_options
@option("--iteration-b", "Only this one of B, in place of --iteration; repeatable.", INDEX, multiple=True)
@option("--by", "[operator, type or kernel: what matches most]", ("layer", "type", "operator", "kernel"))
@shared.top_option
@output_options
def diff(
    a: Path, b: Path, iteration_b: tuple[int, ...], by: str | None, top: int | None, form: Form, part: shared.TracePart
) -> None:
    """Device time per iteration in A and in B, the same program on another GPU, in another version or setting.

    How much matches by what, and whether these seem to be different programs. Then totals: the median iteration, else
    means, busy and idle between an iteration's start and end. Then a row for all that matches, by name and shape, else
    by shape, by order or by the operator's name alone (kernels: by name, by operator, by family), and for what stands
    only in A or only in B, the largest change first. The changes of all rows add up to that of the device time.

    Examples:
      seer trace diff v100.json.gz h100.json.gz --by operator --top 20
      seer trace diff trace.json.gz trace.json.gz --iteration 1 --iteration-b 3
    """
    from surrogate.trace.diff import trace_diff
    from surrogate.trace.result import short_names

    whole = replace(part, iteration=())  # iterations are chosen when both traces are there
    compared = trace_diff(whole.load(a), whole.load(b), by, (part.iteration, iteration_b or part.iteration))
    rows = compared.rows[:top]
    if form:
        shared.echo_notes(compared.notes)
    else:
        click.echo("\n".join(wrapped(note, terminal_width()) for note in compared.notes) + "\n")
        click.echo(Table(compared.totals, title="A before, B after, µs per iteration").text(terminal_width()) + "\n")
    table = Table(rows)
    if compared.by == "kernel":
        short = short_names(name for row in rows for name in _BETWEEN_NAMES.split(row["kernel"])[::2])

        def shown(both: str) -> str:
            return "".join(short.get(part, part) for part in _BETWEEN_NAMES.split(both))

        table = replace(table, formats={"kernel": shown}, widest=shared.PIPE_WIDTH)
    show(rows, form, json_value=asdict(compared) | {"rows": rows}, table=table)
