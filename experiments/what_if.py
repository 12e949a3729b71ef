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
    return ExperimentResult(table, figure)


def swept(label: str, graph: Graph, setting: WhatIfSetting) -> list[dict[str, object]]:
    """Return a row per bandwidth and distributed what-if."""
    rows: list[dict[str, object]] = []
    for gbs in SWEEP_GBS:
        network = replace(MACHINES, bandwidth_gbs=gbs)
        rules = [what_if(name) for name in SWEPT]
        for each in evaluate(graph, rules, replace(setting, network=network), refusals={}):
            figures = {name: getattr(each, name) for name in FIGURES}
            rows.append({"trace": label, "what_if": each.name, **figures, "bandwidth_gbs": gbs, "refused": ""})
    return rows


def figures_of(found: WhatIfAnswer) -> dict[str, object]:
    """Return an answer's figures, with the host's shares of the critical path before and after, in percent."""
    result, figures = found.to_dict(), {name: getattr(found, name) for name in FIGURES}
    figures["device_speedup"] = result["device_us_before"] / result["device_us_after"]
    for name, when in (("host_share_pct", "before"), ("host_share_after_pct", "after")):
        path_us = result[f"critical_path_{when}"]
        figures[name] = 100 * (path_us.get("host work", 0.0) + path_us.get("call", 0.0)) / sum(path_us.values())
    return figures


EXPERIMENT = program(run, *(TRACES[label] for label in STEPS))
