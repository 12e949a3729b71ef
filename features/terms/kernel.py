"""`KernelTerms`, what every family's formula returns, and the launch arithmetic of a tiled kernel."""

from functools import partial
from typing import NamedTuple

from ..elementwise import Number
from ..problem import Problem
from ..terms.sized import sized
from ..terms.tiles import Tile


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


class Roles(NamedTuple):
    """Who is reduced and who is produced: forward and filter gradient read c and produce k, the data gradient swaps."""

    channels_in: Number
    channels_out: Number
    out_h: Number
    out_w: Number


def roles(p: Problem) -> Roles:
    """Channels *per group* and output extents as the direction sees them, in elements."""
    z = sized(p)
    return Roles(z.channels_in, z.channels_out, z.result_h, z.result_w)


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
    m: Number, n: Number, tiles: tuple[Tile, Tile, Tile], count: Number, b_max: tuple[Number, Number, Number]
) -> tuple[Launch, Launch, Launch]:
    """`gemm_launch` at the small, the middle and the large tile."""
    (small_m, small_n), (middle_m, middle_n), (large_m, large_n) = tiles
    small, middle, large = b_max
    return (
        gemm_launch(m, n, small_m, small_n, count, small),
        gemm_launch(m, n, middle_m, middle_n, count, middle),
        gemm_launch(m, n, large_m, large_n, count, large),
    )
