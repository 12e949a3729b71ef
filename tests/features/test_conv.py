"""`Conv`: defaults, one-line validation errors, equality."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from surrogate.features.conv import Conv
from tests.features.known_answers import ANSWERS

BASE: dict[str, Any] = {"n": 32, "c": 256, "h": 14, "k": 256, "r": 3}
CONVS = st.from_type(Conv)


def _conv(change: dict[str, Any]) -> Conv:
    """Return `BASE` with some fields changed."""
    values: dict[str, Any] = {**BASE, **change}
    return Conv(**values)


def test_widths_default_to_heights() -> None:
    conv = Conv(**BASE, pad_h=1, stride_h=2, dilation_h=3)
    assert (conv.w, conv.s, conv.pad_w, conv.stride_w, conv.dilation_w) == (14, 3, 1, 2, 3)
    settings = (conv.dtype, conv.math, conv.layout, conv.direction)
    assert conv.groups == 1 and settings == ("fp32", "fma", "NCHW", "fwd")


def test_costs_of_a_resnet_convolution_equal_the_hand_calculation() -> None:
    # ResNet-50's 3×3 at 14×14: 2·32·256·14·14·256·9 operations; 4 bytes · (input 32·256·196 twice, filter 256·256·9).
    conv = Conv(**BASE, pad_h=1)
    assert (conv.out_h, conv.out_w) == (14, 14)
    assert conv.flops == 7_398_752_256
    assert conv.tensor_bytes == 4 * (2 * 1_605_632 + 589_824)
    assert conv.itemsize == 4
    assert conv.sizes == (32, 256, 14, 14, 256, 3, 3, 0 + 1, 1, 1, 1, 1, 1, 1)


@pytest.mark.parametrize(("change", "words"), ANSWERS["bad_sizes"])
def test_invalid_sizes_are_refused_in_one_line(refused, change: dict[str, Any], words: list[str]) -> None:
    with refused(*words):
        _conv(change)


def test_integers_of_other_types_become_python_ints() -> None:
    conv = Conv(n=np.int8(32), c=np.uint8(200), h=14.0, k=np.int64(200), r=np.int16(3))  # type: ignore[arg-type]
    assert all(type(size) is int for size in conv.sizes)
    # In int8 or uint8 the product below would overflow.
    assert conv.flops == 2 * 32 * 200 * 12 * 12 * 200 * 9


@given(CONVS)
def test_problem_rebuilt_from_its_fields_is_equal(conv: Conv) -> None:
    rebuilt = Conv(**conv.to_dict())
    assert rebuilt == conv and hash(rebuilt) == hash(conv) and len({rebuilt, conv}) == 1
    assert Conv(**dict(sorted(conv.to_dict().items()))) == conv


@given(CONVS, st.integers(1, 512))
def test_with_batch_scales_flops_and_keeps_other_sizes(conv: Conv, batch: int) -> None:
    resized = conv.with_batch(batch)
    assert resized.sizes[1:] == conv.sizes[1:]
    assert resized.flops * conv.n == conv.flops * batch
    assert resized.with_batch(conv.n) == conv


@pytest.mark.parametrize(("dtype", "math", "expected"), ANSWERS["tensor_cores"])
def test_tensor_cores_depend_on_dtype_and_math(dtype: str, math: str, expected: bool) -> None:
    assert Conv(**BASE, dtype=dtype, math=math).uses_tensor_cores is expected
