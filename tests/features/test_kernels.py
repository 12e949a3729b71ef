"""Kernel names, known launches and resident blocks, by known answers and against measured traces."""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from surrogate.features.gpu import gpu
from surrogate.features.kernels import identify, identify_call, launches, resident_blocks
from surrogate.features.occupancy import occupancy

TRACES = {
    "resnet50_b32_training_v100.json.gz": 7.0,
    "resnet_training_2080ti_no_dims.json.gz": 7.5,
    "vgg13_b128_training_h100.json.gz": 9.0,
}

P = "IMPLICIT_PRECOMP_GEMM"
NAMES = [
    ("volta_scudnn_128x64_relu_small_nn_v1", P, 128, 64, "scudnn", "volta"),
    ("volta_scudnn_128x64_stridedB_splitK_xregs_large_nn_v1", P, 128, 64, "scudnn", "volta"),
    (
        "maxwell_scudnn_winograd_128x128_ldg1_ldg4_tile148t_nt",
        "WINOGRAD", 128, 128, "scudnn_winograd", "maxwell"),
    (
        "void implicit_convolve_sgemm<float,float,1024,5,5,3,3,3,1,true>(int)",
        "IMPLICIT_GEMM", 32, 32, "convolve_gemm", "",
    ),
    (
        "void cudnn::detail::implicit_convolve_sgemm<float, float, 512, 6, 8, 3, 3, 5, 1>(int)",
        "IMPLICIT_GEMM", 64, 256, "convolve_gemm", "",
    ),
    (
        "void explicit_convolve_sgemm<float, int, 1024, 5, 5, 3, 3, 3, 0>(int)",
        "GEMM", 32, 32, "convolve_gemm", ""),
    ("void cudnn::cnn::im2col4d_kernel<float, long>(int)", "GEMM", 0, 0, "im2col", ""),
    ("winogradForwardData4x4", "WINOGRAD_NONFUSED", 0, 0, "winograd_transform", ""),
    (
        "cudnn::winograd::generateWinogradTilesKernel<0, float, float>",
        "WINOGRAD", 0, 0, "winograd_filter", ""),
    ("ampere_sgemm_128x64_nn", None, 128, 64, "gemm", "ampere"),
    ("volta_gcgemm_64x32_nt", None, 64, 32, "complex_gemm", "volta"),
    ("void fft2d_r2c_32x32<float, false, 1u, true>(float2*)", "FFT_TILING", 0, 0, "fft", ""),
    (
        "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize256x64x8_stage3",
        P, 256, 64, "xmma", "ampere",
    ),
    (
        "void cutlass::Kernel<cutlass_80_simt_sgemm_256x128_8x4_nt_align1>(int)",
        None, 256, 128, "gemm", "ampere"),
    (
        "void wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)",
        "IMPLICIT_GEMM", 64, 128, "engine", ""),
    ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32", None, 0, 0, "gemm", ""),
    ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", None, 0, 0, "gemm", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "algorithm", "tile_m", "tile_n", "family", "architecture"), NAMES)
def test_names(name: str, algorithm: str | None, tile_m: int, tile_n: int, family: str, architecture: str) -> None:
    found = identify(name)
    assert found is not None
    assert (found.algorithm, found.tile_m, found.tile_n) == (algorithm, tile_m, tile_n)
    assert (found.family, found.architecture) == (family, architecture)
    assert identify(name.upper()) == found


@pytest.mark.parametrize(
    "name",
    [
        "",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(int)",
    ],
)
def test_other_kernels_are_none(name: str) -> None:
    assert identify(name) is None


def test_the_whole_call_decides() -> None:
    gemm = "volta_sgemm_64x64_nn"
    assert identify_call([gemm]) is None
    assert identify_call(["winogradForwardData4x4", "winogradForwardFilter4x4", gemm]) == "WINOGRAD_NONFUSED"
    assert identify_call(["fft2d_r2c_32x32<float>", "volta_gcgemm_64x64_nt"]) == "FFT_TILING"
    implicit = "implicit_convolve_sgemm<float, float, 128, 5, 5, 3>"
    assert identify_call([implicit]) == "IMPLICIT_GEMM"
    assert identify_call(["kern_precompute_indices<false>", implicit]) == "IMPLICIT_PRECOMP_GEMM"
    assert identify_call([]) is None


def test_launches_are_consistent_with_their_names() -> None:
    assert len(launches()) > 60
    for one in launches():
        found = identify(one.pattern)
        assert found is not None, one.pattern
        assert (one.tile_m, one.tile_n) == (found.tile_m, found.tile_n), one.pattern
        assert found.algorithm in (None, one.algorithm), one.pattern
        assert one.pattern == one.pattern.lower()
        for architecture in one.architectures:
            capability = {"volta": 7.0, "turing": 7.5, "hopper": 9.0}[architecture]
            assert one.blocks_per_sm(capability) >= 1, one.pattern
    assert {one.algorithm for one in launches("WINOGRAD")} == {"WINOGRAD"}
    assert launches("DIRECT") == ()


@pytest.mark.parametrize(
    ("name", "algorithm", "tile", "blocks"),
    [
        # SEER's B_max on a Titan Xp over its 30 SMs.
        ("titan-xp", "IMPLICIT_PRECOMP_GEMM", (128, 32), 150 / 30),
        ("titan-xp", "WINOGRAD", (0, 0), 60 / 30),
        ("titan-xp", "WINOGRAD_NONFUSED", (128, 128), 60 / 30),
        # Launches seen: 80 registers x 64 threads: 12 blocks; 48 KB shared: 2 on Volta, 1 on Turing.
        ("v100", "IMPLICIT_GEMM", (32, 32), 12),
        ("v100", "IMPLICIT_PRECOMP_GEMM", (128, 64), 4),
        ("v100", "WINOGRAD", (128, 128), 2),
        ("a100-sxm4-40gb", "IMPLICIT_PRECOMP_GEMM", (128, 128), 2),
        # No launch is known: the table, by the nearest tile; none there: a stated constant.
        ("v100", "GEMM", (64, 128), 2),
        ("h200", "FFT", (0, 0), 2),
    ],
)
def test_resident_blocks(name: str, algorithm: str, tile: tuple[int, int], blocks: float) -> None:
    assert resident_blocks(gpu(name), algorithm, *tile) == blocks


@cache
def _kernel_events(path: Path) -> list[dict[str, Any]]:
    events = json.loads(gzip.decompress(path.read_bytes()), strict=False)["traceEvents"]
    return [event for event in events if "registers per thread" in event.get("args", {})]


@pytest.mark.slow
@pytest.mark.parametrize("trace", sorted(TRACES))
def test_occupancy_agrees_with_the_profilers_estimate(measurements: Path, trace: str) -> None:
    """The profiler prints whole percents, reduced where the grid cannot fill the GPU."""
    sm_warps = 32 if TRACES[trace] == 7.5 else 64
    checked = 0
    for event in _kernel_events(measurements / "traces" / trace):
        args = event["args"]
        threads = args["block"][0] * args["block"][1] * args["block"][2]
        blocks = occupancy(TRACES[trace], threads, args["registers per thread"], 0, args["shared memory"]).blocks_per_sm
        warps = -(-threads // 32)
        resident = min(blocks * warps, args["blocks per SM"] * warps)
        if args["shared memory"] > 48 * 1024:  # the profiler prints 0: it does not know of opting in to more
            resident = 0
        assert args["est. achieved occupancy %"] == pytest.approx(100 * resident / sm_warps, abs=1.01), event["name"]
        checked += 1
    assert checked > 250


def test_all_convolution_calls_of_the_3x3_table_are_identified(measurements: Path) -> None:
    import pandas as pd

    path = measurements / "conv_best_algorithm_3x3.parquet"
    table = pd.read_parquet(path, columns=["kernels", "main_kernel", "algorithm_guess"])
    known = {kernels: identify_call(kernels.split(";")) for kernels in table["kernels"].unique()}
    found = table["kernels"].map(known)
    assert found.notna().all()
    guess = table["algorithm_guess"].str.replace(r"\(.*", "", regex=True)
    # Two readings of the same kernels: "IMPLICIT_GEMM/PRECOMP" of the table is either of two algorithms.
    agree = (found == guess) | (
        guess.eq("IMPLICIT_GEMM/PRECOMP") & found.isin(["IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM"])
    )
    assert agree.mean() > 0.998
    mains = [identify(name) for name in table["main_kernel"].unique()]
    assert all(main is not None and main.tile_m > 0 for main in mains)
