"""Studies on a real PostgreSQL server, started for these tests from the binaries of the system."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from surrogate.dataset.checks import normalise
from surrogate.dataset.store import write_dataset

pytest.importorskip("psycopg", reason="psycopg is not installed: the extra postgresql")
FOLDERS = os.pathsep.join([os.environ.get("PATH", ""), *map(str, Path("/usr/lib/postgresql").glob("*/bin"))])
INITDB, SERVER = (shutil.which(name, path=FOLDERS) for name in ("initdb", "postgres"))


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an empty database, on a server that listens on a socket in a folder of its own."""
    if not INITDB or not SERVER:
        pytest.skip("no PostgreSQL server is installed here: initdb and postgres are neither on PATH nor Debian's")
    home = Path(os.path.realpath(INITDB)).parent
    folder = Path("/tmp") / f"seer-postgresql-{os.getpid()}"  # a socket's path may have 107 bytes at most
    folder.mkdir(mode=0o777)
    user: dict[str, str] = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        user = {"user": "nobody"}
        shutil.chown(folder, "nobody")
    data = folder / "data"
    words = ["--auth=trust", "--username=seer", "--no-sync", "-D", str(data)]
    subprocess.run([str(home / "initdb"), *words], check=True, capture_output=True, cwd=folder, **user)
    server = [str(home / "pg_ctl"), "-D", str(data), "-w"]
    options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
    started = [*server, "-l", str(folder / "log"), "-o", options, "start"]
    subprocess.run(started, check=True, stdout=subprocess.DEVNULL, cwd=folder, **user)
    try:
        yield f"postgresql://seer@/postgres?host={folder}"
    finally:
        subprocess.run([*server, "-m", "immediate", "stop"], check=True, stdout=subprocess.DEVNULL, cwd=folder, **user)
        shutil.rmtree(folder)


def test_the_same_command_goes_on_with_the_study(
    seer: Callable, table: Callable[..., pd.DataFrame], storage: str, tmp_path: Path
) -> None:
    write_dataset(normalise(table(6), "test"), tmp_path / "data.parquet")
    words = ["tune", tmp_path / "data.parquet", "--model", "linear-terms", "--storage", storage, "--json"]
    first = seer(*words, "--trials", 2)
    assert first.code == 0, first.err
    again = seer(*words, "--trials", 5)
    assert again.code == 0, again.err
    assert again.json["study"] == first.json["study"]
    trials = again.json["trials"]
    assert trials["complete"] + trials["pruned"] == 5 and trials["running"] == 0
    assert again.json["value"] <= first.json["value"]
