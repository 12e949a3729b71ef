"""A hyperparameter search that processes and machines share: an Optuna study, its outcome, and its settings file.

Optuna's storages synchronise the workers.
"""

import json
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from surrogate.dataset.files import Progress, require_readable, write_text
from surrogate.dataset.rows import fingerprint, rows_of
from surrogate.dataset.store import Data, as_dataset
from surrogate.evaluation import hyperparameters as search
from surrogate.evaluation.hyperparameters import InnerFolds, TrialObjective, optimise, search_method
from surrogate.features import InputError, nearest, read_bounded, require_regular
from surrogate.models import DEFAULT_MODEL, model_class, model_frame

if TYPE_CHECKING:
    from sqlite3 import Connection

    from optuna import Study
    from optuna.storages import BaseStorage
    from sqlalchemy import Engine

SCHEMES = ("journal", "sqlite", "postgresql")
LOCK_WAIT = {"connect_args": {"timeout": 120}}  # seconds that SQLite waits for another worker's write
FORMS = "a file name, journal:///PATH, sqlite:///PATH or postgresql://USER@HOST/DATABASE"
HEARTBEAT_S, GRACE_S = 10, 60
"""Seconds between a worker's heartbeats in a database, and seconds without one after which its trial is lost."""
RETRIES = 3
"""Maximum number of new tries of a lost trial."""
OPEN_ATTEMPTS = 4
MIN_TRIALS_FOR_IMPORTANCE = 10
"""Minimum completed trials for the importance of settings. With fewer trials it is noise."""
IDENTITY = "seer"
"""User attribute of a study with its purpose: model, objective, data and so on."""
DEFAULT_STORAGE = "tune.journal"
SETTINGS_SCHEMA = 1
"""Version of the settings file. History: 1, the first."""
MAX_SETTINGS_BYTES = 1 << 20


def open_storage(storage_url: str) -> "BaseStorage":
    """Return the Optuna storage at a file name (a journal, created if missing) or a URL.

    ``journal:///PATH`` is the absolute path /PATH. URLs of SQLite and PostgreSQL are SQLAlchemy's. Many processes can
    share a journal, also on several machines with a shared file system. In a database, Optuna queues the trial of a
    dead worker again, with the same settings. Raises `InputError` for an unknown scheme.
    """
    from optuna.exceptions import ExperimentalWarning
    from optuna.storages import JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
    from optuna.storages.journal import JournalFileBackend
    from sqlalchemy.exc import DBAPIError

    scheme, path = _storage_file(storage_url)
    if scheme == "journal":
        if path.is_file() and not _is_journal(path):  # never append to any other file
            raise InputError(f"storage {path} is not a journal of a search; name a new file")
        return JournalStorage(JournalFileBackend(str(path.absolute())))  # its lock is a link to it
    for attempt in range(OPEN_ATTEMPTS):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                storage = RDBStorage(
                    storage_url,
                    engine_kwargs=LOCK_WAIT if scheme == "sqlite" else None,
                    heartbeat_interval=HEARTBEAT_S,
                    grace_period=GRACE_S,
                    heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(RETRIES),
                )
            if scheme == "sqlite":
                _lock_at_begin(storage.engine)
            return storage
        except DBAPIError:  # another worker may be creating the tables
            if attempt + 1 == OPEN_ATTEMPTS:
                raise
            time.sleep(0.5)
    raise AssertionError("the loop returns or raises")


def _storage_file(storage_url: str) -> tuple[str, Path]:
    """Return the scheme of `SCHEMES` and the file of a storage; a server has none, which is the empty path.

    Raises `InputError` for an unknown scheme, a database in memory, a folder, a pipe and a device.
    """
    from sqlalchemy import make_url

    scheme, separator, rest = storage_url.partition("://")
    name = rest if separator else storage_url
    if not separator or (scheme == "journal" and rest.startswith("/") and rest != "/"):
        scheme = "journal"
    elif (scheme := scheme.partition("+")[0]) not in SCHEMES[1:]:
        raise InputError(f"storage {without_password(storage_url)} is unknown; give {FORMS}{nearest(scheme, SCHEMES)}")
    elif scheme != "sqlite":
        return scheme, Path()
    else:
        url = make_url(storage_url)
        name = url.database or ":memory:"
        if ":memory:" in name or url.query.get("mode") == "memory":
            raise InputError(f"storage {storage_url} is lost at the end; name a file, as in sqlite:///study.db")
    path = Path(name)
    if name in ("", "-") or path.is_dir():
        raise InputError(f"storage {path} is a {'stream' if name == '-' else 'folder'}; name a file in a folder")
    require_regular(path)
    return scheme, path


def _lock_at_begin(engine: "Engine") -> None:
    """Make each transaction of SQLite take the write lock before it reads.

    Python's sqlite3 begins a transaction at the first write. Two workers can then read that a queued trial waits, and
    both run it.
    """
    from sqlalchemy import event

    def leave_transactions_to_the_engine(connection: "Connection", _record: object) -> None:
        connection.isolation_level = None

    event.listen(engine, "connect", leave_transactions_to_the_engine)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    engine.dispose()  # connections that are open already


def _is_journal(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(10) in (b"", b'{"op_code"')


def without_password(storage_url: str) -> str:
    """Return the storage's URL without its password, for messages."""
    scheme, separator, rest = storage_url.partition("://")
    account, at, host = rest.rpartition("@")
    return f"{scheme}{separator}{account.partition(':')[0]}{at}{host}"


@contextmanager
def opened(storage_url: str) -> Iterator["BaseStorage"]:
    """Open a storage, and close a database's connections at the end.

    Raises `InputError` if the storage cannot be opened or fails during a search; finished trials are kept.
    """
    from optuna.exceptions import StorageInternalError
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import SQLAlchemyError

    storage, path, is_new = None, Path(), False
    try:
        _, path = _storage_file(storage_url)
        is_new = not path.exists()
        storage = open_storage(storage_url)
        yield storage
    except ImportError as error:
        remedy = "pip install 'psycopg[binary]'"
        raise InputError(f"storage {without_password(storage_url)}: no driver ({error}); {remedy}") from None
    except (StorageInternalError, SQLAlchemyError, OSError, json.JSONDecodeError) as error:
        cause = getattr(error, "orig", None) or error.__cause__ or error
        reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        remedy = "run the same command again when it can be used"
        if is_new and path.is_file() and not path.stat().st_size:  # the disk is full
            path.unlink()
        raise InputError(f"storage {without_password(storage_url)}: cannot be used ({reason}); {remedy}") from None
    finally:
        if isinstance(storage, RDBStorage):
            storage.remove_session()
            storage.engine.dispose()


@dataclass(frozen=True)
class Hyperparameters:
    """Hyperparameters of one model; ``found`` describes the search that found them."""

    model: str
    params: dict[str, Any]
    found: dict[str, Any] = field(default_factory=dict)
    schema: int = SETTINGS_SCHEMA


def write_settings(settings: Hyperparameters, path: str | Path) -> None:
    """Write the settings file atomically. Raises `InputError` if it cannot be written."""
    write_text(path, json.dumps(asdict(settings), indent=1, sort_keys=True) + "\n")


def read_settings(path: str | Path) -> Hyperparameters:
    """Return the settings of a file from `write_settings`, or of a file with at least ``model`` and ``params``.

    Raises `InputError` if the file is missing, unreadable or newer, if the model is unknown, or if it lacks a setting.
    """
    path = Path(path)
    remedy = "write one with `seer tune -o`"
    try:
        settings = msgspec.json.decode(read_bounded(path, MAX_SETTINGS_BYTES), type=Hyperparameters)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise InputError(f"{path}: is no settings file ({error}); {remedy}") from None
    require_readable(path, settings.schema, SETTINGS_SCHEMA)
    stored = model_class(settings.model)().get_params()
    for name, value in settings.params.items():
        if name not in stored:
            hint = f"it has {', '.join(stored) or 'none'}{nearest(name, stored)}"
            raise InputError(f"{path}: {settings.model} has no setting {name!r}; {hint}")
        if not _same_type(value, stored[name]):
            raise InputError(f"{path}: {name} is {value!r}; {settings.model} needs a value like {stored[name]!r}")
    return settings


def _same_type(value: object, stored: object) -> bool:
    if isinstance(stored, bool) or not isinstance(stored, int | float):
        return isinstance(value, type(stored))
    is_number = isinstance(value, int) or (isinstance(stored, float) and isinstance(value, float))
    return is_number and not isinstance(value, bool)


@dataclass(frozen=True)
class TuningOutcome:
    """The outcome of a study so far.

    ``params`` are the best settings and ``value`` is their objective. ``stored_value`` is the objective of the stored
    settings. ``time_loss``, ``absolute_loss`` and ``choice_loss`` are the parts of ``value`` (see `Loss`). ``trials``:
    state → count. ``importance``: setting → share of the objective's variance that it explains; empty for few trials.
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
        """Return the outcome as JSON values."""
        return asdict(self)

    def settings(self) -> Hyperparameters:
        """Return the best settings in the form of a settings file."""
        search = {k: v for k, v in self.to_dict().items() if k not in ("model", "params", "storage")}
        return Hyperparameters(self.model, self.params, search)


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """The search and the storage of its study. Workers with the same options share one study.

    Attributes
    ----------
    trials : int
        Number of finished trials of the study in all.
    model, objective, candidate : str
        Model to tune ("": `DEFAULT_MODEL`), loss to minimise, and whether algorithms or solvers are chosen.
    seed : int
        Seed of folds and sampling.
    device : str
        Device for XGBoost, cpu or cuda.
    storage : str
        File name or URL of the Optuna storage.
    study : str or None
        Name of the study; None makes it from model, objective and data.
    timeout_minutes : float or None
        No trial starts after this time.
    """

    trials: int
    model: str = ""
    objective: str = search.DEFAULT_OBJECTIVE
    candidate: str = "algorithm"
    seed: int = 0
    device: str = "cpu"
    storage: str = DEFAULT_STORAGE
    study: str | None = None
    timeout_minutes: float | None = None


def tune(data: Data, options: TuneOptions, progress: Progress | None = None) -> TuningOutcome:
    """Search settings of a model until the study has the requested number of finished trials.

    Parameters
    ----------
    data
        Measurements of one family: a table, its path, or a list of them.
    options
        The search and its storage.
    progress
        Called with the finished trials, all trials, and the best value so far as text.

    Returns
    -------
    TuningOutcome
        The best settings and their losses.

    Raises
    ------
    InputError
        If the study of that name has another purpose, if the storage cannot be used, or if the data are not enough.
        If no model is given for a described kernel.
    """
    import optuna

    data = as_dataset(data)
    if data.described_family and not options.model:
        rule = "its default model, configurations, has no settings to tune"
        raise InputError(
            f"{data.name}: {rule}; use `seer train`, or give --model {DEFAULT_MODEL} to tune another model"
        )
    options = replace(options, model=options.model or DEFAULT_MODEL)
    cls = model_class(options.model)
    stored = search.default_hyperparameters(cls)
    if not stored:
        raise InputError(f"{options.model} has no settings to tune; tune another model, such as {DEFAULT_MODEL}")
    rows = rows_of(model_frame(data, options.candidate), data.described_family, data.devices)
    folds = InnerFolds.of(rows, options.seed)
    folds.require(options.objective)
    if not folds.can_hold_out:
        raise InputError(f"{data.name}: the measured rows have one shape; a search needs two or more")
    identity = {name: getattr(options, name) for name in ("model", "objective", "candidate", "seed")}
    identity |= {"data": fingerprint(rows), "folds": search.INNER_FOLDS, "features": rows.family.version}
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with opened(options.storage) as storage:
        study = _join(storage, options, identity, stored)
        loss_of = TrialObjective(cls, folds, options.objective, seed=options.seed, device=options.device)
        timeout_s = None if options.timeout_minutes is None else 60.0 * options.timeout_minutes
        optimise(study, loss_of, options.trials, timeout_s=timeout_s, progress=progress)
        return _outcome(study, options, stored)


def _join(storage: "BaseStorage", options: TuneOptions, identity: dict[str, Any], stored: dict[str, Any]) -> "Study":
    """Return the study, created if missing.

    The process that creates it samples with the seed, others without a seed.
    """
    import optuna

    where, is_new = without_password(options.storage), True
    name = options.study or f"{options.model}-{options.objective}-{identity['data'][:8]}"
    try:
        study = optuna.create_study(study_name=name, storage=storage, **search_method(options.seed))
    except optuna.exceptions.DuplicatedStudyError:
        is_new = False
        study = optuna.load_study(study_name=name, storage=storage, **search_method(None))
    trials = study.get_trials(deepcopy=False)
    # the trials are read first, because a new study gets its purpose before its trials
    if IDENTITY not in study.user_attrs:
        if trials:
            raise InputError(f"study {name!r} in {where} was not made by `seer tune`; give another --study name")
        study.set_user_attr(IDENTITY, identity)
    stored_identity = study.user_attrs[IDENTITY]
    for key, value in identity.items():
        if stored_identity.get(key) != value:
            differs = f"is for {key} {stored_identity.get(key)}, this run has {value}"
            remedy = "their values cannot be compared: give another --study name"
            raise InputError(f"study {name!r} in {where} {differs}; {remedy}")
    usable = [t for t in study.get_trials(deepcopy=False) if t.state != optuna.trial.TrialState.FAIL]
    tried = [trial.system_attrs.get("fixed_params", trial.params) for trial in usable]
    if is_new or (tried and stored not in tried):  # the creator of a study without trials will add them
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
        with suppress(RuntimeError, ValueError):  # all trials have the same value
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
