"""Which backend answers: parity with XGBoost before use, refusal with a reason, ONNX Runtime only where it agrees."""

from collections.abc import Sequence

import numpy as np
import pytest

from surrogate.bundle.bundle import Bundle
from surrogate.features.conv import Conv
from surrogate.prediction import backend as backend_module
from surrogate.prediction.backend import backend_for
from surrogate.prediction.hot import VARYING, HotSetting
from surrogate.prediction.onnx_forest import MAX_LOG_DIFFERENCE, OnnxForest, to_onnx
from surrogate.prediction.predictor import Predictor
from surrogate.prediction.scorers import FEW_ROWS, ForestScorer, worst_difference

CONV = Conv(n=8, c=16, h=14, k=16, r=3, pad_h=1)


def _hot(predictor: Predictor) -> HotSetting:
    engine = predictor._site(CONV, None).engine
    assert isinstance(engine, HotSetting)
    return engine


class _Shifted:
    """A scorer that is off by a little."""

    def __init__(self, inner: ForestScorer, by: float) -> None:
        self.inner, self.by = inner, by

    def score(self, x: np.ndarray, index: Sequence[int] | np.ndarray) -> np.ndarray:
        return self.inner.score(x, index) + np.float32(self.by)


def test_numpy_and_xgboost_agree_to_the_bit_on_the_boundaries(predictor: Predictor) -> None:
    hot = _hot(predictor)
    exact = predictor._backend._booster_scorer(hot)
    ours = ForestScorer(hot.forest)
    assert worst_difference(hot.forest, hot.template, len(VARYING), ours, exact) == 0.0
    off = worst_difference(hot.forest, hot.template, len(VARYING), _Shifted(ours, 1e-3), exact)
    assert off == pytest.approx(1e-3, rel=1e-2)


def test_onnx_agrees_on_the_boundaries_and_with_missing_values(predictor: Predictor) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    hot = _hot(predictor)
    fast = ForestScorer(OnnxForest.of(hot.forest))
    exact = predictor._backend._booster_scorer(hot)
    for seed in range(3):
        found = worst_difference(hot.forest, hot.template, len(VARYING), fast, exact, seed)
        assert found <= MAX_LOG_DIFFERENCE


def test_the_graph_is_a_valid_onnx_model(predictor: Predictor) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load_from_string(to_onnx(_hot(predictor).forest))
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == ["TreeEnsembleRegressor"]


def test_disagreement_is_noted_and_numpy_answers(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(backend_module, "_CHECKED", {})
    monkeypatch.setattr(backend_module, "worst_difference", lambda *args: 0.5)
    served = Predictor(bundle, gpu="v100", backend="onnx")
    exact = Predictor(bundle, gpu="v100", backend="numpy")
    assert served.select(CONV).estimates == exact.select(CONV).estimates
    assert len(served.notes) == 1 and "differs from XGBoost by 5.0e-01" in served.notes[0]


def test_a_forest_is_checked_once(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    calls = []
    monkeypatch.setattr(backend_module, "_CHECKED", {})
    monkeypatch.setattr(backend_module, "worst_difference", lambda *args: calls.append(1) or 0.0)
    for _ in range(2):
        Predictor(bundle, gpu="v100", backend="onnx").select(CONV)
    assert len(calls) == 1


def test_auto_is_numpy_without_the_extra(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "find_spec", lambda name: None)
    assert backend_for(bundle.model).name == "numpy"
    with pytest.raises(Exception, match=r"onnx and onnxruntime; install them by"):
        backend_for(bundle.model, "onnx")


def test_many_rows_go_past_onnx(predictor: Predictor) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    hot = _hot(predictor)
    fast = predictor._backend.__class__("onnx", predictor._backend.parts).accelerate(hot).scorer
    rows = np.repeat(hot.template[:1], FEW_ROWS + 1, axis=0)
    np.testing.assert_array_equal(fast.score(rows, [0] * len(rows)), hot.forest.predict(rows))


def test_a_model_of_several_files_is_served_by_way_of_a_table(bundle: Bundle) -> None:
    class Odd:
        name = "odd"

        def save(self) -> dict[str, bytes]:
            return {}

    found = backend_for(Odd())
    assert found.name == "table" and found.parts is None
    assert found.notes == ["odd is not a single booster; the model itself answers, by way of a table"]
