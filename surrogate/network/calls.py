"""The one table from a call to its problem: ATen operators and ONNX nodes alike.

`layers` says what one `Call` computes: a `Layer` per kernel that a framework launches, each with its problem (a `Conv`
or an operator of `surrogate.features.operators`); nothing for views, sizes and allocations (`IGNORED`); and
`UnsupportedError` with a reason for what has no rule or lacks a size. Nothing is guessed: an unrecorded stride or
padding is solved from the sizes of image, filter and output (`call_rules.solved`), and refused where several fit.

**How a trace uses it.** For every operator with launches, the innermost one for which `has_rule` holds::

    call = recorded(name, shapes, types, concrete_inputs, output)   # surrogate.network.call
    try:
        work = problems(call)          # () where it is ignored
    except UnsupportedError as reason: # what the trace lacks; keep the measured time
        ...

``output`` is the result's shape where it is known: recorded in an execution trace, the gradient's shape in the backward
pass, or the next operator's input. Only convolutions without recorded stride and padding, reductions and
moves of data need it. The halves ``aten::cudnn_convolution_backward_input`` and ``…_weight`` take shapes, types and
values of the ``aten::cudnn_convolution_backward`` around them, since one of their own tensors is given by its size
alone. ``aten::convolution_backward`` gives a problem per gradient that its mask asks for; the bias's, which comes last
and is no `Conv`, is launched by an ``aten::sum`` of its own in a trace. Problems have the math type that frameworks use
by default (`work.default_math`); where convolutions run in TF32, replace ``math`` of those in fp32. `flops_and_bytes`
also answers for convolutions whose stride is ambiguous, since it depends on shapes alone. Another batch is asked for by
other shapes: a `work.Streamed` has no batch of its own.
"""

from collections.abc import Callable
from functools import partial
from math import prod

from surrogate.features.errors import InputError
from surrogate.features.operators import (
    AllGather,
    AllReduce,
    AllToAll,
    EmbeddingBag,
    EmbeddingBagBackward,
    EmbeddingBagBackwardAdagrad,
    ReduceScatter,
)
from surrogate.features.problem import DTYPES
from surrogate.network import call_rules as rules
from surrogate.network.call import LOOKUP_BACKWARD, Call, UnsupportedError, base_name
from surrogate.network.network import Layer, Tally, Work
from surrogate.network.work import compulsory_bytes

_ELEMENTWISE_SAME_NAME = (
    "abs", "acos", "addcdiv", "addcmul", "asin", "atan", "atan2", "bernoulli", "bitwise_and", "bitwise_not",
    "bitwise_or", "ceil", "clamp_max", "cos", "div", "elu", "elu_backward", "eq", "exp", "expm1", "floor",
    "floor_divide", "ge", "gelu", "gelu_backward", "gt", "hardsigmoid", "hardsigmoid_backward", "hardswish",
    "hardswish_backward", "isnan", "le", "leaky_relu", "leaky_relu_backward", "lerp", "log", "log1p", "log2",
    "log_sigmoid_forward", "logical_and", "logical_not", "logical_or", "lt", "masked_fill", "maximum", "minimum",
    "mish", "mul", "ne", "neg", "pow", "reciprocal", "relu", "remainder", "round", "rsqrt", "sigmoid",
    "sigmoid_backward", "sign", "silu", "silu_backward", "sin", "softplus", "softplus_backward", "sqrt", "square",
    "sub", "tan", "tanh", "tanh_backward", "trunc", "where", "xlogy", "dropout", "mse_loss_backward",
    "binary_cross_entropy_backward", "selu", "celu", "add",
    # ONNX, in lower case
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot",
    "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu", "Cos", "Cosh", "Div", "Dropout", "Elu",
    "Equal", "Exp", "Floor",
    "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "Less", "LessOrEqual", "Log", "Max",
    "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink",
    "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Tan", "Tanh", "Where", "Xor", "Gelu",
)  # fmt: skip
ELEMENTWISE = {name: name.lower() for name in _ELEMENTWISE_SAME_NAME} | {
    "relu6": "clipped_relu", "hardtanh": "clipped_relu", "hardtanh_backward": "clipped_relu_backward",
    "clamp": "clipped_relu", "clamp_min": "relu", "threshold_backward": "relu_backward", "erf": "tanh", "rsub": "sub",
    "native_dropout": "dropout", "native_dropout_backward": "dropout_backward", "true_divide": "div",
    "Clip": "clipped_relu", "Swish": "silu", "FastGelu": "gelu", "QuickGelu": "gelu", "Erf": "tanh",
    "LeakyRelu": "leaky_relu", "PRelu": "leaky_relu", "ThresholdedRelu": "relu", "Sum": "add",
}  # fmt: skip
"""Operator → kind of work; kinds that nobody measured take their roofline."""

_CONVS = (
    "convolution", "_convolution", "convolution_overrideable", "cudnn_convolution", "miopen_convolution",
    "mkldnn_convolution", "conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d", "Conv", "ConvTranspose",
)  # fmt: skip
_PRODUCTS = (
    "mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "mv", "addmv", "dot", "MatMul", "Gemm",
)  # fmt: skip
_ATTENTIONS = (
    "scaled_dot_product_attention", "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_cudnn_attention",
)  # fmt: skip
_BATCH_NORMS = (
    "batch_norm", "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
    "_native_batch_norm_legit_functional", "cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_with_update",
    "BatchNormalization",
)  # fmt: skip
_BATCH_NORMS_BACKWARD = (
    "native_batch_norm_backward", "cudnn_batch_norm_backward", "miopen_batch_norm_backward", "batch_norm_backward",
)  # fmt: skip
_NORMS = (
    "layer_norm", "native_layer_norm", "native_layer_norm_backward", "rms_norm", "_fused_rms_norm", "group_norm",
    "native_group_norm", "native_group_norm_backward", "instance_norm", "LayerNormalization",
    "SimplifiedLayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization",
    "MeanVarianceNormalization", "LpNormalization",
)  # fmt: skip
_POOLS = (
    "max_pool2d", "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d", "avg_pool2d_backward",
    "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "adaptive_max_pool2d", "MaxPool",
    "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool",
)  # fmt: skip
_SOFTMAXES = (
    "softmax", "_softmax", "_safe_softmax", "log_softmax", "_log_softmax", "_softmax_backward_data",
    "_log_softmax_backward_data", "Softmax", "LogSoftmax",
)  # fmt: skip
_EMBEDDINGS = ("embedding", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
_EMBEDDINGS_BACKWARD = (
    "embedding_dense_backward", "_embedding_bag_dense_backward", "_embedding_bag_backward", "embedding_backward",
)  # fmt: skip
_REDUCTIONS = (
    "sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "prod", "var", "var_mean", "std", "norm",
    "linalg_vector_norm", "logsumexp", "cumsum", "any", "all", "nll_loss_forward", "nll_loss", "cross_entropy_loss",
    "cross_entropy", "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss", "ReduceL1", "ReduceL2",
    "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
    "ReduceSumSquare", "ArgMax", "ArgMin", "CumSum",
)  # fmt: skip
_MOVES = (
    "clone", "copy", "contiguous", "to", "_to_copy", "index", "index_select", "gather", "repeat", "constant_pad_nd",
    "pad", "roll", "flip", "upsample_nearest2d", "upsample_bilinear2d", "upsample_nearest2d_backward",
    "upsample_bilinear2d_backward", "upsample_bicubic2d", "upsample_bicubic2d_backward", "_upsample_bicubic2d_aa",
    "_upsample_bilinear2d_aa", "im2col", "col2im", "pixel_shuffle", "tril", "triu", "select_backward", "slice_backward",
    "slice_scatter", "select_scatter", "scatter", "scatter_add", "index_put", "_index_put_impl", "index_add",
    "nll_loss_backward", "nll_loss2d_backward",
    "channel_shuffle", "one_hot", "reflection_pad2d", "Transpose", "Slice", "Split", "Pad",
    "Expand", "Tile", "Resize", "Upsample", "DepthToSpace", "SpaceToDepth", "GatherElements", "GatherND",
    "ReverseSequence", "Trilu", "OneHot",
)  # fmt: skip
_FILLS = (
    "zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "fill", "zero", "new_zeros", "new_ones",
    "new_full", "arange",
)  # fmt: skip
_INDEXING = ("fbgemm.permute_2D_sparse_data", "fbgemm.asynchronous_complete_cumsum", "fbgemm.bounds_check_indices")
_COLLECTIVES = {
    "nccl:all_reduce": AllReduce, "nccl:all_to_all": AllToAll, "nccl:all_gather": AllGather,
    "nccl:_all_gather_base": AllGather, "nccl:reduce_scatter": ReduceScatter,
    "nccl:_reduce_scatter_base": ReduceScatter,
}  # fmt: skip
"""PyTorch's ranges around the launch of a collective, for NCCL and RCCL alike."""

RULES: dict[str, Callable[[Call], rules.Layers]] = {
    **dict.fromkeys(_CONVS, rules.conv),
    "convolution_backward": rules.conv_backward,
    **dict.fromkeys(("cudnn_convolution_backward_input", "cudnn_convolution_backward_weight"), rules.conv_half),
    **dict.fromkeys(_PRODUCTS, rules.product),
    **dict.fromkeys(_ATTENTIONS, rules.attention),
    **{f"{name}_backward": rules.attention_backward for name in _ATTENTIONS},
    **dict.fromkeys(_BATCH_NORMS, rules.batch_norm),
    **dict.fromkeys(_BATCH_NORMS_BACKWARD, rules.batch_norm_backward),
    **dict.fromkeys(_NORMS, rules.norm),
    "LRN": rules.lrn,
    **dict.fromkeys(_POOLS, rules.pool),
    **dict.fromkeys(("avg_pool3d", "avg_pool3d_backward", "avg_pool1d", "max_pool1d"), rules.other_pool),
    **dict.fromkeys(_SOFTMAXES, rules.softmax),
    **dict.fromkeys(_EMBEDDINGS, rules.embedding),
    **dict.fromkeys(_EMBEDDINGS_BACKWARD, rules.embedding_backward),
    **dict.fromkeys(LOOKUP_BACKWARD, partial(rules.lookup, kind=EmbeddingBag)),
    **{
        name: partial(rules.lookup, kind=EmbeddingBagBackwardAdagrad if "adagrad" in name else EmbeddingBagBackward)
        for name in LOOKUP_BACKWARD.values()
    },
    **dict.fromkeys(_INDEXING, rules.indexing),
    **{name: partial(rules.collective, kind=kind) for name, kind in _COLLECTIVES.items()},
    "Gather": rules.gather,
    **dict.fromkeys(_REDUCTIONS, rules.reduction),
    **dict.fromkeys(("cat", "concat", "concatenate", "stack", "hstack", "vstack", "Concat"), rules.concat),
    **dict.fromkeys(_MOVES, rules.moved),
    **dict.fromkeys(_FILLS, rules.fill),
    **{name: partial(rules.elementwise, kind=kind) for name, kind in ELEMENTWISE.items()},
}
"""Operator → what it computes; ATen's names without namespace, overload and the underscore of those in place."""

IGNORED = frozenset((
    "view", "_unsafe_view", "view_as", "reshape", "t", "transpose", "permute", "expand", "expand_as", "squeeze",
    "swapaxes", "unsqueeze", "slice", "select", "split", "unsafe_split",
    "split_with_sizes", "chunk", "unbind", "alias", "detach",
    "flatten", "narrow", "as_strided", "lift_fresh", "lift_fresh_copy", "unflatten", "numpy_T", "movedim",
    "diagonal", "unfold", "_reshape_alias", "empty", "empty_like", "empty_strided", "new_empty",
    "new_empty_strided", "sym_size", "sym_numel", "sym_stride", "_local_scalar_dense", "_assert_tensor_metadata",
    "_assert_async", "_assert_scalar", "is_same_size", "broadcast_tensors", "view_as_real",
    "view_as_complex", "resolve_conj", "resolve_neg", "feature_dropout", "alpha_dropout", "scalar_tensor", "real",
    "mT", "set", "result_type", "can_cast",
    # ONNX
    "Identity", "Constant", "ConstantOfShape", "Shape", "Size", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Range",
    "Optional", "OptionalGetElement", "OptionalHasElement", "EyeLike",
))  # fmt: skip
"""Views, sizes, constants, allocations and checks: no kernel."""
IN_INFERENCE = ("dropout", "native_dropout", "Dropout")
"""What a program may still name, and inference passes through."""


def is_view(call: Call, *, training: bool) -> bool:
    """True where the result is the argument's memory, or takes none: views, and dropout that drops nothing."""
    drops = call.arguments.get("train") is True or (training and call.arguments.get("p") != 0)
    return call.op in IGNORED or (call.op in IN_INFERENCE and not drops)


def layers(call: Call) -> tuple[Layer, ...]:
    """What a call computes, a layer per kernel; empty for what costs nothing.

    Raises `UnsupportedError` where the operator has no rule, or a size is missing or makes no problem.
    """
    if call.op in IGNORED or call.op.startswith(("prim.", "_operator.")):
        return ()
    if call.op not in RULES:
        raise UnsupportedError("a rule for this operator")
    try:
        return tuple(RULES[call.op](call))
    except InputError as error:
        raise UnsupportedError(str(error).split(";")[0]) from None
    except IndexError:
        raise UnsupportedError("sizes that fit the operator") from None


def problems(call: Call) -> tuple[Work, ...]:
    """The problems of `layers` alone. Raises `UnsupportedError` like it."""
    return tuple(layer.work for layer in layers(call))


def has_rule(name: str) -> bool:
    """True for an operator's name in a trace (``aten::add_``) that has a rule here and is not ignored.

    Names without a namespace are ONNX's, but for lookups in embedding tables.
    """
    return (":" in name or name.startswith("LookupFunction")) and base_name(name) in RULES


def flops_and_bytes(call: Call) -> tuple[float, float] | None:
    """FLOPs and compulsory DRAM bytes of a call; None where they cannot be derived.

    Those of a convolution follow from the shapes of image, filter and output, whatever its stride and padding.
    """
    try:
        work = problems(call)
    except UnsupportedError:
        return _of_shapes(call)
    moved = sum(map(compulsory_bytes, work))
    return (float(sum(problem.flops for problem in work)), float(moved)) if work else None


def _of_shapes(call: Call) -> tuple[float, float] | None:
    """The same for a convolution whose stride, or a pooling's gradient whose window, is not known."""
    rule = RULES.get(call.op)
    try:
        if rule is rules.pool and call.op.endswith("backward"):
            gradient, image = prod(call.shape("grad_output")), prod(call.shape("self"))
            return float(gradient), float(DTYPES[call.dtype] * (2 * gradient + image))
        if rule not in (rules.conv, rules.conv_backward, rules.conv_half):
            return None
        image, filters = call.shape("input", "self"), call.shape("weight")
        output = call.shape("grad_output") if "grad_output" in call.arguments else call.result()
    except UnsupportedError:
        return None
    if not 3 <= len(image) == len(filters) == len(output):
        return None
    mask = call.arguments.get("output_mask") if rule is rules.conv_backward else [True, False]
    products = sum(map(bool, mask[:2])) if isinstance(mask, list) else 2
    sizes = prod(image) + prod(filters) + prod(output)
    return 2.0 * products * prod(output) * prod(filters[1:]), float(products * DTYPES[call.dtype] * sizes)


def add_call(call: Call, tally: Tally, *, training: bool) -> None:
    """Add a call's layers to a network's, or count it as ignored or unsupported."""
    if is_view(call, training=training):
        tally.ignored[call.op] += 1
        return
    try:
        parts = layers(call)
    except UnsupportedError as reason:
        tally.unsupported[f"{call.op} ({reason})" if call.op in RULES else call.op] += 1
        return
    tally.add(parts)
    if not parts:
        tally.ignored[call.op] += 1
