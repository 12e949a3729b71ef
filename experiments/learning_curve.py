"""How do errors and slowdowns fall with the number of training shapes?

Learning curves show the number of training shapes that the models need.
"""

import numpy as np
import pandas as pd

from experiments.experiment import Effort, ExperimentResult, columns_first, program
from experiments.held_out import Round, candidate_rows, predict_rounds
from experiments.sources import LABELS, Sources
from experiments.verdicts import percent, ratio, reported_models, times_and_picks
from surrogate.dataset.problems import shape_names
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_of_names
from surrogate.report.charts import Axis, curves

SHARES = (0.05, 0.1, 0.25, 0.5, 1.0)
STEPS = (0.1, 0.5, 1.0)
"""Shares of the training shapes in the answer."""
TEST_FOLDS = 5
MODELS_SHOWN = ("seer-time-only", "linear-terms", "boosted-dims", "boosted-terms")


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Hold out a fifth of the shapes and train on nested shares of the others. A full run holds out every fifth in
    turn."""
    parts = []
    for source in ("mi210", "cudnn"):
        data = effort.sample(sources.dataset(source))
        rows = candidate_rows([data])
        for share in SHARES:
            rounds = share_rounds(rows, share, effort.seed)[: 1 if effort.quick else TEST_FOLDS]
            predictions = predict_rounds(rows, data.candidates, rounds, effort.timed(*MODELS_SHOWN), effort.tick)
            both = times_and_picks(predictions)
            shapes = int(np.mean([len(np.unique(rows.shape[inside])) for inside, _ in rounds]))
            parts.append(both.assign(data=LABELS[source], share=share, training_shapes=shapes))
    table = columns_first(pd.concat(parts, ignore_index=True), "data", "share", "training_shapes", "model")
    x, y = Axis("training_shapes", "training shapes", log=True), Axis("median_error_pct", "median error, %", log=True)
    figure = curves(table, x, y, "model", "data")
    return ExperimentResult(table, figure, answer(table))


def share_rounds(rows: Rows, share: float, seed: int) -> list[Round]:
    """Return (train, test) per fold. Each share contains the training shapes of the smaller ones, and at least one
    shape."""
    names = shape_names(rows.frame, rows.family)
    fold_of = fold_of_names(names, TEST_FOLDS, seed)
    order = fold_of_names(names, len(fold_of), seed + 1)
    rounds = []
    for fold in range(min(TEST_FOLDS, len(fold_of))):
        others = sorted((name for name in fold_of if fold_of[name] != fold), key=lambda name: order[name])
        inside = np.isin(names, others[: max(1, round(share * len(others)))])
        rounds.append((np.flatnonzero(inside), np.flatnonzero(~np.isin(names, others))))
    return rounds


def answer(table: pd.DataFrame) -> str:
    """Return error and slowdown at a tenth, a half and all of the shapes, per table, of the reported models."""
    sentences = []
    for label, part in table.groupby("data", sort=False):
        last = part[part["share"] == 1.0].sort_values("median_error_pct")
        shapes = " → ".join(f"{int(part.loc[part['share'] == share, 'training_shapes'].iloc[0]):,}" for share in STEPS)
        each = []
        for name in reported_models(last["model"].iloc[0], last["model"]):
            model_rows = part[part["model"] == name].set_index("share")
            errors, slowdowns = model_rows["median_error_pct"], model_rows["slowdown_macro"]
            each.append(
                f"{name} {' → '.join(percent(errors[share]) for share in STEPS)}"
                f" and {' → '.join(ratio(slowdowns[share]) for share in STEPS)} (the last doubling takes off"
                f" {percent(100 * (1 - errors[1.0] / errors[0.5]))} of the error)"
            )
        sentences.append(f"{label}, {shapes} shapes: {'; '.join(each)}")
    return "Median time error and slowdown — " + ". ".join(sentences) + "."


EXPERIMENT = program(run, "mi210", "cudnn")
