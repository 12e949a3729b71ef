"""Symbolic sizes: arithmetic, and nothing else."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.features.errors import InputError
from surrogate.network.exported import evaluated, symbols

N = "Symbol('s0', positive=True, integer=True)"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Integer(7)", 7),
        ("-3", -3),
        (N, 5),
        (f"Mul(Integer(2), {N})", 10),
        (f"Add(Integer(-1), Mul({N}, {N}))", 24),
        (f"FloorDiv({N}, Integer(2))", 2),
        (f"CeilDiv({N}, Integer(2))", 3),
        (f"Max(Integer(8), {N})", 8),
        (f"Mod({N}, Integer(3))", 2),
    ],
)
def test_known_values(text: str, value: int) -> None:
    """With s0 = 5."""
    assert evaluated(text, {"s0": 5}) == value


def test_symbols() -> None:
    """Names, each once."""
    assert symbols(f"Add({N}, Symbol('s7'), {N})") == {"s0", "s7"}


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')", "open('x')", "().__class__", "Symbol('other')", "Integer('3')", "FloorDiv(3, 0)", "1 +",
        "Pow(2, 10**9)", "lambda: 0", "Mul", "Integer()", "(" * 500, "9" * 3000, "FloorDiv(3)",
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    """Unknown functions, names, texts."""
    with pytest.raises(InputError):
        evaluated(text, {"s0": 5})


@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    """A number or one line."""
    with contextlib.suppress(InputError):
        assert isinstance(evaluated(text, {}), int)
