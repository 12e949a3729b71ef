"""Search of settings: losses by hand, nested folds, and studies that processes share and resume."""

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import optuna
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import Rows, fingerprint, rows_of
from surrogate.dataset.store import Dataset, write_dataset
from surrogate.evaluation import hyperparameters as tuning
from surrogate.evaluation.hyperparameter_study import TuneOptions, TuningOutcome, open_storage, tune
from surrogate.features.errors import InputError
from surrogate.models.base import TimeModel
from surrogate.models.baselines import AlwaysBestSingle, Roofline
from surrogate.models.linear import LinearTerms
from tests.known import cases
from tests.models.test_interpolated import products
from tests.tables import Table, checked

MODEL = "linear-terms"
STORED = tuning.default_hyperparameters(LinearTerms)


class PrefersOneAlgorithm(TimeModel):
    """Predict 1 µs for one algorithm and 2 µs for others."""

    name: ClassVar[str] = "fixed"

    def __init__(self, algorithm: str = "") -> None:
        self.algorithm = algorithm

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        pass

    def _predict(self, rows: Rows) -> np.ndarray:
        return np.where(rows.frame["algorithm"] == self.algorithm, 1.0, 2.0)


class ScaledOracle(PrefersOneAlgorithm):
    """Predict the measured times multiplied by a factor."""

    name: ClassVar[str] = "oracle"

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def _predict(self, rows: Rows) -> np.ndarray:
        return self.factor * rows.time_us


class ConstantTime(PrefersOneAlgorithm):
    """Predict one time, and record the training and test shapes of every fit."""

    name: ClassVar[str] = "constant"
    seen: ClassVar[list[tuple[set[int], set[int]]]] = []

    def __init__(self, time_us: float = 100.0) -> None:
        self.time_us = time_us

    def _fit(self, rows: Rows, time_us: np.ndarray) -> None:
        self.shapes_ = set(rows.shape.tolist())

    def _predict(self, rows: Rows) -> np.ndarray:
        self.seen.append((self.shapes_, set(rows.shape.tolist())))
        return np.full(len(rows), self.time_us)

    @staticmethod
    def space(trial: Any) -> dict[str, Any]:
        return {"time_us": trial.suggest_float("time_us", 1.0, 1e4, log=True)}


def loss(model: TimeModel, rows: Rows, objective: str = "time") -> float:
    """Return the loss of ``model`` over all inner folds of ``rows``."""
    *_, last = tuning.InnerFolds.of(rows, 0).losses(model)
    return last.value(objective)


@pytest.fixture(scope="module")
def rows(table: Table) -> Rows:
    return checked(table(12))


@pytest.fixture(scope="module")
def data(table: Table) -> Dataset:
    return Dataset(normalise(table(6), "test"), name="six")


def test_inner_folds_never_train_on_held_out_shapes(rows: Rows) -> None:
    ConstantTime.seen.clear()
    loss(ConstantTime(), rows)
    assert len(ConstantTime.seen) == tuning.INNER_FOLDS
    assert all(inside and outside and not inside & outside for inside, outside in ConstantTime.seen)
    assert set().union(*(outside for _, outside in ConstantTime.seen)) == set(rows.shape[rows.ok].tolist())


def test_search_tries_the_stored_settings_first(rows: Rows) -> None:
    assert tuning.search(LinearTerms, rows, 1, 0) == STORED
    many = tuning.search(LinearTerms, rows, 6, 0)
    assert loss(LinearTerms(**many), rows, "both") <= loss(LinearTerms(), rows, "both")
    assert tuning.search(LinearTerms, rows, 6, 0) == many


def test_models_and_tables_without_a_search_keep_the_stored_settings(rows: Rows) -> None:
    """A search needs settings, trials, and more than one training shape."""
    for cls in (Roofline, AlwaysBestSingle):
        assert tuning.search(cls, rows, 3, 0) == {}
        assert tuning.tuned(cls, rows, "light", 0).get_params() == cls().get_params()
    assert tuning.TUNE_TRIALS["none"] == 0 < tuning.TUNE_TRIALS["light"] < tuning.TUNE_TRIALS["full"]
    assert tuning.tuned(LinearTerms, rows, "none", 0).get_params() == LinearTerms().get_params()
    assert tuning.search(LinearTerms, rows.take(rows.shape == 0), 2, 0) == STORED


def test_choice_loss_is_the_mean_log_slowdown_over_shapes(table: Table) -> None:
    """One shape has two problems where GEMM takes 2 and 8 times the best; GEMM is the best on the other shape."""
    frame = table(2, batches=(1, 8), gpus=("Tesla T4",), algorithms=("IMPLICIT_GEMM", "GEMM"))
    frame = frame[(frame["n"] == 1) | (frame["c"] == frame["c"].iloc[0])].assign(status="ok", heuristic_algorithm=None)
    shape, n, name = (frame[column].to_numpy() for column in ("r", "n", "algorithm"))
    frame["time_us"] = np.where((name == "GEMM") & (shape == shape[0]), np.where(n == 1, 20.0, 80.0), 10.0)
    rows = checked(frame[(shape == shape[0]) | (n == 1)])
    assert loss(PrefersOneAlgorithm("GEMM"), rows, "choice") == pytest.approx((0.5 * (np.log(2) + np.log(8)) + 0.0) / 2)
    assert loss(PrefersOneAlgorithm("IMPLICIT_GEMM"), rows, "choice") == 0.0


def test_combined_loss_adds_the_weighted_time_error(rows: Rows) -> None:
    choice, both = (loss(PrefersOneAlgorithm("FFT"), rows, name) for name in tuning.OBJECTIVES[1:])
    ok = rows.take(rows.ok)
    error = np.abs(np.log(PrefersOneAlgorithm("FFT").fit(ok).predict(ok) / ok.time_us)).mean()
    assert both == pytest.approx(choice + tuning.TIME_WEIGHT * error) and min(error, choice) > 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=8)
@given(factor=st.floats(1e-3, 1e3))
def test_common_factor_changes_only_the_time_loss(rows: Rows, factor: float) -> None:
    assert loss(ScaledOracle(factor), rows, "choice") == 0.0
    assert loss(ScaledOracle(factor), rows, "time") == pytest.approx(abs(np.log(factor)), abs=1e-12)


def test_loss_without_choices_is_the_time_error(refused, table: Table) -> None:
    rows = checked(table(6, algorithms=("IMPLICIT_GEMM",)))
    error = np.abs(np.log(100.0 / rows.time_us[rows.ok])).mean()
    assert loss(ConstantTime(), rows, "both") == pytest.approx(tuning.TIME_WEIGHT * error)
    for objective, words in (("choice", "two measured"), ("speed", "speed")):
        with refused(words):
            tuning.InnerFolds.of(rows, 0).require(objective)


def test_any_family_can_be_tuned() -> None:
    rows = products()
    assert rows.family.name == "gemm" and set(tuning.search(LinearTerms, rows, 4, 0)) == set(STORED)


# Studies in a storage


def tuned(data: Dataset, **options: Any) -> TuningOutcome:
    return tune(data, TuneOptions(**options))


@contextmanager
def _seer_tune(file: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command, and kill it if the block ends first."""
    command = [sys.executable, "-m", "surrogate", "tune", str(file), "--model", MODEL, "--study", "s", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def _finished(storage: str) -> list[optuna.trial.FrozenTrial]:
    states = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    return optuna.load_study(study_name="s", storage=open_storage(storage)).get_trials(states=states)


@pytest.fixture
def file(data: Dataset, tmp_path: Path) -> Path:
    write_dataset(data.frame, tmp_path / "six.parquet")
    return tmp_path / "six.parquet"


each_storage = pytest.mark.parametrize("form", ["{}/study.journal", "sqlite:///{}/study.db"])


@pytest.mark.slow
@each_storage
def test_processes_share_one_study(file: Path, tmp_path: Path, form: str) -> None:
    """The stored settings run once, and the second process may add at most its running trial."""
    storage = form.format(tmp_path)
    command = (file, "--storage", storage, "--trials", "16")
    with _seer_tune(*command) as one, _seer_tune(*command) as other:
        for process in (one, other):
            _, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors
    trials = _finished(storage)
    assert 16 <= len(trials) <= 17
    assert sum(trial.params == STORED for trial in trials) == 1
    assert len({trial.params["alpha"] for trial in trials}) == len(trials)  # no worker repeats another's


@each_storage
def test_one_worker_takes_a_queued_trial(tmp_path: Path, form: str) -> None:
    storages = [open_storage(form.format(tmp_path)) for _ in range(4)]
    study = optuna.create_study(study_name="s", storage=storages[0])
    for alpha in range(20):
        study.enqueue_trial({"alpha": alpha})
    queued = [trial._trial_id for trial in study.get_trials(deepcopy=False)]
    together = threading.Barrier(len(storages))
    taken: list[int] = []

    def take_each(storage: optuna.storages.BaseStorage) -> None:
        for trial in queued:
            together.wait(timeout=60)
            if storage.set_trial_state_values(trial, state=optuna.trial.TrialState.RUNNING):
                taken.append(trial)

    workers = [threading.Thread(target=take_each, args=(storage,)) for storage in storages]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(taken) == queued


@each_storage
def test_repeated_command_resumes_the_study_and_adds_trials(data: Dataset, tmp_path: Path, form: str) -> None:
    options = {"model": MODEL, "storage": form.format(tmp_path)}
    first = tuned(data, trials=2, **options)
    assert first.trials == {"complete": 2, "pruned": 0, "running": 0} and first.storage == options["storage"]
    assert tuned(data, trials=2, **options) == first
    more = tuned(data, trials=4, **options)
    assert sum(more.trials.values()) == 4 and more.value <= first.value
    assert more.stored_value is not None and more.value <= more.stored_value
    assert more.time_loss > 0 and more.settings().params == more.params


@pytest.mark.skipif(os.name == "nt", reason="no such signal there")
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_study_of_a_killed_worker_can_be_completed(data, file, tmp_path, number):
    storage = f"sqlite:///{tmp_path}/study.db"
    tuned(data, trials=1, model=MODEL, storage=storage, study="s")  # makes the tables and the study
    with _seer_tune(file, "--storage", storage, "--trials", "100000") as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None and len(_finished(storage)) < 4:
            time.sleep(0.5)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130, errors
        assert "the same command resumes the search" in errors and "Traceback" not in errors
    expected = len(_finished(storage)) + 2
    with _seer_tune(file, "--storage", storage, "--trials", str(expected)) as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert len(_finished(storage)) == expected


def test_signal_during_a_call_of_the_storage_waits_for_its_end(data, tmp_path, monkeypatch):
    """An interrupted transaction would keep the database locked, and the search would wait for itself."""
    written: list[float] = []
    report = optuna.Trial.report

    def interrupted_report(trial: optuna.Trial, value: float, step: int) -> None:
        signal.raise_signal(signal.SIGINT)
        report(trial, value, step)
        written.append(value)

    options: dict[str, Any] = {"model": MODEL, "storage": f"sqlite:///{tmp_path}/study.db", "study": "s"}
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(optuna.Trial, "report", interrupted_report)
            with pytest.raises(KeyboardInterrupt):
                tuned(data, trials=3, **options)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert len(written) == 1
    assert tuned(data, trials=2, **options).trials["complete"] == 2


def test_trial_of_a_dead_worker_is_repeated_with_its_settings(data, tmp_path, monkeypatch):
    """The storage is a database; the lost trial counts as failed."""
    options: dict[str, Any] = {"model": MODEL, "storage": f"sqlite:///{tmp_path}/study.db", "study": "s"}
    tuned(data, trials=1, **options)
    lost = lost_trial(options["storage"])
    monkeypatch.setattr("surrogate.evaluation.hyperparameter_study.GRACE_S", 1)
    time.sleep(2.5)  # SQLite's clock counts whole seconds
    assert sum(tuned(data, trials=3, **options).trials.values()) == 3
    trials = optuna.load_study(study_name="s", storage=open_storage(options["storage"])).get_trials()
    assert trials[lost.number].state.name == "FAIL"
    assert [trial.params for trial in trials].count(lost.params) == 2


@pytest.mark.slow
def test_lost_trial_in_a_journal_does_not_block_the_study(data: Dataset, tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": MODEL, "storage": str(tmp_path / "j"), "study": "s"}
    tuned(data, trials=1, **options)
    lost_trial(options["storage"])
    assert tuned(data, trials=3, **options).trials["running"] == 1


def lost_trial(storage: str) -> optuna.Trial:
    """Return a trial of the study `s` that a worker began and never finished."""
    storage_: Any = open_storage(storage)
    study = optuna.load_study(study_name="s", storage=storage_)
    with warnings.catch_warnings(action="ignore"):  # a heartbeat is for `Study.optimize`
        trial = study.ask()
    LinearTerms.space(trial)
    if storage.startswith("sqlite"):
        storage_.record_heartbeat(trial._trial_id)
    return trial


@pytest.mark.slow
def test_lock_of_a_dead_worker_is_released(data, tmp_path, monkeypatch):
    """The journal's path is relative."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/j").touch()
    (tmp_path / "runs/j.lock").symlink_to(tmp_path / "runs/j")
    assert tuned(data, trials=1, model=MODEL, storage="runs/j").trials["complete"] == 1


def test_no_trial_begins_after_the_timeout(refused, data: Dataset, tmp_path: Path) -> None:
    storage = str(tmp_path / "j")
    found = tuned(data, trials=10**6, model=MODEL, storage=storage, timeout_minutes=0.02)
    assert 0 < found.trials["complete"] < 10**6
    with refused("no finished trial"):
        tuned(data, trials=5, model=MODEL, storage=storage, study="t", timeout_minutes=1e-9)


@cases(__file__)
def test_study_of_other_options_or_data_is_refused(refused, data, tmp_path, change, words):
    options: dict[str, Any] = {"model": MODEL, "storage": str(tmp_path / "j"), "study": "s", "trials": 1}
    tuned(data, **options)
    with refused("--study", *words):
        tuned(data, **(options | change))
    with refused("for data"):
        tuned(data.with_frame(data.frame.iloc[1:]), **options)


def test_fingerprint_depends_on_the_rows_but_not_their_order(rows: Rows) -> None:
    shuffled = rows.take(np.random.default_rng(0).permutation(len(rows)))
    assert fingerprint(rows) == fingerprint(shuffled)
    frame = rows.frame
    faster = rows_of(frame.assign(time_us=frame["time_us"].where(frame.index != 3, 1.0)))
    assert len({fingerprint(table) for table in (rows, faster, rows.take(np.arange(1, len(rows))))}) == 3


def test_tables_of_one_shape_are_refused(refused, data: Dataset, tmp_path: Path) -> None:
    storage = str(tmp_path / "j")
    one_shape = data.with_frame(data.frame[rows_of(data.frame).shape == 0])
    with refused("have one shape"):
        tuned(one_shape, trials=1, model=MODEL, storage=storage)
    assert not Path(storage).exists()


@cases(__file__)
def test_unusable_storage_is_refused_in_one_line(data: Dataset, storage: str, word: str) -> None:
    with pytest.raises(InputError, match=word) as error:
        tuned(data, trials=1, model=MODEL, storage=storage)
    assert "\n" not in str(error.value) and "secret" not in str(error.value)


def test_file_that_is_not_a_journal_is_left_unchanged(refused, data: Dataset, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("my notes\n")
    with refused("notes"):
        tuned(data, trials=1, model=MODEL, storage=str(notes))
    assert notes.read_text() == "my notes\n"
