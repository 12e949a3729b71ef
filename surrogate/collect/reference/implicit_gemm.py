"""IMPLICIT_GEMM: for each filter tap a small GEMM on a window of the input, summed in an accumulator tile.

No buffer grows with the problem, so the workspace is 0. The four tiles are the counterpart of a GPU
kernel's shared memory and registers: fixed in size (at most `TILE_BYTES` together) and held in the core's
cache.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from surrogate.collect.reference.blocks import Block, blocks
from surrogate.collect.reference.buffers import Buffers, part
from surrogate.collect.reference.window import copy_window
from surrogate.features.conv import Conv

TILE = 256
"""Channels and output channels of one tile at most; a tile holds TILE² numbers."""
TILE_BYTES = 4 * TILE * TILE * 4
"""The four float32 tiles: window, filter, product, accumulator."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """Groups, output and input channels (both within a group) and output positions per step."""

    groups: int
    k: int
    c: int
    positions: int

    @classmethod
    def of(cls, conv: Conv) -> "Tiling":
        """The tiling of one problem: more groups and positions at once where there are few channels."""
        k, c = min(conv.k // conv.groups, TILE), min(conv.c // conv.groups, TILE)
        groups = min(conv.groups, max(1, TILE // max(k, c)))
        return cls(groups, k, c, positions=TILE * TILE // (groups * max(k, c)))


def buffers(conv: Conv) -> Buffers:
    """None: no buffer grows with the problem."""
    return {}


def kernel(x: np.ndarray, w: np.ndarray, y: np.ndarray, conv: Conv) -> None:
    """Write the convolution of ``x`` (n, c, h, w) and ``w`` (k, c/groups, r, s) to ``y`` (n, k, p, q)."""
    groups, k, c = conv.groups, conv.k // conv.groups, conv.c // conv.groups
    xs = x.reshape(conv.n, groups, c, conv.h, conv.w)
    ws = w.reshape(groups, k, c, conv.r, conv.s)
    ys = y.reshape(conv.n, groups, k, conv.out_h, conv.out_w)
    tiling = Tiling.of(conv)
    tiles = tuple(np.empty(TILE * TILE, np.float32) for _ in range(4))
    for block in blocks(conv.n, conv.out_h, conv.out_w, tiling.positions):
        for gs in _steps(groups, tiling.groups):
            for ks in _steps(k, tiling.k):
                tile = _output_tile(xs[:, gs], ws[gs, ks], conv, block, tiling.c, tiles)
                ys[block.n0 : block.n1, gs, ks, block.p0 : block.p1, block.q0 : block.q1] = tile


def _output_tile(
    x: np.ndarray, w: np.ndarray, conv: Conv, block: Block, c_step: int, tiles: tuple[np.ndarray, ...]
) -> np.ndarray:
    """One output tile as a view (images, groups, k, rows, columns) of the accumulator."""
    groups, k, c = w.shape[:3]
    product = part(tiles[2], (groups, k, block.size))
    total = part(tiles[3], (groups, k, block.size))
    total.fill(0.0)
    for cs in _steps(c, c_step):
        channels = cs.stop - cs.start
        window = part(tiles[0], (groups, channels, *block.shape))
        taps = part(tiles[1], (groups, k, channels))
        for r in range(conv.r):
            for s in range(conv.s):
                copy_window(x[:, :, cs], conv, (r, s), block, window.transpose(2, 0, 1, 3, 4))
                taps[...] = w[:, :, cs, r, s]
                np.matmul(taps, window.reshape(groups, channels, block.size), out=product)
                np.add(total, product, out=total)
    return total.reshape(groups, k, *block.shape).transpose(2, 0, 1, 3, 4)


def _steps(size: int, step: int) -> Iterator[slice]:
    """Slices of at most ``step`` that cover ``range(size)``."""
    return (slice(start, min(start + step, size)) for start in range(0, size, step))
