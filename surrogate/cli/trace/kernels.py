"""``seer trace kernels``: a kernel table like nvprof's, with occupancy, roofline and bound.

``seer trace diff``: a comparison of two traces of one program.
"""

import re
from dataclasses import asdict, replace
from pathlib import Path

import click

from surrogate.cli import trace as shared
from surrogate.cli.options import HELP, INDEX, PATH, Form, option, output_options
from surrogate.features.errors import InputError, read_toml

COLUMNS, COUNTER_COLUMNS, DIFF_COLUMNS = read_toml(__file__).values()
"""Displayed columns after the name: of kernels, with --counters, and of a comparison."""
_BETWEEN_NAMES = re.compile(r"( → | and \d+ more(?= → |$))")


@click.command()
@shared.file_argument
@shared.part_options
@option("--by", HELP["trace kernels"]["by"], ("name", "layer", "type", "label", "model"), default="name")
@shared.counters_option
@shared.gpu_option
@shared.table_options
def command(
    file: Path, by: str, counters: tuple[Path, ...], gpu: str | None, out: shared.Output, part: shared.TracePart
) -> None:
    """List the kernels in FILE: share of time, total, calls, average, minimum, maximum; the longest total first.

    If shapes give the work, a row has its rate and its bound. Below 60 % of both peaks, a launch is latency-bound by
    too few bytes, FLOPs or blocks, or a full launch is below both peaks. Occupancy is the launch's, with its limit.
    Names are shortened. --json and --csv have full names, and grid, block, registers, FLOPs and bytes.
    --counters adds counted FLOPs, DRAM traffic, achieved occupancy and the bound from these counters.
    FILE may also be the output of `nvprof PROGRAM` or `nsys stats`: its kernels, copies and API calls by name.

    Examples:
      seer trace kernels trace.json.gz --by layer --top 20
      seer trace kernels trace.json.gz --counters ncu.csv
      seer trace kernels nvprof.log --counters metrics.csv --gpu "GTX 1080 Ti"
    """
    from surrogate.formats.nvprof import is_summary, read_summary
    from surrogate.trace.events.phases import whole_graphs
    from surrogate.trace.kernels import kernel_table, summary_table, with_counters

    if is_summary(file):
        from surrogate.features.gpu import gpu as gpu_by_name

        if by != "name" or out.html or part != shared.TracePart():
            raise InputError(f"{file}: a summary has only kernels by name; leave out --by, --html and all parts")
        title, notes, records = read_summary(file)
        shared.echo_notes(notes)
        summarised = summary_table(title, records, counters, gpu_by_name(gpu) if gpu else None).top(out.top)
        columns = tuple(dict.fromkeys(["kernel", *(key for row in summarised for key in row)]))
        shared.show(summarised.rows, out.form, table=shared.display_table(summarised, columns))
        return
    profiled = part.steady(file, gpu, None if out.form else whole_graphs)
    profiled = with_counters(profiled, counters) if counters else profiled
    out.write_page(profiled)
    result = kernel_table(profiled, by).top(out.top)
    filled = {name for row in result for name, value in row.items() if value is not None}
    columns = [name for name in (COUNTER_COLUMNS if counters else COLUMNS) if name in filled]
    shared.show(result.rows, out.form, table=shared.display_table(result, ["kernel" if by == "name" else by, *columns]))


@click.command()
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@shared.part_options
@option("--iteration-b", "Only this iteration of B, instead of --iteration; repeatable.", INDEX, multiple=True)
@option("--by", "[operator, type or kernel: the best match]", ("layer", "type", "label", "operator", "kernel"))
@shared.top_option
@output_options
def diff(
    a: Path, b: Path, iteration_b: tuple[int, ...], by: str | None, top: int | None, form: Form, part: shared.TracePart
) -> None:
    """Compare device time per iteration in A and B: one program on two GPUs, or in two versions or settings.

    The first lines say how much of the time matches, and whether these seem to be different programs. Then follow
    totals: the median iteration, and means of all other figures. Busy and idle time are from an iteration's start to
    its end.
    Then follows a row for each match and for each part that only A or only B has, the largest change first. Parts match
    by name and shape, else by shape, by order or by the operator's name (kernels: by name, by operator, by family). The
    changes of all rows add up to the change of the device time.

    Examples:
      seer trace diff v100.json.gz h100.json.gz --by operator --top 20
      seer trace diff trace.json.gz trace.json.gz --iteration 1 --iteration-b 3
    """
    from surrogate.trace.diff import trace_diff
    from surrogate.trace.result import ResultTable, short_names

    all_iterations = replace(part, iteration=())  # `trace_diff` chooses iterations
    chosen = part.iteration, iteration_b or part.iteration
    compared = trace_diff(all_iterations.load(a), all_iterations.load(b), by, chosen)
    rows = compared.rows[:top]
    if form:
        shared.echo_notes(compared.notes)
    else:
        shared.echo(*compared.notes, "")
        totals = ResultTable("A before, B after, µs per iteration", compared.totals)
        shared.show(totals.rows, table=shared.display_table(totals))
        shared.echo("")
    texts = {row["kernel"]: _BETWEEN_NAMES.split(row["kernel"]) for row in rows if compared.by == "kernel"}
    of_name = short_names(name for parts in texts.values() for name in parts[::2])
    short = {text: "".join(of_name.get(part, part) for part in parts) for text, parts in texts.items()}
    columns = dict.fromkeys([compared.by, *DIFF_COLUMNS, *rows[0]]) if rows else {}
    table = shared.display_table(ResultTable("", rows, short=short), [name for name in columns if name in rows[0]])
    shared.show(rows, form, json_value=asdict(compared) | {"rows": rows}, table=table)
