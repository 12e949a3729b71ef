"""FLOPs and bytes of operators by hand; occupancy and verdicts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surrogate.features.conv import Conv
from surrogate.trace.kernels import launch_use, uses_tensor_cores, verdict
from surrogate.trace.work import RULES, Operands, flops_and_bytes


def _of(operator, *shapes, output=None, inputs=(), size=4):
    return flops_and_bytes(Operands(operator, shapes, (size,) * len(shapes), output, inputs))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (_of("aten::mm", (4, 5), (5, 6)), (240, 4 * (20 + 30 + 24))),
        (_of("aten::addmm", (6,), (4, 5), (5, 6)), (240, 4 * (20 + 30 + 24))),
        (_of("aten::bmm", (2, 4, 5), (2, 5, 6)), (480, 4 * (40 + 60 + 48))),
        (_of("aten::linear", (7, 4, 5), (6, 5), (6,)), (2 * 28 * 5 * 6, 4 * (140 + 30 + 168))),
        (_of("aten::relu", (10,), size=2), (10, 40)),
        (_of("aten::add", (4, 4), (4, 4), ()), (16, 4 * 48)),
        (_of("aten::add_", (4, 4), (4, 1), ()), (32, 4 * (16 + 4 + 16))),
        (_of("aten::fill_", (8,), ()), (0, 32)),
        (_of("aten::copy_", (8,), (8,), ()), (0, 64)),
        (_of("aten::_softmax", (8,)), (174 * 8, 64)),
        (_of("aten::sum", (8,)), (8, 32)),
        (_of("aten::max_pool2d_with_indices_backward", (2, 2), (4, 4), (2, 2)), (4, 4 * 24)),
        (_of("aten::mm", (4, 5), (6, 7)), None),
        (_of("aten::mm", (4, 5)), None),
        (_of("aten::novel", (4, 5)), None),
    ],
)  # fmt: skip
def test_known_answers(found, expected):
    assert found == expected


@given(st.from_type(Conv))
def test_convolutions_count_as_features_conv_does(conv):
    """Stride, padding and dilation give the same output, and FLOPs and tensor bytes follow, in either list order."""
    image, weight = (conv.n, conv.c, conv.h, conv.w), (conv.k, conv.c // conv.groups, conv.r, conv.s)
    padding, stride, dilation = (
        f"[{getattr(conv, f'{name}_h')}, {getattr(conv, f'{name}_w')}]"
        for name in ("pad", "stride", "dilation")
    )
    general = _of(
        "aten::conv2d", image, weight, inputs=("", "", "", stride, padding, dilation, str(conv.groups))
    )
    cudnn = _of("aten::cudnn_convolution", image, weight, inputs=("", "", padding, stride, dilation, "1"))
    output = (conv.n, conv.k, conv.out_h, conv.out_w)
    known = _of("aten::convolution", image, weight, output=output)
    assert general == cudnn == known
    assert known is not None and known[0] == conv.flops
    gradient = _of("aten::convolution_backward", output, image, weight)
    assert gradient == (2 * known[0], 2 * known[1])
    mask = ("", "", "", "[False, True, True]")
    assert _of("aten::convolution_backward", output, image, weight, inputs=mask) == known


def test_a_convolution_of_unknown_output_stays_unknown():
    assert _of("aten::cudnn_convolution", (8, 3, 32, 32), (16, 3, 3, 3)) is None


@given(st.sampled_from(sorted(RULES)), st.lists(st.lists(st.integers(0, 9), max_size=4).map(tuple), max_size=5),
       st.lists(st.sampled_from(["", "[1, 1]", "[]", "[0, 0]", "[a]", "True"]), max_size=6))  # fmt: skip
def test_no_shape_breaks_a_rule(operator, shapes, inputs):
    found = _of(operator, *shapes, inputs=tuple(inputs))
    assert found is None or (found[0] >= 0 and found[1] > 0)


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
