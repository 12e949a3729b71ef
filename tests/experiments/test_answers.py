"""Answers beside stored ones: what moved, by how much, and the exit status that a gate goes by."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from experiments import answers
from experiments.answers import Answer, moved

NOW = (
    Answer("conv", "t4", "n1c8h8k8r3", "dtype=fp16", "cudnn FFT", 100.0, 80.0, 120.0),
    Answer("conv", "t4", "n1c8h8k8r3", "dtype=fp16", "cudnn GEMM", 200.0, 150.0, 300.0),
    Answer("gemm", "h100", "gemm:m8n8k8", "", "vllm torch_linear", 5.0, 4.0, 6.0),
    Answer("gemm", "h100", "gemm:m9n8k8", "", "refused", np.nan, np.nan, np.nan),
)


def frame(rows: tuple[Answer, ...]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(Answer._fields))


def test_the_larger_of_the_differences_of_time_and_interval_counts() -> None:
    wider = (NOW[0], NOW[1]._replace(time_us=202.0, upper_us=330.0), *NOW[2:])
    changes = moved(frame(NOW), frame(wider)).set_index("candidate")["change"]
    np.testing.assert_allclose(changes[["cudnn FFT", "cudnn GEMM", "refused"]], [0.0, 0.1, 0.0])


def test_an_answer_that_one_side_lacks_has_moved_without_bound() -> None:
    gone, other = NOW[1:], (*NOW[:3], NOW[3]._replace(candidate="vllm torch_linear", time_us=1.0))
    assert list(moved(frame(NOW), frame(gone))["change"]) == [np.inf, 0.0, 0.0, 0.0]
    assert sorted(moved(frame(NOW), frame(other))["change"]) == [0.0, 0.0, 0.0, np.inf, np.inf]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Today's answers, stored in a file by the script itself."""
    monkeypatch.setattr(answers, "answers", lambda: iter(NOW))
    assert compared(tmp_path / "answers.parquet", "--store").exit_code == 0
    return tmp_path / "answers.parquet"


def compared(stored: Path, *options: str) -> Result:
    return CliRunner().invoke(answers.main, ["--stored", str(stored), *options])


def test_nothing_moved(stored: Path) -> None:
    done = compared(stored, "--exact")
    assert done.exit_code == 0 and done.output == "0 of 4 answers moved\n"


@pytest.mark.parametrize(("factor", "options", "status"), [(1.004, (), 0), (1.004, ("--exact",), 1), (1.006, (), 1)])
def test_a_family_whose_answer_moved_is_named(stored, factor, options, status):
    changed = pd.read_parquet(stored)
    changed.loc[changed["family"] == "gemm", "time_us"] *= factor
    changed.to_parquet(stored)
    done = compared(stored, *options)
    assert done.exit_code == status
    assert ("gemm: 1 of 2 " in done.output and "gemm:m8n8k8" in done.output) == bool(status)
    assert "conv: " not in done.output and f"{status} of 4 answers moved" in done.output
