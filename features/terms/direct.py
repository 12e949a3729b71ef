"""Direct convolution: every output element by its own loop, no workspace."""

from typing import Any

from ..elementwise import ceil_div
from ..problem import Problem
from ..terms.kernel import KernelTerms, launch
from ..terms.sized import sized
from ..terms.tiles import TILES


def direct(p: Problem, b_max: Any) -> KernelTerms:
    """Blocks of t × t output pixels for one output channel each; operands are a halo of the input and one filter."""
    z = sized(p)
    launches = []
    for (tile_h, tile_w), slots in zip(TILES["direct"], b_max, strict=True):
        rows, columns = ceil_div(z.result_h, tile_h), ceil_div(z.result_w, tile_w)
        count = z.n * z.channels_out * z.groups
        useful = (z.result_h * z.result_w) / (rows * columns * (tile_h * tile_w))
        launches.append(launch(rows * columns * count, slots, useful))
    small, middle, large = launches
    tile_h, tile_w = TILES["direct"][1]
    operands = (
        middle.blocks * z.channels_in * ((tile_h + z.r - 1) * (tile_w + z.s - 1) + z.r * z.s) * z.itemsize
    )
    return KernelTerms(z.flops, z.tensor_bytes, operands, 0 * z.n, 1 + 0 * z.n, (small, middle, large))
