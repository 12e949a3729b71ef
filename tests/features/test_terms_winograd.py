"""Winograd by hand, on SEER's grid, and against the reference implementation's own count."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.features.conv import Conv
from surrogate.features.shape import tensor_bytes
from surrogate.features.terms.winograd import filter_pieces, winograd, winograd_nonfused

TINY: dict[str, Any] = {"n": 1, "c": 1, "h": 4, "k": 1, "r": 3, "pad_h": 1}
SLOTS = (60.0, 60.0, 60.0)


def test_fused_by_hand() -> None:
    terms = winograd(Conv(**TINY), SLOTS)
    # F(2×2, 3×3), α 4, 4 tiles: products 2·16·4; filter 3·4·(3+4); input 4·2·64; output 4·4·2·(4+2).
    assert terms.arithmetic_flops == 128 + 84 + 512 + 192
    assert terms.workspace_bytes == 16 * 4
    assert terms.dram_bytes == tensor_bytes(Conv(**TINY)) + 2 * 64
    assert terms.kernels == 2
    assert [one.blocks for one in terms.launches] == [1, 1, 2]
    assert terms.launches[0].tile_utilisation == 16 / (1 * 4 * 8 * 4 * 32)


def test_nonfused_by_hand() -> None:
    terms = winograd_nonfused(Conv(**TINY), SLOTS)
    # F(4×4, 3×3), α 6, one tile: products 2·36; filter 3·6·9; input 2·216; output 6·4·10.
    assert terms.arithmetic_flops == 72 + 162 + 432 + 240
    assert terms.workspace_bytes == 36 * 3 * 4
    assert terms.kernels == 4
    assert [one.blocks for one in terms.launches] == [36, 36, 36]


def test_five_by_five_uses_tiles_of_nine() -> None:
    # F(9×9, 5×5), α 13: an 18 × 18 output is 4 tiles; 169 · (4·(2 + 3) + 6) floats of workspace.
    terms = winograd_nonfused(Conv(n=1, c=2, h=18, k=3, r=5, pad_h=2), SLOTS)
    assert terms.workspace_bytes == 169 * (4 * 5 + 6) * 4
    assert [one.blocks for one in terms.launches] == [169, 169, 169]


def test_products_shrink_as_the_paper_says() -> None:
    # Lavin & Gray §4: 36/16 = 2.25 times fewer products for F(2×2, 3×3), 144/36 = 4 times for F(4×4, 3×3). With many
    # channels the transforms vanish; 56 divides by both tiles.
    conv = Conv(n=1, c=8192, h=56, k=8192, r=3, pad_h=1)
    assert conv.flops / winograd(conv, SLOTS).arithmetic_flops == pytest.approx(2.25, rel=0.02)
    assert conv.flops / winograd_nonfused(conv, SLOTS).arithmetic_flops == pytest.approx(4.0, rel=0.04)


GRID_CHANNELS = st.sampled_from([3, 16, 32, 64, 100, 128, 256, 400, 512, 600, 800, 1024])
GRID_WIDTHS = st.sampled_from([4, 10, 16, 20, 32, 64, 80, 100, 128, 224, 256, 400, 512])


@given(GRID_CHANNELS, GRID_CHANNELS, GRID_WIDTHS)
def test_launched_blocks_are_seers(c: int, k: int, w: int) -> None:
    """SEER §2 on its own grid: ⌈N/b⌉·⌈⌈W/2⌉/p⌉·⌈⌈W/2⌉/8⌉·⌈K/32⌉, and the 36 batched GEMMs of the non-fused kernel."""
    conv = Conv(n=128, c=c, h=w, k=k, r=3, pad_h=1)
    half = -(-w // 2)
    fused = [-(-128 // b) * -(-half // p) * -(-half // 8) * -(-k // 32) for b, p in ((1, 4), (2, 2), (4, 1))]
    assert [one.blocks for one in winograd(conv, SLOTS).launches] == fused
    tiles = 128 * (-(-w // 4)) ** 2
    nonfused = [-(-tiles // 128) * -(-k // n) * 36 for n in (64, 128)]
    assert [one.blocks for one in winograd_nonfused(conv, SLOTS).launches[1:]] == nonfused


def test_larger_filters_are_cut_into_three_by_threes() -> None:
    assert filter_pieces(Conv(**TINY)) == 1
    assert filter_pieces(Conv(n=1, c=1, h=9, k=1, r=7, s=5)) == 6
