"""A search that processes and machines share: an Optuna study in a storage, its outcome, and the file of its settings.

Optuna's storages synchronise the workers.
"""

import json
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from surrogate.dataset.files import Progress, require_readable, write_text
from surrogate.dataset.rows import fingerprint, rows_of
from surrogate.dataset.store import Data, as_dataset
from surrogate.evaluation.tune import (
    DEFAULT_OBJECTIVE,
    INNER_FOLDS,
    InnerFolds,
    Valuing,
    optimise,
    search_method,
    stored_settings,
)
from surrogate.features.errors import InputError, nearest, read_bounded
from surrogate.models import DEFAULT_MODEL, model_class, model_frame

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage

SCHEMES = ("journal", "sqlite", "postgresql")
LOCK_WAIT = {"connect_args": {"timeout": 120}}  # seconds in which SQLite waits for another worker's write
FORMS = "a file name, journal:///PATH, sqlite:///PATH or postgresql://USER@HOST/DATABASE"
HEARTBEAT_S, GRACE_S = 10, 60
"""In a database a worker notes so often that its trial runs; a trial without a note for the grace period is lost."""
RETRIES = 3
"""A lost trial is tried again at most so often."""
OPEN_ATTEMPTS = 4
MIN_TRIALS_FOR_IMPORTANCE = 10
"""Completed trials below which shares of the variance are noise."""
IDENTITY = "seer"
"""User attribute of a study: what it was made for."""
DEFAULT_STORAGE = "tune.journal"
SETTINGS_SCHEMA = 1
"""Version of the settings file. History: 1, the first."""
MAX_SETTINGS_BYTES = 1 << 20


def open_storage(where: str) -> "BaseStorage":
    """The Optuna storage at a file name (a journal, made if missing) or a URL.

    ``journal:///PATH`` is the absolute path /PATH; SQLite's and PostgreSQL's URLs are SQLAlchemy's. A journal serves
    many processes and, on a shared file system, many machines. In a database, Optuna puts the trial of a worker that
    died back into the queue, with the same settings. Raises `InputError` for an unknown scheme.
    """
    from optuna.exceptions import ExperimentalWarning
    from optuna.storages import JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
    from optuna.storages.journal import JournalFileBackend
    from sqlalchemy.exc import DBAPIError

    scheme, separator, rest = where.partition("://")
    if not separator or (scheme == "journal" and rest.startswith("/") and rest != "/"):
        path = Path(rest if separator else where)
        if path.is_dir():
            raise InputError(f"storage {path} is a folder; name a file in it")
        if path.is_file() and not _is_journal(path):  # nothing else is ever appended to
            raise InputError(f"storage {path} is no journal of a search; name a new file")
        return JournalStorage(JournalFileBackend(str(path.absolute())))  # its lock is a link to it
    if scheme.partition("+")[0] not in SCHEMES[1:]:
        raise InputError(f"storage {without_password(where)} is unknown; give {FORMS}{nearest(scheme, SCHEMES)}")
    for attempt in range(OPEN_ATTEMPTS):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                return RDBStorage(
                    where,
                    engine_kwargs=LOCK_WAIT if scheme.startswith("sqlite") else None,
                    heartbeat_interval=HEARTBEAT_S,
                    grace_period=GRACE_S,
                    heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(RETRIES),
                )
        except DBAPIError:  # another worker may be making the tables at this moment
            if attempt + 1 == OPEN_ATTEMPTS:
                raise
            time.sleep(0.5)
    raise AssertionError("the loop returns or raises")


def _is_journal(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(10) in (b"", b'{"op_code"')


def without_password(where: str) -> str:
    """The storage as it may be printed: without a password."""
    scheme, separator, rest = where.partition("://")
    account, at, host = rest.rpartition("@")
    return f"{scheme}{separator}{account.partition(':')[0]}{at}{host}"


@contextmanager
def opened(where: str) -> Iterator["BaseStorage"]:
    """`open_storage`; a database's connections are closed at the end.

    A storage that cannot be opened, or fails in the middle of a search, is one line: nothing is lost.
    """
    from optuna.exceptions import StorageInternalError
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import SQLAlchemyError

    storage = None
    try:
        storage = open_storage(where)
        yield storage
    except ImportError as error:
        raise InputError(
            f"storage {without_password(where)}: no driver ({error}); pip install 'psycopg[binary]'"
        ) from None
    except (StorageInternalError, SQLAlchemyError, OSError, json.JSONDecodeError) as error:
        cause = getattr(error, "orig", None) or error.__cause__ or error
        reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        remedy = "once it can, the same command goes on"
        raise InputError(f"storage {without_password(where)}: cannot be used ({reason}); {remedy}") from None
    finally:
        if isinstance(storage, RDBStorage):
            storage.remove_session()
            storage.engine.dispose()


@dataclass(frozen=True)
class Hyperparameters:
    """Hyperparameters of one model and where they come from: ``found`` says by which search, for people to read."""

    model: str
    params: dict[str, object]
    found: dict[str, object]


def write_settings(settings: Hyperparameters, path: str | Path) -> None:
    """Write the file atomically. Raises `InputError` where it cannot be written."""
    content = {"schema": SETTINGS_SCHEMA, **asdict(settings)}
    write_text(path, json.dumps(content, indent=1, sort_keys=True) + "\n")


def read_settings(path: str | Path) -> Hyperparameters:
    """What `write_settings` wrote, or a hand-written file with at least ``model`` and ``params``.

    Raises `InputError` for a missing, unreadable or newer file, an unknown model, and settings that it does not have.
    """
    path = Path(path)
    remedy = "write one with `seer tune -o`"
    try:
        content = json.loads(read_bounded(path, MAX_SETTINGS_BYTES))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: no JSON; {remedy}") from None
    if not isinstance(content, dict) or not isinstance(content.get("params"), dict) or "model" not in content:
        raise InputError(f"{path}: a settings file needs `model` and `params`; {remedy}")
    require_readable(path, content.get("schema", SETTINGS_SCHEMA), SETTINGS_SCHEMA)
    model, params = str(content["model"]), content["params"]
    stored = model_class(model)().get_params()
    for name, value in params.items():
        if name not in stored:
            known = f"it has {', '.join(stored) or 'none'}{nearest(name, stored)}"
            raise InputError(f"{path}: {model} has no setting {name!r}; {known}")
        if not _alike(value, stored[name]):
            raise InputError(f"{path}: {name} is {value!r}; {model} needs a value like {stored[name]!r}")
    search = content.get("found")
    return Hyperparameters(model, params, search if isinstance(search, dict) else {})


def _alike(value: object, stored: object) -> bool:
    if isinstance(stored, bool) or not isinstance(stored, int | float):
        return isinstance(value, type(stored))
    whole = isinstance(value, int) or (isinstance(stored, float) and isinstance(value, float))
    return whole and not isinstance(value, bool)


@dataclass(frozen=True)
class TuningOutcome:
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

    def settings(self) -> Hyperparameters:
        """As a settings file holds it."""
        search = {k: v for k, v in self.to_dict().items() if k not in ("model", "params", "storage")}
        return Hyperparameters(self.model, self.params, search)


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """What is searched, and where the study lives. All who give the same options share one study.

    ``trials`` finished ones of the study in all; ``study`` its name, by default made of model, objective and data;
    ``timeout_minutes``: no trial begins after this time.
    """

    trials: int
    model: str = DEFAULT_MODEL
    objective: str = DEFAULT_OBJECTIVE
    candidate: str = "algorithm"
    seed: int = 0
    device: str = "cpu"
    storage: str = DEFAULT_STORAGE
    study: str | None = None
    timeout_minutes: float | None = None


def tune(data: Data, options: TuneOptions, progress: Progress | None = None) -> TuningOutcome:
    """Search settings of a model over ``data`` until the study has as many finished trials as the options ask for.

    Raises `InputError` where the study of that name was made for something else, the storage cannot be used, or the
    data (of one family) cannot carry the search.
    """
    import optuna

    cls = model_class(options.model)
    data = as_dataset(data)
    stored = stored_settings(cls)
    if not stored:
        raise InputError(f"{options.model} has no settings to tune; tune another model, as {DEFAULT_MODEL}")
    rows = rows_of(model_frame(data, options.candidate), data.own, data.devices)
    folds = InnerFolds.of(rows, options.seed)
    folds.require(options.objective)
    if not folds.can_hold_out:
        raise InputError(f"{data.name}: measured rows of two shapes or more are needed to hold one out")
    identity = {name: getattr(options, name) for name in ("model", "objective", "candidate", "seed")}
    identity |= {"data": fingerprint(rows), "folds": INNER_FOLDS, "features": rows.family.version}
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with opened(options.storage) as held:
        study = _join(held, options, identity, stored)
        valuing = Valuing(cls, folds, options.objective, seed=options.seed, device=options.device)
        timeout_s = None if options.timeout_minutes is None else 60.0 * options.timeout_minutes
        optimise(study, valuing, options.trials, timeout_s=timeout_s, progress=progress)
        return _outcome(study, options, stored)


def _join(storage: "BaseStorage", options: TuneOptions, identity: dict[str, Any], stored: dict[str, Any]) -> "Study":
    """The study, made if missing. The process that makes it samples with the seed, others without one."""
    import optuna

    where, is_new = without_password(options.storage), True
    name = options.study or f"{options.model}-{options.objective}-{identity['data'][:8]}"
    try:
        study = optuna.create_study(study_name=name, storage=storage, **search_method(options.seed))
    except optuna.exceptions.DuplicatedStudyError:
        is_new = False
        study = optuna.load_study(study_name=name, storage=storage, **search_method(None))
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
    known = [trial.system_attrs.get("fixed_params", trial.params) for trial in usable]
    if is_new or (known and stored not in known):  # of a study without trials, its maker is about to add them
        study.enqueue_trial(stored)
    return study


def _outcome(study: "Study", options: TuneOptions, stored: dict[str, Any]) -> TuningOutcome:
    import optuna

    where = without_password(options.storage)
    trials = study.get_trials(deepcopy=False)
    count = {state.name.lower(): sum(t.state == state for t in trials) for state in optuna.trial.TrialState}
    if not count["complete"]:
        raise InputError(f"study {study.study_name!r} in {where} has no finished trial; allow more time")
    best = study.best_trial
    choice = float(best.user_attrs["choice_loss"])
    importance: dict[str, float] = {}
    if count["complete"] >= MIN_TRIALS_FOR_IMPORTANCE:
        with suppress(RuntimeError, ValueError):  # all trials of one value
            importance = optuna.importance.get_param_importances(study)
    complete = [trial for trial in trials if trial.state == optuna.trial.TrialState.COMPLETE]
    return TuningOutcome(
        options.model,
        options.objective,
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
