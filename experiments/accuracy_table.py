"""Print the README's table of a comparison as Markdown: ``python -m experiments.accuracy_table DIR``.

DIR is a folder that ``seer compare`` wrote. Models are sorted by their slowdown on ungrouped problems. A line below the
table gives the range of the first model's seeds, and the share of its loss in the worst shapes.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from surrogate.dataset.problems import shape_names
from surrogate.features.families import CONV
from surrogate.report.results import Results, choice_rows, read_results, time_rows
from surrogate.report.tables import change

FEW = 6
"""Number of shapes whose share of the loss is printed."""
LEFT_OUT = ("oracle",)
"""Models without useful figures in the table."""
HEADS = ("model", "slowdown [95 %]", "pooled", "p95", "≤ 10 % slower")
PAIRED = {
    "to SEER's fits [95 %]": "paired_vs_seer",
    "to the best linear model [95 %]": "paired_vs_linear",
    "to the library's own picker [95 %]": "paired_vs_heuristic",
}
"""Heading → key of a relative difference."""
TIMES = "median / p90 time error, ungrouped"


def markdown(results: Results) -> str:
    """Return the table of choices and time errors on ungrouped problems, with a dash for a missing figure."""
    choices = [row for row in choice_rows(results, "ungrouped") if row["n"] and row["model"] not in LEFT_OUT]
    errors = {row["model"]: row for row in time_rows(results, "ungrouped") if row["n"]}
    paired = {head: key for head, key in PAIRED.items() if any(row.get(key) for row in choices)}
    heads = [*HEADS, *paired, TIMES]
    lines = [heads, ["---"] * len(heads)]
    for row in sorted(choices, key=lambda row: row["slowdown_macro"]):
        interval = f"[{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
        cells = [row["model"], f"{row['slowdown_macro']:.3f} {interval}", f"{row['slowdown_geomean']:.3f}"]
        cells += [f"{row['slowdown_p95']:.3f}", _percent(row["within_10pct"])]
        cells += [_change(row.get(key)) for key in paired.values()]
        error = errors.get(row["model"])
        lines.append([*cells, f"{_percent(error['median_ape'])} / {_percent(error['p90_ape'])}" if error else "–"])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")


def _change(paired: Sequence[float] | None) -> str:
    """Return a relative difference and its interval in percent; a dash for a model against itself."""
    if not paired or not any(paired):
        return "–"
    low, middle, high = map(change, paired)
    return f"{middle} % [{low}, {high}]"


def spread(choices: pd.DataFrame, model: str) -> str:
    """Return the range of single seeds' slowdowns (macro over shapes), and the worst shapes' share of the loss.

    Only the picks of ``model`` on ungrouped problems count.
    """
    picks = choices[(choices["model"] == model) & (choices["stratum"] != "grouped")]
    picks = picks.assign(loss=np.log(picks["slowdown"]), shape=shape_names(picks, CONV))
    seeds = np.exp(picks.groupby(["seed", "shape"])["loss"].mean().groupby("seed").mean())
    shapes = picks.groupby("shape")["loss"].mean().sort_values(ascending=False)
    share = shapes.head(FEW).sum() / shapes.sum() if shapes.sum() else 0.0
    return (
        f"{model}: single seeds from {seeds.min():.4f} to {seeds.max():.4f}; the {FEW} worst of {len(shapes)} shapes"
        f" carry {share:.0%} of the loss"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print a comparison as the README's table.")
    parser.add_argument("directory", type=Path, help="folder that `seer compare` wrote")
    folder = parser.parse_args().directory
    table = markdown(read_results(folder))
    first = table.split("\n")[2].split(" | ")[0].removeprefix("| ")
    print(table, spread(pd.read_parquet(folder / "choices.parquet"), first), sep="\n\n")
