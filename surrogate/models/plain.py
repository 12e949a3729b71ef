"""Fitted values as JSON holds them, and back: dataclasses, arrays, mappings and tuples. Needs numpy alone.

What is read may come from a file that somebody changed: `from_plain` takes nothing but values of the declared types,
and of those only finite numbers that a fit can give.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import cache
from math import isnan
from reprlib import repr as short
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np

from surrogate.features.errors import InputError

REMEDY = "train the bundle again with `seer train`"
GREATEST = 1e18
"""Above every number that a bundle holds; beyond it, sums and products of a few would not be finite."""
_LEAVES = {float: {float, int}, int: {int}, str: {str}, bool: {bool}, NoneType: {NoneType}}
"""Type → the types of the JSON values that it takes."""


class Rule(NamedTuple):
    """What values must be beside their type, as in ``Annotated[float, Rule(…)]``: one test for all of them at once."""

    text: str
    holds: Callable[[Sequence[Any]], bool]

    def require(self, values: Sequence[Any], name: str) -> None:
        """Raise `InputError` for the first of the values that is against the rule."""
        if not self.holds(values):
            wrong = next(value for value in values if not self.holds([value]))
            raise InputError(f"{name} holds {short(wrong)}, where the rule is: {self.text}")


def between(least: float, greatest: float) -> Rule:
    """Numbers of that range."""
    return Rule(f"from {least:g} to {greatest:g}", lambda each: not each or least <= min(each) <= max(each) <= greatest)


NOT_EMPTY = Rule("not empty", all)
Count = Annotated[int, between(0, 2**62)]
Share = Annotated[float, between(0, 1)]
Microseconds = Annotated[float, between(0, 1e12)]
_FINITE = Rule(
    "finite numbers", lambda values: max(map(abs, values), default=0) <= GREATEST and not isnan(sum(map(abs, values)))
)
_LIST = Rule("a list", lambda values: set(map(type, values)) <= {list})
_OBJECT = Rule("an object", lambda values: set(map(type, values)) <= {dict})


def to_plain(value: object) -> object:
    """A dataclass becomes an object of its fields, an array or a tuple a list, a mapping's key a text."""
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {joined(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [to_plain(item) for item in value] if isinstance(value, list | tuple) else value


def from_plain(kind: Any, value: Any, name: str = "content") -> Any:
    """The inverse of `to_plain` for a type: a dataclass, an array, ``Mapping``, ``tuple[X, ...]``, ``X | Y``.

    A ``TypedDict`` stays the object that it is, and may have more keys. A key of several names is one text, of which
    the first name may hold the sign that parts them. Raises `InputError`, which calls the content ``name``, for a value
    that is not of the type or against a `Rule`.
    """
    return _read(kind, [value], name)[0]


def _read(kind: Any, values: list[Any], name: str) -> list[Any]:
    """Values of one kind at once: the parts of a bundle hold thousands of plain ones."""
    is_leaf, origin, arguments = _form(kind)
    if is_leaf:
        is_leaf.require(values, name)
        if kind is not str:
            _FINITE.require([value for value in values if type(value) in (int, float)], name)
        return values
    if kind is Any:
        return values
    if origin is Annotated:
        results = _read(arguments[0], values, name)
        for rule in arguments[1:]:
            rule.require(results, name)
        return results
    if origin in (UnionType, Union):  # of None and something that is no leaf
        (other,) = (each for each in arguments if each is not NoneType)
        return [None if value is None else from_plain(other, value, name) for value in values]
    if origin is tuple:
        _LIST.require(values, name)
        return [tuple(_read(arguments[0], value, name)) for value in values]
    if kind is np.ndarray:
        return _arrays(values, name)
    _OBJECT.require(values, name)
    if origin is Mapping:
        items = [_read(arguments[1], list(value.values()), name) for value in values]
        return [
            {_key(arguments[0], text, name): item for text, item in zip(value, each, strict=True)}
            for value, each in zip(values, items, strict=True)
        ]
    types = _types(kind)
    is_dict = is_typeddict(kind)
    for value in values:
        if missing := (kind.__required_keys__ if is_dict else types.keys()) - value.keys():
            raise InputError(f"{name} lacks {', '.join(sorted(missing))}")
    columns = [_read(each, [row[key] for row in values if key in row], f"{name}.{key}") for key, each in types.items()]
    return values if is_dict else [kind(**dict(zip(types, row, strict=True))) for row in zip(*columns, strict=True)]


@cache
def _form(kind: Any) -> tuple[Rule | None, Any, tuple[Any, ...]]:
    """What JSON values of a plain type or a union of such must be (else None), its origin and arguments."""
    arguments = get_args(kind)
    plain = arguments if get_origin(kind) in (UnionType, Union) else (kind,)
    leaves = set().union(*(_LEAVES.get(each, ()) for each in plain))
    rule = Rule(f"of type {getattr(kind, '__name__', kind)}", lambda values: set(map(type, values)) <= leaves)
    return rule if set(plain) <= set(_LEAVES) else None, get_origin(kind), arguments


def _arrays(values: list[Any], name: str) -> list[np.ndarray]:
    """The arrays of lists of numbers, or of lists of equal length."""
    with suppress(TypeError, ValueError, OverflowError):  # lists of unequal lengths, or too deep
        array = np.array(values)
        if array.ndim > 1 and array.dtype.kind in "iuf" and (np.abs(array) <= GREATEST).all():
            return list(array)
    if len(values) == 1:
        raise InputError(f"{name} holds {short(values[0])}, where the rule is: lists of finite numbers")
    return [_arrays([value], name)[0] for value in values]


@cache
def _types(kind: Any) -> dict[str, Any]:
    """Name → type of a class's fields."""
    return get_type_hints(kind, include_extras=True)


def joined(key: object) -> str:
    """A key as a text, as JSON needs it: its fields, those of tuples one by one, with | between; None is left out.

    Nothing where all fields are empty.
    """
    if not isinstance(key, tuple):
        return str(key)
    return "|".join(joined(field) for field in key if field not in (None, ())) if any(key) else ""


def _key(kind: Callable[..., object], text: str, name: str) -> object:
    """The key of that type and text."""
    if kind is str:
        return text
    names = getattr(kind, "_fields", ())
    try:
        return kind(*(text.rsplit("|", len(names) - 1) if text else [""] * len(names))) if names else kind(text)
    except (TypeError, ValueError):
        raise InputError(f"{name} has the key {short(text)}, which is not of its kind") from None


@contextmanager
def reading(part: str) -> Iterator[None]:
    """Whatever a damaged ``part`` of a bundle makes its reader raise becomes an `InputError` of one line."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{part}: {str(error).removesuffix(f'; {REMEDY}')}; {REMEDY}") from None
    except Exception as error:  # parsers of JSON, of archives and of tables have no common base
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        raise InputError(f"{part}: cannot be read ({reason}); {REMEDY}") from None
