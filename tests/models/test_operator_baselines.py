"""Published baselines for operators: hand calculations, and exact recovery of times in their own form."""

import numpy as np
import pandas as pd
import pytest

from experiments.other_operators import GradientRatio, SeerPolynomials, forward_times
from surrogate.dataset.rows import Rows
from surrogate.features.errors import InputError
from surrogate.models import model_class
from surrogate.models.baselines import GemmInterpolation, interpolated_rates, rate_tree
from tests.known import cases
from tests.tables import checked

POOL = {"window": 3, "window_w": 3, "stride": 2, "stride_w": 2, "pad": 0, "pad_w": 0}


def rows(operator: str, time_us: object, **columns: object) -> Rows:
    """Return rows of one operator on a T4 from columns by name."""
    frame = pd.DataFrame({**columns, "time_us": time_us}).assign(operator=operator, gpu="t4", library="torch")
    return together(frame)


def together(*frames: pd.DataFrame) -> Rows:
    """Return the rows of one family from raw columns."""
    frame = pd.concat(frames, ignore_index=True)
    fixed = {"library_version": "1", "algorithm": "default", "status": "ok"}
    return checked(frame.assign(**fixed))


def products(times_us: list[float], k: list[int]) -> Rows:
    """Return products of 64 × 64 over k."""
    return rows("bmm", times_us, batch=1, m=64, n=64, k=k)


def images(operator: str, time_us: np.ndarray, n: np.ndarray, **sizes: int) -> pd.DataFrame:
    """Return rows of one operator with ``n`` images of 8 × 16 × 16."""
    frame = pd.DataFrame({"n": n, "time_us": time_us})
    return frame.assign(operator=operator, gpu="t4", library="cudnn", c=8, h=16, w=16, **sizes)


@cases(__file__)
def test_interpolated_rate_equals_the_hand_calculation(point: tuple[float, float], expected: float) -> None:
    """The points are the grid of 2 and 4 × 10 and 30."""
    points = np.array([[2, 10], [2, 30], [4, 10], [4, 30]], dtype=float)
    rates = np.array([0.1, 0.2, 0.3, 0.6])
    assert interpolated_rates(rate_tree(points, np.column_stack([rates, rates])), point) == pytest.approx(expected)


def test_gemm_interpolation_equals_the_hand_calculation() -> None:
    """The time at k = 192 is the slower of interpolated multiply-adds and bytes; k = 128 was measured."""
    fitted = GemmInterpolation().fit(products([10.0, 40.0], [128, 256]))
    macs = [64 * 64 * 128 / 10, 64 * 64 * 256 / 40]
    moved = [4 * (2 * 64 * 128 + 64 * 64) / 10, 4 * (2 * 64 * 256 + 64 * 64) / 40]
    expected = max(64 * 64 * 192 / np.mean(macs), 4 * (2 * 64 * 192 + 64 * 64) / np.mean(moved))
    assert fitted.predict(products([1.0, 1.0], [192, 128])) == pytest.approx([expected, 10.0])
    outside = rows("gemm", [1.0], batch=1, m=64, n=64, k=[100])
    assert np.isnan(fitted.predict(outside)).all()
    assert model_class("gemm-interpolation") is GemmInterpolation  # seer compare --models


@pytest.mark.parametrize("scattered", [False, True])
def test_gemm_interpolation_is_exact_at_measured_points(scattered: bool) -> None:
    """k 96 and 100 round to one power of 2. The 3 × 3 points are a grid unless one is missing."""
    points = [(m, k) for m in (64, 100, 192) for k in (96, 100, 300)][: 8 if scattered else 9]
    times = [5.0 + 3.0 * (7 * i % 9) for i in range(len(points))]
    measured = rows("bmm", times, batch=1, m=[m for m, _ in points], n=64, k=[k for _, k in points])
    fitted = GemmInterpolation().fit(measured)
    assert fitted.predict(measured) == pytest.approx(times, rel=1e-6)
    if not scattered:  # m 82 lies halfway between 64 and 100
        low, high = (np.array([64 * m * 96, 4 * (64 * m + m * 96 + 64 * 96)]) for m in (64, 100))
        rates = (low / times[0] + high / times[3]) / 2
        query = np.array([64 * 82 * 96, 4 * (64 * 82 + 82 * 96 + 64 * 96)])
        between = fitted.predict(rows("bmm", [1.0], batch=1, m=[82], n=64, k=[96]))
        assert between == pytest.approx([(query / rates).max()])


def test_gemm_interpolation_refuses_other_families() -> None:
    relus = together(images("relu", np.ones(3), np.arange(1, 4)))
    with pytest.raises(InputError, match=relus.family.name):
        GemmInterpolation().fit(relus)


def test_seer_polynomials_recover_their_own_form() -> None:
    n = np.arange(1, 30)
    pooled = 1e-3 * n * 8 * 49.0 * 3 + 2e-3 * n * 8 * 256.0 + 5.0
    for measured in (
        together(images("relu", 1e-3 * n * 8 * 256 + 4.0, n)),
        together(images("max_pool_backward", pooled, n, **POOL)),
    ):
        train, test = measured.take(n % 2 == 0), measured.take(n % 2 == 1)
        assert SeerPolynomials().fit(train).predict(test) == pytest.approx(test.time_us, rel=1e-9)


def test_seer_polynomials_of_products_depend_on_the_width() -> None:
    """Narrow products take a·S_in + b·S_out + c·M + d with N rounded up to 32, wide ones a·M + b."""
    m = np.arange(1, 30) * 16
    for n, time_us in ((100, 1e-3 * m * 64 + 3e-6 * m * 128 * 64 + 5.0), (200, 1e-5 * m * 200 * 64 + 2.0)):
        measured = rows("gemm", time_us, batch=1, m=m, n=n, k=64)
        found = SeerPolynomials().fit(measured.take(m % 32 == 0)).predict(measured.take(m % 32 != 0))
        assert found == pytest.approx(time_us[m % 32 != 0], rel=1e-6)


def test_seer_polynomials_of_a_single_row_give_no_time() -> None:
    measured = together(images("relu", np.array([3.0]), np.array([2])))
    assert np.isnan(SeerPolynomials().fit(measured).predict(measured)).all()


def test_gradient_ratio_is_the_forward_fit_times_the_ratio() -> None:
    """The ratio is 1.5 for small and 2 for large images, and forward times are linear in n."""
    n = np.arange(1, 40)
    forward_us = 2e-3 * n * 2048 + 4.0
    backward_us = np.where(n < 20, 1.5, 2.0) * forward_us
    measured = together(images("relu", forward_us, n), images("relu_backward", backward_us, n))
    gradient = (measured.frame["operator"] == "relu_backward").to_numpy()
    np.testing.assert_allclose(forward_times(measured, measured.time_us), np.tile(forward_us, 2))
    found = GradientRatio().fit(measured).predict(measured)
    assert found[gradient] == pytest.approx(backward_us, rel=1e-6)
    assert np.isnan(found[~gradient]).all()
