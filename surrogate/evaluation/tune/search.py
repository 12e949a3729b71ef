"""A search in memory: what ``seer compare --tune`` and ``seer train --tune`` do inside their training rows."""

from typing import Any

from surrogate.dataset.rows import Rows
from surrogate.evaluation.tune.objective import DEFAULT_OBJECTIVE, InnerFolds
from surrogate.models import Model

TUNE_TRIALS = {"none": 0, "light": 12, "full": 60}
"""Trials per fit of ``seer compare --tune``."""


def tuned(cls: type[Model], rows: Rows, tune: str, seed: int) -> Model:
    """An unfitted model with its stored settings, or with the best of a search over ``rows``."""
    trials = TUNE_TRIALS[tune]
    return cls(**search(cls, rows, trials, seed)) if trials else cls()


def search(
    cls: type[Model],
    rows: Rows,
    trials: int,
    seed: int,
    *,
    objective: str = DEFAULT_OBJECTIVE,
    progress: Any = None,
) -> dict[str, Any]:
    """The best of ``trials`` settings by their loss over inner folds (`InnerFolds`); the stored settings come first.

    ``progress`` is called with (trials finished, trials in all, the best so far). Raises `InputError` where the rows
    cannot carry the model or the objective.
    """
    import optuna

    from surrogate.evaluation.tune.sampler import RankedTPE
    from surrogate.evaluation.tune.worker import Work, pruner, run

    stored = stored_settings(cls)
    if not stored:
        return {}
    folds = InnerFolds.of(rows, seed)
    folds.require(objective)
    if not folds.can_hold_out:
        return dict(cls().params)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=RankedTPE(seed), pruner=pruner())
    study.enqueue_trial(stored)
    run(study, Work(cls, folds, objective, seed), trials, progress=progress)
    return study.best_params


def stored_settings(cls: type[Model]) -> dict[str, Any]:
    """The stored settings of what a model lets be tuned; empty where that is nothing."""
    import optuna

    return cls.space(optuna.trial.FixedTrial(dict(cls().params)))
