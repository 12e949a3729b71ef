"""Interval widths: ranks, fallback, growth with distance, coverage on held-out shapes, unmeasured GPUs."""

from bisect import bisect_right
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from surrogate.dataset.checks import normalise
from surrogate.dataset.problems import device_names
from surrogate.dataset.rows import Rows, rows_of
from surrogate.features.families import FAMILIES
from surrogate.models import model_class
from surrogate.models.base import duplicate
from surrogate.uncertainty import fit
from surrogate.uncertainty.intervals import NEVER, HeldOutGpuErrors, StepFunction, UnmeasuredGpuErrors, WidthKey, Widths
from tests.tables import Table, checked, every

GEMM = FAMILIES["gemm"]

SCORES = st.lists(st.floats(0, 10), min_size=1, max_size=200).map(np.array)
FFT, SMALL, NEW = "cudnn|fwd|FFT", "cudnn|fwd|GEMM", "cudnn|fwd|NEW"
GPUS = ("Tesla T4", "TITAN Xp", "TITAN V")


def held_out(shapes: int, batches: int = 6, seed: int = 0) -> tuple[Rows, np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, predicted and measured times and distances of synthetic held-out convolutions.

    Errors grow with distance, have a part common to each shape, and are twice as large for FFT."""
    random = np.random.default_rng(seed)
    gpus, algorithms = ("Tesla T4", "TITAN Xp"), ("GEMM", "FFT")
    frame = every(c=range(1, shapes + 1), n=range(1, batches + 1), gpu=gpus, algorithm=algorithms)
    frame = frame.assign(library="cudnn", library_version="7", direction="fwd", dtype="fp32", math="fma", layout="NCHW")
    frame = frame.assign(**dict.fromkeys(("pad_h", "pad_w", "stride_h", "stride_w", "groups"), 1), dilation_h=1)
    frame = frame.assign(h=8, w=8, k=8, r=3, s=3, dilation_w=1)
    distance = random.uniform(0, 2, shapes)[frame["c"] - 1]
    common = random.normal(size=shapes)[frame["c"] - 1]
    scale = 0.1 * (1 + distance) * np.where(frame["algorithm"] == "FFT", 2.0, 1.0)
    error = scale * (0.7 * common + 0.7 * random.normal(size=len(frame)))
    measured = np.exp(random.uniform(2, 8, len(frame)))
    frame = normalise(frame.assign(status="ok", time_us=1.0), "test").drop(columns=["status", "time_us"])
    return rows_of(frame), measured * np.exp(error), measured, distance


def fitted(rows: Rows, predicted: np.ndarray, measured: np.ndarray, distance: np.ndarray) -> Widths:
    """Return widths without the independent share, which would take most of the time."""
    return fit.fit_widths(rows, predicted, measured, distance, evaluated=np.zeros(len(rows), dtype=bool))


def part(where: np.ndarray, holdout: tuple[Rows, np.ndarray, np.ndarray, np.ndarray]) -> tuple:
    rows, *arrays = holdout
    return rows.take(where), *(array[where] for array in arrays)


@given(SCORES)
def test_with_one_row_per_shape_quantile_is_split_conformal(scores: np.ndarray) -> None:
    """The rank is ⌈(n + 1) · 0.9⌉, or the largest score if there are too few."""
    rank = -(-9 * (len(scores) + 1) // 10)
    assert fit.conformal_quantile(scores, np.arange(len(scores))) == np.sort(scores)[min(rank, len(scores)) - 1]


@given(SCORES, st.integers(1, 20), st.randoms(use_true_random=False))
def test_quantile_ignores_row_order_and_grows_with_fewer_shapes(scores: np.ndarray, shapes: int, random) -> None:
    """Rows of the same shape carry less information, so fewer shapes never give a smaller quantile."""
    shape = np.arange(len(scores)) % shapes
    order = list(range(len(scores)))
    random.shuffle(order)
    quantile = fit.conformal_quantile(scores, shape)
    assert quantile == fit.conformal_quantile(scores[order], shape[order])
    assert quantile >= fit.conformal_quantile(scores, np.arange(len(scores)))


@pytest.fixture(scope="module")
def widths() -> Widths:
    """Return widths fitted to 60 shapes."""
    return fitted(*held_out(60))


def half_width(widths: Widths, gpu: str, candidate: str, distance: float, predicted_us: float = 100.0) -> float:
    """Return the half width of one row."""
    columns = (np.array([value]) for value in (gpu, candidate, "fp32", distance, predicted_us))
    return float(widths.at(*columns)[0])


def test_half_width_never_shrinks_with_distance_and_harder_algorithms_are_wider(widths: Widths) -> None:
    """Errors triple over the measured distances, and the errors of FFT are twice as large."""
    assert 1.5 < half_width(widths, "t4", FFT, 1.0) / half_width(widths, "t4", SMALL, 1.0) < 2.6
    found = [half_width(widths, "t4", SMALL, d, 100.0) for d in np.linspace(0, 9, 200)]
    assert (np.diff(found) >= 0).all()
    assert found[-1] > 1.5 * found[0]


def test_half_width_is_the_product_of_base_and_factors(widths: Widths) -> None:
    """The rows include the edges of the factors, missing values, and unmeasured candidates and GPUs."""
    rows, predicted, _, distance = held_out(30, seed=1)
    frame = rows.frame.assign(algorithm=rows.frame["algorithm"].where(rows.frame["n"] != 3, "NEW"))
    frame.loc[frame["n"] == 4, "gpu"] = "Tesla K80"
    rows = rows_of(frame)
    distance[:4], predicted[4:8] = (np.nan, np.inf, *widths.distance.edges[:2]), widths.time_us.edges[:4]
    names = frame["gpu"].map({"Tesla T4": "t4", "TITAN Xp": "titan-xp", "Tesla K80": "k80"})
    base = [widths.base(gpu, candidate, "fp32") for gpu, candidate in zip(names, rows.candidate, strict=True)]
    by_distance, by_time = (
        np.array([factor.values[bisect_right(factor.edges, value)] for value in values])
        for factor, values in ((widths.distance, distance), (widths.time_us, predicted))
    )
    expected = base * by_distance * by_time
    found = widths.at(device_names(rows.frame), rows.candidate, fit.dtypes_of(rows), distance, predicted)
    np.testing.assert_array_equal(found, expected)
    assert Widths.from_json(widths.to_json(), {"cudnn"}) == widths


@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_gpu_with_few_shapes_is_never_narrower_than_its_fallback(scale: float) -> None:
    """If a GPU has few shapes, small errors give at least the candidate's width; large errors give their own."""
    rows, predicted, measured, distance = held_out(fit.MIN_SHAPES + 5)
    frame = rows.frame
    on_xp = (frame["gpu"] == "TITAN Xp").to_numpy()
    excluded = on_xp & (frame["c"] > fit.MIN_SHAPES - 1).to_numpy()
    predicted = np.where(on_xp, measured * (predicted / measured) ** scale, predicted)
    found = fitted(*part(~excluded, (rows, predicted, measured, distance)))
    width, fallback = found.by_key[WidthKey("titan-xp", FFT)], found.by_key[WidthKey(None, FFT)]
    errors = np.abs(np.log(predicted / measured))[on_xp & ~excluded & (frame["algorithm"] == "FFT").to_numpy()]
    assert width >= fallback if scale < 1 else width > 0.5 * np.quantile(errors, 0.9)
    ratio = half_width(found, "k80", FFT, 0.5) / half_width(found, "titan-xp", FFT, 0.5)
    assert ratio == pytest.approx(fallback / width)
    assert half_width(found, "t4", NEW, 0.5, 9.0) == half_width(found, "k80", "cudnn|bwd_data|GEMM", 0.5, 9.0)


def test_gpu_with_a_single_shape_gets_its_own_width() -> None:
    """The TITAN Xp's only shape has errors ten times as large; 90 % of them must lie inside."""
    rows, predicted, measured, distance = held_out(30)
    on_xp = (rows.frame["gpu"] == "TITAN Xp").to_numpy()
    predicted = np.where(on_xp, measured * 10.0, predicted)
    kept = ~on_xp | (rows.frame["c"] == 1).to_numpy()
    found = fitted(*part(kept, (rows, predicted, measured, distance)))
    subset = rows.take(on_xp & kept)
    columns = (device_names(subset.frame), subset.candidate, fit.dtypes_of(subset), distance[on_xp & kept])
    assert np.mean(found.at(*columns, predicted[on_xp & kept]) >= np.log(10.0)) >= 0.9


@pytest.mark.slow
def test_new_shapes_are_covered() -> None:
    """Over 12 draws of 60 shapes, the mean coverage of other shapes is 90 % at small and large distances."""
    covered, by_distance = [], []
    for seed in range(12):
        holdout = held_out(120, batches=3, seed=seed)
        is_training = (holdout[0].frame["c"] <= 60).to_numpy()
        rows, predicted, measured, distance = part(~is_training, holdout)
        columns = (device_names(rows.frame), rows.candidate, fit.dtypes_of(rows), distance, predicted)
        half = fitted(*part(is_training, holdout)).at(*columns)
        inside = np.abs(np.log(predicted / measured)) <= half
        covered.append(inside.mean())
        by_distance.append((inside[distance < 1].mean(), inside[distance >= 1].mean()))
    assert 0.88 < np.mean(covered) < 0.93
    assert np.abs(np.mean(by_distance, axis=0) - 0.9).max() < 0.04


def test_held_out_half_widths_use_other_shapes() -> None:
    """Huge errors of one shape widen the intervals of other shapes, not its own."""
    rows, predicted, measured, distance = held_out(40, batches=2)
    predicted[3] = np.nan
    before = fit.held_out_half_widths(rows, predicted, measured, distance)
    assert np.flatnonzero(np.isnan(before)).tolist() == [3]
    has_huge_errors = (rows.frame["c"] == 7).to_numpy()
    after = fit.held_out_half_widths(rows, predicted, np.where(has_huge_errors, measured * 1e6, measured), distance)
    np.testing.assert_array_equal(after[has_huge_errors], before[has_huge_errors])
    assert (after[~has_huge_errors] > before[~has_huge_errors]).mean() > 0.3


def test_fit_without_predictions_is_refused_and_degenerate_data_give_widths(refused) -> None:
    """The degenerate data are a single shape and a perfect model."""
    holdout = held_out(4)
    rows, _, measured, distance = holdout
    with refused("intervals"):
        fit.fit_widths(rows, np.full(len(rows), np.nan), measured, distance)
    single_shape = part((rows.frame["c"] == 1).to_numpy(), holdout)
    assert half_width(fitted(*single_shape), "t4", SMALL, 1.0) > 0
    assert np.isnan(fit.held_out_half_widths(*single_shape)).all()
    widths = fitted(rows, measured, measured, distance)
    columns = (device_names(rows.frame), rows.candidate, fit.dtypes_of(rows), distance, measured)
    assert (widths.at(*columns) > 0).all()


def test_exact_model_gets_the_minimum_width() -> None:
    """Errors are zero or one unit in the last place, so ratios of errors must not become factors."""
    rows, _, measured_us, distance = held_out(12)
    predicted_us = measured_us * np.where(measured_us < np.median(measured_us), 1.0, 1.0 + 4e-16)
    widths = fit.fit_widths(rows, predicted_us, measured_us, distance)
    assert set(widths.by_key.values()) == {fit.MIN_WIDTH}
    assert all(0.5 < value < 2.0 for value in (*widths.distance.values, *widths.time_us.values))


def test_no_half_width_exceeds_the_largest_held_out_error() -> None:
    """Factors for distance and time multiply, but the data end: the 163-fold errors of a pool were the largest."""
    holdout = held_out(shapes=40)
    fitted_widths = fitted(*holdout)
    error = np.abs(np.log(holdout[1] / holdout[2]))
    assert fitted_widths.max_errors["all"] == pytest.approx(np.nanmax(error))
    steep = replace(fitted_widths, distance=StepFunction(values=(50.0,)), time_us=StepFunction(values=(50.0,)))
    key = next(key for key in steep.by_key if key.candidate != "all" and key.gpu is None)
    assert half_width(steep, "none", key.candidate, 9.0) == steep.limit(key.candidate) <= np.nanmax(error)
    again = Widths.from_json(steep.to_json(), {key.candidate.partition("|")[0]})
    assert again.max_errors == steep.max_errors


def roofline_times(frame: pd.DataFrame, factor: np.ndarray) -> Rows:
    """Return rows with times of ``factor`` times the roofline's prediction."""
    rows = checked(frame)
    predicted = model_class("roofline")().fit(rows).predict(rows)
    return rows_of(rows.frame.assign(time_us=np.where(rows.ok, factor * predicted, np.nan)))


@pytest.mark.parametrize("kind", ["conv", "gemm"])
def test_unmeasured_gpu_error_equals_the_known_answer(table: Table, kind: str) -> None:
    """The roofline is off by 2 on all rows of two GPUs and by 3 on rows of the third."""
    frame = table(16, gpus=GPUS) if kind == "conv" else products(GPUS)
    rows = roofline_times(frame, np.where(frame["gpu"] == "TITAN V", 3.0, 2.0))
    found = unmeasured_gpu_errors(rows, True)
    largest_error = np.log(3.0) * (1 + fit.NEW_GPU_MARGIN / 3)
    by_hand = HeldOutGpuErrors(3, pytest.approx(0.5, rel=1e-3), pytest.approx(largest_error, rel=1e-3))
    assert found.by_group[found.group_key("nvidia", "fp32")] == by_hand and 0 < found.independent_share <= 2
    assert (found.group_key("nvidia", "fp8"), found.group_key("amd", "fp32")) == ("nvidia", "")
    assert found.by_group[""] == by_hand
    one_gpu = rows.take((rows.frame["gpu"] == "TITAN V").to_numpy())
    assert fit.gpu_splits(one_gpu, 0) == []  # one GPU does not suffice for a split
    assert unmeasured_gpu_errors(one_gpu, True) == UnmeasuredGpuErrors()


def test_data_type_of_a_single_gpu_does_not_widen_other_intervals() -> None:
    """fp16 is measured on one GPU alone and is off by 30. MI100 is the only AMD GPU, so its error counts among all
    GPUs. The margin for one more GPU is divided by the number of GPUs."""
    frame = products((*GPUS, "MI100"))
    is_fp16 = (frame["gpu"] == "TITAN V") & (frame["m"] == 64)
    frame = frame.assign(dtype=np.where(is_fp16, "fp16", "fp32"))
    factors = np.select([is_fp16, frame["gpu"] == "MI100"], [30.0, 5.0], 2.0)
    rows = roofline_times(frame, factors)
    found = unmeasured_gpu_errors(rows, False)
    half_widths = {kind: errors.half_width for kind, errors in found.by_group.items()}
    largest = {"": (5.0, 4), NEVER: (30.0, 1), "nvidia": (2.0, 3), "nvidia|fp32": (2.0, 3), "gfx9": (2.0, 1)}
    margin = fit.NEW_GPU_MARGIN
    by_hand = {kind: np.log(factor) * (1 + margin / gpus) for kind, (factor, gpus) in largest.items()}
    assert half_widths == pytest.approx(by_hand, rel=1e-3)
    assert "GFX9" not in found.note("gfx9", is_described=False)
    assert "3 NVIDIA GPUs" in found.note("nvidia", is_described=False)


def predicted_without(model, rows, splits) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows,) predictions by clones fitted without the row, and distances to the clones' training shapes."""
    fits = [fit.Fit("a split", duplicate(model), *split) for split in splits]
    answers = fit.run_fits(rows, fits, lambda name, count: lambda share: None)
    return fit.combined_answers(rows, splits, answers)


def unmeasured_gpu_errors(rows: Rows, evaluated: bool) -> UnmeasuredGpuErrors:
    """Return the errors of the roofline on held-out GPUs; all rows are evaluated, or none."""
    splits = fit.gpu_splits(rows, 0)
    predicted, _ = predicted_without(model_class("roofline")(), rows, splits)
    columns = predicted, fit.trained_settings(rows, splits), np.full(len(rows), evaluated)
    return fit.fit_unmeasured_gpu(rows, *columns)


def products(gpus: tuple[str, ...]) -> pd.DataFrame:
    """Return matrix products of 16 shapes and two heights."""
    frame = every(gpu=gpus, n=range(16, 272, 16), m=(64, 256)).assign(family=GEMM.name, operator="gemm", batch=1)
    frame = frame.assign(library="cublas", library_version="12", algorithm="default", status="ok", math="default")
    return frame.assign(k=64 * frame["n"], time_us=1.0 * frame["n"])


def test_held_out_predictions_come_from_fits_without_the_shape(refused, table: Table) -> None:
    """Every row gets a prediction and a positive distance to its fold's training shapes."""
    rows = checked(table(12))
    predicted, distance = predicted_without(model_class("linear-terms")(), rows, fit.shape_splits(rows, 4, 0))
    assert np.isfinite(predicted[rows.ok]).all() and (distance > 0).all()
    with refused("shape"):
        fit.shape_splits(rows.take(rows.shape == 0), 4, 0)
