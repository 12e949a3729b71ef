"""`Predictor`: one problem, many, a table and `Bundle.predict` agree; what is excluded and why; caches and threads."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surrogate.bundle.bundle import Bundle
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.models.boosted import BoostedDims, BoostedTerms
from surrogate.models.forest import Forest
from surrogate.models.linear import LinearTerms
from surrogate.prediction.predictor import Predictor
from surrogate.prediction.shipped import load
from surrogate.prediction.selection import Selection
from tests.prediction.problems import CONV, CONVS, STRIDED, fitted, frame_of


@pytest.fixture(scope="session", params=["numpy", "xgboost", "onnx"])
def any_predictor(bundle: Bundle, request: pytest.FixtureRequest) -> Predictor:
    if request.param == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnx")
    return Predictor(bundle, gpu="v100", backend=request.param)


@settings(max_examples=12)
@given(conv=CONVS)
def test_one_problem_is_a_table_row_is_the_bundle(
    any_predictor: Predictor, bundle: Bundle, conv: Conv
) -> None:
    names = [c.name for c in any_predictor._site(conv, None).candidates]  # every algorithm of cuDNN
    frame = frame_of([conv], names)
    wanted = bundle.predict(frame)
    table = any_predictor.predict(frame)
    tolerance = 3e-5 if any_predictor.backend == "onnx" else 1e-6
    assert list(table.algorithm) == names
    for place, name in enumerate(names):
        one = any_predictor.predict(conv, name)
        for ours, column in (
            (one.time_us, "predicted_us"),
            (one.lower_us, "lower_us"),
            (one.upper_us, "upper_us"),
        ):
            assert ours == pytest.approx(wanted[column][place], rel=tolerance)
            assert table[column][place] == pytest.approx(wanted[column][place], rel=tolerance)
        assert one.in_domain == table.in_domain[place] == wanted["in_domain"][place]
        assert one.supported == table.supported[place] == wanted["supported"][place]
        assert one.workspace_bytes == table.workspace_bytes[place]


def test_numpy_is_the_bundle_exactly(predictor: Predictor, bundle: Bundle, frame: pd.DataFrame) -> None:
    found, wanted = predictor.predict(frame), bundle.predict(frame)
    np.testing.assert_array_equal(found.predicted_us, wanted["predicted_us"])
    np.testing.assert_allclose(found.upper_us, wanted["upper_us"], rtol=1e-12)
    np.testing.assert_array_equal(found.supported, wanted["supported"])
    np.testing.assert_array_equal(found.in_domain, wanted["in_domain"])


def test_real_data_and_the_bundle_agree(shared_data: Path, bundle: Bundle) -> None:
    from surrogate.dataset.store import read_dataset

    frame = read_dataset(shared_data / "cudnn_conv_per_algorithm.parquet").frame.sample(2000, random_state=0)
    refitted = fitted(bundle, frame.reset_index(drop=True), BoostedTerms(rounds=12))
    found, wanted = (
        Predictor(refitted, backend="numpy").predict(frame),
        refitted.predict(frame.reset_index(drop=True)),
    )
    np.testing.assert_allclose(found.predicted_us, wanted["predicted_us"], rtol=1e-6)
    np.testing.assert_allclose(found.lower_us, wanted["lower_us"], rtol=1e-6)
    np.testing.assert_array_equal(found.supported, wanted["supported"])
    np.testing.assert_array_equal(found.in_domain, wanted["in_domain"])


def test_other_models_are_served_too(frame: pd.DataFrame, bundle: Bundle) -> None:
    for model, backend in ((BoostedDims(rounds=10), "numpy"), (LinearTerms(), "table")):
        other = fitted(bundle, frame, model)
        served = Predictor(other, gpu="t4", backend="numpy")
        assert served.backend == backend
        assert bool(served.notes) == (backend == "table")
        wanted = other.predict(frame_of([CONV, STRIDED], ["GEMM", "FFT", "WINOGRAD"], gpu="t4"))[
            "predicted_us"
        ]
        found = [
            served.predict(conv, n).time_us for conv in (CONV, STRIDED) for n in ("GEMM", "FFT", "WINOGRAD")
        ]
        assert found == pytest.approx(list(wanted), rel=1e-6)


def test_what_the_model_does_not_know_falls_to_the_roofline(bundle: Bundle, frame: pd.DataFrame) -> None:
    served = Predictor(fitted(bundle, frame, Forest(trees=1)), gpu="v100")
    one = served.predict(CONV, "GEMM")  # no tree was grown for it
    assert one.source == "roofline" and one.upper_us / one.lower_us == pytest.approx(100.0)
    table = served.predict(frame_of([CONV], ["GEMM", "FFT"]))
    assert table.predicted_us[0] == pytest.approx(one.time_us)
    assert table.upper_us[0] == pytest.approx(one.upper_us)


@settings(max_examples=6)
@given(convs=st.lists(CONVS, min_size=1, max_size=30))
def test_many_are_one_by_one(bundle: Bundle, convs: list[Conv]) -> None:
    together = Predictor(bundle, gpu="v100", backend="numpy").select_many(
        [*convs, *convs], workspace_limit=10**6
    )
    apart = Predictor(bundle, gpu="v100", backend="numpy")
    assert len(together) == 2 * len(convs) and together[0] is together[len(convs)]
    for conv, found in zip(convs, together, strict=False):
        one = apart.select(conv, workspace_limit=10**6)
        assert found.excluded == one.excluded and found.reason == one.reason
        assert [e.candidate for e in found.estimates] == [e.candidate for e in one.estimates]
        assert [e.time_us for e in found.estimates] == pytest.approx(
            [e.time_us for e in one.estimates], rel=1e-6
        )
        assert [e.half_width for e in found.estimates] == pytest.approx([e.half_width for e in one.estimates])
        assert [e.workspace_bytes for e in found.estimates] == [e.workspace_bytes for e in one.estimates]


def test_the_best_of_a_table_is_the_selection(predictor: Predictor) -> None:
    convs = [CONV, STRIDED, CONV, Conv(n=1, c=64, h=28, k=8, r=1)]
    frame = frame_of(convs, ["x"]).drop(columns=["algorithm", "gpu", "library", "library_version"])
    for table in (frame, dict(frame.items()), frame[["n", "c", "h", "k", "r", "pad_h", "stride_h"]]):
        found = predictor.predict(table)
        for place, conv in enumerate(convs):
            best = predictor.select(conv).best
            assert best is not None
            assert found.algorithm[place] == best.algorithm
            assert found.predicted_us[place] == pytest.approx(best.time_us, rel=1e-6)
            assert found.workspace_bytes[place] == best.workspace_bytes
    sizes = frame[list(SIZE_COLUMNS)].to_records(index=False)
    np.testing.assert_array_equal(
        predictor.predict(np.asarray(sizes)).predicted_us, predictor.predict(frame).predicted_us
    )


def test_rows_keep_their_order_across_chunks(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pd.concat(
        [frame_of([CONV, STRIDED], ["FFT", "IMPLICIT_GEMM"], gpu=g) for g in ("t4", "v100", "t4")]
    )
    whole = predictor.predict(frame)
    monkeypatch.setattr("surrogate.prediction.table.CHUNK_ROWS", 5)
    np.testing.assert_array_equal(predictor.predict(frame).upper_us, whole.upper_us)
    assert list(whole.algorithm) == list(frame["algorithm"])
    assert whole.predicted_us[0] == whole.predicted_us[8] != whole.predicted_us[4]
    assert len(predictor.predict(frame[:0])) == 0


def test_answers_are_kept(predictor: Predictor) -> None:
    again = Conv(**CONV.to_dict())
    assert predictor.select(CONV) is predictor.select(again)
    assert predictor.predict(CONV, "FFT") is predictor.predict(again, "FFT")
    assert predictor.select(CONV) is not predictor.select(CONV, top=1)
    assert predictor.select(str(CONV)).estimates == predictor.select(CONV).estimates


def test_threads_share_a_predictor(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surrogate.prediction.predictor.REMEMBERED", 16)  # much forgetting
    served = Predictor(bundle, gpu="v100", backend="numpy")
    convs = [Conv(n=n, c=c, h=14, k=16, r=3, pad_h=1) for n in range(1, 9) for c in (8, 16, 24)]
    wanted = {conv: Predictor(bundle, gpu="v100", backend="numpy").select(conv).estimates for conv in convs}

    def work(seed: int) -> bool:
        order = np.random.default_rng(seed).permutation(len(convs)).tolist() * 3
        return all(served.select(convs[i]).estimates == wanted[convs[i]] for i in order)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_loading_a_folder(folder: Path, bundle: Bundle) -> None:
    found = load(folder, gpu="t4", backend="numpy")
    assert (
        found.gpu == "t4" and found.card == dict(bundle.card) and found.backend == "numpy" and not found.notes
    )
    assert found.select(CONV).estimates == Predictor(bundle, gpu="t4", backend="numpy").select(CONV).estimates
    assert "t4" in repr(found)


def test_bad_questions_are_told_in_one_line(folder: Path, predictor: Predictor) -> None:
    several = load(folder, backend="numpy")
    cases = [
        (lambda: several.select(CONV), "fitted on several GPUs: t4, v100-sxm2-16gb"),
        (lambda: several.predict({"n": [1], "c": [1], "h": [1], "k": [1], "r": [1]}), "no column `gpu`"),
        (lambda: load(folder, gpu="v1000"), "unknown"),
        (lambda: load(folder, gpu="a100"), "fits several"),
        (lambda: load("v1000"), "no bundle folder of that name"),
        (lambda: load("a100"), "fits several"),
        (lambda: load("./nowhere"), "no bundle there"),
        (lambda: load("v100", gpu="t4"), "named twice"),
        (lambda: load(folder, gpu="t4", library="cudn"), "did you mean cudnn"),
        (lambda: load(folder, gpu="t4", backend="onxx"), "did you mean onnx"),
        (lambda: predictor.predict(CONV, "WINOGRD"), "did you mean WINOGRAD"),
        (lambda: predictor.predict(frame_of([CONV], ["WINOGRD"])), "did you mean WINOGRAD"),
        (lambda: predictor.predict("n1c1h1k1r9"), "exceeds the padded input"),
        (lambda: predictor.select("n1c1"), "lacks h, k, r"),
        (lambda: predictor.select(CONV, workspace_limit=-1), "0 or more"),
        (lambda: predictor.select(CONV, top=0), "1 or more"),
        (lambda: predictor.select(replace(CONV, direction="bwd_data")), "no cudnn bwd_data algorithm"),
        (lambda: predictor.predict({"n": [1], "c": [1]}), "lacks column h, k, r"),
        (lambda: predictor.predict({"n": [1.5], "c": [1], "h": [1], "k": [1], "r": [1]}), "row 0: n is 1.5"),
        (lambda: predictor.predict({"n": [0], "c": [1], "h": [1], "k": [1], "r": [1]}), "between 1 and"),
        (lambda: predictor.predict({"n": ["x"], "c": [1], "h": [1], "k": [1], "r": [1]}), "whole numbers"),
        (lambda: predictor.predict(frame_of([CONV], ["FFT"]).assign(dtype="fp23")), "did you mean"),
        (lambda: predictor.predict(3), "an? int is no problem"),
    ]  # fmt: skip
    for ask, words in cases:
        with pytest.raises(InputError, match=words) as caught:
            ask()
        assert "\n" not in str(caught.value)


def test_selection_type_is_public() -> None:
    import surrogate

    assert surrogate.Selection is Selection
    assert {"load", "predict", "select", "Predictor"} <= set(surrogate.__all__)
