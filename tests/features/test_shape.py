"""Output size, FLOPs, bytes and implicit-GEMM sizes against enumeration."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st

from surrogate.features import terms as shape
from surrogate.features.conv import Conv
from surrogate.features.problem import ConvColumns

CONVS = st.from_type(Conv)
NAMES = (
    *("out_h", "out_w", "flops", "input_bytes", "filter_bytes", "output_bytes", "tensor_bytes", "gemm_m", "gemm_n"),
    *("gemm_k", "is_depthwise"),
)


def _positions(size: int, taps: int, pad: int, stride: int, dilation: int) -> int:
    """Return the number of places where the dilated filter lies inside the padded input."""
    last_tap = dilation * (taps - 1)
    return sum(1 for start in range(0, size + 2 * pad, stride) if start + last_tap < size + 2 * pad)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 9), st.integers(1, 5), st.integers(1, 4))
def test_output_size_is_the_number_of_filter_positions(size, taps, pad, stride, dilation):
    positions = _positions(size, taps, pad, stride, dilation)
    assert shape.fits(size, taps, pad, dilation) == (positions > 0)
    if positions:
        assert shape.output_size(size, taps, pad, stride, dilation) == positions


def test_gemm_sizes_equal_the_hand_calculation() -> None:
    # n2 c6 h8 w8 k4 r3 p1 g2: P·Q = 64; a group reads 3 channels and makes 2.
    sizes: dict[str, Any] = {"n": 2, "c": 6, "h": 8, "k": 4, "r": 3, "pad_h": 1, "groups": 2}
    answers = {"fwd": (128, 2, 27), "bwd_data": (128, 3, 18), "bwd_filter": (27, 2, 128)}
    for direction, expected in answers.items():
        conv = Conv(**sizes, direction=direction)
        assert (shape.gemm_m(conv), shape.gemm_n(conv), shape.gemm_k(conv)) == expected
        assert conv.flops == shape.flops(conv) == 2 * 2 * math.prod(expected)  # two a multiply-add, in two groups


@given(CONVS)
def test_bytes_are_elements_times_width(conv: Conv) -> None:
    assert shape.input_bytes(conv) == conv.itemsize * np.prod([conv.n, conv.c, conv.h, conv.w])
    assert shape.filter_bytes(conv) == conv.itemsize * np.prod([conv.k, conv.c // conv.groups, conv.r, conv.s])
    assert shape.output_bytes(conv) == conv.itemsize * np.prod([conv.n, conv.k, conv.out_h, conv.out_w])
    assert shape.tensor_bytes(conv) == shape.input_bytes(conv) + shape.filter_bytes(conv) + shape.output_bytes(conv)


@settings(max_examples=30)
@given(st.lists(CONVS, min_size=1, max_size=6))
def test_arrays_equal_scalars_exactly(columns_of: Callable[[Sequence[Conv]], ConvColumns], convs: list[Conv]) -> None:
    columns = columns_of(convs)
    for name in NAMES:
        function = getattr(shape, name)
        assert np.asarray(function(columns)).tolist() == [function(conv) for conv in convs], name


def test_depthwise_means_one_channel_per_group() -> None:
    assert shape.is_depthwise(Conv(n=1, c=8, h=4, k=16, r=3, groups=8))
    assert not shape.is_depthwise(Conv(n=1, c=8, h=4, k=8, r=3, groups=4))
    assert not shape.is_depthwise(Conv(n=1, c=1, h=4, k=8, r=3))


def test_filter_larger_than_the_image_has_one_output() -> None:
    # Only columns may hold a 5×5 filter on a 3×3 input: `Conv` refuses it, but MIOpen's tables contain it.
    columns = ConvColumns.of([np.array([v]) for v in (1, 1, 3, 3, 1, 5, 5, 0, 0, 1, 1, 1, 1, 1)])
    assert shape.out_h(columns).tolist() == [1] and shape.out_w(columns).tolist() == [1]
