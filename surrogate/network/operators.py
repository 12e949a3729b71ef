"""Build problems from the shapes of tensors: convolutions and all other operators.

A problem is of a class in `surrogate.features.families` if there is one for the kind that fits the shapes. Else it is
`Streamed`, which contains only the memory traffic: every tensor is read or written once.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from typing import ClassVar, NamedTuple

from surrogate.features import DTYPES, Conv, Gpu, InputError, Number, compute_us, output_size
from surrogate.features.families import FAMILY_OF_KIND, NetworkProblem, Operator, family, family_of
from surrogate.features.families.gemm import Bmm, Gemm, Linear
from surrogate.features.families.operator import CAST, Streamed
from surrogate.features.families.pool import AvgPool, MaxPool
from surrogate.features.families.rowwise import POINTWISE_CLASSES, Pointwise, Softmax
from surrogate.network.network import TF32
from surrogate.prediction.kernel_times import MIN_KERNEL_US

Shape = tuple[int, ...]


def with_default_math(problem: NetworkProblem, gpu: Gpu, tf32: Collection[str] = TF32) -> NetworkProblem:
    """Return the problem in the math type that PyTorch uses by default on the GPU.

    Operations in ``tf32`` (named as by `tf32_part`) run in TF32. A problem without a family is returned unchanged.
    """
    if problem.kind not in FAMILY_OF_KIND:
        return problem
    part = tf32_part(problem, gpu)
    math = ("default" if part in tf32 else "fma") if part else family_of(problem).default_math(problem.dtype, gpu)
    return problem if problem.math == math else replace(problem, math=math)


def tf32_part(problem: NetworkProblem, gpu: Gpu) -> str:
    """Return the TF32 setting of PyTorch that covers an fp32 problem: "convolutions" or "products".

    Return "" for any other problem, and for a GPU that is not NVIDIA's or has no TF32.
    """
    if problem.dtype != "fp32" or not gpu.tf32_tflops or gpu.vendor != "nvidia":
        return ""
    return "convolutions" if problem.HAS_ALGORITHMS else "products" if isinstance(problem, Gemm) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores(Streamed):
    """Scores of positions: the traffic of keys and scores and, if they take longer, the products on matrix units."""

    MULTIPLIES: ClassVar[bool] = True

    def variant_us(self, gpu: Gpu) -> Number:
        """Return the time of the products and then of the traffic in µs; 0 if the traffic takes longer."""
        products_us = compute_us(self.flops, self.peak_tflops(gpu, self.dtype, self.math))
        traffic_us = self.roofline_us(gpu)
        return products_us + traffic_us + MIN_KERNEL_US if products_us > traffic_us else 0.0


def streamed(name: str, reads: Sequence[Shape], writes: Sequence[Shape], dtype: str, *, work: int = 1) -> Streamed:
    """Return a `Streamed` operator from the shapes of its tensors; ``work`` is its operations per result."""
    return Streamed(reads=sum(map(prod, reads)), writes=sum(map(prod, writes)), work=work, dtype=dtype, variant=name)


def cast(elements: int, source: str, target: str) -> Streamed:
    """Return the cast of values from one type to another, counted in the narrower type."""
    narrow = min(source, target, key=lambda dtype: DTYPES[dtype])
    reads, writes = (elements * DTYPES[dtype] // DTYPES[narrow] for dtype in (source, target))
    return Streamed(reads=reads, writes=writes, dtype=narrow, variant=CAST)


def gemm(m: int, n: int, k: int, *, batch: int = 1, dtype: str = "fp32", bias: bool = False) -> Operator:
    """Return C (batch, m, n) = A (batch, m, k) · B (batch, k, n), plus a bias of n values."""
    math = family(Gemm.FAMILY).default_math(dtype)
    if batch > 1:
        return Bmm(batch=batch, m=m, n=n, k=k, dtype=dtype, math=math)
    return (Linear if bias else Gemm)(m=m, n=n, k=k, dtype=dtype, math=math)


def pointwise(kind: str, reads: Sequence[Shape], result: Shape, dtype: str) -> Operator:
    """Return an operator with one result per element; broadcast operands are read at their own size.

    A second operand of one element gives the kind's ``…_scalar``; an addition of one value per channel gives ``bias``.
    """
    full_size = [shape for shape in reads if prod(shape) == prod(result)]
    small = [shape for shape in reads if prod(shape) != prod(result)]
    form_kind = kind
    if len(small) == 1 and len(full_size) == 1:
        if prod(small[0]) == 1 and f"{kind}_scalar" in POINTWISE_CLASSES:
            form_kind = f"{kind}_scalar"
        elif kind == "add" and len(result) > 1 and prod(small[0]) in (result[1], result[-1]):
            form_kind = "bias"
    cls = POINTWISE_CLASSES.get(form_kind)
    # A special kind already counts its small operand; else all operands must be as large as the result.
    if cls and (form_kind != kind or not small) and len(full_size) + 1 == cls.ACCESSES:
        return elementwise(form_kind, result, dtype)
    return streamed(form_kind, reads, [result], dtype, work=cls.FLOPS if cls else 1)


def nchw_sizes(shape: Shape) -> tuple[int, int, int, int]:
    """Return n, c, h and w of any tensor: further dimensions are multiplied into w, missing ones are 1."""
    sizes = (*shape, 1, 1, 1, 1)
    return sizes[0], sizes[1], sizes[2], prod(sizes[3:])


def elementwise(kind: str, shape: Shape, dtype: str) -> Pointwise:
    """Return one of `POINTWISE_CLASSES` over a whole tensor, such as a ``copy`` within device memory."""
    n, c, h, w = nchw_sizes(shape)
    return POINTWISE_CLASSES[kind](n=n, c=c, h=h, w=w, dtype=dtype)


class Window(NamedTuple):
    """Images and the window that passes over them, with a number per axis.

    ``images`` counts images of ``size``. ``taps`` are the elements of the filter or window, ``pad`` the padding on both
    sides, ``stride`` its steps and ``dilation`` the distances of its taps.
    """

    images: int
    size: Shape
    taps: Shape
    pad: Shape
    stride: Shape
    dilation: Shape

    def plane(self) -> "Window":
        """Return the same window over two axes, as `Conv` and `MaxPool` have them.

        The number of results × taps does not change, and the images are nearly as large. A 1-D image gets height 1, and
        so does its window. A 3-D image becomes one image for each plane of the result. Its window then covers all rows,
        at all depths, that one result reads. cuDNN's implicit GEMM over 3-D images computes the same product. Raises
        `InputError` for more than three axes, and for a window larger than the image.
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
            raise InputError(f"window {self.taps} is larger than the image {self.size}")
        depth_out, height_out = outputs
        rows = self.taps[0] * self.taps[1]
        # Rows of an image so that all images together have as many rows as before, and the step with the least padding.
        height = max(1, round(self.size[0] * self.size[1] / depth_out))
        step = max(1, height // height_out)
        reach = (height_out - 1) * step + rows
        pad = max(0, (reach - height) // 2)
        height = min(max(height, reach - 2 * pad), reach - 2 * pad + step - 1)
        # Each field keeps its last axis; the first two axes become one.
        first = (height, rows, pad, step, 1)
        return Window(self.images * depth_out, *((each, axes[2]) for each, axes in zip(first, self[1:], strict=True)))


def pool(kind: str, size: Shape, result: Shape | None, window: Shape, stride: Shape, pad: Shape, dtype: str) -> MaxPool:
    """Return pooling (``max`` or ``average``) of an image (n, c, …) with one to three axes.

    If the result is larger than the number of windows that fit (ceil mode), the image counts up to the last window's
    end.
    """
    extents = list(size[2:])
    for axis, outputs in enumerate(result[2:] if result is not None else ()):
        if (extents[axis] + 2 * pad[axis] - window[axis]) // stride[axis] + 1 != outputs:
            extents[axis] = (outputs - 1) * stride[axis] + window[axis] - 2 * pad[axis]
    plane = Window(size[0], tuple(extents), window, pad, stride, (1,) * len(window)).plane()
    names = ("h", "w", "window", "window_w", "pad", "pad_w", "stride", "stride_w")
    sizes = dict(zip(names, chain(plane.size, plane.taps, plane.pad, plane.stride), strict=True))
    return (MaxPool if kind == "max" else AvgPool)(n=plane.images, c=size[1], dtype=dtype, **sizes)


def softmax(shape: Shape, axis: int, dtype: str) -> Operator:
    """Return a softmax along ``axis``."""
    axis %= len(shape)
    return Softmax(n=prod(shape[:axis]), c=shape[axis], h=prod(shape[axis + 1 :]), dtype=dtype)


class Steps(NamedTuple):
    """How a filter passes over an image: padding before and after, steps, and distances of taps, each per axis."""

    begin: Shape
    end: Shape
    stride: Shape
    dilation: Shape


def convolution(image: Shape, filters: Shape, steps: Steps, *, groups: int, dtype: str) -> Conv:
    """Return a forward convolution of an ``image`` (n, c, …) with one to three axes by ``filters`` (k, c / groups, …).

    Libraries pad both sides equally. If the paddings differ, the image counts as already padded by the difference.
    Raises `InputError` for sizes that no convolution has.
    """
    begin, end, stride, dilation = steps
    padding = tuple(map(min, begin, end))
    if min(padding) < 0:
        raise InputError(f"padding {begin} and {end}; give values from 0")
    padded = tuple(size + abs(a - b) for size, a, b in zip(image[2:], begin, end, strict=True))
    plane = Window(image[0], padded, filters[2:], padding, stride, dilation).plane()
    names = ("h", "w", "r", "s", "pad_h", "pad_w", "stride_h", "stride_w", "dilation_h", "dilation_w")
    sizes = dict(zip(names, chain(*plane[1:]), strict=True))
    math = family(Conv.kind).default_math(dtype)
    return Conv(n=plane.images, c=image[1], k=filters[0], groups=groups, dtype=dtype, math=math, **sizes)
