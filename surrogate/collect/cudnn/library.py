"""libcudnn 8 or 9 by ctypes: find and load it, its statuses, and its legacy convolutions by the project's names.

Prototypes, structs and enumerations are from cudnn_cnn.h, cudnn_ops.h and cudnn_graph.h of 8.x and 9.x.
"""

import ctypes
import ctypes.util
import importlib.util
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from surrogate.collect.device import one_line
from surrogate.collect.plan import tensor_shapes
from surrogate.features import DIRECTIONS, Conv, InputError, read_toml
from surrogate.features.algorithms import algorithms

Handle = ctypes.c_void_p
"""An opaque cuDNN object (handle or descriptor), or a device pointer."""
INT = ctypes.c_int
SIZE = ctypes.c_size_t


class AlgoPerf(ctypes.Structure):
    """cudnnConvolution{Fwd,BwdData,BwdFilter}AlgoPerf_t: three names for one layout of 48 bytes."""

    # ``time`` is in milliseconds, or −1 if the algorithm was not timed; ``memory`` is the workspace in bytes.
    _fields_ = (
        ("algo", INT),
        ("status", INT),
        ("time", ctypes.c_float),
        ("memory", SIZE),
        ("determinism", INT),
        ("math_type", INT),
        ("reserved", INT * 3),
    )


_C_TYPES: Mapping[str, type] = {"h": Handle, "i": INT, "z": SIZE, "d": ctypes.c_double, "A": ctypes.POINTER(AlgoPerf)}
"""Letter → C type. A capital letter that is not listed is a pointer to the type of the small letter."""
_FUNCTIONS = read_toml(__file__, "prototypes.toml")


def prototypes(group: str) -> dict[str, tuple[type, ...]]:
    """Return function → argument types, for one group of ``prototypes.toml``. All functions return cudnnStatus_t."""
    return {name: tuple(map(_c_type, letters)) for name, letters in _FUNCTIONS[group].items()}


def _c_type(letter: str) -> type:
    return _C_TYPES.get(letter) or ctypes.POINTER(_C_TYPES[letter.lower()])


PROTOTYPES = prototypes("convolution")
SUCCESS = 0
V8_NOT_SUPPORTED = {6, 9}
"""cuDNN 8: ARCH_MISMATCH and NOT_SUPPORTED."""
V8_MAY_BE_STICKY = {4, 7, 8}
"""cuDNN 8: INTERNAL_ERROR, MAPPING_ERROR and EXECUTION_FAILED."""


class CudnnError(RuntimeError):
    """The error of a call that did not return success; ``code`` is cudnnStatus_t."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def status(self) -> str:
        """Return the status for a dataset."""
        return status_of(self.code)

    @property
    def may_be_sticky(self) -> bool:
        """Return True if CUDA may have failed, so that the CUDA context must be checked.

        In cuDNN 9, these are the internal errors (4xxx) and the failed executions (5xxx).
        """
        return self.code // 1000 in (4, 5) or self.code in V8_MAY_BE_STICKY


def status_of(code: int) -> str:
    """Return ``ok``, ``not_supported`` or ``failed``. cuDNN 9 groups its codes by thousands; 3xxx is not supported."""
    if code == SUCCESS:
        return "ok"
    if code // 1000 == 3 or code in V8_NOT_SUPPORTED:
        return "not_supported"
    return "failed"


ENVIRONMENT = "SEER_CUDNN"
"""Environment variable with the path of the library's file."""
SONAMES = ("libcudnn.so.9", "libcudnn.so.8", "cudnn64_9.dll", "cudnn64_8.dll")
WHEEL_FILES = ("lib/libcudnn.so.*", "bin/cudnn64_*.dll")
"""Patterns of the library's file in the folder of its wheel, on Linux and on Windows."""
MESSAGE_BYTES = 2048
HEURISTIC_REMEDY = "pip install 'seer-surrogate[heuristic]' (cuDNN 9.11 to 9.26; without a driver others do not work)"
"""The remedy if cuDNN cannot rank for a described GPU."""


def library_paths() -> tuple[list[str], list[str]]:
    """Return the paths and names to try, and the reason if cuda-pathfinder names none.

    A path in the environment is the only one. Otherwise paths of NVIDIA's packages come before the loader's names.
    """
    given = os.environ.get(ENVIRONMENT)
    if given:
        return [given], []
    paths: list[str | None] = []
    reasons: list[str] = []
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib  # pyright: ignore[reportMissingImports]

        paths.append(load_nvidia_dynamic_lib("cudnn").abs_path)
    except Exception as error:  # no failure of this package hides the library
        reasons.append(f"cuda-pathfinder: {one_line(error)}")
        paths += _paths_in_wheel()
    return [path for path in (*paths, ctypes.util.find_library("cudnn"), *SONAMES) if path], reasons


def _paths_in_wheel() -> list[str]:
    package = None
    with suppress(ModuleNotFoundError):  # no package of NVIDIA
        package = importlib.util.find_spec("nvidia.cudnn")
    folders = (package and package.submodule_search_locations) or ()
    return [str(path) for folder in folders for name in WHEEL_FILES for path in sorted(Path(folder).glob(name))]


class Library:
    """libcudnn with typed functions."""

    def __init__(self, functions: ctypes.CDLL, path: str) -> None:
        """Declare the version functions. Raises `AttributeError` with the name of a missing function."""
        self._functions = functions
        self.path = path
        functions.cudnnGetVersion.restype = SIZE
        functions.cudnnGetErrorString.restype = ctypes.c_char_p
        self.version_number = int(functions.cudnnGetVersion())

    @classmethod
    def load(cls) -> Self:
        """Return the first library that loads and has all functions. Raises `InputError` if there is none."""
        paths, reasons = library_paths()
        for path in paths:
            try:
                library = cls(ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL), path)
                library.declare(PROTOTYPES)
                return library
            except (OSError, AttributeError) as error:
                reasons.append(str(error))
        remedy = f"install the wheel nvidia-cudnn-cu12 (or -cu13), or name the file by {ENVIRONMENT}"
        raise InputError(f"libcudnn was not found ({'; '.join(reasons[:2])}); {remedy}")

    @property
    def version(self) -> str:
        """Return the version, for example ``9.19.0``.

        CUDNN_VERSION is major·10000 + minor·100 + patch since 9.0, and major·1000 + minor·100 + patch before.
        """
        number = self.version_number
        major = number // 10_000 if number >= 90_000 else number // 1000
        rest = number - major * (10_000 if number >= 90_000 else 1000)
        return f"{major}.{rest // 100}.{rest % 100}"

    def declare(self, prototypes: Mapping[str, tuple[type, ...]]) -> None:
        """Set the argument types of functions. Raises `AttributeError` with the name of a missing function."""
        for name, argument_types in prototypes.items():
            function = getattr(self._functions, name)
            function.argtypes = argument_types
            function.restype = INT

    def call(self, name: str, *arguments: object) -> int:
        """Call a function and return its status."""
        return int(getattr(self._functions, name)(*arguments))

    def check(self, name: str, *arguments: object) -> None:
        """Call a function that must succeed. Raises `CudnnError` with the library's text for any other status."""
        code = self.call(name, *arguments)
        if code != SUCCESS:
            raise CudnnError(code, f"{name}: {self.reason(code)}")

    def create(self, kind: str, owner: ExitStack) -> Handle:
        """Return a new ``Tensor``, ``Filter`` or ``Convolution`` descriptor; ``owner`` destroys it when it closes."""
        descriptor = Handle()
        self.check(f"cudnnCreate{kind}Descriptor", ctypes.byref(descriptor))
        owner.callback(self.call, f"cudnnDestroy{kind}Descriptor", descriptor)
        return descriptor

    def reason(self, code: int) -> str:
        """Return the status's name, and in cuDNN 9 the failed condition, in one line."""
        name = self._functions.cudnnGetErrorString(code).decode(errors="replace")
        if not hasattr(self._functions, "cudnnGetLastErrorString"):
            return name
        buffer = ctypes.create_string_buffer(MESSAGE_BYTES)
        self._functions.cudnnGetLastErrorString(buffer, SIZE(MESSAGE_BYTES))
        detail = " ".join(buffer.value.decode(errors="replace").split())
        return f"{name}: {detail}" if detail else name


ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    direction: tuple(algorithm.name for algorithm in algorithms("cudnn", direction)) for direction in DIRECTIONS
}
"""cudnnConvolution{Fwd,BwdData,BwdFilter}Algo_t in the order of its numbers."""
MATHS = {"default": 0, "tensor_op": 1, "tensor_op_allow_conversion": 2, "fma": 3}
"""cudnnMathType_t."""
DTYPES = {"fp32": 0, "fp64": 1, "fp16": 2, "bf16": 9}
"""cudnnDataType_t."""
LAYOUTS = {"NCHW": 0, "NHWC": 1}
"""cudnnTensorFormat_t."""
CROSS_CORRELATION = 1
"""cudnnConvolutionMode_t."""


def algorithm_name(direction: str, number: int) -> str:
    """Return the name of an algorithm's number, or ``ALGO_number`` for an algorithm of a newer cuDNN."""
    names = ALGORITHMS[direction]
    return names[number] if number < len(names) else f"ALGO_{number}"


def math_name(number: int) -> str:
    """Return the name of a math type's number, or the number as text if it is unknown."""
    return {code: name for name, code in MATHS.items()}.get(number, str(number))


def data_type(dtype: str) -> int:
    """Return the number of an element type. Raises `InputError` for a type in which convolutions are not collected."""
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is not collected with cuDNN; known: {', '.join(DTYPES)}")
    return DTYPES[dtype]


@dataclass(frozen=True, slots=True)
class Direction:
    """The stem of a direction's function names, and the roles of its operands and result: ``x``, ``w``, ``y``."""

    stem: str
    roles: tuple[str, str, str]
    """First operand, second operand, result."""


DIRECTION_CALLS: Mapping[str, Direction] = {
    "fwd": Direction("Forward", ("x", "w", "y")),
    "bwd_data": Direction("BackwardData", ("w", "y", "x")),
    "bwd_filter": Direction("BackwardFilter", ("x", "y", "w")),
}
MAX_ENTRIES = 16
"""Maximum number of entries of a ranking; an algorithm may occur twice, with two math types."""


class Convolutions:
    """cuDNN's convolution functions and their descriptors, which are created once and set for each problem.

    Every method may raise `CudnnError`. ``pointers`` are device pointers by role; ``workspace`` is a pointer and its
    bytes.
    """

    def __init__(self, library: Library, handle: Handle) -> None:
        self._library = library
        self._handle = handle
        self._direction = DIRECTION_CALLS["fwd"]
        self._scales: tuple[object, object] = (None, None)
        kinds = {"x": "Tensor", "w": "Filter", "y": "Tensor", "conv": "Convolution"}
        with ExitStack() as owned:
            self.descriptors = {role: library.create(kind, owned) for role, kind in kinds.items()}
            self.close = owned.pop_all().close

    def set_problem(self, conv: Conv) -> Direction:
        """Set the descriptors to ``conv``. Raises `InputError` for an element type that is not collected."""
        check = self._library.check
        d = self.descriptors
        dtype = data_type(conv.dtype)
        layout = LAYOUTS[conv.layout]
        # Sums, alpha and beta are double for fp64, and float for all other types.
        compute, number = ("fp64", ctypes.c_double) if conv.dtype == "fp64" else ("fp32", ctypes.c_float)
        shapes = tensor_shapes(conv)
        geometry = conv.pad_h, conv.pad_w, conv.stride_h, conv.stride_w, conv.dilation_h, conv.dilation_w
        check("cudnnSetTensor4dDescriptor", d["x"], layout, dtype, *shapes["x"])
        check("cudnnSetFilter4dDescriptor", d["w"], dtype, layout, *shapes["w"])
        check("cudnnSetConvolution2dDescriptor", d["conv"], *geometry, CROSS_CORRELATION, DTYPES[compute])
        check("cudnnSetConvolutionGroupCount", d["conv"], conv.groups)
        check("cudnnSetConvolutionMathType", d["conv"], MATHS[conv.math])
        check("cudnnSetTensor4dDescriptor", d["y"], layout, dtype, *shapes["y"])
        self._scales = ctypes.byref(number(1.0)), ctypes.byref(number(0.0))
        self._direction = DIRECTION_CALLS[conv.direction]
        return self._direction

    def workspace_bytes(self, algorithm: int) -> int:
        """Return the workspace of an algorithm in bytes."""
        size = ctypes.c_size_t()
        name = f"cudnnGetConvolution{self._direction.stem}WorkspaceSize"
        self._library.check(name, self._handle, *self._descriptors(), algorithm, ctypes.byref(size))
        return size.value

    def ranking(self) -> list[AlgoPerf]:
        """Return the algorithms, ranked without timing."""
        return self._perf_entries(f"cudnnGetConvolution{self._direction.stem}Algorithm_v7", self._descriptors())

    def find(self, pointers: Mapping[str, int], workspace: tuple[int, int]) -> list[AlgoPerf]:
        """Return the time of every algorithm, from one run each."""
        operands, result = self._descriptors_and_pointers(pointers)
        tensors = *operands, self.descriptors["conv"], *result
        return self._perf_entries(f"cudnnFindConvolution{self._direction.stem}AlgorithmEx", tensors, *workspace)

    def run(self, algorithm: int, pointers: Mapping[str, int], workspace: tuple[int, int]) -> None:
        """Launch an algorithm once."""
        alpha, beta = self._scales
        operands, result = self._descriptors_and_pointers(pointers)
        arguments = alpha, *operands, self.descriptors["conv"], algorithm, *workspace, beta, *result
        self._library.check(f"cudnnConvolution{self._direction.stem}", self._handle, *arguments)

    def _perf_entries(self, function: str, tensors: Sequence[Handle | int], *workspace: int) -> list[AlgoPerf]:
        """Call a function and return the entries that it fills in."""
        count = ctypes.c_int()
        perf = (AlgoPerf * MAX_ENTRIES)()
        self._library.check(function, self._handle, *tensors, MAX_ENTRIES, ctypes.byref(count), perf, *workspace)
        return list(perf[: count.value])

    def _descriptors(self) -> tuple[Handle, ...]:
        """Return the descriptors of operands, convolution and result, in the order of functions that launch nothing."""
        first, second, result = (self.descriptors[role] for role in self._direction.roles)
        return first, second, self.descriptors["conv"], result

    def _descriptors_and_pointers(self, pointers: Mapping[str, int]) -> tuple[list[Handle | int], list[Handle | int]]:
        """Return the operands' descriptors, each followed by its pointer, and likewise the result's."""
        first, second, result = ((self.descriptors[role], pointers[role]) for role in self._direction.roles)
        return [*first, *second], [*result]
