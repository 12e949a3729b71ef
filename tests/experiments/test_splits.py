"""The splits that experiments make for themselves: nothing that is tested was trained."""

from itertools import pairwise

import numpy as np
import pandas as pd
from experiments.paper_domain import paper_domain

from experiments.effort import Effort
from experiments.held_out import candidate_rows, cross_validate, predict_rounds
from experiments.learning_curve import SHARES, share_rounds
from experiments.small_to_large import excess_flops
from experiments.sources import Sources
from experiments.test_set_i import seer_rounds
from surrogate.dataset.splits import shape_names
from surrogate.dataset.store import Dataset


def test_seer_rounds_take_seven_of_ten_of_each_gpu(table) -> None:
    """Per GPU and algorithm; the fastest row of a GEMM algorithm is in neither part."""
    rows = candidate_rows([Dataset(table(20, batches=(1, 2, 4)))])
    ((train, test),) = seer_rounds(rows)
    assert not set(train) & set(test)
    per_gpu = rows.frame.assign(ok=rows.ok)
    for (gpu, name), part in per_gpu.groupby(["gpu", "algorithm"]):
        count = int(part["ok"].sum()) - ("GEMM" in str(name))
        mine = part.index[part["ok"]]
        inside = np.isin(mine, train).sum()
        assert inside == sum(i % 10 < 7 for i in range(count)), (gpu, name)
        assert np.isin(mine, test).sum() == count - inside


def test_share_rounds_are_nested_and_hold_shapes_out(table) -> None:
    """A smaller share's training rows are among a larger one's; no test shape trains; the whole share is the rest."""
    rows = candidate_rows([Dataset(table(20))])
    names = shape_names(rows.frame)
    made = [share_rounds(rows, share, seed=3) for share in SHARES]
    for fold in range(len(made[0])):
        for fewer, more in pairwise(made):
            assert set(fewer[fold][0]) <= set(more[fold][0])
        train, test = made[-1][fold]
        assert len(train) + len(test) == len(rows)
        assert not set(names[train]) & set(names[test])
    assert sorted(np.concatenate([test for _, test in made[0]])) == list(range(len(rows)))


def test_cross_validation_covers_the_data_and_not_the_rest(table) -> None:
    """Rows of ``also`` train and are not predicted; a model that cannot learn is named with its reason."""
    data, also = Dataset(table(6)), Dataset(table(4, gpus=("Tesla K80",)))
    found = cross_validate(
        data, ["roofline", "seer-paper"], count=3, seed=0, also=[also], tick=lambda text: None
    )
    assert len(found.rows) == len(data)
    assert found.tested.all()
    assert np.isfinite(found.time_us["roofline"]).all()
    assert list(found.reasons) == ["seer-paper"]
    assert "seer-paper" not in found.time_us


def test_untested_rows_have_no_prediction(table) -> None:
    """NaN, so that they cannot enter a figure."""
    rows = candidate_rows([Dataset(table(4))])
    half = np.arange(len(rows) // 2)
    found = predict_rounds(rows, "all", [(half + len(half), half)], ["roofline"], 0, lambda text: None)
    assert np.isfinite(found.time_us["roofline"][half]).all()
    assert np.isnan(found.time_us["roofline"][len(half) :]).all()
    assert found.tested.sum() == len(half)


def test_paper_domain_keeps_refusals_and_drops_fast_rows() -> None:
    """Batch 128, over 1 ms, square, ungrouped."""
    base = {"n": 128, "h": 8, "w": 8, "r": 3, "s": 3, "groups": 1, "status": "ok", "time_us": 1000.5}
    others = [{"n": 64}, {"w": 9}, {"s": 1}, {"groups": 2}, {"time_us": 1000.0}]
    refusal = {"status": "not_supported", "time_us": np.nan}
    frame = pd.DataFrame([base, base | refusal, *(base | change for change in others)])
    assert list(paper_domain(frame)["status"]) == ["ok", "not_supported"]


def test_excess_flops_has_its_one_at_the_middle_problem(table) -> None:
    """Half of the problems at most lie above; ratios are those of the FLOPs."""
    rows = candidate_rows([Dataset(table(8, gpus=("Tesla T4",), batches=(1, 2, 4)))])
    excess = excess_flops(rows)
    each = pd.Series(excess).groupby(rows.problem).first()
    assert (each > 1).mean() <= 0.5
    assert np.isclose(each, 1).any()
    one = rows.frame[rows.frame["n"] == 1].index[0]
    same = (shape_names(rows.frame) == shape_names(rows.frame)[one]) & (rows.frame["n"] == 4).to_numpy()
    np.testing.assert_allclose(excess[same], 4 * excess[one], rtol=1e-4)


def test_a_quick_sample_keeps_whole_shapes(table) -> None:
    """At most ``quick_shapes``, the same for the same seed; a full run keeps all."""
    data = Dataset(table(12))
    small = Effort(quick=True, quick_shapes=5).sample(data)
    names = shape_names(small.frame)
    assert len(set(names)) == 5
    assert np.isin(shape_names(data.frame), names).sum() == len(small)
    pd.testing.assert_frame_equal(small.frame, Effort(quick=True, quick_shapes=5).sample(data).frame)
    assert Effort().sample(data) is data


def test_sources_fixture_has_rows_in_the_paper_s_domain(sources: Sources) -> None:
    """Else the experiments' tests would leave that branch out."""
    assert len(paper_domain(sources.dataset("cudnn").frame))
