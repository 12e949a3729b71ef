"""Occupancy and verdicts of kernels."""

import pytest

from surrogate.trace.kernels import launch_use, uses_tensor_cores, verdict


def test_verdicts_at_sixty_per_cent():
    # GTX 1080 Ti's doubles: 354.368 GFLOP/s and 484 GB/s; 1 ms each.
    full = 354.368e9 * 1e-3
    for share, bound in ((0.61, "compute-bound"), (0.59, "latency-bound")):
        assert verdict(share * full, 1e6, 1000.0, 0.354368, 484).bound == bound
    assert verdict(1e6, 0.9 * 484e9 * 1e-3, 1000.0, 0.354368, 484).bound == "memory-bound"
    assert verdict(1e6, 1e6, 0.0, 1, 1) is None


def test_occupancy_and_its_limit():
    use = launch_use(7.0, 80, 100_000, 64, 88, 3328)
    assert use is not None and use.limited_by == "registers" and use.occupancy_pct == 31.25  # 10 of 32 blocks
    assert use.waves == pytest.approx(100_000 / (10 * 80))
    assert launch_use(7.0, 80, 4, 64, 88, 3328).limited_by == "grid (4 blocks)"
    for bad in (
        (6.3, 80, 1, 64, 32, 0),
        (7.0, 80, 0, 64, 32, 0),
        (7.0, 80, 1, 64, 999, 0),
        (7.0, 80, 1, 64, -1, -1),
    ):
        assert launch_use(*bad) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("volta_fp16_s884cudnn_fp16_128x128_ldg8_relu", True),
        ("cutlass_tensorop_s1688wgrad_optimized_tf32_256x64", True),
        (
            "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize256x64x8_ffma_aligna4",
            False,
        ),
        ("sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32", True),
        ("volta_scudnn_128x64_relu_interior_nn_v1", False),
        ("volta_sgemm_128x64_nt", False),
    ],
)
def test_tensor_cores_by_name(name, expected):
    assert uses_tensor_cores(name) is expected
