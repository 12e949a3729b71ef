"""Studies on a real PostgreSQL server that the tests start from the system's binaries."""

import os
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy

from surrogate.dataset.checks import normalise
from surrogate.dataset.store import write_dataset
from surrogate.evaluation.hyperparameter_study import opened
from surrogate.models.linear import LinearTerms

pytest.importorskip("psycopg", reason="psycopg is not installed: the extra postgresql")


@pytest.fixture(scope="module")
def storage() -> Iterator[str]:
    """Return the URL of an empty database on a server with its own socket."""
    search = os.pathsep.join([os.environ.get("PATH", ""), *map(str, Path("/usr/lib/postgresql").glob("*/bin"))])
    if not (initdb := shutil.which("initdb", path=search)):
        pytest.skip("no PostgreSQL server is installed here: initdb is neither on PATH nor Debian's")
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
    """Return the number of other connections to the server."""
    engine = sqlalchemy.create_engine(storage)
    with engine.connect() as connection:
        where = "backend_type = 'client backend' and pid <> pg_backend_pid()"
        left = connection.execute(sqlalchemy.text(f"select count(*) from pg_stat_activity where {where}")).scalar()
    engine.dispose()
    return int(left or 0)


def test_repeated_command_continues_the_study(seer, table, storage, tmp_path, monkeypatch):
    """A worker died in between; no connection stays open."""
    write_dataset(normalise(table(6), "test"), tmp_path / "data.parquet")
    words = ["tune", tmp_path / "data.parquet", "--model", "linear-terms", "--storage", storage, "--json"]
    first = seer(*words, "--trials", 2).succeeded()
    with opened(storage) as storage_:
        with warnings.catch_warnings(action="ignore"):  # a heartbeat is for `Study.optimize`
            trial = optuna.load_study(study_name=first.json["study"], storage=storage_).ask()
        LinearTerms.space(trial)
        storage_.record_heartbeat(trial._trial_id)
    monkeypatch.setattr("surrogate.evaluation.hyperparameter_study.GRACE_S", 1)
    time.sleep(1.5)
    second = seer(*words, "--trials", 5).succeeded()
    assert second.json["study"] == first.json["study"]
    trials = second.json["trials"]
    assert trials["complete"] + trials["pruned"] == 5 and trials["running"] == 0
    assert second.json["value"] <= first.json["value"]
    assert connections(storage) == 0
