"""Tests of shipped bundles: found by GPU, else by vendor; and of the module's `predict` and `select`."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from surrogate import bundled
from surrogate.bundle.bundle import index_file
from surrogate.features.conv import Conv
from surrogate.features.families import FAMILIES
from surrogate.features.families.gemm import Gemm
from surrogate.features.gpu import gpu
from surrogate.prediction import shipped as shipped_module
from surrogate.prediction.shipped import bundle_for, load, predict, select, shipped
from surrogate.prediction.sources.datasheet import shipped_datasheet_models

GEMM = FAMILIES["gemm"]

PROBLEM = "n8c16h14k16r3p1"
DATA = Path(__file__).parents[2] / "experiments" / "data"


@pytest.fixture
def two_bundles(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder that stands in for the shipped bundles: `nvidia`, and `other` with fewer rows."""
    shutil.copytree(folder, tmp_path / "nvidia")
    shutil.copytree(folder, tmp_path / "other")
    index = tmp_path / "other" / "bundle.json"
    content = json.loads(index.read_text())
    content["card"]["data"] |= {"gpus": ["TITAN Xp"], "ok_rows": 3}
    index.write_bytes(index_file(content))
    shipped_datasheet_models()  # cached from the package's own folder
    monkeypatch.setattr(bundled, "FOLDER", tmp_path)
    shipped.cache_clear()
    yield tmp_path
    shipped.cache_clear()
    shipped_module._cached_predictor.cache_clear()


def test_a_bundle_is_found_by_gpu_then_by_vendor(two_bundles: Path) -> None:
    assert [bundle.path.name for bundle in shipped()] == ["nvidia", "other"]
    assert bundle_for(gpu("v100")).name == "nvidia"
    assert bundle_for(gpu("titan-xp")).name == "other"
    assert bundle_for(gpu("k80")).name == "nvidia"  # unknown to both: the one with more rows
    assert bundle_for(gpu("k80"), "cudnn").name == "nvidia"


def test_a_vendor_a_library_or_an_installation_without_a_bundle_is_refused(refused, two_bundles: Path) -> None:
    with refused("no bundle for mi210 ships", "shipped: t4, titan-xp, v100-sxm2-16gb"):
        load("mi210")
    with refused("no bundle for v100-sxm2-16gb with miopen"):
        load("v100", library="miopen")
    shutil.rmtree(two_bundles / "nvidia")
    shutil.rmtree(two_bundles / "other")
    shipped.cache_clear()
    with refused("this installation ships no bundle"):
        bundle_for(gpu("v100"))


def test_a_gpu_name_loads_its_shipped_bundle(two_bundles: Path) -> None:
    assert load("Tesla T4").gpu == "t4"
    unmeasured = load("h200").select(PROBLEM)
    assert unmeasured.best is not None and unmeasured.best.source == "datasheet"
    assert select(PROBLEM, gpu="t4").estimates == load("t4").select(PROBLEM).estimates
    assert predict(PROBLEM, gpu="t4", algorithm="FFT") is predict(PROBLEM, gpu="t4", algorithm="FFT")  # loaded once
    assert len(predict({"n": [1, 2], "c": [8, 8], "h": [7, 7], "k": [8, 8], "r": [1, 1]}, gpu="t4")) == 2


def test_filters_larger_than_their_input_are_supported_for_miopen() -> None:
    """MIOpen's tables have such problems: 7 × 7 on one pixel, without padding."""
    table = pd.read_parquet(DATA / "miopen_conv_mi300x_2024.parquet").query("r == 7 and h == 1 and pad_h == 0")
    answers = load("mi300x").predict(table.head(20)).to_frame()
    assert answers["supported"].all() and answers["predicted_us"].between(1, 1e6).all()


def test_an_operator_is_answered_by_a_library_that_ran_it() -> None:
    """cuDNN never ran softmax on this V100; PyTorch ran it on another V100."""
    traffic_us = 2 * 4 * 65536 * 1000 / 900e3  # at 900 GB/s
    answer = predict("softmax:n65536c1000", gpu="v100-sxm2-16gb", library="torch")
    assert (answer.library, answer.source) == ("torch", "datasheet")
    assert traffic_us < answer.time_us < 1.5 * traffic_us
    assert predict("relu:n512c1000", gpu="v100-sxm2-16gb").source == "model"


def test_fp16_is_answered_by_bf16_measurements() -> None:
    """H100 was measured with bf16 alone, V100 with fp16."""
    for text in ("gemm:m4096n4096k4096", "attention:b8h32g8d128q2048k2048", "moe:t256h7168i2048k8e256tp1ep8"):
        fp16, bf16 = (predict(load("h100").read(text, dtype=dtype), gpu="h100") for dtype in ("fp16", "bf16"))
        assert (fp16.time_us, fp16.lower_us, fp16.source) == (bf16.time_us, bf16.lower_us, "model")
        assert len(fp16.notes) == len(bf16.notes) + 1
    assert not predict(Gemm(m=512, n=512, k=512, dtype="fp16", math="default"), gpu="v100").notes


def test_no_interval_is_faster_than_the_datasheet_peak() -> None:
    """989.4 TFLOP/s in fp16: 2·4096³ operations take 138.9 µs."""
    product = Gemm(m=4096, n=4096, k=4096, dtype="fp16", math="default")
    answer = predict(product, gpu="h100", library="cublas")
    assert answer.source == "datasheet" and answer.lower_us < answer.time_us
    assert answer.lower_us == pytest.approx(138.9, rel=1e-3)
    table = pd.DataFrame([{"family": "gemm", "operator": "gemm", **product.to_dict()}]).drop(columns="kind")
    assert predict(table, gpu="h100", library="cublas").lower_us[0] == pytest.approx(answer.lower_us)


def test_evidence_names_the_measured_element_types() -> None:
    bundle = next(bundle for bundle in shipped() if bundle.path.name == "operators")
    assert bundle.evidence("gemm", "v100-sxm2-16gb")["dtypes"] == ["fp16", "fp32"]


def test_convolutions_without_tensor_cores_on_the_gpu_are_refused(refused) -> None:
    with refused("tensor cores"):
        predict(Conv(n=8, c=64, h=56, k=64, r=3, dtype="fp16", math="tensor_op"), gpu="k80")


def test_the_family_model_is_chosen_by_type_and_gpu() -> None:
    """Half-precision products were measured on an H200, fp32 ones with other libraries on a V100."""
    bundle = load("h200").bundle

    def libraries(dtype: str, gpu_name: str) -> set[str]:
        values = tuple({"operator": "gemm", "dtype": dtype}.get(name, "") for name in GEMM.setting_names)
        return set(bundle.family_model(GEMM, gpu_name, values).domain.libraries)

    assert "trtllm" in libraries("bf16", "h200-sxm") and "trtllm" not in libraries("fp32", "v100-sxm2-16gb")
    assert "torch" in libraries("fp32", "v100-sxm2-16gb")


def test_settings_are_keyword_arguments(refused):
    """Also common names as "torch.bfloat16" and "half"; for a text, a problem and a list."""
    h100 = load("h100")
    product = h100.predict("matmul:bs1m512n512k512", dtype="torch.bfloat16")
    assert product.problem == h100.read("gemm:m512n512k512", dtype="bf16") and product.problem.dtype == "bf16"
    assert h100.predict(h100.read("gemm:m512n512k512"), dtype="bfloat16") == product
    assert h100.predict(["mm:m512n512k512"], dtype="bf16") == [product]
    quantised = h100.select("gemm:m512n512k512", dtype="float8", library="vllm")
    assert quantised.library == "vllm" and quantised.problem.dtype == "fp8"
    assert h100.predict("gemm:m512n512k512", dtype="fp8", library="trtllm").library == "trtllm"
    cached = {name: h100.predict("attention:bs8h32g8d128q1k2048", kv_dtype=name).time_us for name in ("fp8", "bf16")}
    assert cached["fp8"] < cached["bf16"]
    assert load("v100").predict("conv2d:n8c64h56k64r3", layout="channels_last", dtype="half").problem.layout == "NHWC"
    assert predict("gemm:m512n512k512", gpu="h100", dtype="bf16") == product
    with refused("layout is no", "setting of gemm"):
        h100.predict("gemm:m512n512k512", layout="NHWC")
    with refused("routing is no", "setting of gemm"):
        h100.predict(product.problem, routing="balanced")
    (of_row,) = h100.select([{"m": 512, "n": 512, "k": 512}], dtype="bf16")
    assert of_row.estimates == h100.select("gemm:m512n512k512", dtype="bf16").estimates
    with refused("layout is no", "setting of gemm"):
        h100.select([{"m": 512, "n": 512, "k": 512}], layout="NHWC")


def test_gradients_in_nhwc_run_on_tensor_cores_of_volta() -> None:
    """cuDNN 7's trees, which were never fitted to the setting, gave a third of the peak of multiply-adds."""
    sizes = {"n": 64, "c": 256, "h": 28, "w": 28, "k": 256, "r": 3, "pad_h": 1, "dtype": "fp16", "math": "tensor_op"}
    forward, gradient = (Conv(**sizes, layout="NHWC", direction=way) for way in ("fwd", "bwd_data"))
    board, predictor = gpu("v100"), load("v100")
    first = predictor.select(gradient).estimates[0]
    peak_us = gradient.flops / (board.fp16_tensor_tflops * 1e6)
    assert first.source == "datasheet" and peak_us < first.time_us < 2 * peak_us
    assert predictor.select(forward).estimates[0].source == "model"
