"""Launched blocks and B_max of SEER's kernel variants.

Source: SEER (PACT 2021) and its public repository; see `surrogate.models.seer.formulas` for the symbols.
"""

from surrogate.features.elementwise import Number, ceil_div

TITAN_XP_B_MAX: dict[str, dict[str, int]] = {
    "IMPLICIT_GEMM": {"32x32": 240, "64x128": 120, "128x128": 120},
    "IMPLICIT_PRECOMP_GEMM": {"128x32": 150, "128x64": 120, "128x128": 60},
    "GEMM": {"32x32": 480, "64x128": 60, "128x128": 60},
    "WINOGRAD": {"1x4x8": 60, "2x2x8": 60, "4x1x8": 60},
    "WINOGRAD_NONFUSED": {"128x64": 120, "128x128": 60},
}
"""Algorithm → tile → blocks that a Titan Xp (30 SMs) holds at once; its keys are the tiles that SEER knows."""

WINOGRAD_NONFUSED_STAGE = {3: (4, 36), 5: (9, 169)}
"""Filter width → (output tile's side, batched GEMMs) of non-fused Winograd."""


def gemm_blocks(batch: Number, out_width: Number, outputs: Number, tile_m: int, tile_n: int) -> Number:
    """GEMM family: ⌈N·O²/t_m⌉·⌈K/t_n⌉."""
    return ceil_div(batch * out_width * out_width, tile_m) * ceil_div(outputs, tile_n)


def winograd_blocks(batch: Number, width: Number, outputs: Number, tile: tuple[int, int, int]) -> Number:
    """Fused Winograd with tile (b, p, q): ⌈N/b⌉·⌈⌈W/2⌉/p⌉·⌈⌈W/2⌉/q⌉·⌈K/32⌉."""
    images, rows, columns = tile
    across = ceil_div(width, 2)
    return (
        ceil_div(batch, images) * ceil_div(across, rows) * ceil_div(across, columns) * ceil_div(outputs, 32)
    )


def winograd_nonfused_blocks(
    batch: Number,
    out_width: Number,
    outputs: Number,
    filter_width: int,
    tile_n: int,
    *,
    original: bool = False,
) -> Number:
    """Non-fused Winograd's GEMMs: k = 3: ⌈N·⌈O/4⌉²/128⌉·⌈K/t_n⌉·36; k = 5: ⌈N·⌈O/9⌉²/128⌉·⌈K/t_n⌉·169.

    ``original`` takes t_n = 64 for every tile, as the original predicts (twice the blocks for 128×128).
    """
    side, gemms = WINOGRAD_NONFUSED_STAGE[filter_width]
    across = ceil_div(out_width, side)
    return ceil_div(batch * across * across, 128) * ceil_div(outputs, 64 if original else tile_n) * gemms


def launched_blocks(
    algorithm: str,
    tile: str,
    *,
    batch: Number,
    width: Number,
    outputs: Number,
    out_width: Number,
    filter_width: int,
    original: bool = False,
) -> Number:
    """Blocks of one algorithm's main kernel by its tile's name (``128x64``, ``1x4x8``); NaN for a tile without a rule.

    ``filter_width`` matters to non-fused Winograd only, and is one number there.
    """
    sizes = tile_sizes(tile)
    if algorithm == "WINOGRAD" and len(sizes) == 3:
        return winograd_blocks(batch, width, outputs, (sizes[0], sizes[1], sizes[2]))
    if algorithm == "WINOGRAD_NONFUSED" and len(sizes) == 2 and filter_width in WINOGRAD_NONFUSED_STAGE:
        return winograd_nonfused_blocks(batch, out_width, outputs, filter_width, sizes[1], original=original)
    if not algorithm.startswith("WINOGRAD") and len(sizes) == 2:
        return gemm_blocks(batch, out_width, outputs, sizes[0], sizes[1])
    return 0 * batch + float("nan")


def tile_sizes(tile: str) -> tuple[int, ...]:
    """``128x64`` → (128, 64); () for a name that is no tile."""
    parts = tile.split("x")
    return tuple(map(int, parts)) if len(parts) in (2, 3) and all(part.isdigit() for part in parts) else ()
