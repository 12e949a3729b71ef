"""Known answers of the analytical models of gradients and of norms by the batch's statistics, from arithmetic."""

import pytest

from surrogate import Conv, gpu
from surrogate.features.analytical import KERNEL_GAP_US, bandwidth_field
from surrogate.features.families import operator
from surrogate.features.families.rowwise import CHANNELS_LAST, LATENCY_US
from surrogate.features.terms import sized
from surrogate.prediction.sources.datasheet import HALVES, shipped_datasheet_models

BOARD = gpu("rtx-3090")
MODEL = shipped_datasheet_models()[HALVES].model


def conv_us(direction: str = "bwd_filter", **changes: int) -> float:
    """Return the time of a grouped 3 × 3 convolution of 512 channels in NHWC."""
    sizes = {"n": 64, "c": 512, "h": 28, "w": 28, "k": 512, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1, "groups": 32}
    conv = Conv(**{**sizes, **changes}, dtype="fp16", layout="NHWC", direction=direction)
    return float(MODEL.convolution_us(sized(conv), BOARD, "fp16"))


@pytest.mark.parametrize("changes", [{"c": 496, "k": 496, "groups": 31}, {"dilation_h": 2, "dilation_w": 2}])
def test_gradients_of_other_groups_run_on_the_vector_units(changes: dict[str, int]) -> None:
    """31 groups have fewer products than 32, and a dilated filter has the same; forward passes have no such limit."""
    flops = Conv(n=64, c=496, h=28, w=28, k=496, r=3, s=3, pad_h=1, pad_w=1, groups=31).flops
    assert conv_us(**changes) > 3 * conv_us()
    assert conv_us("fwd", **changes) < 1.3 * conv_us("fwd")
    if "groups" in changes:
        vector_us = flops / (BOARD.fp32_tflops * 1e6 * MODEL.depthwise_share)
        assert conv_us("bwd_data", **changes) == pytest.approx(vector_us + KERNEL_GAP_US, rel=0.01)


def test_only_gradients_copy_images_whose_channels_need_padding() -> None:
    """1 × 1 filters of 510 instead of 512 channels."""
    one = {"r": 1, "s": 1, "pad_h": 0, "pad_w": 0, "groups": 1}
    odd = {**one, "c": 510, "k": 510}
    image_us = 2 * 64 * 510 * 28 * 28 * 2 / (BOARD.dram_gbs * 1e3)
    extra_us = conv_us("bwd_data", **odd) - conv_us("fwd", **odd)
    assert extra_us == pytest.approx(2 * MODEL.padding_passes * image_us, rel=0.01)
    assert conv_us("bwd_data", **one) == pytest.approx(conv_us("fwd", **one), rel=1e-9)


def test_batch_norms_gradient_moves_five_tensors_faster_in_nhwc() -> None:
    sizes = {"n": 64, "c": 512, "h": 28, "w": 28, "dtype": "fp16"}
    tensor_us = 64 * 512 * 28 * 28 * 2 / (BOARD.dram_gbs * 1e3)
    for variant, share in (("", MODEL.batch_norm_gradient_bandwidth), (CHANNELS_LAST, MODEL.norm_bandwidth)):
        norm = operator("batch_norm_backward", **sizes, variant=variant)
        assert MODEL.streamed_us(norm, BOARD) == pytest.approx(5 * tensor_us / share + KERNEL_GAP_US)


def test_few_channels_leave_multiprocessors_idle() -> None:
    """A block loads 2,816 values at a time, twice, for 64 images of 112 × 112; NHWC needs half as many loads."""
    loads = 2 * 64 * 112 * 112 / 2816
    for variant, factor in (("", 1), (CHANNELS_LAST, 2)):
        norm = operator("batch_norm", n=64, c=16, h=112, w=112, dtype="fp16", variant=variant)
        assert norm.serial_us(BOARD) == pytest.approx(loads * LATENCY_US / factor)


def test_autocast_covers_the_gradient_of_layer_norm_in_fp32_only() -> None:
    norms = {dtype: operator("layer_norm_backward", n=25_600, c=384, dtype=dtype) for dtype in ("fp32", "fp16")}
    assert bandwidth_field(norms["fp32"]) == "norm_gradient_bandwidth"
    assert bandwidth_field(norms["fp16"]) == "streaming_bandwidth"
    assert bandwidth_field(operator("layer_norm", n=25_600, c=384, dtype="fp32")) is None
    wide = operator("layer_norm_backward", n=25_600, c=2 * 384 * 8, dtype="fp32")
    share = MODEL.norm_gradient_bandwidth * 6
    traffic_us = wide.dram_bytes / (BOARD.dram_gbs * 1e3)
    assert MODEL.streamed_us(wide, BOARD) == pytest.approx(traffic_us / share + KERNEL_GAP_US)
