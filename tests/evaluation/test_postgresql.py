"""Studies on a real PostgreSQL server, started for these tests from the binaries of the system."""

from collections.abc import Iterator

import optuna
import pytest

from surrogate.dataset.checks import normalise
from surrogate.dataset.store import write_dataset
from surrogate.evaluation.storage import opened
from surrogate.models.linear import LinearTerms
from tests.evaluation.postgresql import connections, postgresql

pytest.importorskip("psycopg", reason="psycopg is not installed: the extra postgresql")


@pytest.fixture(scope="module")
def storage() -> Iterator[str]:
    """The URL of an empty database."""
    with postgresql() as url:
        if url is None:
            pytest.skip("no PostgreSQL server is installed here: initdb is neither on PATH nor Debian's")
        yield url


def test_the_same_command_goes_on_with_the_study(seer, table, storage, tmp_path, monkeypatch):
    """Also where a worker died; no connection is left."""
    write_dataset(normalise(table(6), "test"), tmp_path / "data.parquet")
    words = ["tune", tmp_path / "data.parquet", "--model", "linear-terms", "--storage", storage, "--json"]
    first = seer(*words, "--trials", 2).succeeded()
    with opened(storage) as held:
        LinearTerms.space(optuna.load_study(study_name=first.json["study"], storage=held).ask())
    monkeypatch.setattr("surrogate.evaluation.storage.GRACE_S", 0.0)
    again = seer(*words, "--trials", 5).succeeded()
    assert again.json["study"] == first.json["study"]
    trials = again.json["trials"]
    assert trials["complete"] + trials["pruned"] == 5 and trials["running"] == 0
    assert again.json["value"] <= first.json["value"]
    assert connections(storage) == 0
