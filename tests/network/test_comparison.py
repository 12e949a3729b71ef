"""GPUs compared, rates, and what a step costs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from surrogate.features.errors import InputError
from surrogate.network import GpuComparison, NetworkTime, load_predictors
from surrogate.network.network import Cluster
from surrogate.network.predict import model_multiply_adds
from surrogate.network.read import read_network
from surrogate.network.result import GradientExchange, LayerTime, Peak, compare_gpus, prices_of

LAYER = LayerTime("a", "gemm", "gemm:m1", None, 3.6e6, 3e6, 4e6, 0, 0, 0, "", "model")
STEP = NetworkTime("net", "h100-sxm", (LAYER,), batch=4, training=True, tokens=8192)
MODEL = "llama-3.1-8b"


def test_a_step_of_a_thousandth_hour_on_two_gpus_costs_two_thousandths_of_the_price() -> None:
    # Four samples in 3.6 s are 1.11 in a second, and in 36 s 0.111.
    slow = replace(STEP, layers=(replace(LAYER, time_us=3.6e7),))
    assert ", 1.11 samples/s, 2,276 tokens/s;" in STEP.headline() and ", 0.111 samples/s" in slow.headline()
    two = replace(STEP, exchange=GradientExchange(Cluster(2, 2), 0.0, 0.0, 0.0, 0.0))
    costs = two.cost(price=2.5, samples=17)
    assert costs["usd_per_step"] == pytest.approx(2 * 2.5 / 1000)
    # Three steps of eight samples; 16,384 tokens in 3.6 s.
    assert costs["epoch_hours"] == pytest.approx(3 / 1000)
    assert costs["usd_per_epoch"] == pytest.approx(3 * 2 * 2.5 / 1000)
    assert two.tokens_per_s == pytest.approx(16_384 / 3.6) and two.tokens_per_s_per_gpu == pytest.approx(8192 / 3.6)
    assert costs["usd_per_million_tokens"] == pytest.approx(1e6 / 16_384 * 0.005)
    assert replace(STEP, tokens=None, batch=None).cost(samples=3) == {}


@given(st.floats(1e-6, 1e6), st.integers(1, 10**9), st.integers(1, 64))
def test_an_epoch_costs_as_many_steps_as_it_has(price: float, samples: int, microbatches: int) -> None:
    costs = replace(STEP, accumulate=microbatches).cost(price, samples)
    steps = costs["usd_per_epoch"] / costs["usd_per_step"]
    assert steps == pytest.approx(round(steps)) and 0 <= 4 * microbatches * round(steps) - samples < 4 * microbatches


def test_utilisation_is_the_work_without_recomputation_over_the_dense_peak() -> None:
    assert replace(STEP, model_flops=10**15, peak=Peak("bf16 tensor cores", 1000.0)).mfu == pytest.approx(1 / 3.6)
    assert replace(STEP, model_flops=10**15).mfu is None
    options: dict[str, Any] = {"training": True, "sequence": 2048, "batch": 2, "amp": "bf16"}
    predictors = load_predictors("h100-sxm")
    kept, again = (predictors.time(read_network(MODEL, **options, checkpointing=each)) for each in (False, True))
    assert kept.peak == Peak("bf16 tensor cores", 989.4)
    assert again.model_flops == kept.model_flops and again.multiply_adds > 1.2 * kept.multiply_adds
    # 6 FLOPs per weight of a product and token; the embedding has no product, and attention adds 4 %.
    weights = 8_030_261_248 - 128_256 * 4096
    assert kept.model_flops == pytest.approx(6 * weights * 4096, rel=0.05)
    assert kept.mfu and again.mfu and kept.mfu > again.mfu
    # Frozen weights have no weight gradient: 4 FLOPs per weight and token, and 6 per adapter weight. Attention's
    # gradients are twice its forward pass: 32 layers · 2 samples · 32 heads · 2 products · 2 · 128 · causal pairs.
    attention = 3 * 32 * 2 * 32 * 2 * 2 * 128 * (2048 * 2049 // 2)
    adapters = 32 * 16 * (4096 * 2 + 2 * (4096 + 1024) + 4096 * 2 + 3 * (4096 + 14_336))
    options |= {"lora": 16, "amp": None}
    for checkpointing in (False, True):
        network = read_network(MODEL, **options, checkpointing=checkpointing)
        expected = (4 * (weights - 65 * 4096) + 6 * adapters) * 4096 + attention
        assert 2 * model_multiply_adds(network) == expected


@pytest.mark.parametrize(
    ("gpu", "source", "dtype", "peak"),
    [
        # SMs · 256 multiply-adds of 16 bits with fp32 sums · 2 · MHz, and SMs · 64 fp32 lanes · 2 · MHz.
        ("rtx-4090", MODEL, "bf16", Peak("bf16 tensor cores", 128 * 256 * 2 * 2520 / 1e6)),
        ("a100-sxm4-80gb", MODEL, "fp32", Peak("fp32", 108 * 64 * 2 * 1410 / 1e6)),
        # CUs · 1,024 multiply-adds of AMD's matrix units · 2 · MHz: for convolutions, too.
        ("mi300x", "resnet50", "fp16", Peak("fp16 tensor cores", 304 * 1024 * 2 * 2100 / 1e6)),
        ("mi300x", "resnet50", "fp32", Peak("fp32", 304 * 128 * 2 * 2100 / 1e6)),  # fp32's matrix units, not TF32's
    ],
)
def test_the_peak_is_that_of_the_arithmetic_that_runs(gpu: str, source: str, dtype: str, peak: Peak) -> None:
    sequence = 1024 if source == MODEL else None
    time = load_predictors(gpu).time(read_network(source, training=True, sequence=sequence, dtype=dtype))
    assert time.peak and time.peak.name == peak.name and time.peak.tflops == pytest.approx(peak.tflops, rel=1e-3)


def test_a_pass_that_leaves_less_than_3_percent_of_the_memory_fits_barely() -> None:
    sizes = {"needs 97.00": 97, "fits barely: needs 98.00 of 100.00 GiB": 98, "DOES NOT FIT: needs 101.00": 101}
    for text, gib in sizes.items():
        step = replace(STEP, memory={"weights": gib << 30}, gpu_memory_bytes=100 << 30)
        assert (text in step.headline()) == (gib > 97) and step.fits == (gib <= 100)


def test_a_refused_gpu_is_named_and_the_others_are_compared() -> None:
    def predict(name: str) -> NetworkTime:
        if name == "t4":
            raise InputError("t4 has no bf16 units")
        return replace(STEP, gpu=name)

    found = compare_gpus(["h100-sxm", "t4", "a100-sxm4-80gb"], predict, {"h100-sxm": 2.0}, 40)
    assert isinstance(found, GpuComparison) and found.refused == {"t4": "t4 has no bf16 units"}
    frame = found.to_frame().set_index("gpu")
    assert frame.loc["h100-sxm", "usd_per_step"] == pytest.approx(0.002)
    assert frame.loc["a100-sxm4-80gb", "epoch_hours"] == pytest.approx(0.01)
    assert "t4 has no bf16 units" in repr(found) and "USD/epoch" in repr(found)
    assert "◀ fastest" in repr(found) and "no price of a100-sxm4-80gb: give it as" in repr(found)
    assert [row.get("cheapest") for row in found.records()] == [True, False, None]
    with pytest.raises(InputError, match="bf16 units"):
        compare_gpus(["t4"], predict)


@pytest.mark.parametrize("price", [0, -1, 1e-320, 1e7, float("nan"), True, "2", {"h100": 0}])
def test_a_price_outside_the_limits_is_refused(refused: Callable[..., Any], price: object) -> None:
    with refused("give US dollars per GPU and hour, a number from 1e-06 to 1e+06"):
        prices_of(price, ["h100-sxm"], "net")


def test_a_live_module_is_compared_as_by_the_command(refused: Callable[..., Any]) -> None:
    torch = pytest.importorskip("torch")
    from surrogate.network import time_module

    passes: list[None] = []
    module, images = torch.nn.Linear(512, 512), torch.zeros(64, 512)
    module.register_forward_pre_hook(lambda *_: passes.append(None))
    found = time_module(module, images, "t4", gpus=["h100-sxm"], training=True)
    assert len(passes) == 1  # one trace for all GPUs
    assert list(found.times) == ["t4", "h100-sxm"] and not found.refused
    assert found.times["h100-sxm"] == time_module(module, images, "h100-sxm", training=True)
    refusing = time_module(module.bfloat16(), images.bfloat16(), gpus=["t4", "h100-sxm"])
    assert list(refusing.times) == ["h100-sxm"] and "bf16" in refusing.refused["t4"]
    with refused("add training=True"):
        time_module(module, images, "t4", optimizer="adam")
    invalid: list[dict[str, Any]] = [{}, {"gpus": "t4"}, {"gpus": []}, {"gpu": ["t4", "v100"]}]
    for wrong in invalid:
        with refused("give a GPU, or gpus="):
            time_module(module, images, **wrong)


def test_a_number_of_gpus_and_a_source_are_refused_with_the_remedy(refused: Callable[..., Any]) -> None:
    with refused("give h100, and its number as --data-parallel 8"):
        load_predictors("8xh100")
    with refused("the network is 'resnet50'; give read_network"):
        load_predictors("t4").time("resnet50")  # type: ignore[arg-type]
    with refused("give int4_wo"):
        read_network(MODEL, training=True, sequence=512, lora=16, dtype="nf4")
