"""Hyperparameters, searched inside the training part: group folds by shape, never a look at the held-out rows."""

from typing import Any

import numpy as np

from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_of_names, shape_names
from surrogate.models import Model

TUNE_TRIALS = {"none": 0, "light": 12, "full": 60}
"""Trials per fit of ``seer compare --tune``."""
INNER_FOLDS = 3


def tuned(cls: type[Model], rows: Rows, tune: str, seed: int) -> Model:
    """An unfitted model with its stored settings, or with the best of a search over ``rows``."""
    trials = TUNE_TRIALS[tune]
    return cls(**search(cls, rows, trials, seed)) if trials else cls()


def search(cls: type[Model], rows: Rows, trials: int, seed: int) -> dict[str, Any]:
    """The best of ``trials`` settings by cross-validated loss (see `loss`); the stored settings are the first trial."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    probe = optuna.trial.FixedTrial(dict(cls().params))
    if not cls.space(probe):
        return {}
    if len(set(shape_names(rows.frame[rows.ok]))) < 2:
        return dict(cls().params)  # nothing could be held out
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.enqueue_trial(cls.space(probe))
    study.optimize(lambda trial: loss(cls(**cls.space(trial)), rows, seed), n_trials=trials)
    return study.best_params


def loss(model: Model, rows: Rows, seed: int) -> float:
    """Root mean square log error of held-out ok rows, over `INNER_FOLDS` group folds by shape."""
    names = shape_names(rows.frame)
    fold_of = fold_of_names(names, INNER_FOLDS, seed)
    label = np.array([fold_of[name] for name in names])
    squares = []
    for fold in range(INNER_FOLDS):
        train, held = rows.take(label != fold), rows.take((label == fold) & rows.ok)
        if train.ok.any() and len(held):
            predicted = model.fit(train, seed=seed).predict_us(held)
            squares.append(np.log(predicted / held.time_us) ** 2)
    return float(np.sqrt(np.mean(np.concatenate(squares))))
