"""GEMM: the whole im2col matrix is written to memory, then multiplied by the filter (one batched GEMM).

Workspace N·C·R·S·P·Q·4 bytes, as cuDNN's algorithm 2.
"""

import numpy as np

from surrogate.collect.reference.blocks import Block
from surrogate.collect.reference.buffers import Buffer, Buffers
from surrogate.collect.reference.window import copy_window
from surrogate.features.conv import Conv


def buffers(conv: Conv) -> Buffers:
    """The im2col matrix (n, c, r, s, p, q)."""
    return {"columns": Buffer((conv.n, conv.c, conv.r, conv.s, conv.out_h, conv.out_w))}


def kernel(x: np.ndarray, w: np.ndarray, y: np.ndarray, conv: Conv) -> None:
    """Write the convolution of ``x`` (n, c, h, w) and ``w`` (k, c/groups, r, s) to ``y`` (n, k, p, q)."""
    columns = buffers(conv)["columns"].empty()
    everything = Block(0, conv.n, 0, conv.out_h, 0, conv.out_w)
    for r in range(conv.r):
        for s in range(conv.s):
            copy_window(x, conv, (r, s), everything, columns[:, :, r, s])
    groups, outputs = conv.groups, conv.out_h * conv.out_w
    reduction = conv.c // groups * conv.r * conv.s
    np.matmul(
        w.reshape(groups, conv.k // groups, reduction),
        columns.reshape(conv.n, groups, reduction, outputs),
        out=y.reshape(conv.n, groups, conv.k // groups, outputs),
    )
