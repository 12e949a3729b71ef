"""Do boosted trees and SEER's fits together predict and choose better than either alone?

Several combinations are compared on few and on many shapes: `stacked-terms` with one weight or a weight per mechanism,
and trees that correct SEER's times. The default was chosen on MI210's shapes, and the cuDNN table confirms it. On that
table, `distilled-terms` is judged, too, also on held-out GPUs. It is fitted to the stack's answers and is shipped.
"""

import numpy as np
import pandas as pd

from experiments.experiment import Effort, ExperimentResult, columns_first, program
from experiments.held_out import Predictions, candidate_rows, predict_rounds, rounds_by
from experiments.sources import LABELS, Sources
from experiments.verdicts import judged_picks, percent, ratio, time_verdicts
from surrogate.evaluation.scorecard import choice_rows
from surrogate.models import TimeModel, model_frame
from surrogate.models.boosted import BoostedTerms, DistilledTerms
from surrogate.models.seer.time_only import SeerTimeOnly
from surrogate.models.stacked import BoostedSeer, StackedTerms
from surrogate.report.charts import dots
from surrogate.report.tables import interval_change

FOLDS = 5
SHAPES = (200, 500, 1500, None)
"""Numbers of MI210's shapes in a cross-validation (None: all)."""
TREES, SEER, DEFAULT, SHIPPED = "boosted-terms", "seer-time-only", "stacked-terms", "distilled-terms"
SPLITS = {"shape": "", "gpu": ", GPU left out"}
"""What is held out of the cuDNN table → suffix of the table's label."""
LEFT_OUT = (TREES, DEFAULT, SHIPPED)
"""Models that are judged on held-out GPUs."""
ONE_WEIGHT, BY_MECHANISM = "trees + SEER, one weight", "trees + SEER, a weight per mechanism"
ERRORS, SLOWDOWNS = ("median_error_pct", "p90_error_pct"), ("slowdown_macro", "ci_low", "ci_high")
CHANGE = ("change_low_pct", "slowdown_change_pct", "change_high_pct")
POOLED, APART = 1e9, 0.0
"""Number of shapes with the weight of all rows: for one common weight, and for separate weights."""


def variants(seed: int) -> dict[str, TimeModel]:
    """Return label → model. The two parts are the first."""
    return {
        TREES: BoostedTerms(random_state=seed),
        SEER: SeerTimeOnly(),
        "boosted-seer": BoostedSeer(random_state=seed),
        ONE_WEIGHT: StackedTerms(second=SEER, pooling=POOLED, random_state=seed),
        BY_MECHANISM: StackedTerms(second=SEER, pooling=APART, random_state=seed),
        DEFAULT: StackedTerms(random_state=seed),
    }


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Hold out whole shapes. A quick run skips MI210's largest sets."""
    parts = []
    for shapes in SHAPES[:2] if effort.quick else SHAPES:
        data = effort.sample(sources.dataset("mi210"), shapes)
        rows = candidate_rows([data])
        rounds = rounds_by("shape", rows, FOLDS, effort.seed)
        predictions = predict_rounds(rows, data.candidates, rounds, variants(effort.seed), effort.tick)
        parts.append(verdict(predictions).assign(data=LABELS["mi210"]))
    data, partial = sources.dataset("cudnn"), sources.dataset("partial")
    rows = candidate_rows([data, partial])
    main_rows = len(model_frame(data))
    models = {**variants(effort.seed), SHIPPED: DistilledTerms(random_state=effort.seed)}
    for by, label in SPLITS.items():
        judged = {name: model for name, model in models.items() if by == "shape" or name in LEFT_OUT}
        rounds = rounds_by(by, rows, FOLDS, effort.seed, main_rows)
        predictions = predict_rounds(rows, data.candidates, rounds, judged, effort.tick)
        parts.append(verdict(predictions.take(np.arange(main_rows))).assign(data=LABELS["cudnn"] + label))
    table = columns_first(pd.concat(parts, ignore_index=True), "data", "shapes", "model")
    figure = dots(
        table.assign(category=table["data"] + ", " + table["shapes"].astype(str) + " shapes"),
        "category",
        "model",
        "slowdown_change_pct",
        "change of the slowdown against boosted-terms, %",
        arms=("change_low_pct", "change_high_pct"),
    )
    return ExperimentResult(table, figure, answer(table))


def verdict(predictions: Predictions) -> pd.DataFrame:
    """Return errors and slowdowns on ungrouped problems, and the paired change against the trees, of each variant."""
    rows, family = predictions.rows, predictions.rows.family
    errors = time_verdicts(predictions, family.in_grouping(rows.stratum, family.primary))
    evaluated = judged_picks(predictions)
    assert evaluated is not None, "both sources have problems"
    choices = pd.DataFrame(choice_rows(evaluated[0], evaluated[1], {})).rename(columns={"n": "problems"})
    choices = choices[(choices["stratum"] == family.primary) & (choices["gpu"] == "all")].reset_index(drop=True)
    choices[[*CHANGE]] = 100 * np.array(choices["paired_vs_trees"].tolist())
    table = choices.merge(errors.drop(columns="shapes").rename(columns={"n": "rows"}), on="model")
    return table[["model", "shapes", "problems", "rows", *ERRORS, *SLOWDOWNS, *CHANGE]]


def answer(table: pd.DataFrame) -> str:
    """Return errors and slowdowns of the trees, of the stacks, and of the shipped model, on each set of shapes."""
    sentences = []
    for (data, shapes), part in table.groupby(["data", "shapes"], sort=False):
        rows = part.set_index("model")
        each = [
            f"{name} {percent(rows.at[name, 'median_error_pct'])} / {percent(rows.at[name, 'p90_error_pct'])},"
            f" {ratio(rows.at[name, 'slowdown_macro'])}"
            for name in (TREES, SEER, ONE_WEIGHT, BY_MECHANISM, DEFAULT, SHIPPED)
            if name in rows.index
        ]
        for name in (DEFAULT, SHIPPED):
            if name in rows.index:
                low, middle, high = rows.loc[name, list(CHANGE)].to_numpy(dtype=float) / 100
                each.append(f"{name} against {TREES} {interval_change((low, middle, high))} %")
        sentences.append(f"{data}, {shapes} shapes: {'; '.join(each)}")
    return "Median / p90 error and slowdown — " + ". ".join(sentences) + "."


EXPERIMENT = program(run, "mi210", "cudnn", "partial")
