"""``seer trace simulate``: the replay of a trace beside what was measured."""

from pathlib import Path

import click

from surrogate.cli import trace as shared
from surrogate.cli.options import Form, output_options, show


@click.command()
@shared.file_argument
@shared.part_options
@output_options
def command(file: Path, form: Form, part: shared.Part) -> None:
    """Measured and simulated time of every iteration of FILE, unchanged.

    A task starts when everything it depends on has ended. --json also gives the coverage: what could not be attached,
    and the waits that the trace does not explain, which a replay keeps as they are.

    Examples:
      seer trace simulate trace.json.gz --json
    """
    from surrogate.trace import graph as graphs

    graph = graphs.graph_of(part.load(file))
    timeline = graphs.simulate(graph)
    rows = [
        {"index": iteration.index, "measured_us": iteration.time_us, "simulated_us": time_us}
        for iteration, time_us in zip(graph.iterations, timeline.iteration_us(), strict=False)
    ]
    path = graphs.critical_path(timeline)
    coverage = graph.coverage
    serial = graphs.serialised_pct(timeline)
    path_us = {**path.by_kind_us, "waiting": path.waiting_us}
    whole = {"iterations": rows, "coverage": coverage, "critical_path_us": path_us}
    whole["serialised_pct"] = serial if serial == serial else None
    show(rows, form, whole=whole)
    if form:
        return
    attached = "{attached_pct:.4g} % of {device_tasks:,} device tasks follow a launch".format_map(coverage)
    unexplained = "{unexplained_us:,.0f} µs of waits unexplained ({unexplained_tasks})".format_map(coverage)
    click.echo(
        f"{len(graph):,} tasks; {attached if coverage['device_tasks'] else 'none of them on a device'}; {unexplained}"
    )
    parts = ", ".join(f"{name} {time / 1e3:,.1f}" for name, time in path_us.items())
    click.echo(f"critical path in ms: {parts}")
