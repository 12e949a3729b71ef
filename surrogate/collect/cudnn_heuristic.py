"""cuDNN's own ranking for a GPU that is not installed: the graph API's heuristic for a described device.

NVIDIA's ``nvidia-cudnn-frontend`` gets the ranking from libcudnn 9.11 to 9.26 without a driver (the extra
``heuristic``). It is the heuristic of the graph API, not ``cudnnGetConvolution…Algorithm_v7``, so it has no FFT and no
non-fused Winograd engines. The ranking of an fp32 problem under ``fma`` math has no plans on tensor cores (TF32).
"""

import json
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import islice
from typing import Any

from surrogate.collect.cudnn.library import HEURISTIC_REMEDY, Library, data_type
from surrogate.collect.device import DeviceInfo, HeuristicEntry, one_line
from surrogate.collect.plan import tensor_shapes
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError, read_toml
from surrogate.features.gpu import Gpu
from surrogate.features.kernels import LIMITS, MAX_THREADS, REGISTERS_PER_SM, WARP_THREADS

LIBRARY = "cudnn-graph"
"""The library's name in a dataset. Its candidates differ from the algorithms of the legacy functions."""
FIRST_VERSION = 90800
"""The first cuDNN version that accepts a described device."""
MODE = "A"
MAX_PLANS = 8
"""Number of plans that are kept from a ranking. A ranking has up to about 40 plans; most of them differ only in the
settings of one engine."""
DTYPES = {"fp32": "FLOAT", "fp64": "DOUBLE", "fp16": "HALF", "bf16": "BFLOAT16"}
"""Element type → its name in `cudnn.data_type`."""
SHARED = read_toml(__file__)
"""Properties with the same value for all described devices."""


class HeuristicDevice:
    """cuDNN's heuristic for one described GPU."""

    def __init__(self, gpu: Gpu) -> None:
        """Describe ``gpu`` to cuDNN.

        Raises `InputError` if cuDNN or its frontend is missing or too old, or if cuDNN cannot describe ``gpu``.
        """
        self.gpu = gpu
        description = properties_json(gpu)  # refuses an impossible GPU before cuDNN is loaded
        self._version = _library().version
        try:
            cudnn: Any = import_module("cudnn")
        except ImportError as error:
            raise InputError(f"the heuristic needs cuDNN's frontend: {one_line(error)}; {HEURISTIC_REMEDY}") from None
        self._cudnn = cudnn
        self._refusals = RuntimeError, cudnn.cudnnGraphNotSupportedError
        try:
            self._target = cudnn.create_device_properties(description)
        except self._refusals as error:
            cannot = f"cuDNN {self._version} cannot describe {gpu.name} ({one_line(error)})"
            raise InputError(f"{cannot}; {HEURISTIC_REMEDY}") from None

    def device_info(self) -> DeviceInfo:
        """Return the GPU, cuDNN's version, and the mode of the ranking; no time is taken."""
        facts = {"deviceless": True, "heuristic_mode": MODE}
        return DeviceInfo(self.gpu.name, LIBRARY, self._version, {"cudnn": self._version}, facts)

    def heuristic(self, conv: Conv) -> tuple[HeuristicEntry, ...]:
        """Return the first `MAX_PLANS` plans that the math of ``conv`` allows, best first; empty if cuDNN has none.

        An engine's name has its number. A plan that cuDNN ranks but cannot finalise is left out.
        """
        notes = self._cudnn.numerical_note
        try:
            graph = self._graph(conv)
        except self._refusals:  # no engine of cuDNN supports the problem
            return ()
        if (conv.dtype, conv.math) == ("fp32", "fma"):
            graph.deselect_numeric_notes([notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS])
        ranked = list(islice(self._buildable(graph, range(graph.get_execution_plan_count())), MAX_PLANS))
        workspaces = [int(graph.get_workspace_size_plan_at_index(plan)) for plan in ranked]
        # The frontend does not list the notes of a plan, but it refuses plans that have a deselected note.
        graph.deselect_numeric_notes([notes.NONDETERMINISTIC])
        deterministic = set(self._buildable(graph, ranked))
        return tuple(
            HeuristicEntry(_engine(graph, plan), "ok", workspace_bytes=bytes_, deterministic=plan in deterministic)
            for plan, bytes_ in zip(ranked, workspaces, strict=True)
        )

    def _buildable(self, graph: Any, plans: Iterable[int]) -> Iterator[int]:
        """Yield each of ``plans`` that cuDNN can finalise and that has no deselected note."""
        for plan in plans:
            try:
                graph.build_plan_at_index(plan)
            except self._refusals:
                continue
            yield plan

    def close(self) -> None:
        """Do nothing: the frontend's objects free themselves."""

    def _graph(self, conv: Conv) -> Any:
        """Return the graph of ``conv`` with its plans ranked.

        Raises one of `_refusals` if cuDNN refuses the problem, and `InputError` for an unsupported element type.
        """
        data_type(conv.dtype)  # refuses an unsupported element type
        types = self._cudnn.data_type
        dtype = getattr(types, DTYPES[conv.dtype])
        compute = types.DOUBLE if conv.dtype == "fp64" else types.FLOAT
        graph = self._cudnn.pygraph(
            io_data_type=dtype, intermediate_data_type=compute, compute_data_type=compute, device_property=self._target
        )
        shapes = {role: (list(sizes), _strides(sizes, conv.layout)) for role, sizes in tensor_shapes(conv).items()}
        method, operands, result = OPERATIONS[conv.direction]
        tensors = {
            argument: graph.tensor(name=role, dim=shapes[role][0], stride=shapes[role][1], data_type=dtype)
            for argument, role in operands.items()
        }
        output = getattr(graph, method)(
            **tensors,
            padding=[conv.pad_h, conv.pad_w],
            stride=[conv.stride_h, conv.stride_w],
            dilation=[conv.dilation_h, conv.dilation_w],
        )
        dim, stride = shapes[result]
        output.set_output(True).set_data_type(dtype).set_dim(dim).set_stride(stride)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([getattr(self._cudnn.heur_mode, MODE)])
        return graph


OPERATIONS = {
    "fwd": ("conv_fprop", {"image": "x", "weight": "w"}, "y"),
    "bwd_data": ("conv_dgrad", {"loss": "y", "filter": "w"}, "x"),
    "bwd_filter": ("conv_wgrad", {"image": "x", "loss": "y"}, "w"),
}
"""Direction → the frontend's method, its arguments with the tensors' roles, and the role of its result."""


def _strides(sizes: tuple[int, ...], layout: str) -> list[int]:
    """Return the strides of a packed tensor. cuDNN infers groups if the filter has fewer channels than the input."""
    _, c, h, w = sizes
    return [c * h * w, 1, c * w, c] if layout == "NHWC" else [c * h * w, h * w, w, 1]


def _engine(graph: Any, plan: int) -> str:
    """Return the engine of a plan: ``engine:25`` for ``eng25_k2=2_k3=0``."""
    return "engine:" + re.findall(r"\d+", graph.get_plan_name_at_index(plan))[0]


def properties_json(gpu: Gpu) -> str:
    """Return the JSON that cuDNN needs, from the GPU's datasheet.

    The registry has no memory clock, only the bandwidth. So the memory clock is computed from the bandwidth of a
    5,120-bit interface with two transfers per clock. Raises `InputError` for a GPU that is not NVIDIA's, or too old.
    """
    if gpu.vendor != "nvidia" or gpu.compute_capability not in LIMITS:
        supported = ", ".join(map(str, LIMITS))
        rule = f"it needs an NVIDIA GPU of compute capability {supported}"
        raise InputError(f"GPU {gpu.name} cannot be described to cuDNN 9; {rule}")
    limits = LIMITS[gpu.compute_capability]
    memory_clock_khz = gpu.dram_gbs * 1e9 / (2 * 5120 / 8) / 1e3
    return json.dumps(
        {
            **SHARED,
            "deviceVer": round(gpu.compute_capability * 100),
            "multiProcessorCount": gpu.sms,
            "warpSize": WARP_THREADS,
            "maxSharedMemoryPerBlockOptin": int(limits.optin_bytes),
            "reservedSharedMemoryPerBlock": int(limits.reserved_bytes),
            "maxRegistersPerSM": REGISTERS_PER_SM,
            "maxCtasPerSM": int(limits.blocks),
            "maxThreadsPerBlock": MAX_THREADS,
            "maxThreadsPerSM": int(limits.warps) * WARP_THREADS,
            "regsPerBlock": REGISTERS_PER_SM,
            "totalGlobalMem": gpu.memory_bytes,
            "smClockRateKHz": round(gpu.boost_mhz * 1e3),
            "memClockRateKHz": round(memory_clock_khz),
            "l2CacheSize": gpu.l2_bytes,
            "supportCoopLaunch": int(gpu.compute_capability >= 6.0),
            "deviceName": gpu.aliases[0] if gpu.aliases else gpu.name,
        }
    )


def _library() -> Library:
    try:
        library = Library.load()
    except InputError as error:
        reason = str(error).split(";")[0]
        raise InputError(f"the heuristic needs cuDNN: {reason}; {HEURISTIC_REMEDY}") from None
    if library.version_number < FIRST_VERSION:
        raise InputError(f"cuDNN {library.version} cannot rank for a described GPU; {HEURISTIC_REMEDY}")
    return library
