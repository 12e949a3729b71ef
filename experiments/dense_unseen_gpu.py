"""PyTorch's operators on a GPU that training never saw."""

import numpy as np
import pandas as pd

from experiments.drawing import dots
from experiments.effort import Effort
from experiments.experiment import Experiment, Outcome
from experiments.operators import sampled, shown
from experiments.script import run_script
from experiments.sources import Sources
from experiments.words import percent
from surrogate.operators import HeldOut, hold_out, read_operators

OURS = "boosted-operators"
MODELS = ("roofline", "mlp", OURS)
LONG_US = 100.0
"""Beyond this the host's launch, which no GPU's specification tells, no longer decides the time."""


def run(sources: Sources, effort: Effort) -> Outcome:
    """One GPU left out at a time; errors over all rows and over the long ones."""
    table = sampled(read_operators([sources.path("dense")]), effort)
    held = hold_out(
        table, by="gpu", seed=effort.seed, models=MODELS, progress=lambda done, total, text: effort.tick(text)
    )
    populations = {"all": np.ones(len(table), dtype=bool), f"over {LONG_US:g} µs": table.time_us > LONG_US}
    parts = []
    for population, member in populations.items():
        rows = np.flatnonzero(member)
        part = HeldOut(
            table.take(rows),
            held.by,
            held.fold[rows],
            {name: predicted[rows] for name, predicted in held.predicted_us.items()},
        )
        for groups in (("kind", "gpu"), ("gpu",), ("kind",), ()):
            filled = {name: "all" for name in ("kind", "gpu") if name not in groups}
            parts.append(part.rows(*groups).assign(population=population, **filled))
    found = shown(pd.concat(parts, ignore_index=True))
    long = found[(found["population"] != "all") & (found["kind"] == "all")]
    figure = dots(
        long,
        category="gpu",
        series="model",
        value="median_error_pct",
        xlabel=f"median error on a GPU never measured, rows over {LONG_US:g} µs, %",
        log=True,
    )
    return Outcome(found, figure, _answer(found, populations))


def _answer(found: pd.DataFrame, populations: dict[str, np.ndarray]) -> str:
    texts = []
    for population in populations:
        part = found[(found["population"] == population) & (found["kind"] == "all")]
        medians = part[part["gpu"] == "all"].set_index("model")["median_error_pct"]
        own = part[(part["model"] == OURS) & (part["gpu"] != "all")].sort_values("median_error_pct")
        texts.append(
            f"{population} rows: {OURS} {percent(medians[OURS])} (from {own['gpu'].iloc[0]}"
            f" {percent(own['median_error_pct'].iloc[0])} to {own['gpu'].iloc[-1]}"
            f" {percent(own['median_error_pct'].iloc[-1])}), mlp {percent(medians['mlp'])},"
            f" roofline {percent(medians['roofline'])}"
        )
    return "Median error on a GPU never measured — " + "; ".join(texts) + "."


EXPERIMENT = Experiment(
    "dense_unseen_gpu",
    "How long do PyTorch's dense operators take on a GPU that training never saw?",
    ("dense",),
    run,
)

if __name__ == "__main__":
    run_script(EXPERIMENT)
