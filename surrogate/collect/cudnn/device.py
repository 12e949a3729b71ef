"""The `cudnn` device: it measures cuDNN's legacy convolution algorithms, one call each, on the current GPU."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import numpy as np

from surrogate.collect.cpu import direct, relative_error
from surrogate.collect.cudnn import library
from surrogate.collect.cudnn.gpu import GpuFaultError, synchronize_after_failure
from surrogate.collect.cudnn.instruments import Instruments
from surrogate.collect.cudnn.library import ALGORITHMS, SUCCESS, Convolutions, CudnnError, status_of
from surrogate.collect.device import DeviceInfo, HeuristicEntry, Measurement, RepeatPolicy
from surrogate.collect.plan import GPU_CAPS, tensor_shapes, tensor_sizes_bytes
from surrogate.features import Conv
from surrogate.features.algorithms import algorithm as registered

SELF_CHECK = {math: Conv(n=2, c=64, h=14, k=32, r=3, pad_h=1, math=math) for math in ("fma", "default")}
"""Problems for the relative errors in a run's header: forward, fp32, small enough for float64 on a CPU."""


@dataclass(slots=True)
class _Current:
    """The current problem: descriptors are set and tensors are placed. ``warmed``: the algorithms that ran on it."""

    conv: Conv
    pointers: Mapping[str, int]
    warmed: set[str] = field(default_factory=set)


class CudnnDevice(Instruments):
    """cuDNN's algorithms on the current GPU, with their status, workspace, times and kernels; its heuristic and Find.

    ``stopwatch`` times a call; it can be replaced, as the profiled program does for counters.
    """

    def __init__(
        self,
        *,
        max_workspace_bytes: int = GPU_CAPS.max_workspace_bytes,
        max_tensor_bytes: int = GPU_CAPS.max_tensor_bytes,
        **parts: Any,
    ) -> None:
        """Open the device. ``parts`` are arguments of `Instruments` that replace its own parts.

        Raises `InputError` if libcudnn, CuPy or a GPU is missing.
        """
        super().__init__(max_workspace_bytes, max_tensor_bytes, **parts)
        try:
            self._convolutions = Convolutions(self.library, self.handle)
        except CudnnError as error:
            raise self.does_not_start(error) from None
        self._current: _Current | None = None

    def device_info(self) -> DeviceInfo:
        """Return the facts of the instruments, and each algorithm's relative errors, which reveal its arithmetic."""
        return self.facts("cudnn", relative_errors={math: self._errors(conv) for math, conv in SELF_CHECK.items()})

    def candidates(self, conv: Conv) -> tuple[str, ...]:
        """Return every algorithm in the enumeration of the direction."""
        return ALGORITHMS[conv.direction]

    def heuristic(self, conv: Conv) -> tuple[HeuristicEntry, ...]:
        """Return the order of ``cudnnGetConvolution…Algorithm_v7`` without its times, which are −1."""
        try:
            self._set(conv)
            ranking = self._convolutions.ranking()
        except (CudnnError, MemoryError):
            return ()
        return tuple(_heuristic_entry(conv, entry) for entry in ranking)

    def find(self, conv: Conv) -> tuple[HeuristicEntry, ...]:
        """Return the times of ``cudnnFindConvolution…AlgorithmEx``, one run each, after a warm-up of all algorithms."""
        try:
            current = self._set(conv)
            self._warm_rest(current)
            timed = self._convolutions.find(current.pointers, (self.gpu.workspace, self.gpu.workspace_bytes))
            self.gpu.synchronize()
        except (CudnnError, MemoryError, GpuFaultError) as error:
            synchronize_after_failure(self.gpu, error)
            return ()
        return tuple(_heuristic_entry(conv, entry) for entry in timed)

    def close(self) -> None:
        """Destroy descriptors and handle, and close the instruments."""
        self._convolutions.close()
        super().close()

    def relative_error(self, conv: Conv, algorithm: str) -> float:
        """Return the error of one forward run against float64 on the same operands, ‖y − reference‖ / ‖reference‖.

        The error shows the arithmetic: it is below 1e-5 for FMA, and about 3e-4 with TF32 (10 mantissa bits). ``conv``
        is a forward problem in fp32 and NCHW. Raises `CudnnError`, `MemoryError` or `GpuFaultError` if it cannot run.
        """
        current = self._set(conv)
        workspace_bytes = self._workspace_bytes(current, algorithm)
        if workspace_bytes > self.gpu.workspace_bytes:
            raise MemoryError(f"the workspace needs {workspace_bytes} bytes")
        self.stopwatch.warm(self._call(current, algorithm, workspace_bytes))
        sizes = tensor_sizes_bytes(conv)
        x, w, y = (
            self.gpu.read(current.pointers[role], sizes[role]).view(np.float32).reshape(shape)
            for role, shape in tensor_shapes(conv).items()
        )
        return relative_error(y, direct(x, w, conv))

    def _errors(self, conv: Conv) -> dict[str, float | None]:
        """Return algorithm → relative error on ``conv`` if it runs; None if the error is not finite, as JSON needs."""
        errors: dict[str, float | None] = {}
        for algorithm in ALGORITHMS[conv.direction]:
            try:
                error = self.relative_error(conv, algorithm)
                errors[algorithm] = error if isfinite(error) else None
            except (CudnnError, MemoryError, GpuFaultError) as failure:
                synchronize_after_failure(self.gpu, failure)
        return errors

    def measure(self, conv: Conv, algorithm: str, policy: RepeatPolicy) -> Measurement:
        """Warm up and time the repeats of one algorithm. Raises only `DeviceLostError`, after a sticky CUDA error."""
        deterministic = registered(algorithm, "cudnn", conv.direction).deterministic
        workspace_bytes: int | None = None
        try:
            current = self._set(conv)
            current.warmed.add(algorithm)
            workspace_bytes = self._workspace_bytes(current, algorithm)
            if workspace_bytes > self.gpu.workspace_bytes:
                over = f"{workspace_bytes} bytes exceed the limit of {self.gpu.workspace_bytes}"
                return Measurement("workspace_too_large", over, workspace_bytes=workspace_bytes)
            timed = self.stopwatch.time(self._call(current, algorithm, workspace_bytes), policy)
            return replace(timed, workspace_bytes=workspace_bytes, deterministic=deterministic)
        except (CudnnError, GpuFaultError, MemoryError) as error:
            synchronize_after_failure(self.gpu, error)
            status = error.status if isinstance(error, CudnnError) else "failed"
            return Measurement(status, str(error), workspace_bytes=workspace_bytes)

    def _warm_rest(self, current: _Current) -> None:
        """Run once each algorithm that has not run on this problem in this process (for example after a restart)."""
        for algorithm in ALGORITHMS[current.conv.direction]:
            if algorithm in current.warmed:
                continue
            current.warmed.add(algorithm)
            try:
                workspace_bytes = self._workspace_bytes(current, algorithm)
                if workspace_bytes <= self.gpu.workspace_bytes:
                    self.stopwatch.warm(self._call(current, algorithm, workspace_bytes))
            except (CudnnError, GpuFaultError) as error:
                synchronize_after_failure(self.gpu, error)

    def _call(self, current: _Current, algorithm: str, workspace_bytes: int) -> Callable[[], None]:
        """Return a function that launches the algorithm once on the current problem."""
        number = ALGORITHMS[current.conv.direction].index(algorithm)
        return lambda: self._convolutions.run(number, current.pointers, (self.gpu.workspace, workspace_bytes))

    def _workspace_bytes(self, current: _Current, algorithm: str) -> int:
        return self._convolutions.workspace_bytes(ALGORITHMS[current.conv.direction].index(algorithm))

    def _set(self, conv: Conv) -> _Current:
        """Set descriptors and place tensors of ``conv``, if it is not the current problem."""
        if self._current is not None and self._current.conv == conv:
            return self._current
        self._current = None
        direction = self._convolutions.set_problem(conv)
        sizes = tensor_sizes_bytes(conv)
        placed = self.gpu.place([sizes[role] for role in direction.roles], conv.dtype)
        self._current = _Current(conv, dict(zip(direction.roles, placed, strict=True)))
        return self._current


def _heuristic_entry(conv: Conv, entry: library.AlgoPerf) -> HeuristicEntry:
    """Return one entry of a ranking. cuDNN's time is in ms, and negative if the algorithm was not timed."""
    timed = entry.status == SUCCESS and entry.time >= 0
    return HeuristicEntry(
        algorithm=library.algorithm_name(conv.direction, entry.algo),
        status=status_of(entry.status),
        time_us=1000.0 * entry.time if timed else None,
        deterministic=bool(entry.determinism),
        workspace_bytes=int(entry.memory) if entry.status == SUCCESS else None,
        math=library.math_name(entry.math_type),
    )
