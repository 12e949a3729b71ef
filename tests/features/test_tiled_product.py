"""The model of tiled products against hand calculations."""

from dataclasses import replace

import numpy as np
import pytest

from surrogate.features.analytical import TiledProductModel, tiled_product_us
from surrogate.features.families.gemm import Gemm
from surrogate.features.gpu import gpu
from tests.known import cases

MODEL = TiledProductModel(
    {"SB": 0.5, "HB": 0.8, "HHS": 0.4, "bf16": 0.8, "fp16": 0.9}, latency=0.0, bandwidth=0.5, split_us=1e9, start_us=5.0
)
MI60 = gpu("mi60")


def test_one_tile_per_unit_takes_the_time_of_its_arithmetic() -> None:
    """64 tiles of 128 × 128 run at half of 0.84 × 14.7456 TFLOP/s, and the product adds its traffic."""
    product = Gemm(m=4096, n=256, k=3200)
    arithmetic_us = 2 * 4096 * 256 * 3200 / (0.5 * 0.84 * 14.7456e6)
    expected_us = arithmetic_us + product.dram_bytes / (0.5 * 1024e3) + 5
    assert MODEL.product_us(product, MI60) == pytest.approx([expected_us], rel=1e-3)


def test_one_more_tile_adds_less_than_a_wave() -> None:
    """65 of the largest tiles need a second wave, and smaller tiles cost less. Sizes may be arrays."""
    model = replace(MODEL, start_us=0.0)
    products = Gemm(m=np.array([8192, 8320]), n=np.array([256, 256]), k=np.array([4096, 4096]))
    full, more = model.product_us(products, MI60)
    assert 1.01 * full < more < 2 * full


def test_steps_of_a_sum_take_the_latency_of_a_clock() -> None:
    """Of 4096 products, 16 steps wait 900 clocks of 1,800 MHz each."""
    product = Gemm(m=16, n=16, k=4096)
    waits_us = (replace(MODEL, latency=900.0).product_us(product, MI60) - MODEL.product_us(product, MI60))[0]
    assert waits_us == pytest.approx(16 * 900 / 1800)


def test_traffic_limits_products_of_short_sums() -> None:
    product = Gemm(m=8192, n=8192, k=1)
    assert MODEL.product_us(product, MI60)[0] >= product.dram_bytes / (0.5 * 1024e3) + 5


def test_tensile_type_selects_the_share_of_the_peak() -> None:
    sums = Gemm(m=8192, n=8192, k=8192, dtype="fp16", variant="TN")
    half = Gemm(m=8192, n=8192, k=8192, dtype="fp16", variant="HB TN")
    ratio = MODEL.product_us(sums, MI60)[0] / MODEL.product_us(half, MI60)[0]
    assert 1.9 < ratio < 2.0  # shares of 0.4 and 0.8, and the same traffic


@cases(__file__)
def test_matrix_cores_have_the_share_of_their_generation(board: str, dtype: str, share: float) -> None:
    """A quantised type that was not fitted has the share of bf16."""
    assert MODEL.share(Gemm(m=8, n=8, k=8, dtype=dtype, math="default"), gpu(board)) == share


def test_power_limits_half_precision_of_matrix_cores() -> None:
    """At 1.34 pJ a FLOP, 750 W allow 560 of the MI300X's 1,307 TFLOP/s."""
    product = Gemm(m=16384, n=16384, k=16384, dtype="bf16", math="default")
    assert tiled_product_us(product, gpu("mi300x"))[0] >= product.flops / (750 / 1.34 * 1e6)


def test_models_are_chosen_by_the_kind_of_board() -> None:
    """A product of one tile takes the time of a start, a step and its arithmetic: 11, 3 and 4 µs of starts."""
    product = Gemm(m=1, n=1, k=64, dtype="fp16", math="default")
    times_us = [float(tiled_product_us(product, gpu(name))[0]) for name in ("mi25", "w6600", "mi100")]
    assert times_us[1] < times_us[2] < times_us[0] / 2
