"""The GEMM family: implicit GEMM, implicit GEMM with precomputed indices, and explicit im2col.

Sources: SEER (PACT 2021) for tiles and launched blocks; the cuDNN developer guide for workspaces.
"""

from ..elementwise import Number, ceil_div, round_up, where
from ..problem import Problem
from ..terms.kernel import TILES, KernelTerms, Launch, Sized, Slots, Tile, gemm_launches, launch, sized

INDEX_BYTES = 4


def _launches(z: Sized, tiles: tuple[Tile, Tile, Tile], b_max: Slots) -> tuple[Launch, Launch, Launch]:
    return gemm_launches(z.gemm_m, z.gemm_n, tiles, z.groups, b_max)


def _operand_bytes(z: Sized, tile: Tile, blocks: Number) -> Number:
    """Bytes of both operands over all blocks of one tile size: (t_m + t_n)·K each, no reuse counted (SEER §7's R)."""
    return blocks * (tile[0] + tile[1]) * z.gemm_k * z.itemsize


def implicit_gemm(p: Problem, b_max: Slots) -> KernelTerms:
    """Implicit GEMM: no workspace, one kernel, indices computed on the fly."""
    z = sized(p)
    launches = _launches(z, TILES["implicit_gemm"], b_max)
    operands = _operand_bytes(z, TILES["implicit_gemm"][1], launches[1].blocks)
    return KernelTerms(z.flops, z.tensor_bytes, operands, 0 * z.n, 1 + 0 * z.n, launches)


def precomp_gemm(p: Problem, b_max: Slots) -> KernelTerms:
    """Implicit GEMM with precomputed indices, filled by a second tiny kernel.

    The index buffer holds ⌊1.5·P·Q⌋ + 2 int32, as cuDNN 7 reports it for ungrouped problems since Maxwell.
    """
    z = sized(p)
    launches = _launches(z, TILES["precomp_gemm"], b_max)
    workspace = (3 * z.out_h * z.out_w // 2 + 2) * INDEX_BYTES
    operands = _operand_bytes(z, TILES["precomp_gemm"][1], launches[1].blocks)
    return KernelTerms(z.flops, z.tensor_bytes + 2 * workspace, operands, workspace, 2 + 0 * z.n, launches)


def im2col_bytes(p: Problem) -> Number:
    """Bytes of the im2col buffer: N·C·R·S·P·Q elements; with groups 2·round_up(…, 16) of one group on cuDNN 7."""
    z = sized(p)
    one_group = z.n * z.c_per_group * z.r * z.s * z.out_h * z.out_w * z.itemsize
    return where(z.groups > 1, 2 * round_up(one_group, 16), one_group)


def explicit_gemm(p: Problem, b_max: Slots) -> KernelTerms:
    """im2col, then GEMM: the buffer is written once and read once, for every group."""
    z = sized(p)
    launches = _launches(z, TILES["gemm"], b_max)
    operands = _operand_bytes(z, TILES["gemm"][1], launches[1].blocks)
    columns = z.n * z.c * z.r * z.s * z.out_h * z.out_w * z.itemsize
    return KernelTerms(z.flops, z.tensor_bytes + 2 * columns, operands, im2col_bytes(z), 2 * z.groups, launches)


def direct(p: Problem, b_max: Slots) -> KernelTerms:
    """Blocks of t × t output pixels for one output channel each; operands are a halo of the input and one filter."""
    z = sized(p)
    launches = []
    for (tile_h, tile_w), slots in zip(TILES["direct"], b_max, strict=True):
        rows = ceil_div(z.result_h, tile_h)
        columns = ceil_div(z.result_w, tile_w)
        count = z.n * z.channels_out * z.groups
        # The tiles at the lower and right edge reach beyond the image.
        useful = (z.result_h * z.result_w) / (rows * columns * (tile_h * tile_w))
        launches.append(launch(rows * columns * count, slots, useful))
    small, middle, large = launches
    tile_h, tile_w = TILES["direct"][1]
    operands = middle.blocks * z.channels_in * ((tile_h + z.r - 1) * (tile_w + z.s - 1) + z.r * z.s) * z.itemsize
    return KernelTerms(z.flops, z.tensor_bytes, operands, 0 * z.n, 1 + 0 * z.n, (small, middle, large))
