"""cuDNN's legacy convolutions: its enumerations by the project's names, a problem's descriptors, the calls on them.

Enumerations: cudnn_graph.h, cudnn_ops.h and cudnn_cnn.h of 8.x and 9.x.
"""

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from surrogate.collect.cudnn.library import AlgoPerf, Handle, Library
from surrogate.features.algorithms import algorithms
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.problem import DIRECTIONS

ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    direction: tuple(known.name for known in algorithms("cudnn", direction)) for direction in DIRECTIONS
}
"""cudnnConvolution{Fwd,BwdData,BwdFilter}Algo_t in the order of its numbers."""
MATHS = {"default": 0, "tensor_op": 1, "tensor_op_allow_conversion": 2, "fma": 3}
"""cudnnMathType_t."""
DTYPES = {"fp32": 0, "fp64": 1, "fp16": 2, "bf16": 9}
"""cudnnDataType_t."""
COMPUTE_DTYPES = {"fp32": "fp32", "fp64": "fp64", "fp16": "fp32", "bf16": "fp32"}
"""Element type → the type that sums are kept in (the descriptor's computeType)."""
LAYOUTS = {"NCHW": 0, "NHWC": 1}
"""cudnnTensorFormat_t."""
CROSS_CORRELATION = 1
"""cudnnConvolutionMode_t."""


def algorithm_name(direction: str, number: int) -> str:
    """The name of an algorithm's number, or ``ALGO_number`` for one that a newer cuDNN added."""
    names = ALGORITHMS[direction]
    return names[number] if number < len(names) else f"ALGO_{number}"


def math_name(number: int) -> str:
    """The name of a math type's number, or the number itself."""
    return {known: name for name, known in MATHS.items()}.get(number, str(number))


def data_type(dtype: str) -> int:
    """The number of an element type; `InputError` for one that the legacy convolutions are not collected in."""
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is not collected with cuDNN; known: {', '.join(DTYPES)}")
    return DTYPES[dtype]


@dataclass(frozen=True, slots=True)
class Direction:
    """The stem of a direction's functions, and the roles of its operands and result: ``x``, ``w``, ``y``."""

    stem: str
    roles: tuple[str, str, str]
    """First operand, second operand, result."""


CALLS: Mapping[str, Direction] = {
    "fwd": Direction("Forward", ("x", "w", "y")),
    "bwd_data": Direction("BackwardData", ("w", "y", "x")),
    "bwd_filter": Direction("BackwardFilter", ("x", "y", "w")),
}
ENTRIES = 16
"""Room for rankings: an algorithm may stand in them twice, with two math types."""


class Convolutions:
    """Descriptors made once and set to one problem after another, and the direction's functions called on them.

    Every method may raise `CudnnError`; ``pointers`` are device pointers by role, ``workspace`` its pointer and bytes.
    """

    def __init__(self, library: Library, handle: Handle) -> None:
        self._library = library
        self._handle = handle
        self._direction = CALLS["fwd"]
        self._scales: tuple[object, object] = (None, None)
        kinds = {"x": "Tensor", "w": "Filter", "y": "Tensor", "conv": "Convolution"}
        with ExitStack() as owned:
            self.descriptors = {role: library.create(kind, owned) for role, kind in kinds.items()}
            self.close = owned.pop_all().close

    def set(self, conv: Conv) -> Direction:
        """Describe ``conv``. An element type that is not collected raises `InputError`."""
        check = self._library.check
        d = self.descriptors
        dtype = data_type(conv.dtype)
        layout = LAYOUTS[conv.layout]
        compute = data_type(COMPUTE_DTYPES[conv.dtype])
        pads, strides = (conv.pad_h, conv.pad_w), (conv.stride_h, conv.stride_w)
        dilations = conv.dilation_h, conv.dilation_w
        filters = conv.k, conv.c // conv.groups, conv.r, conv.s
        geometry = *pads, *strides, *dilations
        check("cudnnSetTensor4dDescriptor", d["x"], layout, dtype, conv.n, conv.c, conv.h, conv.w)
        check("cudnnSetFilter4dDescriptor", d["w"], dtype, layout, *filters)
        check("cudnnSetConvolution2dDescriptor", d["conv"], *geometry, CROSS_CORRELATION, compute)
        check("cudnnSetConvolutionGroupCount", d["conv"], conv.groups)
        check("cudnnSetConvolutionMathType", d["conv"], MATHS[conv.math])
        check("cudnnSetTensor4dDescriptor", d["y"], layout, dtype, conv.n, conv.k, conv.out_h, conv.out_w)
        # alpha = 1 and beta = 0: double for fp64, float for everything else
        number = ctypes.c_double if conv.dtype == "fp64" else ctypes.c_float
        self._scales = ctypes.byref(number(1.0)), ctypes.byref(number(0.0))
        self._direction = CALLS[conv.direction]
        return self._direction

    def workspace_bytes(self, algorithm: int) -> int:
        """An algorithm's workspace."""
        size = ctypes.c_size_t()
        name = f"cudnnGetConvolution{self._direction.stem}WorkspaceSize"
        self._library.check(name, self._handle, *self._described(), algorithm, ctypes.byref(size))
        return size.value

    def ranking(self) -> list[AlgoPerf]:
        """The algorithms ranked without timing."""
        return self._listed(f"cudnnGetConvolution{self._direction.stem}Algorithm_v7", self._described())

    def find(self, pointers: Mapping[str, int], workspace: tuple[int, int]) -> list[AlgoPerf]:
        """Every algorithm timed once."""
        operands, result = self._placed(pointers)
        tensors = *operands, self.descriptors["conv"], *result
        return self._listed(f"cudnnFindConvolution{self._direction.stem}AlgorithmEx", tensors, *workspace)

    def run(self, algorithm: int, pointers: Mapping[str, int], workspace: tuple[int, int]) -> None:
        """One algorithm, launched once."""
        alpha, beta = self._scales
        operands, result = self._placed(pointers)
        arguments = alpha, *operands, self.descriptors["conv"], algorithm, *workspace, beta, *result
        self._library.check(f"cudnnConvolution{self._direction.stem}", self._handle, *arguments)

    def _listed(self, function: str, tensors: Sequence[Handle | int], *workspace: int) -> list[AlgoPerf]:
        """The entries that a function fills in."""
        count = ctypes.c_int()
        perf = (AlgoPerf * ENTRIES)()
        self._library.check(function, self._handle, *tensors, ENTRIES, ctypes.byref(count), perf, *workspace)
        return list(perf[: count.value])

    def _described(self) -> tuple[Handle, ...]:
        """The descriptors of operands, convolution and result, in the order of all functions that run nothing."""
        first, second, result = (self.descriptors[role] for role in self._direction.roles)
        return first, second, self.descriptors["conv"], result

    def _placed(self, pointers: Mapping[str, int]) -> tuple[list[Handle | int], list[Handle | int]]:
        """The operands' descriptors, each with its pointer, and the result's."""
        first, second, result = ((self.descriptors[role], pointers[role]) for role in self._direction.roles)
        return [*first, *second], [*result]
