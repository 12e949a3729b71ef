"""Hyperparameters, searched inside the training part: group folds by shape, never a look at the held-out rows.

The splits are nested. Whoever judges (the outer folds of ``seer compare``) hands over training rows only; every trial
is then valued on `INNER_FOLDS` folds of those rows by shape. One search serves all: in memory for
``seer compare --tune`` and ``seer train --tune``, over a storage that many processes share for ``seer tune``
(`surrogate.evaluation.tune.shared`).
"""

from surrogate.evaluation.tune.objective import (
    DEFAULT_OBJECTIVE,
    INNER_FOLDS,
    OBJECTIVES,
    TIME_WEIGHT,
    InnerFolds,
    Loss,
    loss,
)
from surrogate.evaluation.tune.search import TUNE_TRIALS, search, tuned
from surrogate.evaluation.tune.settings import Settings, read_settings, write_settings

__all__ = [
    "DEFAULT_OBJECTIVE",
    "INNER_FOLDS",
    "OBJECTIVES",
    "TIME_WEIGHT",
    "TUNE_TRIALS",
    "InnerFolds",
    "Loss",
    "Settings",
    "loss",
    "read_settings",
    "search",
    "tuned",
    "write_settings",
]
