"""Tests of workspaces against the ones that cuDNN and MIOpen state."""

import numpy as np

from surrogate.dataset.problems import problems_of
from surrogate.dataset.store import read_dataset
from surrogate.features.conv import CONV, Conv
from surrogate.features.gpu import gpu
from surrogate.features.terms import sized
from surrogate.features.workspace import workspace_bytes
from tests.known import cases


def needed(algorithm: str, library: str, name: str, setting: tuple[str, ...], problem: Conv) -> np.ndarray:
    """Return the workspaces in bytes, (rows,)."""
    formula = CONV.formula(setting, gpu(name))
    return np.asarray(formula.candidate(formula.problem(problem), CONV.mechanism(library, setting, algorithm))[1])


@cases(__file__)
def test_workspaces_equal_the_stated_ones(measurements, table, algorithm, direction, share) -> None:
    """A workspace counts as equal within 2 %. MIOpen needs none, or one buffer, for filters of one element."""
    frame = read_dataset(measurements / f"{table}.parquet").frame
    setting = (direction, "fp32", "fma", "NCHW")
    picked = frame["algorithm"] == algorithm
    for name, value in zip(CONV.setting_names, setting, strict=True):
        picked &= frame[name] == value
    picked &= (frame["workspace_bytes"] > 0) & ((frame["r"] > 1) | (algorithm != "GEMM"))
    part = frame[picked]
    if "status" in part:
        part = part[part["status"] == "ok"]
    library, name = ("miopen", "mi210") if algorithm == "GEMM" else ("cudnn", "v100-sxm2-16gb")
    ratio = needed(algorithm, library, name, setting, problems_of(part, CONV, setting)) / part["workspace_bytes"]
    assert len(ratio) > 50 and np.mean(np.abs(ratio - 1) < 0.02) >= share
    assert ratio.max() < 3.0  # an estimate that is too large would exclude candidates that run


def test_the_worked_tile_of_a_large_image() -> None:
    """224 + 6 padded pixels, 7 × 7 filters: two of 81 tiles at a time, 67 planes for each of n images, 192 filters.

    cuDNN states 598,049,000 bytes.
    """
    conv = Conv(n=1024, c=3, h=224, k=64, r=7, pad_h=3, stride_h=2)
    assert workspace_bytes(sized(conv), "fft_tiling", "nvidia", 0) == (1024 * 2 * 67 + 192) * 32 * 17 * 8 == 597_999_616
