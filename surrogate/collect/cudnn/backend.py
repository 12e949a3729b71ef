"""cuDNN's graph API ("backend" functions, cudnn_graph.h of 9.x): making, setting, finalising and asking descriptors."""

import ctypes
import tomllib
from contextlib import ExitStack
from enum import IntEnum
from pathlib import Path
from typing import Any

from surrogate.collect.cudnn.library import INT, Handle, Library, prototypes

NUMBERS: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
Descriptor: Any = IntEnum("Descriptor", NUMBERS["Descriptor"])
"""cudnnBackendDescriptorType_t."""
Kind: Any = IntEnum("Kind", NUMBERS["Kind"])
"""cudnnBackendAttributeType_t."""
Attribute: Any = IntEnum("Attribute", NUMBERS["Attribute"])
"""cudnnBackendAttributeName_t. Those of the three operations are in `surrogate.collect.deviceless`."""
_C_TYPES: dict[int, type[ctypes.c_int64 | ctypes.c_float | ctypes.c_double | ctypes.c_void_p | ctypes.c_char]] = {
    Kind.INT64: ctypes.c_int64,
    Kind.FLOAT: ctypes.c_float,
    Kind.DOUBLE: ctypes.c_double,
    Kind.DESCRIPTOR: ctypes.c_void_p,
    Kind.CHAR: ctypes.c_char,
}
"""C type of an attribute's elements; the rest are enumerations (int)."""
PROTOTYPES = prototypes("graph")


class Scope(ExitStack):
    """Descriptors that are destroyed together, the last made first, when the block ends or at `close`.

    Every method may raise `CudnnError`; what cuDNN does not support is refused by `finalize`.
    """

    def __init__(self, library: Library) -> None:
        super().__init__()
        self._library = library

    def make(self, kind: int) -> Handle:
        """A new descriptor."""
        descriptor = Handle()
        self._library.check("cudnnBackendCreateDescriptor", int(kind), ctypes.byref(descriptor))
        self.callback(self._library.call, "cudnnBackendDestroyDescriptor", descriptor)
        return descriptor

    def set(self, descriptor: Handle, attribute: int, kind: int, *values: Handle | float) -> None:
        """Set an attribute to one or more values; descriptors are given as their handles, texts as bytes."""
        plain = [value.value if isinstance(value, Handle) else value for value in values]
        array = (_C_TYPES.get(kind, INT) * len(plain))(*plain)
        arguments = descriptor, int(attribute), int(kind), len(plain), array
        self._library.check("cudnnBackendSetAttribute", *arguments)

    def finalize(self, descriptor: Handle) -> Handle:
        """Check and freeze a descriptor; returns it."""
        self._library.check("cudnnBackendFinalize", descriptor)
        return descriptor

    def get(self, descriptor: Handle, attribute: int, kind: int, room: int = 1) -> list[Any]:
        """Up to ``room`` values of an attribute."""
        array = (_C_TYPES.get(kind, INT) * room)()
        return list(array[: min(self._ask(descriptor, attribute, kind, room, array), room)])

    def count(self, descriptor: Handle, attribute: int) -> int:
        """How many descriptors an attribute holds."""
        return self._ask(descriptor, attribute, Kind.DESCRIPTOR, 0, None)

    def get_into(self, descriptor: Handle, attribute: int, into: list[Handle]) -> list[Handle]:
        """Fill made descriptors ``into`` with those that an attribute holds; returns those filled."""
        array = (Handle * len(into))(*(handle.value for handle in into))
        return into[: self._ask(descriptor, attribute, Kind.DESCRIPTOR, len(into), array)]

    def _ask(self, descriptor: Handle, attribute: int, kind: int, room: int, array: ctypes.Array[Any] | None) -> int:
        count = ctypes.c_int64()
        arguments = descriptor, int(attribute), int(kind), room, ctypes.byref(count), array
        self._library.check("cudnnBackendGetAttribute", *arguments)
        return count.value
