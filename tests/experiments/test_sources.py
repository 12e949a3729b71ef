"""Where data comes from: names, replacements, filters, and the winners' table."""

import pandas as pd
import pytest

from experiments.script import read_sources
from experiments.sources import FILES, Sources, winner_rows
from surrogate.features.errors import InputError


def test_another_dataset_takes_the_place_of_a_source(tmp_path) -> None:
    """``--use cudnn=FILE``; the others stay in the folder."""
    given = read_sources(tmp_path, ("cudnn=mine.parquet",))
    assert str(given.path("cudnn")) == "mine.parquet"
    assert given.path("mi210") == tmp_path / FILES["mi210"][0]


@pytest.mark.parametrize(
    ("use", "said"), [("cuda=x", "did you mean cudnn"), ("cudnn", "NAME=FILE"), ("cudnn=", "NAME=FILE")]
)
def test_a_malformed_replacement_is_refused(tmp_path, use: str, said: str) -> None:
    """With the rule and the nearest name."""
    with pytest.raises(InputError, match=said):
        read_sources(tmp_path, (use,))


def test_where_filters_and_candidates(sources: Sources) -> None:
    """Rows of one GPU; a censored list stays one."""
    data = sources.dataset("cudnn", {"gpu": "Tesla T4"})
    assert set(data.frame["gpu"]) == {"Tesla T4"}
    assert data.candidates == "all"
    assert sources.dataset("mi210").candidates == "listed"
    with pytest.raises(InputError, match="no row has gpu=Tesla K80"):
        sources.dataset("cudnn", {"gpu": "Tesla K80"})


def test_winner_rows_known_answers() -> None:
    """Versions from cuDNN's number, classes from guesses with and without a kernel's name."""
    frame = pd.DataFrame(
        {
            "library_version": [8902, 7604],
            "algorithm_guess": [
                "IMPLICIT_PRECOMP_GEMM(scudnn)",
                "IMPLICIT_GEMM/PRECOMP(implicit_convolve_sgemm)",
            ],
        }
    )
    found = winner_rows(frame)
    assert list(found["library_version"]) == ["8.9.2", "7.6.4"]
    assert list(found["algorithm"]) == ["IMPLICIT_PRECOMP_GEMM", "IMPLICIT_GEMM"]
    assert set(found["status"]) == {"ok"}


def test_winners_are_a_checked_dataset(sources: Sources) -> None:
    """One ok row per problem."""
    data = sources.winners()
    assert data.candidates == "listed"
    assert (data.frame["status"] == "ok").all()
    assert not data.frame.duplicated(["gpu", "n", "c", "h", "k"]).any()
