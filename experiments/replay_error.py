"""(p) Where a replay's error comes from: real traces simulated unchanged, whole and with a part replaced."""

import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.drawing import dots
from experiments.effort import Effort
from experiments.experiment import Experiment, Outcome
from experiments.script import run_script
from experiments.sources import Sources
from experiments.words import percent
from surrogate.trace.events import Trace, read_trace
from surrogate.trace.graph import EDGE_KINDS, Graph, graph_of, serialised_pct, simulate
from surrogate.trace.graph.tasks import DEVICE_KINDS, HANDOVER, LAUNCH, SYNC, previous_on_resource

TRACES = {
    "ResNet-50, V100": "resnet50_b32_training_v100.json.gz",
    "VGG-13, H100": "vgg13_b128_training_h100.json.gz",
    "DLRM, 8 × V100": "dlrm_8_workers_v100.tar.gz",
    "ResNet, 2080 Ti": "resnet_training_2080ti_no_dims.json.gz",
    "power iteration, nsys": "nsys_power_iteration.sqlite",
}
FOLDER = "traces"


@dataclass(frozen=True, slots=True)
class TraceExperiment(Experiment):
    """An experiment on the traces of ``TRACES`` in the folder ``traces`` of the data."""

    def missing(self, sources: Sources) -> str | None:
        """One line that names the traces that are not there, or None."""
        paths = [sources.folder / FOLDER / name for name in TRACES.values()]
        absent = [str(path) for path in paths if not path.is_file()]
        if not absent:
            return None
        return f"{self.name}: skipped, {', '.join(absent)} missing; --data DIR says where the files lie"


def traces(sources: Sources, names: tuple[str, ...] = tuple(TRACES)) -> Iterator[tuple[str, Trace]]:
    """(label, trace); an archive of several workers gives one each."""
    for label in names:
        path = sources.folder / FOLDER / TRACES[label]
        if not path.name.endswith(".tar.gz"):
            yield label, read_trace(path)
            continue
        with tarfile.open(path) as archive, tempfile.TemporaryDirectory() as folder:
            members = sorted((m for m in archive.getmembers() if m.isfile()), key=lambda m: m.name)
            for place, member in enumerate(m for m in members if m.name.endswith(".json")):
                content = archive.extractfile(member)
                if content is not None:
                    copy = Path(folder) / f"worker{place}.json"
                    copy.write_bytes(content.read())
                    yield f"{label}, worker {place}", read_trace(copy)


def typical_delays(graph: Graph) -> Graph:
    """Every device task with the trace's typical gap and launch latency in place of its own."""
    device = np.isin(graph.kind, DEVICE_KINDS) & (previous_on_resource(graph.resource) >= 0)
    launch = graph.edge_kind == LAUNCH
    return replace(
        graph,
        gap_us=np.where(device, graph.coverage.dispatch_gap_us, graph.gap_us),
        lag_us=np.where(launch, graph.coverage.launch_latency_us, graph.lag_us),
    )


def no_delays(graph: Graph) -> Graph:
    """Device tasks right at the end of their launch call and of their stream's previous task."""
    device = np.isin(graph.kind, DEVICE_KINDS) & (previous_on_resource(graph.resource) >= 0)
    launch = graph.edge_kind == LAUNCH
    return replace(
        graph,
        gap_us=np.where(device, 0.0, graph.gap_us),
        lag_us=np.where(launch, 0.0, graph.lag_us),
        from_start=graph.from_start & ~launch,
    )


def without(kind: int) -> Callable[[Graph], Graph]:
    """The graph less all edges of a kind."""

    def change(graph: Graph) -> Graph:
        kept = graph.edge_kind != kind
        columns = ("src", "dst", "edge_kind", "lag_us", "from_start")
        return replace(graph, **{name: getattr(graph, name)[kept] for name in columns})

    return change


def times_of_other_iterations(graph: Graph) -> Graph | None:
    """Every device task with the median time that its counterpart took in the other iterations.

    None where the iterations differ in their tasks, or there is one.
    """
    device = np.isin(graph.kind, DEVICE_KINDS)
    places = range(len(graph.iterations))
    rows = [np.flatnonzero(device & (graph.iteration == place)) for place in places]
    if len(rows) < 2 or any((graph.name[r].tolist() != graph.name[rows[0]].tolist()) for r in rows):
        return None
    times = np.stack([graph.duration_us[r] for r in rows])
    duration = graph.duration_us.copy()
    for place, own in enumerate(rows):
        duration[own] = np.median(np.delete(times, place, axis=0), axis=0)
    return replace(graph, duration_us=duration)


VARIANTS: dict[str, Callable[[Graph], Graph | None]] = {
    "whole graph": lambda graph: graph,
    "kernel times of other iterations": times_of_other_iterations,
    "typical device delays": typical_delays,
    "no device delays": no_delays,
    "no synchronisation": without(SYNC),
    "no thread hand-over": without(HANDOVER),
}


def run(sources: Sources, effort: Effort) -> Outcome:
    """A row per trace, iteration and variant."""
    rows = []
    for label, trace in traces(sources):
        effort.tick(label)
        graph = graph_of(trace)
        whole = simulate(graph)
        facts = {
            "serialised_pct": serialised_pct(whole), "attached_pct": graph.coverage.attached_pct,
            "unexplained_us": graph.coverage.unexplained_us,
            **{f"edges_{kind.replace(' ', '_').replace('-', '_')}": graph.coverage.edges[kind] for kind in EDGE_KINDS},
        }  # fmt: skip
        for name, change in VARIANTS.items():
            changed = change(graph)
            if changed is None:
                continue
            for one, time_us in zip(graph.iterations, simulate(changed).iteration_us(), strict=True):
                error = 100 * (time_us / one.time_us - 1)
                rows.append({"trace": label, "iteration": one.index, "variant": name, "measured_us": one.time_us,
                             "simulated_us": time_us, "error_pct": error, **facts})  # fmt: skip
    table = pd.DataFrame(rows)
    return Outcome(table, _figure(table), answer(table))


def answer(table: pd.DataFrame) -> str:
    """Largest error of an iteration per variant: of the whole graph on all traces, else on the training steps."""
    size = table["error_pct"].abs()
    worst = size[table["variant"] == "whole graph"].max()
    steps = ~table["trace"].isin(["power iteration, nsys"])
    largest = size[steps].groupby(table["variant"]).max()
    parts = "; ".join(f"{name} {percent(largest[name])}" for name in list(VARIANTS)[1:] if name in largest)
    serial = table.groupby("trace")["serialised_pct"].first()
    return (
        f"The whole graph replays every iteration within {worst:.2g} % of its measured time; as each device task"
        " carries its own measured delay, this checks the graph's consistency, no more. Largest error on a training"
        f" step with a part replaced: {parts}. One device task runs alone during {serial.min():.0f} to"
        f" {serial.max():.0f} % of the device's busy time."
    )


def _figure(table: pd.DataFrame) -> str | None:
    worst = table.assign(
        error=table["error_pct"].abs(), trace=table["trace"].str.replace(r", worker.*", "", regex=True)
    )
    shown = worst.groupby(["trace", "variant"], sort=False)["error"].median().reset_index()
    return dots(
        shown, category="trace", series="variant", value="error", xlabel="median error of an iteration, %"
    )


EXPERIMENT = TraceExperiment(
    "replay_error",
    "Does a trace's dependency graph replay what was measured, and what does each part give?",
    (),
    run,
)

if __name__ == "__main__":
    run_script(EXPERIMENT)
