"""What would common optimisations gain on real training steps, and what limits them?

Gains of optimisations are simulated for three models' steps, and compared with published gains.
"""

from dataclasses import replace

import pandas as pd

from experiments.experiment import Effort, ExperimentResult, program
from experiments.sources import DLRM, RESNET50, TRACES, VGG13, Sources, own_settings
from surrogate.report.charts import dots
from surrogate.trace.graph import Graph, graph_of
from surrogate.trace.profiling import profile
from surrogate.trace.whatif import (
    WHAT_IF_RULES,
    Interconnect,
    WhatIfAnswer,
    WhatIfSetting,
    evaluate,
    setting_of,
    what_if,
)

STEPS = (RESNET50, VGG13, DLRM)
TARGET = "h100-sxm"
NETWORK = Interconnect(workers=8, bandwidth_gbs=10.0, latency_us=10.0)
SWEPT = ("data-parallel", "parameter-server", "p3")
SWEEP_GBS = (0.25, 0.5, 1.25, 2.5, 5.0, 12.5)
MACHINES = Interconnect(workers=4, latency_us=10.0)
"""The network of the sweep of bandwidths (2 to 100 Gbit/s): four machines with one GPU each."""
FIGURES = ("baseline_us", "predicted_us", "speedup", "low_us", "high_us")
PUBLISHED = own_settings(__file__)
"""Figures of Daydream (ATC 2020) for the same rule, and of an optimisation's own paper."""


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Return a row per trace and what-if; ``refused`` is the reason if one does not apply.

    The rows of distributed what-ifs follow, one for each bandwidth of a sweep.
    """
    rows = []
    for label in STEPS:
        profiled = profile(sources.traces(label)[0])  # the workers of one step run the same program
        graph = graph_of(profiled.trace, profiled.layers)
        networked = setting_of(profiled, network=NETWORK)
        other = setting_of(profiled, target=TARGET, network=NETWORK)
        for name in WHAT_IF_RULES:
            effort.tick(f"{name} on {label}")
            row = {"trace": label, "what_if": name, "published": PUBLISHED.get(name, "")}
            refusals: dict[str, str] = {}
            found = evaluate(graph, [what_if(name)], other if name == "gpu" else networked, refusals=refusals)
            rows.append({**row, **(figures_of(found[0]) if found else {}), "refused": "".join(refusals.values())})
        effort.tick(f"bandwidths on {label}")
        rows += swept(label, graph, networked)
    table = pd.DataFrame(rows).astype({"low_us": float, "high_us": float})
    done = table.dropna(subset="device_speedup")
    figure = dots(done, "what_if", "trace", "speedup", "predicted speed-up of an iteration", log=True)
    return ExperimentResult(table, figure, answer(table))


def swept(label: str, graph: Graph, setting: WhatIfSetting) -> list[dict[str, object]]:
    """Return a row per bandwidth and distributed what-if."""
    rows: list[dict[str, object]] = []
    for gbs in SWEEP_GBS:
        network = replace(MACHINES, bandwidth_gbs=gbs)
        for each in evaluate(graph, [what_if(name) for name in SWEPT], replace(setting, network=network)):
            figures = {name: getattr(each, name) for name in FIGURES}
            rows.append({"trace": label, "what_if": each.name, **figures, "bandwidth_gbs": gbs, "refused": ""})
    return rows


def sweep_answer(table: pd.DataFrame) -> str:
    """Return the bandwidth above which communication costs under 5 %, and P3's maximum gain over the parameter
    server."""
    texts = []
    for trace, rows in table.groupby("trace", sort=False):
        us = rows.pivot_table(index="bandwidth_gbs", columns="what_if", values="predicted_us")
        free = us.index[us["data-parallel"] <= 1.05 * rows["baseline_us"].iloc[0]]
        gain = us["parameter-server"] / us["p3"]
        hidden = f"hidden to 5 % from {free.min():g} GB/s on" if len(free) else "never hidden to 5 %"
        texts.append(f"{trace}: all-reduces {hidden}, P3 {gain.max():.2f}× at {gain.idxmax():g} GB/s")
    return (
        f" Four machines of one GPU, {SWEEP_GBS[0]:g} to {SWEEP_GBS[-1]:g} GB/s, P3 against a parameter server:"
        f" {'; '.join(texts)} (its authors: up to 1.25× on ResNet-50, 1.66× on VGG-19)."
    )


def figures_of(found: WhatIfAnswer) -> dict[str, object]:
    """Return an answer's figures, with the host's shares of the critical path before and after, in percent."""
    result, figures = found.to_dict(), {name: getattr(found, name) for name in FIGURES}
    figures["device_speedup"] = result["device_us_before"] / result["device_us_after"]
    for name, when in (("host_share_pct", "before"), ("host_share_after_pct", "after")):
        path_us = result[f"critical_path_{when}"]
        figures[name] = 100 * (path_us.get("host work", 0.0) + path_us.get("call", 0.0)) / sum(path_us.values())
    return figures


def answer(table: pd.DataFrame) -> str:
    """Return the gains of the what-ifs that apply, and their limits, then the sweep of bandwidths."""
    parts = []
    done = table.dropna(subset="device_speedup")
    for trace, rows in done.groupby("trace", sort=False):
        gains = rows.set_index("what_if")
        listed = ", ".join(f"{name} {gains.loc[name, 'speedup']:.2f}×" for name in gains.index)
        parts.append(f"{trace} (host on {gains['host_share_pct'].iloc[0]:.0f} % of the critical path): {listed}")
    device = ", ".join(
        f"{row.device_speedup:.2f}× ({row.trace})" for row in done.query("what_if == 'amp'").itertuples()
    )
    return (
        "; ".join(parts)
        + f". By Daydream's rule (kernels ÷2 or ÷3) mixed precision speeds the device up {device}."
        + sweep_answer(table.dropna(subset="bandwidth_gbs"))
    )


EXPERIMENT = program(run, *(TRACES[label] for label in STEPS))
