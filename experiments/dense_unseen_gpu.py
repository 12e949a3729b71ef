"""How long do PyTorch's dense operators take on a GPU that training never saw?

PyTorch's operators on a GPU that training never saw.
"""

from dataclasses import replace

import pandas as pd

from experiments.drawing import dots
from experiments.experiment import Effort, Experiment, Outcome, run_script
from experiments.operators import errors, held_out
from experiments.sources import Sources
from experiments.verdicts import percent
from surrogate.models import DEFAULT_MODEL

LONG_US = 100.0
"""Beyond this the host's launch, which no GPU's specification tells, no longer decides the time."""
EVERY, LONG = "all", f"over {LONG_US:g} µs"


def run(sources: Sources, effort: Effort) -> Outcome:
    """One GPU left out at a time; errors over all rows and over the long ones."""
    parts = list(held_out(sources, ("dense",), "gpu", effort.named("roofline", "mlp", DEFAULT_MODEL), effort))
    long = [replace(part, tested=part.tested & (part.rows.time_us > LONG_US)) for part in parts]
    tables = []
    for population, kept in ((EVERY, parts), (LONG, long)):
        for groups in (("operator", "gpu"), ("gpu",), ("operator",), ()):
            filled = {name: EVERY for name in ("operator", "gpu") if name not in groups}
            tables.append(errors(kept, groups).assign(population=population, **filled))
    table = pd.concat(tables, ignore_index=True)
    shown = table[(table["population"] == LONG) & (table["operator"] == EVERY)]
    xlabel = f"median error on a GPU never measured, rows {LONG}, %"
    figure = dots(shown, "gpu", "model", "median_error_pct", xlabel, log=True)
    return Outcome(table, figure, answer(table))


def answer(table: pd.DataFrame) -> str:
    """Per population the models' errors, the default's from the best to the worst GPU."""
    texts = []
    for population, part in table[table["operator"] == EVERY].groupby("population", sort=False):
        medians = part[part["gpu"] == EVERY].set_index("model")["median_error_pct"]
        own = part[(part["model"] == DEFAULT_MODEL) & (part["gpu"] != EVERY)].sort_values("median_error_pct")
        low, high = (
            f"{own['gpu'].iloc[end]} {percent(own['median_error_pct'].iloc[end])}" for end in (0, -1)
        )
        others = [f"{name} {percent(error)}" for name, error in medians.items() if name != DEFAULT_MODEL]
        texts.append(
            f"{population} rows: {DEFAULT_MODEL} {percent(medians[DEFAULT_MODEL])} (from {low} to {high}),"
            f" {', '.join(others)}"
        )
    return "Median error on a GPU never measured — " + "; ".join(texts) + "."


EXPERIMENT = Experiment.of(run, ("dense",))

if __name__ == "__main__":
    run_script(EXPERIMENT)
