"""The embedding bag's traffic against the known answers of Lin et al.'s notebook."""

import pytest

from surrogate.features.families.embedding import (
    EmbeddingBag,
    EmbeddingBagBackward,
    EmbeddingBagBackwardAdagrad,
    dram_gbs,
    l2_gbs,
)
from surrogate.features.gpu import gpu

V100 = gpu("v100")


@pytest.mark.parametrize(
    ("sizes", "expected"), [((512, 1000, 4, 32, 32), 0.5746389268), ((2048, 20000, 8, 64, 4), 0.3173524333)]
)
def test_hit_rate(sizes: tuple[int, ...], expected: float) -> None:
    names = ("batch", "rows", "bag", "dim", "rows_per_block")
    bag = EmbeddingBag(**dict(zip(names, sizes, strict=True)))
    assert bag.hit_rate(V100) == pytest.approx(expected, abs=1e-10)


def test_forward_by_hand() -> None:
    """One sample, one row of 32 values: no hit, 32 + 96 + 128 + 128 bytes of DRAM, times 1.55."""
    found = EmbeddingBag(batch=1, rows=10**6, dim=32, rows_per_block=32).roofline_us(V100)
    assert found == pytest.approx(384 / 809 / 1000 * 1.55, rel=1e-6)


def test_measured_rates_come_first() -> None:
    assert (dram_gbs(V100), l2_gbs(V100)) == (809.0, 2888.0)
    specified = gpu("t4")
    assert dram_gbs(specified) == 320
    assert l2_gbs(specified) > dram_gbs(specified)


def test_backward_by_the_notebook() -> None:
    sizes = {"batch": 2048, "rows": 200_000, "tables": 128, "bag": 128, "dim": 128}
    assert EmbeddingBagBackward(**sizes).roofline_us(V100) == pytest.approx(42824.414140914705, rel=1e-9)
    adagrad = EmbeddingBagBackwardAdagrad(**sizes)
    assert adagrad.roofline_us(V100) == pytest.approx(64226.252103831896, rel=1e-9)
    assert EmbeddingBag(**sizes, rows_per_block=4).blocks == 2048 * 128 // 4
