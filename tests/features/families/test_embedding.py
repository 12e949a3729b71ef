"""The embedding bag's traffic against the known answers of Lin et al.'s notebook."""

import pytest

from surrogate.features.families.embedding import (
    EmbeddingBag,
    EmbeddingBagBackward,
    EmbeddingBagBackwardAdagrad,
    MemoryRates,
    forward_us,
    hit_rate,
    refined_forward_us,
    sgd_us,
)
from surrogate.features.gpu import gpu
from tests.known import cases

V100 = {"dram_gbs": 809.0, "l2_gbs": 2888.0, "peak_gflops": 12200.0, "sms": 80}
SLIPPED = MemoryRates(**V100, l2_bytes=6 * 1024 * 1024 * 4)  # the notebook's L2, four times too large
RATES = MemoryRates(**V100, l2_bytes=6 * 1024 * 1024)


@cases(__file__)
def test_forward(sizes: tuple[int, ...], shared: bool, draws: int | None, expected_us: float) -> None:
    found = forward_us(*sizes, SLIPPED, shared_memory=shared, draws=draws)
    assert found == pytest.approx(expected_us, rel=1e-9)


@cases(__file__)
def test_hit_rate(sizes: tuple[int, ...], expected: float) -> None:
    assert hit_rate(*sizes, RATES) == pytest.approx(expected, abs=1e-10)


@cases(__file__)
def test_sgd(sizes: tuple[int, ...], shared: bool, expected_us: float) -> None:
    assert sgd_us(*sizes, RATES, shared_memory=shared) == pytest.approx(expected_us, rel=1e-9)


def test_refined_forward_by_hand() -> None:
    """One sample, one row of 32 values: no hit, 32 + 96 + 128 + 128 bytes of DRAM, times 1.55."""
    found = refined_forward_us(1, 10**6, 1, 1, 32, 32, RATES)
    assert found == pytest.approx(384 / 809 / 1000 * 1.55, rel=1e-6)


def test_measured_rates_come_first() -> None:
    measured, specified = MemoryRates.of(gpu("v100")), MemoryRates.of(gpu("t4"))
    assert (measured.dram_gbs, measured.l2_gbs, measured.peak_gflops) == (809.0, 2888.0, 12200.0)
    assert specified.dram_gbs == 320
    assert specified.l2_gbs > specified.dram_gbs


def test_classes_use_the_models() -> None:
    device = gpu("v100")
    sizes = {"batch": 2048, "rows": 200_000, "tables": 128, "bag": 128, "dim": 128}
    assert EmbeddingBagBackward(**sizes).roofline_us(device) == pytest.approx(42824.414140914705, rel=1e-9)
    adagrad = EmbeddingBagBackwardAdagrad(**sizes)
    assert adagrad.roofline_us(device) == pytest.approx(64226.252103831896, rel=1e-9)
    forward = EmbeddingBag(**sizes, rows_per_block=4)
    assert forward.blocks == 2048 * 128 // 4
    assert forward.roofline_us(device) == pytest.approx(
        refined_forward_us(2048, 200_000, 128, 128, 128, 4, MemoryRates.of(device))
    )
