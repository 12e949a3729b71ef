"""``seer tune``: a study that processes and machines share, and that the same command resumes."""

import hashlib
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from surrogate.dataset.candidates import candidate_frame
from surrogate.dataset.rows import rows_of
from surrogate.dataset.schema import ROW_KEY
from surrogate.dataset.store import Dataset
from surrogate.evaluation.tune.objective import DEFAULT_OBJECTIVE, INNER_FOLDS, InnerFolds
from surrogate.evaluation.tune.search import stored_settings
from surrogate.evaluation.tune.settings import Settings
from surrogate.evaluation.tune.storage import DEFAULT_STORAGE, connection_kept, open_storage, shown
from surrogate.features.errors import InputError
from surrogate.features.table import FEATURE_VERSION
from surrogate.models import DEFAULT_MODEL, model_class

IDENTITY = "seer"
"""User attribute of a study: what it was made for."""
LEAST_FOR_IMPORTANCE = 10
"""Completed trials below which shares of the variance are noise."""
STARTED_WITHIN_S = 3.0
"""How long a worker waits for the one that made the study to write what it is for, before it does so itself."""


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
        found = {
            key: value for key, value in self.to_dict().items() if key not in ("model", "params", "storage")
        }
        return Settings(self.model, self.params, found)


def tune(
    data: Dataset,
    *,
    trials: int,
    model: str = DEFAULT_MODEL,
    storage: str = DEFAULT_STORAGE,
    study: str | None = None,
    objective: str = DEFAULT_OBJECTIVE,
    candidate: str = "algorithm",
    seed: int = 0,
    timeout_minutes: float | None = None,
    progress: Any = None,
) -> Tuned:
    """Search settings of ``model`` over ``data`` until the study in ``storage`` counts ``trials``, of all workers.

    ``study``: its name, by default made of model, objective and data. Raises `InputError` where the study of that name
    was made for something else, the storage cannot be used, or the data cannot carry the search.
    """
    import optuna

    from surrogate.evaluation.tune.worker import Work, run

    cls = model_class(model)
    stored = stored_settings(cls)
    if not stored:
        raise InputError(f"{model} has no settings to tune; tune another model, as {DEFAULT_MODEL}")
    frame = candidate_frame(data, candidate)
    folds = InnerFolds.of(rows_of(frame, data.devices), seed)
    folds.require(objective)
    if not folds.can_hold_out:
        raise InputError(f"{data.name}: measured rows of two shapes or more are needed to hold one out")
    identity = {
        "model": model,
        "objective": objective,
        "candidate": candidate,
        "data": fingerprint(frame),
        "seed": seed,
        "folds": INNER_FOLDS,
        "features": FEATURE_VERSION,
    }
    name = study or f"{model}-{objective}-{identity['data'][:8]}"
    deadline = None if timeout_minutes is None else time.monotonic() + 60.0 * timeout_minutes
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    opened = open_storage(storage)
    with connection_kept(storage):
        joined = _join(opened, name, identity, stored, shown(storage), seed)
        run(joined, Work(cls, folds, objective, seed), trials, deadline=deadline, progress=progress)
        return _outcome(joined, model, objective, shown(storage), stored)


def _join(
    storage: Any, name: str, identity: dict[str, Any], stored: dict[str, Any], where: str, seed: int
) -> Any:
    """The study of that name, made if missing; whoever finds it without its beginnings, completes them."""
    import optuna

    from surrogate.evaluation.tune.sampler import RankedTPE
    from surrogate.evaluation.tune.worker import enqueue_missing, pruner

    how: dict[str, Any] = {"storage": storage, "sampler": RankedTPE(seed), "pruner": pruner()}
    try:
        study = optuna.create_study(study_name=name, **how)
    except optuna.exceptions.DuplicatedStudyError:
        study = optuna.load_study(study_name=name, **how)
        _await_identity(study, stored, name, where)
    if IDENTITY not in study.user_attrs:
        study.set_user_attr(IDENTITY, identity)
    _require_same(dict(study.user_attrs[IDENTITY]), identity, name, where)
    enqueue_missing(study, stored)
    return study


def _await_identity(study: Any, stored: dict[str, Any], name: str, where: str) -> None:
    """Let the maker of a study say what it is for; one that was killed before it did leaves nothing but the name."""
    until = time.monotonic() + STARTED_WITHIN_S
    while IDENTITY not in study.user_attrs:
        if any(
            trial.system_attrs.get("fixed_params") != stored for trial in study.get_trials(deepcopy=False)
        ):
            raise InputError(
                f"study {name!r} in {where} is not one of `seer tune`; give another --study name"
            )
        if time.monotonic() > until:
            return
        time.sleep(0.1)


def _require_same(theirs: dict[str, Any], ours: dict[str, Any], name: str, where: str) -> None:
    for key, value in ours.items():
        if theirs.get(key) != value:
            raise InputError(
                f"study {name!r} in {where} is for {key} {theirs.get(key)}, this run has {value};"
                " values would not compare: give another --study name"
            )


def fingerprint(frame: pd.DataFrame) -> str:
    """16 hex digits of what was measured: keys, statuses and times of all rows, whatever their order."""
    columns = [*ROW_KEY, *(["solver"] if "solver" in frame else []), "status", "time_us"]
    rows = pd.util.hash_pandas_object(frame[columns], index=False).to_numpy()
    return hashlib.sha256(np.sort(rows).tobytes()).hexdigest()[:16]


def _outcome(study: Any, model: str, objective: str, where: str, stored: dict[str, Any]) -> Tuned:
    from optuna.trial import TrialState

    trials = study.get_trials(deepcopy=False)
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    if not done:
        raise InputError(
            f"study {study.study_name!r} in {where} has no finished trial yet; allow it more time"
        )
    best = min(done, key=lambda trial: trial.value)
    choice = float(best.user_attrs["choice_loss"])
    return Tuned(
        model,
        objective,
        study.study_name,
        where,
        dict(best.params),
        best.value,
        next((trial.value for trial in done if trial.params == stored), None),
        best.user_attrs["time_loss"],
        best.user_attrs["absolute_loss"],
        choice if np.isfinite(choice) else None,
        {
            "complete": len(done),
            **{
                state.name.lower(): sum(trial.state == state for trial in trials)
                for state in (TrialState.PRUNED, TrialState.RUNNING)
            },
        },
        _importance(study) if len(done) >= LEAST_FOR_IMPORTANCE else {},
    )


def _importance(study: Any) -> dict[str, float]:
    import optuna

    try:
        found = optuna.importance.get_param_importances(study)
    except (RuntimeError, ValueError):
        return {}  # too few trials, or all of one value
    return {name: float(share) for name, share in found.items()}
