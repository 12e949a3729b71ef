"""Convolutions of a trace as problems; strides and paddings from recorded values, or solved from the sizes."""

from dataclasses import dataclass
from math import prod

from surrogate.features.conv import Conv
from surrogate.trace.iteration.call import Call, LackingError
from surrogate.trace.work import Shape

MAX_STRIDE = 8


@dataclass(frozen=True, slots=True)
class Arguments:
    """Where an operator has its tensors and lists; ``directions`` that it computes; ``around`` has its shapes."""

    directions: tuple[str, ...]
    image: int = 0
    weight: int = 1
    gradient: int | None = None
    padding: int | None = None
    stride: int | None = None
    dilation: int | None = None
    around: str = ""


_WHOLE = "aten::cudnn_convolution_backward"
_GRADIENTS = {"image": 0, "gradient": 1, "weight": 2, "around": _WHOLE}
CONVOLUTIONS: dict[str, Arguments] = {
    **dict.fromkeys(
        ("aten::cudnn_convolution", "aten::miopen_convolution"),
        Arguments(("fwd",), padding=2, stride=3, dilation=4),
    ),
    "aten::cudnn_convolution_backward_input": Arguments(("bwd_data",), **_GRADIENTS),
    "aten::cudnn_convolution_backward_weight": Arguments(("bwd_filter",), **_GRADIENTS),
    "aten::convolution_backward": Arguments(
        ("bwd_data", "bwd_filter"), image=1, weight=2, gradient=0, stride=4, padding=5, dilation=6
    ),
}
"""Innermost operators of a convolution → their arguments, as PyTorch declares them."""


def convolutions(call: Call, at: Arguments, flops: float | None) -> tuple[Conv, ...]:
    """One problem per direction, named by its forward problem. ``flops`` of a forward call tell its output's size.

    Raises `LackingError` where image or filter is missing, or several strides and paddings fit the sizes.
    """
    image, weight = call.tensor(at.image), call.tensor(at.weight)
    if len(image) != 4 or len(weight) != 4:
        raise LackingError("two-dimensional image and filter")
    n, c, h, w = image
    k, per_group, r, s = weight
    if per_group > c or c % per_group:
        raise LackingError("groups of the convolution")
    lists = [_numbers(call, place) for place in (at.stride, at.padding, at.dilation)]
    if all(lists):
        (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w) = (one or (1, 1) for one in lists)
    else:
        outputs = _output_pixels(call, at, weight, n, flops)
        stride_h, pad_h = solved(h, w, r, s, outputs)
        stride_w, pad_w, dilation_h, dilation_w = stride_h, pad_h, 1, 1
    mask = call.inputs[-1].lower().strip("[] ").replace(" ", "").split(",") if call.inputs else []
    wanted = [
        direction
        for place, direction in enumerate(at.directions)
        if len(at.directions) == 1 or place >= len(mask) or mask[place] != "false"
    ]
    return tuple(
        Conv(
            n=n, c=c, h=h, w=w, k=k, r=r, s=s, pad_h=pad_h, pad_w=pad_w, stride_h=stride_h, stride_w=stride_w,
            dilation_h=dilation_h, dilation_w=dilation_w, groups=c // per_group, dtype=call.dtype, math=call.math,
            direction=direction,
        )
        for direction in wanted
    )  # fmt: skip


def solved(h: int, w: int, r: int, s: int, outputs: int) -> tuple[int, int]:
    """(stride, padding), alike both ways and without dilation, that give ``outputs`` pixels; padding < filter.

    Raises `LackingError` unless exactly one pair does (of several strides that leave one row, the least).
    """
    found = {
        pad: stride
        for stride in range(MAX_STRIDE, 0, -1)
        for pad in range(min(r, s))
        if _size(h, r, stride, pad) * _size(w, s, stride, pad) == outputs
    }
    if len(found) != 1:
        raise LackingError("stride and padding of the convolution")
    pad, stride = next(iter(found.items()))
    if outputs > 1 and sum(
        _size(h, r, one, pad) * _size(w, s, one, pad) == outputs for one in range(1, MAX_STRIDE + 1)
    ) != 1:  # fmt: skip
        raise LackingError("stride and padding of the convolution")
    return stride, pad


def _output_pixels(call: Call, at: Arguments, weight: Shape, n: int, flops: float | None) -> int:
    if at.gradient is not None:
        gradient = call.tensor(at.gradient)
        return prod(gradient[2:])
    if flops is None:
        raise LackingError("output of the convolution")
    return round(flops / (2 * n * prod(weight)))


def _size(size: int, filter_size: int, stride: int, pad: int) -> int:
    return max((size + 2 * pad - filter_size) // stride + 1, 0)


def _numbers(call: Call, place: int | None) -> tuple[int, int] | None:
    """A pair of whole numbers among the scalar inputs; one stands for both."""
    text = call.inputs[place] if place is not None and place < len(call.inputs) else ""
    parts = [part.strip() for part in text.strip("[] ").split(",")]
    if not text.startswith("[") or not all(part.isdigit() for part in parts) or len(parts) > 2:
        return None
    return int(parts[0]), int(parts[-1])
