"""Where a study is stored: Optuna's storages by file name or URL, opened and closed, their failures as one line."""

import json
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from surrogate.features.errors import InputError, nearest

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

SCHEMES = ("journal", "sqlite", "postgresql")
LOCK_WAIT = {"connect_args": {"timeout": 30}}  # seconds in which SQLite waits for another worker's write
FORMS = "a file name, journal:///PATH, sqlite:///PATH or postgresql://USER@HOST/DATABASE"
HEARTBEAT_S = 30
"""How often a worker on a database reports that it runs; after three times as long its trial is tried again."""
RETRIES = 3
OPEN_ATTEMPTS = 4


def open_storage(where: str) -> "BaseStorage":
    """The Optuna storage at a file name (a journal, made if missing) or a URL.

    ``journal:///PATH`` is the absolute path /PATH; SQLite's and PostgreSQL's URLs are SQLAlchemy's. A journal serves
    many processes and, on a shared file system, many machines. Raises `InputError` for an unknown scheme.
    """
    import optuna
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
        return JournalStorage(JournalFileBackend(str(path)))
    if scheme.partition("+")[0] not in SCHEMES[1:]:
        raise InputError(f"storage {shown(where)} is unknown; give {FORMS}{nearest(scheme, SCHEMES)}")
    for attempt in range(OPEN_ATTEMPTS):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                return RDBStorage(
                    where,
                    engine_kwargs=LOCK_WAIT if scheme.startswith("sqlite") else None,
                    heartbeat_interval=HEARTBEAT_S,
                    grace_period=3 * HEARTBEAT_S,
                    heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=RETRIES),
                )
        except DBAPIError:  # another worker may be making the tables at this moment
            if attempt + 1 == OPEN_ATTEMPTS:
                raise
            time.sleep(0.5)
    raise AssertionError("the loop returns or raises")


def _is_journal(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(10) in (b"", b'{"op_code"')


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
        raise InputError(
            f"storage {shown(where)}: its driver is not installed ({error}); pip install 'psycopg[binary]'"
        ) from None
    except (StorageInternalError, SQLAlchemyError, OSError, json.JSONDecodeError) as error:
        cause = getattr(error, "orig", None) or error.__cause__ or error
        reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        raise InputError(
            f"storage {shown(where)}: cannot be used ({reason}); once it can, the same command goes on"
        ) from None
    finally:
        if isinstance(storage, RDBStorage):
            storage.remove_session()
            storage.engine.dispose()
