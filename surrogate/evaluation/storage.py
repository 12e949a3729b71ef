"""Where a study is stored: Optuna's storages by file name or URL, opened and closed, their failures as one line.

Workers die. Optuna's own heartbeat knows databases alone, and no trial whose worker died before its first one. Here a
worker notes in the trial itself that it lives, on any storage, and other workers put a trial without news back into the
queue. It keeps its number and its settings, so that it counts once, whoever finishes it.
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from surrogate.features.errors import InputError, nearest

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.storages import BaseStorage

SCHEMES = ("journal", "sqlite", "postgresql")
LOCK_WAIT = {"connect_args": {"timeout": 120}}  # seconds in which SQLite waits for another worker's write
FORMS = "a file name, journal:///PATH, sqlite:///PATH or postgresql://USER@HOST/DATABASE"
HEARTBEAT_S = 10.0
"""How often a worker notes that its trial runs."""
GRACE_S = 60.0
"""A trial without a note for as long has lost its worker."""
RETRIES = 3
"""So often a trial is tried again; then its settings count as what ends the workers, and the trial as failed."""
SEEN, RETRIED = "seen", "retried"
"""User attributes of a trial: when its worker was last seen (seconds since 1970), and how often it was tried again."""
OPEN_ATTEMPTS = 4


def open_storage(where: str) -> "BaseStorage":
    """The Optuna storage at a file name (a journal, made if missing) or a URL.

    ``journal:///PATH`` is the absolute path /PATH; SQLite's and PostgreSQL's URLs are SQLAlchemy's. A journal serves
    many processes and, on a shared file system, many machines. Raises `InputError` for an unknown scheme.
    """
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend
    from sqlalchemy.exc import DBAPIError

    scheme, separator, rest = where.partition("://")
    if not separator or (scheme == "journal" and rest.startswith("/") and rest != "/"):
        path = Path(rest if separator else where)
        if path.is_dir():
            raise InputError(f"storage {path} is a folder; name a file in it")
        if path.is_file() and not _is_journal(path):  # nothing else is ever appended to
            raise InputError(f"storage {path} is no journal of a search; name a new file")
        path = path.absolute()  # its lock is a link to it, from the folder where it lies
        _drop_torn_line(path)
        return JournalStorage(JournalFileBackend(str(path)))
    if scheme.partition("+")[0] not in SCHEMES[1:]:
        raise InputError(f"storage {shown(where)} is unknown; give {FORMS}{nearest(scheme, SCHEMES)}")
    for attempt in range(OPEN_ATTEMPTS):
        try:
            return RDBStorage(where, engine_kwargs=LOCK_WAIT if scheme.startswith("sqlite") else None)
        except DBAPIError:  # another worker may be making the tables at this moment
            if attempt + 1 == OPEN_ATTEMPTS:
                raise
            time.sleep(0.5)
    raise AssertionError("the loop returns or raises")


def _is_journal(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(10) in (b"", b'{"op_code"')


def _drop_torn_line(path: Path) -> None:
    """Cut off what a worker that died while it wrote has left of a line: others would write behind it."""
    from optuna.storages.journal import JournalFileSymlinkLock

    if path.is_file() and path.read_bytes()[-1:] not in (b"", b"\n"):
        lock = JournalFileSymlinkLock(str(path))
        lock.acquire()
        try:
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        finally:
            lock.release()


def shown(where: str) -> str:
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
        raise InputError(f"storage {shown(where)}: no driver ({error}); pip install 'psycopg[binary]'") from None
    except (StorageInternalError, SQLAlchemyError, OSError, json.JSONDecodeError) as error:
        cause = getattr(error, "orig", None) or error.__cause__ or error
        reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        remedy = "once it can, the same command goes on"
        raise InputError(f"storage {shown(where)}: cannot be used ({reason}); {remedy}") from None
    finally:
        if isinstance(storage, RDBStorage):
            storage.remove_session()
            storage.engine.dispose()


@contextmanager
def heartbeat(trial: "Trial") -> Iterator[None]:
    """Inside this, the trial's worker is noted as alive."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(HEARTBEAT_S):
            with suppress(Exception):  # a lost note is no harm: the search itself meets, and tells, what is wrong
                trial.set_user_attr(SEEN, time.time())

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def requeue_lost(storage: "BaseStorage", study: str) -> None:
    """Put the trials of a study whose workers died back into the queue, or fail those that were tried too often.

    Two workers that do so at once do the same.
    """
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    study_id = storage.get_study_id_from_name(study)
    for trial in storage.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,)):
        started = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
        if time.time() - max(started, trial.user_attrs.get(SEEN, 0.0)) > GRACE_S:
            trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
            retried = trial.user_attrs.get(RETRIED, 0)
            with suppress(UpdateFinishedTrialError):
                storage.set_trial_user_attr(trial_id, RETRIED, retried + 1)
                storage.set_trial_state_values(trial_id, TrialState.WAITING if retried < RETRIES else TrialState.FAIL)
