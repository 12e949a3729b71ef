"""cuDNN's own ranking for a GPU that is not there: the graph heuristic over a described device.

Needs libcudnn 9.11 to 9.26 and no driver (the extra ``heuristic``). It is the graph API's heuristic, not
``cudnnGetConvolution…Algorithm_v7``: FFT and non-fused Winograd engines are invisible to it. Plans on tensor cores
(TF32) are left out of an fp32 problem's ranking under ``fma`` math.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import islice

from surrogate.collect.cudnn.backend import NUMBERS, PROTOTYPES, Attribute, Descriptor, Kind, Scope
from surrogate.collect.cudnn.convolution import COMPUTE_DTYPES, CROSS_CORRELATION, data_type
from surrogate.collect.cudnn.library import HEURISTIC_REMEDY, CudnnError, Handle, Library
from surrogate.collect.device import Choice, DeviceInfo
from surrogate.collect.plan import tensor_shapes
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu
from surrogate.features.occupancy import LIMITS, MAX_THREADS, REGISTERS_PER_SM, WARP_THREADS

LIBRARY = "cudnn-graph"
"""The library's name in a dataset: its candidates are other ones than those of the legacy functions."""
FIRST_VERSION = 90800
"""The first cuDNN that takes a described device."""
MODE = "A"
MODE_NUMBER = 3
"""cudnnBackendHeurMode_t."""
KEPT = 8
"""Plans of a ranking that are kept; rankings hold up to about 40, mostly one engine with other knobs."""
NUMERICAL_NOTES: list[str] = NUMBERS["numerical_notes"]
"""cudnnBackendNumericalNote_t in the order of its numbers."""
UNIQUE_IDS: Mapping[str, int] = {"w": 2, "x": 1, "y": 3}
"""Role of a tensor → its id in the graph, in the order of an operation's attributes."""
OPERATIONS: Mapping[str, list[int]] = NUMBERS["operations"]
"""Direction → its operation's descriptor, and the first of its six attributes: alpha, beta, convolution, w, x, y."""
ALIGNMENT_BYTES = 16
"""Alignment that is promised for every tensor; without it cuDNN leaves out its vector kernels."""
BLOCK_SHARED_BYTES = 48 * 1024
"""Shared memory of a block that has not opted in to more."""
DRIVER_VERSION = 13000
"""CUDA version of the driver that is supposed, as cuDriverGetVersion tells it; the ranking does not show it."""


class Deviceless:
    """cuDNN's heuristic for one described GPU."""

    def __init__(self, gpu: Gpu) -> None:
        """Raises `InputError` where libcudnn is missing or too old, or ``gpu`` cannot be described to it."""
        self.gpu = gpu
        description = properties_json(gpu)  # refuses a GPU that cuDNN cannot know before it is looked for
        self._library = _library()
        self._scope = Scope(self._library)
        try:
            self._target = self._scope.make(Descriptor.DEVICE_PROPERTIES)
            self._scope.set(self._target, Attribute.DEVICE_JSON, Kind.CHAR, *description.encode())
            self._scope.finalize(self._target)
        except CudnnError as error:
            self.close()
            cannot = f"cuDNN {self._library.version} cannot describe {gpu.name} ({error})"
            raise InputError(f"{cannot}; {HEURISTIC_REMEDY}") from None

    def describe(self) -> DeviceInfo:
        """For a run's header: no time was taken, and by which mode was ranked."""
        version = self._library.version
        facts = {"deviceless": True, "heuristic_mode": MODE}
        return DeviceInfo(self.gpu.name, LIBRARY, version, {"cudnn": version}, facts)

    def heuristic(self, conv: Conv) -> tuple[Choice, ...]:
        """The first `KEPT` plans that ``conv``'s math allows, best first; empty where cuDNN has none.

        An engine is named by its number. A plan that cuDNN ranks but refuses to finalise stands there as
        ``not_supported``.
        """
        with Scope(self._library) as scope:
            return tuple(islice(self._ranked(scope, conv), KEPT))

    def close(self) -> None:
        """Destroy the device's description."""
        self._scope.close()

    def _ranked(self, scope: Scope, conv: Conv) -> Iterator[Choice]:
        try:
            graph = operation_graph(scope, conv)
            heuristic = scope.make(Descriptor.HEURISTIC)
            scope.set(heuristic, Attribute.HEURISTIC_GRAPH, Kind.DESCRIPTOR, graph)
            scope.set(heuristic, Attribute.HEURISTIC_MODE, Kind.HEURISTIC_MODE, MODE_NUMBER)
            scope.set(heuristic, Attribute.HEURISTIC_DEVICE, Kind.DESCRIPTOR, self._target)
            scope.finalize(heuristic)
            count = scope.count(heuristic, Attribute.HEURISTIC_RESULTS)
            configs = [scope.make(Descriptor.ENGINE_CONFIG) for _ in range(count)]
            for config in scope.get_into(heuristic, Attribute.HEURISTIC_RESULTS, configs) if configs else []:
                (engine,) = scope.get_into(config, Attribute.CONFIG_ENGINE, [scope.make(Descriptor.ENGINE)])
                notes = _notes(scope, engine)
                # fp32 under fma admits no tensor cores (TF32)
                if (conv.dtype, conv.math) == ("fp32", "fma") and {"tensor_core", "down_convert_inputs"} & set(notes):
                    continue
                number = int(scope.get(engine, Attribute.ENGINE_INDEX, Kind.INT64)[0])
                status, workspace_bytes = self._finalised(scope, config)
                named = {"deterministic": "nondeterministic" not in notes, "notes": notes}
                yield Choice(f"engine:{number}", status, workspace_bytes=workspace_bytes, **named)
        except CudnnError:  # nothing ranked: cuDNN supports the problem in no engine
            return

    def _finalised(self, scope: Scope, config: Handle) -> tuple[str, int | None]:
        """The status of a plan, and the bytes of its workspace where it is ok."""
        plan = scope.make(Descriptor.PLAN)
        try:
            scope.set(plan, Attribute.PLAN_DEVICE, Kind.DESCRIPTOR, self._target)
            scope.set(plan, Attribute.PLAN_CONFIG, Kind.DESCRIPTOR, config)
            scope.finalize(plan)
            return "ok", int(scope.get(plan, Attribute.PLAN_WORKSPACE_BYTES, Kind.INT64)[0])
        except CudnnError as error:
            return error.status, None


def _notes(scope: Scope, engine: Handle) -> tuple[str, ...]:
    """An engine's numerical notes by name; one that a newer cuDNN added by its number."""
    known = len(NUMERICAL_NOTES)
    try:
        numbers = scope.get(engine, Attribute.ENGINE_NUMERICAL_NOTES, Kind.NUMERICAL_NOTE, 2 * known)
    except CudnnError:  # an engine without notes may refuse the question
        return ()
    return tuple(NUMERICAL_NOTES[note] if 0 <= note < known else f"note_{note}" for note in numbers)


def operation_graph(scope: Scope, conv: Conv) -> Handle:
    """The finalised graph of ``conv``: three tensors, the convolution, one operation.

    Raises `CudnnError` where cuDNN refuses the problem, `InputError` for an element type it is not asked in.
    """
    descriptor, first = OPERATIONS[conv.direction]
    operation = scope.make(descriptor)
    scale = Kind.DOUBLE if conv.dtype == "fp64" else Kind.FLOAT
    scope.set(operation, first, scale, 1.0)
    scope.set(operation, first + 1, scale, 0.0)
    scope.set(operation, first + 2, Kind.DESCRIPTOR, _convolution(scope, conv))
    for attribute, role in enumerate(UNIQUE_IDS, first + 3):
        scope.set(operation, attribute, Kind.DESCRIPTOR, _tensor(scope, role, conv))
    graph = scope.make(Descriptor.GRAPH)
    scope.set(graph, Attribute.GRAPH_OPERATIONS, Kind.DESCRIPTOR, scope.finalize(operation))
    return scope.finalize(graph)


def _tensor(scope: Scope, role: str, conv: Conv) -> Handle:
    """A packed tensor; fewer filter channels than the input has are what tells cuDNN of groups."""
    n, c, h, w = tensor_shapes(conv)[role]
    strides = (c * h * w, 1, c * w, c) if conv.layout == "NHWC" else (c * h * w, h * w, w, 1)
    tensor = scope.make(Descriptor.TENSOR)
    scope.set(tensor, Attribute.TENSOR_DATA_TYPE, Kind.DATA_TYPE, data_type(conv.dtype))
    scope.set(tensor, Attribute.TENSOR_ALIGNMENT, Kind.INT64, ALIGNMENT_BYTES)
    scope.set(tensor, Attribute.TENSOR_DIMENSIONS, Kind.INT64, n, c, h, w)
    scope.set(tensor, Attribute.TENSOR_STRIDES, Kind.INT64, *strides)
    scope.set(tensor, Attribute.TENSOR_UNIQUE_ID, Kind.INT64, UNIQUE_IDS[role])
    return scope.finalize(tensor)


def _convolution(scope: Scope, conv: Conv) -> Handle:
    convolution = scope.make(Descriptor.CONVOLUTION)
    compute = data_type(COMPUTE_DTYPES[conv.dtype])
    pads = (conv.pad_h, conv.pad_w)
    scope.set(convolution, Attribute.CONVOLUTION_COMPUTE_TYPE, Kind.DATA_TYPE, compute)
    scope.set(convolution, Attribute.CONVOLUTION_MODE, Kind.CONVOLUTION_MODE, CROSS_CORRELATION)
    scope.set(convolution, Attribute.CONVOLUTION_DILATIONS, Kind.INT64, conv.dilation_h, conv.dilation_w)
    scope.set(convolution, Attribute.CONVOLUTION_STRIDES, Kind.INT64, conv.stride_h, conv.stride_w)
    scope.set(convolution, Attribute.CONVOLUTION_PRE_PADDINGS, Kind.INT64, *pads)
    scope.set(convolution, Attribute.CONVOLUTION_POST_PADDINGS, Kind.INT64, *pads)
    scope.set(convolution, Attribute.CONVOLUTION_SPATIAL_DIMS, Kind.INT64, 2)
    return scope.finalize(convolution)


def properties_json(gpu: Gpu) -> str:
    """The JSON that cuDNN asks for, from the GPU's specification.

    The memory clock stands in for the bandwidth of a 5,120-bit interface at two transfers a clock (the
    registry holds the bandwidth alone). Raises `InputError` for a GPU that is not NVIDIA's, or too old.
    """
    if gpu.vendor != "nvidia" or gpu.compute_capability not in LIMITS:
        known = ", ".join(map(str, LIMITS))
        raise InputError(f"GPU {gpu.name} cannot be described to cuDNN 9; NVIDIA's of compute capability {known} can")
    limits = LIMITS[gpu.compute_capability]
    memory_clock_khz = gpu.dram_gbs * 1e9 / (2 * 5120 / 8) / 1e3
    return json.dumps(
        {
            "deviceVer": round(gpu.compute_capability * 100),
            "multiProcessorCount": gpu.sms,
            "warpSize": WARP_THREADS,
            "maxSharedMemoryPerBlock": BLOCK_SHARED_BYTES,
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
            "maxBlockSize": [1024, 1024, 64],
            "maxGridSize": [2**31 - 1, 65535, 65535],
            "supportCoopLaunch": int(gpu.compute_capability >= 6.0),
            "pciDeviceId": 0,
            "isTccDriver": 0,
            "cudaDeviceId": 0,
            "driverVer": DRIVER_VERSION,
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
        raise InputError(f"cuDNN {library.version} cannot rank for a GPU that is not there; {HEURISTIC_REMEDY}")
    library.declare(PROTOTYPES)
    return library
