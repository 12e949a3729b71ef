"""The folds by shape inside the training part that settings are valued on, and the losses over them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from surrogate.dataset.problems import judged_rows, shape_names
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_labels
from surrogate.evaluation.scorecard import Judged, pick_by_times
from surrogate.features.errors import InputError, require_known
from surrogate.models import TimeModel

OBJECTIVES = ("time", "choice", "both")
INNER_FOLDS = 3
TIME_WEIGHT = 0.5
"""Weight of the mean absolute log error in ``both``: the slowdown alone is too noisy to choose by.

Ten random settings of boosted-terms, valued inside 1,506 shapes of MIOpen's find-db (MI210) and judged on 4,257 others:
the rank correlation with the slowdown outside was 0.30 for the slowdown inside, 0.61 for the root mean square error,
0.81 for the mean absolute error, 0.82 for ``both``; that with the mean absolute error outside −0.04, 0.37, 0.88, 0.75.
"""


@dataclass(frozen=True, slots=True)
class Loss:
    """Losses over held-out rows.

    ``time`` root mean square log error; ``absolute`` mean absolute log error; ``choice`` mean log slowdown, averaged
    within shapes and then over them as the primary figure of `seer compare` is (NaN where nothing could be chosen).
    """

    time: float
    absolute: float
    choice: float

    def value(self, objective: str) -> float:
        """The one number to minimise; without a choice ``both`` is its part of the time error alone."""
        if objective == "both":
            return TIME_WEIGHT * self.absolute + (0.0 if np.isnan(self.choice) else self.choice)
        return self.time if objective == "time" else self.choice


@dataclass(frozen=True)
class InnerFolds:
    """Training rows dealt into folds by shape; ``label`` (rows,) the fold, ``judged`` (rows,) rows of a choice.

    A choice is made among the measured candidates of a problem, if at least two are ok at its newest library version.
    """

    rows: Rows
    label: np.ndarray
    judged: np.ndarray

    @classmethod
    def of(cls, rows: Rows, seed: int) -> "InnerFolds":
        """Folds by hashing the shapes with the seed."""
        label = fold_labels(shape_names(rows.frame, rows.family), INNER_FOLDS, seed)
        return cls(rows, label, judged_rows(rows.frame, rows.family, "listed") & rows.ok)

    @property
    def can_hold_out(self) -> bool:
        """True where the ok rows have two shapes or more."""
        return len(np.unique(self.label[self.rows.ok])) > 1

    def require(self, objective: str) -> None:
        """Raise `InputError` where ``objective`` is unknown or these rows cannot give it."""
        require_known("objective", objective, OBJECTIVES)
        if objective == "choice" and not self.judged.any():
            raise InputError("no problem has two measured candidates to choose from; use objective time")

    def losses(self, model: TimeModel) -> Iterator[Loss]:
        """The loss over the folds so far, after each fold in which something could be trained and held out."""
        errors, slowdowns = [], []
        for fold in range(INNER_FOLDS):
            train = self.rows.take(self.label != fold)
            outside = np.flatnonzero((self.label == fold) & self.rows.ok)
            held = self.rows.take(outside)
            if not train.ok.any() or not len(held):
                continue
            predicted = model.fit(train).predict(held)
            applies = np.isfinite(predicted)
            errors.append(np.log(predicted[applies] / held.time_us[applies]))
            slowdowns.append(_log_slowdowns(predicted, held, self.judged[outside]))
            error, slowdown = np.concatenate(errors), np.concatenate(slowdowns)
            yield Loss(
                float(np.sqrt(np.mean(error**2))) if len(error) else np.inf,
                float(np.abs(error).mean()) if len(error) else np.inf,
                float(slowdown.mean()) if len(slowdown) else np.nan,
            )


def _log_slowdowns(predicted_us: np.ndarray, held: Rows, judged: np.ndarray) -> np.ndarray:
    """(shapes,) mean log slowdown of the picks over each shape's problems, among the ``judged`` rows."""
    if not judged.any():
        return np.empty(0)
    part = Judged.of(held.take(judged))
    slowdown = pick_by_times(part, predicted_us[judged], part.rows.ok).slowdown
    return np.bincount(part.shape, weights=np.log(slowdown)) / np.bincount(part.shape)
