"""`Conv`: one convolution problem, validated and hashable."""

from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Annotated, ClassVar

from . import shape
from .errors import InputError, require_known
from .gpu import Gpu
from .in_network import INPUT, Gradients, InNetwork
from .machine import b_max
from .problem import DIRECTIONS, DTYPES, ELEMENTS, LAYOUTS, MATHS, SIZE_COLUMNS, may_use_tensor_cores
from .roofline import peak_tflops, seer_class
from .size import AS_OTHER, PADDING, STEP, Size, declared_sizes, fill_followers
from .terms import MECHANISM_TERMS
from .whole import MAX_INT32, whole

_CHOICES = {"dtype": tuple(DTYPES), "math": MATHS, "layout": LAYOUTS, "direction": DIRECTIONS}
_TAPS = "distance of the filter's taps, 1 where dense"
_SIZES = attrgetter(*SIZE_COLUMNS)
LETTERS: dict[str, str] = dict(zip("nchwkrspquvljg", SIZE_COLUMNS, strict=True))
"""Letter of the text form → field of `Conv`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv(InNetwork):
    """A 2-D convolution (cross-correlation), always named by its *forward* problem.

    Sizes are in elements: input ``n × c × h × w``, filter ``k × c/groups × r × s``. ``w`` defaults to ``h``, ``s`` to
    ``r``, ``pad_w`` to ``pad_h``, ``stride_w`` to ``stride_h``, ``dilation_w`` to ``dilation_h``.

    Raises `InputError` for a size out of range, a group count that does not divide the channels, a filter larger than
    the padded input, or an unknown dtype, math, layout or direction.
    """

    kind: ClassVar[str] = "conv"
    HAS_ALGORITHMS: ClassVar[bool] = True

    n: Annotated[int, Size("batch", "images")]
    c: Annotated[int, Size("input channels")]
    h: Annotated[int, Size("input height", "pixels")]
    w: Annotated[int, Size("input width", "pixels", follows="h")] = AS_OTHER
    k: Annotated[int, Size("output channels")]
    r: Annotated[int, Size("filter height", **STEP)]
    s: Annotated[int, Size("filter width", follows="r", **STEP)] = AS_OTHER
    pad_h: Annotated[int, Size("zeros above, and as many below", "pixels", **PADDING)] = 0
    pad_w: Annotated[int, Size("zeros left, and as many right", "pixels", follows="pad_h", **PADDING)] = AS_OTHER
    stride_h: Annotated[int, Size("vertical step of the filter", **STEP)] = 1
    stride_w: Annotated[int, Size("horizontal step of the filter", follows="stride_h", **STEP)] = AS_OTHER
    dilation_h: Annotated[int, Size(f"vertical {_TAPS}", **STEP)] = 1
    dilation_w: Annotated[int, Size(f"horizontal {_TAPS}", follows="dilation_h", **STEP)] = AS_OTHER
    groups: Annotated[int, Size("groups of channels, each convolved apart", per_doubling=0.5)] = 1
    dtype: str = "fp32"
    math: str = "fma"
    layout: str = "NCHW"
    direction: str = "fwd"

    def __post_init__(self) -> None:
        fill_followers(self)
        for size in declared_sizes(Conv):
            value = whole("conv", size.name, getattr(self, size.name), size.least, MAX_INT32)
            object.__setattr__(self, size.name, value)
        if self.dtype not in DTYPES and str(self.dtype) in ELEMENTS:
            raise InputError(f"dtype {self.dtype!r} is one of products; convolutions have {', '.join(DTYPES)}")
        for name, known in _CHOICES.items():
            require_known(name, getattr(self, name), known)
        if self.c % self.groups or self.k % self.groups:
            raise InputError(
                f"groups {self.groups} does not divide c {self.c} and k {self.k}; both must be multiples of groups"
            )
        for axis, size, filter_size, pad, dilation in (
            ("height", self.h, self.r, self.pad_h, self.dilation_h),
            ("width", self.w, self.s, self.pad_w, self.dilation_w),
        ):
            if not shape.fits(size, filter_size, pad, dilation):
                raise InputError(
                    f"the filter's {axis} {dilation * (filter_size - 1) + 1} (dilation included) exceeds the padded"
                    f" input's {size + 2 * pad}; enlarge the input or the padding, or shrink the filter"
                )

    out_h = property(shape.out_h)
    out_w = property(shape.out_w)
    flops = property(shape.flops)
    tensor_bytes = property(shape.tensor_bytes)

    @property
    def dram_bytes(self) -> int:
        """Compulsory DRAM traffic in bytes, by the name that every problem has for it: `tensor_bytes`."""
        return self.tensor_bytes

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return DTYPES[self.dtype]

    @property
    def is_bwd_data(self) -> bool:
        """True for the input's gradient."""
        return self.direction == "bwd_data"

    @property
    def is_bwd_filter(self) -> bool:
        """True for the filter's gradient."""
        return self.direction == "bwd_filter"

    @property
    def is_nhwc(self) -> bool:
        """True where the channels lie innermost."""
        return self.layout == "NHWC"

    @property
    def uses_tensor_cores(self) -> bool:
        """True where the math type lets matrix units run (fp32 data: only TF32, under ``default``)."""
        return may_use_tensor_cores(self.dtype, self.math)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The 14 sizes in the order of `SIZE_COLUMNS`."""
        return _SIZES(self)

    def with_batch(self, n: int) -> "Conv":
        """The same shape at another batch size."""
        return replace(self, n=n)

    @property
    def samples(self) -> int:
        """The images."""
        return self.n

    @property
    def weights(self) -> int:
        """Elements of the filter."""
        return self.k * (self.c // self.groups) * self.r * self.s

    @property
    def multiply_adds(self) -> int:
        """Half of `flops`."""
        return self.flops // 2

    @property
    def is_gradient(self) -> bool:
        """True for both backward directions."""
        return self.direction != "fwd"

    def at_batch(self, old: int, new: int) -> "Conv | None":
        """As many times ``new`` as the batch is ``old``; None where that is no whole number."""
        return None if self.n % old else self.with_batch(self.n // old * new)

    def gradients(self, of: str) -> Gradients:
        """The convolution's other direction: that of its filter, or of its input, which for a transposed one (whose
        problem is ``bwd_data``) is the forward pass."""
        of_input = "fwd" if self.is_bwd_data else "bwd_data"
        direction = of_input if of == INPUT else "bwd_filter"
        return ((direction, replace(self, direction=direction)),)

    def seer_class(self, gpu: Gpu, mechanism: str = "direct") -> str:
        """SEER's class under an algorithm's ``mechanism``: by the waves of its middle tile, its FLOPs and its bytes."""
        terms = MECHANISM_TERMS[mechanism](self, b_max(gpu, mechanism))
        _, middle, _ = terms.launches
        peak = peak_tflops(gpu, self.dtype, self.uses_tensor_cores)
        return seer_class(middle.waves, terms.arithmetic_flops, terms.dram_bytes, peak, gpu.dram_gbs)

    def to_dict(self) -> dict[str, int | str]:
        """Field name → value."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __str__(self) -> str:
        """The canonical text form, as in ``n32c256h14w14k256r3s3p1u1``: what differs from its default is left out."""
        is_shown = {
            "q": self.pad_w != self.pad_h,
            "v": self.stride_w != self.stride_h,
            "l": self.dilation_h != 1 or self.dilation_w != 1,
            "j": self.dilation_w != self.dilation_h,
            "g": self.groups != 1,
        }
        named = zip(LETTERS, self.sizes, strict=True)
        return "".join(f"{letter}{size}" for letter, size in named if is_shown.get(letter, True))
