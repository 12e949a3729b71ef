"""The operators on the current GPU, by cuDNN, cuBLAS and kernels of our own, under one stopwatch."""

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from features.errors import InputError
from surrogate.collect.clocks import Clocks
from surrogate.collect.cudnn import abi
from surrogate.collect.cudnn.activity import Activity, facts
from surrogate.collect.cudnn.gpu import Gpu, GpuFaultError
from surrogate.collect.cudnn.library import Library
from surrogate.collect.cudnn.recovery import settle
from surrogate.collect.cudnn.status import CudnnError
from surrogate.collect.cudnn.stopwatch import Stopwatch
from surrogate.collect.device import DeviceInfo, Measurement
from surrogate.collect.operators import cudnn_calls
from surrogate.collect.operators.kernels import CupyCalls
from surrogate.collect.operators.operator import Operator
from surrogate.collect.operators.stream import cupy_stream
from surrogate.collect.protocol import RepeatPolicy

ARENA_BYTES = 1 << 20
"""`Gpu` lends its stream, events and flush here; the operands are CuPy's own, from its pool."""


class OperatorDevice(Protocol):
    """Something that times operators one at a time; `DeviceLostError` where it answers no more."""

    def describe(self) -> DeviceInfo:
        """Facts for the run's header."""
        ...

    def measure(self, operator: Operator, policy: RepeatPolicy) -> Measurement:
        """Our own timing. What goes wrong is a status, not an exception."""
        ...

    def conditions(self) -> Mapping[str, float]:
        """Clocks, temperature, power and throttle flags now; empty if unknown."""
        ...

    def close(self) -> None:
        """Give the device back."""
        ...


class GpuOperators:
    """An `OperatorDevice` on the current GPU."""

    def __init__(self) -> None:
        """Raises `InputError` where libcudnn, CuPy or a GPU is missing."""
        self._library = Library.load()
        self._activity, self._why_no_activity = Activity.open()
        self._gpu = Gpu(ARENA_BYTES, ARENA_BYTES)
        self._clocks = Clocks.open(self._gpu.pci_bus_id)
        import cupy  # pyright: ignore[reportMissingImports]

        self._cupy: Any = cupy
        self._stream = cupy_stream(cupy, self._gpu.stream)
        self._handle = abi.Handle()
        try:
            self._library.check("cudnnCreate", ctypes.byref(self._handle))
            self._library.check("cudnnSetStream", self._handle, self._gpu.stream)
            self._cudnn = cudnn_calls.CudnnCalls(self._library, self._handle)
        except (CudnnError, AttributeError) as error:
            raise InputError(f"cuDNN {self._library.version} does not start here: {error}") from None
        self._own = CupyCalls(cupy)
        self._stopwatch = Stopwatch(self._gpu, self._activity)

    def describe(self) -> DeviceInfo:
        """The driver's name of the GPU, and every library that an operator uses."""
        versions = {**self._gpu.versions(), "cudnn": self._library.version}
        driver = self._clocks.driver_version() if self._clocks else ""
        if driver:
            versions["driver"] = driver
        properties = {**self._gpu.properties(), **facts(self._activity, self._why_no_activity)}
        return DeviceInfo(self._gpu.name, "cuda", self._library.version, versions, properties)

    def measure(self, operator: Operator, policy: RepeatPolicy) -> Measurement:
        """Place the operands, then time the call. Raises `DeviceLostError` after a sticky CUDA error."""
        try:
            with self._stream:
                return self._stopwatch.time(self._prepared(operator), policy)
        except CudnnError as error:
            settle(self._gpu, error.code)
            return Measurement(error.status, str(error))
        except (GpuFaultError, MemoryError, self._cupy.cuda.runtime.CUDARuntimeError) as error:
            settle(self._gpu)
            return Measurement("failed", " ".join(str(error).split()))
        finally:
            self._cupy.get_default_memory_pool().free_all_blocks()

    def conditions(self) -> Mapping[str, float]:
        """Clocks, temperature, power, throttle reasons."""
        return self._clocks.sample() if self._clocks else {}

    def close(self) -> None:
        """Destroy handle and descriptors, and switch the instruments off."""
        self._cudnn.close()
        self._library.call("cudnnDestroy", self._handle)
        if self._activity:
            self._activity.close()
        if self._clocks:
            self._clocks.close()

    def _prepared(self, operator: Operator) -> Callable[[], None]:
        calls = self._cudnn if operator.kind in cudnn_calls.KINDS else self._own
        return calls.prepare(operator, self._random)

    def _random(self, shape: tuple[int, ...]) -> Any:
        return self._cupy.random.standard_normal(shape, dtype=self._cupy.float32)
