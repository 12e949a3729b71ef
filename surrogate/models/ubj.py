"""Universal Binary JSON (UBJSON draft 12), the part that XGBoost writes: bytes → plain values and numpy arrays.

A booster's file is read here without XGBoost, whose import alone takes longer than a cold command may.
"""

import struct
from typing import Any

import numpy as np

from surrogate.features.errors import InputError

MAX_DEPTH = 32
_NUMBERS = {
    b"i": (">b", "i1"), b"U": (">B", "u1"), b"I": (">h", ">i2"), b"l": (">i", ">i4"), b"L": (">q", ">i8"),
    b"d": (">f", ">f4"), b"D": (">d", ">f8"),
}  # fmt: skip
"""Marker → format of one number, and dtype of a typed array of them."""
_CONSTANTS = {b"Z": None, b"T": True, b"F": False}


def decode(content: bytes) -> Any:
    """The value that ``content`` holds; arrays of one numeric type come as numpy arrays of the machine's byte order.

    Raises `InputError` for anything truncated, malformed, too deep, or followed by other bytes.
    """
    reader = _Reader(content)
    try:
        value = reader.value(reader.take(1), 0)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise _damaged(str(error).splitlines()[0]) from None
    if reader.position != len(content):
        raise _damaged(f"{len(content) - reader.position} bytes follow the end")
    return value


def _damaged(what: str) -> InputError:
    return InputError(f"the booster's file is damaged ({what}); train the bundle again with `seer train`")


class _Reader:
    """A place in the bytes."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.position = 0

    def take(self, count: int) -> bytes:
        part = self.content[self.position : self.position + count]
        if count < 0 or len(part) != count:
            raise _damaged(f"it ends at byte {len(self.content)}")
        self.position += count
        return part

    def value(self, marker: bytes, depth: int) -> Any:
        if marker in _NUMBERS:
            code = _NUMBERS[marker][0]
            return struct.unpack(code, self.take(struct.calcsize(code)))[0]
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        if marker == b"S":
            return self.text()
        if marker == b"C":
            return self.take(1).decode()
        if depth >= MAX_DEPTH:
            raise _damaged(f"nested deeper than {MAX_DEPTH}")
        if marker == b"[":
            return self.array(depth + 1)
        if marker == b"{":
            return self.object(depth + 1)
        raise _damaged(f"unknown marker {marker!r}")

    def text(self) -> str:
        return self.take(self.length()).decode()

    def length(self) -> int:
        count = self.value(self.take(1), MAX_DEPTH)
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= len(self.content):
            raise _damaged(f"a length of {count!r}")
        return count

    def container(self) -> tuple[bytes | None, int | None]:
        """The element type and the count that an optimised container states, each None where it does not."""
        kind = None
        if self._next_is(b"$"):
            kind = self.take(1)
        return kind, self.length() if self._next_is(b"#") else None

    def _next_is(self, marker: bytes) -> bool:
        found = self.content[self.position : self.position + 1] == marker
        self.position += found
        return found

    def array(self, depth: int) -> Any:
        kind, count = self.container()
        if kind in _NUMBERS and count is not None:
            dtype = np.dtype(_NUMBERS[kind][1])
            return np.frombuffer(self.take(count * dtype.itemsize), dtype).astype(dtype.newbyteorder("="))
        if count is not None:
            return [self.value(kind or self.take(1), depth) for _ in range(count)]
        values = []
        while not self._next_is(b"]"):
            values.append(self.value(self.take(1), depth))
        return values

    def object(self, depth: int) -> dict[str, Any]:
        kind, count = self.container()
        found: dict[str, Any] = {}
        while len(found) < count if count is not None else not self._next_is(b"}"):
            name = self.text()
            if name in found:
                raise _damaged(f"{name!r} stands twice")
            found[name] = self.value(kind or self.take(1), depth)
        return found


def encode(value: Any) -> bytes:
    """What `decode` reads: dictionaries, lists, texts, whole numbers, and arrays (length,) of XGBoost's dtypes."""
    if isinstance(value, dict):
        return b"{" + b"".join(_length(k.encode()) + encode(v) for k, v in value.items()) + b"}"
    if isinstance(value, list):
        return b"[" + b"".join(map(encode, value)) + b"]"
    if isinstance(value, str):
        return b"S" + _length(value.encode())
    if isinstance(value, np.ndarray):
        marker, dtype = _ARRAYS[value.dtype.char]
        return b"[$" + marker + b"#L" + struct.pack(">q", len(value)) + value.astype(dtype).tobytes()
    return b"L" + struct.pack(">q", value)


_ARRAYS = {
    np.dtype(name).char: (marker, dtype)
    for name, marker, dtype in (
        ("uint8", b"U", "u1"), ("int32", b"l", ">i4"), ("int64", b"L", ">i8"), ("float32", b"d", ">f4")
    )
}  # fmt: skip
"""Letter of a dtype → marker, and how its numbers are stored."""


def _length(text: bytes) -> bytes:
    return b"L" + struct.pack(">q", len(text)) + text
