"""The main kernel of every row, found in a kernel table."""

import numpy as np
import pandas as pd

from surrogate.features.problem import SIZE_COLUMNS
from surrogate.models.seer.physics import METRIC_COLUMNS, with_kernel_metrics

SIZES = dict(zip(SIZE_COLUMNS, (128, 64, 28, 28, 64, 3, 3, 0, 0, 1, 1, 1, 1, 1), strict=True))
SETTING_NAMES = ("gpu", "library", "library_version", "direction", "dtype", "math", "layout")
SETTING = dict(zip(SETTING_NAMES, ("TITAN V", "cudnn", "7.6.3", "fwd", "fp32", "fma", "NCHW"), strict=True))
LAUNCH = dict.fromkeys(("block_y", "block_z"), 1) | {"block_x": 256, "registers_per_thread": 122}
LAUNCH |= {"static_shared_bytes": 8448, "dynamic_shared_bytes": 0}


def problems(*algorithms: str) -> pd.DataFrame:
    rows = [{**SETTING, **SIZES, "algorithm": a, "status": "ok", "time_us": 100.0} for a in algorithms]
    return pd.DataFrame(rows, index=range(5, 5 + len(rows)))


def kernel(algorithm: str, index: int, name: str, **values: object) -> dict[str, object]:
    return {**SETTING, **SIZES, "algorithm": algorithm, "kernel_index": index, "kernel_name": name, **values}


def test_kernel_with_the_most_instructions_is_the_main_kernel() -> None:
    before = kernel("GEMM", 0, "im2col4d_kernel", time_us=70.0, fp32_instructions=10.0, blocks=5.0)
    product = kernel("GEMM", 1, "maxwell_sgemm_128x64_nn", time_us=30.0, fp32_instructions=9e6, blocks=80.0)
    found = with_kernel_metrics(problems("IMPLICIT_GEMM", "GEMM"), pd.DataFrame([before, product]))
    assert list(found.index) == [5, 6]
    row = found.loc[6]
    expected = {"variant": "128x64", "blocks": 80, "main_kernel_us": 30, "other_kernels_us": 70}
    assert row[list(expected)].to_dict() == expected
    assert found[list(METRIC_COLUMNS)].iloc[0].isna().to_numpy().all()


def test_without_counters_the_longest_kernel_is_the_main_kernel() -> None:
    kernels = pd.DataFrame([kernel("GEMM", i, f"k{i}", time_us=t) for i, t in enumerate((3.0, 8.0, 8.0))])
    row = with_kernel_metrics(problems("GEMM"), kernels).iloc[0]
    assert (row["variant"], row["main_kernel_us"], row["other_kernels_us"]) == ("k1", 8, 11)
    assert np.isnan(row["kernel_class"])


def test_kernel_class_comes_from_the_table_or_from_utilisation() -> None:
    kernels = [
        kernel("GEMM", 0, "a", fp32_utilization_pct=70.0, dram_utilization_pct=90.0),
        kernel("WINOGRAD", 0, "b", fp32_utilization_pct=90.0, dram_utilization_pct=90.0, kernel_class=2),
        *(kernel("FFT_TILING", 0, "c", time_us=7.0), kernel("FFT_TILING", 1, "d", kernel_class=1)),
    ]
    found = with_kernel_metrics(problems("GEMM", "WINOGRAD", "FFT_TILING"), pd.DataFrame(kernels))
    assert found["kernel_class"].tolist() == [1, 2, 1]


def test_missing_b_max_is_computed_from_the_launch() -> None:
    """Each of a TITAN V's 80 SMs holds 2 blocks of 256 threads with 122 registers: 65536 // (8 × 4096)."""
    kernels = pd.DataFrame([kernel("GEMM", 0, "a", **LAUNCH), kernel("WINOGRAD", 0, "b", **LAUNCH, b_max=77.0)])
    assert with_kernel_metrics(problems("GEMM", "WINOGRAD"), kernels)["b_max"].tolist() == [160, 77]


def test_joining_twice_equals_joining_once() -> None:
    kernels = pd.DataFrame([kernel("GEMM", 0, "a", time_us=1.0, waves=3.0)])
    once = with_kernel_metrics(problems("GEMM"), kernels)
    pd.testing.assert_frame_equal(with_kernel_metrics(once, kernels), once)


def test_kernel_table_without_problem_columns_is_refused(refused) -> None:
    with refused("kernel table lacks ", "algorithm"):
        with_kernel_metrics(problems("GEMM"), pd.DataFrame({"kernel_name": ["a"], "kernel_index": [0]}))
