"""What each ATen operator does, from the shapes of its arguments; for recorded calls and exported programs alike.

Source of the meanings: PyTorch's ``native_functions.yaml`` (arguments go by the names there).
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod

from surrogate.features.conv import Conv
from surrogate.features.operators import (
    AvgPoolBackward,
    BatchNormBackward,
    EmbeddingBagBackward,
    MaxPoolBackward,
    SoftmaxBackward,
)
from surrogate.network import work as make
from surrogate.network.aten_attention import attention, attention_backward
from surrogate.network.aten_call import Call, Layers
from surrogate.network.aten_names import ELEMENTWISE, FILLS, MOVES, REDUCTIONS
from surrogate.network.tensor import Shape, Tensor, UnsupportedError, convolution


def _conv(call: Call) -> Conv:
    """The problem of a (transposed) convolution, whichever operator names it."""
    image, filters = call.tensor("input"), call.shape("weight")
    size = image.shape or ()
    rank = len(size) - 2
    if rank not in (1, 2) or len(filters) != len(size):
        raise UnsupportedError(f"{rank}-D" if len(filters) == len(size) else "without batch")
    stride, dilation = call.pair("stride", 1, rank), call.pair("dilation", 1, rank)
    pad = _padding(call, filters[2:], dilation, rank)
    groups = int(call.arguments.get("groups") or 1)
    settings = {"stride": stride, "dilation": dilation, "groups": groups, "dtype": image.dtype}
    if call.arguments.get("transposed") or call.op.startswith("conv_transpose"):
        made = call.outputs[0].shape if call.op != "convolution_backward" else call.shape("grad_output")
        begin, end = pad
        problem = convolution(made or (), filters, begin=begin, end=end, **settings)
        return replace(problem, direction="bwd_data")
    return convolution(size, filters, begin=pad[0], end=pad[1], **settings)


def _padding(call: Call, kernel: Shape, dilation: Shape, rank: int) -> tuple[Shape, Shape]:
    mode = call.arguments.get("padding")
    if mode == "valid":
        return (0,) * rank, (0,) * rank
    if mode == "same":
        total = [d * (f - 1) for d, f in zip(dilation, kernel, strict=True)]
        return tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    pad = call.pair("padding", 0, rank)
    return pad, pad


def conv(call: Call) -> Layers:
    """Any forward convolution; the bias is a kernel of its own."""
    yield call.layer(_conv(call), data="input", weight="weight")
    if isinstance(call.arguments.get("bias"), Tensor):
        made = call.result()
        work = make.pointwise("add", [made, made[1:2]], made, call.dtype)
        yield replace(call.layer(work, part="bias"), parameters=1)


def conv_backward(call: Call) -> Layers:
    """convolution_backward: as many gradients as its mask asks for."""
    problem = _conv(call)
    mask = list(call.arguments.get("output_mask") or (True, True, False))
    own = {"fwd": "bwd_data", "bwd_data": "fwd"}[problem.direction]
    for wanted, direction in zip(mask, (own, "bwd_filter"), strict=False):
        if wanted:
            yield call.layer(replace(problem, direction=direction), part=direction)
    if len(mask) > 2 and mask[2]:
        yield call.layer(make.bias_backward(call.shape("grad_output"), call.dtype), part="bias")


def product(call: Call) -> Layers:
    """mm, addmm, bmm, baddbmm, matmul and linear."""
    if call.op == "linear":
        left, right = call.shape("input"), call.shape("weight")[::-1]
        weight = "weight"
    else:
        left = call.shape("mat1", "batch1", "self", "input")
        right = call.shape("mat2", "batch2", "other", "vec", "tensor")
        weight = next(name for name in ("mat2", "batch2", "other", "vec", "tensor") if name in call.arguments)
    left, right = (1, *left) if len(left) == 1 else left, (*right, 1) if len(right) == 1 else right
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
        raise UnsupportedError("operands do not fit")
    bias = call.op == "addmm" or isinstance(call.arguments.get("bias"), Tensor)
    batch = max(prod(left[:-2]), prod(right[:-2])) if prod(right[:-2]) > 1 else 1
    m = left[-2] if batch > 1 else prod(left[:-1])
    work = make.gemm(m, right[-1], left[-1], batch=batch, dtype=call.dtype, bias=bias)
    data = next(name for name in ("input", "mat1", "batch1", "self") if name in call.arguments)
    yield call.layer(work, data=data, weight=weight)


def batch_norm(call: Call) -> Layers:
    """Batch norm by stored statistics, or by the batch's own."""
    own = call.op != "_native_batch_norm_legit_no_training" and bool(call.arguments.get("training"))
    yield call.layer(make.batch_norm(call.shape("input"), call.dtype, training=own), data="input")


def batch_norm_backward(call: Call) -> Layers:
    """native_batch_norm_backward."""
    n, c, h, w = make.image(call.shape("input", "grad_out"))
    yield call.layer(BatchNormBackward(n=n, c=c, h=h, w=w, dtype=call.dtype))


def norm(call: Call) -> Layers:
    """Layer, RMS, group and instance norm, and their gradients (x and dy in, dx out)."""
    size = call.shape("input", "grad_out", "self")
    if "normalized_shape" in call.arguments:
        width = prod(call.arguments["normalized_shape"])
        rows = prod(size) // max(width, 1)
    else:
        rows = size[0] * int(call.arguments.get("group") or call.arguments.get("num_groups") or size[1])
        width = prod(size) // max(rows, 1)
    if call.op.endswith("backward"):
        yield call.layer(make.streamed("layer_norm_backward", [size, size], [size], call.dtype, work=11))
    else:
        yield call.layer(make.layer_norm(rows, width, call.dtype), data="input")


def pool(call: Call) -> Layers:
    """max_pool2d and avg_pool2d, plain, with indices, and backward."""
    size = call.shape("self")
    if len(size) != 4:
        raise UnsupportedError("not an (n, c, h, w) image")
    window = call.pair("kernel_size", 1)
    stride = window if call.arguments.get("stride") in (None, [], ()) else call.pair("stride", 1)
    pad = call.pair("padding", 0)
    kind = "max" if call.op.startswith("max") else "average"
    back = call.op.endswith("backward")
    result = call.shape("grad_output") if back else call.result()
    work = make.pool(kind, size, result, window, stride, pad, call.dtype)
    if back:
        work = (MaxPoolBackward if kind == "max" else AvgPoolBackward)(**work.sizes, dtype=work.dtype)
    yield call.layer(work, data="self")


def adaptive_pool(call: Call) -> Layers:
    """Adaptive pooling: windows of ⌈in / out⌉ at strides of ⌊in / out⌋."""
    size = call.shape("self")
    back = call.op.endswith("backward")
    result = call.shape("grad_output") if back else call.result()
    if len(size) != 4 or len(result) != 4:
        raise UnsupportedError("not an (n, c, h, w) image")
    window = tuple(-(-size[axis] // result[axis]) for axis in (2, 3))
    stride = tuple(max(1, size[axis] // result[axis]) for axis in (2, 3))
    work = make.pool("average", size, result, window, stride, (0, 0), call.dtype)
    yield call.layer(AvgPoolBackward(**work.sizes, dtype=work.dtype) if back else work, data="self")


def other_pool(call: Call) -> Layers:
    """Pooling over one or three dimensions (a local response norm sums channels so): every element of a window."""
    size = call.shape("self")
    result = call.shape("grad_output") if call.op.endswith("backward") else call.result()
    kernel = call.arguments.get("kernel_size")
    window = prod(kernel) if isinstance(kernel, list | tuple) else int(kernel or 1)
    if call.op.endswith("backward"):
        size, result = result, size
    yield call.layer(make.streamed(call.op, [size], [result], call.dtype, work=window), data="self")


def softmax(call: Call) -> Layers:
    """softmax, log_softmax, and their gradients."""
    size = call.shape("self", "grad_output")
    work = make.softmax(size, int(call.arguments.get("dim") or 0), call.dtype)
    if "backward" in call.op:
        yield call.layer(SoftmaxBackward(**work.sizes, dtype=work.dtype))
    else:
        yield call.layer(work, data="self")


def embedding(call: Call) -> Layers:
    """embedding and embedding_bag; a bag is the indices over the samples."""
    table, lookups = call.tensor("weight"), prod(call.shape("indices"))
    rows, dim = table.shape or (0, 0)
    bag = max(1, lookups // max(1, prod(call.result()[:-1]))) if "bag" in call.op else 1
    work = make.embedding(rows, dim, lookups, table.dtype, bag=bag)
    yield call.layer(work, weight="weight")


def embedding_backward(call: Call) -> Layers:
    """The gradient of an embedding's table."""
    grad, lookups = call.tensor("grad_output", "grad"), prod(call.shape("indices"))
    rows, dim = int(call.arguments.get("num_weights") or 1), (grad.shape or (1,))[-1]
    bag = max(1, lookups * dim // max(1, prod(grad.shape or ())))
    work = EmbeddingBagBackward(batch=max(1, lookups // bag), rows=rows, bag=bag, dim=dim, dtype=grad.dtype)
    yield call.layer(work)


def reduction(call: Call) -> Layers:
    """Everything read, what is left written."""
    size, result = call.shape("self", "input"), call.result()
    work = -(-prod(size) // max(prod(result), 1))
    yield call.layer(make.streamed("reduce", [size], [result], call.dtype, work=work))


def concat(call: Call) -> Layers:
    """cat and stack."""
    yield call.layer(make.concat(call.result(), call.dtype))


def moved(call: Call) -> Layers:
    """What is written has been read."""
    yield call.layer(make.copy(call.result(), call.dtype))


def fill(call: Call) -> Layers:
    """A tensor of one value."""
    yield call.layer(make.fill(call.result(), call.dtype))


def elementwise(call: Call) -> Layers:
    """Every tensor read once (broadcast ones at their own size), the result written once."""
    reads = [
        call.shape(name)
        for name, value in call.arguments.items()
        if isinstance(value, Tensor) and name != "out"
    ]
    kind = ELEMENTWISE[call.op]
    if len(reads) == 1 and any(name in call.arguments for name in ("other", "exponent")):
        reads.append((1,))  # a number: the kind's scalar form
    yield call.layer(make.pointwise(kind, reads, call.result(), call.dtype))


_NORMS = (
    "layer_norm", "native_layer_norm", "native_layer_norm_backward", "rms_norm", "_fused_rms_norm", "group_norm",
    "native_group_norm", "native_group_norm_backward", "instance_norm",
)  # fmt: skip
_CONVS = (
    "convolution", "_convolution", "convolution_overrideable", "cudnn_convolution", "mkldnn_convolution", "conv1d",
    "conv2d", "conv_transpose1d", "conv_transpose2d",
)  # fmt: skip
_BATCH_NORMS = (
    "batch_norm", "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
    "_native_batch_norm_legit_functional", "cudnn_batch_norm", "_batch_norm_with_update",
)  # fmt: skip
_POOLS = (
    "max_pool2d", "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d", "avg_pool2d_backward",
)  # fmt: skip
_ATTENTIONS = (
    "scaled_dot_product_attention", "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_cudnn_attention",
)  # fmt: skip
_ADAPTIVE = (
    "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "adaptive_max_pool2d",
)  # fmt: skip
_SOFTMAXES = (
    "softmax", "_softmax", "log_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
)  # fmt: skip
_BATCH_NORMS_BACKWARD = ("native_batch_norm_backward", "cudnn_batch_norm_backward", "batch_norm_backward")
_EMBEDDINGS_BACKWARD = (
    "embedding_dense_backward", "_embedding_bag_dense_backward", "_embedding_bag_backward", "embedding_backward",
)  # fmt: skip
_EMBEDDINGS = ("embedding", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
_OTHER_POOLS = ("avg_pool3d", "avg_pool3d_backward", "avg_pool1d", "max_pool1d")
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "mv", "addmv", "dot")
_CONCATS = ("cat", "concat", "concatenate", "stack", "hstack", "vstack")

HANDLED: dict[str, Callable[[Call], Layers]] = {
    **dict.fromkeys(_CONVS, conv),
    "convolution_backward": conv_backward,
    **dict.fromkeys(_PRODUCTS, product),
    **dict.fromkeys(_ATTENTIONS, attention),
    **{f"{name}_backward": attention_backward for name in _ATTENTIONS},
    **dict.fromkeys(_BATCH_NORMS, batch_norm),
    **dict.fromkeys(_BATCH_NORMS_BACKWARD, batch_norm_backward),
    **dict.fromkeys(_NORMS, norm),
    **dict.fromkeys(_POOLS, pool),
    **dict.fromkeys(_ADAPTIVE, adaptive_pool),
    **dict.fromkeys(_OTHER_POOLS, other_pool),
    **dict.fromkeys(_SOFTMAXES, softmax),
    **dict.fromkeys(_EMBEDDINGS, embedding),
    **dict.fromkeys(_EMBEDDINGS_BACKWARD, embedding_backward),
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(_CONCATS, concat),
    **dict.fromkeys(MOVES, moved),
    **dict.fromkeys(FILLS, fill),
    **dict.fromkeys(ELEMENTWISE, elementwise),
}
"""Operator → its layers."""
