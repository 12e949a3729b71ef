"""The GEMM family: implicit GEMM, implicit GEMM with precomputed indices, and explicit im2col.

Sources: SEER (PACT 2021) for tiles and launched blocks; the cuDNN developer guide for workspaces.
"""

from typing import Any

from features.elementwise import Number, round_up, where
from features.problem import Problem
from features.shape import flops, gemm_k, gemm_m, gemm_n, out_h, out_w, tensor_bytes
from features.terms.kernel import KernelTerms, Launch, gemm_launch
from features.terms.tiles import TILES, Tile

INDEX_BYTES = 4


def _launches(p: Problem, tiles: tuple[Tile, Tile, Tile], b_max: Any) -> tuple[Launch, Launch, Launch]:
    m, n = gemm_m(p), gemm_n(p)
    small, middle, large = (
        gemm_launch(m, n, tile_m, tile_n, p.groups, slots)
        for (tile_m, tile_n), slots in zip(tiles, b_max, strict=True)
    )
    return small, middle, large


def _operand_bytes(p: Problem, tile: Tile, blocks: Number) -> Number:
    """Bytes of both operands over all blocks of one tile size: (t_m + t_n)·K each, no reuse counted (SEER §7's R)."""
    return blocks * (tile[0] + tile[1]) * gemm_k(p) * p.itemsize


def implicit_gemm(p: Problem, b_max: Any) -> KernelTerms:
    """Implicit GEMM: no workspace, one kernel, indices computed on the fly."""
    launches = _launches(p, TILES["implicit_gemm"], b_max)
    operands = _operand_bytes(p, TILES["implicit_gemm"][1], launches[1].blocks)
    return KernelTerms(flops(p), tensor_bytes(p), operands, 0 * p.n, 1 + 0 * p.n, launches)


def precomp_gemm(p: Problem, b_max: Any) -> KernelTerms:
    """Implicit GEMM with precomputed indices, filled by a second tiny kernel.

    The index buffer holds ⌊1.5·P·Q⌋ + 2 int32, as cuDNN 7 reports it for ungrouped problems since Maxwell.
    """
    launches = _launches(p, TILES["precomp_gemm"], b_max)
    workspace = (3 * out_h(p) * out_w(p) // 2 + 2) * INDEX_BYTES
    operands = _operand_bytes(p, TILES["precomp_gemm"][1], launches[1].blocks)
    return KernelTerms(flops(p), tensor_bytes(p) + 2 * workspace, operands, workspace, 2 + 0 * p.n, launches)


def im2col_bytes(p: Problem) -> Number:
    """Bytes of the im2col buffer: N·C·R·S·P·Q elements; with groups 2·round_up(…, 16) of one group on cuDNN 7."""
    one_group = p.n * (p.c // p.groups) * p.r * p.s * out_h(p) * out_w(p) * p.itemsize
    return where(p.groups > 1, 2 * round_up(one_group, 16), one_group)


def explicit_gemm(p: Problem, b_max: Any) -> KernelTerms:
    """im2col, then GEMM: the buffer is written once and read once, for every group."""
    launches = _launches(p, TILES["gemm"], b_max)
    operands = _operand_bytes(p, TILES["gemm"][1], launches[1].blocks)
    columns = p.n * p.c * p.r * p.s * out_h(p) * out_w(p) * p.itemsize
    return KernelTerms(
        flops(p), tensor_bytes(p) + 2 * columns, operands, im2col_bytes(p), 2 * p.groups, launches
    )
