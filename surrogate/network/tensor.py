"""A tensor as a reader of models sees it: shape, element type, and whether it is known before the model runs."""

from dataclasses import dataclass

from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.network.network import INPUT, WEIGHT
from surrogate.network.work import default_math

Shape = tuple[int, ...]


class UnsupportedError(Exception):
    """The reader cannot say what a node costs; the node is counted under ``label``."""

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self.label = label


@dataclass(frozen=True, slots=True)
class Tensor:
    """``shape`` None: unknown. ``constant``: stored in the model or computed from what is. ``trained``: a gradient
    flows into it. ``parameter``: a weight that training changes."""

    shape: Shape | None = None
    dtype: str = "fp32"
    constant: bool = False
    trained: bool = False
    parameter: bool = False


def gradients(data: Tensor, weight: Tensor | None = None) -> tuple[str, ...]:
    """What training computes behind an operator on ``data`` and ``weight``."""
    found = (INPUT,) if data.trained else ()
    return (*found, WEIGHT) if weight is not None and (weight.parameter or weight.trained) else found


def convolution(
    image: Shape,
    filters: Shape,
    *,
    begin: Shape,
    end: Shape,
    stride: Shape,
    dilation: Shape,
    groups: int,
    dtype: str,
    math: str | None = None,
) -> Conv:
    """A 1-D or 2-D convolution as a `Conv`; a 1-D one has height 1.

    cuDNN pads both sides alike: where ``begin`` and ``end`` differ the image counts as already padded on the longer
    side. Raises `InputError` for sizes that no convolution has.
    """
    if len(image) == 3:
        image, filters = (*image[:2], 1, image[2]), (*filters[:2], 1, filters[2])
        begin, end, stride, dilation = (0, *begin), (0, *end), (1, *stride), (1, *dilation)
    pads = tuple(min(pair) for pair in zip(begin, end, strict=True))
    grown = tuple(abs(a - b) for a, b in zip(begin, end, strict=True))
    if min(pads) < 0:
        raise InputError(f"padding {begin} and {end}; it cannot be negative")
    return Conv(
        n=image[0], c=image[1], h=image[2] + grown[0], w=image[3] + grown[1], k=filters[0], r=filters[2], s=filters[3],
        pad_h=pads[0], pad_w=pads[1], stride_h=stride[0], stride_w=stride[1], dilation_h=dilation[0],
        dilation_w=dilation[1], groups=groups, dtype=dtype, math=math or default_math(dtype),
    )  # fmt: skip
