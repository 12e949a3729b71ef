"""cuDNN's enumerations (cudnn_graph.h, cudnn_ops.h and cudnn_cnn.h of 8.x and 9.x), by the project's names."""

from collections.abc import Mapping

from surrogate.features.errors import InputError

ALGORITHMS: Mapping[str, Mapping[str, int]] = {
    "fwd": {
        "IMPLICIT_GEMM": 0,
        "IMPLICIT_PRECOMP_GEMM": 1,
        "GEMM": 2,
        "DIRECT": 3,
        "FFT": 4,
        "FFT_TILING": 5,
        "WINOGRAD": 6,
        "WINOGRAD_NONFUSED": 7,
    },
    "bwd_data": {
        "ALGO_0": 0,
        "ALGO_1": 1,
        "FFT": 2,
        "FFT_TILING": 3,
        "WINOGRAD": 4,
        "WINOGRAD_NONFUSED": 5,
    },
    "bwd_filter": {
        "ALGO_0": 0,
        "ALGO_1": 1,
        "FFT": 2,
        "ALGO_3": 3,
        "WINOGRAD": 4,
        "WINOGRAD_NONFUSED": 5,
        "FFT_TILING": 6,
    },
}
"""cudnnConvolution{Fwd,BwdData,BwdFilter}Algo_t. DIRECT and the filter gradient's WINOGRAD were never implemented."""
NON_DETERMINISTIC = {("bwd_data", "ALGO_0"), ("bwd_filter", "ALGO_0"), ("bwd_filter", "ALGO_3")}
"""Algorithms that the header marks non-deterministic (they add by atomics)."""
MATHS = {"default": 0, "tensor_op": 1, "tensor_op_allow_conversion": 2, "fma": 3}
"""cudnnMathType_t."""
DTYPES = {"fp32": 0, "fp64": 1, "fp16": 2, "bf16": 9}
"""cudnnDataType_t."""
COMPUTE_DTYPES = {"fp32": "fp32", "fp64": "fp64", "fp16": "fp32", "bf16": "fp32"}
"""Element type → the type that sums are kept in (the descriptor's computeType)."""
LAYOUTS = {"NCHW": 0, "NHWC": 1}
"""cudnnTensorFormat_t."""
CROSS_CORRELATION = 1
"""cudnnConvolutionMode_t."""


def algorithm_name(direction: str, number: int) -> str:
    """The name of an algorithm's number, or ``ALGO_number`` for one that a newer cuDNN added."""
    for name, known in ALGORITHMS[direction].items():
        if known == number:
            return name
    return f"ALGO_{number}"


def math_name(number: int) -> str:
    """The name of a math type's number, or the number itself."""
    for name, known in MATHS.items():
        if known == number:
            return name
    return str(number)


def data_type(dtype: str) -> int:
    """The number of an element type; `InputError` for one that the legacy convolutions are not collected in."""
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is not collected with cuDNN; known: {', '.join(DTYPES)}")
    return DTYPES[dtype]
