"""Arithmetic on a Python number or a NumPy array: helper functions, a check of integers, and formulas.

A number stays a plain Python number, because a NumPy scalar operation costs twenty times as much. An array stays an
array. `ElementwiseFormula` is arithmetic over names. Its text is parsed into NumPy operations, and is never executed as
Python code. A formula may have numbers, names, + - * / // % **, comparisons, ``and``, ``or``, ``not``, and the
functions of `FUNCTIONS`. Formulas are computed in float64; a division by 0 gives infinity or NaN.
"""

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from numbers import Real
from typing import Any

import numpy as np

from .errors import InputError, RowError, nearest, read_toml, refusal

Number = Any
"""A Python int or float, or a NumPy array. All arrays of one call have the same shape."""


def ceil_div(a: Number, b: Number) -> Number:
    """Return ⌈a / b⌉, the smallest number of ``b`` that covers ``a``."""
    return -(-a // b)


def round_up(a: Number, multiple: Number) -> Number:
    """Return ``a``, rounded up to a multiple of ``multiple``."""
    return ceil_div(a, multiple) * multiple


def where(condition: Number, yes: Number, no: Number) -> Number:
    """Return ``yes`` where ``condition`` is true, else ``no``. The caller has computed both."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no


def maximum(a: Number, b: Number) -> Number:
    """Return the larger of two numbers, element by element."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.maximum(a, b)
    return a if a >= b else b


def minimum(a: Number, b: Number) -> Number:
    """Return the smaller of two numbers, element by element."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.minimum(a, b)
    return a if a <= b else b


def log2_for(x: Number) -> Callable[[Any], Any]:
    """Return NumPy's log2 if ``x`` is an array, else Python's. The check of the type costs more than a logarithm."""
    return np.log2 if isinstance(x, np.ndarray) else math.log2


def log2(x: Number) -> Number:
    """Return the base-2 logarithm of a positive number."""
    return np.log2(x) if isinstance(x, np.ndarray) else math.log2(x)


MAX_EXACT = 2**53
"""The largest size: float64, which features and formulas use, represents all integers up to it."""
MAX_INT32 = 2**31 - 1
"""The largest size of convolutions, batches and language models: cuDNN's descriptors hold int32."""


def checked_int(kind: str, name: str, value: Any, minimum: int = 1, maximum: int = MAX_EXACT) -> Any:
    """Return ``value`` as a Python int or an int64 array.

    Raises `InputError` if it is not a whole number from ``minimum`` to ``maximum``; the message begins with ``kind``:
    the operator, file or option of the number.
    """
    if isinstance(value, np.ndarray):
        return _int_array(kind, name, value, minimum, maximum)
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or isinstance(value, bool) or number != value or not minimum <= number <= maximum:
        raise InputError(f"{kind}: {name} is {repr(value)[:40]}; give a whole number from {minimum} to {maximum}")
    return number


def _int_array(kind: str, name: str, values: np.ndarray, low: int, high: int) -> np.ndarray:
    if values.dtype.kind not in "iuf":
        cells = values.ravel().tolist()
        wrong = [i for i, value in enumerate(cells) if isinstance(value, bool) or not isinstance(value, Real)]
        if wrong:  # one cell without a number makes texts of all cells
            position = next((i for i in wrong if not str(cells[i]).strip().lstrip("+-").isdecimal()), wrong[0])
            raise RowError(kind, position, f"{name} is {repr(cells[position])[:40]}; give a whole number")
        values = values.astype(np.float64)
    wrong = ~((values >= low) & (values <= high) & (values == np.floor(values)))
    if wrong.any():
        remedy = f"give a whole number from {low} to {high}"
        raise RowError(kind, int(np.flatnonzero(wrong)[0]), f"{name} is {values[wrong][0]}; {remedy}")
    return values.astype(np.int64)


MAX_CHARACTERS = 2000
"""Maximum length of a formula. It bounds the depth of the recursion over the formula's tree."""
Functions = Mapping[str, tuple[Callable[..., Any], int, int]]
FUNCTIONS: Functions = {
    "min": (lambda *values: reduce(np.minimum, values), 2, 8),
    "max": (lambda *values: reduce(np.maximum, values), 2, 8),
    "ceil": (np.ceil, 1, 1),
    "floor": (np.floor, 1, 1),
    "log2": (np.log2, 1, 1),
}
"""Name → the function, and its minimum and maximum numbers of arguments."""
_OPERATIONS: Mapping[type[ast.AST], Callable[..., Any]] = {
    getattr(ast, node): getattr(np, name) for node, name in read_toml(__file__)["operations"].items()
}
"""Operation in Python's grammar → NumPy's function."""
_Values = Mapping[str, Any]
_Compute = Callable[[_Values], Any]


@dataclass(frozen=True, slots=True)
class ElementwiseFormula:
    """A formula over ``names``. Two formulas of the same ``text`` are equal."""

    text: str
    names: frozenset[str] = field(compare=False)
    _compute: _Compute = field(compare=False, repr=False)

    @classmethod
    def parse(
        cls, text: str, context: str, available: Mapping[str, Any] | frozenset[str], functions: Functions = FUNCTIONS
    ) -> "ElementwiseFormula":
        """Return the formula in ``text``; it may use the ``available`` names and the ``functions``.

        Raises `InputError`, which begins with ``context``, if the text is no formula or uses another name.
        """
        if len(text) > MAX_CHARACTERS:
            raise InputError(f"{context}: {len(text)} characters; a formula has at most {MAX_CHARACTERS}")
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise InputError(f"{context}: {text!r} is not readable; write arithmetic, as in 2 * m * n * k") from None
        names: set[str] = set()
        try:
            compute = _compiled(tree, f"{context}: {text!r}", frozenset(available), names, functions)
        except RecursionError:
            raise refusal("operations", context=context) from None
        return cls(text, frozenset(names), compute)

    def value(self, values: _Values) -> Number:
        """Return the formula's value: a float, or a float64 array if there are arrays among ``values``."""
        with np.errstate(all="ignore"):
            result = self._compute(values)
        return np.asarray(result, dtype=np.float64) if np.ndim(result) else float(result)


def _compiled(
    node: ast.expr, context: str, available: frozenset[str], names: set[str], functions: Functions
) -> _Compute:
    """Return a function that computes a node from the values of names; the node's names are added to ``names``.

    Raises `InputError` for an unknown name and for anything but arithmetic.
    """

    def inner(child: ast.expr) -> _Compute:
        return _compiled(child, context, available, names, functions)

    match node:
        case ast.Constant(value=bool() | int() | float() as number) if abs(number) < 2**63:
            constant = float(number)
            return lambda values: constant
        case ast.Name(id=name):
            if name not in available:
                listed = ", ".join(sorted(available))
                raise InputError(f"{context} uses {name}, which is unknown; known: {listed}{nearest(name, available)}")
            names.add(name)
            return lambda values: np.asarray(values[name], dtype=np.float64)
        case ast.UnaryOp() if type(node.op) in _OPERATIONS:
            unary, operand = _OPERATIONS[type(node.op)], inner(node.operand)
            return lambda values: unary(operand(values))
        case ast.BinOp() if type(node.op) in _OPERATIONS:
            binary, left, right = _OPERATIONS[type(node.op)], inner(node.left), inner(node.right)
            return lambda values: binary(left(values), right(values))
        case ast.BoolOp():
            joined, parts = _OPERATIONS[type(node.op)], [inner(part) for part in node.values]
            return lambda values: reduce(joined, [part(values) for part in parts])
        case ast.Compare() if all(type(each) in _OPERATIONS for each in node.ops):
            compares = [_OPERATIONS[type(each)] for each in node.ops]
            sides = [inner(side) for side in (node.left, *node.comparators)]

            def compare_all(values: _Values) -> Any:
                numbers = [side(values) for side in sides]
                pairs = zip(compares, numbers, numbers[1:], strict=False)
                return reduce(np.logical_and, [compare(a, b) for compare, a, b in pairs])

            return compare_all
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in functions:
            function, low, high = functions[name]
            arguments = [inner(argument) for argument in node.args]
            if not low <= len(arguments) <= high:
                raise InputError(f"{context}: {name} takes {low}{f' to {high}' * (high > low)} arguments")
            return lambda values: function(*(argument(values) for argument in arguments))
    raise refusal("arithmetic", context=context, part=ast.unparse(node), functions=", ".join(functions))
