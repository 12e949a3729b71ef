"""One worker's loop over a study: ask, value on the inner folds, tell; alone or beside others on the same storage."""

import os
import platform
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from surrogate.evaluation.tune.objective import InnerFolds
from surrogate.evaluation.tune.sampler import COUNTED, rank
from surrogate.models import Model

WORKER = "worker"
"""User attribute of a trial: host and process that run it."""
ENQUEUED_BY = "enqueued_by"
"""User attribute of a waiting trial: which call put it there."""
NAMED_WITHIN_S = 10.0
"""A trial without a worker's name for so long is lost: a worker's first deed is to name itself."""
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
LOST_AFTER_S = 3600.0
LOST_AFTER_TRIALS = 10.0
"""A trial that another host began is held lost after an hour, or ten times the longest trial, whichever is more."""

Progress = Callable[[int, int, str], None]
"""Called with (trials finished, trials in all, the best so far)."""


@dataclass(frozen=True)
class Work:
    """What every trial of a study does: fit ``cls`` on ``folds`` and minimise ``objective``."""

    cls: type[Model]
    folds: InnerFolds
    objective: str
    seed: int


def run(
    study: Study, work: Work, trials: int, *, deadline: float | None = None, progress: Progress | None = None
) -> None:
    """Trials until the study counts ``trials`` of them, or until ``deadline`` (`time.monotonic`), when none begins.

    An interruption gives the trial back: its settings are the next to be tried, by whoever asks first.
    """
    _show(study, trials, progress)
    while deadline is None or time.monotonic() < deadline:
        release_lost(study)
        counted = study.get_trials(deepcopy=False, states=COUNTED)
        if len(counted) >= trials:
            if any(map(_is_unnamed, counted)):  # its worker is about to name itself, or was killed
                time.sleep(0.2)
                continue
            break
        trial = study.ask()
        try:
            if rank(study, trial.number) >= trials:  # several workers asked for the last one
                give_back(study, trial.number)
                break
            trial.set_user_attr(WORKER, this_worker())
            _value(study, trial, work)
        except (KeyboardInterrupt, SystemExit):
            give_back(study, trial.number)
            raise
        except UpdateFinishedTrialError:  # another worker took it for lost and gave its settings back
            continue
        except Exception:
            study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
            raise
        _show(study, trials, progress)


def _value(study: Study, trial: Trial, work: Work) -> None:
    """Value one trial's settings, fold by fold; hopeless ones end early. The stored settings, the first, never do."""
    model = work.cls(**work.cls.space(trial))
    last = None
    for fold, last in enumerate(work.folds.losses(model, work.seed)):
        trial.report(last.value(work.objective), fold)
        if fold + 1 < work.folds.count and trial.should_prune():
            study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
            return
    assert last is not None  # `InnerFolds.can_hold_out` was asked before the study began
    for part, value in asdict(last).items():
        trial.set_user_attr(f"{part}_loss", value)
    study.tell(trial, last.value(work.objective), skip_if_finished=True)


def give_back(study: Study, number: int) -> None:
    """Mark an unfinished trial as failed and let its settings wait for the next that asks."""
    try:
        frozen = study.tell(number, state=TrialState.FAIL)
    except (ValueError, RuntimeError):
        return  # another worker saw it first, or it had finished
    params = frozen.system_attrs.get("fixed_params") or frozen.params
    if params:
        study.enqueue_trial(params)


def enqueue_missing(study: Study, params: dict[str, Any]) -> None:
    """Let ``params`` wait to be tried, unless a trial has them; of several workers that do so at once, one counts."""
    kept = (*COUNTED, TrialState.WAITING)

    def alike() -> list[FrozenTrial]:
        trials = study.get_trials(deepcopy=False, states=kept)
        return [t for t in trials if params in (t.params, t.system_attrs.get("fixed_params"))]

    if alike():
        return
    marker = uuid.uuid4().hex
    study.enqueue_trial(params, user_attrs={ENQUEUED_BY: marker})
    first, *others = alike()
    if first.user_attrs.get(ENQUEUED_BY) == marker:
        return
    for trial in others:
        if trial.user_attrs.get(ENQUEUED_BY) == marker:
            study._storage.set_trial_state_values(
                trial._trial_id, TrialState.FAIL
            )  # optuna cannot tell a waiting one


def release_lost(study: Study) -> None:
    """Give back the trials of workers that are no more (killed, or a machine that left)."""
    trials = study.get_trials(deepcopy=False)
    longest_s = max((_seconds(t) for t in trials if t.state in FINISHED), default=0.0)
    for trial in trials:
        if trial.state == TrialState.RUNNING and _lost(trial, longest_s):
            give_back(study, trial.number)


def _lost(trial: FrozenTrial, longest_s: float) -> bool:
    if _is_unnamed(trial):
        return _seconds(trial) > NAMED_WITHIN_S
    host, _, process = str(trial.user_attrs[WORKER]).rpartition(":")
    if host == platform.node() and os.name == "posix" and not _alive(int(process)):
        return True
    return _seconds(trial) > max(LOST_AFTER_S, LOST_AFTER_TRIALS * longest_s)


def _is_unnamed(trial: FrozenTrial) -> bool:
    """A trial that runs, but by whom nobody said: its worker was killed, or is one step before that."""
    return trial.state == TrialState.RUNNING and WORKER not in trial.user_attrs


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _seconds(trial: FrozenTrial) -> float:
    """How long the trial took, or has been running."""
    if trial.datetime_start is None:
        return 0.0
    end = trial.datetime_complete
    if end is None:
        end = type(trial.datetime_start).now()
    return (end - trial.datetime_start).total_seconds()


def this_worker() -> str:
    """Host and process: what other workers know this one by."""
    return f"{platform.node()}:{os.getpid()}"


def best_value(study: Study) -> float | None:
    """The least value of the completed trials; None while there is none."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return min((trial.value for trial in done if trial.value is not None), default=None)


def _show(study: Study, trials: int, progress: Progress | None) -> None:
    if progress is not None:
        best = best_value(study)
        finished = len(study.get_trials(deepcopy=False, states=FINISHED))
        progress(min(finished, trials), max(trials, finished), "" if best is None else f"best {best:.5f}")


def pruner() -> optuna.pruners.BasePruner:
    """After each fold, a trial above the median of its predecessors at that fold ends; the first five never do."""
    return optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=0)
