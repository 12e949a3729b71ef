"""Numbers of any locale."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.features.errors import InputError
from surrogate.formats.locale_number import decimal_mark, parse_number


@pytest.mark.parametrize(
    ("texts", "mark"),
    [
        (["4,963,609,951.19"], "."),
        (["4.963.609.951,19"], ","),
        (["12,319,469"], "."),
        (["12.319.469"], ","),
        (["61.84", "1,024"], "."),
        (["61,84", "1.024"], ","),
        (["1,024"], "."),
        (["n/a", "CachePreferNone", ""], "."),
        (["1e-3", "1.5e+06"], "."),
    ],
)
def test_decimal_mark(texts: list[str], mark: str) -> None:
    assert decimal_mark(texts, "file") == mark


def test_contradiction() -> None:
    with pytest.raises(InputError, match=r"^file: '1.25' and '1,25' use different decimal marks"):
        decimal_mark(["1,25", "1.25"], "file")


@given(
    st.integers(0, 10**12), st.sampled_from([(",", "."), (".", ","), ("\u202f", ","), ("'", "."), ("", ".")])
)
def test_round_trip(hundredths: int, marks: tuple[str, str]) -> None:
    thousands, decimal = marks
    english = f"{hundredths // 100:,}.{hundredths % 100:02d}"
    text = english.replace(",", "T").replace(".", decimal).replace("T", thousands)
    mark = decimal_mark([text], "file")
    assert mark == decimal
    assert parse_number(text, mark) == float(english.replace(",", ""))


@given(st.text(max_size=12), st.sampled_from(".,"))
def test_anything_is_a_number_or_none(text: str, mark: str) -> None:
    value = parse_number(text, mark)
    assert value is None or isinstance(value, float)
