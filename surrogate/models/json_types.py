"""Convert fitted values to JSON types and back: dataclasses, arrays, mappings and tuples.

A file may have been changed since it was written. So `from_json_types` accepts only values of the declared types, and
only finite numbers that a fit can give.
"""

import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from reprlib import repr as short
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, get_args

import msgspec
import numpy as np
from msgspec import Meta

from surrogate.features.errors import InputError

REMEDY = "train the bundle again with `seer train`"
MAX_NUMBER = 1e18
"""Larger than every number in a bundle. Sums and products of a few larger numbers would not be finite."""
DAMAGE = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, OSError, EOFError, MemoryError),
    *(RuntimeError, struct.error, zipfile.BadZipFile, zlib.error),
)
"""Exceptions that parsers of JSON, archives, arrays and tables raise for damaged content. They have no common base."""
Number = Annotated[float, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
Count = Annotated[int, Meta(ge=0, le=2**62)]
Share = Annotated[float, Meta(ge=0, le=1)]
Microseconds = Annotated[float, Meta(ge=0, le=1e12)]

if TYPE_CHECKING:
    from collections.abc import Mapping as Keyed
else:
    Key, Item = TypeVar("Key"), TypeVar("Item")

    class Keyed(Generic[Key, Item], dict):
        """A mapping whose keys are NamedTuples of texts. In JSON, a key is one text (`key_text`)."""


def to_json_types(value: object) -> object:
    """Return JSON types: dataclasses become objects of their fields, arrays become lists, keys become texts."""
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {key: to_json_types(getattr(value, name)) for key, name in names}
    if is_dataclass(value):
        return {field.name: to_json_types(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key_text(key): to_json_types(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [to_json_types(item) for item in value] if isinstance(value, list | tuple) else value


def from_json_types(kind: Any, value: Any, name: str = "content") -> Any:
    """Return a ``kind`` from the output of `to_json_types`: a dataclass, TypedDict, array, mapping, tuple or number.

    Raise `InputError`, which begins with ``name``, if a value has another type or is outside its limits.
    """
    try:
        return msgspec.convert(value, kind, dec_hook=_custom, str_keys=True)
    except msgspec.ValidationError as error:
        raise InputError(f"{name}: {error}") from None


def _custom(kind: Any, value: Any) -> object:
    """Return an array or a `Keyed`. Raise `ValueError` for any other value."""
    if kind is np.ndarray:
        with suppress(TypeError, ValueError, OverflowError):  # lists of unequal lengths, or too deep
            array = np.array(value)
            if array.ndim and array.dtype.kind in "iuf" and (np.abs(array) <= MAX_NUMBER).all():
                return array
        raise ValueError(f"{short(value)} is not lists of finite numbers")
    key, item = get_args(kind)
    try:
        items = msgspec.convert(value, Mapping[str, item], dec_hook=_custom, str_keys=True)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None  # so that msgspec adds the position of the mapping
    return Keyed({_key(key, text): each for text, each in items.items()})  # pyright: ignore


def _key(kind: Callable[..., object], text: str) -> object:
    """Return the key of a text. Its first field may contain the separator."""
    names = kind._fields  # pyright: ignore[reportFunctionMemberAccess]
    texts = text.rsplit("|", len(names) - 1) if text else [""] * len(names)
    if len(texts) != len(names):
        raise ValueError(f"the key {short(text)} is not {', '.join(names)}")
    return kind(*texts)


def key_text(key: object) -> str:
    """Return a key as one text for JSON: its fields, and the fields of inner tuples, with | between them.

    Fields that are None are left out. If all fields are empty, the text is empty.
    """
    if not isinstance(key, tuple):
        return str(key)
    return "|".join(key_text(field) for field in key if field not in (None, ())) if any(key) else ""


def files_below(prefix: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files whose names begin with ``prefix``, and remove the prefix from the names."""
    return {name.removeprefix(prefix): content for name, content in files.items() if name.startswith(prefix)}


@contextmanager
def input_error_if_damaged(part: str) -> Iterator[None]:
    """Turn the exceptions of a reader of a damaged ``part`` of a bundle into an `InputError` of one line."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{part}: {str(error).removesuffix(f'; {REMEDY}')}; {REMEDY}") from None
    except ImportError as error:
        raise InputError(f"{part}: needs {error.name}, which is not installed: pip install {error.name}") from None
    except DAMAGE as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        raise InputError(f"{part}: cannot be read ({reason}); {REMEDY}") from None
