"""``seer trace simulate``: replay a trace from its dependency graph."""

from pathlib import Path
from typing import Any

import click

from surrogate.cli.options import output_options, show
from surrogate.cli.trace.options import file_argument, load, part_options


@click.command()
@file_argument
@part_options
@output_options
def command(file: Path, as_json: bool, as_csv: bool, **part: Any) -> None:
    """Measured and simulated time of every iteration of FILE, unchanged.

    A task starts when everything it depends on has ended. --json also gives the coverage: what could not be attached,
    and the waits that the trace does not explain, which a replay keeps as they are.
    """
    from surrogate.trace.graph import critical_path, graph_of, serialised_pct, simulate

    graph = graph_of(load(file, **part))
    timeline = simulate(graph)
    rows = [
        {"index": one.index, "measured_us": one.time_us, "simulated_us": time_us}
        for one, time_us in zip(graph.iterations, timeline.iteration_us(), strict=False)
    ]
    path = critical_path(timeline)
    serial = serialised_pct(timeline)
    whole = {
        "iterations": rows,
        "coverage": graph.coverage.to_dict(),
        "critical_path_us": {**path.by_kind_us, "waiting": path.waiting_us},
        "serialised_pct": serial if serial == serial else None,
    }
    show(rows, as_json=as_json, as_csv=as_csv, whole=whole)
    if as_json or as_csv:
        return
    found = graph.coverage
    attached = f"{found.attached_pct:.4g} % of {found.device_tasks:,} device tasks follow a launch"
    click.echo(
        f"{len(graph):,} tasks; {attached if found.device_tasks else 'none of them on a device'};"
        f" {found.unexplained_us:,.0f} µs of waits unexplained ({found.unexplained_tasks})"
    )
    parts = ", ".join(f"{name} {time / 1e3:,.1f}" for name, time in whole["critical_path_us"].items())
    click.echo(f"critical path in ms: {parts}")
