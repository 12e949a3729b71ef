"""Answers compared with stored ones: changes, their size, and the exit status for automatic checks."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from experiments import answers
from experiments.answers import Answer, moved

CURRENT = (
    Answer("conv", "t4", "n1c8h8k8r3", "dtype=fp16", "cudnn FFT", 100.0, 80.0, 120.0),
    Answer("conv", "t4", "n1c8h8k8r3", "dtype=fp16", "cudnn GEMM", 200.0, 150.0, 300.0),
    Answer("gemm", "h100", "gemm:m8n8k8", "", "vllm torch_linear", 5.0, 4.0, 6.0),
    Answer("gemm", "h100", "gemm:m9n8k8", "", "refused", np.nan, np.nan, np.nan),
)


def frame(rows: tuple[Answer, ...]) -> pd.DataFrame:
    """Return the answers as a table."""
    return pd.DataFrame(rows, columns=list(Answer._fields))


def test_the_change_is_the_larger_one_of_time_and_interval() -> None:
    wider = (CURRENT[0], CURRENT[1]._replace(time_us=202.0, upper_us=330.0), *CURRENT[2:])
    changes = moved(frame(CURRENT), frame(wider)).set_index("candidate")["change"]
    np.testing.assert_allclose(changes[["cudnn FFT", "cudnn GEMM", "refused"]], [0.0, 0.1, 0.0])


def test_a_missing_answer_has_an_infinite_change() -> None:
    missing, renamed = CURRENT[1:], (*CURRENT[:3], CURRENT[3]._replace(candidate="vllm torch_linear", time_us=1.0))
    assert list(moved(frame(CURRENT), frame(missing))["change"]) == [np.inf, 0.0, 0.0, 0.0]
    assert sorted(moved(frame(CURRENT), frame(renamed))["change"]) == [0.0, 0.0, 0.0, np.inf, np.inf]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Store the current answers with the script and return the path."""
    monkeypatch.setattr(answers, "answers", lambda: iter(CURRENT))
    assert compared(tmp_path / "answers.parquet", "--store").exit_code == 0
    return tmp_path / "answers.parquet"


def compared(stored: Path, *options: str) -> Result:
    return CliRunner().invoke(answers.main, ["--stored", str(stored), *options])


def test_unchanged_answers_exit_with_status_0(stored: Path) -> None:
    done = compared(stored, "--exact")
    assert done.exit_code == 0 and done.output == "0 of 4 answers moved\n"


@pytest.mark.parametrize(("factor", "options", "status"), [(1.004, (), 0), (1.004, ("--exact",), 1), (1.006, (), 1)])
def test_a_family_with_a_changed_answer_is_named(stored, factor, options, status):
    changed = pd.read_parquet(stored)
    changed.loc[changed["family"] == "gemm", "time_us"] *= factor
    changed.to_parquet(stored)
    done = compared(stored, *options)
    assert done.exit_code == status
    assert ("gemm: 1 of 2 " in done.output and "gemm:m8n8k8" in done.output) == bool(status)
    assert "conv: " not in done.output and f"{status} of 4 answers moved" in done.output
