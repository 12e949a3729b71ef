"""Sizes in bytes, and the memory of recent answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.features.errors import InputError
from surrogate.prediction.limits import UNITS, parse_bytes
from surrogate.prediction.recent import Recent


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1048576", 2**20), ("64MiB", 64 * 2**20), ("1GB", 10**9), ("1.5 GiB", 3 * 2**29), ("0", 0), ("2k", 2000),
        (" 8 kb ", 8000), ("0.5kib", 512), ("1TiB", 2**40),
    ],
)  # fmt: skip
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@given(st.integers(0, 10**15), st.sampled_from(sorted(UNITS)))
def test_whole_numbers_of_every_unit(number: int, unit: str) -> None:
    assert parse_bytes(f"{number}{unit}") == number * UNITS[unit] == parse_bytes(f"{number} {unit.upper()}")


@pytest.mark.parametrize(
    "text", ["", "-1", "1e9", "64 miles", "MiB", "1,5GB", "0x10", "1 2", "9" * 30, "inf"]
)
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="64MiB"):
        parse_bytes(text)


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(1, 12))
def test_recent_is_bounded_and_never_wrong(keys: list[int], size: int) -> None:
    recent = Recent(size)
    for key in keys:
        found = recent.get(key)
        assert found in (None, f"answer {key}")
        recent.put(key, f"answer {key}")
        assert recent.get(key) == f"answer {key}"
        assert len(recent) <= max(size, 2)


def test_recent_keeps_what_is_asked_for() -> None:
    recent = Recent(8)
    recent.put("kept", 1)
    for number in range(100):
        assert recent.get("kept") == 1
        recent.put(number, number)
    assert recent.get(0) is None
