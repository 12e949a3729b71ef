"""Where a shared study lives: a journal file, SQLite or PostgreSQL; one clear line for what can go wrong."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surrogate.features.errors import InputError, nearest
from surrogate.features.regular_file import require_regular

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from sqlalchemy.engine import URL

DEFAULT_STORAGE = "tune.journal"
SCHEMES = ("journal", "sqlite", "postgresql")
FORMS = "a file name, journal:///PATH, sqlite:///PATH or postgresql://USER@HOST/DATABASE"
POSTGRESQL_DRIVERS = ("psycopg", "psycopg2")
TABLES_LOCK = 0x5EE2
"""PostgreSQL advisory lock that a worker holds while optuna makes its tables."""
SQLITE_WAIT_S = 120.0
"""How long a worker waits for another's write: SQLite locks the whole file."""


def open_storage(where: str) -> "BaseStorage":
    """The optuna storage at a file name (a journal, made if missing) or a URL.

    ``journal:///PATH`` is the absolute path /PATH; SQLite's and PostgreSQL's URLs are SQLAlchemy's. A journal serves
    many processes and, on a shared file system, many machines. Raises `InputError` for a malformed URL, a missing
    driver, a server that does not answer, a file that is no journal.
    """
    scheme, separator, rest = where.partition("://")
    if not separator:
        return _journal(Path(where))
    if scheme == "journal":
        if not rest.startswith("/") or rest == "/":
            raise InputError(
                f"storage {where!r} names no file; write journal:///PATH, or the file name alone"
            )
        return _journal(Path(rest))
    if scheme.partition("+")[0] not in SCHEMES:
        raise InputError(f"storage scheme {scheme!r} is unknown; give {FORMS}{nearest(scheme, SCHEMES)}")
    return _database(where)


def shown(where: str) -> str:
    """The storage as it may be printed: without a password."""
    if "://" not in where or where.startswith("journal:"):
        return where
    return _url(where).render_as_string(hide_password=True)


def _journal(path: Path) -> "BaseStorage":
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    from surrogate.evaluation.tune.file_locks import journal_lock

    require_regular(path)
    if path.is_dir():
        raise InputError(f"storage {path} is a folder; name a file in it")
    if path.is_file() and not _looks_like_journal(path):
        raise InputError(f"storage {path} is no journal of a search; name a new file")
    try:
        return JournalStorage(JournalFileBackend(str(path), lock_obj=journal_lock(path)))
    except OSError as error:
        raise InputError(f"storage {path}: cannot be used ({error.strerror}); choose another place") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"storage {path}: the journal is damaged; name a new file") from None


def _looks_like_journal(path: Path) -> bool:
    """True for an empty file and for one that begins as a journal does: nothing else is ever appended to."""
    try:
        with path.open("rb") as file:
            return file.read(10) in (b"", b'{"op_code"')
    except OSError as error:
        raise InputError(f"storage {path}: cannot be read ({error.strerror}); choose another place") from None


def _url(where: str) -> "URL":
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(where)
    except (ArgumentError, ValueError):
        scheme = where.partition("://")[0]
        raise InputError(f"storage: the {scheme} URL is malformed; give {FORMS}") from None


def _database(where: str) -> "BaseStorage":
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError
    from sqlalchemy.pool import NullPool

    url = _url(where)
    if url.database in (None, "", ":memory:"):
        raise InputError(f"storage {shown(where)} names no database that lasts; give {FORMS}")
    url = _with_driver(url)
    # No pool: between two trials a worker holds no connection, so a server carries more workers than connections.
    options: dict[str, Any] = {"poolclass": NullPool}
    if url.drivername.startswith("sqlite"):
        options["connect_args"] = {"timeout": SQLITE_WAIT_S}
    try:
        with _making_tables(url):
            return RDBStorage(url.render_as_string(hide_password=False), engine_kwargs=options)
    except NoSuchModuleError:
        raise InputError(
            f"storage {shown(where)}: {url.drivername!r} is no driver that SQLAlchemy knows; give {FORMS}"
        ) from None
    except ImportError:
        raise InputError(
            f"storage {shown(where)}: its driver is not installed; pip install {_package(url.drivername)}"
        ) from None
    except SQLAlchemyError as error:
        raise InputError(f"storage {shown(where)}: cannot be opened ({_reason(error)})") from None
    except OSError as error:
        raise InputError(f"storage {shown(where)}: cannot be used ({error.strerror})") from None
    except RuntimeError as error:
        raise InputError(f"storage {shown(where)}: {_reason(error)}") from None


@contextmanager
def _making_tables(url: "URL") -> Iterator[None]:
    """One worker at a time: optuna makes its tables when it opens an empty database, and two at once fail."""
    from sqlalchemy import create_engine, text
    from sqlalchemy.pool import NullPool

    from surrogate.evaluation.tune.file_locks import folder_locked

    if url.drivername.startswith("sqlite"):
        with folder_locked(Path(str(url.database))):
            yield
        return
    with create_engine(url, poolclass=NullPool).connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": TABLES_LOCK})
        yield  # the lock goes with the connection


def _with_driver(url: "URL") -> "URL":
    """A PostgreSQL URL that names no driver gets the one that is installed."""
    if url.drivername != "postgresql":
        return url
    for name in POSTGRESQL_DRIVERS:
        if importlib.util.find_spec(name):
            return url.set(drivername=f"postgresql+{name}")
    raise InputError("a postgresql storage needs a driver; pip install 'psycopg[binary]'")


def _package(driver: str) -> str:
    """The distribution that holds a driver, as a shell takes it."""
    name = driver.partition("+")[2]
    return "'psycopg[binary]'" if name == "psycopg" else name


def _reason(error: BaseException) -> str:
    """The first line that a driver says, without SQLAlchemy's own frame around it."""
    original = getattr(error, "orig", None) or error
    return (str(original).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def connection_kept(where: str) -> Iterator[None]:
    """Turn a storage that fails in the middle of a search into one line: nothing finished is lost."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (StorageInternalError, SQLAlchemyError) as error:
        raise InputError(
            f"storage {shown(where)}: lost ({_reason(error.__cause__ or error)}); the same command goes on from there"
        ) from None
    except OSError as error:
        raise InputError(
            f"storage {shown(where)}: cannot be written ({error.strerror}); the same command goes on once it can"
        ) from None
