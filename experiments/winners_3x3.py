"""Which algorithm class wins a 3×3 convolution on A100, V100 and P100, and how long does the winner take?

Winners of 3×3 convolutions on A100, V100 and P100: which class wins, and how long it takes.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from experiments.drawing import shares
from experiments.drift import fit_drift, places_in_file, without_drift
from experiments.experiment import Effort, Experiment, Outcome, run_script
from experiments.held_out import Round, candidate_rows, rounds_by
from experiments.sources import Sources
from experiments.verdicts import error_record, listing, percent
from experiments.winners_classes import BEST, class_probabilities, majority_class
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.store import Dataset
from surrogate.evaluation.judge import resample_weights, shape_interval
from surrogate.models import DEFAULT_MODEL, TimeModel
from surrogate.models.base import duplicate
from surrogate.models.boosted import BoostedTerms

MAX_FOLDS = 5
DRIFT_TREES = {"rounds": 100, "learning_rate": 0.15}
"""Of the model that the drift is estimated with."""
Compared = tuple[np.ndarray, np.ndarray]
"""Predicted and true times in µs, (rows,) each."""


def run(sources: Sources, effort: Effort) -> Outcome:
    """By shape: the winner's class from every class's terms and tiles; its time from the classes' probabilities.

    Times are judged as the table has them, and with the campaign's drift (see `experiments.drift`), which training rows
    alone reveal, taken from them.
    """
    data = effort.sample(sources.winners())
    rows = candidate_rows([data])
    classes = sorted(rows.frame["algorithm"].unique())
    label = rows.frame["algorithm"].map({name: code for code, name in enumerate(classes)}).to_numpy()
    rounds = rounds_by("shape", rows, min(effort.folds, MAX_FOLDS), effort.seed)
    shares = class_probabilities(rows, data, classes, label, rounds, effort)
    named = {name: share.argmax(axis=1) for name, share in shares.items()}
    named["majority"] = np.full(len(rows), -1)
    for inside, outside in rounds:
        named["majority"][outside] = majority_class(rows, label, inside, outside)
    model = effort.named(DEFAULT_MODEL)[DEFAULT_MODEL]
    times, drift_us = winner_times(rows, data, classes, shares[BEST], rounds, model, effort)
    table = verdicts(rows, label, named, times, drift_us)
    return Outcome(table, _figure(table), answer(table))


def winner_times(
    rows: Rows,
    data: Dataset,
    classes: list[str],
    share: np.ndarray,
    rounds: list[Round],
    model: TimeModel,
    effort: Effort,
) -> tuple[dict[str, Compared], pd.Series]:
    """Kind → held-out times of the winner and what they are judged by; GPU → drift in µs, the folds' mean."""
    place = places_in_file(rows.frame["gpu"].to_numpy())
    kinds = ("class predicted", "class known", "drift removed", "drift removed, class known")
    predicted = {kind: np.full(len(rows), np.nan) for kind in kinds}
    level_us, slopes = np.full(len(rows), np.nan), []
    drift_trees = BoostedTerms(**DRIFT_TREES, random_state=effort.seed)
    for inside, outside in rounds:
        effort.tick("times")
        train, test = rows.take(inside), rows.take(outside)
        slopes.append(fit_drift(train, place[inside], drift_trees, effort.seed))
        level_us[outside] = without_drift(test, place[outside], slopes[-1]).time_us
        level = without_drift(train, place[inside], slopes[-1])
        for kind, known, part in zip(kinds[::2], kinds[1::2], (train, level), strict=True):
            fitted = duplicate(model).fit(part)
            predicted[known][outside] = fitted.predict(test)
            each = [
                fitted.predict(rows_of(test.frame.assign(algorithm=name), rows.family, data.devices))
                for name in classes
            ]
            predicted[kind][outside] = mixed(np.array(each).T, share[outside])
    times = {kind: (values, rows.time_us) for kind, values in predicted.items()}
    for kind in kinds[2:]:
        times[f"{kind}, from the table too"] = (predicted[kind], level_us)
    times["drift alone"] = (level_us, rows.time_us)
    return times, pd.DataFrame(slopes).mean()


def mixed(time_us: np.ndarray, share: np.ndarray) -> np.ndarray:
    """(rows,) geometric mean of the classes' times (rows, classes) by their probabilities; NaN times do not count."""
    weight = np.where(np.isfinite(time_us), share, 0.0)
    log_time = np.log(np.where(np.isfinite(time_us), time_us, 1.0))
    return np.exp((weight * log_time).sum(axis=1) / weight.sum(axis=1))


def verdicts(
    rows: Rows,
    label: np.ndarray,
    named: Mapping[str, np.ndarray],
    times: Mapping[str, Compared],
    drift_us: pd.Series,
) -> pd.DataFrame:
    """Per GPU and over all: shares of right classes with an interval over shapes, and errors of the winner's time."""
    gpu = rows.frame["gpu"].to_numpy()
    records = []
    for name in ["all", *sorted(set(gpu))]:
        mine = np.flatnonzero((gpu == name) | (name == "all"))
        right = (named[BEST][mine] == label[mine]).astype(float)
        names, code = np.unique(rows.shape[mine], return_inverse=True)
        weights = resample_weights(len(names), 1000, len(names))
        accuracy = shape_interval(right, code, weights, macro=False)
        record = {
            "gpu": name,
            "problems": len(mine),
            "accuracy_pct": 100 * float(right.mean()),
            "accuracy_low_pct": 100 * accuracy.low,
            "accuracy_high_pct": 100 * accuracy.high,
        }
        for kind, codes in named.items():
            if kind != BEST:
                record[f"{kind.replace(' ', '_')}_pct".lower()] = 100 * float(
                    (codes[mine] == label[mine]).mean()
                )
        record["drift_us"] = drift_us.mean() if name == "all" else drift_us.get(name, np.nan)
        for kind, (predicted, true) in times.items():
            errors = error_record(predicted[mine], true[mine], rows.shape[mine])
            stem = kind.replace(",", "").replace(" ", "_")
            for key in ("median_error_pct", "p90_error_pct", "rmspe_pct"):
                record[f"{stem}_{key}"] = errors[key]
        records.append(record)
    return pd.DataFrame(records)


def answer(table: pd.DataFrame) -> str:
    """Accuracy and majority per GPU, the error of the winner's time, and what the campaign's drift has in it."""
    overall = table[table["gpu"] == "all"].iloc[0]
    single = table[table["gpu"] != "all"]
    each = [
        f"{row['gpu']} {percent(row['accuracy_pct'])} (majority {percent(row['majority_pct'])})"
        for _, row in single.iterrows()
    ]
    drifts = [f"{row['drift_us']:.0f} µs on {row['gpu']}" for _, row in single.iterrows()]
    return (
        f"The winner's class is named right in {percent(overall['accuracy_pct'])}"
        f" [{overall['accuracy_low_pct']:.1f}, {overall['accuracy_high_pct']:.1f}] of {int(overall['problems']):,}"
        f" problems ({percent(overall['terms_pct'])} without exact tiles): {listing(each)}; the winner's time is"
        f" foretold by {DEFAULT_MODEL} within {percent(overall['class_predicted_median_error_pct'])} in the median"
        f" ({percent(overall['class_known_median_error_pct'])} had the class been known). But the table's times drift:"
        f" from its first row to its last they grow by {listing(drifts)}, whatever the problem, so that a perfect"
        f" model of the rest would still be {percent(overall['drift_alone_median_error_pct'])} off; with the drift"
        f" taken out of both, {percent(overall['drift_removed_from_the_table_too_median_error_pct'])} remain."
    )


def _figure(table: pd.DataFrame) -> str | None:
    kinds = {
        "boosted trees on terms and tiles": "accuracy_pct",
        "boosted trees on terms": "terms_pct",
        "the GPU's most frequent class": "majority_pct",
    }
    return shares(table, "gpu", kinds, "winner's class named right, %")


EXPERIMENT = Experiment.of(run, ("winners",))

if __name__ == "__main__":
    run_script(EXPERIMENT)
