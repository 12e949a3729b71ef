"""Tests of the choice of donor GPUs, with known answers from datasheets."""

import numpy as np
import pytest

from surrogate.bundle.train import train
from surrogate.dataset.checks import normalise
from surrogate.dataset.store import Dataset
from surrogate.features.families import FAMILIES, parse_problem
from surrogate.features.gpu import gpu
from surrogate.prediction.predictor import Predictor
from surrogate.prediction.shipped import load_operators
from surrogate.prediction.sources.similar_gpu import same_architecture_gpus
from tests.known import cases
from tests.tables import every

GEMM = FAMILIES["gemm"]
MEASURED = {name: gpu(name) for name in ("b200", "gb200", "gb300", "h100-sxm", "h200-sxm", "l40s", "a100-sxm4-80gb")}


def setting(dtype: str) -> tuple[str, ...]:
    values = {"operator": "gemm", "dtype": dtype, "math": "default", "variant": ""}
    return tuple(values[name] for name in GEMM.setting_names)


@cases(__file__)
def test_donors_have_the_compute_capability_and_a_near_flops_per_byte(name, dtype, similar, donors):
    """Comments give the ratio of peak FLOPs to memory bandwidth: the GPU's own, then each similar GPU's."""
    similar = tuple(similar)
    assert same_architecture_gpus(GEMM, setting(dtype), gpu(name), MEASURED) == (similar, similar[:donors])


def test_of_a_donors_time_only_the_roofline_changes() -> None:
    """A product of 1 row reads k·n·2 bytes. It takes 1.5 times as long and 9 µs; H200 has 4,800 GB/s for 3,350.

    Copies reach 91 % of both, so the time of a copy changes, and only the rest stays.
    """
    sizes = every(n=[64, 2048, 4096, 8192], k=[64, 2048, 4096, 8192]).assign(m=1, batch=1)
    read_us = (sizes["k"] * (sizes["n"] + 1) + sizes["n"]) * 2 / 3350e3
    setting = {"operator": "gemm", "dtype": "bf16", "library": "a", "algorithm": "b"}
    frame = sizes.assign(gpu="h100-sxm", time_us=1.5 * read_us + 9, **setting)
    bundle = train(Dataset(normalise(frame, "test"), "listed", "test"), params={"rounds": 5})
    times = Predictor(bundle, gpu="h200-sxm").predict(frame.drop(columns=["gpu", "time_us"])).to_frame()
    np.testing.assert_allclose(times["predicted_us"], read_us * (3350 / 4800 / 0.91 + 1.5 - 1 / 0.91) + 9, rtol=5e-3)
    assert set(times["source"]) == {"similar-gpu"}


@cases(__file__)
@pytest.mark.parametrize("gpu_name", ["b200", "gb300", "h200-sxm"])
def test_fp32_attention_is_not_faster_than_measured_bf16(text: str, settings: dict[str, str], gpu_name: str) -> None:
    half, full = (parse_problem(text, dtype=dtype, **settings) for dtype in ("bf16", "fp32"))
    bf16, fp32 = load_operators(gpu_name).kernel_times([half, full])
    assert bf16.source == "model" and fp32.time_us >= bf16.time_us
