"""Reading what one filter tap sees: a strided window of the input, zero where it reaches into the padding."""

import numpy as np

from surrogate.collect.reference.blocks import Block
from surrogate.features.conv import Conv
from surrogate.features.elementwise import ceil_div


def inside(start: int, stop: int, offset: int, stride: int, size: int) -> tuple[int, int]:
    """The part [lo, hi) of outputs [start, stop) whose input output·stride + offset lies in [0, size).

    ``lo <= hi`` always; an empty part is (start, start).
    """
    lo = max(start, ceil_div(-offset, stride))
    hi = min(stop, (size - offset - 1) // stride + 1)
    return (lo, hi) if lo < hi else (start, start)


def copy_window(x: np.ndarray, conv: Conv, tap: tuple[int, int], block: Block, out: np.ndarray) -> None:
    """Fill ``out`` with what filter tap (r, s) sees of ``x`` at the block's output positions.

    ``x`` is (images of the whole batch, …, h, w), ``out`` (images of the block, …, rows, columns) with the
    same axes between; ``out`` may be any strided view.
    """
    top = tap[0] * conv.dilation_h - conv.pad_h
    left = tap[1] * conv.dilation_w - conv.pad_w
    p0, p1 = inside(block.p0, block.p1, top, conv.stride_h, conv.h)
    q0, q1 = inside(block.q0, block.q1, left, conv.stride_w, conv.w)
    if (p1 - p0, q1 - q0) != (block.p1 - block.p0, block.q1 - block.q0):
        out[...] = 0.0
    if p0 == p1 or q0 == q1:
        return
    rows = slice(p0 * conv.stride_h + top, (p1 - 1) * conv.stride_h + top + 1, conv.stride_h)
    columns = slice(q0 * conv.stride_w + left, (q1 - 1) * conv.stride_w + left + 1, conv.stride_w)
    target = out[..., p0 - block.p0 : p1 - block.p0, q0 - block.q0 : q1 - block.q0]
    target[...] = x[block.n0 : block.n1, ..., rows, columns]
