"""Do models trained on the smaller half of the problems hold on the larger half?

Models are trained on small problems and predict large ones. Trees cannot extrapolate there; physical terms can.
"""

from itertools import pairwise

import numpy as np
import pandas as pd

from experiments.experiment import Effort, ExperimentResult, columns_first, program
from experiments.held_out import candidate_rows, predict_rounds, rounds_by
from experiments.sources import LABELS, Sources
from experiments.verdicts import listing, percent, ratio, times_and_picks
from surrogate.dataset.rows import Rows
from surrogate.report.charts import Axis, curves

SMALL_SHARE = 0.5
"""Share of the problems, by FLOPs, that are used for training."""
STEPS = (1.0, 4.0, 16.0, 64.0, np.inf)
"""Bounds of the classes of test problems: FLOPs divided by the FLOPs of the largest training problem."""
OUTSIDE, INSIDE = "trained on small problems", "trained on all sizes"
MODELS_SHOWN = ("roofline", "seer-time-only", "linear-terms", "boosted-terms")
FOLDS = 3


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Predict the same large rows twice: from the small ones alone, and in folds by shape over all sizes."""
    parts = []
    for source in ("cudnn", "mi210"):
        data = effort.sample(sources.dataset(source))
        rows = candidate_rows([data])
        excess = excess_flops(rows)
        small, large = np.flatnonzero(excess <= 1.0), np.flatnonzero(excess > 1.0)
        # Only large rows are compared, so a fold need not predict its small ones.
        by_shape = rounds_by("shape", rows, FOLDS, effort.seed)
        inner = [(train, test[excess[test] > 1.0]) for train, test in by_shape]
        for training, rounds in ((OUTSIDE, [(small, large)]), (INSIDE, inner)):
            predictions = predict_rounds(rows, data.candidates, rounds, effort.timed(*MODELS_SHOWN), effort.tick)
            for low, high in pairwise(STEPS):
                index = np.flatnonzero((excess > low) & (excess <= high))
                if len(index) and rows.ok[index].any():
                    both = times_and_picks(predictions.take(index))
                    span = f"{low:g}–{high:g}×" if np.isfinite(high) else f"> {low:g}×"
                    named = {"data": LABELS[source], "training": training, "flops_over": span, "_at": low}
                    parts.append(both.assign(**named))
    table = pd.concat(parts, ignore_index=True)
    drawn, xlabel = table.assign(panel=table["data"] + ", " + table["training"]), "FLOPs over the largest small problem"
    x, y = Axis("_at", f"{xlabel}, at least", log=True), Axis("median_error_pct", "median error, %", log=True)
    figure = curves(drawn, x, y, "model", "panel")
    table = columns_first(table.drop(columns="_at"), "data", "training", "flops_over", "model")
    return ExperimentResult(table, figure, answer(table))


def excess_flops(rows: Rows) -> np.ndarray:
    """Return FLOPs (rows,) divided by those of the largest training problem (the `SMALL_SHARE` quantile over
    problems)."""
    log2_flops = rows.column("log2_flops").astype(float)
    each = pd.Series(log2_flops).groupby(rows.problem).first()
    return np.exp2(log2_flops - each.quantile(SMALL_SHARE, interpolation="lower"))


def answer(table: pd.DataFrame) -> str:
    """Return for the farthest class of test problems the best model, and the default's loss on unseen sizes."""
    sentences = []
    for label, part in table.groupby("data", sort=False):
        far = part[part["flops_over"] == part["flops_over"].iloc[-1]]
        wide = far.pivot_table(index="model", columns="training", values="median_error_pct")
        best = wide.sort_values(OUTSIDE).index
        figures = [f"{m} {percent(wide.loc[m, OUTSIDE])} (seen: {percent(wide.loc[m, INSIDE])})" for m in best]
        chosen = far[(far["model"] == best[0]) & (far["training"] == OUTSIDE)]["slowdown_macro"].iloc[0]
        tail = f", picks of {best[0]} at {ratio(chosen)}" if np.isfinite(chosen) else ""
        sentences.append(f"{label}, {far['flops_over'].iloc[0]} the largest trained: {listing(figures)}{tail}")
    return "Median error — " + ". ".join(sentences) + "."


EXPERIMENT = program(run, "cudnn", "mi210")
