"""Kernel names, registered launches and resident blocks against known answers and measured traces."""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from surrogate.features.gpu import gpu
from surrogate.features.kernels import identify, identify_call, launches, occupancy, resident_blocks
from tests.features.known_answers import ANSWERS
from tests.known import cases

TRACES = ANSWERS["estimated_occupancy"]


@pytest.mark.parametrize(("name", "algorithm", "tile_m", "tile_n", "family", "architecture"), ANSWERS["kernel_names"])
def test_kernel_name_gives_algorithm_and_tile(name, algorithm, tile_m, tile_n, family, architecture) -> None:
    found = identify(name)
    assert found is not None
    assert (found.algorithm or "", found.tile_m, found.tile_n) == (algorithm, tile_m, tile_n)
    assert (found.family, found.architecture) == (family, architecture)
    assert identify(name.upper()) == found


@cases(__file__)
def test_unrelated_kernel_is_not_identified(name: str) -> None:
    assert identify(name) is None


def test_call_is_identified_by_all_its_kernels() -> None:
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
    for launch in launches():
        found = identify(launch.pattern)
        assert found is not None, launch.pattern
        assert (launch.tile_m, launch.tile_n) == (found.tile_m, found.tile_n), launch.pattern
        assert found.algorithm in (None, launch.algorithm), launch.pattern
        assert launch.pattern == launch.pattern.lower()
        for architecture in launch.architectures:
            capability = {"volta": 7.0, "turing": 7.5, "hopper": 9.0}[architecture]
            assert launch.blocks_per_sm(capability) >= 1, launch.pattern


@pytest.mark.parametrize(("name", "algorithm", "tile", "blocks"), ANSWERS["resident_blocks"])
def test_resident_blocks_equal_the_known_answer(name: str, algorithm: str, tile: list[int], blocks: int) -> None:
    assert resident_blocks(gpu(name), algorithm, *tile) == blocks


@cache
def _kernel_events(path: Path) -> list[dict[str, Any]]:
    events = json.loads(gzip.decompress(path.read_bytes()), strict=False)["traceEvents"]
    return [event for event in events if "registers per thread" in event.get("args", {})]


@pytest.mark.slow
@pytest.mark.parametrize("trace", sorted(TRACES))
def test_occupancy_agrees_with_the_profilers_estimate(measurements: Path, trace: str) -> None:
    """The profiler prints whole percents, and less if the grid cannot fill the GPU."""
    sm_warps = 32 if TRACES[trace] == 7.5 else 64
    checked = 0
    for event in _kernel_events(measurements / "traces" / trace):
        args = event["args"]
        threads = args["block"][0] * args["block"][1] * args["block"][2]
        blocks = occupancy(TRACES[trace], threads, args["registers per thread"], 0, args["shared memory"]).blocks_per_sm
        warps = -(-threads // 32)
        resident = min(blocks * warps, args["blocks per SM"] * warps)
        if args["shared memory"] > 48 * 1024:  # the profiler prints 0 because it ignores the opt-in
            resident = 0
        assert args["est. achieved occupancy %"] == pytest.approx(100 * resident / sm_warps, abs=1.01), event["name"]
        checked += 1
    assert checked > 250


def test_all_convolution_calls_of_the_3x3_table_are_identified(measurements: Path) -> None:
    import pandas as pd

    path = measurements / "conv_best_algorithm_3x3.parquet"
    table = pd.read_parquet(path, columns=["kernels", "main_kernel", "algorithm_guess"])
    algorithms = {kernels: identify_call(kernels.split(";")) for kernels in table["kernels"].unique()}
    found = table["kernels"].map(algorithms)
    assert found.notna().all()
    guess = table["algorithm_guess"].str.replace(r"\(.*", "", regex=True)
    # The table writes "IMPLICIT_GEMM/PRECOMP" for either of two algorithms.
    either = guess.eq("IMPLICIT_GEMM/PRECOMP") & found.isin(["IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM"])
    agree = (found == guess) | either
    assert agree.mean() > 0.998
    mains = [identify(name) for name in table["main_kernel"].unique()]
    assert all(main is not None and main.tile_m > 0 for main in mains)
