"""`Conv`: one convolution problem, validated and hashable."""

from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, ClassVar, cast

from . import shape
from .errors import InputError, require_known
from .operators.operator import whole
from .problem import DIRECTIONS, DTYPES, ELEMENTS, LAYOUTS, MATHS, SIZE_COLUMNS, may_use_tensor_cores

MAX_SIZE = 2**31 - 1  # cuDNN's descriptors hold int32
FOLLOWS = {"w": "h", "s": "r", "pad_w": "pad_h", "stride_w": "stride_h", "dilation_w": "dilation_h"}
"""Size → the size whose value it has where it is not given."""
_CHOICES = {"dtype": tuple(DTYPES), "math": MATHS, "layout": LAYOUTS, "direction": DIRECTIONS}
_SAME = cast(int, None)  # "as the height's"
_SIZES = attrgetter(*SIZE_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv:
    """A 2-D convolution (cross-correlation), always named by its *forward* problem.

    Sizes are in elements: input ``n × c × h × w``, filter ``k × c/groups × r × s``. ``w`` defaults to ``h``, ``s`` to
    ``r``, ``pad_w`` to ``pad_h``, ``stride_w`` to ``stride_h``, ``dilation_w`` to ``dilation_h``.

    Raises `InputError` for a size out of range, a group count that does not divide the channels, a filter larger than
    the padded input, or an unknown dtype, math, layout or direction.
    """

    kind: ClassVar[str] = "conv"

    n: int
    c: int
    h: int
    w: int = _SAME
    k: int
    r: int
    s: int = _SAME
    pad_h: int = 0
    pad_w: int = _SAME
    stride_h: int = 1
    stride_w: int = _SAME
    dilation_h: int = 1
    dilation_w: int = _SAME
    groups: int = 1
    dtype: str = "fp32"
    math: str = "fma"
    layout: str = "NCHW"
    direction: str = "fwd"

    def __post_init__(self) -> None:
        for name, default in FOLLOWS.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(self, default))
        for name in SIZE_COLUMNS:
            least = 0 if name.startswith("pad") else 1
            object.__setattr__(self, name, whole("conv", name, getattr(self, name), least, MAX_SIZE))
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

    @property
    def out_h(self) -> int:
        """Output height P, in elements."""
        return shape.out_h(self)

    @property
    def out_w(self) -> int:
        """Output width Q, in elements."""
        return shape.out_w(self)

    @property
    def flops(self) -> int:
        """Operations of the direct algorithm, 2 per multiply-add."""
        return shape.flops(self)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of input, filter and output together."""
        return shape.tensor_bytes(self)

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

    def to_dict(self) -> dict[str, Any]:
        """Field name → value."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __str__(self) -> str:
        """The canonical text form, as in ``n32c256h14w14k256r3s3p1u1``: what differs from its default is left out."""
        parts = [f"n{self.n}c{self.c}h{self.h}w{self.w}k{self.k}r{self.r}s{self.s}p{self.pad_h}"]
        if self.pad_w != self.pad_h:
            parts.append(f"q{self.pad_w}")
        parts.append(f"u{self.stride_h}")
        if self.stride_w != self.stride_h:
            parts.append(f"v{self.stride_w}")
        if self.dilation_h != 1 or self.dilation_w != 1:
            parts.append(f"l{self.dilation_h}")
        if self.dilation_w != self.dilation_h:
            parts.append(f"j{self.dilation_w}")
        if self.groups != 1:
            parts.append(f"g{self.groups}")
        return "".join(parts)
