"""What would common optimisations gain on real training steps, and what limits them?

What optimisations would gain on three models' steps, by simulation, beside what was published.
"""

import pandas as pd

from experiments.drawing import dots
from experiments.experiment import Effort, Outcome, program
from experiments.sources import Sources
from experiments.traces import DLRM, RESNET50, TRACES, VGG13, workers
from surrogate.features.errors import InputError
from surrogate.trace.graph import graph_of
from surrogate.trace.profiling import profile
from surrogate.trace.whatif import MODELS, Network, evaluate, setting_of, what_if

STEPS = (RESNET50, VGG13, DLRM)
TARGET = "h100-sxm"
NETWORK = Network(workers=8, bandwidth_gbs=10.0, latency_us=10.0)
PUBLISHED = {
    "amp": "kernels 2–3×; errors 3.9–15.3 % (12.6 % ResNet-50)",
    "fused-adam": "errors 1.9–12.5 %",
    "batch-norm": "error 6.1 % (DenseNet-121)",
    "vdnn": "modelled without a measured error",
    "gist": "modelled without a measured error; Gist itself: 4 % slower, 1.8× smaller",
    "dgc": "modelled without a measured error; DGC itself: messages 270–600× smaller",
    "blueconnect": "modelled without a measured error; BlueConnect itself: −87 % communication on 192 GPUs",
}
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
            rows.append({
                **row, "baseline_us": result["baseline_us"], "predicted_us": result["predicted_us"],
                "speedup": result["speedup"], "low_us": result["low_us"], "high_us": result["high_us"],
                "device_speedup": result["device_us_before"] / result["device_us_after"],
                "host_share_pct": host_share(result["critical_path_before"]),
                "host_share_after_pct": host_share(result["critical_path_after"]), "refused": "",
            })  # fmt: skip
    table = pd.DataFrame(rows)
    for column in ("low_us", "high_us"):
        table[column] = table[column].astype(float)
    return Outcome(table, _figure(table), answer(table))


def host_share(path_us: dict[str, float]) -> float:
    """Share of a critical path that is host work and calls, in percent."""
    return 100 * (path_us.get("host work", 0.0) + path_us.get("call", 0.0)) / sum(path_us.values())


def answer(table: pd.DataFrame) -> str:
    """The gains, and what holds them back."""
    done = table[table["refused"] == ""]
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


def _figure(table: pd.DataFrame) -> str | None:
    done = table[table["refused"] == ""]
    shown = done.melt(id_vars=["trace", "what_if"], value_vars=["speedup"], var_name="of", value_name="gain")
    return dots(shown, "what_if", "trace", "gain", "predicted speed-up of an iteration", log=True)


EXPERIMENT = program(run, *(TRACES[label] for label in STEPS))
