"""Work from the shapes of tensors: convolutions and other operators.

Where `surrogate.features.operators` has a class for the kind and the shapes fit it, that class; else `Streamed`, which
only knows what is moved: every tensor read or written once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from surrogate.features import operators
from surrogate.features.conv import Conv
from surrogate.features.elementwise import Number, ceil_div
from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu
from surrogate.features.operators.pointwise import ELEMENTS_PER_BLOCK
from surrogate.features.problem import DTYPES
from surrogate.features.roofline import memory_us

Shape = tuple[int, ...]
REDUCE, CAST = "reduce", "cast"
"""Names of `Streamed` work that reduces, or changes the element type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed(operators.Operator):
    """Any operator that memory bounds: ``reads`` elements in, ``writes`` elements out, ``variant`` names it.

    ``work`` is its operations per element written.
    """

    kind: ClassVar[str] = "streamed"
    BATCH: ClassVar[str] = ""
    MAY_BE_ZERO: ClassVar[tuple[str, ...]] = ("reads", "work")

    reads: int
    writes: int
    work: int = 1

    @property
    def flops(self) -> Number:
        """Elements written × operations of each."""
        return self.writes * self.work

    @property
    def dram_bytes(self) -> Number:
        """Bytes of all elements, each moved once."""
        return self.itemsize * (self.reads + self.writes)

    @property
    def blocks(self) -> Number:
        """512 elements a block, of what is larger."""
        return ceil_div(max(self.reads, self.writes), ELEMENTS_PER_BLOCK)

    def roofline_us(self, gpu: Gpu) -> Number:
        """Memory time at the bandwidth that copies reach."""
        return memory_us(self.dram_bytes, gpu.dram_share * gpu.dram_gbs)


def compulsory_bytes(work: Conv | operators.Operator) -> int:
    """Bytes of its tensors, each moved once."""
    return int(work.tensor_bytes if isinstance(work, Conv) else work.dram_bytes)


def streamed(name: str, reads: Sequence[Shape], writes: Sequence[Shape], dtype: str, *, work: int = 1) -> Streamed:
    """`Streamed` from the shapes of its tensors."""
    return Streamed(reads=sum(map(prod, reads)), writes=sum(map(prod, writes)), work=work, dtype=dtype, variant=name)


def cast(elements: int, source: str, target: str) -> Streamed:
    """Values read in one type and written in another; it counts in the narrower."""
    narrow = min(source, target, key=lambda dtype: DTYPES[dtype])
    reads, writes = (elements * DTYPES[dtype] // DTYPES[narrow] for dtype in (source, target))
    return Streamed(reads=reads, writes=writes, dtype=narrow, variant=CAST)


def gradient(work: operators.Operator) -> operators.Operator | None:
    """The operator that computes the gradient of ``work``'s input, of the same sizes; None where the kind has none."""
    known = operators.OPERATORS.get(f"{work.kind.removesuffix('_inference')}_backward")
    return known and known(**work.sizes, dtype=work.dtype)


def gemm(m: int, n: int, k: int, *, batch: int = 1, dtype: str = "fp32", bias: bool = False) -> operators.Operator:
    """C (batch, m, n) = A (batch, m, k) · B (batch, k, n), plus a bias of n values."""
    math = default_math(dtype)
    if batch > 1:
        return operators.Bmm(batch=batch, m=m, n=n, k=k, dtype=dtype, math=math)
    return (operators.Linear if bias else operators.Gemm)(m=m, n=n, k=k, dtype=dtype, math=math)


def default_math(dtype: str) -> str:
    """The math type frameworks use: tensor cores for half precision, plain multiply-adds for the rest."""
    return "tensor_op" if dtype in ("fp16", "bf16") else "fma"


def pointwise(kind: str, reads: Sequence[Shape], result: Shape, dtype: str) -> operators.Operator:
    """One result per element; operands that are broadcast are read at their own size.

    A second operand of one element makes the kind's ``…_scalar``, one value per channel added a ``bias``.
    """
    whole = [shape for shape in reads if prod(shape) == prod(result)]
    small = [shape for shape in reads if prod(shape) != prod(result)]
    if len(small) == 1 and len(whole) == 1:
        if prod(small[0]) == 1 and f"{kind}_scalar" in operators.POINTWISE_CLASSES:
            kind, small = f"{kind}_scalar", []
        elif kind == "add" and len(result) > 1 and prod(small[0]) in (result[1], result[-1]):
            kind, small = "bias", []
    known = operators.POINTWISE_CLASSES.get(kind)
    if known and not small and len(whole) + 1 == known.ACCESSES:
        return elementwise(kind, result, dtype)
    return streamed(kind, reads, [result], dtype, work=known.FLOPS if known else 1)


def image(shape: Shape) -> tuple[int, int, int, int]:
    """n, c, h, w of any tensor: further dimensions go into w, missing ones are 1."""
    filled = (*shape, 1, 1, 1, 1)
    return filled[0], filled[1], filled[2], prod(filled[3:])


def elementwise(kind: str, shape: Shape, dtype: str) -> operators.Pointwise:
    """One of `POINTWISE_CLASSES` over a whole tensor, such as a ``copy`` within device memory."""
    n, c, h, w = image(shape)
    return operators.POINTWISE_CLASSES[kind](n=n, c=c, h=h, w=w, dtype=dtype)


def pool(
    kind: str, size: Shape, result: Shape | None, window: Shape, stride: Shape, pad: Shape, dtype: str
) -> operators.MaxPool:
    """Pooling (``max`` or ``average``) of an (n, c, h, w) or (n, c, w) image.

    Where the result is larger than the windows that fit (ceil mode), the image counts as large as they reach.
    """
    if len(size) == 3:
        size, result = (*size[:2], 1, size[2]), result and (*result[:2], 1, result[2])
        window, stride, pad = (1, *window), (1, *stride), (0, *pad)
    extents = list(size[2:])
    for axis, outputs in enumerate(result[2:] if result is not None else ()):
        if (size[2 + axis] + 2 * pad[axis] - window[axis]) // stride[axis] + 1 != outputs:
            extents[axis] = (outputs - 1) * stride[axis] + window[axis] - 2 * pad[axis]
    return (operators.MaxPool if kind == "max" else operators.AvgPool)(
        n=size[0], c=size[1], h=extents[0], w=extents[1], window=window[0], window_w=window[1],
        stride=stride[0], stride_w=stride[1], pad=pad[0], pad_w=pad[1], dtype=dtype,
    )  # fmt: skip


def batch_norm(shape: Shape, dtype: str, *, training: bool = False) -> operators.Operator:
    """Batch norm of an (n, c, …) tensor: by stored statistics, or by the batch's own."""
    n, c, h, w = image(shape)
    return (operators.BatchNorm if training else operators.BatchNormInference)(n=n, c=c, h=h, w=w, dtype=dtype)


def softmax(shape: Shape, axis: int, dtype: str) -> operators.Operator:
    """Softmax along ``axis``."""
    axis %= len(shape)
    return operators.Softmax(n=prod(shape[:axis]), c=shape[axis], h=prod(shape[axis + 1 :]), dtype=dtype)


def convolution(
    image: Shape, filters: Shape, begin: Shape, end: Shape, stride: Shape, dilation: Shape, *, groups: int, dtype: str
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
        dilation_w=dilation[1], groups=groups, dtype=dtype, math=default_math(dtype),
    )  # fmt: skip
