"""How good are picks on AMD's GPUs, by algorithm and by solver, and on one that training never saw?

The measurements are MIOpen's on four AMD GPUs, by algorithm and by solver. MI300X is also predicted from the other
three.
"""

import numpy as np
import pandas as pd

from experiments.experiment import Effort, ExperimentResult, columns_first, program
from experiments.held_out import Predictions, candidate_rows, cross_validate, predict_rounds
from experiments.sources import LABELS, Sources
from experiments.verdicts import interval, percent, picks_and_times, ratio, reported_models
from surrogate.dataset.problems import shape_names
from surrogate.dataset.store import Dataset
from surrogate.models import TimeModel
from surrogate.report.charts import dots

GPUS = ("mi210", "mi100", "mi300x", "navi21")
UNSEEN = "mi300x"
MODELS_SHOWN = ("always-best-single", "seer-time-only", "linear-terms", "boosted-dims", "boosted-terms")
PICK_COLUMNS = ("n", "slowdown_macro", "ci_low", "ci_high", "slowdown_p95", "top1", "infeasible_picks")
"""Columns of the picks in the table."""
FOLDS = 5
BY_SHAPE, SEEN, NEW = "by shape", "GPU unseen, shape seen elsewhere", "GPU and shape unseen"
ENDINGS = {BY_SHAPE: "", SEEN: ",\nGPU unseen", NEW: ",\nboth unseen"}


def run(sources: Sources, effort: Effort) -> ExperimentResult:
    """Judge each GPU alone, by shape, for both kinds of candidate. Then judge MI300X without its rows in training."""
    data = {name: effort.sample(sources.dataset(name)) for name in GPUS}
    models = effort.by_name(*MODELS_SHOWN)
    parts = []
    for candidate in ("algorithm", "solver"):
        for name in GPUS:
            predictions = cross_validate(
                data[name],
                models,
                count=min(effort.folds, FOLDS),
                seed=effort.seed,
                candidate=candidate,
                tick=effort.tick,
            )
            both = picks_and_times(predictions, PICK_COLUMNS)
            parts.append(both.assign(gpu=LABELS[name], candidate=candidate, split=BY_SHAPE))
        for split, predictions in _unseen(data, candidate, models, effort):
            both = picks_and_times(predictions, PICK_COLUMNS)
            parts.append(both.assign(gpu=LABELS[UNSEEN], candidate=candidate, split=split))
    table = columns_first(pd.concat(parts, ignore_index=True), "gpu", "candidate", "split", "model")
    picks = table[(table["candidate"] == "algorithm") & (table["model"] != "always-best-single")]
    picks = picks.assign(place=picks["gpu"] + picks["split"].map(ENDINGS))
    loss = {name: np.maximum(100 * (picks[name] - 1), 0.01) for name in ("slowdown_macro", "ci_low", "ci_high")}
    xlabel, arms = "slowdown over the best algorithm, %", ("ci_low", "ci_high")
    figure = dots(picks.assign(**loss), "place", "model", "slowdown_macro", xlabel, arms=arms, log=True)
    return ExperimentResult(table, figure, answer(table))


def _unseen(
    data: dict[str, Dataset], candidate: str, models: dict[str, TimeModel], effort: Effort
) -> list[tuple[str, Predictions]]:
    """Return predictions of MI300X from the other GPUs, for shapes that they measured and for shapes that they lack."""
    others = [data[name] for name in GPUS if name != UNSEEN]
    rows = candidate_rows([*others, data[UNSEEN]], candidate)
    holdout = (rows.frame["gpu"] == data[UNSEEN].frame["gpu"].iloc[0]).to_numpy()
    inside, outside = np.flatnonzero(~holdout), np.flatnonzero(holdout)
    predictions = predict_rounds(rows, data[UNSEEN].candidates, [(inside, outside)], models, effort.tick)
    names = shape_names(rows.frame, rows.family)
    seen = np.isin(names[outside], np.unique(names[inside]))
    parts = ((SEEN, seen), (NEW, ~seen))
    return [(label, predictions.take(outside[mask])) for label, mask in parts if mask.any()]


def answer(table: pd.DataFrame) -> str:
    """Return the slowdown per GPU for both kinds of candidate, and on the unseen GPU, of the reported models."""
    by_algorithm = table[(table["split"] == BY_SHAPE) & (table["candidate"] == "algorithm")]
    names = reported_models(by_algorithm.groupby("model")["slowdown_macro"].mean().idxmin(), by_algorithm["model"])
    by_gpu = []
    for gpu, part in table[table["split"] == BY_SHAPE].groupby("gpu", sort=False):
        rows = {(row["candidate"], row["model"]): row for _, row in part.iterrows()}
        each = []
        for name in names:
            row = rows["algorithm", name]
            each.append(
                f"{name} {ratio(row['slowdown_macro'])} {interval(row['ci_low'], row['ci_high'])} by algorithm,"
                f" {ratio(rows['solver', name]['slowdown_macro'])} by solver"
            )
        by_gpu.append(f"{gpu} {'; '.join(each)}")
    unseen = table[(table["split"] != BY_SHAPE) & (table["candidate"] == "algorithm")]
    tail = [
        f"{split}: "
        + ", ".join(
            f"{row['model']} {ratio(row['slowdown_macro'])} and {percent(row['median_error_pct'])}"
            for name in names
            for _, row in part[part["model"] == name].iterrows()
        )
        for split, part in unseen.groupby("split", sort=False)
    ]
    return (
        f"Slowdown by shape: {'. '.join(by_gpu)}. MI300X from the other three, slowdown and median time error:"
        f" {'; '.join(tail) or 'no problem to judge'}."
    )


EXPERIMENT = program(run, *GPUS)
