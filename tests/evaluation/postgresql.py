"""A real PostgreSQL server, started from the binaries of the system, and who is connected to it."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy


@contextmanager
def postgresql() -> Iterator[str | None]:
    """The URL of an empty database on a server that listens on a socket of its own; None where none is installed."""
    search = os.pathsep.join([os.environ.get("PATH", ""), *map(str, Path("/usr/lib/postgresql").glob("*/bin"))])
    if not (initdb := shutil.which("initdb", path=search)):
        yield None
        return
    home = Path(os.path.realpath(initdb)).parent
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="seer-pg-") as folder:  # a socket's path has 107 bytes at most
        user: dict[str, Any] = {"user": "nobody"} if os.geteuid() == 0 else {}  # PostgreSQL refuses to run as root
        if user:
            shutil.chown(folder, "nobody")
        words = ["--auth=trust", "--username=seer", "--no-sync", "-D", f"{folder}/data"]
        subprocess.run([str(home / "initdb"), *words], check=True, capture_output=True, cwd=folder, **user)
        server = [str(home / "pg_ctl"), "-D", f"{folder}/data", "-w"]
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
        started = [*server, "-l", f"{folder}/log", "-o", options, "start"]
        subprocess.run(started, check=True, stdout=subprocess.DEVNULL, cwd=folder, **user)
        try:
            yield f"postgresql+psycopg://seer@/postgres?host={folder}"
        finally:
            stop = [*server, "-m", "immediate", "stop"]
            subprocess.run(stop, check=True, stdout=subprocess.DEVNULL, cwd=folder, **user)


def connections(storage: str) -> int:
    """Connections to a PostgreSQL server besides the one that asks; none elsewhere."""
    if not storage.startswith("postgresql"):
        return 0
    engine = sqlalchemy.create_engine(storage)
    with engine.connect() as connection:
        where = "backend_type = 'client backend' and pid <> pg_backend_pid()"
        left = connection.execute(sqlalchemy.text(f"select count(*) from pg_stat_activity where {where}")).scalar()
    engine.dispose()
    return int(left or 0)
