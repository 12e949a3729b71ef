"""Which class wins a 3×3 convolution: boosted trees on every class's terms, and on the exact tiles of its kernels."""

from collections.abc import Mapping

import numpy as np

from experiments.experiment import Effort
from experiments.held_out import Round
from experiments.winners_terms import tile_terms
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.store import Dataset

SETTINGS = {
    "learning_rate": 0.08, "max_depth": 6, "min_child_weight": 2.0, "subsample": 0.8, "colsample_bynode": 0.3,
    "max_bin": 128, "tree_method": "hist", "verbosity": 0,
}  # fmt: skip
ROUNDS = 300
BEST = "tiles, joint and per GPU"
"""The classifier whose verdicts are the result: the mean probability of two."""


def class_probabilities(
    rows: Rows, data: Dataset, classes: list[str], label: np.ndarray, rounds: list[Round], effort: Effort
) -> Mapping[str, np.ndarray]:
    """Classifier → held-out probabilities (rows, classes): terms or terms and tiles, for all GPUs or one each."""
    terms = class_terms(rows, data, classes)
    tiles = np.hstack([terms, tile_terms(rows.frame, rows.column("sms").astype(np.float64))])
    gpu = np.unique(rows.frame["gpu"].to_numpy(), return_inverse=True)[1]
    one = np.zeros(len(rows), dtype=np.int64)
    found = {}
    for name, design, part in (("terms", terms, one), ("tiles", tiles, one), ("tiles per GPU", tiles, gpu)):
        share = np.zeros((len(rows), len(classes)))
        for both in rounds:
            effort.tick(name)
            for code in np.unique(part):
                inside, outside = (side[part[side] == code] for side in both)
                if len(inside) and len(outside):
                    share[outside] = classify(
                        design[inside], label[inside], design[outside], len(classes), effort.seed
                    )
        found[name] = share
    found[BEST] = (found["tiles"] + found["tiles per GPU"]) / 2
    return found


def class_terms(rows: Rows, data: Dataset, classes: list[str]) -> np.ndarray:
    """(rows, columns) float32: the problem and the machine once, and the algorithm's terms of every class in turn."""
    kind, own = rows.family, rows.family.candidate_names
    shared = rows.columns(tuple(name for name in rows.column_names if name not in own))
    each = [rows_of(rows.frame.assign(algorithm=name), kind, data.devices).columns(own) for name in classes]
    return np.hstack([shared, *each])


def classify(train: np.ndarray, label: np.ndarray, test: np.ndarray, count: int, seed: int) -> np.ndarray:
    """(test rows, count) probabilities by boosted trees; a class absent from training has none."""
    import xgboost

    present, code = np.unique(label, return_inverse=True)
    share = np.zeros((len(test), count))
    if len(present) == 1:
        share[:, present] = 1.0
        return share
    data = xgboost.QuantileDMatrix(train, label=code, max_bin=SETTINGS["max_bin"])
    task = {"objective": "multi:softprob", "num_class": len(present), "seed": seed}
    booster = xgboost.train({**SETTINGS, **task}, data, num_boost_round=ROUNDS)
    share[:, present] = booster.inplace_predict(test)
    return share


def majority_class(rows: Rows, label: np.ndarray, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """The most frequent class of each test row's GPU in training; of all GPUs where it has none."""
    gpu = rows.frame["gpu"].to_numpy()
    overall = np.bincount(label[train]).argmax()
    most = {name: np.bincount(label[train][gpu[train] == name]).argmax() for name in set(gpu[train])}
    return np.array([most.get(name, overall) for name in gpu[test]])
