"""The operators that cuDNN's legacy functions run: pooling, batch norm, ReLU, layout transform, softmax.

Source of signatures and enumerations: cudnn_ops.h of cuDNN 8.x and 9.x.
"""

import ctypes
from collections.abc import Callable
from typing import Any

from surrogate.collect.cudnn.abi import Handle
from surrogate.collect.cudnn.enums import DTYPES, LAYOUTS
from surrogate.collect.cudnn.library import Library
from surrogate.collect.cudnn.status import SUCCESS, CudnnError
from surrogate.collect.operators.operator import Operator

INT, DOUBLE = ctypes.c_int, ctypes.c_double
_OUT = ctypes.POINTER(Handle)
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cudnnCreatePoolingDescriptor": (_OUT,),
    "cudnnDestroyPoolingDescriptor": (Handle,),
    "cudnnSetPooling2dDescriptor": (Handle, INT, INT, INT, INT, INT, INT, INT, INT),
    "cudnnCreateActivationDescriptor": (_OUT,),
    "cudnnDestroyActivationDescriptor": (Handle,),
    "cudnnSetActivationDescriptor": (Handle, INT, INT, DOUBLE),
    "cudnnPoolingForward": (Handle,) * 8,
    "cudnnPoolingBackward": (Handle,) * 12,
    "cudnnActivationForward": (Handle,) * 8,
    "cudnnSoftmaxForward": (Handle, INT, INT, *(Handle,) * 6),
    "cudnnTransformTensor": (Handle,) * 7,
    "cudnnBatchNormalizationForwardTraining": (
        Handle, INT, *(Handle,) * 9, DOUBLE, Handle, Handle, DOUBLE, Handle, Handle,
    ),
}  # fmt: skip
KINDS = ("max_pool", "max_pool_backward", "batch_norm", "relu", "layout_transform", "softmax")
_MAX_POOLING, _NO_NAN, _RELU, _ACCURATE, _PER_CHANNEL, _SPATIAL = 0, 0, 1, 1, 1, 1
EPSILON = 1e-5


class CudnnCalls:
    """Prepares calls of cuDNN on device arrays. ``functions`` stands in for the library's in tests."""

    def __init__(self, library: Library, handle: Handle, functions: Any = None) -> None:
        self._library, self._handle = library, handle
        self._functions = functions or declared(library)
        self._x, self._y, self._statistics = (library.create("Tensor") for _ in range(3))
        self._pooling = library.create("Pooling")
        self._activation = library.create("Activation")
        self._check("cudnnSetActivationDescriptor", self._activation, _RELU, _NO_NAN, 0.0)
        self._one, self._zero = (ctypes.byref(ctypes.c_float(value)) for value in (1.0, 0.0))

    def prepare(self, operator: Operator, empty: Callable[[tuple[int, ...]], Any]) -> Callable[[], None]:
        """A call that runs ``operator``; ``empty(shape)`` gives a random fp32 device array with ``data.ptr``."""
        shape = operator.sizes[:4] if operator.kind != "softmax" else (*operator.sizes, 1, 1)
        x = empty(shape)
        self._describe(self._x, shape)
        if operator.kind.startswith("max_pool"):
            return self._pool(operator, x, empty)
        y = empty(shape)
        self._describe(self._y, shape, "NHWC" if operator.kind == "layout_transform" else "NCHW")
        if operator.kind == "batch_norm":
            return self._batch_norm(x, y, shape, empty)
        name, leading = {
            "relu": ("cudnnActivationForward", (self._activation,)),
            "softmax": ("cudnnSoftmaxForward", (_ACCURATE, _PER_CHANNEL)),
            "layout_transform": ("cudnnTransformTensor", ()),
        }[operator.kind]
        return lambda: self._check(
            name, self._handle, *leading, self._one, self._x, x.data.ptr, self._zero, self._y, y.data.ptr
        )

    def close(self) -> None:
        """Destroy the descriptors."""
        for kind, one in (
            ("Tensor", self._x), ("Tensor", self._y), ("Tensor", self._statistics), ("Pooling", self._pooling),
            ("Activation", self._activation),
        ):  # fmt: skip
            self._library.call(f"cudnnDestroy{kind}Descriptor", one)

    def _check(self, name: str, *arguments: Any) -> None:
        """Call a function that must succeed; another status raises `CudnnError`."""
        code = int(getattr(self._functions, name)(*arguments))
        if code != SUCCESS:
            raise CudnnError(code, f"{name}: {self._library.reason(code)}")

    def _describe(self, descriptor: Handle, shape: tuple[int, ...], layout: str = "NCHW") -> None:
        arguments = descriptor, LAYOUTS[layout], DTYPES["fp32"], *shape
        self._library.check("cudnnSetTensor4dDescriptor", *arguments)

    def _pool(self, operator: Operator, x: Any, empty: Callable[..., Any]) -> Callable[[], None]:
        window, stride = operator["window"], operator["stride"]
        self._check(
            "cudnnSetPooling2dDescriptor", self._pooling, _MAX_POOLING, _NO_NAN, window, window, 0, 0, stride,
            stride,
        )  # fmt: skip
        shape = (operator["n"], operator["c"], *operator.pooled)
        y = empty(shape)
        self._describe(self._y, shape)
        call, common = self._check, (self._handle, self._pooling, self._one)

        def forward() -> None:
            arguments = *common, self._x, x.data.ptr, self._zero, self._y, y.data.ptr
            call("cudnnPoolingForward", *arguments)

        if operator.kind == "max_pool":
            return forward
        forward()  # the backward pass finds the largest values by comparing with the forward's result
        dy, dx = empty(shape), empty(operator.sizes[:4])

        def backward() -> None:  # holds the arrays themselves: CuPy gives memory to others once nobody does
            operands = self._y, y.data.ptr, self._y, dy.data.ptr, self._x, x.data.ptr
            call("cudnnPoolingBackward", *common, *operands, self._zero, self._x, dx.data.ptr)

        return backward

    def _batch_norm(
        self, x: Any, y: Any, shape: tuple[int, ...], empty: Callable[..., Any]
    ) -> Callable[[], None]:
        per_channel = (1, shape[1], 1, 1)
        self._describe(self._statistics, per_channel)
        scale, bias, mean, variance, saved_mean, saved_inverse = (empty(per_channel) for _ in range(6))
        return lambda: self._check(
            "cudnnBatchNormalizationForwardTraining", self._handle, _SPATIAL, self._one, self._zero, self._x,
            x.data.ptr, self._y, y.data.ptr, self._statistics, scale.data.ptr, bias.data.ptr, 0.1,
            mean.data.ptr, variance.data.ptr, EPSILON, saved_mean.data.ptr, saved_inverse.data.ptr,
        )  # fmt: skip


def declared(library: Library) -> Any:
    """The library's functions that are used here, with their types."""
    functions: Any = ctypes.CDLL(library.path, mode=ctypes.RTLD_GLOBAL)
    for name, argument_types in PROTOTYPES.items():
        function = getattr(functions, name)
        function.argtypes = argument_types
        function.restype = INT
    return functions
