"""What would common optimisations gain on real training steps, and what limits them?

What optimisations would gain on three models' steps, by simulation, beside what was published.
"""

import pandas as pd

from experiments.drawing import dots
from experiments.experiment import Effort, Outcome, program
from experiments.sources import Sources, beside
from experiments.traces import DLRM, RESNET50, TRACES, VGG13, workers
from surrogate.features.errors import InputError
from surrogate.trace.graph import graph_of
from surrogate.trace.profiling import profile
from surrogate.trace.whatif import MODELS, Network, evaluate, setting_of, what_if

STEPS = (RESNET50, VGG13, DLRM)
TARGET = "h100-sxm"
NETWORK = Network(workers=8, bandwidth_gbs=10.0, latency_us=10.0)
FIGURES = ("baseline_us", "predicted_us", "speedup", "low_us", "high_us")
PUBLISHED = beside(__file__)
"""What Daydream (ATC 2020) reports for the same rule, and what an optimisation's own paper does."""


def run(sources: Sources, effort: Effort) -> Outcome:
    """A row per trace and what-if; ``refused`` says why one does not apply."""
    rows = []
    for label in STEPS:
        trace = workers(sources, label)[0]  # the workers of one step run the same program
        profiled = profile(trace)
        graph = graph_of(trace, profiled.layers)
        plain = setting_of(profiled, network=NETWORK)
        other = setting_of(profiled, target=TARGET, network=NETWORK)
        for name in MODELS:
            effort.tick(f"{name} on {label}")
            row = {"trace": label, "what_if": name, "published": PUBLISHED.get(name, "")}
            try:
                result = evaluate(graph, [what_if(name)], other if name == "gpu" else plain)[0].to_dict()
            except InputError as error:
                rows.append({**row, "refused": str(error)})
                continue
            row |= {name: result[name] for name in FIGURES}
            row["device_speedup"] = result["device_us_before"] / result["device_us_after"]
            row["host_share_pct"] = host_share(result["critical_path_before"])
            row["host_share_after_pct"] = host_share(result["critical_path_after"])
            rows.append({**row, "refused": ""})
    table = pd.DataFrame(rows).astype({"low_us": float, "high_us": float})
    done = table[table["refused"] == ""]
    figure = dots(done, "what_if", "trace", "speedup", "predicted speed-up of an iteration", log=True)
    return Outcome(table, figure, answer(done))


def host_share(path_us: dict[str, float]) -> float:
    """Share of a critical path that is host work and calls, in percent."""
    return 100 * (path_us.get("host work", 0.0) + path_us.get("call", 0.0)) / sum(path_us.values())


def answer(done: pd.DataFrame) -> str:
    """The gains of what applies, and what holds them back."""
    parts = []
    for trace, rows in done.groupby("trace", sort=False):
        gains = rows.set_index("what_if")
        listed = ", ".join(f"{name} {gains.loc[name, 'speedup']:.2f}×" for name in gains.index)
        parts.append(f"{trace} (host on {gains['host_share_pct'].iloc[0]:.0f} % of the critical path): {listed}")
    amp = done[done["what_if"] == "amp"].set_index("trace")["device_speedup"]
    device = ", ".join(f"{value:.2f}× ({trace})" for trace, value in amp.items())
    return (
        "; ".join(parts)
        + f". By Daydream's rule (kernels ÷2 or ÷3) mixed precision speeds the device up {device}. Steps bound by the"
        " host (data loading, Python under a profiler) gain far less; a DLRM worker's device mostly runs collectives,"
        " which the rule leaves alone."
    )


EXPERIMENT = program(run, *(TRACES[label] for label in STEPS))
