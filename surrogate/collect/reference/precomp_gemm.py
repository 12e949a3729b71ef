"""IMPLICIT_PRECOMP_GEMM: input offsets are computed once; a block of outputs is one gather and one GEMM.

The workspace holds the offsets (R·S × P·Q), the mask of padded positions where there is padding, and one
gather tile.
"""

import numpy as np

from surrogate.collect.reference.buffers import Buffer, Buffers, part
from surrogate.features.conv import Conv

GATHER_ELEMENTS = 2**18
"""Aim for the gather tile (1 MiB of float32), so that the GEMM finds it in the core's cache."""
LEAST_POSITIONS = 32
"""Fewer columns than this and the GEMM would degrade to matrix-vector products."""


def positions_per_block(conv: Conv) -> int:
    """Output positions (of one image) that one GEMM covers."""
    wanted = max(LEAST_POSITIONS, GATHER_ELEMENTS // (conv.c * conv.r * conv.s))
    return min(conv.out_h * conv.out_w, wanted)


def buffers(conv: Conv) -> Buffers:
    """Offsets, mask, gather tile, and the scratch of one block's offsets."""
    taps, outputs, step = conv.r * conv.s, conv.out_h * conv.out_w, positions_per_block(conv)
    mask = {"mask": Buffer((taps * outputs,), "bool")} if _is_padded(conv) else {}
    return {
        "index": Buffer((taps * outputs,), "intp"),
        **mask,
        "scratch": Buffer((taps, step), "intp"),
        "tile": Buffer((conv.c, taps, step)),
    }


def kernel(x: np.ndarray, w: np.ndarray, y: np.ndarray, conv: Conv) -> None:
    """Write the convolution of ``x`` (n, c, h, w) and ``w`` (k, c/groups, r, s) to ``y`` (n, k, p, q)."""
    work = {name: buffer.empty() for name, buffer in buffers(conv).items()}
    taps, outputs, step = conv.r * conv.s, conv.out_h * conv.out_w, positions_per_block(conv)
    groups, k, c = conv.groups, conv.k // conv.groups, conv.c // conv.groups
    fill_index(conv, work)
    xs = x.reshape(conv.n, conv.c, conv.h * conv.w)
    ws = w.reshape(groups, k, c * taps)
    ys = y.reshape(conv.n, groups, k, outputs)
    for image in range(conv.n):
        for start in range(0, outputs, step):
            stop = min(start + step, outputs)
            here, shape = slice(start * taps, stop * taps), (taps, stop - start)
            tile = part(work["tile"], (conv.c, *shape))
            # mode="clip" lets take write straight into `out`; the offsets are in range by construction
            np.take(xs[image], work["index"][here].reshape(shape), axis=1, out=tile, mode="clip")
            if "mask" in work:
                np.copyto(tile, 0.0, where=work["mask"][here].reshape(shape))
            np.matmul(ws, tile.reshape(groups, c * taps, stop - start), out=ys[image, :, :, start:stop])


def fill_index(conv: Conv, work: dict[str, np.ndarray]) -> None:
    """Fill ``index`` (input offset row·w + column, 0 in the padding) and ``mask`` (True in the padding).

    Both are laid out block by block, (taps, positions of the block) each, so that every block's part is
    contiguous.
    """
    taps, outputs, step = conv.r * conv.s, conv.out_h * conv.out_w, positions_per_block(conv)
    tap_row, tap_column = np.divmod(np.arange(taps), conv.s)
    tap_row, tap_column = tap_row * conv.dilation_h - conv.pad_h, tap_column * conv.dilation_w - conv.pad_w
    for start in range(0, outputs, step):
        stop = min(start + step, outputs)
        here, shape = slice(start * taps, stop * taps), (taps, stop - start)
        p, q = np.divmod(np.arange(start, stop), conv.out_w)
        row = np.add.outer(tap_row, p * conv.stride_h, out=part(work["scratch"], shape))
        index = work["index"][here].reshape(shape)
        column = np.add.outer(tap_column, q * conv.stride_w, out=index)
        mask = work["mask"][here].reshape(shape) if "mask" in work else None
        if mask is not None:
            np.less(row, 0, out=mask)
            mask |= row >= conv.h
            mask |= column < 0
            mask |= column >= conv.w
        np.multiply(row, conv.w, out=row)
        np.add(column, row, out=index)
        if mask is not None:
            index[mask] = 0


def _is_padded(conv: Conv) -> bool:
    return conv.pad_h > 0 or conv.pad_w > 0
