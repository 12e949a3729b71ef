"""cuDNN's graph API ("backend" functions, cudnn_graph.h of 9.x): making, setting, finalising and asking descriptors."""

import ctypes
from contextlib import ExitStack
from enum import IntEnum
from typing import Any, Self

from surrogate.collect.cudnn.library import INT, Handle, Library


class Descriptor(IntEnum):
    """cudnnBackendDescriptorType_t."""

    CONVOLUTION = 1
    ENGINE = 2
    ENGINE_CONFIG = 3
    HEURISTIC = 4
    PLAN = 5
    OPERATION_FORWARD = 10
    OPERATION_BACKWARD_FILTER = 11
    OPERATION_BACKWARD_DATA = 12
    GRAPH = 15
    TENSOR = 17
    DEVICE_PROPERTIES = 38  # since 9.8


class Kind(IntEnum):
    """cudnnBackendAttributeType_t."""

    DATA_TYPE = 1
    INT64 = 3
    FLOAT = 4
    DOUBLE = 5
    CONVOLUTION_MODE = 7
    HEURISTIC_MODE = 8
    NUMERICAL_NOTE = 11
    DESCRIPTOR = 15
    CHAR = 24


class Attribute(IntEnum):
    """cudnnBackendAttributeName_t. Those of the three operations are in `surrogate.collect.deviceless`."""

    CONVOLUTION_COMPUTE_TYPE = 100
    CONVOLUTION_MODE = 101
    CONVOLUTION_DILATIONS = 102
    CONVOLUTION_STRIDES = 103
    CONVOLUTION_POST_PADDINGS = 104
    CONVOLUTION_PRE_PADDINGS = 105
    CONVOLUTION_SPATIAL_DIMS = 106
    HEURISTIC_MODE = 200
    HEURISTIC_GRAPH = 201
    HEURISTIC_RESULTS = 202
    HEURISTIC_DEVICE = 204
    CONFIG_ENGINE = 300
    PLAN_CONFIG = 401
    PLAN_WORKSPACE_BYTES = 402
    PLAN_DEVICE = 407
    GRAPH_OPERATIONS = 801
    TENSOR_ALIGNMENT = 900
    TENSOR_DATA_TYPE = 901
    TENSOR_DIMENSIONS = 902
    TENSOR_STRIDES = 903
    TENSOR_UNIQUE_ID = 906
    ENGINE_INDEX = 1301
    ENGINE_NUMERICAL_NOTES = 1303
    DEVICE_JSON = 2702


_C_TYPES: dict[Kind, Any] = {
    Kind.INT64: ctypes.c_int64,
    Kind.FLOAT: ctypes.c_float,
    Kind.DOUBLE: ctypes.c_double,
    Kind.DESCRIPTOR: ctypes.c_void_p,
}
"""C type of an attribute's elements; the rest are enumerations (int)."""
_COUNT, _COUNT_OUT = ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cudnnBackendCreateDescriptor": (INT, ctypes.POINTER(Handle)),
    "cudnnBackendDestroyDescriptor": (Handle,),
    "cudnnBackendSetAttribute": (Handle, INT, INT, _COUNT, ctypes.c_void_p),
    "cudnnBackendGetAttribute": (Handle, INT, INT, _COUNT, _COUNT_OUT, ctypes.c_void_p),
    "cudnnBackendFinalize": (Handle,),
}


class Scope:
    """Descriptors that are destroyed together, the last made first, when the block ends.

    Every method may raise `CudnnError`; what cuDNN does not support is refused by `finalize`.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._made = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Destroy everything made; for a scope that outlives a block."""
        self._made.close()

    def make(self, kind: Descriptor) -> Handle:
        """A new descriptor."""
        descriptor = Handle()
        self._library.check("cudnnBackendCreateDescriptor", int(kind), ctypes.byref(descriptor))
        self._made.callback(self._library.call, "cudnnBackendDestroyDescriptor", descriptor)
        return descriptor

    def set(self, descriptor: Handle, attribute: int, kind: Kind, *values: Any) -> None:
        """Set an attribute to one or more values; descriptors are given as their handles."""
        plain = [value.value if isinstance(value, Handle) else value for value in values]
        array = (_C_TYPES.get(kind, INT) * len(plain))(*plain)
        arguments = descriptor, int(attribute), int(kind), len(plain), array
        self._library.check("cudnnBackendSetAttribute", *arguments)

    def set_text(self, descriptor: Handle, attribute: int, text: str) -> None:
        """Set a text attribute."""
        data = text.encode()
        buffer = ctypes.create_string_buffer(data, len(data))
        arguments = descriptor, int(attribute), int(Kind.CHAR), len(data), buffer
        self._library.check("cudnnBackendSetAttribute", *arguments)

    def finalize(self, descriptor: Handle) -> Handle:
        """Check and freeze a descriptor; returns it."""
        self._library.check("cudnnBackendFinalize", descriptor)
        return descriptor

    def get(self, descriptor: Handle, attribute: int, kind: Kind, room: int = 1) -> list[Any]:
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

    def _ask(self, descriptor: Handle, attribute: int, kind: Kind, room: int, array: Any) -> int:
        count = ctypes.c_int64()
        arguments = descriptor, int(attribute), int(kind), room, ctypes.byref(count), array
        self._library.check("cudnnBackendGetAttribute", *arguments)
        return count.value
