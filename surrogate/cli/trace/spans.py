"""``seer trace spans``: spans from the iteration to the kernel, from one recording or from several levels of detail."""

from pathlib import Path

import click

from surrogate.cli import trace as shared
from surrogate.cli.options import option

COLUMNS = ("span", "level", "start_us", "time_us", "track", "id", "parent")
"""Displayed columns."""


@click.command()
@shared.files_argument
@shared.part_options
@option("--level", "The deepest level to show.", ("model", "layer", "operator", "call", "kernel"), default="layer")
@shared.counters_option
@shared.table_options
def command(
    files: tuple[Path, ...], level: str, counters: tuple[Path, ...], out: shared.Output, part: shared.TracePart
) -> None:
    """List the spans of a trace from the iteration to the kernel, each after its parent, in time order.

    A kernel's span is its time on the stream; its parent is the call that launched it. Several FILES are recordings of
    one program with more and more levels, the outermost level first. They become one timeline. In it each level has the
    times of the file in which it is the deepest, and a table shows the recording cost of each level. With --counters,
    the tags of kernels in --json and --csv hold the counters.

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
    shared.echo_notes([] if counted is None else counted.attrs["notes"])
    if len(traces) == 1:
        table = trace_spans(traces[0], counted).rows(level).top(out.top)
        shared.show(table.rows, out.form, table=shared.display_table(table, COLUMNS))
        return
    experiment = leveled_traces(traces, counted)
    merged, lost = experiment.merged()
    table = merged.rows(level).top(out.top)
    levels = experiment.rows()
    json_value = {"levels": list(levels), "spans": list(table), "without_counterpart": lost, "notes": list(table.notes)}
    shared.show(table.rows, out.form, json_value=json_value, table=shared.display_table(table, COLUMNS))
    if not out.form:
        shared.echo("", f"{lost:,} spans without a counterpart in the file before are left out", "")
        shared.show(levels.rows, table=shared.display_table(levels))
