"""A convolution problem as an operation graph: three tensors, the convolution, one operation."""

from collections.abc import Mapping
from dataclasses import dataclass

from surrogate.collect.cudnn import enums
from surrogate.collect.graph.attributes import Attribute, Descriptor, Kind
from surrogate.collect.graph.backend import Handle, Scope
from surrogate.features.conv import Conv

UNIQUE_IDS: Mapping[str, int] = {"x": 1, "w": 2, "y": 3}
"""Role of a tensor → its id in the graph and in a variant pack."""
ALIGNMENT_BYTES = 16
"""Alignment that is promised for every tensor; without it cuDNN leaves out its vector kernels."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A direction's operation: its descriptor, and the first of its six attributes (in the header's order)."""

    descriptor: Descriptor
    first_attribute: int
    roles: tuple[str, str, str]
    """The tensors in the order of their attributes, which follow alpha, beta and the convolution."""


OPERATIONS: Mapping[str, Operation] = {
    "fwd": Operation(Descriptor.OPERATION_FORWARD, 700, ("w", "x", "y")),
    "bwd_data": Operation(Descriptor.OPERATION_BACKWARD_DATA, 706, ("w", "x", "y")),
    "bwd_filter": Operation(Descriptor.OPERATION_BACKWARD_FILTER, 712, ("w", "x", "y")),
}


def strides(dims: tuple[int, int, int, int], layout: str) -> tuple[int, int, int, int]:
    """Element strides of a packed (n, c, h, w) tensor in NCHW or NHWC order."""
    _, c, h, w = dims
    return (c * h * w, 1, c * w, c) if layout == "NHWC" else (c * h * w, h * w, w, 1)


def tensor_dims(conv: Conv) -> dict[str, tuple[int, int, int, int]]:
    """Dimensions by role; fewer filter channels than the input has are what tells cuDNN of groups."""
    return {
        "x": (conv.n, conv.c, conv.h, conv.w),
        "w": (conv.k, conv.c // conv.groups, conv.r, conv.s),
        "y": (conv.n, conv.k, conv.out_h, conv.out_w),
    }


def operation_graph(scope: Scope, conv: Conv, handle: Handle | None = None) -> Handle:
    """The finalised graph of ``conv``; ``handle`` is cuDNN's, or None where there is no GPU.

    Raises `CudnnError` where cuDNN refuses the problem, `InputError` for an element type it is not asked in.
    """
    tensors = {role: _tensor(scope, UNIQUE_IDS[role], dims, conv) for role, dims in tensor_dims(conv).items()}
    operation = OPERATIONS[conv.direction]
    made = scope.make(operation.descriptor)
    scale = Kind.DOUBLE if conv.dtype == "fp64" else Kind.FLOAT
    at = operation.first_attribute
    scope.set(made, at, scale, 1.0)
    scope.set(made, at + 1, scale, 0.0)
    scope.set(made, at + 2, Kind.DESCRIPTOR, _convolution(scope, conv))
    for offset, role in enumerate(operation.roles, 3):
        scope.set(made, at + offset, Kind.DESCRIPTOR, tensors[role])
    scope.finalize(made, "the operation")
    graph = scope.make(Descriptor.GRAPH)
    scope.set(graph, Attribute.GRAPH_OPERATIONS, Kind.DESCRIPTOR, made)
    if handle is not None:
        scope.set(graph, Attribute.GRAPH_HANDLE, Kind.HANDLE, handle)
    scope.finalize(graph, "the graph")
    return graph


def _tensor(scope: Scope, unique_id: int, dims: tuple[int, int, int, int], conv: Conv) -> Handle:
    made = scope.make(Descriptor.TENSOR)
    scope.set(made, Attribute.TENSOR_DATA_TYPE, Kind.DATA_TYPE, enums.data_type(conv.dtype))
    scope.set(made, Attribute.TENSOR_ALIGNMENT, Kind.INT64, ALIGNMENT_BYTES)
    scope.set(made, Attribute.TENSOR_DIMENSIONS, Kind.INT64, *dims)
    scope.set(made, Attribute.TENSOR_STRIDES, Kind.INT64, *strides(dims, conv.layout))
    scope.set(made, Attribute.TENSOR_UNIQUE_ID, Kind.INT64, unique_id)
    scope.finalize(made, "a tensor")
    return made


def _convolution(scope: Scope, conv: Conv) -> Handle:
    made = scope.make(Descriptor.CONVOLUTION)
    compute = enums.data_type(enums.COMPUTE_DTYPES[conv.dtype])
    pads = conv.pad_h, conv.pad_w
    scope.set(made, Attribute.CONVOLUTION_COMPUTE_TYPE, Kind.DATA_TYPE, compute)
    scope.set(made, Attribute.CONVOLUTION_MODE, Kind.CONVOLUTION_MODE, enums.CROSS_CORRELATION)
    scope.set(made, Attribute.CONVOLUTION_DILATIONS, Kind.INT64, conv.dilation_h, conv.dilation_w)
    scope.set(made, Attribute.CONVOLUTION_STRIDES, Kind.INT64, conv.stride_h, conv.stride_w)
    scope.set(made, Attribute.CONVOLUTION_PRE_PADDINGS, Kind.INT64, *pads)
    scope.set(made, Attribute.CONVOLUTION_POST_PADDINGS, Kind.INT64, *pads)
    scope.set(made, Attribute.CONVOLUTION_SPATIAL_DIMS, Kind.INT64, 2)
    scope.finalize(made, "the convolution")
    return made
