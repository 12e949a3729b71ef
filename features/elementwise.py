"""Arithmetic that serves a Python number and a NumPy array alike, so that each formula is written once.

A scalar stays a plain Python number (a NumPy scalar operation costs twenty times as much), an array stays an array.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Number = Any
"""A Python int or float, or a NumPy array of them; every argument of one call has the same shape or is a scalar."""


def ceil_div(a: Number, b: Number) -> Number:
    """The smallest whole number of ``b`` that covers ``a``: ⌈a / b⌉."""
    return -(-a // b)


def round_up(a: Number, multiple: Number) -> Number:
    """``a`` rounded up to a multiple of ``multiple``."""
    return ceil_div(a, multiple) * multiple


def where(condition: Number, yes: Number, no: Number) -> Number:
    """``yes`` where ``condition`` holds, else ``no``; with arrays both sides have been computed."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no


def maximum(a: Number, b: Number) -> Number:
    """The larger of the two, element by element."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.maximum(a, b)
    return a if a >= b else b


def minimum(a: Number, b: Number) -> Number:
    """The smaller of the two, element by element."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.minimum(a, b)
    return a if a <= b else b


def log2_for(x: Number) -> Callable[[Any], Any]:
    """`log2` for what is of the same kind as ``x``, decided once: the choice costs more than a number's logarithm."""
    return np.log2 if isinstance(x, np.ndarray) else math.log2


def log2(x: Number) -> Number:
    """Base-2 logarithm of a positive number."""
    return np.log2(x) if isinstance(x, np.ndarray) else math.log2(x)
