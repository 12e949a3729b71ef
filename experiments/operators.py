"""Operators other than convolutions on shapes never seen, beside published baselines."""

import numpy as np
import pandas as pd

from experiments.drawing import dots
from experiments.effort import Effort
from experiments.experiment import Experiment, Outcome
from experiments.script import run_script
from experiments.sources import Sources
from experiments.words import listing, percent
from surrogate.dataset.splits import fold_of_names
from surrogate.operators import OperatorTable, hold_out, read_operators

NEEDS = ("other_ops", "scope_ops", "dense")
OURS = "blended-operators"
TREES = "boosted-operators"
FOLDS = 5
GROUPS = ("library", "kind")


def run(sources: Sources, effort: Effort) -> Outcome:
    """Each library's operators in folds by shape; every model on the same rows."""
    table = sampled(read_operators([sources.path(name) for name in NEEDS]), effort)
    parts, per_gpu = [], []
    for library in sorted(table.frame["library"].unique()):
        part = table.take((table.frame["library"] == library).to_numpy())
        held = hold_out(
            part,
            folds=min(FOLDS, effort.folds),
            seed=effort.seed,
            progress=lambda done, total, text: effort.tick(text),
        )
        parts.append(held.against(OURS, *GROUPS).assign(gpu="all"))
        per_gpu.append(held.against(OURS, *GROUPS, "gpu"))
    found = shown(pd.concat([*parts, *per_gpu], ignore_index=True))
    overall = found[found["gpu"] == "all"]
    figure = dots(
        overall.assign(operator=overall["library"] + " " + overall["kind"]),
        category="operator",
        series="model",
        value="median_error_pct",
        xlabel="median error of times on unseen shapes, %",
        log=True,
    )
    return Outcome(found, figure, _answer(overall))


def sampled(table: OperatorTable, effort: Effort) -> OperatorTable:
    """All rows, or in a quick run those of at most ``quick_shapes`` shapes of each library, drawn by a seeded hash."""
    if not effort.quick:
        return table
    names = table.shape_names()
    kept = np.zeros(len(table), dtype=bool)
    for library in table.frame["library"].unique():
        mine = (table.frame["library"] == library).to_numpy()
        distinct = len(set(names[mine]))
        place = fold_of_names(names[mine], distinct, effort.seed)
        kept[mine] = [place[name] < effort.quick_shapes for name in names[mine]]
    return table.take(kept)


def shown(rows: pd.DataFrame) -> pd.DataFrame:
    """Errors in percent, plainly named."""
    percents = {
        "median_error_pct": "median_ape",
        "mean_error_pct": "mape",
        "p90_error_pct": "p90_ape",
        "gmae_pct": "gmae",
        "coverage_pct": "coverage",
    }
    if "reference_median_ape" in rows:
        percents |= {
            "ours_same_rows_pct": "reference_median_ape",
            "ours_same_rows_p90_pct": "reference_p90_ape",
        }
    names = [name for name in ("library", "kind", "gpu", "population", "model") if name in rows]
    return rows[[*names, "n", "shapes"]].assign(**{ours: 100 * rows[name] for ours, name in percents.items()})


def _answer(overall: pd.DataFrame) -> str:
    """Medians over operators of each library, and where a baseline is ahead on its own rows."""
    texts = []
    for library, part in overall.groupby("library"):
        ours = part[part["model"] == OURS]["median_error_pct"]
        texts.append(f"{library} {percent(ours.median())} (worst operator {percent(ours.max())})")
    others = overall[~overall["model"].isin((OURS, TREES)) & (overall["n"] > 0)]
    ahead = others[others["median_error_pct"] < others["ours_same_rows_pct"]]
    worse = [
        f"{row.model} on {row.library} {row.kind} ({percent(row.median_error_pct)}"
        f" against {percent(row.ours_same_rows_pct)})"
        for row in ahead.itertuples()
    ]
    return (
        f"Median error over operators, shapes never seen: {listing(texts)}; the blend is ahead of the baseline in"
        f" {len(others) - len(ahead)} of {len(others)} comparisons on the same rows"
        + (f"; behind {listing(worse)}." if worse else ".")
    )


EXPERIMENT = Experiment(
    "operators",
    "How well are pooling, norms, softmax, pointwise operators and matrix products foretold on shapes never seen?",
    NEEDS,
    run,
)

if __name__ == "__main__":
    run_script(EXPERIMENT)
