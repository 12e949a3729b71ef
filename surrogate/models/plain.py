"""Fitted values as JSON holds them, and back: dataclasses, arrays, mappings and tuples. Needs numpy alone."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np


def to_plain(value: Any) -> Any:
    """A dataclass becomes an object of its fields, an array or a tuple a list, a mapping's key a text."""
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [to_plain(item) for item in value] if isinstance(value, list | tuple) else value


def from_plain(kind: Any, value: Any) -> Any:
    """The inverse of `to_plain` for a type: a dataclass, an array, ``Mapping``, ``tuple[X, ...]``, ``X | None``."""
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        types = get_type_hints(kind)
        return kind(**{f.name: from_plain(types[f.name], value[f.name]) for f in fields(kind)})
    if kind is np.ndarray:
        return np.array(value)
    if origin is Mapping:
        return {arguments[0](key): from_plain(arguments[1], item) for key, item in value.items()}
    if origin is tuple:
        return tuple(from_plain(arguments[0], item) for item in value)
    return from_plain(arguments[0], value) if origin is UnionType and value is not None else value
