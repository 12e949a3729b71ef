"""Arithmetic for numbers and arrays alike."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.features.elementwise import ceil_div, log2, maximum, minimum, round_up, where

WHOLE = st.integers(0, 10**12)
STEP = st.integers(1, 10**6)


@given(WHOLE, STEP)
def test_ceil_div_is_the_least_cover(a: int, b: int) -> None:
    q = ceil_div(a, b)
    assert q * b >= a and (q - 1) * b < a
    assert ceil_div(np.array([a]), np.array([b])).tolist() == [q]


@given(WHOLE, STEP)
def test_round_up_is_the_least_multiple_above(a: int, b: int) -> None:
    up = round_up(a, b)
    assert up % b == 0 and 0 <= up - a < b


def test_ceil_div_takes_floats() -> None:
    assert ceil_div(2.5, 1.0) == 3.0
    assert ceil_div(240, 120.0) == 2.0


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
def test_maximum_minimum_and_where_agree_for_arrays(a: float, b: float) -> None:
    assert maximum(a, b) == max(a, b) and minimum(a, b) == min(a, b)
    both = np.array([a]), np.array([b])
    assert maximum(*both).tolist() == [max(a, b)] and minimum(*both).tolist() == [min(a, b)]
    assert maximum(both[0], b).tolist() == [max(a, b)]
    assert where(a < b, a, b) == min(a, b)
    assert where(both[0] < both[1], *both).tolist() == [min(a, b)]


@given(st.floats(1e-9, 1e18))
def test_log2_agrees_for_arrays(x: float) -> None:
    assert log2(np.array([x]))[0] == pytest.approx(log2(x), rel=1e-12, abs=1e-12)
    assert log2(x) == math.log2(x)


def test_scalars_stay_plain() -> None:
    assert type(ceil_div(7, 2)) is int
    assert type(maximum(1, 2)) is int
    assert type(log2(8)) is float
    assert type(where(True, 1, 2)) is int
