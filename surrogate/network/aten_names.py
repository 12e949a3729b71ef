"""ATen operators by what they cost; names without overload, and without the underscore of those that work in place."""

_SAME_NAME = (
    "abs", "acos", "addcdiv", "addcmul", "asin", "atan", "atan2", "bernoulli", "bitwise_and", "bitwise_not",
    "bitwise_or", "ceil", "clamp_max", "clamp_min", "cos", "div", "elu", "elu_backward", "eq", "erf", "exp",
    "expm1", "floor", "floor_divide", "ge", "gelu", "gelu_backward", "gt", "hardsigmoid", "hardsigmoid_backward",
    "hardswish", "hardswish_backward", "isnan", "le", "leaky_relu", "leaky_relu_backward", "lerp", "log", "log1p",
    "log2", "log_sigmoid_forward", "logical_and", "logical_not", "logical_or", "lt", "masked_fill", "maximum",
    "minimum", "mish", "mul", "ne", "neg", "pow", "reciprocal", "relu", "remainder", "round", "rsqrt", "sigmoid",
    "sigmoid_backward", "sign", "silu", "silu_backward", "sin", "softplus", "softplus_backward", "sqrt", "square",
    "sub", "tan", "tanh", "tanh_backward", "trunc", "where", "xlogy", "dropout", "native_dropout",
    "native_dropout_backward", "mse_loss", "mse_loss_backward", "selu", "celu", "add", "rsub",
)  # fmt: skip
ELEMENTWISE = {name: name for name in _SAME_NAME} | {
    "relu6": "clipped_relu", "hardtanh": "clipped_relu", "hardtanh_backward": "clipped_relu_backward",
    "clamp": "clipped_relu", "threshold_backward": "relu_backward", "erf": "tanh", "rsub": "sub",
    "native_dropout": "dropout", "native_dropout_backward": "dropout_backward", "true_divide": "div",
}  # fmt: skip
"""Operator → kind of work; kinds that nobody measured take their roofline."""

REDUCTIONS = (
    "sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "prod", "var", "var_mean", "std", "norm",
    "linalg_vector_norm", "logsumexp", "cumsum", "any", "all", "nll_loss_forward", "nll_loss",
    "cross_entropy_loss", "cross_entropy", "binary_cross_entropy_with_logits",
)  # fmt: skip
MOVES = (
    "clone", "copy", "contiguous", "to", "_to_copy", "index", "index_select", "gather", "repeat",
    "constant_pad_nd", "pad", "roll", "flip", "upsample_nearest2d", "upsample_bilinear2d",
    "upsample_nearest2d_backward", "upsample_bilinear2d_backward", "pixel_shuffle", "tril", "triu",
    "select_backward", "slice_backward", "slice_scatter", "select_scatter", "scatter", "scatter_add", "index_put",
    "index_add", "nll_loss_backward", "nll_loss2d_backward", "channel_shuffle", "one_hot", "reflection_pad2d",
)  # fmt: skip
FILLS = (
    "zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "fill", "zero", "new_zeros", "new_ones",
    "new_full", "arange",
)  # fmt: skip

IGNORED = frozenset((
    "view", "_unsafe_view", "view_as", "reshape", "t", "transpose", "permute", "expand", "expand_as", "squeeze",
    "swapaxes", "unsqueeze", "slice", "select", "split", "split_with_sizes", "chunk", "unbind", "alias", "detach",
    "flatten", "narrow", "as_strided", "lift_fresh", "lift_fresh_copy", "unflatten", "numpy_T", "movedim",
    "diagonal", "unfold", "_reshape_alias", "empty", "empty_like", "empty_strided", "new_empty",
    "new_empty_strided", "sym_size", "sym_numel", "sym_stride", "_local_scalar_dense", "_assert_tensor_metadata",
    "_assert_async", "_assert_scalar", "is_same_size", "broadcast_tensors", "view_as_real",
    "view_as_complex", "resolve_conj", "resolve_neg", "feature_dropout", "alpha_dropout", "scalar_tensor", "real",
    "mT", "set", "result_type", "can_cast",
))  # fmt: skip
"""Views, sizes, allocations and checks: no kernel."""
