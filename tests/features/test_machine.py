"""The figures of a GPU as numbers or columns, and B_max per tile."""

import pytest

from surrogate.features.algorithms import MECHANISM_ROWS, MECHANISMS
from surrogate.features.gpu import gpu, gpus
from surrogate.features.roofline import machine, mechanism_b_max


def test_b_max_of_a_titan_xp_equals_seers_table() -> None:
    # SEER §2: B_max on 30 SMs.
    xp = gpu("TITAN Xp")
    assert mechanism_b_max(xp, "implicit_gemm") == (240, 120, 120)
    assert mechanism_b_max(xp, "precomp_gemm") == (150, 120, 60)
    assert mechanism_b_max(xp, "gemm") == (480, 60, 60)
    assert mechanism_b_max(xp, "winograd") == (60, 60, 60)
    assert mechanism_b_max(xp, "winograd_nonfused")[1:] == (120, 60)


def test_machine_figures_match_the_v100_datasheet() -> None:
    v100 = machine(gpu("Tesla V100-SXM2-16GB"))
    assert (v100.sms, v100.cores_per_sm, v100.compute_capability, v100.is_amd) == (80, 64, 7.0, 0)
    assert v100.peak_tflops == v100.fp32_tflops == pytest.approx(15.7, rel=0.01)
    assert v100.dram_gbs == pytest.approx(900, rel=0.01)
    half = machine(gpu("Tesla V100-SXM2-16GB"), "fp16", True)
    assert half.peak_tflops == pytest.approx(125, rel=0.02)
    assert half._replace(peak_tflops=0) == v100._replace(peak_tflops=0)
    assert machine(gpu("mi100")).is_amd == 1


def test_every_gpu_and_mechanism_has_positive_figures() -> None:
    assert set(MECHANISM_ROWS) == set(MECHANISMS)
    for board in gpus():
        for mechanism in MECHANISMS:
            slots = mechanism_b_max(board, mechanism)
            assert len(slots) == 3 and min(slots) >= board.sms, (board.name, mechanism)
        numbers = machine(board)
        assert min(numbers.sms, numbers.peak_tflops, numbers.fp32_tflops, numbers.dram_gbs, numbers.l2_bytes) > 0
