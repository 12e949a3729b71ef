"""Launched blocks, tiles, classes and names of variants."""

import numpy as np
import pytest

from surrogate.models.seer import physics
from surrogate.models.seer.physics import GEMM_P_TILES, gemm_p_tile, variant_name
from tests.known import cases

SIZES = physics.Sizes(batch=128, channels=64, outputs=130, width=56, out_width=54, filter_width=3, stride=1)


@cases(__file__)
def test_launched_blocks_equal_the_known_answer(algorithm: str, tile: str, blocks: int) -> None:
    assert physics.launched_blocks(algorithm, tile, SIZES) == blocks


def test_blocks_of_five_by_five_filters_equal_the_hand_calculation() -> None:
    """There are ⌈128·6²/128⌉ = 36 rows of blocks and 169 GEMMs."""
    sizes = SIZES._replace(filter_width=5)
    assert physics.launched_blocks("WINOGRAD_NONFUSED", "128x128", sizes) == 36 * 2 * 169


@pytest.mark.parametrize("tile", ["", "some_kernel", "128", "1x2x3x4"])
def test_unreadable_tile_gives_no_blocks(tile: str) -> None:
    assert physics.tile_sizes(tile) == ()
    assert np.isnan(physics.launched_blocks("GEMM", tile, SIZES))


def test_gemm_p_tile_depends_on_the_outputs() -> None:
    """The outputs are the two sides of every edge of the rule."""
    edges = [1, 32, 33, 64, 65, 96, 97, 128, 129, 192, 193, 256, 257, 320, 321]
    tiles = [0, 0, 1, 1, 0, 0, 2, 2, 1, 1, 2, 2, 1, 1, 2]
    assert [gemm_p_tile(k) for k in edges] == tiles
    np.testing.assert_array_equal(gemm_p_tile(np.array(edges)), tiles)
    assert GEMM_P_TILES == ("128x32", "128x64", "128x128")


@cases(__file__)
def test_variant_name_equals_the_known_answer(algorithm: str, kernel: str, tile: object, expected: str) -> None:
    assert variant_name(algorithm, kernel, tile) == expected


def test_kernel_class_changes_at_its_thresholds() -> None:
    fp32, dram = np.array([80, 79.9, 79.9, 100]), np.array([100, 80, 79.9, 0])
    np.testing.assert_array_equal(physics.kernel_class(fp32, dram), [0, 1, 2, 0])
    assert [physics.kernel_class(a, b) for a, b in zip(fp32, dram, strict=True)] == [0, 1, 2, 0]


def test_roofline_class_is_the_larger_bound() -> None:
    found = physics.roofline_class(np.array([2.0, 2, 1, 9]), np.array([1.0, 2, 2, 1]), np.array([1.0, 5, 5, 0.9]))
    np.testing.assert_array_equal(found, [0, 0, 1, 2])
