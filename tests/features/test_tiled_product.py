"""The model of tiled products against hand calculations."""

import numpy as np
import pytest

from surrogate.features.analytical import TiledProductModel
from surrogate.features.families.gemm import Gemm
from surrogate.features.gpu import gpu

MODEL = TiledProductModel(
    {"SB": 0.5, "HB": 0.8, "HHS": 0.4, "matrix": 0.8}, 0.0, bandwidth=0.5, split_us=1e9, start_us=5.0
)
MI60 = gpu("mi60")


def test_one_tile_per_unit_takes_arithmetic_and_load_time() -> None:
    """64 tiles of 128 × 128 run at half of 0.84 × 14.7456 TFLOP/s, and each tile adds its loads."""
    product = Gemm(m=4096, n=256, k=3200)
    (time_us,) = MODEL.product_us(product, MI60)
    arithmetic_us = 2 * 4096 * 256 * 3200 / (0.5 * 0.84 * 14.7456e6)
    loads_us = 256 * 3200 * 4 / (32 * 1800)
    assert time_us == pytest.approx(arithmetic_us + loads_us + 5, rel=1e-3)


def test_one_more_tile_adds_less_than_a_wave() -> None:
    """65 of the largest tiles need a second wave, and smaller tiles cost less. Sizes may be arrays."""
    model = TiledProductModel({"SB": 0.5}, 0.0, bandwidth=0.5, split_us=1e9, start_us=0.0)
    full, more = model.product_us(
        Gemm(m=np.array([8192, 8320]), n=np.array([256, 256]), k=np.array([4096, 4096])), MI60
    )
    assert 1.05 * full < more < 2 * full


def test_traffic_limits_products_of_short_sums() -> None:
    product = Gemm(m=8192, n=8192, k=1)
    assert MODEL.product_us(product, MI60)[0] >= product.dram_bytes / (0.5 * 1024e3) + 5


def test_tensile_type_selects_the_share_of_the_peak() -> None:
    sums = Gemm(m=8192, n=8192, k=8192, dtype="fp16", variant="TN")
    half = Gemm(m=8192, n=8192, k=8192, dtype="fp16", variant="HB TN")
    ratio = MODEL.product_us(sums, MI60)[0] / MODEL.product_us(half, MI60)[0]
    assert 1.5 < ratio < 2.0  # shares of 0.4 and 0.8, and the same loads


def test_power_limits_matrix_cores() -> None:
    """At 1.34 pJ a FLOP, 750 W allow 560 of the MI300X's 1,307 TFLOP/s."""
    product = Gemm(m=16384, n=16384, k=16384, dtype="bf16", math="default")
    assert MODEL.product_us(product, gpu("mi300x"))[0] >= product.flops / (750 / 1.34 * 1e6)
