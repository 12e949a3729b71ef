"""libcudnn 8 or 9 by ctypes: finding and loading it, its binary interface, its statuses.

Prototypes and structs: cudnn_cnn.h and cudnn_ops.h.
"""

import ctypes
import ctypes.util
import os
import tomllib
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from surrogate.features.errors import InputError

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
