"""``seer trace spans``: the across-stack profile as rows."""

from pathlib import Path
from typing import Any

import click

from surrogate.cli.options import output_options, show
from surrogate.cli.trace.options import file_argument, html_option, load, part_options, top_option


@click.command()
@file_argument
@part_options
@click.option(
    "--level",
    type=click.Choice(["model", "layer", "operator", "call", "kernel"]),
    default="layer",
    show_default=True,
    help="The deepest level to show.",
)
@top_option
@html_option
@output_options
def command(
    file: Path, level: str, top: int | None, html: Path | None, as_json: bool, as_csv: bool, **part: Any
) -> None:
    """Spans of FILE from the iteration down to the kernel, each below its parent, in time order.

    A kernel's span is its time on the stream; its parent is the call that launched it.
    """
    from surrogate.trace.profiling import profile
    from surrogate.trace.spans import trace_spans

    trace = load(file, **part)
    if html:
        from surrogate.trace.page import write_page

        write_page(profile(trace), html)
    found = trace_spans(trace).rows(level).top(top)
    show(found.rows, as_json=as_json, as_csv=as_csv)
