"""ONNX operators by what they cost: element by element, reductions, moves of data, norms, and nothing at all."""

_SAME_NAME = (
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot",
    "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Equal", "Exp", "Floor",
    "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "Less", "LessOrEqual", "Log", "Max",
    "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink",
    "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "Where", "Xor", "Gelu",
)  # fmt: skip
ELEMENTWISE = {name: name.lower() for name in _SAME_NAME} | {
    "Clip": "clipped_relu", "Swish": "silu", "FastGelu": "gelu", "QuickGelu": "gelu", "Erf": "tanh",
    "LeakyRelu": "leaky_relu", "PRelu": "leaky_relu", "ThresholdedRelu": "relu", "Sum": "add",
}  # fmt: skip
"""Operator → kind of work; kinds that nobody measured take their roofline."""

REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare", "ArgMax", "ArgMin", "CumSum",
)  # fmt: skip
MOVES = (
    "Transpose", "Slice", "Split", "Pad", "Expand", "Tile", "Resize", "Upsample", "DepthToSpace", "SpaceToDepth",
    "GatherElements", "GatherND", "ReverseSequence", "Trilu", "OneHot",
)  # fmt: skip
LAYER_NORMS = (
    "LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization", "GroupNormalization",
    "InstanceNormalization", "MeanVarianceNormalization", "LpNormalization",
)  # fmt: skip

IGNORED = frozenset((
    "Identity", "Constant", "ConstantOfShape", "Shape", "Size", "Reshape", "Flatten", "Squeeze", "Unsqueeze",
    "Dropout", "Range", "Optional", "OptionalGetElement", "OptionalHasElement", "EyeLike",
))  # fmt: skip
"""No work on a device: views, constants, sizes, and Dropout, which inference passes through."""
