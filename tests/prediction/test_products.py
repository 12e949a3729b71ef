"""Tests of AMD's matrix products: two measured boards, and a model of output tiles on others."""

import pandas as pd
import pytest

from surrogate import load
from surrogate.features.families import operator
from surrogate.features.families.gemm import Gemm
from surrogate.features.gpu import gpu
from surrogate.prediction.results import DATASHEET, MODEL
from surrogate.prediction.shipped import bundle_path
from surrogate.prediction.sources.datasheet import shipped_product_models
from tests.conftest import MEASUREMENTS

TABLE = pd.read_parquet(MEASUREMENTS / "gemm_tensile.parquet")


@pytest.mark.parametrize(
    ("board", "name"), [("vega20 (MI50, MI60)", "mi60"), ("navi21 (80 CU, 2.164 GHz)", "rx-6900-xt")]
)
def test_a_measured_product_gets_its_measured_time(board: str, name: str) -> None:
    """The default is fp32 accumulation (HHS); the variant HB selects the other tensile type."""
    rows = TABLE[(TABLE["gpu"] == board) & (TABLE["dtype"] == "fp16") & (TABLE["transposes"] == "NN")]
    for tensile_type, variant in (("HHS", ""), ("HB", "HB")):
        row = rows[(rows["tensile_type"] == tensile_type) & (rows["m"] > 1000) & (rows["n"] > 1000)].iloc[0]
        sizes = {name: int(row[name]) for name in ("batch", "m", "n", "k")}
        answer = load(name).predict(Gemm(**sizes, dtype="fp16", variant=variant))
        assert (answer.source, answer.library) == (MODEL, "rocblas")
        assert answer.time_us == pytest.approx(row["time_us"], rel=0.02)


def test_a_board_of_the_same_chip_takes_slightly_longer() -> None:
    """MI50 has 60 of the 64 compute units, at a lower clock."""
    problem = Gemm(m=4096, n=4096, k=4096, dtype="fp16")
    ratio = load("mi50").predict(problem).time_us / load("mi60").predict(problem).time_us
    assert 1.0 < ratio < 1.25


@pytest.mark.parametrize("name", ["mi250", "mi300x", "rx-7900-xtx"])
def test_an_unmeasured_board_gets_the_time_of_the_product_model(name: str) -> None:
    problem = Gemm(m=4096, n=4096, k=4096, dtype="bf16", math="default")
    answer = load(name).predict(problem)
    expected_us = shipped_product_models().model_of(gpu(name)).product_us(problem, gpu(name))[0]
    assert (answer.source, answer.library, answer.time_us) == (DATASHEET, "rocblas", pytest.approx(expected_us))
    assert answer.upper_us / answer.time_us > 2
    assert answer.lower_us >= problem.flops / (gpu(name).bf16_tensor_tflops * 1e6)


def test_product_models_are_chosen_by_architecture() -> None:
    models = shipped_product_models()
    assert models.model_of(gpu("mi25")) is models.boards["gfx9"]
    assert models.model_of(gpu("w6600")) is models.boards["gfx1"]
    assert models.model_of(gpu("mi100")) is models.matrix_cores


def test_only_products_of_amd_gpus_use_the_rocblas_bundle() -> None:
    assert bundle_path("mi210", Gemm(m=8, n=8, k=8)).name == "rocblas"
    assert bundle_path("mi25", Gemm(m=8, n=8, k=8)).name == "rocblas"  # DeepBench measured it on 160 rows
    for query in (("rtx-2070", Gemm(m=8, n=8, k=8, dtype="fp64")), ("mi210", operator("linear", m=8, n=8, k=8))):
        assert bundle_path(*query).name != "rocblas"
