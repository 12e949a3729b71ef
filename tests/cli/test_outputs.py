"""Messages of long commands: outputs that cannot be written, and progress lines with the time left."""

import pytest

from surrogate.cli.datasets import progress_bar
from tests.known import known_answers

ANSWERS = known_answers(__file__)


@pytest.mark.parametrize(
    ("words", "bad", "reason"),
    [(words, bad, "cannot be written") for words in ANSWERS["files"] for bad in ("missing/out", "folder", "file/out")]
    + [(words, "file", "is a file; a folder is needed") for words in ANSWERS["folders"]]
    + [(words, "file/out", "cannot be written") for words in ANSWERS["folders"]],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_an_output_that_cannot_be_written_is_refused_before_reading(seer, tmp_path, words, bad, reason):
    """DATA is missing, so that a command that reads it first has another error."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    data = tmp_path / "none.parquet"
    result = seer(*(data if word == "DATA" else word for word in words), tmp_path / bad)
    assert result.is_refusal(reason, str(tmp_path / bad)), result.err
    assert sorted(tmp_path.rglob("*")) == before and (tmp_path / "file").read_text() == "mine"


def test_a_long_training_names_the_model_and_its_option(seer, dataset, tmp_path, monkeypatch):
    """The fake clock advances by a minute at each call."""
    now = iter(range(0, 10**9, 61))
    monkeypatch.setattr("surrogate.bundle.train.monotonic", lambda: float(next(now)))
    monkeypatch.setattr("surrogate.cli.datasets.LINE_SECONDS", -1.0)
    result = seer("train", dataset, "--model", "linear-terms", "-o", tmp_path / "out")
    assert "held-out fold 2 of 10 with linear-terms; --model names others" in result.err


def test_the_time_left_follows_the_progress_since_the_line_before(monkeypatch, capsys):
    now = iter([0.0, 10.0, 10.0, 20.0, 20.0, 40.0, 40.0, 41.0])
    monkeypatch.setattr("surrogate.cli.datasets.monotonic", lambda: next(now))
    monkeypatch.setattr("surrogate.cli.datasets.LINE_SECONDS", 5.0)
    with progress_bar("work", "step") as step:
        step(100, 300, "first")
        step(100, 300)
        step(110, 300)
        step(120, 300)  # printed only every few seconds
    assert capsys.readouterr().err.splitlines() == [
        "work: 100 of 300 steps, first, about 20 s left",
        "work: 100 of 300 steps",
        "work: 110 of 300 steps, about 6 min left",
    ]
