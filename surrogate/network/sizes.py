"""Symbolic sizes as exported programs write them, ``Mul(Integer(2), Symbol('s0', …))``: read as text, never run."""

import ast
from collections.abc import Callable, Mapping
from math import prod

from surrogate.features.elementwise import ceil_div
from surrogate.features.errors import InputError

MAX_LETTERS = 2000

_FUNCTIONS: dict[str, Callable[..., int]] = {
    "Add": lambda *values: sum(values),
    "Mul": lambda *values: prod(values),
    "Max": max,
    "Min": min,
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "CeilDiv": ceil_div,
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
}


def evaluated(text: str, known: Mapping[str, int]) -> int:
    """The value of an expression. Raises `InputError` for anything beyond whole-number arithmetic."""
    return _value(_tree(text), known, text)


def symbols(text: str) -> set[str]:
    """The names of an expression's symbols."""
    found = set()
    for node in ast.walk(_tree(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Symbol":
            found |= {
                one.value
                for one in node.args[:1]
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
            }
    return found


def _tree(text: str) -> ast.expr:
    if len(text) > MAX_LETTERS:
        raise InputError(f"a size of {len(text)} letters; expressions up to {MAX_LETTERS} are read")
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _unreadable(text) from None


def _value(node: ast.expr, known: Mapping[str, int], text: str) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, known, text)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
        raise _unreadable(text)
    name, first = node.func.id, node.args[0]
    if name == "Symbol" and isinstance(first, ast.Constant) and first.value in known:
        return known[str(first.value)]
    if name == "Integer":
        return _value(first, known, text)
    if name not in _FUNCTIONS:
        raise _unreadable(text)
    try:
        return int(_FUNCTIONS[name](*(_value(one, known, text) for one in node.args)))
    except (TypeError, ZeroDivisionError, OverflowError):
        raise _unreadable(text) from None


def _unreadable(text: str) -> InputError:
    return InputError(
        f"size {text[:80]!r} is not whole-number arithmetic on known symbols; export with fixed sizes"
    )
