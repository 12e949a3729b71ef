"""`Sized`, a problem with its derived sizes; `KernelTerms`, what every mechanism's formula returns; and launches.

Tile variants of each mechanism's main kernel are SEER's (§2: GEMM-I, GEMM-P, GEMM, WINO, WINO-N); FFT's pointwise stage
is a batched complex GEMM, for which cuBLAS' common tiles stand.
"""

from collections import namedtuple
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from ..algorithms import MECHANISM_ROWS
from ..elementwise import Number, where
from ..problem import ConvColumns, Problem
from ..shape import flops, gemm_k, gemm_m, gemm_n, out_h, out_w, tensor_bytes

Tile = tuple[int, int]
Slots = Sequence[Number] | np.ndarray
"""B_max: how many blocks of a mechanism's small, middle and large tile the GPU holds at once."""


def _tiles(rows: Sequence[Sequence[int]]) -> tuple[Tile, Tile, Tile]:
    """The small, the middle and the large tile of a row of the table."""
    (small_m, small_n), (middle_m, middle_n), (large_m, large_n) = rows
    return (small_m, small_n), (middle_m, middle_n), (large_m, large_n)


TILES: dict[str, tuple[Tile, Tile, Tile]] = {name: _tiles(row["tiles"]) for name, row in MECHANISM_ROWS.items()}
"""Mechanism → (tile_m, tile_n) = (pixels, channels) of its small, middle and large tile."""

WINOGRAD_BLOCKS = ((1, 4, 8), (2, 2, 8), (4, 1, 8))
"""Images × tile rows × tile columns of one block of the fused Winograd kernel (SEER §2, launched blocks)."""


Sized = namedtuple(
    "Sized",
    (
        *ConvColumns._fields,
        "out_h",
        "out_w",
        "flops",
        "tensor_bytes",
        "gemm_m",
        "gemm_n",
        "gemm_k",
        "c_per_group",
        "k_per_group",
        "channels_in",
        "channels_out",
        "result_h",
        "result_w",
    ),
)
"""A `Problem` of numbers or of arrays, and the sizes derived from it.

``channels_in`` and ``channels_out`` are *per group* as the direction sees them (forward and filter gradient read c and
produce k, the data gradient swaps), ``result_h`` and ``result_w`` the extents of what it produces; the other derived
sizes are those of `surrogate.features.shape`.
"""
_sized = partial(tuple.__new__, Sized)
"""`Sized` of its values in order, in half the time."""


def sized(p: Problem) -> Sized:
    """``p`` with its derived sizes; ``p`` itself where it has them."""
    if isinstance(p, Sized):
        return p
    height = out_h(p)
    width = out_w(p)
    extents = (height, width)
    c = p.c // p.groups  # per group
    k = p.k // p.groups
    back = p.is_bwd_data
    produced = gemm_n(p)
    return _sized(
        (
            p.n,
            p.c,
            p.h,
            p.w,
            p.k,
            p.r,
            p.s,
            p.pad_h,
            p.pad_w,
            p.stride_h,
            p.stride_w,
            p.dilation_h,
            p.dilation_w,
            p.groups,
            p.itemsize,
            back,
            p.is_bwd_filter,
            p.is_nhwc,
            p.uses_tensor_cores,
            height,
            width,
            flops(p, extents),
            tensor_bytes(p, extents),
            gemm_m(p, extents),
            produced,
            gemm_k(p, extents),
            c,
            k,
            where(back, k, c),
            produced,
            where(back, p.h, height),
            where(back, p.w, width),
        )
    )


class Launch(NamedTuple):
    """The main kernel at one tile size: SEER §2 items 1 and 4.

    ``blocks`` launched; ``waves`` = blocks / B_max, not rounded; ``last_wave_share`` ε in (0, 1], the filled part of
    the last wave; ``tile_utilisation`` in (0, 1], useful outputs over computed ones (the rest is tile quantisation).
    """

    blocks: Number
    waves: Number
    last_wave_share: Number
    tile_utilisation: Number


_launch = partial(tuple.__new__, Launch)
"""`Launch` of its four values, in half the time: a prediction makes three for each algorithm."""


class KernelTerms(NamedTuple):
    """What an algorithm does on a problem.

    ``arithmetic_flops``: operations really done, transforms included, tile padding not; ``dram_bytes``: compulsory
    tensor traffic plus the workspace written and read back; ``operand_bytes``: operands that blocks of the middle tile
    load before any reuse between blocks (L2 traffic at worst); ``workspace_bytes``; ``kernels`` launched;
    ``launches``: the main kernel at a small, a middle and a large tile.
    """

    arithmetic_flops: Number
    dram_bytes: Number
    operand_bytes: Number
    workspace_bytes: Number
    kernels: Number
    launches: tuple[Launch, Launch, Launch]


def launch(blocks: Number, b_max: Number, tile_utilisation: Number) -> Launch:
    """The launch of ``blocks`` blocks on a device that holds ``b_max`` of them at once (SEER §2 item 4)."""
    waves = blocks / b_max
    return _launch((blocks, waves, waves - (-(-blocks // b_max) - 1), tile_utilisation))


def gemm_launch(m: Number, n: Number, tile_m: int, tile_n: int, count: Number, b_max: Number) -> Launch:
    """``count`` independent m × n GEMMs cut into tile_m × tile_n tiles: ⌈m/t_m⌉·⌈n/t_n⌉·count blocks."""
    tiles = -(-m // tile_m) * -(-n // tile_n)  # `ceil_div` and `launch` written out: this runs for every tile
    blocks = tiles * count
    waves = blocks / b_max
    return _launch((blocks, waves, waves - (-(-blocks // b_max) - 1), m * n / (tiles * (tile_m * tile_n))))


def gemm_launches(
    m: Number, n: Number, tiles: tuple[Tile, Tile, Tile], count: Number, b_max: Slots
) -> tuple[Launch, Launch, Launch]:
    """`gemm_launch` at the small, the middle and the large tile."""
    (small_m, small_n), (middle_m, middle_n), (large_m, large_n) = tiles
    small, middle, large = b_max
    return (
        gemm_launch(m, n, small_m, small_n, count, small),
        gemm_launch(m, n, middle_m, middle_n, count, middle),
        gemm_launch(m, n, large_m, large_n, count, large),
    )
