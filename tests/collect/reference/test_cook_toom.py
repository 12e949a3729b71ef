"""The transforms: the identity in rational numbers, the published F(2, 3), and the error in float32."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.collect.reference.cook_toom import POINTS, Matrix, transforms

SIZES = [(m, r) for m in range(1, 8) for r in range(1, 8) if m + r - 2 <= len(POINTS)]
numbers = st.fractions(min_value=-100, max_value=100, max_denominator=50)


def apply(matrix: Matrix, vector: list[Fraction]) -> list[Fraction]:
    """Matrix times vector, exactly."""
    return [sum((a * b for a, b in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]


@given(st.sampled_from(SIZES), st.data())
def test_is_exactly_the_correlation(size: tuple[int, int], data: st.DataObject) -> None:
    m, r = size
    t = m + r - 1
    d = data.draw(st.lists(numbers, min_size=t, max_size=t))
    g = data.draw(st.lists(numbers, min_size=r, max_size=r))
    found = transforms(m, r)
    products = [a * b for a, b in zip(apply(found.filter, g), apply(found.input, d), strict=True)]
    assert apply(found.output, products) == [sum(d[i + j] * g[j] for j in range(r)) for i in range(m)]


def test_f23_is_lavin_and_grays_up_to_signs() -> None:
    """Their Bᵀ, G and Aᵀ for F(2, 3); a factor may move between the three, here only a sign."""
    found = transforms(2, 3)
    half = Fraction(1, 2)
    published = [[1, 0, 0], [half, half, half], [half, -half, half], [0, 0, 1]]
    assert [[abs(value) for value in row] for row in found.filter] == [
        [abs(v) for v in row] for row in published
    ]
    assert {abs(value) for row in found.input for value in row} == {0, 1}
    assert [[abs(value) for value in row] for row in found.output] == [[1, 1, 1, 0], [0, 1, 1, 1]]


@pytest.mark.parametrize(("m", "r", "bound"), [(2, 3, 2e-7), (4, 3, 1e-6), (4, 5, 5e-6)])
def test_float32_keeps_the_error_small(m: int, r: int, bound: float) -> None:
    """Error of one two-dimensional tile in float32, over 2,000 random tiles."""
    at, g, bt = transforms(m, r).float32()
    random = np.random.default_rng(0)
    d = random.standard_normal((2000, m + r - 1, m + r - 1), dtype=np.float32)
    w = random.standard_normal((2000, r, r), dtype=np.float32)
    y = at @ ((g @ w @ g.T) * (bt @ d @ bt.T)) @ at.T
    assert y.dtype == np.float32
    windows = np.lib.stride_tricks.sliding_window_view(d.astype(np.float64), (r, r), axis=(1, 2))
    exact = np.einsum("tijrs,trs->tij", windows, w.astype(np.float64))
    assert np.linalg.norm(y - exact) / np.linalg.norm(exact) < bound


def test_refuses_more_points_than_it_knows() -> None:
    with pytest.raises(ValueError, match="interpolation points"):
        transforms(6, 5)
