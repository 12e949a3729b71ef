"""GEMM and direct convolution terms against hand calculations, and workspaces against measurements."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from surrogate.features.conv import Conv
from surrogate.features.problem import SIZE_COLUMNS, ConvColumns
from surrogate.features.terms import direct, explicit_gemm, im2col_bytes, implicit_gemm, precomp_gemm, tensor_bytes

SIZES: dict[str, Any] = {"n": 2, "c": 4, "h": 8, "k": 8, "r": 3, "pad_h": 1}  # M 128, N 8, K 36
SLOTS = (4.0, 2.0, 1.0)


def test_implicit_gemm_terms_equal_the_hand_calculation() -> None:
    terms = implicit_gemm(Conv(**SIZES), SLOTS)
    # Tiles 32×32, 64×128, 128×128 on 128 × 8: 4, 2, 1 blocks; 1024 outputs over 4·1024, 2·8192, 16384 computed.
    assert [one.blocks for one in terms.launches] == [4, 2, 1]
    assert [one.waves for one in terms.launches] == [1.0, 1.0, 1.0]
    assert [one.tile_utilisation for one in terms.launches] == [0.25, 0.0625, 0.0625]
    assert terms.operand_bytes == 2 * (64 + 128) * 36 * 4
    assert (terms.workspace_bytes, terms.kernels) == (0, 1)
    assert terms.dram_bytes == tensor_bytes(Conv(**SIZES))


def test_index_buffer_is_three_halves_of_the_output_plane() -> None:
    conv = Conv(**SIZES)
    terms = precomp_gemm(conv, SLOTS)
    assert [one.blocks for one in terms.launches] == [1, 1, 1]
    assert terms.workspace_bytes == 4 * (3 * conv.out_h * conv.out_w // 2 + 2) == 392
    assert terms.dram_bytes == tensor_bytes(conv) + 2 * 392
    assert terms.kernels == 2


def test_explicit_gemm_terms_equal_the_hand_calculation() -> None:
    conv = Conv(**SIZES)
    terms = explicit_gemm(conv, SLOTS)
    # im2col: 2·4·9·64 elements of 4 bytes.
    assert im2col_bytes(conv) == terms.workspace_bytes == 18_432
    assert terms.dram_bytes == tensor_bytes(conv) + 2 * 18_432
    assert terms.kernels == 2


def test_groups_split_the_gemm_and_multiply_the_launches() -> None:
    conv = Conv(**SIZES, groups=2)
    terms = explicit_gemm(conv, SLOTS)
    # cuDNN 7: twice one group's buffer, rounded up to 16 bytes: 2 · 2·2·9·64·4.
    assert terms.workspace_bytes == 2 * 9216
    assert terms.kernels == 4
    assert [one.blocks for one in terms.launches] == [8, 4, 2]
    odd = Conv(n=1, c=3, h=3, k=3, r=1, groups=3)
    assert im2col_bytes(odd) == 2 * 48  # one group's 9 floats are 36 bytes, rounded up to 48


def test_direct_terms_equal_the_hand_calculation() -> None:
    terms = direct(Conv(**SIZES), SLOTS)
    # One block per image and output channel: 8 × 8 outputs fit the smallest tile and fill 1/4 and 1/16 of the others.
    assert [one.blocks for one in terms.launches] == [16, 16, 16]
    assert [one.tile_utilisation for one in terms.launches] == [1.0, 0.25, 0.0625]
    assert terms.operand_bytes == 16 * 4 * (18 * 18 + 9) * 4
    assert (terms.workspace_bytes, terms.kernels) == (0, 1)


CHANNELS, SIZE = st.sampled_from([3, 16, 64, 128, 512, 1024]), st.sampled_from([10, 40, 80, 160, 224, 320])


@given(CHANNELS, CHANNELS, SIZE, st.sampled_from([1, 3, 5, 7, 9]), st.integers(1, 4))
def test_gemm_blocks_equal_seers_formula(c: int, k: int, w: int, taps: int, stride: int) -> None:
    """SEER §2 gives ⌈N·O²/t_m⌉·⌈K/t_n⌉; the sizes come from its grid (§4)."""
    conv = Conv(n=128, c=c, h=w, k=k, r=taps, stride_h=stride)
    pixels = 128 * ((w - taps) // stride + 1) ** 2
    usual, precomputed = ((32, 32), (64, 128), (128, 128)), ((128, 32), (128, 64), (128, 128))
    for function, tiles in ((implicit_gemm, usual), (explicit_gemm, usual), (precomp_gemm, precomputed)):
        expected = [int(np.ceil(pixels / m) * np.ceil(k / n)) for m, n in tiles]
        assert [one.blocks for one in function(conv, SLOTS).launches] == expected


@pytest.mark.parametrize("name", ["IMPLICIT_GEMM", "GEMM"])
def test_workspace_equals_the_measured_workspace(measurements: Path, name: str) -> None:
    """cuDNN 7 requests the im2col buffer, and nothing for the implicit GEMM. The table keeps six digits."""
    frame = pd.read_parquet(measurements / "cudnn_conv_per_algorithm.parquet")
    picked = (frame["direction"] == "fwd") & (frame["algorithm"] == name) & (frame["status"] == "ok")
    part = frame[picked & (frame["dtype"] == "fp32") & frame["workspace_bytes"].notna()]
    columns = ConvColumns.of([part[c] for c in SIZE_COLUMNS])
    expected = {"IMPLICIT_GEMM": implicit_gemm, "GEMM": explicit_gemm}[name](columns, SLOTS).workspace_bytes
    assert len(part) > 1000
    np.testing.assert_allclose(part["workspace_bytes"].to_numpy(), expected, rtol=1e-5)
