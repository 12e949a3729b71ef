"""Numbers as text."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.report import cells


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (math.nan, "–"), (1.0, "1.000"), (1.01249, "1.012"), (12.345, "12.3"), (4321.0, "4,321"),
     (math.inf, "∞"), (3.2e9, "3.2e+09")],
)  # fmt: skip
def test_ratio(value: float | None, text: str) -> None:
    assert cells.ratio(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0, "0.00"), (0.0054, "0.54"), (0.1234, "12.3"), (37.68, "3,768"), (1e9, "1.0e+11")],
)
def test_percent(value: float | None, text: str) -> None:
    assert cells.percent(value) == text


def test_share_never_rounds_up_to_all() -> None:
    assert cells.share(1.0) == "100"
    assert cells.share(0.99999) == "99.9"
    assert cells.share(0.0) == "0"
    assert cells.share(0.964) == "96.4"


@pytest.mark.parametrize(
    ("log", "text"), [(0.0, "+0.0"), (-0.075, "−7.2"), (0.1, "+10.5"), (None, "–"), (12.0, "+2e+07")]
)
def test_log_change(log: float | None, text: str) -> None:
    assert cells.log_change(log) == text


@pytest.mark.parametrize(
    ("time_us", "text"), [(0.5, "500 ns"), (10.0, "10 µs"), (1000.0, "1 ms"), (2.5e5, "250 ms"), (1e6, "1 s")]
)
def test_time_takes_the_unit_that_suits(time_us: float, text: str) -> None:
    assert cells.time(time_us) == text


@given(st.floats(0, 1e30))
def test_columns_stay_narrow(value: float) -> None:
    assert len(cells.ratio(value)) <= 8
    assert len(cells.percent(value)) <= 8
