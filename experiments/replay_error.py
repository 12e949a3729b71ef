"""Does a trace's dependency graph replay what was measured, and what does each part give?

Real traces are simulated without a change, complete and with a part replaced. So each part's share of the error is
visible.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd

from experiments.experiment import Effort, ExperimentResult, program
from experiments.sources import Sources
from experiments.traces import POWER, TRACES, workers
from experiments.verdicts import percent
from surrogate.report.charts import dots
from surrogate.trace.graph import EDGE_KINDS, Graph, graph_of, serialised_pct, simulate
from surrogate.trace.graph.tasks import DEVICE_KINDS, HANDOVER, LAUNCH, SYNC, previous_on_resource


def _delayed(graph: Graph, gap_us: float, lag_us: float) -> Graph:
    """Return the graph with every device task this long after the previous one of its stream, and after its launch."""
    device = np.isin(graph.kind, DEVICE_KINDS) & (previous_on_resource(graph.resource) >= 0)
    gaps_us = np.where(device, gap_us, graph.gap_us)
    return replace(graph, gap_us=gaps_us, lag_us=np.where(graph.edge_kind == LAUNCH, lag_us, graph.lag_us))


def typical_delays(graph: Graph) -> Graph:
    """Return the graph with the trace's typical gap and launch latency for every device task."""
    return _delayed(graph, graph.coverage["dispatch_gap_us"], graph.coverage["launch_latency_us"])


def no_delays(graph: Graph) -> Graph:
    """Return the graph with device tasks that start at the end of their launch call and of the stream's previous
    task."""
    return replace(_delayed(graph, 0.0, 0.0), from_start=graph.from_start & ~(graph.edge_kind == LAUNCH))


def without(kind: int) -> Callable[[Graph], Graph]:
    """Return a function that removes all edges of a kind from a graph."""

    def change(graph: Graph) -> Graph:
        remaining = graph.edge_kind != kind
        columns = ("src", "dst", "edge_kind", "lag_us", "from_start")
        return replace(graph, **{name: getattr(graph, name)[remaining] for name in columns})

    return change


def times_of_other_iterations(graph: Graph) -> Graph | None:
    """Return the graph with each device task's median time in the other iterations.

    None if the iterations have different tasks, or if there is only one.
    """
    device = np.isin(graph.kind, DEVICE_KINDS)
    places = range(len(graph.iterations))
    rows = [np.flatnonzero(device & (graph.iteration == number)) for number in places]
    if len(rows) < 2 or any((graph.name[r].tolist() != graph.name[rows[0]].tolist()) for r in rows):
        return None
    times = np.stack([graph.duration_us[r] for r in rows])
    duration = graph.duration_us.copy()
    for number, tasks in enumerate(rows):
        duration[tasks] = np.median(np.delete(times, number, axis=0), axis=0)
    return replace(graph, duration_us=duration)


VARIANTS: dict[str, Callable[[Graph], Graph | None]] = {
    "whole graph": lambda graph: graph,
    "kernel times of other iterations": times_of_other_iterations,
    "typical device delays": typical_delays,
    "no device delays": no_delays,
    "no synchronisation": without(SYNC),
    "no thread hand-over": without(HANDOVER),
}


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Return a row per trace, worker, iteration and variant."""
    rows = []
    for label in TRACES:
        effort.tick(label)
        for worker, trace in enumerate(workers(sources, label)):
            rows += [{"trace": label, "worker": worker, **row} for row in variants(graph_of(trace))]
    table = pd.DataFrame(rows)
    worst = table.assign(error=table["error_pct"].abs())
    drawn = worst.groupby(["trace", "variant"], sort=False)["error"].median().reset_index()
    figure = dots(drawn, "trace", "variant", "error", "median error of an iteration, %")
    return ExperimentResult(table, figure, answer(table))


def variants(graph: Graph) -> list[dict[str, object]]:
    """Return a row per iteration and variant of one graph."""
    facts = {
        "serialised_pct": serialised_pct(simulate(graph)),
        "attached_pct": graph.coverage["attached_pct"],
        "unexplained_us": graph.coverage["unexplained_us"],
        **{f"edges_{kind.replace(' ', '_').replace('-', '_')}": graph.coverage["edges"][kind] for kind in EDGE_KINDS},
    }
    rows = []
    for name, change in VARIANTS.items():
        changed = change(graph)
        if changed is None:
            continue
        for iteration, time_us in zip(graph.iterations, simulate(changed).iteration_us(), strict=True):
            error = 100 * (time_us / iteration.time_us - 1)
            rows.append(
                {
                    "iteration": iteration.index,
                    "variant": name,
                    "measured_us": iteration.time_us,
                    "simulated_us": time_us,
                    "error_pct": error,
                    **facts,
                }
            )
    return rows


def answer(table: pd.DataFrame) -> str:
    """Return the largest error of an iteration per variant: unchanged on all traces, otherwise on the training
    steps."""
    size = table["error_pct"].abs()
    worst = size[table["variant"] == "whole graph"].max()
    steps = table["trace"] != POWER
    largest = size[steps].groupby(table["variant"]).max()
    parts = "; ".join(f"{name} {percent(largest[name])}" for name in list(VARIANTS)[1:] if name in largest)
    serial = table.groupby(["trace", "worker"])["serialised_pct"].first()
    return (
        f"The whole graph replays every iteration within {worst:.2g} % of its measured time; as each device task"
        " carries its own measured delay, this checks the graph's consistency, no more. Largest error on a training"
        f" step with a part replaced: {parts}. One device task runs alone during {serial.min():.0f} to"
        f" {serial.max():.0f} % of the device's busy time."
    )


EXPERIMENT = program(run, *TRACES.values())
