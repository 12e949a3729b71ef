"""The one check of a whole number: a size, a count, a place in a list."""

from numbers import Real
from typing import Any

import numpy as np

from .errors import InputError, RowError

MAX_EXACT = 2**53
"""Sizes stay exact in float64, which the feature table and the formulas with rates use."""
MAX_INT32 = 2**31 - 1
"""Sizes of convolutions, batches and language models: cuDNN's descriptors hold int32."""


def whole(kind: str, name: str, value: Any, least: int = 1, most: int = MAX_EXACT) -> Any:
    """``value`` as a Python int, or an int64 array, from ``least`` to ``most``; `InputError` where it is none.

    ``kind`` begins the message: the operator, file or option that the number belongs to.
    """
    if isinstance(value, np.ndarray):
        return _whole_array(kind, name, value, least, most)
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or isinstance(value, bool) or number != value or not least <= number <= most:
        raise InputError(f"{kind}: {name} is {repr(value)[:40]}; a whole number from {least} to {most} is needed")
    return number


def _whole_array(kind: str, name: str, values: np.ndarray, least: int, most: int) -> np.ndarray:
    if values.dtype.kind not in "iuf":
        for position, value in enumerate(values.ravel().tolist()):
            if isinstance(value, bool) or not isinstance(value, Real):
                raise RowError(kind, position, f"{name} is {repr(value)[:40]}; a whole number is needed")
        values = values.astype(np.float64)
    wrong = ~((values >= least) & (values <= most) & (values == np.floor(values)))
    if wrong.any():
        needed = f"a whole number from {least} to {most} is needed"
        raise RowError(kind, int(np.flatnonzero(wrong)[0]), f"{name} is {values[wrong][0]}; {needed}")
    return values.astype(np.int64)
