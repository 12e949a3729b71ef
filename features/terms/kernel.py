"""`KernelTerms`, what every family's formula returns, and the launch arithmetic of a tiled kernel."""

from typing import NamedTuple

from features.elementwise import Number, ceil_div, where
from features.problem import Problem
from features.shape import out_h, out_w


class Launch(NamedTuple):
    """The main kernel at one tile size: SEER §2 items 1 and 4.

    ``blocks`` launched; ``waves`` = blocks / B_max, not rounded; ``last_wave_share`` ε in (0, 1], the filled part of
    the last wave; ``tile_utilisation`` in (0, 1], useful outputs over computed ones (the rest is tile quantisation).
    """

    blocks: Number
    waves: Number
    last_wave_share: Number
    tile_utilisation: Number


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
    c, k = p.c // p.groups, p.k // p.groups
    back = p.is_bwd_data
    return Roles(where(back, k, c), where(back, c, k), where(back, p.h, out_h(p)), where(back, p.w, out_w(p)))


def launch(blocks: Number, b_max: Number, tile_utilisation: Number) -> Launch:
    """The launch of ``blocks`` blocks on a device that holds ``b_max`` of them at once (SEER §2 item 4)."""
    full_waves = ceil_div(blocks, b_max)
    return Launch(blocks, blocks / b_max, blocks / b_max - (full_waves - 1), tile_utilisation)


def gemm_launch(m: Number, n: Number, tile_m: int, tile_n: int, count: Number, b_max: Number) -> Launch:
    """``count`` independent m × n GEMMs cut into tile_m × tile_n tiles: ⌈m/t_m⌉·⌈n/t_n⌉·count blocks."""
    rows, columns = ceil_div(m, tile_m), ceil_div(n, tile_n)
    return launch(rows * columns * count, b_max, (m * n) / (rows * columns * (tile_m * tile_n)))
