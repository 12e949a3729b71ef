"""Baselines: answers by hand, and exact recovery of what follows their own law."""

import numpy as np
import pandas as pd
import pytest

from surrogate.operators.baselines import (
    GemmInterpolation,
    GradientRatio,
    OperatorMlp,
    OperatorRoofline,
    SeerPolynomials,
)
from surrogate.operators.baselines.gradient_ratio import RatioTree, paired
from surrogate.operators.baselines.interpolation import Level, interpolated
from surrogate.operators.table import OperatorTable, make_table

PEAK = (1000.0, 400.0)


def grid() -> Level:
    """Rates (MACs, bytes) over two dimensions, 2 and 4 × 10 and 30."""
    points = np.array([[2, 10], [2, 30], [4, 10], [4, 30]], dtype=float)
    found = Level.of(points, np.array([[10, 1], [20, 2], [30, 3], [60, 6]], dtype=float))
    assert isinstance(found, Level)
    return found


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ((2, 10), 10.0),  # measured
        ((2, 15), 10 + 0.25 * 10),  # a quarter of the way
        ((3, 15), (12.5 + 37.5) / 2),  # halfway between 12.5 and 30 + 0.25 · 30
        ((1, 10), 10 / 2),  # half of the least size: half of its rate
        ((2, 5), 10 / 2),
        ((8, 10), (30 + 1000) / 2),  # above: half the last, half the peak
        ((2, 99), (20 + 1000) / 2),
    ],
)
def test_interpolated_rates(point: tuple[float, float], expected: float) -> None:
    assert interpolated(grid(), point, PEAK)[0] == pytest.approx(expected)


def test_both_rates_are_interpolated_alike() -> None:
    macs, moved = interpolated(grid(), (3, 15), PEAK)
    assert moved == pytest.approx(macs / 10)


def products(times_us: list[float], k: list[int]) -> OperatorTable:
    """Products of 64 × 64 over k on a T4."""
    frame = pd.DataFrame(
        {"gpu": "t4", "library": "torch", "kind": "bmm", "batch": 1, "m": 64, "n": 64, "k": k}
    )
    return make_table([frame.assign(time_us=times_us)], {}, "products")


def test_gemm_interpolation_by_hand() -> None:
    """k 100 in 10 µs, k 200 in 40 µs: at 150 the slower of 30,720 MACs/µs and the interpolated bytes."""
    fitted = GemmInterpolation(steps_per_octave=None).fit(products([10.0, 40.0], [100, 200]))
    macs = [64 * 64 * 100 / 10, 64 * 64 * 200 / 40]
    moved = [4 * (2 * 64 * 100 + 64 * 64) / 10, 4 * (2 * 64 * 200 + 64 * 64) / 40]
    expected = max(64 * 64 * 150 / np.mean(macs), 4 * (2 * 64 * 150 + 64 * 64) / np.mean(moved))
    found = fitted.predict_us(products([1.0, 1.0], [150, 100]))
    assert found == pytest.approx([expected, 10.0])


def test_gemm_interpolation_says_nothing_of_others(operators: OperatorTable) -> None:
    fitted = GemmInterpolation().fit(operators)
    products_only = (operators.frame["kind"] == "bmm").to_numpy()
    found = fitted.predict_us(operators)
    assert np.isfinite(found[products_only]).all()
    assert np.isnan(found[~products_only]).all()
    assert found[products_only] == pytest.approx(operators.time_us[products_only])  # exact where measured
    elsewhere = OperatorTable(operators.frame.assign(gpu="mi100"))
    assert np.isnan(fitted.predict_us(elsewhere)).all()


def images(kind: str, time_us: np.ndarray, n: np.ndarray, **sizes: int) -> pd.DataFrame:
    """Rows of one kind with ``n`` images."""
    frame = pd.DataFrame({"n": n}).assign(gpu="t4", library="cudnn", kind=kind, time_us=time_us)
    return frame.assign(**{"c": 8, "h": 16, "w": 16, **sizes})


def test_seer_polynomials_recover_their_own_form() -> None:
    n = np.arange(1, 30)
    pool = {"window": 3, "window_w": 3, "stride": 2, "stride_w": 2}
    inputs, outputs = n * 8 * 256.0, n * 8 * 49.0
    pooled = 1e-3 * outputs * 3 + 2e-3 * inputs + 5.0
    table = make_table(
        [images("relu", 1e-3 * n * 8 * 256 + 4.0, n), images("max_pool_backward", pooled, n, **pool)], {}, "x"
    )
    train, test = table.take(np.arange(len(table)) % 2 == 0), table.take(np.arange(len(table)) % 2 == 1)
    assert SeerPolynomials().fit(train).predict_us(test) == pytest.approx(test.time_us, rel=1e-9)


def test_seer_polynomials_need_rows() -> None:
    table = make_table([images("relu", np.array([3.0]), np.array([2]))], {}, "x")
    assert np.isnan(SeerPolynomials().fit(table).predict_us(table)).all()


def test_ratio_tree_by_hand() -> None:
    x = np.array([[1.0], [2.0], [10.0], [11.0]] * 5)
    forward = np.full(20, 4.0)
    backward = np.where(x[:, 0] < 5, 8.0, 12.0)
    tree = RatioTree.fit(x, forward, backward)
    assert tree.predict_us(np.array([[0.0], [20.0]]), np.array([10.0, 10.0])) == pytest.approx([20.0, 30.0])


def test_gradient_ratio_is_the_forward_fit_times_the_ratio() -> None:
    n = np.arange(1, 40)
    forward = 2e-3 * n * 2048 + 4.0
    table = make_table([images("relu", forward, n), images("relu_backward", 1.5 * forward, n)], {}, "x")
    assert len(paired(table)) == 39
    found = GradientRatio().fit(table).predict_us(table)
    backward = (table.frame["kind"] == "relu_backward").to_numpy()
    assert found[backward] == pytest.approx(table.time_us[backward], rel=1e-6)
    assert np.isnan(found[~backward]).all()


def test_roofline_is_below_invented_times(operators: OperatorTable) -> None:
    found = OperatorRoofline().fit(operators).predict_us(operators)
    assert (found < operators.time_us).all()


def test_mlp_learns_and_survives_json(operators: OperatorTable) -> None:
    fitted = OperatorMlp(epochs=30, width=32, depth=2).fit(operators, seed=1)
    found = fitted.predict_us(operators)
    assert np.median(np.abs(found / operators.time_us - 1)) < 0.3
    again = OperatorMlp.from_json(fitted.to_json()).predict_us(operators)
    assert again == pytest.approx(found, rel=1e-2)  # weights keep five digits
    unknown = OperatorTable(operators.frame.assign(variant="odd"))
    assert np.isnan(fitted.predict_us(unknown)).all()
