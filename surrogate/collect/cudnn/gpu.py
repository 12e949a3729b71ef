"""The GPU for cuDNN, by CuPy: one arena of memory, one stream, events, an L2 flush, and facts from the driver.

Convolutions use CuPy only through this file, so tests can replace it by a fake.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from surrogate.collect.cudnn.library import CudnnError
from surrogate.collect.device import DeviceLostError, one_line
from surrogate.features import InputError, round_up

FLUSH_BYTES = (256 << 20) + 12_544
"""Bytes written between repeats: more than the L2 cache of any GPU so far. It is no power of two, as tensors often are.
"""
POOL_ELEMENTS = (16 << 20) + 4093
"""Number of random values, drawn once per element type and copied over the operands. It is odd, so that
repeated values do not line up with the rows of an operand."""
POOL_BYTES = 16
"""Memory per random value of the pools of all element types: 8 + 4 + 2 + 2 bytes."""
ALIGNMENT = 256
USABLE = 0.9
"""Share of the free memory that may be used. cuDNN and the CUDA context need the rest."""


class GpuFaultError(RuntimeError):
    """A CUDA error after which the process can continue."""


class CudaDevice:
    """The current CUDA device. All memory is allocated at once, none per problem.

    ``queue`` is CuPy's stream of every call; ``stream`` is the same stream as cudaStream_t. ``workspace`` is a pointer
    to ``workspace_bytes`` bytes. ``name`` is the driver's, for example ``NVIDIA H200``. ``pci_bus_id`` is in NVML's
    form.
    """

    def __init__(self, max_tensor_bytes: int, max_workspace_bytes: int, seed: int = 0) -> None:
        try:
            import cupy  # pyright: ignore[reportMissingImports]
        except ImportError:
            remedy = "pip install 'seer-surrogate[gpu]'"
            raise InputError(f"cuDNN's device needs CuPy, which is not installed; {remedy}") from None
        self._cupy: Any = cupy
        self._error: type[Exception] = cupy.cuda.runtime.CUDARuntimeError
        try:
            self._properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
            self.queue = cupy.cuda.Stream(non_blocking=True)
            free, _ = cupy.cuda.runtime.memGetInfo()
            usable = int(USABLE * free) - FLUSH_BYTES - POOL_BYTES * POOL_ELEMENTS
            if usable <= 0:
                raise MemoryError(f"{free} bytes are free, too few to measure with")
            tensors = min(3 * (max_tensor_bytes + ALIGNMENT), usable // 2)
            self.workspace_bytes = min(max_workspace_bytes, usable - tensors)
            self._tensors = cupy.empty(tensors, cupy.uint8)
            self._workspace = cupy.empty(self.workspace_bytes, cupy.uint8)
            self._flush = cupy.empty(FLUSH_BYTES, cupy.uint8)
            self.pci_bus_id = str(cupy.cuda.Device().pci_bus_id)
            self.stream = int(self.queue.ptr)
            self.workspace = int(self._workspace.data.ptr)
        except (self._error, MemoryError) as error:
            raise InputError(f"no usable GPU: {one_line(error)}; check nvidia-smi and the driver") from None
        name = self._properties["name"]
        self.name = name.decode() if isinstance(name, bytes) else str(name)
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._pools: dict[str, Any] = {}
        self._filled: tuple[str, int] = ("", 0)
        self._flushes = 0

    def versions(self) -> dict[str, str]:
        """Return the versions of CUDA's runtime, of the CUDA that the driver supports, and of CuPy."""
        return {
            "cuda_runtime": _cuda_version(self._cupy.cuda.runtime.runtimeGetVersion()),
            "cuda_driver": _cuda_version(self._cupy.cuda.runtime.driverGetVersion()),
            "cupy": str(self._cupy.__version__),
        }

    def properties(self) -> dict[str, object]:
        """Return facts of the GPU for the header. A property that this CUDA does not report is left out."""
        properties = self._properties
        facts = {
            "compute_capability": f"{properties['major']}.{properties['minor']}",
            "sms": properties.get("multiProcessorCount"),
            "memory_bytes": properties.get("totalGlobalMem"),
            "l2_bytes": properties.get("l2CacheSize"),
            "shared_per_sm_bytes": properties.get("sharedMemPerMultiprocessor"),
            "boost_khz": properties.get("clockRate"),
            "workspace_limit_bytes": self.workspace_bytes,
            "tf32_override": os.environ.get("NVIDIA_TF32_OVERRIDE"),
        }
        return {name: value for name, value in facts.items() if value is not None}

    def place(self, sizes_bytes: Sequence[int], dtype: str) -> list[int]:
        """Return device pointers of two operands, filled with random normal values of ``dtype``, and of a result.

        Operands lie at the arena's start and results at its end. So only memory that a result used is filled again.
        Raises `MemoryError` if the arena is too small.
        """
        first, second, result = (round_up(size, ALIGNMENT) for size in sizes_bytes)
        start = int(self._tensors.data.ptr)
        result_at = (self._tensors.size - result) // ALIGNMENT * ALIGNMENT
        if first + second > result_at:
            raise MemoryError(f"the tensors need {first + second + result} bytes, the arena holds {self._tensors.size}")
        with self._watched():
            self._fill(first + second, dtype)
        self._filled = (dtype, min(self._filled[1], result_at))
        return [start, start + first, start + result_at]

    def read(self, pointer: int, size_bytes: int) -> np.ndarray:
        """Return a copy of ``size_bytes`` bytes of the arena from ``pointer`` on, as uint8 in host memory."""
        offset = pointer - int(self._tensors.data.ptr)
        with self._watched():
            return np.array(self._cupy.asnumpy(self._tensors[offset : offset + size_bytes]))

    def event(self) -> Any:
        """Record an event on the stream and return it."""
        with self._watched():
            event = self._cupy.cuda.Event()
            event.record(self.queue)
        return event

    def elapsed_us(self, start: Any, end: Any) -> float:
        """Return the time between two completed events in µs (resolution about 0.5 µs)."""
        with self._watched():
            return 1000.0 * float(self._cupy.cuda.get_elapsed_time(start, end))

    def flush(self) -> None:
        """Overwrite the L2 cache asynchronously, with another value each time."""
        self._flushes += 1
        with self._watched():
            self._flush.data.memset_async(self._flushes % 256, FLUSH_BYTES, self.queue)

    def synchronize(self) -> None:
        """Wait for the stream; raise its errors."""
        with self._watched():
            self.queue.synchronize()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Turn a CUDA error into a `DeviceLostError` if it is sticky, else into a `GpuFaultError`."""
        try:
            yield
        except self._error as error:
            try:  # every later call returns a sticky error, so one more call shows it
                self._cupy.cuda.runtime.deviceSynchronize()
            except self._error as again:
                raise DeviceLostError(one_line(again)) from None
            raise GpuFaultError(one_line(error)) from None

    def _fill(self, bytes_: int, dtype: str) -> None:
        filled_dtype, filled = self._filled
        if filled_dtype != dtype:
            filled = 0
        if bytes_ <= filled:
            return
        pool = self._pool(dtype)
        offset = filled // pool.size * pool.size
        while offset < bytes_:
            size = min(pool.size, bytes_ - offset)
            (self._tensors.data + offset).copy_from_device_async(pool.data, size, self.queue)
            offset += size
        self._filled = (dtype, bytes_)

    def _pool(self, dtype: str) -> Any:
        """Return standard normal values of ``dtype`` as bytes, drawn by NumPy: CuPy needs cuRAND and CUDA's headers."""
        if dtype not in self._pools:
            values = self._random.standard_normal(POOL_ELEMENTS, dtype=np.float64 if dtype == "fp64" else np.float32)
            if dtype == "fp16":
                values = values.astype(np.float16)
            elif dtype == "bf16":  # NumPy has no bfloat16: the upper half of a float32, rounded
                values = ((values.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)
            raw = values.view(np.uint8)
            pool = self._cupy.empty(raw.size, self._cupy.uint8)
            pool.set(raw)
            self._pools[dtype] = pool
        return self._pools[dtype]


def synchronize_after_failure(gpu: CudaDevice, error: Exception) -> None:
    """Wait for ``gpu`` after the ``error`` of a call. Raises `DeviceLostError` if the error is sticky.

    If the error of cuDNN shows that nothing was launched, there is no wait. A `GpuFaultError` is ignored, because the
    caller has reported the failure.
    """
    if isinstance(error, CudnnError) and not error.may_be_sticky:
        return
    with suppress(GpuFaultError):
        gpu.synchronize()


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
