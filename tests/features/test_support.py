"""Support rules against hand calculations, single problems and the statuses of measured tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from surrogate.features.algorithms import ALGORITHMS, RULES, missing_hardware, unsupported_reason
from surrogate.features.conv import Conv
from surrogate.features.gpu import gpu
from surrogate.features.problem import SIZE_COLUMNS, ConvColumns
from tests.features.known_answers import ANSWERS

CONVS = st.from_type(Conv)
BASE: dict[str, Any] = {"n": 2, "c": 16, "h": 30, "k": 16, "r": 3, "pad_h": 1}


def supported(name: str, columns: ConvColumns, *, library: str, direction: str, gpu_name: str) -> np.ndarray:
    """Return for each row whether every rule holds."""
    capability = gpu(gpu_name).compute_capability if library == "cudnn" else 0.0
    verdicts = [rule.holds(columns, capability) for rule in RULES.get((library, direction, name), ())]
    return np.logical_and.reduce([np.ones(len(columns.n), dtype=bool), *verdicts])


@pytest.mark.parametrize(("change", "refused"), ANSWERS["forward_support"])
def test_forward_support_equals_the_known_answer(change: dict[str, Any], refused: list[str]) -> None:
    conv = Conv(**(BASE | change))
    names = [a.name for a in ALGORITHMS if a.library == "cudnn" and a.direction == "fwd"]
    assert {name for name in names if unsupported_reason(name, conv)} == {*refused, "DIRECT"}


def test_fused_winograd_is_unsupported_from_hopper_on() -> None:
    conv = Conv(**BASE)
    assert unsupported_reason("WINOGRAD", conv, gpu_name="Tesla V100-SXM2-16GB") is None
    assert unsupported_reason("WINOGRAD", conv, gpu_name="h200") == "not on compute capability 9.0 or newer"
    assert unsupported_reason("WINOGRAD_NONFUSED", conv, gpu_name="h200") is None


@pytest.mark.parametrize(
    ("kernel", "runs", "refuses"),
    [
        (("sglang", "fa3"), "h100-sxm", ["mi300x", "t4", "b200", "rtx-4090"]),
        (("trtllm", "torch_flow"), "a100-sxm4-80gb", ["mi300x", "t4", "b60"]),
        (("sglang", "trtllm_mha"), "b200", ["mi300x", "h100-sxm", "rtx-5090"]),
        (("vllm", "vllm_flash_attn_fa2"), "mi300x", ["t4", "v100-sxm2-16gb"]),
    ],
)
def test_a_kernel_is_refused_on_gpus_that_its_documentation_excludes(
    kernel: tuple[str, str], runs: str, refuses: list[str]
) -> None:
    assert missing_hardware(*kernel, runs) is None
    assert all(missing_hardware(*kernel, name) for name in refuses)


def test_unsupported_reason_names_the_rule(refused) -> None:
    assert unsupported_reason("FFT", Conv(**BASE, stride_h=2)) == "stride must be 1"
    assert unsupported_reason("DIRECT", Conv(**BASE)) == "no release implements it"
    with refused("did you mean FFT"):
        unsupported_reason("FFTT", Conv(**BASE))


@settings(max_examples=50)
@given(st.lists(CONVS, min_size=1, max_size=5))
def test_columns_agree_with_single_problems(columns_of, convs):
    columns = columns_of(convs)
    for library, direction, name in RULES:
        for gpu_name in ("Tesla T4", "h200"):
            arguments = {"library": library, "direction": direction, "gpu_name": gpu_name}
            single = [unsupported_reason(name, conv, **arguments) is None for conv in convs]
            assert supported(name, columns, **arguments).tolist() == single, (library, direction, name)


@pytest.fixture(scope="module")
def agreement(measurements: Path) -> pd.DataFrame:
    """Return the measured rows with the columns ``expected`` (the rules) and ``actual`` (the status)."""
    frame = pd.read_parquet(measurements / "cudnn_conv_per_algorithm.parquet")
    frame["actual"] = frame["status"] == "ok"
    parts = []
    for (direction, name, board), part in frame.groupby(["direction", "algorithm", "gpu"]):
        settings = {c: part[c] for c in ("dtype", "math", "layout", "direction")}
        columns = ConvColumns.of([part[c] for c in SIZE_COLUMNS], **settings)
        expected = supported(str(name), columns, library="cudnn", direction=str(direction), gpu_name=str(board))
        parts.append(part.assign(expected=expected))
    return pd.concat(parts)


def _odd_tiling(frame: pd.DataFrame) -> np.ndarray:
    """Return the rows of FFT_TILING for 1×1 at stride 2, which some releases and devices refuse."""
    odd = (frame["algorithm"] == "FFT_TILING") & (frame["r"] == 1) & (frame["s"] == 1) & (frame["stride_h"] == 2)
    return odd.to_numpy()


def test_rules_agree_with_measured_forward_statuses(agreement: pd.DataFrame) -> None:
    part = agreement[(agreement["direction"] == "fwd") & (agreement["dtype"] == "fp32")]
    part = part[~_odd_tiling(part)]
    same = part["expected"] == part["actual"]
    assert len(part) > 25_000
    assert same.mean() >= 0.99
    by_algorithm = same.groupby(part["algorithm"]).mean()
    assert (by_algorithm >= 0.98).all(), by_algorithm.to_dict()


@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "fp64"])
def test_rules_agree_with_measured_statuses_of_each_direction_and_dtype(agreement, direction, dtype) -> None:
    """In the releases of 2018, FFT_TILING runs in fp64 and not for the filter gradient, unlike the rules."""
    part = agreement[(agreement["direction"] == direction) & (agreement["dtype"] == dtype)]
    part = part[~_odd_tiling(part)]
    if dtype == "fp64" or direction != "fwd":
        part = part[part["algorithm"] != "FFT_TILING"]
    assert (part["expected"] == part["actual"]).mean() >= 0.98
