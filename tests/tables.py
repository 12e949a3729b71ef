"""Invented tables for tests: all combinations of some values, and the rows of a raw table."""

from collections.abc import Callable, Iterable
from itertools import product

import pandas as pd

from surrogate.dataset.checks import normalise
from surrogate.dataset.rows import Rows, rows_of

Table = Callable[..., pd.DataFrame]
"""The fixture `table`."""


def every(**columns: Iterable[object]) -> pd.DataFrame:
    """Return a row for each combination of the columns' values. The last column changes fastest."""
    return pd.DataFrame(list(product(*columns.values())), columns=list(columns))


def checked(frame: pd.DataFrame) -> Rows:
    """Return the rows of a raw table of one family."""
    return rows_of(normalise(frame, "test"))
