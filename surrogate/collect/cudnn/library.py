"""Finding, loading and calling libcudnn 8 or 9."""

import ctypes
import ctypes.util
import os
from typing import Any, Self

from surrogate.collect.cudnn import abi
from surrogate.collect.cudnn.status import SUCCESS, CudnnError
from surrogate.features.errors import InputError

ENVIRONMENT = "SEER_CUDNN"
"""Environment variable that names the library's file."""
SONAMES = ("libcudnn.so.9", "libcudnn.so.8", "cudnn64_9.dll", "cudnn64_8.dll")
MESSAGE_BYTES = 2048


def candidates() -> list[str]:
    """Paths and names to try: the environment's alone, or else NVIDIA's wheels and toolkit, then the loader's own."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        return [named]
    found: list[str] = []
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib  # pyright: ignore[reportMissingImports]
    except ImportError:
        pass
    else:
        try:
            path = load_nvidia_dynamic_lib("cudnn").abs_path
        except RuntimeError:  # not found, or found but not loadable here
            path = None
        if path:
            found.append(path)
    by_linker = ctypes.util.find_library("cudnn")
    return [*found, *([by_linker] if by_linker else []), *SONAMES]


class Library:
    """libcudnn with typed functions."""

    def __init__(self, functions: Any, path: str) -> None:
        self._functions = functions
        self.path = path
        self.version_number = int(functions.cudnnGetVersion())

    @classmethod
    def load(cls) -> Self:
        """The first library that loads and has all functions; none raises `InputError` with the reasons."""
        reasons: list[str] = []
        for path in candidates():
            try:
                functions = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
                abi.declare(functions)
            except (OSError, AttributeError) as error:
                reasons.append(str(error))
                continue
            return cls(functions, path)
        raise InputError(
            f"libcudnn was not found ({reasons[0]}); install the wheel nvidia-cudnn-cu12 (or -cu13),"
            f" or name the file by {ENVIRONMENT}"
        )

    @property
    def version(self) -> str:
        """As in ``9.19.0``. CUDNN_VERSION is major·10000 + minor·100 + patch since 9.0, major·1000 + … before."""
        number = self.version_number
        major = number // 10_000 if number >= 90_000 else number // 1000
        rest = number - major * (10_000 if number >= 90_000 else 1000)
        return f"{major}.{rest // 100}.{rest % 100}"

    def call(self, name: str, *arguments: Any) -> int:
        """Call a function; the status is the caller's to judge."""
        return int(getattr(self._functions, name)(*arguments))

    def check(self, name: str, *arguments: Any) -> None:
        """Call a function that must succeed; another status raises `CudnnError` with the library's own words."""
        code = self.call(name, *arguments)
        if code != SUCCESS:
            raise CudnnError(code, f"{name}: {self.reason(code)}")

    def create(self, kind: str) -> ctypes.c_void_p:
        """A new ``Tensor``, ``Filter`` or ``Convolution`` descriptor."""
        made = abi.Handle()
        self.check(f"cudnnCreate{kind}Descriptor", ctypes.byref(made))
        return made

    def reason(self, code: int) -> str:
        """The status's name, and in cuDNN 9 the condition that failed, in one line."""
        name = self._functions.cudnnGetErrorString(code).decode(errors="replace")
        if not hasattr(self._functions, "cudnnGetLastErrorString"):
            return name
        buffer = ctypes.create_string_buffer(MESSAGE_BYTES)
        self._functions.cudnnGetLastErrorString(buffer, MESSAGE_BYTES)
        detail = " ".join(buffer.value.decode(errors="replace").split())
        return f"{name}: {detail}" if detail else name
