"""``seer trace spans``: spans from the iteration down to the kernel, of one recording or several ever deeper ones."""

from pathlib import Path

import click

from surrogate.cli import trace as shared
from surrogate.cli.options import option, show

COLUMNS = ("span", "level", "start_us", "time_us", "track", "id", "parent")
"""Columns that people see."""


@click.command()
@shared.files_argument
@shared.part_options
@option("--level", "The deepest level to show.", ("model", "layer", "operator", "call", "kernel"), default="layer")
@shared.counters_option
@shared.table_options
def command(
    files: tuple[Path, ...], level: str, counters: tuple[Path, ...], out: shared.Output, part: shared.TracePart
) -> None:
    """Spans of a trace from the iteration down to the kernel, each below its parent, in time order.

    A kernel's span is its time on the stream; its parent is the call that launched it. Several FILES are one program
    recorded ever deeper, the outermost level first: one timeline, in which each level has the time of the file that
    goes only down to it, and what recording each level costs. With --counters the tags of kernels, in --json and
    --csv, hold what was counted.

    Examples:
      seer trace spans trace.json.gz --level kernel --iteration 1
      seer trace spans steps.json operators.json kernels.json --level kernel
    """
    from surrogate.trace.kernels import with_counters
    from surrogate.trace.profiling import profile
    from surrogate.trace.spans import trace_spans
    from surrogate.trace.tracer import leveled_traces

    traces = [part.load(file) for file in files]
    if out.html:
        out.write_page(profile(traces[-1]))
    counted = with_counters(profile(traces[-1]), counters).counters if counters else None
    if len(traces) == 1:
        table = trace_spans(traces[0], counted).rows(level).top(out.top)
        show(table.rows, out.form, table=shared.for_people(table, COLUMNS))
        return
    experiment = leveled_traces(traces, counted)
    merged, lost = experiment.merged()
    table = merged.rows(level).top(out.top)
    levels = experiment.rows()
    whole = {"levels": list(levels), "spans": list(table), "without_counterpart": lost}
    show(table.rows, out.form, json_value=whole, table=shared.for_people(table, COLUMNS))
    if not out.form:
        click.echo(f"\n{lost:,} spans without a counterpart in the file before are left out\n")
        show(levels.rows)
