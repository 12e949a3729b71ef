"""Tests of `Predictor`: single problems, lists and tables agree for every family; caches, threads and errors."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from surrogate.bundle.bundle import Bundle
from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import rows_of
from surrogate.features.algorithms import algorithms
from surrogate.features.conv import Conv
from surrogate.features.families import operator
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.models.baselines import Forest
from surrogate.models.boosted import BoostedDims
from surrogate.models.calibrated import Calibrated, fit_correction
from surrogate.models.linear import LinearTerms
from surrogate.prediction.predictor import Predictor
from surrogate.prediction.shipped import load
from surrogate.uncertainty.domain import shape_hash
from tests.known import cases
from tests.prediction.conftest import GPUS, bundle_of
from tests.prediction.problems import CONV, CONVS, STRIDED, by_models, frame_of

ALGORITHMS = tuple(algorithm.name for algorithm in algorithms("cudnn"))


def agree(predictor: Predictor, bundle: Bundle, frame: pd.DataFrame) -> None:
    """Assert that the predictor's table equals the table of the bundle's models. Rooflines may raise lower ends."""
    table, expected = predictor.predict(frame), by_models(bundle, frame)
    assert len(table.supported) == len(frame) > 0
    for name in ("predicted_us", "upper_us"):
        np.testing.assert_allclose(table[name], expected[name], rtol=1e-6)
    assert np.all(table["lower_us"] >= expected["lower_us"] * (1 - 1e-6))
    assert np.all(table["lower_us"] <= table["predicted_us"])
    np.testing.assert_array_equal(table.supported, expected["supported"])


@settings(max_examples=8)
@given(conv=CONVS.filter(lambda conv: (conv.dtype, conv.math) != ("fp16", "tensor_op")))
def test_a_single_problem_and_a_table_row_equal_the_models(predictor: Predictor, bundle: Bundle, conv: Conv) -> None:
    """Tensor cores that no GPU of the bundle was measured with take times from the datasheet, not from the models."""
    frame = frame_of([conv], ALGORITHMS)
    expected, table = by_models(bundle, frame), predictor.predict(frame)
    assert list(table.algorithm) == list(ALGORITHMS)
    for place, name in enumerate(ALGORITHMS):
        single = predictor.predict(conv, name)
        for column, attribute in (("predicted_us", "time_us"), ("upper_us", "upper_us")):
            assert getattr(single, attribute) == pytest.approx(expected[column][place], rel=1e-6)
            assert table[column][place] == pytest.approx(expected[column][place], rel=1e-6)
        assert expected["lower_us"][place] * (1 - 1e-6) <= single.lower_us <= single.time_us
        assert table["lower_us"][place] == pytest.approx(single.lower_us, rel=1e-6)
        assert single.in_domain == table.in_domain[place]
        assert single.supported == table.supported[place] == expected["supported"][place]
        assert single.workspace_bytes == table.workspace_bytes[place]


def test_tables_of_training_rows_equal_the_models(bundle, many_families, frame, operators) -> None:
    agree(Predictor(bundle), bundle, frame.assign(family="conv"))
    agree(Predictor(many_families), many_families, operators)


@pytest.mark.slow
def test_large_tables_scored_by_xgboost_equal_the_models(bundle: Bundle, frame: pd.DataFrame) -> None:
    long = pd.concat([frame.assign(family="conv", n=n) for n in range(1, 60)], ignore_index=True)
    assert len(long) > 8_192
    agree(Predictor(bundle), bundle, long)


def test_predictions_of_measured_data_equal_the_models(measurements: Path) -> None:
    from surrogate.dataset.store import read_dataset

    frame = read_dataset(measurements / "cudnn_conv_per_algorithm.parquet").frame.sample(800, random_state=0)
    frame = frame[frame["gpu"] != "GRID K520"]  # estimated workspaces may exceed its 4 GiB
    fitted = bundle_of(frame)
    agree(Predictor(fitted), fitted, frame.reset_index(drop=True))


@pytest.mark.parametrize("model", [BoostedDims(rounds=10), LinearTerms()], ids=lambda model: model.name)
def test_other_models_can_be_served(frame: pd.DataFrame, model: BoostedDims) -> None:
    bundle = bundle_of(frame, model)
    served = Predictor(bundle, gpu="t4")
    names = ["IMPLICIT_GEMM", "FFT", "WINOGRAD"]
    expected = by_models(bundle, frame_of([CONV, STRIDED], names, gpu="t4"))["predicted_us"]
    times = [served.predict(conv, name).time_us for conv in (CONV, STRIDED) for name in names]
    assert times == pytest.approx(list(expected), rel=1e-6)


def test_the_roofline_answers_for_an_algorithm_that_the_model_lacks(frame: pd.DataFrame) -> None:
    served = Predictor(bundle_of(frame, Forest(trees=1)), gpu="v100")
    single = served.predict(CONV, "GEMM")  # no tree was trained for it
    assert single.source == "roofline" and single.upper_us / single.time_us == pytest.approx(10.0)
    table = served.predict(frame_of([CONV], ["GEMM", "FFT"]))
    assert table.predicted_us[0] == pytest.approx(single.time_us)
    assert table.upper_us[0] == pytest.approx(single.upper_us)


@settings(max_examples=6)
@given(convs=st.lists(CONVS, min_size=1, max_size=30))
def test_selections_of_a_list_equal_single_selections(bundle: Bundle, convs: list[Conv]) -> None:
    together = Predictor(bundle, gpu="v100").select([*convs, *convs], workspace_limit=10**6)
    predictor = Predictor(bundle, gpu="v100")
    assert len(together) == 2 * len(convs) and together[0] is together[len(convs)]
    for conv, selection in zip(convs, together, strict=False):
        single = predictor.select(conv, workspace_limit=10**6)
        assert selection.excluded == single.excluded and selection.reason == single.reason
        assert [e.candidate for e in selection.estimates] == [e.candidate for e in single.estimates]
        for name in ("time_us", "half_width", "workspace_bytes"):
            values, expected = ([getattr(e, name) for e in s.estimates] for s in (selection, single))
            assert values == pytest.approx(expected, rel=1e-6)


def test_rows_frames_and_paths_are_accepted_as_tables(bundle: Bundle, tmp_path: Path) -> None:
    served, rows = Predictor(bundle, gpu="v100"), [{"n": n, "c": 16, "h": 14, "k": 16, "r": 3} for n in (1, 8)]
    pd.DataFrame(rows).to_csv(tmp_path / "rows.csv")
    times = list(served.predict(rows).time_us)
    for table in (rows, pd.DataFrame(rows), tmp_path / "rows.csv"):
        assert list(served.predict(table).time_us) == [pick.time_us for pick in served.select(table)] == times
    assert len(served.predict(rows[0])) == 1


def test_libraries_compete_unless_one_is_named(many_families: Bundle) -> None:
    served, problem = Predictor(many_families, gpu="v100"), "gemm:m512n512k256"
    both = served.select(problem)
    assert {candidate.library for candidate in both.candidates} == {"cublas", "torch"}
    assert both.best.library == "cublas"
    assert sum(candidate.probability_best for candidate in both.candidates) == pytest.approx(1.0)
    assert "library" in repr(both).splitlines()[1]
    alone = served.select(problem, library="torch")
    assert [candidate.library for candidate in alone.candidates] == ["torch"]
    assert Predictor(many_families, gpu="v100", library="torch").predict(problem).library == "torch"
    rows = [{"family": "gemm", "operator": "gemm", "m": 512, "n": 512, "k": 256}]
    rows.append({"family": "conv", "n": 8, "k": 16, "c": 16, "h": 14, "r": 3, "pad_h": 1})
    table = served.predict(pd.DataFrame(rows))
    assert list(table.library) == ["cublas", "cudnn"]
    assert table.predicted_us[0] == pytest.approx(both.best.time_us)
    assert table.predicted_us[1] == pytest.approx(served.select(CONV).time_us)


def test_kernel_times_exclude_the_launch_and_use_fallback_operators(many_families: Bundle) -> None:
    served = Predictor(many_families, gpu="v100")
    sizes = {"n": 8, "c": 64, "h": 512, "w": 56}
    relu, silu = operator("relu", **sizes), operator("silu", **sizes)
    softmax = operator("softmax", n=8, c=1000)
    measured, fallback, unknown, again = served.kernel_times([relu, silu, softmax, relu])
    assert measured is again and measured.in_domain
    assert (measured.library, measured.source) == ("torch", "model")
    assert measured.call_us == pytest.approx(served.select(relu).time_us)
    assert measured.time_us == pytest.approx(measured.call_us - 6.0)  # the launch
    assert measured.lower_us < measured.time_us < measured.upper_us
    assert fallback.time_us == measured.time_us  # silu moves as many bytes as relu
    assert not fallback.in_domain and fallback.problem == silu
    assert unknown.source == "roofline" and unknown.lower_us < unknown.time_us < unknown.upper_us
    conv = served.kernel_times([CONV])[0]  # no call cost in its times
    assert conv.time_us == conv.call_us == pytest.approx(served.select(CONV).time_us)


def test_rows_keep_their_order_across_chunks(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = Predictor(bundle)
    frame = pd.concat([frame_of([CONV, STRIDED], ["FFT", "IMPLICIT_GEMM"], gpu=g) for g in ("t4", "v100", "t4")])
    single_chunk = predictor.predict(frame)
    monkeypatch.setattr("surrogate.prediction.table.CHUNK_ROWS", 5)
    monkeypatch.setattr("surrogate.prediction.table.threads_for", lambda rows: 3)
    np.testing.assert_array_equal(predictor.predict(frame).upper_us, single_chunk.upper_us)
    assert list(single_chunk.algorithm) == list(frame["algorithm"])
    assert single_chunk.predicted_us[0] == single_chunk.predicted_us[8] != single_chunk.predicted_us[4]
    assert len(predictor.predict(frame[:0])) == 0


def test_a_measured_shape_is_in_domain_whatever_the_distances(bundle: Bundle, frame: pd.DataFrame) -> None:
    """A reach of -1 puts every other shape out of domain; the batch does not matter."""
    part = bundle.family_models["conv"]
    nothing_near = {key: replace(near, reach=-1.0) for key, near in part.domain.references.items()}
    narrow = replace(part, domain=replace(part.domain, references=nothing_near))
    predictor = Predictor(replace(bundle, family_models={"conv": narrow}), gpu="v100")
    sizes = frame.loc[frame["algorithm"] == "IMPLICIT_GEMM", list(SIZE_COLUMNS)].drop_duplicates().sort_values("k")
    measured = [Conv(**row) for row in sizes.to_dict("records")]
    convs = [conv for old in measured for conv in (old, replace(old, n=2), replace(old, k=old.k + old.groups))][:-1]
    answers = predictor.predict(frame_of(convs, ["IMPLICIT_GEMM"]))
    assert answers.in_domain.tolist() == [predictor.predict(conv, "IMPLICIT_GEMM").in_domain for conv in convs]
    has_shape = [shape_hash(part.family, conv.sizes) in part.domain.shapes for conv in convs]
    assert {True, False} <= set(has_shape) and set(answers.in_domain[np.array(has_shape)]) == {True}
    assert not answers.in_domain[~np.array(has_shape)].any()


def test_equal_questions_get_the_cached_answer(predictor: Predictor) -> None:
    again = Conv(**CONV.to_dict())
    assert predictor.select(CONV) is predictor.select(again)
    assert predictor.predict(CONV, "FFT") is predictor.predict(again, "FFT")
    assert predictor.select(CONV) is not predictor.select(CONV, top=1)
    assert predictor.select(str(CONV)).estimates == predictor.select(CONV).estimates
    assert predictor.predict([CONV, str(CONV)])[1].time_us == predictor.predict(CONV).time_us


def test_threads_share_a_predictor(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surrogate.prediction.predictor.MAX_ESTIMATES", 100)  # answers are dropped often
    served = Predictor(bundle, gpu="v100")
    convs = [Conv(n=n, c=c, h=14, k=16, r=3, pad_h=1) for n in range(1, 9) for c in (8, 16, 24)]
    expected = {conv: Predictor(bundle, gpu="v100").select(conv).estimates for conv in convs}

    def work(seed: int) -> bool:
        order = np.random.default_rng(seed).permutation(len(convs)).tolist() * 3
        return all(served.select(convs[i]).estimates == expected[convs[i]] for i in order)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


@cases(__file__)
def test_invalid_questions_are_refused_in_one_line(refused, predictor, call, query, options, word) -> None:
    """A query is a text, a table, or options of `frame_of` with further columns."""
    if isinstance(query, dict) and "algorithms" in query:
        frame = frame_of([CONV], query["algorithms"], **query.get("options", {}))
        query = frame.assign(**query.get("columns", {}))
    with refused(word):
        getattr(predictor, call)(query, **options)


@cases(__file__)
def test_bundles_that_do_not_fit_are_refused_in_one_line(refused, folder, name, options, word) -> None:
    with refused(word):
        load(name or folder, **options).predict({"n": [1], "c": [1], "h": [1], "k": [1], "r": [1]})


def test_a_calibrated_bundle_answers_as_its_model(bundle: Bundle, frame: pd.DataFrame) -> None:
    part = bundle.family_models["conv"]
    rows = rows_of(normalise(frame[(frame["gpu"] == GPUS[0]) & (frame["status"] == "ok")][::3], "test"))
    correction, *_ = fit_correction(rows, 1.3 * part.model.predict(rows))
    model = Calibrated(part.model, {"v100-sxm2-16gb": correction})
    served = Predictor(replace(bundle, family_models={"conv": replace(part, fitted=model)}))
    predicted = served.predict(rows.frame).predicted_us
    np.testing.assert_allclose(predicted, model.predict(rows), rtol=1e-9)
    assert not np.allclose(predicted, part.model.predict(rows), rtol=0.01)
    first = rows.frame.iloc[0]
    conv = Conv(**{name: int(first[name]) for name in SIZE_COLUMNS})
    single = Predictor(served.bundle, gpu="v100").predict(
        conv, first["algorithm"], library_version=first["library_version"]
    )
    assert single.time_us == pytest.approx(predicted[0], rel=1e-9)
