"""A fake of the functions of CuPy that the product calls, on the fake CUDA runtime.

cuRAND, cuBLAS and the compiler fail unless FAKE_CUPY_PARTS contains them: convolutions must not need them.
"""

import ctypes
import math
import os
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
from cuda_runtime import LIBRARY, MEMORY, NAMES, SOFT, Launch, Operand, Size, fault

__version__ = "14.0.1"
uint8, int32, int64, float32 = np.uint8, np.int32, np.int64, np.float32
PARTS = os.environ.get("FAKE_CUPY_PARTS", "curand,cublas,nvrtc").split(",")


class CUDARuntimeError(RuntimeError):
    """A cudaError_t with its name and message."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(": ".join(NAMES.get(status, (f"cudaError {status}", "unknown error"))))


class OutOfMemoryError(MemoryError):
    """The error of CuPy's memory pool, which is not a CUDARuntimeError."""


class CUDADriverError(RuntimeError):
    """The error for a launch that the driver refuses."""


class CUBLASError(RuntimeError):
    """The error for a status of cuBLAS."""


class CompileException(Exception):  # noqa: N818
    """The error for NVRTC's messages, which have several lines."""


def _check(status: int) -> None:
    if status:
        raise CUDARuntimeError(status)


class MemoryPointer:
    """A pointer that keeps its allocation alive."""

    def __init__(self, owner: "_Allocation", ptr: int) -> None:
        self._owner, self.ptr = owner, ptr

    def __add__(self, offset: int) -> "MemoryPointer":
        return MemoryPointer(self._owner, self.ptr + offset)

    def copy_from_device_async(self, source: "MemoryPointer", size: int, stream: "Stream | None" = None) -> None:
        _check(LIBRARY.fake_memcpy(self.ptr, source.ptr, size, 3))

    def memset_async(self, value: int, size: int, stream: "Stream | None" = None) -> None:
        _check(LIBRARY.fake_memset(self.ptr, value, size))


class _Allocation:
    """Device memory that is freed with its last pointer, as CuPy's pool reuses it then."""

    def __init__(self, size: int) -> None:
        pointer = ctypes.c_void_p()
        status = LIBRARY.fake_malloc(max(size, 1), ctypes.byref(pointer))
        if status == 2:
            raise OutOfMemoryError(f"Out of memory allocating {size:,} bytes (allocated so far: 0 bytes).")
        _check(status)
        self.ptr = int(pointer.value or 0)

    def __del__(self) -> None:
        if hasattr(self, "ptr") and LIBRARY:
            LIBRARY.fake_free(self.ptr)


class ndarray:  # noqa: N801
    """A contiguous device array."""

    def __init__(self, shape: Any, dtype: Any, data: MemoryPointer | None = None) -> None:
        self.shape = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        self.dtype = np.dtype(dtype)
        self.size = math.prod(self.shape)
        self.nbytes = self.size * self.dtype.itemsize
        if data is None:
            owner = _Allocation(self.nbytes)
            data = MemoryPointer(owner, owner.ptr)
        self.data = data

    def set(self, values: np.ndarray) -> None:
        if values.nbytes != self.nbytes:
            raise ValueError(f"{values.nbytes} bytes do not fill {self.nbytes}")
        raw = np.ascontiguousarray(values)
        _check(LIBRARY.fake_memcpy(self.data.ptr, raw.ctypes.data, self.nbytes, 1))

    def get(self) -> np.ndarray:
        values = np.empty(self.shape, self.dtype)
        _check(LIBRARY.fake_memcpy(values.ctypes.data, self.data.ptr, self.nbytes, 2))
        return values

    def __getitem__(self, key: slice) -> "ndarray":
        start, stop, _ = key.indices(self.size)
        return ndarray(stop - start, self.dtype, self.data + start * self.dtype.itemsize)

    def __setitem__(self, key: Any, value: Any) -> None:
        _compile("an element-wise kernel")


def empty(shape: Any, dtype: Any = np.float64) -> ndarray:
    return ndarray(shape, dtype)


def asnumpy(array: ndarray) -> np.ndarray:
    return array.get()


def _compile(what: str) -> None:
    if "nvrtc" not in PARTS or fault("nvrtc"):
        raise CompileException(f'{what}: catastrophic error:\n  cannot open source file "cuda_fp16.h"\n')


def _launched(name: str, grid: Any, block: Any, arrays: Any = (), work: float = 0.0, written: int = -1) -> None:
    """Launch one kernel over ``arrays``; the array at position ``written`` is its result."""
    buffers = [array for array in arrays if isinstance(array, ndarray)]
    written %= max(len(buffers), 1)
    operands = (Operand * max(len(buffers), 1))(
        *(Operand(b"array", array.data.ptr, array.nbytes, at == written, 4) for at, array in enumerate(buffers))
    )
    _check(LIBRARY.fake_error())
    status = fault(name)
    if status == SOFT:
        raise CUDARuntimeError(701)
    if status == MEMORY:
        raise OutOfMemoryError("Out of memory")
    if not LIBRARY.fake_reachable(name.encode(), operands, len(buffers)):
        return
    shape = [(*axes, 1, 1)[:3] for axes in (grid, block)]
    moved = float(sum(array.nbytes for array in buffers))
    LIBRARY.fake_launch(Launch(name.encode(), *((ctypes.c_uint32 * 3)(*axes) for axes in shape), 32, 0, 0, work, moved))


class RawKernel:
    """A kernel of the user, declared ``extern "C"`` and compiled at its first use."""

    def __init__(self, code: str, name: str) -> None:
        self._name = name
        if f"{name}(" not in code:
            raise CompileException(f"{name}: not found in the source")
        signature = code.split(f"{name}(")[1].split(")")[0]
        self._arguments = signature.count(",") + bool(signature.strip())

    def compile(self) -> None:
        _compile(self._name)

    def __call__(self, grid: Any, block: Any, arguments: Any) -> None:
        self.compile()
        if len(arguments) != self._arguments or math.prod(block) > 1024:
            raise CUDADriverError("CUDA_ERROR_INVALID_VALUE: invalid argument")
        _launched(self._name, grid, block, arguments)


class RawModule:
    """Several kernels in one source."""

    def __init__(self, code: str) -> None:
        self._code = code

    def get_function(self, name: str) -> RawKernel:
        kernel = RawKernel(self._code, name)
        kernel.compile()
        return kernel


def matmul(a: ndarray, b: ndarray, out: ndarray) -> ndarray:
    if "cublas" not in PARTS or fault("cublasSgemm"):
        raise CUBLASError("CUBLAS_STATUS_NOT_INITIALIZED")
    m, n, k = a.shape[-2], b.shape[-1], a.shape[-1]
    if a.shape[:-1] != out.shape[:-1] or b.shape[-2:] != (k, n) or out.shape[-1] != n:
        raise ValueError("shapes do not match")
    grid = (-(-m // 128), -(-n // 64), out.size // (m * n))
    _launched("ampere_sgemm_128x64_nn", grid, (128,), (a, b, out), 2.0 * out.size * k)
    return out


def add(a: ndarray, b: ndarray, out: ndarray) -> ndarray:
    _compile("add")
    _launched("cupy_add__float32_float32_float32", (-(-out.size // 128),), (128,), (a, b, out))
    return out


class Stream:
    """A stream; ``with`` makes it the current one."""

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self.ptr = LIBRARY.fake_stream()

    def synchronize(self) -> None:
        _check(LIBRARY.fake_synchronize())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Event:
    """A time of the device's clock, which can be read after the host has waited for it."""

    def record(self, stream: Stream | None = None) -> None:
        at_ns, launch = Size(), Size()
        _check(LIBRARY.fake_event(ctypes.byref(at_ns), ctypes.byref(launch)))
        self.at_ns, self.launch = at_ns.value, launch.value

    def synchronize(self) -> None:
        _check(LIBRARY.fake_synchronize())


def _elapsed_ms(start: Event, end: Event) -> float:
    _check(LIBRARY.fake_query(end.launch))
    return float(np.float32((end.at_ns - start.at_ns) / 1e6))


def _device() -> tuple[str, int, int, int, int]:
    name, capability, sms, total, available = ctypes.c_char_p(), ctypes.c_int(), ctypes.c_int(), Size(), Size()
    answers = map(ctypes.byref, (name, capability, sms, total, available))
    _check(LIBRARY.fake_device(*answers))
    return (name.value or b"").decode(), capability.value, sms.value, total.value, available.value


def _properties(device: int) -> dict[str, Any]:
    name, capability, sms, total, _ = _device()
    chip = {"name": name.encode(), "major": capability // 10, "minor": capability % 10, "multiProcessorCount": sms}
    sizes = {"totalGlobalMem": total, "l2CacheSize": 50 << 20, "sharedMemPerMultiprocessor": 228 << 10}
    return chip | sizes | {"clockRate": 1980000, "ECCEnabled": 1, "computeMode": 0}


class Device:
    def __init__(self, device: int = 0) -> None:
        self.id, self.pci_bus_id = device, "0000:01:00.0"

    def synchronize(self) -> None:
        _check(LIBRARY.fake_synchronize())


class _Random:
    """cuRAND's generator; the arrays stay empty, because no test reads them."""

    def standard_normal(self, shape: Any, dtype: Any = float) -> ndarray:
        if "curand" not in PARTS:
            raise ImportError("libcurand.so.10: cannot open shared object file: No such file or directory")
        array = ndarray(shape, dtype)
        _launched("_Z16generate_seed_pseudoyv", (1,), (64,), (array,))
        return array

    def randint(self, low: int, high: int, shape: Any, dtype: Any = int) -> ndarray:
        return self.standard_normal(shape, dtype)


random: Any = _Random()
cuda: Any = SimpleNamespace(
    Device=Device,
    Stream=Stream,
    Event=Event,
    get_elapsed_time=_elapsed_ms,
    runtime=SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        getDeviceProperties=_properties,
        memGetInfo=lambda: _device()[:2:-1],
        runtimeGetVersion=lambda: 12090,
        driverGetVersion=lambda: 12090,
        getDeviceCount=lambda: 1,
        deviceSynchronize=lambda: _check(LIBRARY.fake_synchronize()),
        memset=lambda pointer, value, size: _check(LIBRARY.fake_memset(pointer, value, size)),
        memcpy=lambda to, source, size, kind: _check(LIBRARY.fake_memcpy(to, source, size, kind)),
    ),
    profiler=SimpleNamespace(start=lambda: LIBRARY.fake_profiler(1), stop=lambda: LIBRARY.fake_profiler(0)),
    compiler=SimpleNamespace(CompileException=CompileException),
    memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    cublas=SimpleNamespace(CUBLASError=CUBLASError),
)


def get_default_memory_pool() -> Any:
    return SimpleNamespace(free_all_blocks=lambda: None)
