"""Tests of AMD's matrix products: two measured boards, and a model of output tiles on others."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from surrogate import load
from surrogate.features.analytical import tiled_product_us
from surrogate.features.families import operator
from surrogate.features.families.gemm import Gemm
from surrogate.features.gpu import gpu
from surrogate.features.roofline import peak_tflops
from surrogate.prediction.kernel_times import within_peaks
from surrogate.prediction.results import DATASHEET, MODEL, SIMILAR_GPU
from surrogate.prediction.shipped import bundle_path, load_operators
from surrogate.prediction.sources.datasheet import shipped_product_models
from tests.conftest import MEASUREMENTS

TABLE = pd.read_parquet(MEASUREMENTS / "gemm_tensile.parquet")
SIZES = ["batch", "m", "n", "k"]


@pytest.mark.parametrize(
    ("board", "name"), [("vega20 (MI50, MI60)", "mi60"), ("navi21 (80 CU, 2.164 GHz)", "rx-6900-xt")]
)
def test_a_measured_product_gets_its_measured_time(board: str, name: str) -> None:
    """The default is fp32 accumulation (HHS); the variant HB selects the other tensile type."""
    rows = TABLE[(TABLE["gpu"] == board) & (TABLE["dtype"] == "fp16") & (TABLE["transposes"] == "NN")]
    for tensile_type, variant in (("HHS", ""), ("HB", "HB")):
        row = rows[(rows["tensile_type"] == tensile_type) & (rows["m"] > 1000) & (rows["n"] > 1000)].iloc[0]
        sizes = {name: int(row[name]) for name in SIZES}
        answer = load(name).predict(Gemm(**sizes, dtype="fp16", variant=variant))
        assert (answer.source, answer.library) == (MODEL, "rocblas")
        assert answer.time_us == pytest.approx(row["time_us"], rel=0.02)


@pytest.mark.parametrize("name", ["mi250", "mi308x", "rx-7900-xtx"])
def test_an_unmeasured_board_gets_the_time_of_the_product_model(name: str) -> None:
    problem = Gemm(m=4096, n=4096, k=4096, dtype="bf16", math="default")
    answer = load(name).predict(problem)
    library = "aiter" if name == "mi308x" else "rocblas"
    expected_us = tiled_product_us(problem, gpu(name))[0]
    assert (answer.source, answer.library, answer.time_us) == (DATASHEET, library, pytest.approx(expected_us))
    assert answer.upper_us / answer.time_us > 1.5
    assert answer.lower_us >= problem.flops / (gpu(name).bf16_tensor_tflops * 1e6)


def test_products_of_unaligned_rows_are_outside_and_wider() -> None:
    """4096³ of single values are 128 KiB · 4096 loads of 32 a clock on 132 SMs at 1.755 GHz: 0.29 ms."""
    predictor = load("h100-sxm")
    aligned, odd = (predictor.predict(f"gemm:m4096n4096k{k}", dtype="bf16") for k in (4096, 4093))
    assert aligned.in_domain and not odd.in_domain and "multiples of 16 bytes" in str(odd.reason)
    loads_us = 64 * 64 * 2 * 64 * 4093 / (32 * 132 * predictor.target.boost_mhz)
    assert odd.upper_us == pytest.approx(
        odd.time_us * (1 + loads_us / odd.time_us) * aligned.upper_us / aligned.time_us, rel=0.02
    )
    assert load("mi300x").predict("gemm:m4096n4096k4093", dtype="bf16").reason != odd.reason


def test_fp8_products_need_rows_of_16_values(refused) -> None:
    """Source: torch._scaled_mm and CUTLASS."""
    predictor = load("h100-sxm")
    with refused("n and k divisible by 16"):
        predictor.predict("gemm:m4096n4096k4093", dtype="fp8")
    with refused("k divisible by 32"):
        load("b200").predict("gemm:m4096n4096k4080", dtype="nvfp4")
    table = predictor.predict({"m": [4097, 4096], "n": [4096, 4095], "k": [4096, 4096]}, dtype="fp8")
    assert np.isfinite(table.predicted_us).tolist() == [True, False]
    assert [bool(reason) for reason in table.reason] == [False, True]


AITER = pd.read_parquet(MEASUREMENTS / "gemm_aiter.parquet")


@pytest.mark.parametrize("board", ["mi300x", "mi355x"])
def test_a_measured_product_of_aiter_gets_its_measured_time(board: str) -> None:
    """Isolated slow rows count as spikes, so 49 of 50 agree."""
    rows = AITER[AITER["gpu"] == board].sample(50, random_state=0)
    predictor = load(board)
    keys = rows[[*SIZES, "dtype"]].to_dict("records")
    answers = [predictor.predict(Gemm(**key, math="default")) for key in keys]
    assert {(answer.source, answer.library) for answer in answers} == {(MODEL, "aiter")}
    off = np.abs([answer.time_us for answer in answers] / rows["time_us"] - 1)
    assert np.median(off) < 0.005 and off.quantile(0.95) < 0.05


def test_a_type_or_library_that_a_board_was_not_measured_in_gets_the_width_of_boards_left_out() -> None:
    product = Gemm(m=64, n=7168, k=2048, dtype="fp8", math="default")
    width = shipped_product_models().by_kind["gfx9|fp8"].half_width
    answer = load("mi300x").predict(product)
    assert (answer.source, answer.library) == (DATASHEET, "aiter")
    assert answer.upper_us / answer.time_us == pytest.approx(np.exp(width), rel=0.01)
    assert load("mi300x", library="rocblas").predict(replace(product, dtype="bf16")).library == "rocblas"


def test_similar_boards_take_the_measurements_of_their_architecture() -> None:
    """MI325X has MI300X's compute units and 1.13 times its bandwidth, MI350X 0.92 times MI355X's clock.

    MI50 has 60 of the 64 compute units of MI60, at a lower clock.
    """
    problem = Gemm(m=4096, n=4096, k=4096, dtype="fp16")
    assert 1.0 < load("mi50").predict(problem).time_us / load("mi60").predict(problem).time_us < 1.25
    product = Gemm(m=64, n=7168, k=2048, dtype="fp8_block", math="default")
    for board, donor, ratios in (("mi325x", "mi300x", (0.9, 1.0)), ("mi350x", "mi355x", (1.0, 1.1))):
        answer = load(board).predict(product)
        assert (answer.source, answer.library) == (SIMILAR_GPU, "aiter")
        assert ratios[0] < answer.time_us / load(donor).predict(product).time_us < ratios[1]


def test_experts_on_amd_boards_come_from_aiter_in_the_types_it_has() -> None:
    experts = operator("moe", tokens=128, hidden=7168, inter=256, topk=8, experts=257, dtype="fp8_block")
    assert load("mi355x").predict(experts).library == "aiter"
    assert bundle_path("mi355x", replace(experts, dtype="nvfp4")).name == "language_moe"
    assert bundle_path("h200", experts).name == "language_moe"


def test_only_products_of_amd_gpus_use_the_amd_bundles() -> None:
    assert bundle_path("mi355x", Gemm(m=8, n=8, k=8, dtype="fp16")).name == "aiter"
    assert bundle_path("mi300x", Gemm(m=8, n=8, k=8, dtype="fp64")).name == "rocblas"
    assert bundle_path("mi210", Gemm(m=8, n=8, k=8)).name == "rocblas"
    assert bundle_path("mi25", Gemm(m=8, n=8, k=8)).name == "rocblas"  # DeepBench measured it on 160 rows
    for query in (("rtx-2070", Gemm(m=8, n=8, k=8, dtype="fp64")), ("mi210", operator("linear", m=8, n=8, k=8))):
        assert bundle_path(*query).name != "rocblas"


@pytest.mark.parametrize("framework", ["vllm", "sglang"])
def test_frameworks_run_the_measured_products_of_amd_gpus(framework: str) -> None:
    text = "gemm:m32n57344k8192"
    (kernel,) = load_operators("mi300x", framework).kernel_times([load("mi300x").read(text, dtype="bf16")])
    (best, *_) = load("mi300x").select(text, dtype="bf16").candidates
    assert (kernel.time_us, kernel.library, kernel.source) == (best.time_us, best.library, "model")
    assert load("mi300x", library=framework).predict(text, dtype="bf16").time_us == best.time_us


def test_a_quantised_type_lists_no_kernel_of_another_quantised_type() -> None:
    """Only TensorRT-LLM was measured in int8_sq. Experts in fp8 were not measured with every routing."""
    hopper = load("h100-sxm")
    assert {each.library for each in hopper.select("gemm:m64n4096k4096", dtype="int8_sq").candidates} == {"trtllm"}
    experts = hopper.select("moe:t64h4096i14336k2e8", dtype="fp8", routing="power_law_1.5").candidates
    assert experts and not any("fp4" in each.algorithm for each in experts)
    own = load("h100-sxm", library="vllm").select("gemm:m64n4096k4096", dtype="int8_wo")
    assert [each.algorithm for each in own.candidates] == ["torch.nn.functional.linear"]


@pytest.mark.parametrize("name", ["rtx-3090", "rtx-4090", "rtx-5090"])
def test_no_product_is_faster_than_the_peak_of_a_geforce_board(name: str) -> None:
    """vLLM accumulates fp16 in fp32, so both halves take as long. Its int4_wo was measured on no GPU."""
    types = ("fp16", "bf16", "fp8", "fp32", "int4_wo")
    products = [Gemm(m=8192, n=8192, k=8192, dtype=dtype, math="default") for dtype in types]
    kernels = [within_peaks(each, gpu(name)) for each in load_operators(name, "vllm").kernel_times(products)]
    assert kernels[0].time_us == kernels[1].time_us
    for product, kernel in zip(products, kernels, strict=True):
        peak_us = product.flops / peak_tflops(gpu(name), product.dtype, True) / 1e6
        assert peak_us <= 1.051 * kernel.lower_us and kernel.upper_us < 6 * peak_us
    notes = load(name).predict(products[1]).notes
    assert any(f"5 % faster than the datasheet peak of {name}" in note for note in notes)


@pytest.mark.parametrize("name", ["a100", "h100-sxm", "b200"])
def test_a_product_takes_as_long_with_its_bias_as_without(name: str) -> None:
    """Two tables agree: DeepBench's products in a loop, and NeuSight's isolated calls less their launches."""
    for sizes in ("m512n512k512", "m1024n1024k1024"):
        with_bias, without = (load(name).predict(f"{kind}:{sizes}", dtype="fp32") for kind in ("linear", "gemm"))
        assert 0.8 < with_bias.time_us / without.time_us < 1.25


def test_experts_take_half_the_time_on_twice_the_gpus() -> None:
    """Kernels that an autotuner left slow are no measurement: 8 GPUs took 2.4 times as long as 4."""
    four, eight = (f"moe:t64h6144i16384k2e8tp{gpus}" for gpus in (4, 8))
    own = load("h100-sxm", library="trtllm")
    ratio = own.predict(eight, routing="power_law_1.01").time_us / own.predict(four, routing="power_law_1.01").time_us
    assert 0.45 < ratio < 0.65
    other = load("h100-sxm", library="vllm").predict(four, dtype="fp8", routing="power_law_1.01")
    assert other.source == SIMILAR_GPU


def test_a_board_without_error_correction_does_not_lose_the_bandwidth_that_its_donor_loses() -> None:
    """The RTX 4090 has 1.08 times the RTX 3090's bandwidth; the measured L40S corrects errors, at a loss."""
    head = Gemm(m=1, n=128_256, k=4096, dtype="bf16", math="default")
    times_us = {name: load_operators(name, "vllm").kernel_times([head])[0].time_us for name in ("rtx-3090", "rtx-4090")}
    assert 1008 / 936 / 1.1 < times_us["rtx-3090"] / times_us["rtx-4090"] < 1008 / 936 * 1.1
    assert times_us["rtx-4090"] < times_us["rtx-3090"]
