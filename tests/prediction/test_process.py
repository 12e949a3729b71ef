"""A Gaussian process on the hot path: the same times as the model's own, one problem or many, known GPU or not."""

import numpy as np
import pandas as pd
import pytest

from surrogate.bundle.bundle import Bundle
from surrogate.bundle.training import train
from surrogate.dataset.store import Dataset
from surrogate.features.conv import Conv
from surrogate.models.blend import Blend
from surrogate.models.gaussian import GaussianTerms
from surrogate.prediction.predictor import Predictor

SMALL = {"trees.rounds": 30, "trees.learning_rate": 0.2, "trees.nthread": 1, "process.inducing": 60}


@pytest.fixture(scope="module")
def blended(frame: pd.DataFrame) -> Bundle:
    """A blend of few trees and few points."""
    return train(Dataset(frame), model=Blend.name, params=SMALL)


@pytest.mark.parametrize("backend", ["numpy", "xgboost"])
def test_one_problem_is_a_table_row(blended: Bundle, frame: pd.DataFrame, backend: str) -> None:
    served = Predictor(blended, gpu="v100", backend=backend)
    assert served.bundle is blended
    rows = frame[frame["gpu"].str.contains("V100") & (frame["library_version"] == "7.6.3")]
    expected = blended.predict(rows)["predicted_us"].to_numpy()
    sizes = [name for name in rows.columns if name in Conv.__dataclass_fields__]
    for (_, row), time_us in zip(rows.iloc[::7].iterrows(), expected[::7], strict=True):
        conv = Conv(**{name: row[name] for name in sizes})
        found = served.predict(conv, row["algorithm"])
        assert found.time_us == pytest.approx(time_us, rel=3e-5)


def test_a_table_is_the_bundle(blended: Bundle, frame: pd.DataFrame) -> None:
    served = Predictor(blended, gpu="t4", backend="numpy")
    rows = frame[frame["gpu"].str.contains("T4")]
    found = served.predict(rows.drop(columns=["time_us", "status"])).to_frame()["predicted_us"].to_numpy()
    np.testing.assert_allclose(found, blended.predict(rows)["predicted_us"], rtol=3e-5)  # single precision


def test_an_unseen_gpu_is_left_to_the_trees(blended: Bundle, frame: pd.DataFrame) -> None:
    served = Predictor(blended, gpu="p100-sxm2-16gb", backend="numpy")
    row = (
        frame[frame["gpu"].str.contains("V100")]
        .iloc[[0]]
        .assign(gpu="p100-sxm2-16gb", library_version="7.6.3")
    )
    conv = Conv(**{name: row[name].iloc[0] for name in row if name in Conv.__dataclass_fields__})
    found = served.predict(conv, row["algorithm"].iloc[0])
    assert found.source == "spec"
    assert found.time_us == pytest.approx(float(blended.predict(row)["predicted_us"].iloc[0]), rel=3e-5)


def test_the_process_is_part_of_the_answer(blended: Bundle, frame: pd.DataFrame) -> None:
    model = blended.model
    assert isinstance(model, Blend) and isinstance(model.process, GaussianTerms)
    trees = Bundle(model.trees, blended.support, blended.widths, blended.domain)
    conv = Conv(n=4, c=64, h=28, k=64, r=3, pad_h=1)
    mixed = Predictor(blended, gpu="v100", backend="numpy").predict(conv, "IMPLICIT_GEMM").time_us
    alone = Predictor(trees, gpu="v100", backend="numpy").predict(conv, "IMPLICIT_GEMM").time_us
    assert mixed != pytest.approx(alone, rel=1e-3)


@pytest.mark.parametrize("wanted", [[0, 1, 2, 3], [2], [3, 0, 2]])
def test_any_set_of_candidates_is_each_by_itself(blended: Bundle, wanted: list[int]) -> None:
    served = Predictor(blended, gpu="v100", backend="numpy")
    conv = Conv(n=4, c=64, h=28, k=64, r=3, pad_h=1)
    hot = served._site(conv, None).engine
    together, workspace = hot.one(conv, wanted)
    apart = [hot.one(conv, [place]) for place in wanted]
    assert together == pytest.approx([times[0] for times, _ in apart], rel=3e-5)
    assert workspace == [own[0] for _, own in apart]
