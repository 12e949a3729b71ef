"""Do the widths that ship hold, by GPU, kind of kernel and element type, on rows outside their fit?

The 90 % intervals of every shipped bundle are compared with their coverage on shapes and GPUs outside their fit. An
interval of a sum is judged apart, on measured passes of networks, in the table that `experiments.whole_networks` wrote.
"""

import pandas as pd

from experiments.experiment import Effort, ExperimentResult, columns_first, program
from experiments.gpu_table import HOLDOUT_SHAPES, LEFT_OUT, MIN_SHAPES
from experiments.sources import HOME, Sources
from surrogate.prediction.shipped import shipped
from surrogate.report.charts import dots

SUMS = "sums"
"""Part of the table with the passes of whole networks."""


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Return the figures that training wrote into the model cards. Nothing is fitted, so a run takes seconds."""
    del sources, effort
    cells = []
    for bundle in shipped():
        for family, card in bundle.held_out.items():
            for part, rows in ((HOLDOUT_SHAPES, card["intervals"]), (LEFT_OUT, card["unseen_gpus"])):
                cells += [{"bundle": bundle.path.name, "family": family, "part": part, **row} for row in rows]
    table = pd.DataFrame([*cells, *_sums()]).query("gpu != 'all'")
    # There is one row for each type. If a GPU has a single type, its row is the one for all types.
    several = table.duplicated(subset=["bundle", "family", "part", "gpu"], keep=False)
    table = table[~several | (table["dtype"] != "all")].rename(columns={"interval_factor": "claimed_factor"})
    names = ("bundle", "family", "part", "gpu", "dtype", "rows", "shapes", "claimed_factor", "coverage")
    table = columns_first(table.drop(columns="half_width").reset_index(drop=True), *names)
    drawn = table[table["shapes"] >= MIN_SHAPES]
    drawn = drawn.assign(coverage=100 * drawn["coverage"], cell=drawn["bundle"] + " " + drawn["family"])
    figure = dots(drawn, "cell", "part", "coverage", "rows inside their 90 % interval, %")
    return ExperimentResult(table, figure)


def _sums() -> list[dict[str, object]]:
    """Return a cell for each set of measured passes and GPU: the passes count as shapes."""
    passes = pd.read_csv(HOME / "tables" / "whole_networks.csv").dropna(subset="coverage_pct")
    passes = passes.assign(bundle="", part=SUMS, family=passes["set"], dtype=passes["training"], rows=passes["n"])
    passes = passes.assign(shapes=passes["n"], coverage=passes["coverage_pct"] / 100)
    names = ["bundle", "family", "part", "gpu", "dtype", "rows", "shapes", "interval_factor", "coverage"]
    cells = passes.rename(columns={"claimed_factor": "interval_factor"}).reindex(columns=names)
    return [{str(name): value for name, value in cell.items()} for cell in cells.to_dict("records")]


EXPERIMENT = program(run)
