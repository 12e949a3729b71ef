"""(k) Winners of 3×3 convolutions on A100, V100 and P100: which class wins, and how long it takes."""

import numpy as np
import pandas as pd

from experiments.drawing import dots
from experiments.effort import Effort
from experiments.experiment import Experiment, Outcome
from experiments.held_out import candidate_rows
from experiments.script import run_script
from experiments.sources import Sources
from experiments.verdicts import error_record
from experiments.words import listing, percent
from features.table import ALGORITHM_NAMES
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.splits import folds
from surrogate.dataset.store import Dataset
from surrogate.models import DEFAULT_MODEL, MODELS

SETTINGS = {
    "learning_rate": 0.08, "max_depth": 6, "min_child_weight": 2.0, "subsample": 0.8, "colsample_bynode": 0.3,
    "max_bin": 128, "tree_method": "hist", "verbosity": 0,
}  # fmt: skip
ROUNDS = 300
MAX_FOLDS = 5


def run(sources: Sources, effort: Effort) -> Outcome:
    """By shape: a classifier of the winner's class on every class's terms, and the time of the class that it names."""
    data = effort.sample(sources.winners())
    rows = candidate_rows([data])
    classes = sorted(rows.frame["algorithm"].unique())
    design = class_terms(rows, data, classes)
    label = rows.frame["algorithm"].map({name: code for code, name in enumerate(classes)}).to_numpy()
    named = np.full(len(rows), -1)
    majority = np.full(len(rows), -1)
    times = {kind: np.full(len(rows), np.nan) for kind in ("class predicted", "class known")}
    model = (effort.timed(DEFAULT_MODEL) or effort.timed())[0]
    for fold in folds("shape", rows.frame, rows.frame.iloc[:0], min(effort.folds, MAX_FOLDS), effort.seed):
        effort.tick(f"fold {fold.name}")
        named[fold.test] = classify(design[fold.train], label[fold.train], design[fold.test], effort.seed)
        majority[fold.test] = _majority(rows, label, fold.train, fold.test)
        fitted = MODELS[model]().fit(rows.take(fold.train), seed=effort.seed)
        guessed = rows.frame.iloc[fold.test].assign(algorithm=np.array(classes)[named[fold.test]])
        times["class predicted"][fold.test] = fitted.predict_us(
            rows_of(guessed.reset_index(drop=True), data.devices)
        )
        times["class known"][fold.test] = fitted.predict_us(rows.take(fold.test))
    table = verdicts(rows, label, named, majority, times)
    return Outcome(table, _figure(table), answer(table, model))


def class_terms(rows: Rows, data: Dataset, classes: list[str]) -> np.ndarray:
    """(rows, columns) float32: the problem and the machine once, and the algorithm's terms of every class in turn."""
    own = len(ALGORITHM_NAMES)
    first = rows.features.shape[1] - own - 2  # two context columns follow the algorithm's
    shared = np.delete(rows.features, np.arange(first, first + own), axis=1)
    each = [
        rows_of(rows.frame.assign(algorithm=name), data.devices).features[:, first : first + own]
        for name in classes
    ]
    return np.hstack([shared, *each])


def classify(train: np.ndarray, label: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    """The most probable class of every test row, by boosted trees; classes absent from training are never named."""
    import xgboost

    present, code = np.unique(label, return_inverse=True)
    if len(present) == 1:
        return np.full(len(test), present[0])
    data = xgboost.QuantileDMatrix(train, label=code, max_bin=SETTINGS["max_bin"])
    task = {"objective": "multi:softprob", "num_class": len(present), "seed": seed}
    booster = xgboost.train({**SETTINGS, **task}, data, num_boost_round=ROUNDS)
    return present[booster.inplace_predict(test).argmax(axis=1)]


def _majority(rows: Rows, label: np.ndarray, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """The most frequent class of each test row's GPU in training; of all GPUs where it has none."""
    gpu = rows.frame["gpu"].to_numpy()
    overall = np.bincount(label[train]).argmax()
    most = {name: np.bincount(label[train][gpu[train] == name]).argmax() for name in set(gpu[train])}
    return np.array([most.get(name, overall) for name in gpu[test]])


def verdicts(
    rows: Rows, label: np.ndarray, named: np.ndarray, majority: np.ndarray, times: dict[str, np.ndarray]
) -> pd.DataFrame:
    """Per GPU and over all: shares of right classes with an interval over shapes, and errors of the winner's time."""
    gpu = rows.frame["gpu"].to_numpy()
    records = []
    for name in ["all", *sorted(set(gpu))]:
        mine = np.flatnonzero((gpu == name) | (name == "all"))
        right = named[mine] == label[mine]
        low, high = _share_interval(right, rows.shape[mine])
        record = {
            "gpu": name,
            "problems": len(mine),
            "accuracy_pct": 100 * right.mean(),
            "accuracy_low_pct": 100 * low,
            "accuracy_high_pct": 100 * high,
            "majority_pct": 100 * (majority[mine] == label[mine]).mean(),
        }
        for kind, predicted in times.items():
            errors = error_record(predicted[mine], rows.time_us[mine], rows.shape[mine])
            stem = kind.replace(" ", "_")
            record |= {
                f"{stem}_{key}": errors[key] for key in ("median_error_pct", "p90_error_pct", "rmspe_pct")
            }
        records.append(record)
    return pd.DataFrame(records)


def _share_interval(right: np.ndarray, shape: np.ndarray) -> tuple[float, float]:
    from surrogate.judge import resample_weights, shape_interval

    names, code = np.unique(shape, return_inverse=True)
    found = shape_interval(
        right.astype(float), code, resample_weights(len(names), 1000, len(names)), macro=False
    )
    return found.low, found.high


def answer(table: pd.DataFrame, model: str) -> str:
    """Accuracy and majority per GPU, and the error of the winner's time without knowing the winner."""
    overall = table[table["gpu"] == "all"].iloc[0]
    each = [
        f"{row['gpu']} {percent(row['accuracy_pct'])} (majority {percent(row['majority_pct'])})"
        for _, row in table[table["gpu"] != "all"].iterrows()
    ]
    return (
        f"The winner's class is named right in {percent(overall['accuracy_pct'])}"
        f" [{overall['accuracy_low_pct']:.1f}, {overall['accuracy_high_pct']:.1f}] of {int(overall['problems']):,}"
        f" problems: {listing(each)}; the winner's time is foretold by {model} within"
        f" {percent(overall['class_predicted_median_error_pct'])} in the median"
        f" ({percent(overall['class_known_median_error_pct'])} had the class been known)."
    )


def _figure(table: pd.DataFrame) -> str | None:
    long = pd.concat(
        [
            table.assign(by="boosted trees on terms", share=table["accuracy_pct"]),
            table.assign(by="the GPU's most frequent class", share=table["majority_pct"]),
        ]
    )
    return dots(long, category="gpu", series="by", value="share", xlabel="winner's class named right, %")


EXPERIMENT = Experiment(
    "winners_3x3",
    "Which algorithm class wins a 3×3 convolution on A100, V100 and P100, and how long does the winner take?",
    ("winners",),
    run,
)

if __name__ == "__main__":
    run_script(EXPERIMENT)
