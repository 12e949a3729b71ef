"""Work from the shapes of tensors: convolutions and other operators.

Where `surrogate.features.families` has a class for the kind and the shapes fit it, that class; else `Streamed`, which
only knows what is moved: every tensor read or written once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from surrogate.features.errors import InputError
from surrogate.features.families import FAMILY_OF_KIND, Operator, family, family_of
from surrogate.features.families.gemm import Bmm, Gemm, Linear
from surrogate.features.families.operator import CAST, Streamed
from surrogate.features.families.pointwise import POINTWISE_CLASSES, Pointwise
from surrogate.features.families.pool import AvgPool, MaxPool
from surrogate.features.families.rowwise import Softmax
from surrogate.features.families.transfer import AllReduce
from surrogate.features.gpu import Gpu
from surrogate.features.problem import DTYPES
from surrogate.network.network import Work

Shape = tuple[int, ...]


def as_run(work: Work, gpu: Gpu) -> Work:
    """Under the math type that PyTorch runs by default on the GPU; what is of no family has none and stays."""
    if work.kind not in FAMILY_OF_KIND:
        return work
    return replace(work, math=family_of(work).default_math(work.dtype, gpu))


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


def pool(kind: str, size: Shape, result: Shape | None, window: Shape, stride: Shape, pad: Shape, dtype: str) -> MaxPool:
    """Pooling (``max`` or ``average``) of an (n, c, h, w) or (n, c, w) image.

    Where the result is larger than the windows that fit (ceil mode), the image counts as large as they reach.
    """
    extents = list(size[2:])
    for axis, outputs in enumerate(result[2:] if result is not None else ()):
        if (extents[axis] + 2 * pad[axis] - window[axis]) // stride[axis] + 1 != outputs:
            extents[axis] = (outputs - 1) * stride[axis] + window[axis] - 2 * pad[axis]
    if len(extents) == 1:  # a 1-D image has height 1, and so has its window
        extents, window, stride, pad = [1, *extents], (1, *window), (1, *stride), (0, *pad)
    return (MaxPool if kind == "max" else AvgPool)(
        n=size[0], c=size[1], h=extents[0], w=extents[1], window=window[0], window_w=window[1],
        stride=stride[0], stride_w=stride[1], pad=pad[0], pad_w=pad[1], dtype=dtype,
    )  # fmt: skip


def softmax(shape: Shape, axis: int, dtype: str) -> Operator:
    """Softmax along ``axis``."""
    axis %= len(shape)
    return Softmax(n=prod(shape[:axis]), c=shape[axis], h=prod(shape[axis + 1 :]), dtype=dtype)


def convolution(
    declared: Mapping[str, str], image: Shape, filters: Shape, begin: Shape, end: Shape, stride: Shape,
    dilation: Shape, *, groups: int, dtype: str,
) -> Work:  # fmt: skip
    """The problem that ``declared`` (``[convolutions]`` of `calls.toml`) makes of a forward convolution of any rank.

    ``image`` is (n, c, …), ``filters`` (k, c / groups, …), the others a number per axis. Libraries pad both sides
    alike: where ``begin`` and ``end`` differ the image counts as already padded on the longer side. Raises `InputError`
    for sizes that no convolution has, and where one that the problem does not name is more than its default.
    """
    padding = tuple(map(min, begin, end))
    if min(padding) < 0:
        raise InputError(f"padding {begin} and {end}; it cannot be negative")
    grown = (size + abs(a - b) for size, a, b in zip(image[2:], begin, end, strict=True))
    given = {
        "image": (*image[:2], *grown), "filter": filters, "padding": padding, "stride": stride, "dilation": dilation,
        "groups": (groups,),
    }  # fmt: skip
    kind = declared["kind"]
    sizes = dict.fromkeys(declared.get("ones", "").split(), 1)
    for word, values in given.items():
        if word in declared:
            sizes |= zip(declared[word].split(), values, strict=True)
        elif any(value != (0 if word == "padding" else 1) for value in values):
            raise InputError(f"{word} {values} of a {kind}; it has none")
    sizes.pop("-", None)
    math = family(kind).default_math(dtype)
    return family(kind).problem(sizes, {"operator": kind, "dtype": dtype, "math": math})
