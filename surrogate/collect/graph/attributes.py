"""Numbers of cuDNN's graph API: descriptor kinds, attribute types, attributes, notes (cudnn_graph.h of 9.x)."""

from enum import IntEnum


class Descriptor(IntEnum):
    """cudnnBackendDescriptorType_t."""

    CONVOLUTION = 1
    ENGINE = 2
    ENGINE_CONFIG = 3
    HEURISTIC = 4
    PLAN = 5
    KNOB_CHOICE = 7
    OPERATION_FORWARD = 10
    OPERATION_BACKWARD_FILTER = 11
    OPERATION_BACKWARD_DATA = 12
    GRAPH = 15
    VARIANT_PACK = 16
    TENSOR = 17
    DEVICE_PROPERTIES = 38  # since 9.8


class Kind(IntEnum):
    """cudnnBackendAttributeType_t."""

    HANDLE = 0
    DATA_TYPE = 1
    BOOLEAN = 2
    INT64 = 3
    FLOAT = 4
    DOUBLE = 5
    POINTER = 6
    CONVOLUTION_MODE = 7
    HEURISTIC_MODE = 8
    KNOB_TYPE = 9
    NUMERICAL_NOTE = 11
    DESCRIPTOR = 15
    BEHAVIOR_NOTE = 19
    CHAR = 24


class Attribute(IntEnum):
    """cudnnBackendAttributeName_t. Those of the three operations are in `surrogate.collect.graph.problem`."""

    CONVOLUTION_COMPUTE_TYPE = 100
    CONVOLUTION_MODE = 101
    CONVOLUTION_DILATIONS = 102
    CONVOLUTION_STRIDES = 103
    CONVOLUTION_POST_PADDINGS = 104
    CONVOLUTION_PRE_PADDINGS = 105
    CONVOLUTION_SPATIAL_DIMS = 106
    HEURISTIC_MODE = 200
    HEURISTIC_GRAPH = 201
    HEURISTIC_RESULTS = 202
    HEURISTIC_DEVICE = 204
    CONFIG_ENGINE = 300
    CONFIG_KNOB_CHOICES = 302
    PLAN_HANDLE = 400
    PLAN_CONFIG = 401
    PLAN_WORKSPACE_BYTES = 402
    PLAN_DEVICE = 407
    KNOB_TYPE = 600
    KNOB_VALUE = 601
    GRAPH_HANDLE = 800
    GRAPH_OPERATIONS = 801
    GRAPH_ENGINE_COUNT = 802
    TENSOR_ALIGNMENT = 900
    TENSOR_DATA_TYPE = 901
    TENSOR_DIMENSIONS = 902
    TENSOR_STRIDES = 903
    TENSOR_UNIQUE_ID = 906
    PACK_UNIQUE_IDS = 1000
    PACK_POINTERS = 1001
    PACK_WORKSPACE = 1003
    ENGINE_GRAPH = 1300
    ENGINE_INDEX = 1301
    ENGINE_NUMERICAL_NOTES = 1303
    ENGINE_BEHAVIOR_NOTES = 1305
    ENGINE_DEVICE = 1307
    DEVICE_JSON = 2702


HEURISTIC_MODES = {"B": 1, "fallback": 2, "A": 3}
"""cudnnBackendHeurMode_t: B ranks with the finer (slower) model, fallback lists without ranking."""

NUMERICAL_NOTES = (
    "tensor_core", "down_convert_inputs", "reduced_precision_reduction", "fft", "nondeterministic", "winograd",
    "winograd_tile_4x4", "winograd_tile_6x6", "winograd_tile_13x13", "strict_nan_prop",
)  # fmt: skip
"""cudnnBackendNumericalNote_t in the order of its numbers."""
BEHAVIOR_NOTES = (
    "runtime_compilation", "filter_int8x32_reorder", "bias_int8x32_reorder", "cuda_graph_native", "cublaslt",
)  # fmt: skip
"""cudnnBackendBehaviorNote_t in the order of its numbers."""


def note_name(names: tuple[str, ...], number: int) -> str:
    """The name of a note, or its number where a newer cuDNN added it."""
    return names[number] if 0 <= number < len(names) else f"note_{number}"
