"""cuDNN's graph API through NVIDIA's frontend: the engine configurations that its heuristic lists for a convolution.

Since cuDNN 8 an engine and the values of its knobs (``eng62_k2=9_k13=1``) take the place of an algorithm. The list is
the one that PyTorch asks for (aten/src/ATen/native/cudnn/Conv_v8.cpp): the heuristic's mode A, followed by its
fallbacks. It is not the ranking of ``cudnnGetConvolution…Algorithm_v7``, so it has no FFT and no non-fused Winograd
engines. The list of an fp32 problem under ``fma`` math has no configurations on tensor cores (TF32).
"""

import time
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple

from surrogate.collect.cudnn.library import ENVIRONMENT, HEURISTIC_REMEDY, Library, data_type
from surrogate.collect.device import one_line
from surrogate.collect.plan import tensor_shapes
from surrogate.features import Conv, InputError

MODES = ("A", "FALLBACK")
DTYPES = {"fp32": "FLOAT", "fp64": "DOUBLE", "fp16": "HALF", "bf16": "BFLOAT16"}
"""Element type → its name in `cudnn.data_type`."""
OPERATIONS = {
    "fwd": ("conv_fprop", {"image": "x", "weight": "w"}, "y"),
    "bwd_data": ("conv_dgrad", {"loss": "y", "filter": "w"}, "x"),
    "bwd_filter": ("conv_wgrad", {"image": "x", "loss": "y"}, "w"),
}
"""Direction → the frontend's method, its arguments with the tensors' roles, and the role of its result."""


def load_frontend(library: Library) -> Any:
    """Return the frontend's module.

    Raises `InputError` with the remedy if it is not installed or loads no libcudnn, or another one than ``library``.
    """
    try:
        cudnn: Any = import_module("cudnn")
    except (ImportError, OSError, RuntimeError, AssertionError) as error:
        raise InputError(f"the heuristic needs cuDNN's frontend: {one_line(error)}; {HEURISTIC_REMEDY}") from None
    if (loaded := cudnn.backend_version()) != library.version_number:
        other = f"cuDNN's frontend loaded cuDNN {loaded}, this process {library.version_number} ({library.path})"
        raise InputError(f"{other}; keep one of them, or name the frontend's by {ENVIRONMENT}")
    return cudnn


def refusals(cudnn: Any) -> tuple[type[Exception], ...]:
    """Return the exceptions by which the frontend refuses a problem or a configuration."""
    return RuntimeError, cudnn.cudnnGraphNotSupportedError


class Built(NamedTuple):
    """A configuration that is built: its position in the graph, its workspace, and how long the build took."""

    position: int
    workspace_bytes: int
    build_ms: float


class ListedConfigurations:
    """The configurations that the heuristic lists for one convolution, and that cuDNN can build, best first.

    ``built`` maps their names to what the build found. ``tensors`` maps the roles ``x``, ``w`` and ``y`` to the tensors
    of ``graph``.
    """

    def __init__(self, cudnn: Any, conv: Conv, **target: object) -> None:
        """List the configurations of ``conv`` for a ``target``: ``handle``, or ``device_property``.

        Raises one of `refusals` if cuDNN refuses the problem, and `InputError` for an unsupported element type.
        """
        self._cudnn, self._conv, self._target = cudnn, conv, target
        self.graph, self.tensors = self._listed()
        self.built: dict[str, Built] = {}
        for index in range(self.graph.get_execution_plan_count()):
            began_s = time.perf_counter()
            with suppress(*refusals(cudnn)):  # also those with a deselected note
                self.graph.build_plan_at_index(index)
                build_ms = 1e3 * (time.perf_counter() - began_s)
                workspace_bytes = int(self.graph.get_workspace_size_plan_at_index(index))
                self.built.setdefault(self.graph.get_plan_name_at_index(index), Built(index, workspace_bytes, build_ms))

    def is_deterministic(self, name: str) -> bool:
        """Return True if a configuration gives equal results at every call.

        The frontend does not list the notes of a configuration, but it refuses those that have a deselected note.
        """
        try:
            self._deterministic.build_plan_at_index(self.built[name].position)
        except refusals(self._cudnn):
            return False
        return True

    @cached_property
    def _deterministic(self) -> Any:
        graph, _ = self._listed()
        graph.deselect_numeric_notes([self._cudnn.numerical_note.NONDETERMINISTIC])
        return graph

    def _listed(self) -> tuple[Any, dict[str, Any]]:
        """Return the graph of the problem with its configurations listed, and its tensors by role."""
        cudnn, conv = self._cudnn, self._conv
        data_type(conv.dtype)  # refuses an unsupported element type
        dtype = getattr(cudnn.data_type, DTYPES[conv.dtype])
        compute = cudnn.data_type.DOUBLE if conv.dtype == "fp64" else cudnn.data_type.FLOAT
        types = {"io_data_type": dtype, "intermediate_data_type": compute, "compute_data_type": compute}
        graph = cudnn.pygraph(**types, **self._target)
        shapes = {role: (list(sizes), _strides(sizes, conv.layout)) for role, sizes in tensor_shapes(conv).items()}
        method, operands, result = OPERATIONS[conv.direction]
        tensors = {}
        for role in operands.values():
            dim, stride = shapes[role]
            tensors[role] = graph.tensor(name=role, dim=dim, stride=stride, data_type=dtype)
        moves = {"padding": [conv.pad_h, conv.pad_w], "stride": [conv.stride_h, conv.stride_w]}
        moves["dilation"] = [conv.dilation_h, conv.dilation_w]
        output = getattr(graph, method)(**{name: tensors[role] for name, role in operands.items()}, **moves)
        dim, stride = shapes[result]
        output.set_output(True).set_data_type(dtype).set_dim(dim).set_stride(stride)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([getattr(cudnn.heur_mode, mode) for mode in MODES])
        if (conv.dtype, conv.math) == ("fp32", "fma"):  # the frontend ignores an earlier call
            graph.deselect_numeric_notes([cudnn.numerical_note.TENSOR_CORE, cudnn.numerical_note.DOWN_CONVERT_INPUTS])
        return graph, tensors | {result: output}


def _strides(sizes: tuple[int, ...], layout: str) -> list[int]:
    """Return the strides of a packed tensor. cuDNN infers groups if the filter has fewer channels than the input."""
    _, c, h, w = sizes
    return [c * h * w, 1, c * w, c] if layout == "NHWC" else [c * h * w, h * w, w, 1]
