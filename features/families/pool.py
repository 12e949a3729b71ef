"""The family of pooling: maximum and average, and their gradients."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from ..elementwise import Number, ceil_div
from ..problem import FOLLOWS, PADDING, STEP, Size
from ..terms import output_size
from .operator import MemoryBound, Misfit, register_operator
from .operator_family import memory_family

THREADS = 256


@register_operator("max_pool:n2c3h8w8window2stride2", flops=384, dram_bytes=1920, blocks=1)
class MaxPool(MemoryBound):
    """The maximum of every window of an image n × c × h × w; windows are ``window`` × ``window_w``.

    ``window_w``, ``stride_w`` and ``pad_w`` default to the values of the height. Raises `InputError` if the window
    exceeds the padded image.
    """

    FAMILY: ClassVar[str] = "pool"
    BANDWIDTH_SHARE: ClassVar[str] = "pool"
    MAX_TRAFFIC_RATIO: ClassVar[float] = 1.5
    GRADIENT: ClassVar[tuple[str, ...]] = ("max_pool_backward",)
    INPUTS: ClassVar[int] = 1
    OUTPUTS: ClassVar[int] = 1

    n: Annotated[int, Size("batch", "images")]
    c: Annotated[int, Size("channels")]
    h: Annotated[int, Size("input height", "pixels")]
    w: Annotated[int, Size("input width", "pixels")]
    window: Annotated[int, Size("height of the window", **STEP)]
    stride: Annotated[int, Size("vertical step of the window", **STEP)] = 1
    window_w: Annotated[int, Size("width of the window", follows="window", **STEP)] = FOLLOWS
    stride_w: Annotated[int, Size("horizontal step of the window", follows="stride", **STEP)] = FOLLOWS
    pad: Annotated[int, Size("padding above, and as much below", "pixels", **PADDING)] = 0
    pad_w: Annotated[int, Size("padding left, and as much right", "pixels", follows="pad", **PADDING)] = FOLLOWS

    @classmethod
    def misfits(cls, sizes: Mapping[str, Number]) -> list[Misfit]:
        """Return where the window exceeds the padded image."""
        rule = "it exceeds the padded image; give a smaller window or more padding"
        sides = {"window": ("h", "pad"), "window_w": ("w", "pad_w")}
        return [(name, sizes[name] > sizes[side] + 2 * sizes[pad], rule) for name, (side, pad) in sides.items()]

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
        """Bytes of the image, accessed `INPUTS` times, and of the pooled image, accessed `OUTPUTS` times."""
        return self.itemsize * (self.INPUTS * self.elements + self.OUTPUTS * self.outputs)

    @property
    def blocks(self) -> Number:
        """One thread per output, 256 per block."""
        return ceil_div(self.outputs, THREADS)


@register_operator("avg_pool:n2c3h8w8window3stride1pad1", flops=3456, dram_bytes=3072, blocks=2)
class AvgPool(MaxPool):
    """The mean of every window."""

    GRADIENT: ClassVar[tuple[str, ...]] = ("avg_pool_backward",)


@register_operator("max_pool_backward:n2c3h8w8window2stride2", flops=384, dram_bytes=3840, blocks=2)
class MaxPoolBackward(MaxPool):
    """The gradient, added to the largest value of each window: reads x, y and dy, writes dx."""

    GRADIENT: ClassVar[tuple[str, ...]] = ()
    BANDWIDTH_SHARE: ClassVar[str] = ""
    INPUTS: ClassVar[int] = 2
    OUTPUTS: ClassVar[int] = 2

    @property
    def blocks(self) -> Number:
        """One thread per image element, 256 per block."""
        return ceil_div(self.elements, THREADS)


@register_operator("avg_pool_backward:n2c3h8w8window2stride2", flops=384, dram_bytes=1920, blocks=2)
class AvgPoolBackward(MaxPoolBackward):
    """The gradient, distributed evenly over each window: reads dy, writes dx."""

    INPUTS: ClassVar[int] = 1
    OUTPUTS: ClassVar[int] = 1


POOL = memory_family("pool")
