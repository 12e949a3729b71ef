"""The operators on the current GPU, by cuDNN, cuBLAS and kernels of our own, under one stopwatch."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from surrogate.collect.cudnn.gpu import GpuFaultError
from surrogate.collect.cudnn.instruments import Instruments, Parts
from surrogate.collect.cudnn.recovery import settle
from surrogate.collect.cudnn.status import CudnnError
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
        self._bench = Instruments(ARENA_BYTES, ARENA_BYTES, Parts())
        self._gpu = self._bench.gpu
        import cupy  # pyright: ignore[reportMissingImports]

        self._cupy: Any = cupy
        self._stream = cupy_stream(cupy, self._gpu.stream)
        try:
            self._cudnn = cudnn_calls.CudnnCalls(self._bench.library, self._bench.handle)
        except (CudnnError, AttributeError) as error:
            raise self._bench.does_not_start(error) from None
        self._own = CupyCalls(cupy)

    def describe(self) -> DeviceInfo:
        """The driver's name of the GPU, and every library that an operator uses."""
        return self._bench.describe("cuda")

    def measure(self, operator: Operator, policy: RepeatPolicy) -> Measurement:
        """Place the operands, then time the call. Raises `DeviceLostError` after a sticky CUDA error."""
        try:
            with self._stream:
                return self._bench.stopwatch.time(self._prepared(operator), policy)
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
        return self._bench.conditions()

    def close(self) -> None:
        """Destroy handle and descriptors, and switch the instruments off."""
        self._cudnn.close()
        self._bench.close()

    def _prepared(self, operator: Operator) -> Callable[[], None]:
        calls = self._cudnn if operator.kind in cudnn_calls.KINDS else self._own
        return calls.prepare(operator, self._random)

    def _random(self, shape: tuple[int, ...]) -> Any:
        return self._cupy.random.standard_normal(shape, dtype=self._cupy.float32)
