"""Work from the shapes of tensors: convolutions and other operators.

Where `surrogate.features.families` has a class for the kind and the shapes fit it, that class; else `Streamed`, which
only knows what is moved: every tensor read or written once.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from typing import NamedTuple

from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.families import FAMILY_OF_KIND, NetworkProblem, Operator, family, family_of
from surrogate.features.families.gemm import Bmm, Gemm, Linear
from surrogate.features.families.operator import CAST, Streamed
from surrogate.features.families.pool import AvgPool, MaxPool
from surrogate.features.families.rowwise import POINTWISE_CLASSES, Pointwise, Softmax
from surrogate.features.families.transfer import AllReduce
from surrogate.features.gpu import Gpu
from surrogate.features.problem import DTYPES
from surrogate.features.terms import output_size
from surrogate.network.network import TF32

Shape = tuple[int, ...]


def with_default_math(work: NetworkProblem, gpu: Gpu, tf32: Collection[str] = TF32) -> NetworkProblem:
    """Under the math type that PyTorch runs by default on the GPU, with ``tf32`` (of `tf32_part`) in TF32; what is of
    no family has none and stays."""
    if work.kind not in FAMILY_OF_KIND:
        return work
    part = tf32_part(work, gpu)
    math = ("default" if part in tf32 else "fma") if part else family_of(work).default_math(work.dtype, gpu)
    return work if work.math == math else replace(work, math=math)


def tf32_part(work: NetworkProblem, gpu: Gpu) -> str:
    """``convolutions`` or ``products`` in fp32, which have a setting of TF32 each on a GPU of NVIDIA that has it; else
    ""."""
    if work.dtype != "fp32" or not gpu.tf32_tflops or gpu.vendor != "nvidia":
        return ""
    return "convolutions" if work.HAS_ALGORITHMS else "products" if isinstance(work, Gemm) else ""


def streamed(name: str, reads: Sequence[Shape], writes: Sequence[Shape], dtype: str, *, work: int = 1) -> Streamed:
    """`Streamed` from the shapes of its tensors."""
    return Streamed(reads=sum(map(prod, reads)), writes=sum(map(prod, writes)), work=work, dtype=dtype, variant=name)


def cast(elements: int, source: str, target: str) -> Streamed:
    """Values read in one type and written in another; it counts in the narrower."""
    narrow = min(source, target, key=lambda dtype: DTYPES[dtype])
    reads, writes = (elements * DTYPES[dtype] // DTYPES[narrow] for dtype in (source, target))
    return Streamed(reads=reads, writes=writes, dtype=narrow, variant=CAST)


def gemm(m: int, n: int, k: int, *, batch: int = 1, dtype: str = "fp32", bias: bool = False) -> Operator:
    """C (batch, m, n) = A (batch, m, k) · B (batch, k, n), plus a bias of n values."""
    math = family(Gemm.FAMILY).default_math(dtype)
    if batch > 1:
        return Bmm(batch=batch, m=m, n=n, k=k, dtype=dtype, math=math)
    return (Linear if bias else Gemm)(m=m, n=n, k=k, dtype=dtype, math=math)


def pointwise(kind: str, reads: Sequence[Shape], result: Shape, dtype: str) -> Operator:
    """One result per element; operands that are broadcast are read at their own size.

    A second operand of one element makes the kind's ``…_scalar``, one value per channel added a ``bias``.
    """
    whole = [shape for shape in reads if prod(shape) == prod(result)]
    small = [shape for shape in reads if prod(shape) != prod(result)]
    form = kind
    if len(small) == 1 and len(whole) == 1:
        if prod(small[0]) == 1 and f"{kind}_scalar" in POINTWISE_CLASSES:
            form = f"{kind}_scalar"
        elif kind == "add" and len(result) > 1 and prod(small[0]) in (result[1], result[-1]):
            form = "bias"
    cls = POINTWISE_CLASSES.get(form)
    # A form of its own counts its small operand in; else all operands must be as large as the result.
    if cls and (form != kind or not small) and len(whole) + 1 == cls.ACCESSES:
        return elementwise(form, result, dtype)
    return streamed(form, reads, [result], dtype, work=cls.FLOPS if cls else 1)


def image(shape: Shape) -> tuple[int, int, int, int]:
    """n, c, h, w of any tensor: further dimensions go into w, missing ones are 1."""
    filled = (*shape, 1, 1, 1, 1)
    return filled[0], filled[1], filled[2], prod(filled[3:])


def elementwise(kind: str, shape: Shape, dtype: str) -> Pointwise:
    """One of `POINTWISE_CLASSES` over a whole tensor, such as a ``copy`` within device memory."""
    n, c, h, w = image(shape)
    return POINTWISE_CLASSES[kind](n=n, c=c, h=h, w=w, dtype=dtype)


def all_reduce(elements: int, ranks: int, dtype: str) -> AllReduce:
    """The sum of every value over the GPUs that take part."""
    return AllReduce(elements=elements, ranks=ranks, dtype=dtype)


class Window(NamedTuple):
    """Images and what passes over them, each a number per axis: ``images`` of ``size``, a filter's or a window's taps,
    padding on both sides, steps, and distances of the taps."""

    images: int
    size: Shape
    taps: Shape
    pad: Shape
    stride: Shape
    dilation: Shape

    def plane(self) -> "Window":
        """The same over two axes, which `Conv` and `MaxPool` have: results × taps as they are, images nearly as large.

        A 1-D image has height 1, and so has its window. A 3-D one becomes as many images as the result is deep, their
        window as high as all rows that one result reads, however deep they lie: the product that cuDNN's implicit
        GEMM computes over 3-D images, too. Raises `InputError` for more axes, and for a window beyond the image.
        """
        if len(self.size) == 1:
            ones = ((1, *values) for values in (self.size, self.taps, (self.pad[0],), self.stride, self.dilation))
            size, taps, pad, stride, dilation = ones
            return Window(self.images, size, taps, (0, pad[1]), stride, dilation)
        if len(self.size) == 2:
            return self
        if len(self.size) != 3:
            raise InputError(f"{len(self.size)}-D")
        outputs = [output_size(*axis) for axis in list(zip(*self[1:3], *self[3:], strict=True))[:2]]
        if min(outputs) < 1:
            raise InputError(f"window {self.taps} over an image of {self.size}; it is larger")
        deep, high = outputs
        rows = self.taps[0] * self.taps[1]
        # Rows of an image so that all images together hold as many, at the step that reads them with least padding.
        height = max(1, round(self.size[0] * self.size[1] / deep))
        step = max(1, height // high)
        reach = (high - 1) * step + rows
        pad = max(0, (reach - height) // 2)
        height = min(max(height, reach - 2 * pad), reach - 2 * pad + step - 1)
        return Window(
            self.images * deep,
            (height, self.size[2]),
            (rows, self.taps[2]),
            (pad, self.pad[2]),
            (step, self.stride[2]),
            (1, self.dilation[2]),
        )


def pool(kind: str, size: Shape, result: Shape | None, window: Shape, stride: Shape, pad: Shape, dtype: str) -> MaxPool:
    """Pooling (``max`` or ``average``) of an image (n, c, …) of one to three axes.

    Where the result is larger than the windows that fit (ceil mode), the image counts as large as they reach.
    """
    extents = list(size[2:])
    for axis, outputs in enumerate(result[2:] if result is not None else ()):
        if (extents[axis] + 2 * pad[axis] - window[axis]) // stride[axis] + 1 != outputs:
            extents[axis] = (outputs - 1) * stride[axis] + window[axis] - 2 * pad[axis]
    at = Window(size[0], tuple(extents), window, pad, stride, (1,) * len(window)).plane()
    names = ("h", "w", "window", "window_w", "pad", "pad_w", "stride", "stride_w")
    sizes = dict(zip(names, chain(at.size, at.taps, at.pad, at.stride), strict=True))
    return (MaxPool if kind == "max" else AvgPool)(n=at.images, c=size[1], dtype=dtype, **sizes)


def softmax(shape: Shape, axis: int, dtype: str) -> Operator:
    """Softmax along ``axis``."""
    axis %= len(shape)
    return Softmax(n=prod(shape[:axis]), c=shape[axis], h=prod(shape[axis + 1 :]), dtype=dtype)


class Steps(NamedTuple):
    """How a filter passes over an image, a number per axis: padding before and after it, steps, distances of taps."""

    begin: Shape
    end: Shape
    stride: Shape
    dilation: Shape


def convolution(image: Shape, filters: Shape, steps: Steps, *, groups: int, dtype: str) -> Conv:
    """A forward convolution of an ``image`` (n, c, …) of one to three axes by ``filters`` (k, c / groups, …).

    Libraries pad both sides alike: where the padding differs the image counts as already padded on the longer side.
    Raises `InputError` for sizes that no convolution has.
    """
    begin, end, stride, dilation = steps
    padding = tuple(map(min, begin, end))
    if min(padding) < 0:
        raise InputError(f"padding {begin} and {end}; it cannot be negative")
    grown = tuple(size + abs(a - b) for size, a, b in zip(image[2:], begin, end, strict=True))
    at = Window(image[0], grown, filters[2:], padding, stride, dilation).plane()
    names = ("h", "w", "r", "s", "pad_h", "pad_w", "stride_h", "stride_w", "dilation_h", "dilation_w")
    sizes = dict(zip(names, chain(*at[1:]), strict=True))
    math = family(Conv.kind).default_math(dtype)
    return Conv(n=at.images, c=image[1], k=filters[0], groups=groups, dtype=dtype, math=math, **sizes)
