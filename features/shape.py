"""Sizes that follow from a convolution problem: output, implicit-GEMM shape, FLOPs, bytes.

Every function takes a `Problem` of numbers or of arrays and returns the same kind. ``extents``, where a function takes
them, are the output's height and width if they are known already.
"""

from .elementwise import Number, maximum, where
from .problem import Problem

Extents = tuple[Number, Number]
"""Output height and width."""


def output_size(size: Number, filter_size: Number, pad: Number, stride: Number, dilation: Number) -> Number:
    """Elements along one output dimension: ⌊(size + 2·pad − (dilation·(filter − 1) + 1)) / stride⌋ + 1.

    Source: cuDNN API reference, cudnnGetConvolution2dForwardOutputDim.
    """
    return (size + 2 * pad - (dilation * (filter_size - 1) + 1)) // stride + 1


def fits(size: Number, filter_size: Number, pad: Number, dilation: Number) -> Number:
    """True where the filter, dilation included, is no larger than the padded input along that dimension."""
    return dilation * (filter_size - 1) + 1 <= size + 2 * pad


def out_h(p: Problem) -> Number:
    """Output height P, in elements; at least 1, as MIOpen takes (and times) problems whose filter does not fit."""
    return maximum(output_size(p.h, p.r, p.pad_h, p.stride_h, p.dilation_h), 1)


def out_w(p: Problem) -> Number:
    """Output width Q, in elements; at least 1."""
    return maximum(output_size(p.w, p.s, p.pad_w, p.stride_w, p.dilation_w), 1)


def flops(p: Problem, extents: Extents | None = None) -> Number:
    """Floating-point operations of the direct algorithm, 2 per multiply-add: 2·N·K·P·Q·(C/groups)·R·S.

    The same for all three directions (each pairs every input, filter and output element once).
    """
    height, width = extents or (out_h(p), out_w(p))
    return 2 * p.n * p.k * height * width * (p.c // p.groups) * p.r * p.s


def input_bytes(p: Problem) -> Number:
    """Bytes of the input tensor (n, c, h, w)."""
    return p.n * p.c * p.h * p.w * p.itemsize


def filter_bytes(p: Problem) -> Number:
    """Bytes of the filter tensor (k, c/groups, r, s)."""
    return p.k * (p.c // p.groups) * p.r * p.s * p.itemsize


def output_bytes(p: Problem, extents: Extents | None = None) -> Number:
    """Bytes of the output tensor (n, k, out_h, out_w)."""
    height, width = extents or (out_h(p), out_w(p))
    return p.n * p.k * height * width * p.itemsize


def tensor_bytes(p: Problem, extents: Extents | None = None) -> Number:
    """Compulsory DRAM traffic in bytes: the three tensors, each touched once."""
    return input_bytes(p) + filter_bytes(p) + output_bytes(p, extents)


def gemm_m(p: Problem, extents: Extents | None = None) -> Number:
    """Rows of the implicit GEMM of one group: fwd N·P·Q, bwd_data N·H·W, bwd_filter (C/groups)·R·S."""
    height, width = extents or (out_h(p), out_w(p))
    return where(
        p.is_bwd_filter, (p.c // p.groups) * p.r * p.s, where(p.is_bwd_data, p.n * p.h * p.w, p.n * height * width)
    )


def gemm_n(p: Problem) -> Number:
    """Columns of the implicit GEMM of one group: fwd and bwd_filter K/groups, bwd_data C/groups."""
    return where(p.is_bwd_data, p.c // p.groups, p.k // p.groups)


def gemm_k(p: Problem, extents: Extents | None = None) -> Number:
    """Reduction length of one group's GEMM: fwd (C/groups)·R·S, bwd_data (K/groups)·R·S, bwd_filter N·P·Q."""
    height, width = extents or (out_h(p), out_w(p))
    return where(
        p.is_bwd_filter, p.n * height * width, where(p.is_bwd_data, p.k // p.groups, p.c // p.groups) * p.r * p.s
    )


def is_depthwise(p: Problem) -> Number:
    """True where every input channel is its own group (and there is more than one)."""
    return (p.groups == p.c) & (p.groups > 1)
