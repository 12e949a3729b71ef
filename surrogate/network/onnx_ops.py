"""What each ONNX operator does, from the shapes of its tensors: one short function per kind of operator.

Source of the meanings: the ONNX operator specification (opsets 1 to 23).
"""

from collections.abc import Callable, Iterator
from math import prod

from surrogate.features.conv import Conv
from surrogate.network import work as make
from surrogate.network.network import Layer, Work
from surrogate.network.onnx_names import ELEMENTWISE, LAYER_NORMS, MOVES, REDUCTIONS
from surrogate.network.onnx_node import Node
from surrogate.network.tensor import Shape, UnsupportedError, convolution, default_math

Layers = Iterator[Layer]


def window(node: Node, size: Shape, kernel: Shape) -> tuple[Shape, Shape, Shape, Shape]:
    """(begin, end, stride, dilation) of a convolution or pooling over ``size``; ``auto_pad`` is resolved."""
    rank = len(kernel)
    stride, dilation = node.ints("strides", (1,) * rank), node.ints("dilations", (1,) * rank)
    pads = node.ints("pads", (0,) * (2 * rank))
    if (
        len(stride) != rank
        or len(dilation) != rank
        or len(pads) != 2 * rank
        or len(size) != rank
        or min(stride) < 1
    ):
        raise UnsupportedError("attributes do not fit the filter")
    mode = node.text("auto_pad")
    if mode.startswith("SAME"):
        total = [
            max(0, (-(-s // u) - 1) * u + d * (f - 1) + 1 - s)
            for s, u, d, f in zip(size, stride, dilation, kernel, strict=True)
        ]
        small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        return (small, large, stride, dilation) if mode == "SAME_UPPER" else (large, small, stride, dilation)
    return pads[:rank], pads[rank:], stride, dilation


def conv(node: Node) -> Layers:
    """Conv, 1-D or 2-D; its bias is a kernel of its own, as frameworks launch it."""
    image, filters = node.shape(0), node.shape(1)
    if len(image) not in (3, 4) or len(filters) != len(image):
        raise UnsupportedError(f"{len(image) - 2}-D")
    begin, end, stride, dilation = window(node, image[2:], filters[2:])
    work = convolution(
        image, filters, begin=begin, end=end, stride=stride, dilation=dilation, groups=node.number("group", 1),
        dtype=node.dtype,
    )  # fmt: skip
    yield node.layer(work, weights=(1,))
    yield from _bias(node)


def conv_transpose(node: Node) -> Layers:
    """ConvTranspose: the input's gradient of the convolution that maps its output to its input."""
    image, filters, made = node.shape(0), node.shape(1), node.result(rank=4)
    if len(image) != 4 or len(filters) != 4:
        raise UnsupportedError(f"{len(image) - 2}-D")
    begin, end, stride, dilation = window(node, image[2:], filters[2:])
    groups = node.number("group", 1)
    work = Conv(
        n=made[0], c=made[1], h=made[2], w=made[3], k=filters[0], r=filters[2], s=filters[3],
        pad_h=min(begin[0], end[0]), pad_w=min(begin[1], end[1]), stride_h=stride[0], stride_w=stride[1],
        dilation_h=dilation[0], dilation_w=dilation[1], groups=groups, dtype=node.dtype,
        math=default_math(node.dtype), direction="bwd_data",
    )  # fmt: skip
    yield node.layer(work, weights=(1,))
    yield from _bias(node)


def _bias(node: Node) -> Layers:
    if node.has(2):
        work = make.pointwise("add", [node.result(), node.result()[1:2]], node.result(), node.dtype)
        yield node.layer(work, part="bias", weights=(2,))


def matmul(node: Node) -> Layers:
    """MatMul with NumPy's broadcasting: a second operand without batch makes one tall GEMM."""
    left, right = node.shape(0), node.shape(1)
    left, right = (1, *left) if len(left) == 1 else left, (*right, 1) if len(right) == 1 else right
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
        raise UnsupportedError("operands do not fit")
    if prod(right[:-2]) == 1:
        batch, m = 1, prod(left[:-1])
    else:
        batch, m = max(prod(left[:-2]), prod(right[:-2])), left[-2]
    yield node.layer(make.gemm(m, right[-1], left[-1], batch=batch, dtype=node.dtype), weights=(1,))


def general_gemm(node: Node) -> Layers:
    """Gemm: alpha·A·B + beta·C, one call; C rides along."""
    left, right = node.shape(0), node.shape(1)
    if len(left) != 2 or len(right) != 2:
        raise UnsupportedError("operands do not fit")
    m, k = left[::-1] if node.number("transA", 0) else left
    n = right[0] if node.number("transB", 0) else right[1]
    yield node.layer(make.gemm(m, n, k, dtype=node.dtype, bias=node.has(2)), weights=(1, 2))


def pooling(kind: str) -> Callable[[Node], Layers]:
    """MaxPool, AveragePool and LpPool over 1-D or 2-D images."""

    def made(node: Node) -> Layers:
        size = node.shape(0)
        kernel = node.ints("kernel_shape", size[2:])
        if len(size) not in (3, 4) or len(kernel) != len(size) - 2:
            raise UnsupportedError(f"{len(size) - 2}-D")
        begin, end, stride, _ = window(node, size[2:], kernel)
        pad = tuple(map(min, begin, end))
        yield node.layer(_pool(kind, size, node.result(rank=len(size)), kernel, stride, pad, node.dtype))

    return made


def global_pooling(kind: str) -> Callable[[Node], Layers]:
    """GlobalAveragePool and its kin: the window is the image."""

    def made(node: Node) -> Layers:
        size = node.shape(0)
        if len(size) not in (3, 4):
            raise UnsupportedError(f"{len(size) - 2}-D")
        ones, none = (1,) * (len(size) - 2), (0,) * (len(size) - 2)
        yield node.layer(_pool(kind, size, (*size[:2], *ones), size[2:], ones, none, node.dtype))

    return made


def _pool(
    kind: str, size: Shape, result: Shape, kernel: Shape, stride: Shape, pad: Shape, dtype: str
) -> Work:
    if len(size) == 3:
        size, result = (*size[:2], 1, size[2]), (*result[:2], 1, result[2])
        kernel, stride, pad = (1, *kernel), (1, *stride), (0, *pad)
    return make.pool(kind, size, result, kernel, stride, pad, dtype)


def batch_norm(node: Node) -> Layers:
    """BatchNormalization; more than one output, or ``training_mode``, means the batch's own statistics."""
    training = bool(node.number("training_mode", 0))
    yield node.layer(make.batch_norm(node.shape(0), node.dtype, training=training), weights=(1, 2))


def norm(node: Node) -> Layers:
    """Norms over rows: layer, RMS and Lp norm along the last axes, group and instance norm per image and group."""
    size = node.shape(0)
    if not size:
        raise UnsupportedError("0-D")
    if node.op in ("GroupNormalization", "InstanceNormalization"):
        rows = size[0] * node.number("num_groups", size[1] if len(size) > 1 else 1)
    else:
        rows = prod(size[: node.number("axis", -1) % len(size)])
    yield node.layer(make.layer_norm(rows, prod(size) // max(rows, 1), node.dtype), weights=(1, 2))


def softmax(node: Node) -> Layers:
    """Softmax and LogSoftmax along one axis."""
    size, axis = node.shape(0), node.number("axis", -1)
    if not -len(size) <= axis < len(size):
        raise UnsupportedError(f"axis {axis}")
    yield node.layer(make.softmax(size, axis, node.dtype))


def reduction(node: Node) -> Layers:
    """Sums, means, extremes: everything read, what is left written."""
    size, result = node.shape(0), node.result()
    work = -(-prod(size) // max(prod(result), 1))
    yield node.layer(make.streamed("reduce", [size], [result], node.dtype, work=work))


def lrn(node: Node) -> Layers:
    """Local response normalisation across ``size`` channels: a square, a sum over them, a power, a product."""
    work = node.number("size", 5) + 12
    yield node.layer(make.streamed("lrn", [node.shape(0)], [node.result()], node.dtype, work=work))


def concat(node: Node) -> Layers:
    """Concat."""
    yield node.layer(make.concat(node.result(), node.dtype))


def moved(node: Node) -> Layers:
    """An operator that only moves data: what it writes it has read (Slice and Split leave the rest unread)."""
    elements = sum(prod(node.result(i)) for i in range(len(node.outputs)))
    yield node.layer(make.copy((elements,), node.dtype))


def gather(node: Node) -> Layers:
    """Gather: from a stored table of rows an embedding, else a copy."""
    table, made = node.shape(0), node.result()
    if node.inputs[0].constant and len(table) == 2 and node.number("axis", 0) == 0:
        work = make.embedding(table[0], table[1], prod(node.shape(1)), node.dtype)
        yield node.layer(work, weights=(0,))
    else:
        yield node.layer(make.copy(made, node.dtype))


def dropout(node: Node) -> Layers:
    """Dropout in training: a random mask, and a product with it."""
    yield node.layer(make.pointwise("dropout", [node.shape(0)], node.result(), node.dtype))


def elementwise(node: Node) -> Layers:
    """Every input read once (broadcast ones at their own size), the result written once."""
    reads = [node.shape(i) for i in range(len(node.inputs)) if node.has(i)]
    weights = tuple(i for i, tensor in enumerate(node.inputs) if tensor.parameter)
    if node.op == "Clip":
        reads = reads[:1]
    yield node.layer(make.pointwise(ELEMENTWISE[node.op], reads, node.result(), node.dtype), weights=weights)


HANDLED: dict[str, Callable[[Node], Layers]] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "MatMul": matmul,
    "Gemm": general_gemm,
    "MaxPool": pooling("max"),
    "AveragePool": pooling("average"),
    "LpPool": pooling("average"),
    "GlobalAveragePool": global_pooling("average"),
    "GlobalMaxPool": global_pooling("max"),
    "BatchNormalization": batch_norm,
    **dict.fromkeys(LAYER_NORMS, norm),
    "LRN": lrn,
    "Softmax": softmax,
    "LogSoftmax": softmax,
    **dict.fromkeys(REDUCTIONS, reduction),
    "Concat": concat,
    **dict.fromkeys(MOVES, moved),
    "Gather": gather,
    "Dropout": dropout,
}
"""Operator → its layers; `ELEMENTWISE` are handled besides."""
