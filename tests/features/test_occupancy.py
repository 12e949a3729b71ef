"""Occupancy against hand calculations and NVIDIA's own header."""

from pathlib import Path

import numpy as np
import pytest

from surrogate.features.errors import InputError
from surrogate.features.gpu import gpu
from surrogate.features.kernels import launch_b_max, occupancy
from tests.features.known_answers import ANSWERS
from tests.known import cases


@pytest.mark.parametrize(
    ("cc", "threads", "registers", "shared", "dynamic", "blocks", "limiting"), ANSWERS["occupancy"]
)
def test_occupancy_equals_the_hand_calculation(cc, threads, registers, shared, dynamic, blocks, limiting):
    launch = occupancy(cc, threads, registers, shared, dynamic)
    assert launch.blocks_per_sm == blocks
    assert list(launch.limiting) == limiting


@pytest.mark.parametrize(("capability", "suggestion"), [(0.0, "12.0"), (3.5, "5.2"), (11.0, "10.0")])
def test_unknown_compute_capability_is_refused(capability: float, suggestion: str) -> None:
    with pytest.raises(InputError, match=suggestion):
        occupancy(capability, 128, 32, 0)


@cases(__file__)
def test_impossible_launches_are_refused(launch: tuple[float, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        occupancy(*launch)


def test_b_max_counts_the_blocks_of_all_sms(refused) -> None:
    # SEER's GEMM-P 128×64 on a Titan Xp: 4 resident blocks on each of 30 SMs.
    assert launch_b_max(gpu("titan-xp"), 128, 128, 16384) == 120
    with refused("NVIDIA only"):
        launch_b_max(gpu("mi210"), 128, 128, 16384)


def test_occupancy_agrees_with_nvidias_header(measurements: Path) -> None:
    import pandas as pd

    header = pd.read_parquet(measurements / "occupancy_known_answers.parquet")
    assert len(header) == 115_920
    for capability, rows in header.groupby("cc"):
        _agrees_with_the_header(float(str(capability)), rows)
    assert set(header["cc"][header["limiting"] >= 16]) == {12.0}


def _agrees_with_the_header(capability: float, header) -> None:
    launch = ("block_threads", "regs_per_thread", "static_smem", "dynamic_smem")
    computed = occupancy(capability, *(header[name].to_numpy() for name in launch))
    np.testing.assert_array_equal(computed.blocks_per_sm, header["max_blocks_per_sm"])
    np.testing.assert_array_equal(computed.limit_registers, header["limit_regs"])
    np.testing.assert_array_equal(computed.limit_shared, header["limit_smem"])
    np.testing.assert_array_equal(computed.limit_warps, header["limit_warps"])
    np.testing.assert_array_equal(computed.limit_blocks, header["limit_blocks"])
    # The header names the binding limits by bits.
    bits = {1: computed.limit_warps, 2: computed.limit_registers, 4: computed.limit_shared, 8: computed.limit_blocks}
    mask = sum(bit * (limit == computed.blocks_per_sm) for bit, limit in bits.items())
    # Bit 16 is the header's barrier limit, which on 12.0 equals the block limit.
    np.testing.assert_array_equal(mask, header["limiting"] % 16)
