"""Search hyperparameters with folds by shape inside the training rows; held-out rows are never used.

The splits are nested. The outer folds of ``seer compare`` pass only training rows. Each trial is then evaluated on
`INNER_FOLDS` folds of these rows by shape. `search` works in memory. `hyperparameter_study` uses an Optuna storage that
processes and machines share.
"""

import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from surrogate.dataset.files import Progress
from surrogate.dataset.problems import evaluation_rows, shape_names
from surrogate.dataset.rows import Rows
from surrogate.dataset.splits import fold_labels
from surrogate.dataset.threads import WARNINGS_LOCK
from surrogate.evaluation.scorecard import EvaluationSet, pick_by_times
from surrogate.features import InputError, check_choice
from surrogate.models import TimeModel

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

OBJECTIVES = ("time", "choice", "both")
INNER_FOLDS = 3
TIME_WEIGHT = 0.5
"""Weight of the mean absolute log error in ``both``. The slowdown without it is too noisy to choose settings.

Measured with ten random settings of boosted-terms on MIOpen's find-db (MI210), with the loss on 1,506 inner shapes and
the result on 4,257 outer shapes. Rank correlations with the outer slowdown and the outer mean absolute error:

==========================  ==============  ==========================
inner loss                  outer slowdown  outer mean absolute error
==========================  ==============  ==========================
slowdown                    0.30            −0.04
root mean square error      0.61            0.37
mean absolute error         0.81            0.88
``both``                    0.82            0.75
==========================  ==============  ==========================
"""


@dataclass(frozen=True, slots=True)
class Loss:
    """Losses over held-out rows.

    ``time`` is the root mean square log error. ``absolute`` is the mean absolute log error. ``choice`` is the mean log
    slowdown, averaged within shapes and then over shapes, as in the primary figure of `seer compare`. It is NaN if no
    problem has a choice.
    """

    time: float
    absolute: float
    choice: float

    def value(self, objective: str) -> float:
        """Return the value to minimise. Without a choice, ``both`` is only its part of the time error."""
        if objective == "both":
            return TIME_WEIGHT * self.absolute + (0.0 if np.isnan(self.choice) else self.choice)
        return self.time if objective == "time" else self.choice


@dataclass(frozen=True)
class InnerFolds:
    """Training rows in folds by shape.

    ``label`` (rows,) is each row's fold. ``evaluated`` (rows,) marks the rows of choices. A choice is made among the
    measured candidates of a problem if at least two are ok at its newest library version.
    """

    rows: Rows
    label: np.ndarray
    evaluated: np.ndarray

    @classmethod
    def of(cls, rows: Rows, seed: int) -> "InnerFolds":
        """Return folds by a hash of the shapes and the seed."""
        label = fold_labels(shape_names(rows.frame, rows.family), INNER_FOLDS, seed)
        return cls(rows, label, evaluation_rows(rows.frame, rows.family, "listed") & rows.ok)

    @property
    def can_hold_out(self) -> bool:
        """Whether the ok rows have two or more shapes."""
        return len(np.unique(self.label[self.rows.ok])) > 1

    def require(self, objective: str) -> None:
        """Raise `InputError` if ``objective`` is unknown, or if these rows do not determine it."""
        check_choice("objective", objective, OBJECTIVES)
        if objective == "choice" and not self.evaluated.any():
            raise InputError("no problem has two measured candidates to choose from; use objective time")

    def losses(self, model: TimeModel) -> Iterator[Loss]:
        """Yield the loss over the folds so far, after each fold with training rows and held-out rows."""
        errors, slowdowns = [], []
        for fold in range(INNER_FOLDS):
            train = self.rows.take(self.label != fold)
            outside = np.flatnonzero((self.label == fold) & self.rows.ok)
            holdout = self.rows.take(outside)
            if not train.ok.any() or not len(holdout):
                continue
            predicted = model.fit(train).predict(holdout)
            applies = np.isfinite(predicted)
            errors.append(np.log(predicted[applies] / holdout.time_us[applies]))
            slowdowns.append(_log_slowdowns(predicted, holdout, self.evaluated[outside]))
            error, slowdown = np.concatenate(errors), np.concatenate(slowdowns)
            yield Loss(
                float(np.sqrt(np.mean(error**2))) if len(error) else np.inf,
                float(np.abs(error).mean()) if len(error) else np.inf,
                float(slowdown.mean()) if len(slowdown) else np.nan,
            )


def _log_slowdowns(predicted_us: np.ndarray, holdout: Rows, evaluated: np.ndarray) -> np.ndarray:
    """Return the mean log slowdown of each shape's picks, (shapes,), among the ``evaluated`` rows."""
    if not evaluated.any():
        return np.empty(0)
    evaluation_set = EvaluationSet.of(holdout.take(evaluated))
    slowdown = pick_by_times(evaluation_set, predicted_us[evaluated], evaluation_set.rows.ok).slowdown
    return np.bincount(evaluation_set.shape, weights=np.log(slowdown)) / np.bincount(evaluation_set.shape)


DEFAULT_OBJECTIVE = "both"
TUNE_TRIALS = {"none": 0, "light": 20, "full": 60}
"""Trials per fit of ``seer compare --tune``."""


def configured(cls: type[TimeModel], params: Mapping[str, Any], seed: int, device: str = "cpu") -> TimeModel:
    """Return an unfitted model with these settings, the seed and the device.

    A model without the latter ignores them.
    """
    stored = cls().get_params()
    run = {"random_state": seed, "device": device}
    return cls(**{name: value for name, value in run.items() if name in stored}, **params)


def tuned(
    cls: type[TimeModel], rows: Rows, tune: str, seed: int, device: str = "cpu", progress: Progress | None = None
) -> TimeModel:
    """Return an unfitted model with its stored settings, or with the best settings of a search over ``rows``.

    ``progress`` is called as in `search`.
    """
    trials = TUNE_TRIALS[tune]
    found = search(cls, rows, trials, seed, device=device, progress=progress) if trials else {}
    return configured(cls, found, seed, device)


def search(
    cls: type[TimeModel], rows: Rows, trials: int, seed: int, *, device: str = "cpu", progress: Progress | None = None
) -> dict[str, Any]:
    """Return the best of ``trials`` settings by their loss over inner folds (`InnerFolds`).

    The first trial has the stored settings. ``progress`` is called with the finished trials, all trials, and the best
    value so far as text. Raises `InputError` if the rows are not enough for the model.
    """
    import optuna

    stored = default_hyperparameters(cls)
    if not stored:
        return {}
    folds = InnerFolds.of(rows, seed)
    if not folds.can_hold_out:
        return stored
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(**search_method(seed))
    study.enqueue_trial(stored)
    optimise(study, TrialObjective(cls, folds, DEFAULT_OBJECTIVE, seed=seed, device=device), trials, progress=progress)
    return study.best_params


def default_hyperparameters(cls: type[TimeModel]) -> dict[str, Any]:
    """Return the stored values of a model's tunable settings; empty if it has none."""
    import optuna

    return dict(cls.space(optuna.trial.FixedTrial(cls().get_params())))


def search_method(seed: int | None) -> dict[str, Any]:
    """Return sampler and pruner of a study.

    The sampler is TPE, which assumes that running trials are bad. After each fold, the pruner ends a trial whose value
    is above the median of earlier trials at that fold. It never ends the first five trials.
    """
    import optuna

    with WARNINGS_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    return {"sampler": sampler, "pruner": optuna.pruners.MedianPruner(n_startup_trials=5)}


@contextmanager
def _delayed_signals() -> Iterator[Callable[[bool], None]]:
    """Delay Ctrl-C and other signals during a search; yield a function that allows (True) or delays them (False).

    Optuna closes a trial properly only if the exception comes from inside the objective, and not from a call of its
    storage: an interrupted transaction can keep a database locked. The first signal is delayed until it is allowed or
    the search ends. A second signal acts immediately.
    """
    handlers: dict[int, Any] = {}
    caught: list[int] = []
    may_act = False

    def handle(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        if may_act or len(caught) > 1:
            handlers[number](number, frame)

    def allow(allowed: bool) -> None:
        nonlocal may_act
        may_act = allowed
        if allowed and caught:
            handlers[caught[0]](caught[0], None)

    if threading.current_thread() is threading.main_thread():  # handlers are set and run only there
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and callable(handler := signal.getsignal(number)):
                handlers[number] = handler
                signal.signal(number, handle)
    try:
        yield allow
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    allow(True)


@dataclass(frozen=True)
class TrialObjective:
    """The objective of a trial: the loss of its settings by cross-validation.

    ``objective`` names the minimised loss.
    """

    cls: type[TimeModel]
    folds: InnerFolds
    objective: str
    seed: int
    device: str

    def __call__(self, trial: "Trial", allow: Callable[[bool], None]) -> float:
        """Return the loss. ``allow`` is called with True before a fold is computed and with False after it."""
        import optuna

        model = configured(self.cls, self.cls.space(trial), self.seed, self.device)
        last = None
        allow(True)
        for fold, last in enumerate(self.folds.losses(model)):
            allow(False)
            trial.report(last.value(self.objective), fold)
            if fold + 1 < INNER_FOLDS and trial.should_prune():
                raise optuna.TrialPruned
            allow(True)
        allow(False)
        assert last is not None  # `InnerFolds.can_hold_out` was checked before the study began
        for name, loss in asdict(last).items():
            trial.set_user_attr(f"{name}_loss", loss)
        return last.value(self.objective)


def optimise(
    study: "Study", loss: TrialObjective, trials: int, timeout_s: float | None = None, progress: Progress | None = None
) -> None:
    """Run trials until all workers together have finished ``trials`` trials, or the time is over."""
    from optuna.trial import TrialState

    def is_done() -> bool:
        finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        values = [each.value for each in finished if each.state == TrialState.COMPLETE and each.value is not None]
        if progress is not None:
            progress(min(len(finished), trials), trials, f"best {min(values):.5f}" if values else "")
        return len(finished) >= trials

    def stop_if_done(study: "Study", _trial: "FrozenTrial") -> None:
        if is_done():
            study.stop()

    with _delayed_signals() as allow:

        def value(trial: "Trial") -> float:
            try:
                return loss(trial, allow)
            finally:
                allow(False)

        if not is_done():
            study.optimize(value, timeout=timeout_s, callbacks=[stop_if_done])
