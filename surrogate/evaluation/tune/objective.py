"""What a trial minimises: errors of times and slowdowns of choices on held-out shapes, fold after fold."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from surrogate.dataset.problems import judged_rows
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_of_names, shape_names
from surrogate.evaluation.judge import Candidates, choose
from surrogate.features.errors import InputError
from surrogate.models import Model

OBJECTIVES = ("time", "choice", "both")
DEFAULT_OBJECTIVE = "both"
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

    @classmethod
    def of(cls, error: np.ndarray, log_slowdown: np.ndarray) -> "Loss":
        """From the log errors of rows, infinite where the model applied to none, and the log slowdowns of shapes."""
        return cls(
            float(np.sqrt(np.mean(error**2))) if len(error) else np.inf,
            float(np.abs(error).mean()) if len(error) else np.inf,
            float(log_slowdown.mean()) if len(log_slowdown) else np.nan,
        )

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
    def of(cls, rows: Rows, seed: int, count: int = INNER_FOLDS) -> "InnerFolds":
        """Folds by hashing the shapes with the seed."""
        names = shape_names(rows.frame)
        fold_of = fold_of_names(names, count, seed)
        label = np.array([fold_of[name] for name in names])
        return cls(rows, label, judged_rows(rows.frame, "listed") & rows.ok)

    @property
    def count(self) -> int:
        """Number of folds; fewer than asked for where there are fewer shapes."""
        return int(self.label.max(initial=-1)) + 1

    @property
    def can_hold_out(self) -> bool:
        """True where the ok rows have two shapes or more."""
        return len(np.unique(self.label[self.rows.ok])) > 1

    def require(self, objective: str) -> None:
        """Raise `InputError` where ``objective`` is unknown or these rows cannot give it."""
        if objective not in OBJECTIVES:
            raise InputError(f"objective {objective!r} is unknown; known: {', '.join(OBJECTIVES)}")
        if objective == "choice" and not self.judged.any():
            raise InputError("no problem has two measured candidates to choose from; use objective time")

    def losses(self, model: Model, seed: int) -> Iterator[Loss]:
        """The loss over the folds so far, after each fold in which something could be trained and held out."""
        errors, slowdowns = [], []
        for fold in range(self.count):
            inside, outside = self.label != fold, np.flatnonzero((self.label == fold) & self.rows.ok)
            train, held = self.rows.take(inside), self.rows.take(outside)
            if not train.ok.any() or not len(held):
                continue
            predicted = model.fit(train, seed=seed).predict_us(held)
            applies = np.isfinite(predicted)
            errors.append(np.log(predicted[applies] / held.time_us[applies]))
            slowdowns.append(_log_slowdowns(predicted, held, self.judged[outside]))
            yield Loss.of(np.concatenate(errors), np.concatenate(slowdowns))


def _log_slowdowns(predicted_us: np.ndarray, held: Rows, judged: np.ndarray) -> np.ndarray:
    """(shapes,) mean log slowdown of the picks over each shape's problems, among the ``judged`` rows."""
    if not judged.any():
        return np.empty(0)
    part = held.take(judged)
    _, first, problem = np.unique(part.problem, return_index=True, return_inverse=True)
    candidates = Candidates(problem, part.time_us, part.ok, part.order)
    slowdown = choose(candidates, predicted_us[judged], part.ok).slowdown
    shape = np.unique(part.shape[first], return_inverse=True)[1]
    return np.bincount(shape, weights=np.log(slowdown)) / np.bincount(shape)


def loss(model: Model, rows: Rows, seed: int, objective: str = "time") -> float:
    """The loss of ``model`` over all inner folds of ``rows`` (see `Loss.value`)."""
    folds = InnerFolds.of(rows, seed)
    folds.require(objective)
    *_, last = folds.losses(model, seed)
    return last.value(objective)
