"""FFT terms and transform sizes against hand calculations."""

import numpy as np
import pytest

from surrogate.features.conv import Conv
from surrogate.features.problem import ConvColumns
from surrogate.features.terms import fft, fft_tiling, tensor_bytes, transform_size

SLOTS = (480.0, 480.0, 60.0)


@pytest.mark.parametrize(("extent", "expected"), [(16, 16), (17, 32), (33, 64), (128, 128), (129, 256), (300, 300)])
def test_transform_size_equals_the_known_answer(extent: int, expected: int) -> None:
    assert transform_size(Conv(n=1, c=1, h=extent, k=1, r=1)) == expected
    assert transform_size(Conv(n=1, c=1, h=1, w=extent, k=1, r=1)) == expected
    columns = ConvColumns.of([np.array([v]) for v in (1, 1, 2, extent, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1)])
    assert np.asarray(transform_size(columns)).tolist() == [expected]


def test_transform_size_includes_the_padding() -> None:
    assert transform_size(Conv(n=1, c=1, h=14, k=1, r=3, pad_h=1)) == 16
    assert transform_size(Conv(n=1, c=1, h=15, k=1, r=3, pad_h=1)) == 32


def test_fft_terms_equal_the_hand_calculation() -> None:
    conv = Conv(n=2, c=3, h=14, k=5, r=3, pad_h=1)
    terms = fft(conv, SLOTS)
    # F 16, 16·9 = 144 frequencies; planes 2·(3 + 5) + 15 = 31; a transform 2.5·256·8; a complex product 8.
    assert terms.arithmetic_flops == 31 * 2.5 * 256 * 8 + 8 * 144 * 2 * 15
    assert terms.workspace_bytes == 31 * 144 * 2 * 4
    assert terms.dram_bytes == tensor_bytes(conv) + 2 * terms.workspace_bytes
    assert terms.kernels == 4
    # Each of the 144 GEMMs of 2 × 5 fits one tile of any size.
    assert [one.blocks for one in terms.launches] == [144, 144, 144]


def test_fft_tiles_overlap_by_the_filter() -> None:
    # Tiles of 32 give 30 fresh outputs with r 3: 56 outputs are 2 × 2 tiles, 60 still 2 × 2, 61 are 3 × 3.
    def planes(h: int) -> float:
        terms = fft_tiling(Conv(n=1, c=1, h=h, k=1, r=3, pad_h=1), SLOTS)
        return terms.workspace_bytes / (32 * 17 * 2 * 4)

    assert [planes(h) for h in (30, 56, 60, 61)] == [2 * 1 + 1, 2 * 4 + 1, 2 * 4 + 1, 2 * 9 + 1]
