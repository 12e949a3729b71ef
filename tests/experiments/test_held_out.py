"""Sources, samples and splits: nothing that is tested was trained."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from experiments.experiment import Effort, read_sources
from experiments.held_out import candidate_rows, cross_validate
from experiments.learning_curve import SHARES, share_rounds
from experiments.sources import FILES, Sources, paper_domain, winner_rows
from experiments.test_set_i import seer_rounds
from surrogate.dataset.problems import shape_names
from surrogate.dataset.store import Dataset
from surrogate.features.errors import InputError
from surrogate.features.families import CONV


def test_another_dataset_takes_the_place_of_a_source(tmp_path) -> None:
    given = read_sources(tmp_path, ("cudnn=mine.parquet",))
    assert str(given.path("cudnn")) == "mine.parquet"
    assert given.path("mi210") == tmp_path / FILES["mi210"][0]
    for use, words in (("cuda=x", "cudnn"), ("cudnn", "NAME=FILE"), ("cudnn=", "NAME=FILE")):
        with pytest.raises(InputError, match=words):
            read_sources(tmp_path, (use,))


def test_winner_rows(sources: Sources) -> None:
    """Versions from cuDNN's number, classes from guesses with and without a kernel's name; one ok row a problem."""
    guesses = ["IMPLICIT_PRECOMP_GEMM(scudnn)", "IMPLICIT_GEMM/PRECOMP(implicit_convolve_sgemm)"]
    rows = winner_rows(pd.DataFrame({"library_version": [8902, 7604], "algorithm_guess": guesses}))
    assert list(rows["library_version"]) == ["8.9.2", "7.6.4"]
    assert list(rows["algorithm"]) == ["IMPLICIT_PRECOMP_GEMM", "IMPLICIT_GEMM"]
    data = sources.winners()
    assert data.candidates == "listed" and (data.frame["status"] == "ok").all()
    assert not data.frame.duplicated(["gpu", "n", "c", "h", "k"]).any()


def test_paper_domain_keeps_refusals_and_drops_fast_rows(sources: Sources) -> None:
    """Batch 128, over 1 ms, square, ungrouped; the invented sources have such rows, too."""
    base = {"n": 128, "h": 8, "w": 8, "r": 3, "s": 3, "groups": 1, "status": "ok", "time_us": 1000.5}
    others = [{"n": 64}, {"w": 9}, {"s": 1}, {"groups": 2}, {"time_us": 1000.0}]
    refusal = {"status": "not_supported", "time_us": np.nan}
    frame = pd.DataFrame([base, base | refusal, *(base | change for change in others)])
    assert list(paper_domain(frame)["status"]) == ["ok", "not_supported"]
    assert len(paper_domain(sources.dataset("cudnn").frame))


def test_a_sample_keeps_whole_shapes(table) -> None:
    """At most as many as are asked for, the same for the same seed; a full run keeps all."""
    data = Dataset(table(12))
    small = Effort(quick=True, quick_shapes=5).sample(data)
    names = shape_names(small.frame, CONV)
    assert len(set(names)) == 5
    assert np.isin(shape_names(data.frame, CONV), names).sum() == len(small)
    pd.testing.assert_frame_equal(small.frame, Effort().sample(data, 5).frame)
    assert len(Effort(quick=True, quick_shapes=3).sample(data, 5)) < len(small)
    assert len(Effort().sample(data)) == len(data)


def test_seer_rounds_take_seven_of_ten_of_each_gpu(table) -> None:
    """Per GPU and algorithm; the fastest row of a GEMM algorithm is in neither part."""
    rows = candidate_rows([Dataset(table(20, batches=(1, 2, 4)))])
    ((train, test),) = seer_rounds(rows)
    assert not set(train) & set(test)
    for (gpu, name), part in rows.frame.assign(ok=rows.ok).groupby(["gpu", "algorithm"]):
        mine = part.index[part["ok"]]
        count = len(mine) - ("GEMM" in str(name))
        inside = np.isin(mine, train).sum()
        assert inside == sum(i % 10 < 7 for i in range(count)), (gpu, name)
        assert np.isin(mine, test).sum() == count - inside


def test_share_rounds_are_nested_and_hold_shapes_out(table) -> None:
    """A smaller share's training rows are among a larger one's; no test shape trains; the whole share is the rest."""
    rows = candidate_rows([Dataset(table(20))])
    names = shape_names(rows.frame, CONV)
    by_share = [share_rounds(rows, share, seed=3) for share in SHARES]
    for fold, (train, test) in enumerate(by_share[-1]):
        for fewer, more in pairwise(by_share):
            assert set(fewer[fold][0]) <= set(more[fold][0])
        assert len(train) + len(test) == len(rows)
        assert not set(names[train]) & set(names[test])
    assert sorted(np.concatenate([test for _, test in by_share[0]])) == list(range(len(rows)))


def test_cross_validation_covers_the_data_and_not_the_rest(table) -> None:
    """Rows of ``also`` train and are not predicted; a model that cannot learn is named with its reason."""
    data, also = Dataset(table(6)), Dataset(table(4, gpus=("Tesla K80",)))
    models = Effort().by_name("roofline", "seer-paper")
    predictions = cross_validate(data, models, count=3, seed=0, also=[also], tick=lambda text: None)
    assert len(predictions.rows) == len(data) and predictions.tested.all()
    assert np.isfinite(predictions.time_us["roofline"]).all()
    assert list(predictions.reasons) == ["seer-paper"] and "seer-paper" not in predictions.time_us
