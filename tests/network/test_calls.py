"""From ATen calls to problems: recorded calls, sizes solved for stride and padding, and refused records."""

from contextlib import nullcontext
from dataclasses import replace
from math import isnan, prod
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from surrogate.features.conv import Conv
from surrogate.features.families import operator
from surrogate.features.terms import output_size
from surrogate.network.aten_call import UNKNOWN, Call, Tensor, UnsupportedError
from surrogate.network.dispatch import estimated_work, flops_and_bytes, has_rule, layers, problems
from surrogate.network.dispatch_convolutions import solve_stride_and_padding
from surrogate.network.operators import Window
from surrogate.trace.calls import recorded_call
from tests.known import cases, known_answers

ANSWERS = known_answers(__file__)
BACKWARD_VALUES = ("", "", "", "[16]", "[2, 1]", "[1, 0]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]")


def as_recorded(sizes: list[Any]) -> tuple[Any, ...]:
    """Return lists of sizes as nested tuples, as the reader of traces has them."""
    return tuple(as_recorded(size) if isinstance(size, list) else size for size in sizes)


def call_of(row: dict[str, Any]) -> Call:
    """Return the recorded call of a row of `test_calls.toml`."""
    details = {name: as_recorded(row[name]) for name in ("types", "values", "output") if name in row}
    return recorded_call(row["call"], as_recorded(row["sizes"]), **details)


@pytest.mark.parametrize("row", ANSWERS["problems"], ids=itemgetter("call"))
def test_recorded_calls_become_problems(row: dict[str, Any]) -> None:
    assert problems(call_of(row)) == (operator(**row["problem"]),)


def test_element_types_are_those_of_the_floating_tensors() -> None:
    """Indices, masks and scalar tensors do not determine the type."""
    half = recorded_call("aten::mm", [(4, 5), (5, 6)], ["c10::Half", "c10::Half"])
    assert (problems(half)[0].dtype, problems(half)[0].math) == ("fp16", "tensor_op")
    for types in (["bool", "float", "float"], ["float", "double", "long int"]):
        assert recorded_call("aten::where", [(4,), () if types[1] == "double" else (4,), (4,)], types).dtype == "fp32"
    with pytest.raises(UnsupportedError, match="complex"):
        recorded_call("aten::mm", [(4, 5), (5, 6)], ["c10::complex<float>"] * 2)


@pytest.mark.parametrize("row", ANSWERS["lacking"], ids=itemgetter("lacks"))
def test_missing_parts_of_a_record_are_named(row: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=row["lacks"]):
        layers(call_of(row))


def test_views_cost_nothing() -> None:
    """A view has no dispatch rule."""
    assert problems(recorded_call("aten::view", [(4, 5)])) == ()
    assert has_rule("aten::add_") and not has_rule("aten::view") and not has_rule("add")


def _image_and_filter(conv: Conv) -> list[tuple[int, ...]]:
    return [(conv.n, conv.c, conv.h, conv.w), (conv.k, conv.c // conv.groups, conv.r, conv.s)]


@given(st.from_type(Conv))
def test_convolutions_are_read_from_recorded_values(conv: Conv) -> None:
    """Each operator has its own argument order; FLOPs and bytes are those of the features."""
    conv = Conv(**{**conv.to_dict(), "direction": "fwd", "dtype": "fp32", "math": "fma", "layout": "NCHW"})
    image, weight = _image_and_filter(conv)
    pad, stride, dilation = (
        f"[{getattr(conv, f'{name}_h')}, {getattr(conv, f'{name}_w')}]" for name in ("pad", "stride", "dilation")
    )
    groups = str(conv.groups)
    for name, values in {
        "aten::conv2d": ("", "", "", stride, pad, dilation, groups),
        "aten::convolution": ("", "", "", stride, pad, dilation, "False", "[0, 0]", groups),
        "aten::cudnn_convolution": ("", "", pad, stride, dilation, groups),
        "aten::miopen_convolution": ("", "", "", pad, stride, dilation, groups),
    }.items():
        assert problems(recorded_call(name, [image, weight], values=values)) == (conv,)
    output = (conv.n, conv.k, conv.out_h, conv.out_w)
    call = recorded_call(
        "aten::convolution_backward", [output, image, weight], values=("", "", "", "", stride, pad, dilation)
    )
    assert [problem.direction for problem in problems(call)] == ["bwd_data", "bwd_filter"]  # type: ignore[union-attr]
    unsolved = recorded_call("aten::convolution", [image, weight], output=output)
    assert flops_and_bytes(unsolved) is not None
    if conv.dilation_h == conv.dilation_w == 1:
        assert flops_and_bytes(unsolved) == (conv.flops, conv.tensor_bytes)
        gradients = recorded_call("aten::convolution_backward", [output, image, weight])
        assert flops_and_bytes(gradients) == (2 * conv.flops, 2 * conv.tensor_bytes)


def test_the_output_mask_selects_the_gradients() -> None:
    """The gradient of the bias is not a convolution."""
    shapes = [(8, 16, 4, 6), (8, 4, 8, 8), (16, 4, 3, 3)]
    sizes: dict[str, Any] = {"n": 8, "c": 4, "h": 8, "k": 16, "r": 3, "pad_h": 1, "pad_w": 0}
    sizes |= {"stride_h": 2, "stride_w": 1}
    both = problems(recorded_call("aten::convolution_backward", shapes, values=BACKWARD_VALUES))
    assert both == tuple(Conv(**sizes, direction=way) for way in ("bwd_data", "bwd_filter"))
    values = (*BACKWARD_VALUES[:-1], "[False, True, True]")
    parts = layers(recorded_call("aten::convolution_backward", shapes, values=values))
    assert [part.operator for part in parts] == ["convolution_backward.bwd_filter", "convolution_backward.bias"]
    for half, way in (("input", "bwd_data"), ("weight", "bwd_filter")):
        name, values = f"aten::cudnn_convolution_backward_{half}", ("", "", "", "[1, 0]", "[2, 1]", "[1, 1]")
        call = recorded_call(name, [shapes[1], shapes[0], shapes[2]], values=values)
        assert problems(call) == (Conv(**sizes, direction=way),)


@pytest.mark.parametrize(("size", "filters", "output", "answer"), ANSWERS["solved"])
def test_stride_and_padding_are_solved_if_unique(size: int, filters: int, output: int, answer: list[int]) -> None:
    """The sizes are refused if several pairs fit, or if no pair fits."""
    with nullcontext() if answer else pytest.raises(UnsupportedError, match="stride and padding"):
        assert solve_stride_and_padding(size, filters, output) == tuple(answer)


def test_a_known_stride_or_padding_determines_the_other() -> None:
    """With a filter of 3, 9 → 4 fits stride 2 without padding and stride 3 with padding 2."""
    assert solve_stride_and_padding(9, 3, 4, stride=2) == (2, 0)
    assert solve_stride_and_padding(9, 3, 4, pad=2) == (3, 2)
    recorded: dict[str, Any] = {"values": ("", "", "", "[2, 2]", "[1, 1]"), "output": (8, 4, 4, 4)}
    call = recorded_call("aten::cudnn_convolution", [(8, 3, 9, 9), (4, 3, 3, 3)], **recorded)
    assert problems(call) == (Conv(n=8, c=3, h=9, k=4, r=3, stride_h=2),)
    long = recorded_call("aten::cudnn_convolution", [(8, 128, 17, 17), (192, 128, 1, 7)], output=(8, 192, 17, 17))
    assert problems(long) == (Conv(n=8, c=128, h=17, k=192, r=1, s=7, pad_h=0, pad_w=3),)


@given(st.integers(1, 64), st.integers(1, 7), st.integers(1, 9), st.data())
def test_solved_stride_and_padding_are_the_original_ones(
    size: int, filters: int, stride: int, data: st.DataObject
) -> None:
    """The padding is unique; the stride is unique if there is more than one output."""
    pad = data.draw(st.integers(0, filters - 1))
    assume(size + 2 * pad >= filters)
    output = (size + 2 * pad - filters) // stride + 1
    assert solve_stride_and_padding(size, filters, output, stride=stride, pad=pad) == (stride, pad)
    try:
        answer = solve_stride_and_padding(size, filters, output)
    except UnsupportedError:
        return
    assert answer == (stride, pad) if output > 1 else answer[1] == pad


@pytest.mark.parametrize("row", ANSWERS["costs"], ids=itemgetter("call"))
def test_flops_and_bytes_match_counts_by_hand(row: dict[str, Any]) -> None:
    expected = (row["flops"], 4 * row["elements"]) if "flops" in row else None
    assert flops_and_bytes(call_of(row)) == expected


def test_a_3d_convolution_keeps_its_flops_and_bytes() -> None:
    """The same holds for transposed and backward convolutions, and if the trace did not record the stride."""
    arguments = {"input": Tensor((2, 3, 8, 16, 16)), "weight": Tensor((4, 3, 3, 3, 3))}
    window = {"stride": [1, 2, 2], "padding": [1, 1, 1]}
    flops = 2 * 2 * 4 * 8 * 8 * 8 * 3 * 27
    elements = 2 * 3 * 8 * 256 + 4 * 3 * 27 + 2 * 4 * 8 * 64
    (layer,) = layers(Call("convolution", arguments | window, (Tensor((2, 4, 8, 8, 8)),)))
    assert (layer.operator, layer.problem.flops) == ("convolution.3d", flops)
    assert layer.problem.dram_bytes == pytest.approx(4 * elements, rel=0.05)
    unrecorded = Call("convolution", arguments | {"stride": UNKNOWN, "padding": [1] * 3}, (Tensor((2, 4, 8, 8, 8)),))
    assert problems(unrecorded) == (layer.problem,)
    gradient = {"grad_output": Tensor((2, 4, 8, 8, 8)), "output_mask": [True] * 3}
    backward = layers(Call("convolution_backward", arguments | window | gradient))
    assert [part.operator.partition(".")[2] for part in backward] == ["bwd_data.3d", "bwd_filter.3d", "bias"]
    assert backward[0].problem.flops == backward[1].problem.flops == flops
    back = {"input": Tensor((2, 4, 8, 8, 8)), "transposed": True, "output_padding": [0, 1, 1]}
    transposed = Call("convolution", arguments | window | back, (Tensor((2, 3, 8, 16, 16)),))
    assert problems(transposed) == (backward[0].problem,)


AXIS = st.tuples(st.integers(1, 20), st.integers(1, 5), st.integers(0, 2), st.integers(1, 3), st.integers(1, 2))


@given(st.tuples(AXIS, AXIS, AXIS), st.integers(1, 3))
def test_folding_three_axes_keeps_outputs_and_taps(axes: Any, images: int) -> None:
    """An axis has a size, taps, padding, stride and dilation."""
    assume(all(size + 2 * pad > distance * (taps - 1) for size, taps, pad, _, distance in axes))
    window = Window(images, *zip(*axes, strict=True))
    plane = window.plane()
    ends = [[output_size(*axis) for axis in zip(*shape[1:], strict=True)] for shape in (window, plane)]
    assert plane.images * prod(ends[1]) == images * prod(ends[0])
    assert prod(plane.taps) == prod(window.taps)


@pytest.mark.parametrize(("op", "more"), [("max_pool3d_with_indices", {}), ("avg_pool3d", {"count_include_pad": True})])
def test_3d_pooling_keeps_its_flops_and_bytes(op: str, more: dict[str, Any]) -> None:
    """There are (32 − 3) / 2 + 1 = 15 windows along every axis, each of 27 elements."""
    (problem,) = problems(Call(op, {"self": Tensor((2, 4, 32, 32, 32)), "kernel_size": [3], "stride": [2], **more}))
    assert problem.flops == 2 * 4 * 15**3 * 27
    assert problem.dram_bytes == pytest.approx(4 * 2 * 4 * (32**3 + 15**3), rel=0.05)


def test_images_without_a_batch_are_read_and_4d_images_are_refused() -> None:
    (problem,) = problems(Call("max_pool2d", {"self": Tensor((3, 8, 8)), "kernel_size": [2], "stride": []}))
    assert problem == operator("max_pool", n=1, c=3, h=8, w=8, window=2, stride=2)
    with pytest.raises(UnsupportedError, match="4-D"):
        problems(Call("convolution", {"input": Tensor((1, 2, 4, 4, 4, 4)), "weight": Tensor((2, 2, 1, 1, 1, 1))}))


@cases(__file__)
def test_the_work_of_unsupported_operators_is_estimated(
    op: str, sizes: list[tuple[int, ...]], result: tuple[int, ...], flops: float
) -> None:
    tensors = [*map(Tensor, sizes), Tensor(result)]
    call = Call(op, dict(zip("abcd", tensors[:-1], strict=False)), tuple(tensors[-1:]))
    assert estimated_work(call) == (flops, 4 * sum(prod(tensor.shape or ()) for tensor in tensors))
    assert estimated_work(replace(call, outputs=(*call.outputs, Tensor(())))).flops == flops  # such as a status
    assert all(map(isnan, estimated_work(replace(call, outputs=(Tensor(None),)))))
