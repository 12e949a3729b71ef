"""A worker killed between any two of its steps leaves a study that the same command completes."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest

from surrogate.dataset.normalise import normalise
from surrogate.dataset.store import Dataset
from surrogate.evaluation.tune import shared, worker
from surrogate.evaluation.tune.search import stored_settings
from surrogate.evaluation.tune.shared import tune
from surrogate.evaluation.tune.storage import connection_kept, open_storage
from surrogate.features.errors import InputError
from surrogate.models.linear import LinearTerms

Table = Callable[..., pd.DataFrame]
MODEL = "linear-terms"
STORED = stored_settings(LinearTerms)


@pytest.fixture(scope="module")
def data(table: Table) -> Dataset:
    return Dataset(normalise(table(4), "test"), name="four")


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(shared, "STARTED_WITHIN_S", 0.2)
    return str(tmp_path / "t.journal")


def completed(data: Dataset, storage: str, trials: int = 3) -> optuna.Study:
    """The study after the same command: it counts as many trials as were asked for, the stored settings once."""
    found = tune(data, trials=trials, model=MODEL, storage=storage, study="s")
    assert found.trials == {
        "complete": found.trials["complete"],
        "pruned": trials - found.trials["complete"],
        "running": 0,
    }
    assert found.stored_value is not None
    study = optuna.load_study(study_name="s", storage=open_storage(storage))
    tried = [trial.params for trial in study.get_trials(states=worker.FINISHED)]
    assert len(tried) == trials and tried.count(STORED) == 1
    return study


@pytest.mark.parametrize("enqueued", [False, True])
def test_a_study_whose_maker_was_killed_is_adopted(data: Dataset, journal: str, enqueued: bool) -> None:
    study = optuna.create_study(study_name="s", storage=open_storage(journal))
    if enqueued:
        study.enqueue_trial(STORED)
    completed(data, journal)


def test_a_study_with_foreign_trials_is_not_adopted(data: Dataset, journal: str) -> None:
    optuna.create_study(study_name="s", storage=open_storage(journal)).enqueue_trial({"x": 1.0})
    with pytest.raises(InputError, match="not one of `seer tune`"):
        tune(data, trials=1, model=MODEL, storage=journal, study="s")


def test_stored_settings_lost_with_their_worker_are_tried_again(data: Dataset, journal: str) -> None:
    study = completed(data, journal, 1)
    assert [t.params for t in study.get_trials()] == [STORED]
    other = optuna.create_study(study_name="t", storage=open_storage(journal))
    other.enqueue_trial(STORED)
    lost = other.ask()
    other.tell(lost, state=optuna.trial.TrialState.FAIL)  # killed before the settings were put back
    worker.enqueue_missing(other, STORED)
    worker.enqueue_missing(other, STORED)
    waiting = other.get_trials(states=(optuna.trial.TrialState.WAITING,))
    assert [t.system_attrs["fixed_params"] for t in waiting] == [STORED]


def test_of_two_workers_that_enqueue_at_once_one_counts(
    journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = optuna.create_study(study_name="s", storage=open_storage(journal))
    enqueue = study.enqueue_trial

    def beaten(params: dict[str, Any], **how: Any) -> None:
        monkeypatch.undo()
        worker.enqueue_missing(study, STORED)  # the other worker, between our look and our deed
        enqueue(params, **how)

    monkeypatch.setattr(study, "enqueue_trial", beaten)
    worker.enqueue_missing(study, STORED)
    states = [trial.state.name for trial in study.get_trials()]
    assert states == ["WAITING", "FAIL"]


def test_a_trial_whose_worker_died_before_naming_itself_does_not_count(
    data: Dataset, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    completed(data, journal, 2)
    optuna.load_study(study_name="s", storage=open_storage(journal)).ask()
    monkeypatch.setattr(worker, "NAMED_WITHIN_S", 0.5)
    completed(data, journal, 3)


def test_a_torn_last_line_of_a_journal_is_cut_off(data: Dataset, journal: str) -> None:
    completed(data, journal, 2)
    with Path(journal).open("ab") as file:
        file.write(b'{"op_code":5,"worker_')
    completed(data, journal, 4)
    lines = Path(journal).read_bytes().split(b"\n")
    assert lines[-1] == b"" and all(line.endswith(b"}") for line in lines[:-1])


@pytest.mark.skipif(os.name == "nt", reason="the lock there is a file")
def test_a_killed_worker_leaves_no_lock_that_waits(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for storage in ("sub/t.journal", "sqlite:///sub/t.db"):
        name = storage.removeprefix("sqlite:///")
        Path(f"{name}.lock").symlink_to(name)  # what optuna's own lock leaves
        began = time.monotonic()
        completed(data, storage, 1)
        assert time.monotonic() - began < 20


def test_a_full_disk_is_one_line() -> None:
    with (
        pytest.raises(
            InputError, match=r"cannot be written \(No space left on device\); the same command goes on"
        ),
        connection_kept("j"),
    ):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("step", ["this_worker", "_value"])
def test_a_trial_that_another_took_for_lost_costs_nothing(
    data: Dataset, journal: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Given back while its worker lives, before it is named or before its value is told: the worker goes on."""
    real, robbed = getattr(worker, step), []

    def slow(*args: Any) -> Any:
        if not robbed:
            study = optuna.load_study(study_name="s", storage=open_storage(journal))
            robbed.append(study.get_trials()[-1].number)
            worker.give_back(study, robbed[0])
        return real(*args)

    monkeypatch.setattr(worker, step, slow)
    completed(data, journal)
    assert robbed
