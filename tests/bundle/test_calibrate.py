"""Tests of calibration: known corrections are found, intervals cover, other GPUs and saved bundles do not change."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from scipy.linalg import cho_solve

from surrogate.bundle.bundle import Bundle, load, save
from surrogate.bundle.train import train
from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import Rows, rows_of
from surrogate.dataset.store import Dataset, read_dataset
from surrogate.models import MODELS
from surrogate.models.calibrated import PRIORS, _factor, fit_correction
from surrogate.models.times import Correction, CorrectionInputs, correction_columns, covariance
from surrogate.prediction.evaluate import calibrate
from tests.prediction.problems import predicted
from tests.tables import checked

NEW = "Tesla V100-SXM2-16GB"
MEDIANS = {name: median for name, (median, _) in PRIORS.items()}
Table = Callable[..., pd.DataFrame]


@pytest.fixture(scope="module")
def bundle(table: Table) -> Bundle:
    """Return a bundle fitted on two GPUs."""
    return train(table(16, noise=0.02), model="linear-terms")


def on_new_gpu(table: Table, bundle: Bundle, shapes: int = 16, noise: float = 0.02) -> Dataset:
    """Return times on a third GPU: the bundle's predictions, times a factor per algorithm and one per size."""
    frame = normalise(table(shapes, gpus=(NEW,), seed=3), "test")
    times_us = bundle.family_models["conv"].model.predict(rows_of(frame))
    factor = frame["algorithm"].map({"IMPLICIT_GEMM": 0.5, "IMPLICIT_PRECOMP_GEMM": 0.7, "FFT": 0.6, "WINOGRAD": 0.4})
    trend = (frame["c"].to_numpy() / 32.0) ** 0.2
    random = np.random.default_rng(1).normal(size=len(frame))
    times = times_us * factor * trend * np.exp(noise * random)
    return Dataset(frame.assign(time_us=times.where(frame["status"] == "ok")))


def median_error(bundle: Bundle, data: Dataset) -> float:
    frame = data.frame[data.frame["status"] == "ok"]
    return float(np.median(np.abs(predicted(bundle, frame)["predicted_us"] / frame["time_us"] - 1)))


def split(data: Dataset, share: float = 0.5) -> tuple[Dataset, Dataset]:
    """Split data by shape into measured and held-out rows: every other channel count is measured."""
    channels = sorted(data.frame["c"].unique())
    inside = data.frame["c"].isin(channels[:: round(1 / share)])
    return data.with_frame(data.frame[inside]), data.with_frame(data.frame[~inside])


def test_a_known_correction_is_found_on_held_out_shapes(table: Table, bundle: Bundle) -> None:
    """The data differ by a factor per algorithm and a trend over the size."""
    measured, evaluated = split(on_new_gpu(table, bundle))
    calibrated = calibrate(bundle, measured)
    assert median_error(bundle, evaluated) > 0.3
    assert median_error(calibrated, evaluated) < 0.07
    card = next(iter(calibrated.card["calibration"].values()))
    assert card["median_ape_before"] > 0.3 > 0.1 > card["median_ape_held_out"]
    assert card["problems"] == len(measured.frame.drop_duplicates(["n", "c", "h", "k", "r", "groups", "stride_h"]))


def test_intervals_are_refitted_and_cover_held_out_times(table: Table, bundle: Bundle) -> None:
    measured, evaluated = split(on_new_gpu(table, bundle, shapes=24))
    frame = evaluated.frame[evaluated.frame["status"] == "ok"]

    before, after = predicted(bundle, frame), predicted(calibrate(bundle, measured), frame)
    inside = (after["lower_us"] <= frame["time_us"]) & (frame["time_us"] <= after["upper_us"])
    assert inside.mean() > 0.8
    ratio = np.log(after["upper_us"] / after["lower_us"]) / np.log(before["upper_us"] / before["lower_us"])
    assert ratio.median() < 0.7  # uncorrected errors are larger


def test_other_gpus_do_not_change_and_the_new_one_is_in_domain(table: Table, bundle: Bundle) -> None:
    calibrated = calibrate(bundle, on_new_gpu(table, bundle))
    old = table(6)
    pd.testing.assert_frame_equal(predicted(calibrated, old), predicted(bundle, old))
    new = table(6, gpus=(NEW,))
    ran = (new["status"] == "ok").to_numpy()
    assert not predicted(bundle, new)["in_domain"].any()
    assert predicted(calibrated, new)["in_domain"][ran].mean() > 0.9


@pytest.mark.slow
def test_a_calibrated_bundle_is_saved_and_loaded(table: Table, bundle: Bundle, tmp_path) -> None:
    """Its files are JSON and arrays only."""
    data = on_new_gpu(table, bundle, shapes=60)
    calibrated = calibrate(bundle, data)
    assert next(iter(calibrated.card["calibration"].values()))["problems"] >= 100
    save(calibrated, tmp_path / "b")
    again = load(tmp_path / "b")
    pd.testing.assert_frame_equal(predicted(again, data.frame), predicted(calibrated, data.frame))
    assert {p.suffix for p in (tmp_path / "b").rglob("*") if p.is_file()} <= {".json", ".ubj"}
    assert again.card["calibration"] == calibrated.card["calibration"]


def test_a_second_calibration_adds_a_gpu_or_replaces_its_correction(table: Table, bundle: Bundle) -> None:
    first = calibrate(bundle, on_new_gpu(table, bundle))
    both = calibrate(first, table(16, gpus=("Tesla P100-SXM2-16GB",), seed=5))
    assert len(both.card["calibration"]) == 2
    new = table(6, gpus=(NEW,))
    np.testing.assert_array_equal(predicted(both, new)["predicted_us"], predicted(first, new)["predicted_us"])
    doubled = on_new_gpu(table, bundle)
    doubled = doubled.with_frame(doubled.frame.assign(time_us=doubled.frame["time_us"] * 2))
    assert median_error(calibrate(first, doubled), doubled) < 0.1  # not on top of the first


def test_the_order_of_rows_does_not_matter(table: Table, bundle: Bundle) -> None:
    data = on_new_gpu(table, bundle, shapes=8)
    shuffled = data.with_frame(data.frame.sample(frac=1, random_state=0))
    once, twice = (predicted(calibrate(bundle, data), data.frame), predicted(calibrate(bundle, shuffled), data.frame))
    np.testing.assert_allclose(once["predicted_us"], twice["predicted_us"], rtol=1e-3)


def test_unsuitable_calibration_data_is_refused(refused, table: Table, bundle: Bundle) -> None:
    """The data have too few problems, one shape, or a library that the bundle lacks."""
    with refused("has 8 measured problems, calibration needs at least 10", "--sample 10"):
        calibrate(bundle, on_new_gpu(table, bundle, shapes=4))
    one_shape = table(1, gpus=(NEW,), batches=range(1, 13))
    with refused("one shape"):
        calibrate(bundle, one_shape)
    with refused("measured with reference"):
        calibrate(bundle, table(16, gpus=(NEW,)).assign(library="reference"))
    assert "calibrated" not in MODELS  # `compare` could not fit it


def test_an_algorithm_refused_by_the_new_gpu_is_unsupported_there_alone(table: Table, bundle: Bundle) -> None:
    data = on_new_gpu(table, bundle)
    refused = data.frame["algorithm"] == "WINOGRAD"
    frame = data.frame.assign(
        status=data.frame["status"].where(~refused, "not_supported"), time_us=data.frame["time_us"].where(~refused)
    )
    calibrated = calibrate(bundle, data.with_frame(frame))
    assert not predicted(calibrated, frame)["supported"][refused].any()
    old = table(16)
    assert predicted(calibrated, old)["supported"].equals(predicted(bundle, old)["supported"])


def conditioned(inputs: CorrectionInputs, target: np.ndarray, scales: dict[str, float]) -> Correction:
    return Correction(
        scales, inputs, cho_solve(_factor(scales, inputs), target), (1.0,) * (inputs.terms.shape[1] - 1), {}
    )


def log_factors(correction: Correction, inputs: CorrectionInputs) -> np.ndarray:
    return covariance(correction.scales, inputs, correction.inputs) @ correction.weights


def test_a_correction_equals_scikit_learns_gaussian_process() -> None:
    """The covariance is the same: one mechanism, one candidate, no linear part."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    random = np.random.default_rng(0)
    x, y, new = random.normal(size=(20, 3)), random.normal(size=20), random.normal(size=(7, 3))
    scales = {**dict.fromkeys(PRIORS, 0.0), "common": 0.3, "smooth": 0.5, "length": 1.2, "noise": 0.2}
    kernel = ConstantKernel(0.09) + ConstantKernel(0.25) * RBF(1.2)
    process = GaussianProcessRegressor(kernel, alpha=0.04 + 1e-10, optimizer=None).fit(x, y)
    np.testing.assert_allclose(log_factors(conditioned(same(x), y, scales), same(new)), process.predict(new), rtol=1e-6)


def test_a_correction_shrinks_far_from_measurements() -> None:
    """The smooth part decays with the distance; the common part does not."""
    near, far = invented(20, 0), invented(5, 1)
    correction = conditioned(near, np.full(20, 0.8), {**MEDIANS, "linear": 0.0})
    away = CorrectionInputs(far.terms + 100.0, far.mechanism + 50, far.candidate + 50)
    assert (np.abs(log_factors(correction, away)) < np.abs(log_factors(correction, near)).min()).all()


def invented(count: int, seed: int) -> CorrectionInputs:
    random = np.random.default_rng(seed)
    mechanism = random.integers(0, 3, count)
    return CorrectionInputs(random.normal(size=(count, 4)), mechanism, 2 * mechanism + random.integers(0, 2, count))


def same(terms: np.ndarray) -> CorrectionInputs:
    zeros = np.zeros(len(terms), dtype=int)
    return CorrectionInputs(terms, zeros, zeros)


def test_training_rows_do_not_change_the_interval_widths(table: Table, bundle: Bundle) -> None:
    """Their errors are not held-out errors."""
    again = calibrate(bundle, table(16, noise=0.02).query("gpu == 'Tesla T4'"))
    assert again.family_models["conv"].widths == bundle.family_models["conv"].widths
    for row in again.card["calibration"].values():
        assert row["rows_not_trained_on"] == 0 and row["median_ape_held_out"] is None
    more = calibrate(bundle, table(20, noise=0.02).query("gpu == 'Tesla T4'"))
    assert more.family_models["conv"].widths != bundle.family_models["conv"].widths
    for row in more.card["calibration"].values():
        assert 0 < row["rows_not_trained_on"] < row["rows"] and row["median_ape_held_out"] > 0.0


@pytest.mark.slow
def test_calibration_reduces_errors_on_a_measured_gpu(measurements) -> None:
    """T4 is left out of training; its correction is fitted on some shapes and tested on the others."""
    data = read_dataset(measurements / "cudnn_conv_per_algorithm.parquet")
    frame = data.frame[(data.frame["direction"] == "fwd") & (data.frame["dtype"] == "fp32")]
    is_t4 = frame["gpu"] == "Tesla T4"
    fitted = train(data.with_frame(frame[~is_t4]), model="linear-terms")
    own = frame[is_t4 & (frame["status"] == "ok")]
    measured = own["c"] % 64 != 0
    assert len(own[measured]) > 100 < len(own[~measured])
    evaluated = data.with_frame(own[~measured])
    calibrated = calibrate(fitted, data.with_frame(own[measured]))
    assert median_error(calibrated, evaluated) < 0.67 * median_error(fitted, evaluated)
    out, times = predicted(calibrated, evaluated.frame), evaluated.frame["time_us"]
    assert ((out["lower_us"] <= times) & (times <= out["upper_us"])).mean() > 0.8


def test_calibration_keeps_candidates_and_adds_new_ones(table: Table, bundle: Bundle) -> None:
    """The sample has two algorithms, one of them unknown to the bundle."""
    trees = train(table(16, noise=0.02, algorithms=("IMPLICIT_GEMM", "FFT")), params={"rounds": 20})
    data = on_new_gpu(table, bundle)
    sample = data.with_frame(data.frame[data.frame["algorithm"].isin(["IMPLICIT_GEMM", "WINOGRAD"])])
    calibrated = calibrate(trees, sample)
    names = {key.algorithm for key in calibrated.family_models["conv"].candidates}
    assert names == {"IMPLICIT_GEMM", "FFT", "WINOGRAD"}
    answers = predicted(calibrated, data.frame[data.frame["algorithm"] != "IMPLICIT_PRECOMP_GEMM"])
    assert np.isfinite(answers["predicted_us"]).all()
    evaluated = data.frame[(data.frame["algorithm"] == "WINOGRAD") & (data.frame["status"] == "ok")]
    assert np.median(np.abs(predicted(calibrated, evaluated)["predicted_us"] / evaluated["time_us"] - 1)) < 0.3


def products(count: int, factor: Callable[[pd.DataFrame], object]) -> tuple[Rows, np.ndarray]:
    """Return rows of products on a T4 by two libraries, and predicted times that differ from them by ``factor``."""
    sizes = pd.DataFrame({"m": 2 ** (np.arange(count) % 9), "n": 512 + 64 * np.arange(count), "k": 1024})
    frame = pd.concat([sizes.assign(library=library) for library in ("cublas", "torch")], ignore_index=True)
    setting = {"family": "gemm", "operator": "gemm", "dtype": "fp32", "math": "fma", "variant": "", "batch": 1}
    frame = frame.assign(gpu="t4", **setting, algorithm="default", library_version="1", status="ok")
    predicted_us = 10.0 + frame["m"].to_numpy() * frame["n"].to_numpy() / 100.0
    return checked(frame.assign(time_us=predicted_us * factor(frame))), predicted_us


def fitted_log_factors(rows: Rows, predicted_us: np.ndarray) -> np.ndarray:
    correction, *_ = fit_correction(rows, predicted_us)
    return correction.log_factor(rows.columns(correction_columns(rows.family)), rows.candidate, predicted_us)


def test_few_rows_give_an_offset_per_library_despite_an_outlier() -> None:
    """Twenty rows take half or twice the predicted time; then one of them takes 100 times."""
    by_library = {"cublas": 0.5, "torch": 2.0}
    rows, predicted_us = products(10, lambda frame: frame["library"].map(by_library))
    expected = np.log(rows.frame["library"].map(by_library).to_numpy(dtype=float))
    np.testing.assert_allclose(fitted_log_factors(rows, predicted_us), expected, atol=0.35)
    rows, predicted_us = products(10, lambda frame: np.where(frame.index == 3, 100.0, 0.5))
    others = np.arange(len(rows)) != 3
    np.testing.assert_allclose(fitted_log_factors(rows, predicted_us)[others], np.log(0.5), atol=0.2)


def test_noise_rarely_gives_a_correction() -> None:
    """A correction is dropped if it does not reduce held-out errors."""
    random = np.random.default_rng(0)
    largest = []
    for _ in range(20):
        noise = random.normal(0, 0.3, 40)
        rows, predicted_us = products(20, lambda frame, noise=noise: np.exp(noise[frame.index]))
        largest.append(np.abs(fitted_log_factors(rows, predicted_us)).max())
    assert sum(value > 0 for value in largest) <= 3
