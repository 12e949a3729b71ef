"""The binary interface: structs and argument types of every function called (cudnn_cnn.h, cudnn_ops.h)."""

import ctypes
from collections.abc import Mapping
from typing import Any

Handle = ctypes.c_void_p
"""Any opaque cuDNN object: handle or descriptor; also a device pointer."""
INT = ctypes.c_int
SIZE = ctypes.c_size_t
INT_OUT = ctypes.POINTER(INT)
SIZE_OUT = ctypes.POINTER(SIZE)
HANDLE_OUT = ctypes.POINTER(Handle)


class AlgoPerf(ctypes.Structure):
    """cudnnConvolution{Fwd,BwdData,BwdFilter}AlgoPerf_t: three names, one layout of 48 bytes."""

    _fields_ = (
        ("algo", INT),
        ("status", INT),
        ("time", ctypes.c_float),  # milliseconds; −1 where nothing was timed
        ("memory", SIZE),  # workspace bytes
        ("determinism", INT),
        ("math_type", INT),
        ("reserved", INT * 3),
    )


PERF_OUT = ctypes.POINTER(AlgoPerf)

_RANK = (Handle, Handle, Handle, Handle, Handle, INT, INT_OUT, PERF_OUT)
_FIND = (
    Handle, Handle, Handle, Handle, Handle, Handle, Handle, Handle, INT, INT_OUT, PERF_OUT, Handle, SIZE,
)  # fmt: skip
_WORKSPACE = (Handle, Handle, Handle, Handle, Handle, INT, SIZE_OUT)
_RUN = (
    Handle, Handle, Handle, Handle, Handle, Handle, Handle, INT, Handle, SIZE, Handle, Handle, Handle,
)  # fmt: skip

PROTOTYPES: Mapping[str, tuple[Any, ...]] = {
    "cudnnCreate": (HANDLE_OUT,),
    "cudnnDestroy": (Handle,),
    "cudnnSetStream": (Handle, Handle),
    "cudnnCreateTensorDescriptor": (HANDLE_OUT,),
    "cudnnDestroyTensorDescriptor": (Handle,),
    "cudnnCreateFilterDescriptor": (HANDLE_OUT,),
    "cudnnDestroyFilterDescriptor": (Handle,),
    "cudnnCreateConvolutionDescriptor": (HANDLE_OUT,),
    "cudnnDestroyConvolutionDescriptor": (Handle,),
    "cudnnSetTensor4dDescriptor": (Handle, INT, INT, INT, INT, INT, INT),  # format, type, n, c, h, w
    "cudnnSetFilter4dDescriptor": (Handle, INT, INT, INT, INT, INT, INT),  # type, format, k, c, h, w
    "cudnnSetConvolution2dDescriptor": (Handle, INT, INT, INT, INT, INT, INT, INT, INT),
    "cudnnSetConvolutionMathType": (Handle, INT),
    "cudnnGetConvolutionMathType": (Handle, INT_OUT),
    "cudnnSetConvolutionGroupCount": (Handle, INT),
    "cudnnGetConvolutionGroupCount": (Handle, INT_OUT),
    "cudnnGetConvolution2dForwardOutputDim": (Handle, Handle, Handle, INT_OUT, INT_OUT, INT_OUT, INT_OUT),
    "cudnnGetConvolutionForwardAlgorithm_v7": _RANK,
    "cudnnGetConvolutionBackwardDataAlgorithm_v7": _RANK,
    "cudnnGetConvolutionBackwardFilterAlgorithm_v7": _RANK,
    "cudnnFindConvolutionForwardAlgorithmEx": _FIND,
    "cudnnFindConvolutionBackwardDataAlgorithmEx": _FIND,
    "cudnnFindConvolutionBackwardFilterAlgorithmEx": _FIND,
    "cudnnGetConvolutionForwardWorkspaceSize": _WORKSPACE,
    "cudnnGetConvolutionBackwardDataWorkspaceSize": _WORKSPACE,
    "cudnnGetConvolutionBackwardFilterWorkspaceSize": _WORKSPACE,
    "cudnnConvolutionForward": _RUN,
    "cudnnConvolutionBackwardData": _RUN,
    "cudnnConvolutionBackwardFilter": _RUN,
}
"""Function → argument types. All return cudnnStatus_t."""


def declare(library: Any) -> None:
    """Give every function of ``library`` its types; a function that is missing raises AttributeError with its name."""
    for name, argument_types in PROTOTYPES.items():
        function = getattr(library, name)
        function.argtypes = argument_types
        function.restype = INT
    library.cudnnGetVersion.argtypes = ()
    library.cudnnGetVersion.restype = SIZE
    library.cudnnGetErrorString.argtypes = (INT,)
    library.cudnnGetErrorString.restype = ctypes.c_char_p
    if hasattr(library, "cudnnGetLastErrorString"):  # cuDNN 9
        library.cudnnGetLastErrorString.argtypes = (ctypes.c_char_p, SIZE)
        library.cudnnGetLastErrorString.restype = None
