"""Arithmetic that serves a Python number and a NumPy array alike: helpers, the check of whole numbers, and formulas.

A scalar stays a plain Python number (a NumPy scalar operation costs twenty times as much), an array stays an array.
`ElementwiseFormula` is plain arithmetic over names. It is parsed, never executed. It knows numbers, names,
+ - * / // % **, comparisons, ``and``, ``or``, ``not``, and the functions of `FUNCTIONS`. Formulas are
computed in float64; a division by 0 gives infinity or NaN.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from numbers import Real
from typing import Any

import numpy as np

from .errors import InputError, RowError, nearest

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


MAX_EXACT = 2**53
"""Sizes stay exact in float64, which the feature table and the formulas with rates use."""
MAX_INT32 = 2**31 - 1
"""Sizes of convolutions, batches and language models: cuDNN's descriptors hold int32."""


def checked_int(kind: str, name: str, value: Any, minimum: int = 1, maximum: int = MAX_EXACT) -> Any:
    """``value`` as a Python int, or an int64 array, from ``minimum`` to ``maximum``; `InputError` where it is none.

    ``kind`` begins the message: the operator, file or option that the number belongs to.
    """
    if isinstance(value, np.ndarray):
        return _whole_array(kind, name, value, minimum, maximum)
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or isinstance(value, bool) or number != value or not minimum <= number <= maximum:
        raise InputError(f"{kind}: {name} is {repr(value)[:40]}; a whole number from {minimum} to {maximum} is needed")
    return number


def _whole_array(kind: str, name: str, values: np.ndarray, minimum: int, maximum: int) -> np.ndarray:
    if values.dtype.kind not in "iuf":
        for position, value in enumerate(values.ravel().tolist()):
            if isinstance(value, bool) or not isinstance(value, Real):
                raise RowError(kind, position, f"{name} is {repr(value)[:40]}; a whole number is needed")
        values = values.astype(np.float64)
    wrong = ~((values >= minimum) & (values <= maximum) & (values == np.floor(values)))
    if wrong.any():
        needed = f"a whole number from {minimum} to {maximum} is needed"
        raise RowError(kind, int(np.flatnonzero(wrong)[0]), f"{name} is {values[wrong][0]}; {needed}")
    return values.astype(np.int64)


MAX_CHARACTERS = 2000
"""Longest formula: its tree is then shallow enough for any recursion."""
FUNCTIONS: Mapping[str, tuple[Callable[..., Any], int, int]] = {
    "min": (lambda *values: reduce(np.minimum, values), 2, 8),
    "max": (lambda *values: reduce(np.maximum, values), 2, 8),
    "ceil": (np.ceil, 1, 1),
    "floor": (np.floor, 1, 1),
    "log2": (np.log2, 1, 1),
}
"""Name → what it computes, and how many arguments it takes at least and at most."""
_OPERATIONS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.true_divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
    ast.Pow: np.power,
    ast.USub: np.negative,
    ast.UAdd: np.positive,
    ast.Not: np.logical_not,
    ast.And: np.logical_and,
    ast.Or: np.logical_or,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_Values = Mapping[str, Any]
_Compute = Callable[[_Values], Any]


@dataclass(frozen=True, slots=True)
class ElementwiseFormula:
    """A formula over ``names``; two of one ``text`` are equal."""

    text: str
    names: frozenset[str] = field(compare=False)
    _compute: _Compute = field(compare=False, repr=False)

    @classmethod
    def parse(cls, text: str, where: str, available: Mapping[str, Any] | frozenset[str]) -> "ElementwiseFormula":
        """The formula of a text over ``available`` names; ``where`` begins the message of an `InputError`."""
        if len(text) > MAX_CHARACTERS:
            raise InputError(f"{where}: {len(text)} characters; a formula has at most {MAX_CHARACTERS}")
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise InputError(f"{where}: {text!r} is not readable; write arithmetic, as in 2 * m * n * k") from None
        names: set[str] = set()
        compute = _computed(tree, f"{where}: {text!r}", frozenset(available), names)
        return cls(text, frozenset(names), compute)

    def value(self, values: _Values) -> Number:
        """Its value where every name has one: a float, or a float64 array as long as the arrays among ``values``."""
        with np.errstate(all="ignore"):
            result = self._compute(values)
        return np.asarray(result, dtype=np.float64) if np.ndim(result) else float(result)


def _computed(node: ast.expr, where: str, available: frozenset[str], names: set[str]) -> _Compute:
    """The function of the names' values that a node stands for; ``names`` gets those that it asks for.

    Raises `InputError` for an unknown name and for anything that is no arithmetic.
    """

    def inner(child: ast.expr) -> _Compute:
        return _computed(child, where, available, names)

    match node:
        case ast.Constant(value=bool() | int() | float() as number) if abs(number) < 2**63:
            constant = float(number)
            return lambda values: constant
        case ast.Name(id=name):
            if name not in available:
                raise InputError(
                    f"{where} asks for {name}; known: {', '.join(sorted(available))}{nearest(name, available)}"
                )
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

            def chain(values: _Values) -> Any:
                numbers = [side(values) for side in sides]
                pairs = zip(compares, numbers, numbers[1:], strict=False)
                return reduce(np.logical_and, [compare(a, b) for compare, a, b in pairs])

            return chain
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in FUNCTIONS:
            function, minimum, maximum = FUNCTIONS[name]
            arguments = [inner(argument) for argument in node.args]
            if not minimum <= len(arguments) <= maximum:
                raise InputError(f"{where}: {name} takes {minimum}{f' to {maximum}' * (maximum > minimum)} arguments")
            return lambda values: function(*(argument(values) for argument in arguments))
    raise InputError(
        f"{where}: {ast.unparse(node)!r} is no plain arithmetic; known are numbers, names, + - * / // % **,"
        f" comparisons, and, or, not, {', '.join(FUNCTIONS)}"
    )
