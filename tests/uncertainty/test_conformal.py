"""Interval widths: ranks, fallback, monotony in distance, and coverage on shapes that the fit never saw."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.features.errors import InputError
from surrogate.uncertainty.conformal import Factors, Widths
from surrogate.uncertainty.width_fit import (
    LEAST_SHAPES,
    LEAST_WIDTH,
    conformal_quantile,
    fit_widths,
    held_out_half_widths,
    isotonic,
)

SCORES = st.lists(st.floats(0, 10), min_size=1, max_size=200).map(np.array)


def rows(
    shapes: int, batches: int = 6, seed: int = 0
) -> tuple[pd.DataFrame, np.ndarray, np.ndarray, np.ndarray]:
    """Frame, predicted, measured, distance of invented held-out rows.

    Errors grow with distance, are partly the shape's own, and twice as large for FFT.
    """
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        [
            {"gpu": gpu, "library": "cudnn", "library_version": "7", "direction": "fwd", "dtype": "fp32", "math": "fma",
             "layout": "NCHW", "n": n + 1, "c": c + 1, "h": 8, "w": 8, "k": 8, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1,
             "stride_h": 1, "stride_w": 1, "dilation_h": 1, "dilation_w": 1, "groups": 1, "algorithm": algorithm}
            for c in range(shapes) for n in range(batches)
            for gpu in ("Tesla T4", "TITAN Xp") for algorithm in ("GEMM", "FFT")
        ]
    )  # fmt: skip
    distance = random.uniform(0, 2, shapes)[frame["c"] - 1]
    common = random.normal(size=shapes)[frame["c"] - 1]
    scale = 0.1 * (1 + distance) * np.where(frame["algorithm"] == "FFT", 2.0, 1.0)
    error = scale * (0.7 * common + 0.7 * random.normal(size=len(frame)))
    measured = np.exp(random.uniform(2, 8, len(frame)))
    return frame, measured * np.exp(error), measured, distance


def fitted(*held_out) -> Widths:
    """Widths whose own share nobody asks for, which would cost most of the time."""
    return fit_widths(*held_out, judged=np.zeros(len(held_out[0]), dtype=bool))


@given(SCORES)
def test_with_a_shape_per_row_the_rank_is_split_conformals(scores: np.ndarray) -> None:
    """⌈(n + 1) · 0.9⌉, the greatest where there are too few."""
    rank = -(-9 * (len(scores) + 1) // 10)
    assert conformal_quantile(scores, np.arange(len(scores))) == np.sort(scores)[min(rank, len(scores)) - 1]


@pytest.mark.parametrize("count", [12, 99, 250])
def test_mapie_has_the_same_quantile(count: int) -> None:
    """A library's split-conformal interval around a fixed predictor, one shape per row."""
    regression = pytest.importorskip("mapie.regression")
    from sklearn.base import BaseEstimator, RegressorMixin

    class Zero(RegressorMixin, BaseEstimator):
        def __init__(self) -> None:
            self.coef_ = np.zeros(1)

        def fit(self, x: np.ndarray, y: np.ndarray) -> "Zero":
            return self

        def predict(self, x: np.ndarray) -> np.ndarray:
            return np.zeros(len(x))

    error = np.random.default_rng(count).standard_t(3, count)
    oracle = regression.SplitConformalRegressor(Zero(), confidence_level=0.9, prefit=True)
    oracle.conformalize(np.zeros((count, 1)), error)
    _, interval = oracle.predict_interval(np.zeros((1, 1)))
    assert conformal_quantile(np.abs(error), np.arange(count)) == pytest.approx(float(interval[0, 1, 0]))


@given(SCORES, st.integers(1, 20), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(scores: np.ndarray, shapes: int, random) -> None:
    """And fewer shapes never give a smaller quantile: their rows say less."""
    shape = np.arange(len(scores)) % shapes
    order = list(range(len(scores)))
    random.shuffle(order)
    whole = conformal_quantile(scores, shape)
    assert whole == conformal_quantile(scores[order], shape[order])
    assert whole >= conformal_quantile(scores, np.arange(len(scores)))


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 5)), min_size=1, max_size=20))
def test_pooling_never_falls_and_keeps_the_mean(pairs: list[tuple[float, float]]) -> None:
    values, weights = np.array(pairs).T
    pooled = isotonic(values, weights)
    assert (np.diff(pooled) >= -1e-12).all()
    assert np.average(pooled, weights=weights) == pytest.approx(np.average(values, weights=weights), abs=1e-9)
    np.testing.assert_allclose(isotonic(np.sort(values), weights), np.sort(values), atol=1e-12)


def test_pooling_is_scikit_learns() -> None:
    from sklearn.isotonic import isotonic_regression

    random = np.random.default_rng(0)
    values, weights = random.normal(size=30), random.uniform(0.5, 2, 30)
    np.testing.assert_allclose(isotonic(values, weights), isotonic_regression(values, sample_weight=weights))


@pytest.fixture(scope="module")
def widths() -> Widths:
    """Of 60 shapes."""
    return fitted(*rows(60))


def test_farther_is_never_narrower(widths: Widths) -> None:
    """And by much here, where errors grow threefold."""
    found = [widths.lookup("t4", "fwd", "GEMM", d, 100.0) for d in np.linspace(0, 9, 200)]
    assert (np.diff(found) >= 0).all()
    assert found[-1] > 1.5 * found[0]


def test_one_by_one_is_all_at_once(widths: Widths) -> None:
    """`lookup` and `of` give identical numbers, at the edges and for the unknown too; JSON keeps them."""
    frame, predicted, _, distance = rows(30, seed=1)
    frame = frame.assign(algorithm=frame["algorithm"].where(frame["n"] != 3, "NEW"))
    frame.loc[frame["n"] == 4, "gpu"] = "Tesla K80"
    distance[:4], predicted[4:8] = (np.nan, np.inf, *widths.distance.edges[:2]), widths.time_us.edges[:4]
    names = {"Tesla T4": "t4", "TITAN Xp": "titan-xp", "Tesla K80": "k80"}
    asked = list(
        zip(frame["gpu"].map(names), frame["algorithm"], distance.tolist(), predicted.tolist(), strict=True)
    )
    one = [widths.lookup(gpu, "fwd", algorithm, d, time_us) for gpu, algorithm, d, time_us in asked]
    np.testing.assert_array_equal(widths.of(frame, distance, predicted), one)
    one = [widths.lookup(gpu, "fwd", algorithm, d) for gpu, algorithm, d, _ in asked]
    np.testing.assert_array_equal(widths.of(frame, distance), one)
    assert Widths.from_json(widths.to_json()) == widths


def test_what_has_too_few_shapes_falls_back() -> None:
    """To its algorithm, then to all."""
    frame, predicted, measured, distance = rows(LEAST_SHAPES + 5)
    few = (frame["c"] > LEAST_SHAPES - 1).to_numpy() & (frame["gpu"] == "TITAN Xp").to_numpy()
    found = fitted(*(each[~few] for each in (frame, predicted, measured, distance)))
    assert "t4|fwd|FFT" in found.by_key
    assert "titan-xp|fwd|FFT" not in found.by_key
    assert found.lookup("titan-xp", "fwd", "FFT", 0.5) == pytest.approx(
        found.lookup("t4", "fwd", "FFT", 0.5) * found.by_key["fwd|FFT"] / found.by_key["t4|fwd|FFT"]
    )
    assert found.lookup("t4", "fwd", "NEW", 0.5, 9.0) == found.lookup("k80", "bwd_data", "GEMM", 0.5, 9.0)


def test_harder_algorithms_get_wider_intervals(widths: Widths) -> None:
    """FFT errs twice as much."""
    ratio = widths.lookup("t4", "fwd", "FFT", 1.0) / widths.lookup("t4", "fwd", "GEMM", 1.0)
    assert 1.5 < ratio < 2.6


def test_new_shapes_are_covered() -> None:
    """Over many draws of 60 shapes the coverage of other shapes is 90 % on average, near and far alike."""
    covered, near = [], []
    for seed in range(12):
        frame, predicted, measured, distance = rows(120, batches=3, seed=seed)
        own = (frame["c"] <= 60).to_numpy()
        found = fitted(*(each[own] for each in (frame, predicted, measured, distance)))
        half = found.of(frame[~own], distance[~own], predicted[~own])
        inside = np.abs(np.log(predicted / measured))[~own] <= half
        covered.append(inside.mean())
        near.append((inside[distance[~own] < 1].mean(), inside[distance[~own] >= 1].mean()))
    assert 0.88 < np.mean(covered) < 0.93
    assert np.abs(np.mean(near, axis=0) - 0.9).max() < 0.04


def test_held_out_half_widths_come_from_other_shapes() -> None:
    """A shape's own errors, made enormous, leave its own intervals as they were and widen those of others."""
    frame, predicted, measured, distance = rows(40, batches=2)
    predicted[3] = np.nan
    before = held_out_half_widths(frame, predicted, measured, distance)
    assert np.flatnonzero(np.isnan(before)).tolist() == [3]
    wild = (frame["c"] == 7).to_numpy()
    after = held_out_half_widths(frame, predicted, np.where(wild, measured * 1e6, measured), distance)
    np.testing.assert_array_equal(after[wild], before[wild])
    assert (after[~wild] > before[~wild]).mean() > 0.3


def test_errors_and_edges() -> None:
    """Nothing to learn from is a user's error; one shape and a perfect model still give a width."""
    frame, predicted, measured, distance = rows(4)
    with pytest.raises(InputError, match="intervals need some"):
        fit_widths(frame, np.full(len(frame), np.nan), measured, distance)
    alone = (frame["c"] == 1).to_numpy()
    found = fitted(frame[alone], predicted[alone], measured[alone], distance[alone])
    assert found.lookup("t4", "fwd", "GEMM", 1.0) > 0
    assert np.isnan(
        held_out_half_widths(frame[alone], predicted[alone], measured[alone], distance[alone])
    ).all()
    assert (fitted(frame, measured, measured, distance).of(frame, distance, measured) > 0).all()


def test_widths_of_schema_1_are_read() -> None:
    """Bases alone, whatever the distance and the time."""
    found = Widths.from_json(b'{"coverage": 0.9, "widths": {"all": 0.3, "fwd|FFT": 0.5}}')
    assert found.lookup("t4", "fwd", "FFT", 7.0, 1e9) == 0.5
    assert found.lookup("t4", "fwd", "GEMM", np.inf) == 0.3


def test_an_edge_belongs_to_the_step_above() -> None:
    factors = Factors((1.0, 2.0), (0.5, 1.0, 3.0))
    assert factors.at(np.array([0.0, 1.0, 1.5, 2.0, np.inf, np.nan])).tolist() == [
        0.5,
        1.0,
        1.0,
        3.0,
        3.0,
        3.0,
    ]


def test_an_exact_model_has_the_least_widths_and_no_warning() -> None:
    """Errors of nothing and of a last digit: factors stay factors."""
    frame, _, measured_us, distance = rows(12)
    predicted_us = measured_us * np.where(measured_us < np.median(measured_us), 1.0, 1.0 + 4e-16)
    widths = fit_widths(frame, predicted_us, measured_us, distance)
    assert set(widths.by_key.values()) == {LEAST_WIDTH}
    assert all(0.5 < value < 2.0 for value in (*widths.distance.values, *widths.time_us.values))
