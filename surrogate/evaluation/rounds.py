"""The rounds of a comparison: every model fitted on every fold's training rows, predicting the held-out ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from surrogate.dataset.problems import newest_version
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import Fold
from surrogate.evaluation.tune import tuned
from surrogate.features.errors import InputError
from surrogate.models import Model, Support
from surrogate.models.blend import Blend
from surrogate.models.boosted import BoostedTerms
from surrogate.models.gaussian import GaussianTerms

Progress = Callable[[int, int, str], None]
"""Called with (steps done, steps in all, what is being done)."""


@dataclass(frozen=True)
class Runs:
    """What the rounds gave, over the main table's rows.

    ``predicted`` model → one array (rows,) in µs per seed, NaN where never held out; ``supported`` one mask (rows,) per
    seed; ``settings`` model → its hyperparameters, one per fit; ``reasons`` model → why it could not be fitted.
    """

    predicted: dict[str, list[np.ndarray]]
    supported: list[np.ndarray]
    settings: dict[str, list[dict[str, Any]]]
    reasons: dict[str, str]


def run_rounds(
    rows: Rows,
    main: pd.DataFrame,
    rounds: Sequence[Sequence[Fold]],
    classes: Sequence[type[Model]],
    tune: str,
    progress: Progress,
) -> Runs:
    """Fit and predict; ``rounds`` holds the folds of each seed, ``main`` the table whose rows are held out.

    A model that the data cannot carry is left out with its reason. Raises `InputError` where none can be fitted.
    """
    newest = newest_version(main)
    runs = Runs({cls.name: [] for cls in classes}, [], {cls.name: [] for cls in classes}, {})
    total, done = sum(map(len, rounds)) * len(classes), 0
    for seed, folds in enumerate(rounds):
        feasible = np.zeros(len(main), dtype=bool)
        for name in runs.predicted:
            runs.predicted[name].append(np.full(len(main), np.nan))
        for fold in folds:
            train, test = rows.take(fold.train), fold.test[newest[fold.test]]
            if not train.ok.any():
                raise InputError(
                    f"fold {fold.name}: nothing is left to train on; use fewer folds or more data"
                )
            held, fitted = rows.take(test), dict[str, Model]()
            feasible[test] = Support.fit(train).supported(held)
            for cls in classes:
                progress(done, total, f"seed {seed} fold {fold.name} {cls.name}")
                done += 1
                if cls.name not in runs.reasons:
                    _fit_and_predict(runs, cls, train, held, test, tune, seed, fitted)
        runs.supported.append(feasible)
    if len(runs.reasons) == len(classes):
        raise InputError("; ".join(f"{name}: {reason}" for name, reason in runs.reasons.items()))
    progress(total, total, "judging")
    return runs


def _fit_and_predict(
    runs: Runs,
    cls: type[Model],
    train: Rows,
    held: Rows,
    test: np.ndarray,
    tune: str,
    seed: int,
    fitted: dict[str, Model],
) -> None:
    try:
        model = tuned(cls, train, tune, seed)
        runs.settings[cls.name].append(dict(model.params))
        fitted[cls.name] = fit_beside(model, train, seed, fitted)
        runs.predicted[cls.name][seed][test] = fitted[cls.name].predict_us(held)
    except InputError as error:
        runs.reasons[cls.name] = str(error)


def fit_beside(model: Model, train: Rows, seed: int, fitted: Mapping[str, Model]) -> Model:
    """``model`` fitted on ``train``; ``fitted`` holds, by name, the models already fitted on it with that seed.

    A blend takes its parts from there where their settings are its own: the same fit is not made twice.
    """
    if isinstance(model, Blend):
        trees, process = fitted.get(model.trees.name), fitted.get(model.process.name)
        if (
            isinstance(trees, BoostedTerms)
            and isinstance(process, GaussianTerms)
            and trees.params == model.trees.params
            and process.params == model.process.params
        ):
            blend = Blend(**model.params)
            blend.trees, blend.process = trees, process
            return blend
    return model.fit(train, seed=seed)
