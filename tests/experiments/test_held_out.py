"""Sources, samples and splits: training and test rows are disjoint."""

import numpy as np
import pandas as pd
import pytest

from experiments.experiment import Effort, read_sources
from experiments.held_out import candidate_rows, cross_validate
from experiments.sources import FILES, Sources, paper_domain, winner_rows
from experiments.test_set_i import seer_rounds
from surrogate.dataset.problems import shape_names
from surrogate.dataset.store import Dataset
from surrogate.features.errors import InputError
from surrogate.features.families import CONV


def test_another_dataset_replaces_a_source(tmp_path) -> None:
    sources = read_sources(tmp_path, ("cudnn=mine.parquet",))
    assert str(sources.path("cudnn")) == "mine.parquet"
    assert sources.path("mi210") == tmp_path / FILES["mi210"][0]
    for use, message in (("cuda=x", "cudnn"), ("cudnn", "NAME=FILE"), ("cudnn=", "NAME=FILE")):
        with pytest.raises(InputError, match=message):
            read_sources(tmp_path, (use,))


def test_winner_rows_have_versions_and_algorithms(sources: Sources) -> None:
    """Versions come from the number of cuDNN, and algorithms from guesses; each problem has one row."""
    guesses = ["IMPLICIT_PRECOMP_GEMM(scudnn)", "IMPLICIT_GEMM/PRECOMP(implicit_convolve_sgemm)"]
    rows = winner_rows(pd.DataFrame({"library_version": [8902, 7604], "algorithm_guess": guesses}))
    assert list(rows["library_version"]) == ["8.9.2", "7.6.4"]
    assert list(rows["algorithm"]) == ["IMPLICIT_PRECOMP_GEMM", "IMPLICIT_GEMM"]
    data = sources.winners()
    assert data.candidates == "listed" and (data.frame["status"] == "ok").all()
    assert not data.frame.duplicated(["gpu", "n", "c", "h", "k"]).any()


def test_paper_domain_keeps_refusals_and_drops_fast_rows(sources: Sources) -> None:
    """The domain is batch 128, more than 1 ms, square and ungrouped."""
    base = {"n": 128, "h": 8, "w": 8, "r": 3, "s": 3, "groups": 1, "status": "ok", "time_us": 1000.5}
    others = [{"n": 64}, {"w": 9}, {"s": 1}, {"groups": 2}, {"time_us": 1000.0}]
    refusal = {"status": "not_supported", "time_us": np.nan}
    frame = pd.DataFrame([base, base | refusal, *(base | change for change in others)])
    assert list(paper_domain(frame)["status"]) == ["ok", "not_supported"]
    assert len(paper_domain(sources.dataset("cudnn").frame))


def test_a_sample_keeps_all_rows_of_a_shape(table) -> None:
    """A sample has at most the requested number of shapes and does not vary; a full run keeps all shapes."""
    data = Dataset(table(12))
    small = Effort(quick=True, quick_shapes=5).sample(data)
    names = shape_names(small.frame, CONV)
    assert len(set(names)) == 5
    assert np.isin(shape_names(data.frame, CONV), names).sum() == len(small)
    pd.testing.assert_frame_equal(small.frame, Effort().sample(data, 5).frame)
    assert len(Effort(quick=True, quick_shapes=3).sample(data, 5)) < len(small)
    assert len(Effort().sample(data)) == len(data)


def test_seer_rounds_train_on_seven_of_ten_rows_of_each_gpu(table) -> None:
    """The rows are counted per GPU and algorithm; the fastest row of a GEMM algorithm is in neither part."""
    rows = candidate_rows([Dataset(table(20, batches=(1, 2, 4)))])
    ((train, test),) = seer_rounds(rows)
    assert not set(train) & set(test)
    for (gpu, name), part in rows.frame.assign(ok=rows.ok).groupby(["gpu", "algorithm"]):
        ok = part.index[part["ok"]]
        count = len(ok) - ("GEMM" in str(name))
        train_count = np.isin(ok, train).sum()
        assert train_count == sum(i % 10 < 7 for i in range(count)), (gpu, name)
        assert np.isin(ok, test).sum() == count - train_count


def test_cross_validation_predicts_the_data_and_not_the_additional_rows(table) -> None:
    """Rows of ``also`` are only trained on; a model that cannot be fitted is named with the reason."""
    data, additional = Dataset(table(6)), Dataset(table(4, gpus=("Tesla K80",)))
    models = Effort().by_name("roofline", "seer-paper")
    holdout = cross_validate(data, models, count=3, seed=0, also=[additional], tick=lambda text: None)
    assert len(holdout.rows) == len(data) and holdout.tested.all()
    assert np.isfinite(holdout.time_us["roofline"]).all()
    assert list(holdout.reasons) == ["seer-paper"] and "seer-paper" not in holdout.time_us
