"""libcudnn 8 or 9 by ctypes: finding and loading it, its statuses, its legacy convolutions by the project's names.

Prototypes, structs and enumerations: cudnn_cnn.h, cudnn_ops.h and cudnn_graph.h of 8.x and 9.x.
"""

import ctypes
import ctypes.util
import os
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from surrogate.features.algorithms import algorithms
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.problem import DIRECTIONS

Handle = ctypes.c_void_p
"""Any opaque cuDNN object: handle or descriptor; also a device pointer."""
INT = ctypes.c_int
SIZE = ctypes.c_size_t


class AlgoPerf(ctypes.Structure):
    """cudnnConvolution{Fwd,BwdData,BwdFilter}AlgoPerf_t: three names, one layout of 48 bytes."""

    # ``time`` is in milliseconds, −1 where nothing was timed; ``memory`` are the workspace's bytes.
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
"""Letter → C type; a capital that is not here is a pointer to the small one's."""
_FUNCTIONS = tomllib.loads(Path(__file__).with_name("prototypes.toml").read_text(encoding="utf-8"))


def prototypes(group: str) -> dict[str, tuple[type, ...]]:
    """Function → argument types, of one group of ``prototypes.toml``. All return cudnnStatus_t."""
    return {name: tuple(map(_c_type, letters)) for name, letters in _FUNCTIONS[group].items()}


def _c_type(letter: str) -> type:
    return _C_TYPES.get(letter) or ctypes.POINTER(_C_TYPES[letter.lower()])


PROTOTYPES = prototypes("convolution")
SUCCESS = 0
V8_NOT_SUPPORTED = {6, 9}
"""cuDNN 8: ARCH_MISMATCH and NOT_SUPPORTED."""
V8_EXECUTION_FAILED = {7, 8}
"""cuDNN 8: MAPPING_ERROR and EXECUTION_FAILED."""


class CudnnError(RuntimeError):
    """A call that returned another status than success; ``code`` is cudnnStatus_t."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def status(self) -> str:
        """The dataset's status."""
        return status_of(self.code)


def status_of(code: int) -> str:
    """``ok``, ``not_supported`` or ``failed``. cuDNN 9 groups its codes by thousands: 3xxx is not supported."""
    if code == SUCCESS:
        return "ok"
    if code // 1000 == 3 or code in V8_NOT_SUPPORTED:
        return "not_supported"
    return "failed"


def may_be_sticky(code: int) -> bool:
    """True for the codes after which the CUDA context itself must be asked (execution failed)."""
    return code // 1000 == 5 or code in V8_EXECUTION_FAILED


ENVIRONMENT = "SEER_CUDNN"
"""Environment variable that names the library's file."""
SONAMES = ("libcudnn.so.9", "libcudnn.so.8", "cudnn64_9.dll", "cudnn64_8.dll")
MESSAGE_BYTES = 2048
HEURISTIC_REMEDY = "pip install 'seer-surrogate[heuristic]' (cuDNN 9.11 to 9.26; without a driver others do not work)"
"""What the ranking for a GPU that is not there needs."""


def candidates() -> list[str]:
    """Paths and names to try: the environment's alone, or else NVIDIA's wheels and toolkit, then the loader's own."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        return [named]
    path = None
    with suppress(ImportError, RuntimeError):  # not found, or found but not loadable here
        from cuda.pathfinder import load_nvidia_dynamic_lib  # pyright: ignore[reportMissingImports]

        path = load_nvidia_dynamic_lib("cudnn").abs_path
    return [name for name in (path, ctypes.util.find_library("cudnn"), *SONAMES) if name]


class Library:
    """libcudnn with typed functions."""

    def __init__(self, functions: ctypes.CDLL, path: str) -> None:
        """A function that is missing raises AttributeError with its name."""
        self._functions = functions
        self.path = path
        functions.cudnnGetVersion.restype = SIZE
        functions.cudnnGetErrorString.restype = ctypes.c_char_p
        self.version_number = int(functions.cudnnGetVersion())

    @classmethod
    def load(cls) -> Self:
        """The first library that loads and has all functions; none raises `InputError` with the reasons."""
        reasons: list[str] = []
        for path in candidates():
            try:
                library = cls(ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL), path)
                library.declare(PROTOTYPES)
                return library
            except (OSError, AttributeError) as error:
                reasons.append(str(error))
        remedy = f"install the wheel nvidia-cudnn-cu12 (or -cu13), or name the file by {ENVIRONMENT}"
        raise InputError(f"libcudnn was not found ({reasons[0]}); {remedy}")

    @property
    def version(self) -> str:
        """As in ``9.19.0``. CUDNN_VERSION is major·10000 + minor·100 + patch since 9.0, major·1000 + … before."""
        number = self.version_number
        major = number // 10_000 if number >= 90_000 else number // 1000
        rest = number - major * (10_000 if number >= 90_000 else 1000)
        return f"{major}.{rest // 100}.{rest % 100}"

    def declare(self, prototypes: Mapping[str, tuple[type, ...]]) -> None:
        """Give functions their argument types; one that is missing raises AttributeError with its name."""
        for name, argument_types in prototypes.items():
            function = getattr(self._functions, name)
            function.argtypes = argument_types
            function.restype = INT

    def call(self, name: str, *arguments: object) -> int:
        """Call a function; the status is the caller's to judge."""
        return int(getattr(self._functions, name)(*arguments))

    def check(self, name: str, *arguments: object) -> None:
        """Call a function that must succeed; another status raises `CudnnError` with the library's own words."""
        code = self.call(name, *arguments)
        if code != SUCCESS:
            raise CudnnError(code, f"{name}: {self.reason(code)}")

    def create(self, kind: str, owner: ExitStack) -> Handle:
        """A new ``Tensor``, ``Filter`` or ``Convolution`` descriptor, which ``owner`` destroys when it closes."""
        descriptor = Handle()
        self.check(f"cudnnCreate{kind}Descriptor", ctypes.byref(descriptor))
        owner.callback(self.call, f"cudnnDestroy{kind}Descriptor", descriptor)
        return descriptor

    def reason(self, code: int) -> str:
        """The status's name, and in cuDNN 9 the condition that failed, in one line."""
        name = self._functions.cudnnGetErrorString(code).decode(errors="replace")
        if not hasattr(self._functions, "cudnnGetLastErrorString"):
            return name
        buffer = ctypes.create_string_buffer(MESSAGE_BYTES)
        self._functions.cudnnGetLastErrorString(buffer, SIZE(MESSAGE_BYTES))
        detail = " ".join(buffer.value.decode(errors="replace").split())
        return f"{name}: {detail}" if detail else name


ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    direction: tuple(known.name for known in algorithms("cudnn", direction)) for direction in DIRECTIONS
}
"""cudnnConvolution{Fwd,BwdData,BwdFilter}Algo_t in the order of its numbers."""
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
    names = ALGORITHMS[direction]
    return names[number] if number < len(names) else f"ALGO_{number}"


def math_name(number: int) -> str:
    """The name of a math type's number, or the number itself."""
    return {known: name for name, known in MATHS.items()}.get(number, str(number))


def data_type(dtype: str) -> int:
    """The number of an element type; `InputError` for one that the legacy convolutions are not collected in."""
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is not collected with cuDNN; known: {', '.join(DTYPES)}")
    return DTYPES[dtype]


@dataclass(frozen=True, slots=True)
class Direction:
    """The stem of a direction's functions, and the roles of its operands and result: ``x``, ``w``, ``y``."""

    stem: str
    roles: tuple[str, str, str]
    """First operand, second operand, result."""


CALLS: Mapping[str, Direction] = {
    "fwd": Direction("Forward", ("x", "w", "y")),
    "bwd_data": Direction("BackwardData", ("w", "y", "x")),
    "bwd_filter": Direction("BackwardFilter", ("x", "y", "w")),
}
ENTRIES = 16
"""Room for rankings: an algorithm may stand in them twice, with two math types."""


class Convolutions:
    """Descriptors made once and set to one problem after another, and the direction's functions called on them.

    Every method may raise `CudnnError`; ``pointers`` are device pointers by role, ``workspace`` its pointer and bytes.
    """

    def __init__(self, library: Library, handle: Handle) -> None:
        self._library = library
        self._handle = handle
        self._direction = CALLS["fwd"]
        self._scales: tuple[object, object] = (None, None)
        kinds = {"x": "Tensor", "w": "Filter", "y": "Tensor", "conv": "Convolution"}
        with ExitStack() as owned:
            self.descriptors = {role: library.create(kind, owned) for role, kind in kinds.items()}
            self.close = owned.pop_all().close

    def set(self, conv: Conv) -> Direction:
        """Describe ``conv``. An element type that is not collected raises `InputError`."""
        check = self._library.check
        d = self.descriptors
        dtype = data_type(conv.dtype)
        layout = LAYOUTS[conv.layout]
        compute = data_type(COMPUTE_DTYPES[conv.dtype])
        pads, strides = (conv.pad_h, conv.pad_w), (conv.stride_h, conv.stride_w)
        dilations = conv.dilation_h, conv.dilation_w
        filters = conv.k, conv.c // conv.groups, conv.r, conv.s
        geometry = *pads, *strides, *dilations
        check("cudnnSetTensor4dDescriptor", d["x"], layout, dtype, conv.n, conv.c, conv.h, conv.w)
        check("cudnnSetFilter4dDescriptor", d["w"], dtype, layout, *filters)
        check("cudnnSetConvolution2dDescriptor", d["conv"], *geometry, CROSS_CORRELATION, compute)
        check("cudnnSetConvolutionGroupCount", d["conv"], conv.groups)
        check("cudnnSetConvolutionMathType", d["conv"], MATHS[conv.math])
        check("cudnnSetTensor4dDescriptor", d["y"], layout, dtype, conv.n, conv.k, conv.out_h, conv.out_w)
        # alpha = 1 and beta = 0: double for fp64, float for everything else
        number = ctypes.c_double if conv.dtype == "fp64" else ctypes.c_float
        self._scales = ctypes.byref(number(1.0)), ctypes.byref(number(0.0))
        self._direction = CALLS[conv.direction]
        return self._direction

    def workspace_bytes(self, algorithm: int) -> int:
        """An algorithm's workspace."""
        size = ctypes.c_size_t()
        name = f"cudnnGetConvolution{self._direction.stem}WorkspaceSize"
        self._library.check(name, self._handle, *self._described(), algorithm, ctypes.byref(size))
        return size.value

    def ranking(self) -> list[AlgoPerf]:
        """The algorithms ranked without timing."""
        return self._listed(f"cudnnGetConvolution{self._direction.stem}Algorithm_v7", self._described())

    def find(self, pointers: Mapping[str, int], workspace: tuple[int, int]) -> list[AlgoPerf]:
        """Every algorithm timed once."""
        operands, result = self._placed(pointers)
        tensors = *operands, self.descriptors["conv"], *result
        return self._listed(f"cudnnFindConvolution{self._direction.stem}AlgorithmEx", tensors, *workspace)

    def run(self, algorithm: int, pointers: Mapping[str, int], workspace: tuple[int, int]) -> None:
        """One algorithm, launched once."""
        alpha, beta = self._scales
        operands, result = self._placed(pointers)
        arguments = alpha, *operands, self.descriptors["conv"], algorithm, *workspace, beta, *result
        self._library.check(f"cudnnConvolution{self._direction.stem}", self._handle, *arguments)

    def _listed(self, function: str, tensors: Sequence[Handle | int], *workspace: int) -> list[AlgoPerf]:
        """The entries that a function fills in."""
        count = ctypes.c_int()
        perf = (AlgoPerf * ENTRIES)()
        self._library.check(function, self._handle, *tensors, ENTRIES, ctypes.byref(count), perf, *workspace)
        return list(perf[: count.value])

    def _described(self) -> tuple[Handle, ...]:
        """The descriptors of operands, convolution and result, in the order of all functions that run nothing."""
        first, second, result = (self.descriptors[role] for role in self._direction.roles)
        return first, second, self.descriptors["conv"], result

    def _placed(self, pointers: Mapping[str, int]) -> tuple[list[Handle | int], list[Handle | int]]:
        """The operands' descriptors, each with its pointer, and the result's."""
        first, second, result = ((self.descriptors[role], pointers[role]) for role in self._direction.roles)
        return [*first, *second], [*result]
