"""Max and average pooling, and their gradients."""

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np

from ..elementwise import Number, ceil_div
from ..errors import InputError
from ..operators.operator import Operator
from ..shape import output_size

THREADS = 256
_SAME = cast(int, None)  # "as the height's"
FOLLOWS = {"window_w": "window", "stride_w": "stride", "pad_w": "pad"}
"""Size → the size whose value it has where it is not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxPool(Operator):
    """The largest value of every window of an image n × c × h × w; ``window`` high (and ``window_w`` wide).

    ``window_w``, ``stride_w`` and ``pad_w`` default to the height's. Raises `InputError` where the window exceeds the
    padded image.
    """

    kind: ClassVar[str] = "max_pool"
    MAY_BE_ZERO: ClassVar[tuple[str, ...]] = ("pad", "pad_w")
    INPUTS: ClassVar[int] = 1
    OUTPUTS: ClassVar[int] = 1

    n: int
    c: int
    h: int
    w: int
    window: int
    stride: int = 1
    window_w: int = _SAME
    stride_w: int = _SAME
    pad: int = 0
    pad_w: int = _SAME

    def __post_init__(self) -> None:
        for name, other in FOLLOWS.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(self, other))
        Operator.__post_init__(self)
        for window, size, pad in ((self.window, self.h, self.pad), (self.window_w, self.w, self.pad_w)):
            wrong = np.asarray(window > size + 2 * pad)
            if wrong.any():
                raise InputError(
                    f"{self.kind}: the window {_first(window, wrong)} exceeds the padded image"
                    f" {_first(size + 2 * pad, wrong)}; give a smaller window or more padding"
                )

    @property
    def out_h(self) -> Number:
        """Output height: ⌊(h + 2·pad − window) / stride⌋ + 1."""
        return output_size(self.h, self.window, self.pad, self.stride, 1)

    @property
    def out_w(self) -> Number:
        """Output width."""
        return output_size(self.w, self.window_w, self.pad_w, self.stride_w, 1)

    @property
    def elements(self) -> Number:
        """Elements of the image, SEER's S_in."""
        return self.n * self.c * self.h * self.w

    @property
    def outputs(self) -> Number:
        """Elements of the pooled image, SEER's S_out."""
        return self.n * self.c * self.out_h * self.out_w

    @property
    def flops(self) -> Number:
        """One comparison or addition per window element."""
        return self.outputs * self.window * self.window_w

    @property
    def dram_bytes(self) -> Number:
        """The image and the pooled image, as often as the kind reads or writes each."""
        return self.itemsize * (self.INPUTS * self.elements + self.OUTPUTS * self.outputs)

    @property
    def blocks(self) -> Number:
        """A thread per output, 256 a block."""
        return ceil_div(self.outputs, THREADS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AvgPool(MaxPool):
    """The mean of every window."""

    kind: ClassVar[str] = "avg_pool"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxPoolBackward(MaxPool):
    """The gradient, given to each window's largest value: reads x, y and dy, writes dx."""

    kind: ClassVar[str] = "max_pool_backward"
    INPUTS: ClassVar[int] = 2
    OUTPUTS: ClassVar[int] = 2

    @property
    def blocks(self) -> Number:
        """A thread per image element, 256 a block."""
        return ceil_div(self.elements, THREADS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AvgPoolBackward(MaxPoolBackward):
    """The gradient, spread evenly over each window: reads dy, writes dx."""

    kind: ClassVar[str] = "avg_pool_backward"
    INPUTS: ClassVar[int] = 1
    OUTPUTS: ClassVar[int] = 1


def _first(values: Any, wrong: np.ndarray) -> int:
    """The first value that is wrong; a scalar stands for all."""
    return int(np.broadcast_to(values, wrong.shape)[wrong].flat[0])
