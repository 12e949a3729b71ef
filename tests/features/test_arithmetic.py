"""Formulas evaluate like Python's arithmetic and refuse everything else."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from surrogate.features.elementwise import FUNCTIONS, ElementwiseFormula
from surrogate.features.errors import InputError
from tests.known import cases


def value(text: str, **values: float | np.ndarray) -> float | np.ndarray:
    return ElementwiseFormula.parse(text, "here", values).value(values)


@cases(__file__)
def test_formula_gives_the_known_answer(text: str, expected: float) -> None:
    assert value(text, a=3, b=4) == expected
    arrays = value(text, a=np.array([3, 3]), b=np.array([4, 4]))
    assert isinstance(arrays, np.ndarray)
    assert arrays.tolist() == [expected, expected]


def _combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    sums = st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map("({0[0]} {0[1]} {0[2]})".format)
    return sums | st.tuples(st.sampled_from(["min", "max"]), inner, inner).map("{0[0]}({0[1]}, {0[2]})".format)


@given(st.recursive(st.sampled_from(["a", "b", "2", "0.5"]), _combined, max_leaves=12))
def test_formula_gives_the_same_value_as_python(text: str) -> None:
    names = {"a": 3.0, "b": -1.5, "min": min, "max": max}
    assert value(text, a=3.0, b=-1.5) == pytest.approx(eval(text, {"__builtins__": {}}, names))


@cases(__file__)
def test_other_syntax_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError, match=r"^here") as error:
        value(text, a=1, b=2)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["a / 0", "log2(0 - a)", "9 ** 9 ** 9 ** 9", "0 / 0"])
def test_undefined_value_is_infinite_or_nan(text: str) -> None:
    assert not math.isfinite(value(text, a=1))


def test_formula_lists_its_variables() -> None:
    formula = ElementwiseFormula.parse("ceil(m / block_m) + max(n, 2)", "here", frozenset({"m", "n", "k", "block_m"}))
    assert formula.names == {"m", "n", "block_m"}
    assert not formula.names & FUNCTIONS.keys()
