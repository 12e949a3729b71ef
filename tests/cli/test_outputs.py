"""Messages of long commands: outputs that cannot be written, and progress lines with the time left."""

import re

import pytest

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


def test_progress_lines_contain_the_time_left(seer, dataset, tmp_path, monkeypatch):
    monkeypatch.setattr("surrogate.cli.datasets.LINE_SECONDS", -1.0)
    monkeypatch.setattr("surrogate.dataset.files.MIN_ESTIMATE_SECONDS", 0.0)
    monkeypatch.setattr("surrogate.report.figures.draw", lambda *run: ({}, {"slowdowns": "left out"}))
    result = seer("compare", dataset, "--models", "linear-dims,roofline", "--folds", 2, "-o", tmp_path / "out")
    assert result.code == 0, result.err
    assert "left" not in result.err.splitlines()[0]  # no fit has finished yet
    assert len(re.findall(r"about \d+ s left", result.err)) >= 2


def test_a_long_training_names_the_model_and_its_option(seer, dataset, tmp_path, monkeypatch):
    """The fake clock advances by a minute at each call."""
    now = iter(range(0, 10**9, 60))
    monkeypatch.setattr("surrogate.bundle.train.monotonic", lambda: float(next(now)))
    monkeypatch.setattr("surrogate.cli.datasets.LINE_SECONDS", -1.0)
    result = seer("train", dataset, "--model", "linear-terms", "-o", tmp_path / "out")
    assert re.search(r"held-out fold 2 of 10, about \d+ min left with linear-terms; --model names others", result.err)
