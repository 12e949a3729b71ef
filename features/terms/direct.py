"""Direct convolution: every output element by its own loop, no workspace."""

from typing import Any

from features.elementwise import ceil_div
from features.problem import Problem
from features.shape import flops, tensor_bytes
from features.terms.kernel import KernelTerms, launch, roles
from features.terms.tiles import TILES


def direct(p: Problem, b_max: Any) -> KernelTerms:
    """Blocks of t × t output pixels for one output channel each; operands are a halo of the input and one filter."""
    r = roles(p)
    launches = []
    for (tile_h, tile_w), slots in zip(TILES["direct"], b_max, strict=True):
        rows, columns = ceil_div(r.out_h, tile_h), ceil_div(r.out_w, tile_w)
        count = p.n * r.channels_out * p.groups
        useful = (r.out_h * r.out_w) / (rows * columns * (tile_h * tile_w))
        launches.append(launch(rows * columns * count, slots, useful))
    small, middle, large = launches
    tile_h, tile_w = TILES["direct"][1]
    operands = (
        middle.blocks * r.channels_in * ((tile_h + p.r - 1) * (tile_w + p.s - 1) + p.r * p.s) * p.itemsize
    )
    return KernelTerms(flops(p), tensor_bytes(p), operands, 0 * p.n, 1 + 0 * p.n, (small, middle, large))
