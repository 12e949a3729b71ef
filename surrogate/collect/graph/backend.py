"""Making, setting, finalising and asking cuDNN's backend descriptors."""

import ctypes
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from surrogate.collect.cudnn.library import Library
from surrogate.collect.cudnn.status import SUCCESS, CudnnError
from surrogate.collect.graph.attributes import Attribute, Descriptor, Kind

Handle = ctypes.c_void_p
_C_TYPES: dict[Kind, Any] = {
    Kind.HANDLE: ctypes.c_void_p,
    Kind.BOOLEAN: ctypes.c_bool,
    Kind.INT64: ctypes.c_int64,
    Kind.FLOAT: ctypes.c_float,
    Kind.DOUBLE: ctypes.c_double,
    Kind.POINTER: ctypes.c_void_p,
    Kind.DESCRIPTOR: ctypes.c_void_p,
}
"""C type of an attribute's elements; the rest are enumerations (int)."""
_COUNT, _COUNT_OUT = ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cudnnBackendCreateDescriptor": (ctypes.c_int, ctypes.POINTER(Handle)),
    "cudnnBackendDestroyDescriptor": (Handle,),
    "cudnnBackendSetAttribute": (Handle, ctypes.c_int, ctypes.c_int, _COUNT, ctypes.c_void_p),
    "cudnnBackendGetAttribute": (Handle, ctypes.c_int, ctypes.c_int, _COUNT, _COUNT_OUT, ctypes.c_void_p),
    "cudnnBackendFinalize": (Handle,),
    "cudnnBackendExecute": (Handle, Handle, Handle),
}


class Backend:
    """The backend functions of a loaded libcudnn. ``functions`` stands in for them in tests."""

    def __init__(self, library: Library, functions: Any = None) -> None:
        self.library = library
        self._functions = functions or ctypes.CDLL(library.path)
        for name, argument_types in _PROTOTYPES.items():
            function = getattr(self._functions, name)
            function.argtypes = argument_types
            function.restype = ctypes.c_int

    def call(self, what: str, name: str, *arguments: Any) -> None:
        """Call a function; another status than success raises `CudnnError` saying ``what`` was done."""
        code = int(getattr(self._functions, name)(*arguments))
        if code != SUCCESS:
            raise CudnnError(code, f"{what}: {self.library.reason(code)}")

    def destroy(self, descriptor: Handle) -> None:
        """Destroy a descriptor; its status says nothing useful."""
        self._functions.cudnnBackendDestroyDescriptor(descriptor)


class Scope:
    """Descriptors that are destroyed together, the last made first, when the block ends."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._made = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Destroy everything made; for a scope that outlives a block."""
        self._made.close()

    def make(self, kind: Descriptor) -> Handle:
        """A new descriptor."""
        made = Handle()
        what = f"creating {kind.name}"
        self._backend.call(what, "cudnnBackendCreateDescriptor", int(kind), ctypes.byref(made))
        self._made.callback(self._backend.destroy, made)
        return made

    def set(self, descriptor: Handle, attribute: int, kind: Kind, *values: Any) -> None:
        """Set an attribute to one or more values; descriptors are given as their handles."""
        plain = [value.value if isinstance(value, Handle) else value for value in values]
        array = (_C_TYPES.get(kind, ctypes.c_int) * len(plain))(*plain)
        self._set(descriptor, attribute, kind, len(plain), array)

    def set_text(self, descriptor: Handle, attribute: int, text: str) -> None:
        """Set a text attribute."""
        data = text.encode()
        self._set(descriptor, attribute, Kind.CHAR, len(data), ctypes.create_string_buffer(data, len(data)))

    def finalize(self, descriptor: Handle, what: str) -> None:
        """Check and freeze a descriptor; what cuDNN does not support is refused here, as `CudnnError`."""
        self._backend.call(what, "cudnnBackendFinalize", descriptor)

    def get(self, descriptor: Handle, attribute: int, kind: Kind, room: int = 1) -> list[Any]:
        """Up to ``room`` values of an attribute."""
        array, count = (_C_TYPES.get(kind, ctypes.c_int) * room)(), ctypes.c_int64()
        self._get(descriptor, attribute, kind, room, count, array)
        return list(array[: min(count.value, room)])

    def count(self, descriptor: Handle, attribute: int) -> int:
        """How many descriptors an attribute holds."""
        count = ctypes.c_int64()
        self._get(descriptor, attribute, Kind.DESCRIPTOR, 0, count, None)
        return count.value

    def get_into(self, descriptor: Handle, attribute: int, into: list[Handle]) -> int:
        """Fill made descriptors ``into`` with those that an attribute holds; returns how many were filled."""
        count = ctypes.c_int64()
        array = (Handle * len(into))(*(one.value for one in into))
        self._get(descriptor, attribute, Kind.DESCRIPTOR, len(into), count, array)
        return min(count.value, len(into))

    def _set(self, descriptor: Handle, attribute: int, kind: Kind, count: int, array: Any) -> None:
        arguments = descriptor, int(attribute), int(kind), count, array
        self._backend.call(f"setting {_name(attribute)}", "cudnnBackendSetAttribute", *arguments)

    def _get(
        self, descriptor: Handle, attribute: int, kind: Kind, room: int, count: ctypes.c_int64, array: Any
    ) -> None:
        arguments = descriptor, int(attribute), int(kind), room, ctypes.byref(count), array
        self._backend.call(f"asking {_name(attribute)}", "cudnnBackendGetAttribute", *arguments)


def _name(attribute: int) -> str:
    try:
        return Attribute(attribute).name
    except ValueError:
        return f"attribute {attribute}"
