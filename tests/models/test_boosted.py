"""Boosted trees and their trend: what they learn, and how they extrapolate."""

import numpy as np
import pandas as pd
import pytest

from surrogate.dataset.problems import device_names
from surrogate.models.boosted import BoostedDims, BoostedTerms
from surrogate.models.call_cost import CallKey, call_costs, common_call_costs
from surrogate.models.json_types import from_json_types, to_json_types
from surrogate.models.times import Trend, trend_names
from tests.tables import Table, checked, every

FEW = {"rounds": 40, "learning_rate": 0.2, "max_leaves": 32}


def test_seed_changes_the_trees(table: Table) -> None:
    rows = checked(table(6))
    first, second = (BoostedTerms(**FEW, random_state=seed).fit(rows).predict(rows) for seed in (3, 4))
    assert (first != second).any()


@pytest.mark.parametrize("kind", [BoostedDims, BoostedTerms])
def test_unseen_candidates_gpus_and_libraries_get_finite_times(table: Table, kind: type[BoostedDims]) -> None:
    fitted = kind(**FEW).fit(checked(table(6)))
    new = table(2, gpus=("TITAN V", "h200"), algorithms=("GEMM", "WINOGRAD_NONFUSED"), version="9.1")
    miopen = table(2, gpus=("mi210",), algorithms=("IMPLICIT_GEMM",))
    miopen = miopen.assign(library="miopen", algorithm="Direct", status="ok")
    for frame in (new, miopen):
        predicted = fitted.predict(checked(frame))
        assert np.isfinite(predicted).all() and (predicted > 0).all()


def test_prediction_does_not_depend_on_other_rows_or_order(table: Table) -> None:
    rows = checked(table(6))
    fitted = BoostedTerms(**FEW).fit(checked(table(6, batches=(1,))))
    predicted = fitted.predict(rows)
    order = np.random.default_rng(0).permutation(len(rows))
    np.testing.assert_array_equal(fitted.predict(rows.take(order)), predicted[order])
    np.testing.assert_array_equal(fitted.predict(rows.take(np.array([5]))), predicted[[5]])
    assert len(fitted.predict(rows.take(np.array([], dtype=int)))) == 0


def test_base_time_of_operators_includes_the_call_cost() -> None:
    """Every call takes 12 µs, so the base adds 12 µs, also on a GPU without measurements."""
    frame = every(gpu=("Tesla T4", "TITAN V"), m=(64, 128, 256, 512)).assign(batch=1, n=64, k=64, time_us=12.0)
    setting = {"family": "gemm", "operator": "gemm", "dtype": "fp32", "math": "fma", "variant": ""}
    frame = frame.assign(library="cublas", library_version="1", algorithm="default", status="ok", **setting)
    fitted = BoostedTerms(**FEW).fit(checked(frame))
    assert fitted.call_us_ == {CallKey(gpu, "cublas"): 12.0 for gpu in ("t4", "titan-v", "")}
    new = checked(frame[:4].assign(gpu="h200"))
    np.testing.assert_allclose(fitted.base_us(new), new.roofline_us + 12.0)


def test_training_on_a_cluster_gives_the_same_model_as_fit(table: Table) -> None:
    """A cluster trains with `stages`, `design`, `target` and `with_booster` instead of `fit`."""
    import xgboost

    rows = checked(table(6))
    rows = rows.take(rows.ok)
    fitted = BoostedTerms(**FEW, best_weight=0.0, median_rounds=5).fit(rows)
    assert not {"rounds", "random_state", "best_weight", "median_rounds"} & set(fitted.settings())
    label, weight = fitted.target(rows, rows.time_us), fitted.weights(rows, rows.time_us)
    options = {"feature_weights": fitted.column_weights(rows.family), "max_bin": fitted.max_bin, "nthread": 1}
    data = xgboost.QuantileDMatrix(fitted.design(rows), label=label, weight=weight, **options)
    booster = None
    for settings, rounds in fitted.stages():
        booster = xgboost.train({**settings, "nthread": 1}, data, rounds, xgb_model=booster)
    rebuilt = fitted.with_booster(booster)
    np.testing.assert_allclose(rebuilt.predict(rows), fitted.predict(rows), rtol=1e-6)
    stored = BoostedTerms.from_files({}, rebuilt.to_files())
    np.testing.assert_allclose(stored.predict(rows), fitted.predict(rows), rtol=1e-6)


def test_median_rounds_reduce_the_median_error(table: Table) -> None:
    """A quarter of the times is tripled. The squared error follows them, the absolute error does not."""
    rows = checked(table(12, noise=0.0))
    rows = rows.take(rows.ok)
    slow = np.random.default_rng(0).random(len(rows)) < 0.25
    stumps = {"rounds": 20, "max_leaves": 8, "best_weight": 0.0, "learning_rate": 0.2}
    times_us = rows.time_us * np.where(slow, 3, 1)
    fits = [BoostedTerms(**stumps, **more).fit(rows, times_us) for more in ({}, {"median_rounds": 40})]
    errors = [np.median(np.abs(np.log(fitted.predict(rows) / rows.time_us))) for fitted in fits]
    assert errors[1] < 0.7 * errors[0]


def test_best_weight_reduces_errors_of_the_best_candidate(table: Table) -> None:
    """One stump cannot separate the two candidates, so its leaf lies closer to the heavier one."""
    rows = checked(table(6, algorithms=("IMPLICIT_GEMM", "FFT"), noise=0.0))
    stump = {"rounds": 1, "learning_rate": 1.0, "max_depth": 1, "max_leaves": 2, "subsample": 1.0}
    best = rows.ok & (rows.time_us == pd.Series(rows.time_us).groupby(rows.problem).transform("min").to_numpy())
    predicted = [BoostedTerms(**stump, best_weight=power).fit(rows).predict(rows) for power in (0.0, 4.0)]
    errors = [np.abs(np.log(predicted_us / rows.time_us))[best].mean() for predicted_us in predicted]
    assert errors[1] < errors[0]


@pytest.mark.parametrize("power", [1.0, 1.3])
def test_predictions_extrapolate_a_power_law(table: Table, power: float) -> None:
    """Times are a power of the roofline time. Batches of 2,048 and more lie far beyond the training range."""
    algorithms = ("IMPLICIT_GEMM",)
    rows = checked(table(24, batches=(1, 2, 4, 8, 16), algorithms=algorithms))
    fitted = BoostedTerms(rounds=60, learning_rate=0.2).fit(rows, rows.roofline_us**power)
    trend = fitted.trend_
    assert trend is not None
    names = trend_names(rows.family)
    assert not trend.extrapolation(rows.columns(names), rows.candidate, device_names(rows.frame)).any()
    small, large = (checked(table(24, batches=(n,), algorithms=algorithms)) for n in (2048, 16384))
    is_larger = small.roofline_us > rows.roofline_us.max()
    growth = fitted.predict(large) / fitted.predict(small)
    expected = (large.roofline_us / small.roofline_us) ** power
    assert is_larger.sum() >= 8
    assert np.median((growth / expected)[is_larger]) == pytest.approx(1.0, rel=0.05)


def test_trend_extrapolation_equals_the_known_answer() -> None:
    """The target is 0.5 · x + 2 · z, with ranges by candidate and GPU; an unseen group uses the next larger one."""
    random = np.random.default_rng(0)
    terms = random.uniform(0.0, 10.0, (4000, 2))
    candidates = np.array(["a", "b"] * 2000)
    gpus = np.repeat(["slow", "fast"], 2000)
    terms[(candidates == "a") & (gpus == "fast")] *= 0.5
    trend = Trend.fit(("x", "z"), terms, terms @ [0.5, 2.0], candidates, gpus)
    at = np.array([[0.0, 5.0], [20.0, 5.0], [20.0, 30.0]])

    def extrapolation(candidate: str, gpu: str) -> np.ndarray:
        return trend.extrapolation(at, np.full(3, candidate), np.full(3, gpu))

    for candidate, gpu, edge in (("a", "slow", 10), ("a", "fast", 5), ("a", "new", 10), ("new", "fast", 10)):
        expected = [0.0, 0.5 * (20 - edge), 0.5 * (20 - edge) + 2.0 * (30 - edge)]
        np.testing.assert_allclose(extrapolation(candidate, gpu), expected, atol=0.1)
    loaded = from_json_types(Trend, to_json_types(trend))
    found = loaded.extrapolation(at, np.full(3, "a"), np.full(3, "fast"))
    np.testing.assert_array_equal(found, extrapolation("a", "fast"))


def test_common_call_cost_is_the_median_over_gpus() -> None:
    """The cost is the median of each GPU's low quantile, so a slow GPU or a few rows do not move it."""
    gpus = np.repeat(["a", "b", "slow", "few"], [50, 50, 50, 3])
    time_us = np.concatenate([np.full(50, 10.0), np.full(50, 14.0), np.full(50, 90.0), np.full(3, 1.0)])
    libraries = np.full(len(gpus), "cudnn")
    assert common_call_costs(gpus, libraries, time_us) == {CallKey("", "cudnn"): 14.0}
    assert common_call_costs(gpus[-3:], libraries[-3:], time_us[-3:]) == {CallKey("", "cudnn"): 1.0}
    assert call_costs(gpus, libraries, time_us)[CallKey("slow", "cudnn")] == 90.0


def test_call_cost_of_convolutions_depends_on_the_library_alone(table: Table) -> None:
    rows = checked(table(6))
    assert set(BoostedTerms(**FEW).fit(rows).call_us_) == {CallKey("", "cudnn")}
