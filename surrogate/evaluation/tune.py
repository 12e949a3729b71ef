"""Hyperparameters searched inside the training part, by folds over shapes; held-out rows are never used.

The splits are nested. Whoever judges (the outer folds of ``seer compare``) hands over training rows only; every trial
is then valued on `INNER_FOLDS` folds of those rows by shape. `search` works in memory, `tune` over an Optuna storage
that processes and machines share.
"""

import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from surrogate.dataset.files import Progress
from surrogate.dataset.problems import judged_rows, shape_names
from surrogate.dataset.rows import Rows, fingerprint, rows_of
from surrogate.dataset.splits import fold_labels
from surrogate.dataset.store import Data, as_dataset
from surrogate.evaluation.scorecard import Judged, pick_by_times
from surrogate.evaluation.settings import Settings
from surrogate.evaluation.storage import heartbeat, opened, requeue_lost, shown
from surrogate.features.errors import InputError, require_known
from surrogate.models import DEFAULT_MODEL, TimeModel, model_class, model_frame

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.storages import BaseStorage

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


DEFAULT_OBJECTIVE = "both"
TUNE_TRIALS = {"none": 0, "light": 20, "full": 60}
"""Trials per fit of ``seer compare --tune``."""
LEAST_FOR_IMPORTANCE = 10
"""Completed trials below which shares of the variance are noise."""
IDENTITY = "seer"
"""User attribute of a study: what it was made for."""
DEFAULT_STORAGE = "tune.journal"
POLL_S = 1.0
"""How often a worker looks whether the last trials of others are finished."""


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
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(storage=storage, **_search_method(seed))
    study.enqueue_trial(stored)
    valuing = _Valuing(cls, folds, objective, seed=seed, device=device)
    _optimise(study, storage, valuing, trials, timeout_s=None, progress=progress)
    return study.best_params


def stored_settings(cls: type[TimeModel]) -> dict[str, Any]:
    """The stored settings of what a model lets be tuned; empty where that is nothing."""
    import optuna

    return dict(cls.space(optuna.trial.FixedTrial(cls().get_params())))


_WARNINGS = threading.Lock()
"""Held while the process's warnings are changed: searches may run in several threads."""


def _search_method(seed: int | None) -> dict[str, Any]:
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
    done, or be raised in a finaliser, where Python drops it. The first signal is kept until it may act, or the search
    is over; a second one acts at once.
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
class _Valuing:
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


def _optimise(
    study: "Study",
    storage: "BaseStorage",
    valuing: _Valuing,
    trials: int,
    *,
    timeout_s: float | None,
    progress: Progress | None,
) -> None:
    """Trials until the study has finished ``trials`` of them, by all workers, or the time is up.

    A worker begins none that would be one too many. It waits for those that others run, of which one may be lost.
    """
    from optuna.trial import TrialState

    end = math.inf if timeout_s is None else time.monotonic() + timeout_s
    shown = -1
    with _held_signals() as allow, warnings.catch_warnings():
        # a trial that is tried again reports its first folds again
        warnings.filterwarnings("ignore", message="The reported value is ignored")
        while True:
            requeue_lost(storage, study.study_name)
            every = study.get_trials(deepcopy=False)
            finished = [trial for trial in every if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)]
            values = [each.value for each in finished if each.state == TrialState.COMPLETE and each.value is not None]
            if progress is not None and len(finished) != shown:
                progress(min(len(finished), trials), trials, f"best {min(values):.5f}" if values else "")
            shown = len(finished)
            if shown >= trials or time.monotonic() >= end:
                return
            if shown + sum(trial.state == TrialState.RUNNING for trial in every) < trials:
                _run_trial(study, valuing, trials, allow)
            else:
                allow(True)
                time.sleep(POLL_S)
                allow(False)


def _run_trial(study: "Study", valuing: _Valuing, trials: int, allow: Callable[[bool], None]) -> None:
    """Begin a trial, value it and say how it ended; ``allow`` tells when a signal may interrupt it."""
    import optuna
    from optuna.trial import TrialState

    trial = study.ask()
    state, value = TrialState.FAIL, None
    try:
        if not _is_surplus(study, trial.number, trials):
            with heartbeat(trial):
                allow(True)
                value = valuing(trial)
            state = TrialState.COMPLETE
    except optuna.TrialPruned:
        state = TrialState.PRUNED
    except optuna.exceptions.UpdateFinishedTrialError:
        pass  # this process slept so long that another worker finished the trial
    finally:
        allow(False)
        with suppress(ValueError):  # or has put it back into the queue
            study.tell(trial, value, state, skip_if_finished=True)


def _is_surplus(study: "Study", number: int, trials: int) -> bool:
    """Whether workers that began at once began too many: ``trials`` stand before this one, or its settings do."""
    from optuna.trial import TrialState

    every = study.get_trials(deepcopy=False)
    fixed = every[number].system_attrs.get("fixed_params")
    before = [trial for trial in every[:number] if trial.state != TrialState.FAIL]
    repeats = fixed is not None and fixed in [trial.system_attrs.get("fixed_params") for trial in before]
    return repeats or len(before) >= trials


@dataclass(frozen=True)
class Tuned:
    """The outcome of a study so far: ``params`` the best settings, ``value`` theirs, ``stored_value`` the stored ones'.

    ``time_loss``, ``absolute_loss`` and ``choice_loss`` are its parts (see `Loss`); ``trials`` state → count;
    ``importance`` setting → share of the variance of values that it explains (empty for few trials).
    """

    model: str
    objective: str
    study: str
    storage: str
    params: dict[str, Any]
    value: float
    stored_value: float | None
    time_loss: float
    absolute_loss: float
    choice_loss: float | None
    trials: dict[str, int]
    importance: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON takes it."""
        return asdict(self)

    def settings(self) -> Settings:
        """As a settings file holds it."""
        search = {k: v for k, v in self.to_dict().items() if k not in ("model", "params", "storage")}
        return Settings(self.model, self.params, search)


def tune(
    data: Data,
    *,
    trials: int,
    model: str = DEFAULT_MODEL,
    storage: str = DEFAULT_STORAGE,
    study: str | None = None,
    objective: str = DEFAULT_OBJECTIVE,
    candidate: str = "algorithm",
    seed: int = 0,
    device: str = "cpu",
    timeout_minutes: float | None = None,
    progress: Progress | None = None,
) -> Tuned:
    """Search settings of ``model`` over ``data`` until the study in ``storage`` has ``trials`` finished ones.

    All who give the same arguments share one study, and end together. ``study``: its name, by default made of model,
    objective and data. A trial whose worker was killed is tried again with the same settings (`requeue_lost`). Raises
    `InputError` where the study of that name was made for something else, the storage cannot be used, or the data (of
    one family) cannot carry the search.
    """
    import optuna

    cls = model_class(model)
    data = as_dataset(data)
    stored = stored_settings(cls)
    if not stored:
        raise InputError(f"{model} has no settings to tune; tune another model, as {DEFAULT_MODEL}")
    rows = rows_of(model_frame(data, candidate), data.own, data.devices)
    folds = InnerFolds.of(rows, seed)
    folds.require(objective)
    if not folds.can_hold_out:
        raise InputError(f"{data.name}: measured rows of two shapes or more are needed to hold one out")
    identity = {
        "model": model,
        "objective": objective,
        "candidate": candidate,
        "data": fingerprint(rows),
        "seed": seed,
        "folds": INNER_FOLDS,
        "features": rows.family.version,
    }
    name = study or f"{model}-{objective}-{identity['data'][:8]}"
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with opened(storage) as held:
        joined = _join(held, name, identity, stored=stored, where=shown(storage), seed=seed)
        valuing = _Valuing(cls, folds, objective, seed=seed, device=device)
        timeout_s = None if timeout_minutes is None else 60.0 * timeout_minutes
        _optimise(joined, held, valuing, trials, timeout_s=timeout_s, progress=progress)
        return _outcome(joined, model, objective, where=shown(storage), stored=stored)


def _join(
    storage: "BaseStorage", name: str, identity: dict[str, Any], stored: dict[str, Any], where: str, seed: int
) -> "Study":
    """The study of that name, made if missing. The process that makes it samples with ``seed``, others without one."""
    import optuna

    try:
        study = optuna.create_study(study_name=name, storage=storage, **_search_method(seed))
    except optuna.exceptions.DuplicatedStudyError:
        study = optuna.load_study(study_name=name, storage=storage, **_search_method(None))
    trials = study.get_trials(deepcopy=False)
    # read first: its maker says what it is for, then adds trials
    if IDENTITY not in study.user_attrs:
        if trials:
            raise InputError(f"study {name!r} in {where} is none of `seer tune`; give another --study name")
        study.set_user_attr(IDENTITY, identity)
    stored_identity = study.user_attrs[IDENTITY]
    for key, value in identity.items():
        if stored_identity.get(key) != value:
            differs = f"is for {key} {stored_identity.get(key)}, this run has {value}"
            remedy = "values would not compare: give another --study name"
            raise InputError(f"study {name!r} in {where} {differs}; {remedy}")
    usable = [t for t in study.get_trials(deepcopy=False) if t.state != optuna.trial.TrialState.FAIL]
    if stored not in [trial.system_attrs.get("fixed_params", trial.params) for trial in usable]:
        study.enqueue_trial(stored)  # an interrupted trial of theirs is no trial
    return study


def _outcome(study: "Study", model: str, objective: str, where: str, stored: dict[str, Any]) -> Tuned:
    import optuna

    trials = study.get_trials(deepcopy=False)
    count = {state.name.lower(): sum(t.state == state for t in trials) for state in optuna.trial.TrialState}
    if not count["complete"]:
        raise InputError(f"study {study.study_name!r} in {where} has no finished trial; allow more time")
    best = study.best_trial
    choice = float(best.user_attrs["choice_loss"])
    importance: dict[str, float] = {}
    if count["complete"] >= LEAST_FOR_IMPORTANCE:
        with suppress(RuntimeError, ValueError):  # all trials of one value
            importance = optuna.importance.get_param_importances(study)
    complete = [trial for trial in trials if trial.state == optuna.trial.TrialState.COMPLETE]
    return Tuned(
        model,
        objective,
        study=study.study_name,
        storage=where,
        params=dict(best.params),
        value=study.best_value,
        stored_value=next((trial.value for trial in complete if trial.params == stored), None),
        time_loss=best.user_attrs["time_loss"],
        absolute_loss=best.user_attrs["absolute_loss"],
        choice_loss=choice if np.isfinite(choice) else None,
        trials={state: count[state] for state in ("complete", "pruned", "running")},
        importance={name: float(share) for name, share in importance.items()},
    )
