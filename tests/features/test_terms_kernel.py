"""Launch arithmetic, and bounds on the terms of every mechanism."""

import math
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from surrogate.features.conv import Conv
from surrogate.features.elementwise import ceil_div
from surrogate.features.terms import MECHANISM_TERMS, KernelTerms, flops, gemm_launch, launch, sized, tensor_bytes

CONVS = st.from_type(Conv)
SLOTS = (240.0, 120.0, 60.0)


def _flat(terms: KernelTerms) -> list[float]:
    return [*terms[:-1], *(value for one in terms.launches for value in one)]


@pytest.mark.parametrize(
    ("blocks", "b_max", "waves", "last"),
    [(240, 240, 1.0, 1.0), (1, 240, 1 / 240, 1 / 240), (241, 240, 241 / 240, 1 / 240), (600, 240, 2.5, 0.5)],
)
def test_waves_of_a_launch_equal_the_hand_calculation(blocks: int, b_max: int, waves: float, last: float) -> None:
    # SEER §2 item 4: n = ⌈B/B_max⌉, ε = (B − (n−1)·B_max)/B_max.
    one = launch(blocks, float(b_max), 1.0)
    assert one.waves == pytest.approx(waves, rel=1e-15)
    assert one.last_wave_share == pytest.approx(last, rel=1e-12)


def test_gemm_launch_equals_the_hand_calculation() -> None:
    # 100 × 70 in 32 × 32 tiles: 4 · 3 tiles, 5 GEMMs: 60 blocks; 7000 of 12 · 1024 outputs are useful.
    one = gemm_launch(100, 70, 32, 32, 5, 40.0)
    assert (one.blocks, one.waves) == (60, 1.5)
    assert one.tile_utilisation == pytest.approx(7000 / 12288)


def test_data_gradient_swaps_input_and_output() -> None:
    sizes: dict[str, Any] = {"n": 1, "c": 4, "h": 9, "k": 8, "r": 3, "stride_h": 2, "groups": 2}
    for direction, roles in (("fwd", (2, 4, 4, 4)), ("bwd_filter", (2, 4, 4, 4)), ("bwd_data", (4, 2, 9, 9))):
        z = sized(Conv(**sizes, direction=direction))
        assert (z.channels_in, z.channels_out, z.result_h, z.result_w) == roles


@pytest.mark.parametrize("mechanism", MECHANISM_TERMS)
@settings(max_examples=40)
@given(conv=CONVS)
def test_terms_of_every_mechanism_are_within_bounds(mechanism: str, conv: Conv) -> None:
    terms = MECHANISM_TERMS[mechanism](conv, SLOTS)
    assert all(math.isfinite(value) for value in _flat(terms))
    assert terms.arithmetic_flops > 0 and terms.operand_bytes > 0 and terms.kernels >= 1
    assert terms.dram_bytes >= tensor_bytes(conv)
    assert (terms.workspace_bytes > 0) == (mechanism not in ("direct", "implicit_gemm"))
    for one in terms.launches:
        assert one.blocks >= 1 and one.blocks == int(one.blocks)
        assert 0 < one.last_wave_share <= 1
        assert 0 < one.tile_utilisation <= 1


@pytest.mark.parametrize("mechanism", ["direct", "implicit_gemm", "precomp_gemm", "gemm"])
@given(conv=CONVS)
def test_mechanism_without_transforms_counts_direct_flops(mechanism: str, conv: Conv) -> None:
    assert MECHANISM_TERMS[mechanism](conv, SLOTS).arithmetic_flops == flops(conv)


@pytest.mark.parametrize("mechanism", MECHANISM_TERMS)
@given(conv=CONVS, factor=st.integers(2, 8))
def test_larger_batch_never_reduces_a_term(mechanism: str, conv: Conv, factor: int) -> None:
    small, large = (MECHANISM_TERMS[mechanism](one, SLOTS) for one in (conv, conv.with_batch(conv.n * factor)))
    for name in ("arithmetic_flops", "dram_bytes", "workspace_bytes", "kernels"):
        assert getattr(large, name) >= getattr(small, name), name
    for one, other in zip(small.launches, large.launches, strict=True):
        assert other.blocks >= one.blocks and ceil_div(other.waves, 1.0) >= ceil_div(one.waves, 1.0)
