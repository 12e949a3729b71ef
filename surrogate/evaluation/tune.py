"""Hyperparameters searched inside the training part, by folds over shapes; held-out rows are never used.

The splits are nested. Whoever judges (the outer folds of ``seer compare``) hands over training rows only; every trial
is then valued on `INNER_FOLDS` folds of those rows by shape. `search` works in memory, `surrogate.evaluation.study`
over an Optuna storage that processes and machines share.
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
from surrogate.evaluation.scorecard import EvaluationSet, pick_by_times
from surrogate.features.errors import InputError, check_choice
from surrogate.models import TimeModel

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

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
    """Training rows dealt into folds by shape; ``label`` (rows,) the fold, ``evaluated`` (rows,) rows of a choice.

    A choice is made among the measured candidates of a problem, if at least two are ok at its newest library version.
    """

    rows: Rows
    label: np.ndarray
    evaluated: np.ndarray

    @classmethod
    def of(cls, rows: Rows, seed: int) -> "InnerFolds":
        """Folds by hashing the shapes with the seed."""
        label = fold_labels(shape_names(rows.frame, rows.family), INNER_FOLDS, seed)
        return cls(rows, label, evaluation_rows(rows.frame, rows.family, "listed") & rows.ok)

    @property
    def can_hold_out(self) -> bool:
        """True where the ok rows have two shapes or more."""
        return len(np.unique(self.label[self.rows.ok])) > 1

    def require(self, objective: str) -> None:
        """Raise `InputError` where ``objective`` is unknown or these rows cannot give it."""
        check_choice("objective", objective, OBJECTIVES)
        if objective == "choice" and not self.evaluated.any():
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
            slowdowns.append(_log_slowdowns(predicted, held, self.evaluated[outside]))
            error, slowdown = np.concatenate(errors), np.concatenate(slowdowns)
            yield Loss(
                float(np.sqrt(np.mean(error**2))) if len(error) else np.inf,
                float(np.abs(error).mean()) if len(error) else np.inf,
                float(slowdown.mean()) if len(slowdown) else np.nan,
            )


def _log_slowdowns(predicted_us: np.ndarray, held: Rows, evaluated: np.ndarray) -> np.ndarray:
    """(shapes,) mean log slowdown of the picks over each shape's problems, among the ``evaluated`` rows."""
    if not evaluated.any():
        return np.empty(0)
    part = EvaluationSet.of(held.take(evaluated))
    slowdown = pick_by_times(part, predicted_us[evaluated], part.rows.ok).slowdown
    return np.bincount(part.shape, weights=np.log(slowdown)) / np.bincount(part.shape)


DEFAULT_OBJECTIVE = "both"
TUNE_TRIALS = {"none": 0, "light": 20, "full": 60}
"""Trials per fit of ``seer compare --tune``."""


def configured(cls: type[TimeModel], params: Mapping[str, Any], seed: int, device: str = "cpu") -> TimeModel:
    """An unfitted model with these settings, and with the seed and the device where it has such."""
    stored = cls().get_params()
    run = {"random_state": seed, "device": device}
    return cls(**{name: value for name, value in run.items() if name in stored}, **params)


def tuned(
    cls: type[TimeModel], rows: Rows, tune: str, seed: int, device: str = "cpu", progress: Progress | None = None
) -> TimeModel:
    """An unfitted model with its stored settings, or with the best of a search over ``rows``.

    ``progress`` as of `search`.
    """
    trials = TUNE_TRIALS[tune]
    found = search(cls, rows, trials, seed, device=device, progress=progress) if trials else {}
    return configured(cls, found, seed, device)


def search(
    cls: type[TimeModel],
    rows: Rows,
    trials: int,
    seed: int,
    *,
    objective: str = DEFAULT_OBJECTIVE,
    device: str = "cpu",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The best of ``trials`` settings by their loss over inner folds (`InnerFolds`); the stored settings come first.

    ``progress`` is called with (trials finished, trials in all, the best so far). Raises `InputError` where the rows
    cannot carry the model or the objective.
    """
    import optuna

    stored = stored_settings(cls)
    if not stored:
        return {}
    folds = InnerFolds.of(rows, seed)
    folds.require(objective)
    if not folds.can_hold_out:
        return stored
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(**search_method(seed))
    study.enqueue_trial(stored)
    optimise(study, Valuing(cls, folds, objective, seed=seed, device=device), trials, progress=progress)
    return study.best_params


def stored_settings(cls: type[TimeModel]) -> dict[str, Any]:
    """The stored settings of what a model lets be tuned; empty where that is nothing."""
    import optuna

    return dict(cls.space(optuna.trial.FixedTrial(cls().get_params())))


_WARNINGS = threading.Lock()
"""Held while the process's warnings are changed: searches may run in several threads."""


def search_method(seed: int | None) -> dict[str, Any]:
    """TPE that takes the running trials of others for bad ones; after each fold, a trial above the median of its
    predecessors at that fold ends, but the first five never do.
    """
    import optuna

    with _WARNINGS, warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    return {"sampler": sampler, "pruner": optuna.pruners.MedianPruner(n_startup_trials=5)}


@contextmanager
def _held_signals() -> Iterator[Callable[[bool], None]]:
    """Hold back Ctrl-C and the like during a search; call what it yields with True where they may act, else False.

    A trial is closed properly only if the exception comes from within its valuing. Elsewhere it can leave a write half
    done or Optuna's heartbeat running, or be raised in a finaliser, where Python drops it. The first signal is kept
    until it may act, or the search is over; a second one acts at once.
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

    if threading.current_thread() is threading.main_thread():  # only there are handlers set, and run
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
class Valuing:
    """The loss of a trial's settings: a model is fitted on all folds but one, in turn. ``objective`` is minimised."""

    cls: type[TimeModel]
    folds: InnerFolds
    objective: str
    seed: int
    device: str

    def __call__(self, trial: "Trial") -> float:
        import optuna

        model = configured(self.cls, self.cls.space(trial), self.seed, self.device)
        last = None
        for fold, last in enumerate(self.folds.losses(model)):
            trial.report(last.value(self.objective), fold)
            if fold + 1 < INNER_FOLDS and trial.should_prune():
                raise optuna.TrialPruned
        assert last is not None  # `InnerFolds.can_hold_out` was asked before the study began
        for part, loss in asdict(last).items():
            trial.set_user_attr(f"{part}_loss", loss)
        return last.value(self.objective)


def optimise(
    study: "Study", valuing: Valuing, trials: int, timeout_s: float | None = None, progress: Progress | None = None
) -> None:
    """Run trials until the study has ``trials`` finished ones, by all its workers, or the time is up."""
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

    with _held_signals() as allow:

        def value(trial: "Trial") -> float:
            try:
                allow(True)
                return valuing(trial)
            finally:
                allow(False)

        if not is_done():
            study.optimize(value, timeout=timeout_s, callbacks=[stop_if_done])
