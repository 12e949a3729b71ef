"""Permutation importance of a fitted model's columns on held-out rows.

Source: Breiman 2001, "Random forests", section 10. scikit-learn computes the permutations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from surrogate.dataset.rows import Rows
from surrogate.models import TimeModel

MAX_ROWS = 1000
"""Maximum number of permuted held-out rows of a fold. More rows hardly change the mean."""
REPEATS = 2
"""Number of permutations of each column."""


def column_importance(model: TimeModel, holdout: Rows, names: Sequence[str], seed: int) -> dict[str, float]:
    """Return column → increase of the mean absolute log error when its values are permuted among held-out rows.

    Parameters
    ----------
    model
        A fitted model that takes the columns from ``Rows.features``.
    holdout
        Held-out rows. At most `MAX_ROWS` ok rows are drawn.
    names
        The columns to permute.
    seed
        Seed of the sample and the permutations.
    """
    from sklearn.inspection import permutation_importance

    sample = holdout.take(np.sort(np.random.default_rng(seed).permutation(np.flatnonzero(holdout.ok))[:MAX_ROWS]))
    if len(sample) < 2:
        return {}
    log_us = np.log(sample.time_us)
    places = [sample.column_names.index(name) for name in names]

    def accuracy(estimator: TimeModel, permuted: np.ndarray, log_us: np.ndarray) -> float:
        features = sample.features.copy()
        features[:, places] = permuted
        predicted_us = estimator.predict(replace(sample, features=features))
        return -float(np.nanmean(np.abs(np.log(predicted_us) - log_us)))

    settings: dict[str, Any] = {"scoring": accuracy, "n_repeats": REPEATS, "random_state": seed}
    found = permutation_importance(model, sample.columns(names), log_us, **settings)
    return dict(zip(names, found["importances_mean"].tolist(), strict=True))


def mean_importance(folds: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return one record per column, the most important first: ``increase``, its mean over folds, and its ``sd``."""
    names = dict.fromkeys(name for fold in folds for name in fold)
    records = []
    for name in names:
        values = [fold[name] for fold in folds if name in fold]
        records.append({"column": name, "increase": float(np.mean(values)), "sd": float(np.std(values))})
    return sorted(records, key=lambda record: -record["increase"])
