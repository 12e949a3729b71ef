"""Problems from sizes: operators, convolutions solved from their outputs, other batches, and what is lacking."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from surrogate.features.conv import Conv
from surrogate.features.operators import Addmm, Bmm, EmbeddingBag, Gemm, operator
from surrogate.trace.iteration.sizes import (
    CONVOLUTIONS,
    RULES,
    Call,
    LackingError,
    convolutions,
    rebatched,
    solved,
)


def call(name, *shapes, inputs=(), dtype="fp32"):
    return Call(name, shapes, (), inputs, dtype, "fma")


@pytest.mark.parametrize(
    ("given_call", "wanted"),
    [
        (call("aten::addmm", (1000,), (32, 2048), (2048, 1000)), Addmm(m=32, k=2048, n=1000)),
        (call("aten::mm", (32, 1000), (1000, 2048)), Gemm(m=32, k=1000, n=2048)),
        (call("aten::bmm", (4, 8, 16), (4, 16, 2)), Bmm(batch=4, m=8, k=16, n=2)),
        (call("aten::relu_", (32, 64, 7, 5)), operator("relu", n=32, c=64, h=7, w=5)),
        (call("aten::add", (8, 16), (8, 16), ()), operator("add", n=8, c=16)),
        (call("aten::mul_", (8, 16), ()), operator("mul_scalar", n=8, c=16)),
        (call("aten::add_", (2, 3, 4, 4), (1, 3, 1, 1), ()), operator("bias", n=2, c=3, h=4, w=4)),
        (call("aten::_log_softmax", (32, 1000), ()), operator("softmax", n=32, c=1000)),
        (
            call("aten::native_layer_norm", (8, 128, 64), (), (64,), (64,)),
            operator("layer_norm", n=1024, c=64),
        ),
        (
            call("aten::_embedding_bag", (500, 32), (64,), (16,)),
            EmbeddingBag(batch=16, rows=500, bag=4, dim=32),
        ),
        (
            call(
                "aten::max_pool2d_with_indices", (2, 3, 8, 8), (), inputs=("", "[3, 3]", "[2, 2]", "[1, 1]")
            ),
            operator("max_pool", n=2, c=3, h=8, w=8, window=3, stride=2, pad=1),
        ),
    ],
)
def test_known_operators(given_call, wanted):
    assert RULES[given_call.name](given_call) == wanted


@pytest.mark.parametrize(
    ("given_call", "lacks"),
    [
        (call("aten::max_pool2d_with_indices", (2, 3, 8, 8)), "window, stride and padding"),
        (call("aten::addmm", (1000,), (), (2048, 1000)), "shape of argument 2"),
        (call("aten::add", (), ()), "shapes of its tensors"),
        (call("aten::_embedding_bag", (500, 32), (65,), (16,)), "size of a bag"),
        (call("aten::_softmax", (2, 3, 4)), "the dimension that it reduces"),
    ],
)
def test_lacking(given_call, lacks):
    with pytest.raises(LackingError, match=lacks):
        RULES[given_call.name](given_call)


def test_convolution_by_recorded_values():
    inputs = ("", "", "", "[16]", "[2, 1]", "[1, 0]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]")
    one = call("aten::convolution_backward", (8, 16, 4, 6), (8, 4, 8, 8), (16, 4, 3, 3), (), inputs=inputs)
    found = convolutions(one, CONVOLUTIONS[one.name], None)
    sizes: dict[str, Any] = {
        "n": 8,
        "c": 4,
        "h": 8,
        "w": 8,
        "k": 16,
        "r": 3,
        "pad_h": 1,
        "pad_w": 0,
        "stride_h": 2,
        "stride_w": 1,
    }
    assert found == tuple(Conv(**sizes, direction=way) for way in ("bwd_data", "bwd_filter"))
    first = (*inputs[:-1], "[False, True, False]")
    only = call(one.name, *one.shapes, inputs=first)
    assert [conv.direction for conv in convolutions(only, CONVOLUTIONS[one.name], None)] == ["bwd_filter"]


def test_convolution_solved_from_its_output():
    """ResNet-50's first: 224 → 112 with a 7 × 7 filter is stride 2 and padding 3; its FLOPs tell the output."""
    one = call("aten::cudnn_convolution", (32, 3, 224, 224), (64, 3, 7, 7))
    conv = Conv(n=32, c=3, h=224, k=64, r=7, stride_h=2, pad_h=3)
    flops = 2 * 32 * 64 * 112 * 112 * 3 * 7 * 7
    assert convolutions(one, CONVOLUTIONS[one.name], flops) == (conv,)
    with pytest.raises(LackingError, match="output"):
        convolutions(one, CONVOLUTIONS[one.name], None)


@given(
    st.integers(1, 64), st.integers(1, 64), st.integers(1, 7), st.integers(1, 7), st.integers(1, 4), st.data()
)
def test_what_is_solved_is_right(h, w, r, s, stride, data):
    pad = data.draw(st.integers(0, min(r, s) - 1))
    assume(h + 2 * pad >= r and w + 2 * pad >= s)
    outputs = ((h + 2 * pad - r) // stride + 1) * ((w + 2 * pad - s) // stride + 1)
    try:
        found = solved(h, w, r, s, outputs)
    except LackingError:
        return  # several fit
    if outputs > 1:
        assert found == (stride, pad)
    else:
        assert found[1] == pad


def test_another_batch():
    conv = Conv(n=32, c=3, h=8, k=4, r=3)
    assert rebatched(conv, 32, 64, in_optimizer=False).n == 64  # type: ignore[union-attr]
    assert rebatched(Addmm(m=32, k=8, n=9), 32, 48, in_optimizer=False) == Addmm(m=48, k=8, n=9)
    assert rebatched(Gemm(m=9, k=32, n=8), 32, 48, in_optimizer=False) == Gemm(m=9, k=48, n=8)
    relu = operator("relu", n=32, c=8)
    assert rebatched(relu, 32, 1, in_optimizer=False) == operator("relu", n=1, c=8)
    assert rebatched(relu, 32, 1, in_optimizer=True) is relu
    assert rebatched(operator("relu", n=9), 32, 1, in_optimizer=False) == operator("relu", n=9)


@pytest.mark.parametrize(
    "one", [Gemm(m=32, k=32, n=8), operator("relu", n=64), Conv(n=33, c=3, h=8, k=4, r=3)]
)
def test_ambiguous_batches_are_reported(one):
    with pytest.raises(LackingError, match="batch dimension"):
        rebatched(one, 32, 64, in_optimizer=False)
