"""A problem together with what follows from its sizes, computed once and shared by every algorithm's formula."""

from functools import partial
from typing import NamedTuple

from ..elementwise import Number, where
from ..problem import Problem
from ..shape import flops, gemm_k, gemm_m, gemm_n, out_h, out_w, tensor_bytes


class Sized(NamedTuple):
    """A `Problem` of numbers or of arrays, and the sizes derived from it.

    ``channels_in`` and ``channels_out`` are *per group* as the direction sees them (forward and filter gradient read c
    and produce k, the data gradient swaps), ``result_h`` and ``result_w`` the extents of what it produces; the other
    derived sizes are those of `surrogate.features.shape`.
    """

    n: Number
    c: Number
    h: Number
    w: Number
    k: Number
    r: Number
    s: Number
    pad_h: Number
    pad_w: Number
    stride_h: Number
    stride_w: Number
    dilation_h: Number
    dilation_w: Number
    groups: Number
    itemsize: Number
    is_bwd_data: Number
    is_bwd_filter: Number
    is_nhwc: Number
    uses_tensor_cores: Number
    out_h: Number
    out_w: Number
    flops: Number
    tensor_bytes: Number
    gemm_m: Number
    gemm_n: Number
    gemm_k: Number
    c_per_group: Number
    k_per_group: Number
    channels_in: Number
    channels_out: Number
    result_h: Number
    result_w: Number


_sized = partial(tuple.__new__, Sized)
"""`Sized` of its values in order, in half the time."""


def sized(p: Problem) -> Sized:
    """``p`` with its derived sizes; ``p`` itself where it has them."""
    if isinstance(p, Sized):
        return p
    extents = height, width = out_h(p), out_w(p)
    c, k, back, produced = p.c // p.groups, p.k // p.groups, p.is_bwd_data, gemm_n(p)
    return _sized((
        p.n, p.c, p.h, p.w, p.k, p.r, p.s,
        p.pad_h, p.pad_w, p.stride_h, p.stride_w, p.dilation_h, p.dilation_w, p.groups,
        p.itemsize, back, p.is_bwd_filter, p.is_nhwc, p.uses_tensor_cores,
        height, width, flops(p, extents), tensor_bytes(p, extents),
        gemm_m(p, extents), produced, gemm_k(p, extents), c, k,
        where(back, k, c), produced, where(back, p.h, height), where(back, p.w, width),
    ))  # fmt: skip
