"""A study that several processes share, resume and cannot mix up; on a journal, SQLite and a real PostgreSQL server."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest

from surrogate.dataset.normalise import normalise
from surrogate.dataset.store import Dataset, write_dataset
from surrogate.evaluation.tune import worker
from surrogate.evaluation.tune.search import stored_settings
from surrogate.evaluation.tune.shared import fingerprint, tune
from surrogate.evaluation.tune.storage import open_storage
from surrogate.features.errors import InputError
from surrogate.models.linear import LinearTerms

Table = Callable[..., pd.DataFrame]
MODEL = "linear-terms"


@pytest.fixture(scope="module")
def data(table: Table) -> Dataset:
    return Dataset(normalise(table(6), "test"), name="six")


@pytest.fixture
def file(data: Dataset, tmp_path: Path) -> Path:
    path = tmp_path / "six.parquet"
    write_dataset(data.frame, path)
    return path


def _seer_tune(file: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "surrogate", "tune", str(file), "--model", MODEL, "--study", "s", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def _share(file: Path, storage: str, workers: int, trials: int) -> list[optuna.trial.FrozenTrial]:
    """Run workers at once; the study's trials that count."""
    started = [_seer_tune(file, "--storage", storage, "--trials", str(trials)) for _ in range(workers)]
    for process in started:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    study = optuna.load_study(study_name="s", storage=open_storage(storage))
    return study.get_trials(states=worker.COUNTED)


def _assert_shared_well(trials: list[optuna.trial.FrozenTrial], count: int) -> None:
    stored = stored_settings(LinearTerms)
    assert len(trials) == count and all(trial.state in worker.FINISHED for trial in trials)
    assert [trial.params for trial in trials].count(stored) == 1 and trials[0].params == stored
    assert len({trial.params["alpha"] for trial in trials}) == count  # no worker repeats another's


def test_processes_share_one_journal(file: Path, tmp_path: Path) -> None:
    _assert_shared_well(_share(file, str(tmp_path / "study.journal"), 2, 24), 24)


def _open_at_once(storage: str, tmp_path: Path) -> None:
    """An empty database, opened by four workers in the same moment."""
    open_storage(f"sqlite:///{tmp_path}/other.db")  # SQLAlchemy cannot be imported by several threads at once
    with ThreadPoolExecutor(4) as pool:
        opened = list(pool.map(open_storage, [storage] * 4))
    assert all(each.get_all_studies() == [] for each in opened)


def test_workers_may_make_the_database_in_the_same_moment(tmp_path: Path) -> None:
    _open_at_once(f"sqlite:///{tmp_path}/study.db", tmp_path)


def test_sqlite_resumes_and_adds(data: Dataset, tmp_path: Path) -> None:
    where = {"model": MODEL, "storage": f"sqlite:///{tmp_path}/study.db"}
    first = tune(data, trials=4, **where)
    assert sum(first.trials.values()) == 4 and first.storage == where["storage"]
    again = tune(data, trials=4, **where)
    assert again == first
    more = tune(data, trials=8, **where)
    assert sum(more.trials.values()) == 8 and more.value <= first.value
    assert more.stored_value is not None and more.value <= more.stored_value


def test_a_shared_study_finds_what_one_in_memory_finds_and_resuming_changes_nothing(
    data: Dataset, tmp_path: Path
) -> None:
    whole = tune(data, trials=12, model=MODEL, storage=str(tmp_path / "a"))
    for trials in (1, 5, 12):
        parts = tune(data, trials=trials, model=MODEL, storage=f"journal://{tmp_path}/b")
    assert (parts.params, parts.value, parts.trials) == (whole.params, whole.value, whole.trials)


def test_ctrl_c_ends_cleanly_and_the_same_command_goes_on(file: Path, tmp_path: Path) -> None:
    storage = str(tmp_path / "study.journal")
    process = _seer_tune(file, "--storage", storage, "--trials", "100000")
    study = None
    until = time.monotonic() + 60
    while time.monotonic() < until and (study is None or len(study.get_trials(states=worker.FINISHED)) < 3):
        time.sleep(0.5)
        try:
            study = optuna.load_study(study_name="s", storage=open_storage(storage))
        except KeyError:
            study = None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "the same command goes on" in errors and "Traceback" not in errors
    assert study is not None
    states = [trial.state.name for trial in study.get_trials()]
    assert "RUNNING" not in states
    count = len(study.get_trials(states=worker.COUNTED)) + 2
    _assert_shared_well(_share(file, storage, 1, count), count)


def test_a_killed_workers_trial_is_tried_again(data: Dataset, tmp_path: Path) -> None:
    where: dict[str, Any] = {"model": MODEL, "storage": str(tmp_path / "journal"), "study": "s"}
    tune(data, trials=2, **where)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    study = optuna.load_study(study_name="s", storage=open_storage(where["storage"]))
    lost = study.ask()
    lost.suggest_float("alpha", 0.01, 100.0, log=True)
    lost.set_user_attr(worker.WORKER, worker.this_worker().rpartition(":")[0] + f":{gone.pid}")
    alive = study.ask()
    alive.set_user_attr(worker.WORKER, worker.this_worker())
    found = tune(data, trials=5, **where)
    assert found.trials["running"] == 1  # the living one counts, the lost one was given back
    assert sum(found.trials.values()) == 5
    tried = [trial.params.get("alpha") for trial in study.get_trials(states=worker.FINISHED)]
    assert lost.params["alpha"] in tried


def test_no_trial_begins_after_the_timeout(data: Dataset, tmp_path: Path) -> None:
    began = time.monotonic()
    found = tune(data, trials=10**6, model=MODEL, storage=str(tmp_path / "j"), timeout_minutes=0.02)
    assert time.monotonic() - began < 60 and 0 < found.trials["complete"] < 10**6


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"objective": "time"}, "is for objective both, this run has time"),
        ({"seed": 1}, "is for seed 0, this run has 1"),
        ({"model": "linear-dims"}, "is for model linear-terms, this run has linear-dims"),
    ],
)
def test_a_study_made_for_something_else_is_refused(
    data: Dataset, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    where: dict[str, Any] = {"model": MODEL, "storage": str(tmp_path / "j"), "study": "s", "trials": 1}
    tune(data, **where)
    with pytest.raises(InputError, match=said):
        tune(data, **(where | change))
    other = data.with_frame(data.frame.iloc[1:])
    with pytest.raises(InputError, match=r"is for data \w+, this run has \w+; .*another --study"):
        tune(other, **where)


def test_another_optuna_study_is_left_alone(data: Dataset, tmp_path: Path) -> None:
    storage = str(tmp_path / "j")
    study = optuna.create_study(study_name="s", storage=open_storage(storage))
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    with pytest.raises(InputError, match="not one of `seer tune`"):
        tune(data, trials=3, model=MODEL, storage=storage, study="s")


def test_the_fingerprint_names_rows_not_their_order(data: Dataset) -> None:
    frame = data.frame
    assert fingerprint(frame) == fingerprint(frame.sample(frac=1, random_state=0))
    faster = frame.assign(time_us=frame["time_us"].where(frame.index != 3, 1.0))
    assert fingerprint(frame) != fingerprint(faster) != fingerprint(frame.iloc[1:])


def test_models_without_settings_and_tables_of_one_shape_are_refused(data: Dataset, tmp_path: Path) -> None:
    storage = str(tmp_path / "j")
    with pytest.raises(InputError, match="roofline has no settings to tune"):
        tune(data, trials=1, model="roofline", storage=storage)
    first = data.frame.iloc[0]
    one = data.frame[(data.frame["c"] == first["c"]) & (data.frame["h"] == first["h"])]
    one = one[(one["r"] == first["r"]) & (one["groups"] == first["groups"])]
    with pytest.raises(InputError, match="two shapes or more"):
        tune(data.with_frame(one), trials=1, model=MODEL, storage=storage)
    assert not Path(storage).exists()


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("mysql://host/base", "scheme 'mysql' is unknown; give a file name"),
        ("postgres://host/base", "did you mean postgresql"),
        ("postgresql://host:many/base", "malformed|port"),
        ("postgresql://host", "names no database"),
        ("postgresql+nodriver://host/base", "no driver that SQLAlchemy knows"),
        ("sqlite:////no/such/folder/base.db", "No such file or directory"),
        ("sqlite:///:memory:", "names no database that lasts"),
        ("journal://", "names no file"),
        ("/no/such/folder/file", "No such file or directory"),
    ],
)
def test_a_storage_that_cannot_be_used_is_one_line(where: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        open_storage(where)
    assert "\n" not in str(caught.value)


def test_a_missing_driver_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'psycopg\[binary\]'"):
        open_storage("postgresql://host/base")


def test_a_server_that_does_not_answer_is_named_without_its_password() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(InputError, match=r"postgresql\+?\w*://me:\*\*\*@") as caught:
        open_storage("postgresql://me:secret@127.0.0.1:1/base")
    assert "secret" not in str(caught.value)


def test_files_that_are_no_journals_are_never_written_to(file: Path, tmp_path: Path) -> None:
    before = file.read_bytes()
    for wrong, said in ((file, "is no journal"), (tmp_path, "is a folder")):
        with pytest.raises(InputError, match=said):
            open_storage(str(wrong))
    assert file.read_bytes() == before


@pytest.fixture
def postgresql() -> Iterator[str]:
    """The URL of a PostgreSQL server of our own, on a socket in a temporary folder; skips where none is installed."""
    pytest.importorskip("psycopg", reason="no PostgreSQL driver is installed")
    homes = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = [home / "initdb" for home in homes] + [Path(shutil.which("initdb") or "")]
    program = next((path for path in found if path.is_file()), None)
    if program is None:
        pytest.skip("PostgreSQL is not installed (no initdb)")
    user = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    if user:
        shutil.chown(folder, **user)  # the server refuses to run as root
    options: dict[str, Any] = {**user, "cwd": folder, "check": True, "capture_output": True, "text": True}
    control = program.resolve().with_name("pg_ctl")
    server = ["-D", str(folder / "data"), "-w", "-l", str(folder / "log")]
    subprocess.run([program, "-D", folder / "data", "-U", "seer", "-A", "trust"], **options)
    subprocess.run(
        [control, *server, "-o", f"-c listen_addresses='' -k {folder} -F", "start"],
        **{**options, "capture_output": False, "stdout": subprocess.DEVNULL},
    )
    try:
        yield f"postgresql://seer@/postgres?host={folder}"
    finally:
        subprocess.run([control, *server, "-m", "immediate", "stop"], **options)
        shutil.rmtree(folder)


def test_postgresql_serves_as_the_other_storages_do(data: Dataset, postgresql: str, tmp_path: Path) -> None:
    _open_at_once(postgresql, tmp_path)
    for trials in (3, 6):
        found = tune(data, trials=trials, model=MODEL, storage=postgresql)
    there = tune(data, trials=6, model=MODEL, storage=str(tmp_path / "j"))
    assert (found.params, found.value, found.trials) == (there.params, there.value, there.trials)


@pytest.mark.slow
def test_processes_share_a_study_on_postgresql(file: Path, postgresql: str) -> None:
    _assert_shared_well(_share(file, postgresql, 3, 15), 15)
