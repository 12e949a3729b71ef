"""A calibrated bundle on the hot path: the same times as by way of a table, on corrected devices and on the others."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xgboost

from surrogate.bundle.bundle import Bundle
from surrogate.bundle.calibrate import calibrate
from surrogate.bundle.training import train
from surrogate.dataset.rows import rows_of
from surrogate.dataset.store import Dataset
from surrogate.features.conv import Conv
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.models.blend import Blend
from surrogate.models.boosted import BoostedTerms
from surrogate.models.calibrated import Calibrated
from surrogate.models.columns import TERMS
from surrogate.prediction.engine import TableEngine
from surrogate.prediction.predictor import Predictor

NEW = "TITAN Xp"
NAMES = ("IMPLICIT_GEMM", "FFT")
SMALL = {"trees.rounds": 30, "trees.learning_rate": 0.2, "trees.nthread": 1, "process.inducing": 60}
Table = Callable[..., pd.DataFrame]


@pytest.fixture(scope="module")
def measured(table: Table) -> pd.DataFrame:
    """On a GPU that training did not see; WINOGRAD was not measured there."""
    return table(12, gpus=(NEW,), algorithms=("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "FFT"), seed=5)


@pytest.fixture(scope="module", params=["blend", "boosted-terms", "with trees"])
def calibrated(request: pytest.FixtureRequest, frame: pd.DataFrame, measured: pd.DataFrame) -> Bundle:
    """Calibrated for the new GPU; the last kind's correction has trees as well."""
    if request.param == "blend":
        return calibrate(train(Dataset(frame), model=Blend.name, params=SMALL), Dataset(measured))
    small: Bundle = request.getfixturevalue("bundle")
    bundle = calibrate(small, Dataset(measured))
    if request.param == "boosted-terms":
        return bundle
    model = bundle.model
    assert isinstance(model, Calibrated)
    with_trees = {name: replace(one, trees=_some_trees()) for name, one in model.corrections.items()}
    return replace(bundle, model=Calibrated.on(model, with_trees))


def _some_trees() -> xgboost.Booster:
    """On as many columns as a correction's trees read: the terms, the predicted time and the candidate's code."""
    random = np.random.default_rng(0)
    x = random.uniform(0, 20, size=(400, len(TERMS) + 2))
    data = xgboost.DMatrix(x, label=0.05 * x[:, 0] + 0.1 * x[:, -1] - 0.02 * x[:, -2], nthread=1)
    return xgboost.train({"max_depth": 4, "nthread": 1}, data, num_boost_round=10)


def _asked(frame: pd.DataFrame, gpu: str) -> pd.DataFrame:
    return frame[frame["gpu"] == gpu].assign(library_version="7.6.3").drop(columns=["time_us", "status"])


@pytest.mark.parametrize("backend", ["numpy", "onnx", "xgboost"])
@pytest.mark.parametrize("gpu", [NEW, "Tesla V100-SXM2-16GB"])
def test_a_table_is_the_bundle(
    calibrated: Bundle, frame: pd.DataFrame, measured: pd.DataFrame, gpu: str, backend: str
) -> None:
    if backend == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnx")
    served = Predictor(calibrated, gpu=gpu, backend=backend)
    assert served.backend == backend and not served.notes
    rows = _asked(measured if gpu == NEW else frame, gpu)
    expected = calibrated.predict(rows)["predicted_us"].to_numpy()
    np.testing.assert_allclose(served.predict(rows).predicted_us, expected, rtol=3e-5)


@pytest.mark.parametrize("gpu", [NEW, "Tesla T4"])
def test_one_problem_and_many_are_table_rows(calibrated: Bundle, table: Table, gpu: str) -> None:
    served = Predictor(calibrated, gpu=gpu, backend="numpy")
    rows = table(16, gpus=(gpu,), batches=(3,), seed=9).drop(columns=["time_us", "status"])
    keys = list(zip(*(rows[name] for name in (*SIZE_COLUMNS, "algorithm")), strict=True))
    expected = dict(zip(keys, calibrated.predict(rows)["predicted_us"], strict=True))
    sizes = dict.fromkeys(key[:-1] for key in keys)
    convs = [Conv(**dict(zip(SIZE_COLUMNS, one, strict=True))) for one in sizes]
    apart = [served.select(conv) for conv in convs]
    served.forget()
    for found in (apart, served.select_many(convs)):
        for conv, selection in zip(convs, found, strict=True):
            assert selection.estimates
            for one in selection.estimates:
                time_us = expected[(*conv.sizes, one.candidate.algorithm)]
                assert one.time_us == pytest.approx(time_us, rel=3e-5)


def test_only_the_measured_device_is_corrected(calibrated: Bundle, measured: pd.DataFrame) -> None:
    model = calibrated.model
    assert isinstance(model, Calibrated)
    plain = replace(calibrated, model=model.base)
    conv = Conv(n=8, c=32, h=14, k=64, r=1)
    for gpu, same in ((NEW, False), ("Tesla T4", True)):
        before, after = (
            [Predictor(one, gpu=gpu, backend="numpy").predict(conv, name).time_us for name in NAMES]
            for one in (plain, calibrated)
        )
        assert (before == after) is same


def test_calibrated_for_every_known_device_there_is_no_table(calibrated: Bundle) -> None:
    for gpu in (NEW, "Tesla T4"):
        served = Predictor(calibrated, gpu=gpu, backend="numpy")
        engine = served._site(Conv(n=8, c=32, h=14, k=64, r=1), None).engine
        assert not isinstance(engine, TableEngine)


def test_a_candidate_that_only_the_measurements_know(
    frame: pd.DataFrame, table: Table, bundle: Bundle
) -> None:
    assert bundle.model.name == BoostedTerms.name
    extended = calibrate(bundle, Dataset(table(12, gpus=(NEW,), algorithms=("IMPLICIT_GEMM", "GEMM"))))
    conv = Conv(n=8, c=32, h=14, k=64, r=1)
    setting = {"gpu": NEW, "library": "cudnn", "library_version": "7.6.3", "algorithm": "GEMM"}
    row = pd.DataFrame([{**conv.to_dict(), **setting}])
    found = Predictor(extended, gpu=NEW, backend="numpy").predict(conv, "GEMM")
    assert found.time_us == pytest.approx(float(extended.model.predict_us(rows_of(row))[0]), rel=3e-5)
