"""Properties that every model has, on convolutions and on operators, and known answers of each model."""

import json
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.threads import in_parallel
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.gpu import gpu
from surrogate.features.problem import SIZE_COLUMNS
from surrogate.features.roofline import roofline_us
from surrogate.features.terms import MECHANISM_TERMS
from surrogate.models import MODELS, TimeModel
from surrogate.models.baselines import AlwaysBestSingle, Forest, Mlp, Roofline
from surrogate.models.linear import LiEtAl, LinearDims, LinearTerms
from tests.known import known_answers
from tests.tables import Table, checked, every

FAST: dict[str, dict[str, Any]] = known_answers(__file__)["fast"]
CONV_ONLY = ("seer-paper", "seer-time-only", "boosted-seer", "stacked-terms")
LEARNED: dict[str, float] = known_answers(__file__)["learned"]
"""Largest median log error of each model on its training rows."""


def _model(name: str) -> TimeModel:
    return MODELS[name](**FAST.get(name, {}))


def _fitted(name: str, rows: Rows) -> TimeModel:
    """Return the fitted model; skip the test with the reason if the model cannot learn from these rows."""
    try:
        return _model(name).fit(rows)
    except InputError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def rows(table: Table) -> Rows:
    return checked(table(20, batches=(1, 4, 16)))


@pytest.fixture(scope="module")
def products() -> Rows:
    """Return times of the same matrix products in two libraries, each a power law of the sizes."""
    gpus, speed = {"t4": 2.0, "v100-sxm2-16gb": 1.0}, {"cublas": 1.0, "cutlass": 1.3}
    rows = every(gpu=gpus, library=speed, m=(16, 64, 256, 1024), n=(64, 512, 4096), k=(128, 1024))
    slow = rows["library"].map(speed) * rows["gpu"].map(gpus)
    time_us = 5 + slow * (rows["m"] * rows["n"] * rows["k"]) ** 0.9 / 1e4
    fixed = {"library_version": "1", "family": "gemm", "dtype": "fp16", "math": "default", "status": "ok"}
    return checked(rows.assign(time_us=time_us, **fixed))


@pytest.mark.parametrize("name", LEARNED)
def test_model_learns_its_training_rows(rows: Rows, name: str) -> None:
    predicted = _model(name).fit(rows).predict(rows)
    assert np.median(np.abs(np.log(predicted[rows.ok] / rows.time_us[rows.ok]))) < LEARNED[name]


@pytest.mark.parametrize("name", MODELS)
def test_refitted_model_predicts_the_same_and_input_is_unchanged(rows: Rows, name: str) -> None:
    features, frame = rows.features.copy(), rows.frame.copy(deep=True)
    model = _model(name)
    first = _fitted(name, rows).predict(rows)
    assert first.shape == (len(rows),) and np.isfinite(first[rows.ok]).all()
    np.testing.assert_array_equal(rows.features, features)
    pd.testing.assert_frame_equal(rows.frame, frame)
    again: Any = clone(model)
    np.testing.assert_array_equal(again.fit(rows).predict(rows), first)


@pytest.mark.parametrize("name", [name for name in LEARNED if name not in CONV_ONLY])
def test_model_learns_any_family(products: Rows, name: str) -> None:
    predicted = _model(name).fit(products).predict(products)
    assert np.isfinite(predicted).all() and (predicted > 0).all()
    assert np.median(np.abs(np.log(predicted / products.time_us))) < 0.4


@pytest.mark.parametrize("name", CONV_ONLY)
def test_seer_models_refuse_other_families(refused, products: Rows, name: str) -> None:
    with refused("gemm"):
        _model(name).fit(products)


def test_times_of_failed_rows_are_ignored_and_a_table_without_times_is_refused(refused, rows: Rows) -> None:
    """`TimeModel.fit` selects the rows of every model."""
    with_false_times = checked(rows.frame.assign(time_us=rows.frame["time_us"].fillna(1e9)))
    np.testing.assert_array_equal(LiEtAl().fit(with_false_times).predict(rows), LiEtAl().fit(rows).predict(rows))
    with refused("at least one row"):
        LiEtAl().fit(checked(rows.frame.assign(status="failed", time_us=np.nan)))


@pytest.mark.parametrize("name", [name for name, cls in MODELS.items() if cls.storable])
def test_loaded_model_predicts_the_same(rows: Rows, name: str) -> None:
    fitted = _fitted(name, rows)
    loaded = type(fitted).from_files(fitted.get_params(), fitted.to_files())
    np.testing.assert_array_equal(loaded.predict(rows), fitted.predict(rows))


@pytest.mark.parametrize("name", ["forest", "mlp", "li-et-al", "always-best-single", "seer-time-only"])
def test_unseen_candidate_gets_no_time(rows: Rows, name: str) -> None:
    unseen = checked(rows.frame.assign(algorithm="GEMM").drop_duplicates([*SIZE_COLUMNS, "gpu"]))
    assert np.isnan(_model(name).fit(rows).predict(unseen)).all()


# --- known answers -------------------------------------------------------------------------------------------------


def test_roofline_counts_the_work_of_each_algorithm(rows: Rows) -> None:
    frame, predicted = rows.frame, Roofline().fit(rows).predict(rows)
    assert len(frame) > 17
    for i in range(0, len(frame), 17):
        sizes: dict[str, Any] = {name: int(frame[name].iloc[i]) for name in SIZE_COLUMNS}
        mechanism = frame["algorithm"].iloc[i].lower().replace("implicit_precomp", "precomp")
        terms = MECHANISM_TERMS[mechanism](Conv(**sizes), (1.0, 1.0, 1.0))
        device = gpu(frame["gpu"].iloc[i])
        own_us = roofline_us(terms.arithmetic_flops, terms.dram_bytes, device.fp32_tflops, device.dram_gbs)
        assert predicted[i] == pytest.approx(own_us, rel=1e-5)  # the ratio is stored as float32


def _ranked(table: Table, times: list[list[float]], gpu_name: str = "Tesla T4") -> Rows:
    """Return one problem per list of times; NaN marks an algorithm that did not run."""
    names = ("IMPLICIT_GEMM", "FFT", "WINOGRAD")
    frame = table(len(times), batches=(1,), gpus=(gpu_name,), algorithms=names)
    flat = np.array(times).ravel()
    return checked(frame.assign(time_us=flat, status=np.where(np.isnan(flat), "not_supported", "ok")))


def test_always_best_single_costs_equal_the_hand_calculation(table: Table) -> None:
    # Slowdowns are 1, 4, 2 and 1, 1, 1: Winograd did not run in the second problem, so it gets the slowest's slowdown.
    rows = _ranked(table, [[10, 40, 20], [30, 30, np.nan]])
    cost = AlwaysBestSingle().fit(rows).predict(rows)
    assert cost[:3] == pytest.approx([0, np.log(4) / 2, np.log(2) / 2])
    # Winograd is best in the first problem; in the others it did not run and counts as the slowest.
    rows = _ranked(table, [[10, 40, 9], [10, 40, np.nan], [10, 40, np.nan]])
    expected = [np.log(10 / 9) / 3, (np.log(40 / 9) + 2 * np.log(4)) / 3, 2 * np.log(4) / 3]
    assert AlwaysBestSingle().fit(rows).predict(rows)[:3] == pytest.approx(expected)


def test_average_rank_is_per_gpu_and_overall_for_a_new_gpu(table: Table) -> None:
    t4, xp = _ranked(table, [[10, 20, 40]]), _ranked(table, [[40, 20, 10]], "TITAN Xp")
    model = AlwaysBestSingle().fit(rows_of(pd.concat([t4.frame, xp.frame], ignore_index=True)))
    assert np.argsort(model.predict(t4)).tolist() == [0, 1, 2]
    assert np.argsort(model.predict(xp)).tolist() == [2, 1, 0]
    new = model.predict(_ranked(table, [[1, 1, 1]], "TITAN V"))
    assert new == pytest.approx([np.log(4) / 2, np.log(2), np.log(4) / 2])


@pytest.fixture(scope="module")
def power_law(table: Table) -> Rows:
    """Return times that are a power law of the sizes for each algorithm: linear in the logarithms."""
    frame = table(16, batches=(1, 2, 8, 32))
    power = frame["algorithm"].map({"IMPLICIT_GEMM": 1.0, "IMPLICIT_PRECOMP_GEMM": 0.8, "FFT": 0.5, "WINOGRAD": 0.9})
    time_us = 3.0 * frame["n"] ** power * frame["c"] ** 0.7 * np.where(frame["gpu"] == "Tesla T4", 2.0, 1.0)
    return checked(frame.assign(time_us=time_us.where(frame["status"] == "ok")))


@pytest.mark.parametrize("kind", [LinearDims, LinearTerms])
def test_ridge_recovers_a_power_law_and_shrinks_to_the_mean(power_law: Rows, kind: type[LinearDims]) -> None:
    rows = power_law
    predicted = kind(alpha=1e-6).fit(rows).predict(rows)
    np.testing.assert_allclose(predicted[rows.ok], rows.time_us[rows.ok], rtol=1e-3)
    regularised = kind(alpha=1e12).fit(rows).predict(rows)
    for name in np.unique(rows.candidate):
        of_candidate = rows.candidate == name
        mean = np.exp(np.log(rows.time_us[of_candidate & rows.ok]).mean())
        np.testing.assert_allclose(regularised[of_candidate], mean, rtol=1e-5)
    unseen = kind().fit(rows.take(rows.candidate != "cudnn|fwd|FFT")).predict(rows)
    assert np.isfinite(unseen).all() and (unseen > 0).all()


def test_li_et_al_recovers_times_linear_in_flops(table: Table) -> None:
    """The synthetic times are a launch time plus FLOPs times a factor of the GPU and algorithm."""
    rows = checked(table(24, batches=(1, 8), noise=0.0))
    ungrouped = rows.take((rows.stratum != "grouped") & rows.ok)
    np.testing.assert_allclose(LiEtAl().fit(ungrouped).predict(ungrouped), ungrouped.time_us, rtol=1e-4)


def test_li_et_al_scales_a_new_gpu_by_its_peak(table: Table) -> None:
    """The V100's peak is 14.1–15.7 TFLOP/s, the T4's 8.1; efficiencies learned on the T4 are kept."""
    options: dict[str, Any] = {"batches": (64,), "algorithms": ("IMPLICIT_GEMM",), "noise": 0.0}
    on_t4 = checked(table(40, gpus=("Tesla T4",), **options))
    on_v100 = checked(table(40, gpus=("Tesla V100-SXM2-16GB",), **options))
    fitted = LiEtAl().fit(on_t4)
    speedup = fitted.predict(on_t4) / fitted.predict(on_v100)
    assert 1.6 < speedup[np.argmax(on_t4.time_us)] < 2.1


def test_forest_stays_within_measured_times_and_mlp_stays_finite(rows: Rows) -> None:
    extrapolated = checked(rows.frame.assign(n=4096))
    predicted = Forest(trees=8).fit(rows).predict(extrapolated)
    assert np.nanmin(rows.time_us) <= predicted.min() and predicted.max() <= np.nanmax(rows.time_us)
    huge_batch = Mlp(**FAST["mlp"]).fit(rows).predict(checked(rows.frame.assign(n=10**6)))
    assert np.isfinite(huge_batch).all()


def test_forests_in_threads_keep_the_warning_filters(products: Rows) -> None:
    """scikit-learn empties and restores the filters of the process at every tree."""
    before = list(warnings.filters)
    in_parallel(lambda seed, _: Forest(trees=20, random_state=seed).fit(products).predict(products), range(8), 2)
    assert list(warnings.filters) == before


def test_linear_model_clips_its_minor_components_to_the_training_range(table: Table) -> None:
    """Permuting each column independently leaves values in range but breaks their correlations.

    The largest components (the sizes) are not clipped."""
    rows = checked(table(24))
    rows = rows.take(rows.ok)
    fitted = LinearTerms(alpha=1e-3).fit(rows)
    np.testing.assert_allclose(fitted.predict(rows), _unclipped(fitted).predict(rows), rtol=1e-6)
    random = np.random.default_rng(0)
    permuted = np.column_stack([random.permutation(column) for column in rows.features.T])
    inconsistent = replace(rows, features=permuted)
    ratio = np.abs(np.log(fitted.predict(inconsistent) / rows.time_us))
    assert ratio.max() < np.abs(np.log(_unclipped(fitted).predict(inconsistent) / rows.time_us)).max()


def _unclipped(model: LinearTerms) -> LinearTerms:
    """Return the model without its ranges, as bundles of version 0.3.0 stored it."""
    fits = {name: {key: fit[key] for key in ("weights", "intercept")} for name, fit in model.fits_.items()}
    return LinearTerms.from_files(model.get_params(), {"coefficients.json": json.dumps(fits).encode()})
