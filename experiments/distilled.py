"""How much of the stack's accuracy does the single ensemble keep that ships for convolutions?

`distilled-terms` is fitted to the answers of `stacked-terms`, which combines boosted trees and SEER's fits.
"""

import numpy as np
import pandas as pd

from experiments.experiment import Effort, ExperimentResult, columns_first, program
from experiments.held_out import Predictions, candidate_rows, predict_rounds, rounds_by
from experiments.sources import LABELS, Sources
from experiments.verdicts import judged_picks, time_verdicts
from surrogate.evaluation.scorecard import choice_rows
from surrogate.models import model_frame
from surrogate.report.charts import dots

FOLDS = 5
SPLITS = {"shape": "", "gpu": ", GPU left out"}
"""Held-out part of the cuDNN table → suffix of the table's label."""
JUDGED = ("boosted-terms", "stacked-terms", "distilled-terms")
ERRORS, SLOWDOWNS = ("median_error_pct", "p90_error_pct"), ("slowdown_macro", "ci_low", "ci_high")
CHANGE = ("change_low_pct", "slowdown_change_pct", "change_high_pct")


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Hold out whole shapes, then whole GPUs."""
    data, partial = sources.dataset("cudnn"), sources.dataset("partial")
    rows = candidate_rows([data, partial])
    main_rows = len(model_frame(data))
    parts = []
    for by, label in SPLITS.items():
        rounds = rounds_by(by, rows, FOLDS, effort.seed, main_rows)
        predictions = predict_rounds(rows, data.candidates, rounds, effort.by_name(*JUDGED), effort.tick)
        parts.append(verdict(predictions.take(np.arange(main_rows))).assign(data=LABELS["cudnn"] + label))
    table = columns_first(pd.concat(parts, ignore_index=True), "data", "shapes", "model")
    heading = "change of the slowdown against boosted-terms, %"
    arms = ("change_low_pct", "change_high_pct")
    return ExperimentResult(table, dots(table, "data", "model", "slowdown_change_pct", heading, arms=arms))


def verdict(predictions: Predictions) -> pd.DataFrame:
    """Return errors and slowdowns on ungrouped problems, and the paired change against the trees, of each model."""
    rows, family = predictions.rows, predictions.rows.family
    errors = time_verdicts(predictions, family.in_grouping(rows.stratum, family.primary))
    evaluated = judged_picks(predictions)
    assert evaluated is not None, "the source has problems"
    choices = pd.DataFrame(choice_rows(evaluated[0], evaluated[1], {})).rename(columns={"n": "problems"})
    choices = choices[(choices["stratum"] == family.primary) & (choices["gpu"] == "all")].reset_index(drop=True)
    choices[[*CHANGE]] = 100 * np.array(choices["paired_vs_trees"].tolist())
    table = choices.merge(errors.drop(columns="shapes").rename(columns={"n": "rows"}), on="model")
    return table[["model", "shapes", "problems", "rows", *ERRORS, *SLOWDOWNS, *CHANGE]]


EXPERIMENT = program(run, "cudnn", "partial")
