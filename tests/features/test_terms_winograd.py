"""Winograd terms against hand calculations, SEER's grid and counted FLOPs."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import prod
from typing import Any

import pytest
from hypothesis import given, strategies as st

from surrogate.features import terms as formulas
from surrogate.features.conv import Conv

TINY: dict[str, Any] = {"n": 1, "c": 1, "h": 4, "k": 1, "r": 3, "pad_h": 1}
SLOTS = (60.0, 60.0, 60.0)


def test_fused_winograd_terms_equal_the_hand_calculation() -> None:
    terms = formulas.winograd(Conv(**TINY), SLOTS)
    # F(2×2, 3×3), α 4, 4 tiles: products 2·16·4; Lavin & Gray's 28 instructions for a filter, 14 of them multiply-adds,
    # and their 32 additions for a tile's input and 24 for its output.
    assert terms.arithmetic_flops == 128 + (28 + 14) + 4 * 32 + 4 * 24
    assert terms.workspace_bytes == 16 * 4
    assert terms.dram_bytes == formulas.tensor_bytes(Conv(**TINY)) + 2 * 64
    assert terms.kernels == 2
    assert [one.blocks for one in terms.launches] == [1, 1, 2]
    assert terms.launches[0].tile_utilisation == 16 / (1 * 4 * 8 * 4 * 32)


def test_nonfused_winograd_terms_equal_the_hand_calculation() -> None:
    terms = formulas.winograd_nonfused(Conv(**TINY), SLOTS)
    # F(4×4, 3×3), α 6, one tile: products 2·36; 9 vectors of the filter, 12 of the input, 10 of the output.
    assert terms.arithmetic_flops == 72 + 9 * 9 + 12 * 20 + 10 * 19
    assert terms.workspace_bytes == 36 * 3 * 4
    assert terms.kernels == 4
    assert [one.blocks for one in terms.launches] == [36, 36, 36]


def test_transform_flops_equal_the_profilers_count() -> None:
    """The numbers are `flop_count_sp` of cuDNN 7.6.3 on a V100; with these sizes no tile is padded."""
    conv = formulas.sized(Conv(n=16, c=256, h=14, k=256, r=3, pad_h=1))
    filters, inputs, outputs = formulas.transforms(conv, 16 * 16, 4, 6, formulas.vector_flops(4, 6, 3))
    assert (filters, inputs) == (5_308_416, 15_728_640)
    # The kernel also scales and writes: 18 multiplications a tile, 4 operations an output.
    assert outputs + 256 * 16 * (18 * 16 + 4 * 14 * 14) == 16_842_752


class CountingDot:
    """Sum products and count the FLOPs: a product by 1 or −1 is free; other products and additions cost 1 each."""

    flops = 0

    def __call__(self, factors: Sequence[Any], values: Sequence[Any]) -> Any:
        used = [factor for factor in factors if factor]
        self.flops += len(used) - 1 + sum(abs(factor) != 1 for factor in used)
        return sum(factor * value for factor, value in zip(factors, values, strict=True))


def _factors(points: Sequence[int], *, excluded: int = 0) -> list[int]:
    """Return the ascending coefficients of the product of x² − p² over the pairs, except the pair `excluded`."""
    product = [1]
    for p in points:
        if p != excluded:
            product = [low - p * p * high for low, high in zip([0, *product], [*product, 0], strict=True)]
    return product


def _transformed(d: list[Any], pairs: Sequence[int], single: int, dot: CountingDot) -> list[Any]:
    """Return an input vector's transform at 0, at every pair, at the single point (0: no point) and at infinity."""
    at_single = [dot(_factors(pairs), d[1::2])] if single else []
    if single:
        d = [dot((1, -single), (high, low)) for low, high in pairwise(d)]
    values = [dot(_factors(pairs), d[0::2])]
    for p in pairs:
        even, odd = (dot(_factors(pairs, excluded=p), d[start::2][: len(pairs)]) for start in (2, 1))
        values += [dot((1, p), (even, odd)), dot((1, -p), (even, odd))]
    return [*values, *at_single, dot(_factors(pairs), d[1::2])]


@pytest.mark.parametrize(("m", "r", "pairs", "single"), [(4, 3, (1, 2), 0), (9, 5, (1, 2, 3, 4, 5), 7)])
def test_counted_transforms_compute_a_convolution(m: int, r: int, pairs: tuple[int, ...], single: int) -> None:
    """Transforms in fractions give the exact correlation with the FLOPs that the terms count."""
    g, d = ([Fraction(2 * i * i - 7 * i + 3) for i in range(size)] for size in (r, m + r - 1))
    filters, inputs, outputs = CountingDot(), CountingDot(), CountingDot()
    u = [g[0]]
    for p in pairs:
        even, odd = (filters([p ** (2 * i) for i in range(len(part))], part) for part in (g[0::2], g[1::2]))
        for point in (p, -p):  # scaling by the distance to the single point lets both points share one output fraction
            scale = Fraction(1, point - single) if single else 1
            u.append(filters((scale, scale * point), (even, odd)))
    u += [filters([single**i for i in range(r)], g)] * bool(single) + [g[-1]]
    points = [0, *(sign * p for p in pairs for sign in (1, -1)), *[single] * bool(single)]
    y = [a * b for a, b in zip(u, _transformed(d, pairs, single, inputs), strict=True)]
    # A point's fraction is 1 divided by the product of its distances to the other points.
    share = [1 / Fraction(prod(p - q for q in points if q != p and not (p and q == single != 0))) for p in points]
    sums = [outputs((1, sign), y[i : i + 2]) for i in range(1, 2 * len(pairs), 2) for sign in (1, -1)]
    result = []
    for j in range(m):
        terms = [(share[1 + 2 * i] * p**j, sums[2 * i + j % 2]) for i, p in enumerate(pairs)]
        terms += [(share[-1] * single**j, y[-2])] * bool(single)
        terms += [(share[0], y[0])] * (j == 0) + [(1, y[-1])] * (j == m - 1)
        result.append(outputs(*zip(*terms, strict=True)))
    assert result == [sum(g[i] * d[j + i] for i in range(r)) for j in range(m)]
    assert (filters.flops, inputs.flops, outputs.flops) == formulas.vector_flops(m, m + r - 1, r)


def test_filters_of_five_use_tiles_of_nine() -> None:
    # F(9×9, 5×5), α 13: an 18 × 18 output is 4 tiles; 169 · (4·(2 + 3) + 6) floats of workspace.
    terms = formulas.winograd_nonfused(Conv(n=1, c=2, h=18, k=3, r=5, pad_h=2), SLOTS)
    assert terms.workspace_bytes == 169 * (4 * 5 + 6) * 4
    assert [one.blocks for one in terms.launches] == [169, 169, 169]


def test_winograd_saves_multiplications_as_in_the_paper() -> None:
    # Lavin & Gray §4: 36/16 = 2.25 times fewer products for F(2×2, 3×3), 144/36 = 4 times for F(4×4, 3×3). With many
    # channels the transforms vanish; 56 divides by both tiles.
    conv = Conv(n=1, c=8192, h=56, k=8192, r=3, pad_h=1)
    assert conv.flops / formulas.winograd(conv, SLOTS).arithmetic_flops == pytest.approx(2.25, rel=0.02)
    assert conv.flops / formulas.winograd_nonfused(conv, SLOTS).arithmetic_flops == pytest.approx(4.0, rel=0.04)


GRID_CHANNELS = st.sampled_from([3, 16, 32, 64, 100, 128, 256, 400, 512, 600, 800, 1024])
GRID_WIDTHS = st.sampled_from([4, 10, 16, 20, 32, 64, 80, 100, 128, 224, 256, 400, 512])


@given(GRID_CHANNELS, GRID_CHANNELS, GRID_WIDTHS)
def test_winograd_blocks_equal_seers_formula(c: int, k: int, w: int) -> None:
    """SEER §2 gives ⌈N/b⌉·⌈⌈W/2⌉/p⌉·⌈⌈W/2⌉/8⌉·⌈K/32⌉ blocks, and 36 batched GEMMs for the non-fused kernel."""
    conv = Conv(n=128, c=c, h=w, k=k, r=3, pad_h=1)
    half = -(-w // 2)
    fused = [-(-128 // b) * -(-half // p) * -(-half // 8) * -(-k // 32) for b, p in ((1, 4), (2, 2), (4, 1))]
    assert [one.blocks for one in formulas.winograd(conv, SLOTS).launches] == fused
    tiles = 128 * (-(-w // 4)) ** 2
    nonfused = [-(-tiles // 128) * -(-k // n) * 36 for n in (64, 128)]
    assert [one.blocks for one in formulas.winograd_nonfused(conv, SLOTS).launches[1:]] == nonfused


def test_larger_filters_are_split_into_three_by_three_pieces() -> None:
    assert formulas.filter_pieces(Conv(**TINY)) == 1
    assert formulas.filter_pieces(Conv(n=1, c=1, h=9, k=1, r=7, s=5)) == 6
