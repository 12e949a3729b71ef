"""The embedding bag's traffic against the known answers of Lin et al.'s notebook."""

import pytest

from surrogate.features.families.embedding import (
    EmbeddingBag,
    EmbeddingBagBackward,
    EmbeddingBagBackwardAdagrad,
    MemoryRates,
)
from surrogate.features.gpu import gpu

V100 = {"dram_gbs": 809.0, "l2_gbs": 2888.0, "peak_gflops": 12200.0, "sms": 80}
RATES = MemoryRates(**V100, l2_bytes=6 * 1024 * 1024)


def _bag(*sizes: int) -> EmbeddingBag:
    """Return a bag of batch, rows, tables, bag, dim and rows_per_block."""
    return EmbeddingBag(**dict(zip(("batch", "rows", "tables", "bag", "dim", "rows_per_block"), sizes, strict=True)))


@pytest.mark.parametrize(
    ("sizes", "expected"), [((512, 1000, 1, 4, 32, 32), 0.5746389268), ((2048, 20000, 1, 8, 64, 4), 0.3173524333)]
)
def test_hit_rate_equals_the_answer_of_the_notebook(sizes: tuple[int, ...], expected: float) -> None:
    assert _bag(*sizes).hit_rate(RATES) == pytest.approx(expected, abs=1e-10)


def test_forward_time_of_one_row_equals_the_hand_calculation() -> None:
    """One row of 32 values never hits L2. It moves 32 + 96 + 128 + 128 bytes of DRAM; the model multiplies by 1.55."""
    assert _bag(1, 10**6, 1, 1, 32, 32).model_us(RATES) == pytest.approx(384 / 809 / 1000 * 1.55, rel=1e-6)


def test_memory_rates_prefer_measurements_to_the_datasheet() -> None:
    measured, datasheet = MemoryRates.of(gpu("v100")), MemoryRates.of(gpu("t4"))
    assert (measured.dram_gbs, measured.l2_gbs, measured.peak_gflops) == (809.0, 2888.0, 12200.0)
    assert datasheet.dram_gbs == 320
    assert datasheet.l2_gbs > datasheet.dram_gbs


def test_operators_use_the_memory_model() -> None:
    device = gpu("v100")
    sizes = {"batch": 2048, "rows": 200_000, "tables": 128, "bag": 128, "dim": 128}
    assert EmbeddingBagBackward(**sizes).roofline_us(device) == pytest.approx(42824.414140914705, rel=1e-9)
    adagrad = EmbeddingBagBackwardAdagrad(**sizes)
    assert adagrad.roofline_us(device) == pytest.approx(64226.252103831896, rel=1e-9)
    forward = EmbeddingBag(**sizes, rows_per_block=4)
    assert forward.blocks == 2048 * 128 // 4
    assert forward.roofline_us(device) == forward.model_us(MemoryRates.of(device))
