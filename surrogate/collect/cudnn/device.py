"""The `cudnn` device: one legacy algorithm = one call, on the current GPU."""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from surrogate.collect.caps import GPU_CAPS, tensor_sizes_bytes
from surrogate.collect.cudnn import abi, enums
from surrogate.collect.cudnn.accuracy import SELF_CHECK, forward_error
from surrogate.collect.cudnn.descriptors import Descriptors
from surrogate.collect.cudnn.directions import DIRECTIONS, Direction, perf_array
from surrogate.collect.cudnn.gpu import GpuFaultError
from surrogate.collect.cudnn.instruments import Instruments, Parts
from surrogate.collect.cudnn.recovery import settle
from surrogate.collect.cudnn.status import SUCCESS, CudnnError, status_of
from surrogate.collect.device import Choice, DeviceInfo, Measurement
from surrogate.collect.protocol import RepeatPolicy
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError, nearest


@dataclass(slots=True)
class _Current:
    """The problem whose descriptors are set and whose tensors are placed; ``warmed`` are the algorithms run already."""

    conv: Conv
    direction: Direction
    pointers: Mapping[str, int]
    scales: tuple[Any, Any]
    warmed: set[str]


class CudnnDevice:
    """cuDNN's algorithms on the current GPU: their status, workspace, times and kernels; its heuristic; its Find.

    ``stopwatch`` times a call; another one may be put in its place, as the counters do.
    """

    def __init__(
        self,
        *,
        max_workspace_bytes: int = GPU_CAPS.max_workspace_bytes,
        max_tensor_bytes: int = GPU_CAPS.max_tensor_bytes,
        self_check: bool = True,
        **parts: Any,
    ) -> None:
        """``parts``: fields of `Parts`. Raises `InputError` where libcudnn, CuPy or a GPU is missing."""
        self._bench = Instruments(max_workspace_bytes, max_tensor_bytes, Parts(**parts))
        self._library, self._gpu, self._handle = self._bench.library, self._bench.gpu, self._bench.handle
        try:
            self._descriptors = Descriptors(self._library)
        except CudnnError as error:
            raise self._bench.does_not_start(error) from None
        self._self_check = self_check
        self._current: _Current | None = None
        self.stopwatch = self._bench.stopwatch

    def describe(self) -> DeviceInfo:
        """The instruments' facts, and by which arithmetic each algorithm ran."""
        if not self._self_check:
            return self._bench.describe("cudnn")
        errors = {math: self._errors(conv) for math, conv in SELF_CHECK.items()}
        return self._bench.describe("cudnn", relative_errors=errors)

    def candidates(self, conv: Conv) -> tuple[str, ...]:
        """Every algorithm of the direction's enumeration."""
        return tuple(enums.ALGORITHMS[conv.direction])

    def heuristic(self, conv: Conv) -> tuple[Choice, ...]:
        """The order of ``cudnnGetConvolution…Algorithm_v7``; its times (−1) are left out."""
        count, perf = ctypes.c_int(), perf_array()
        try:
            current = self._set(conv)
            arguments = current.direction.rank_arguments(self._handle, self._descriptors.by_role, count, perf)
            self._library.check(current.direction.rank_function, *arguments)
        except (CudnnError, MemoryError):
            return ()
        return tuple(_choice(conv, entry) for entry in perf[: count.value])

    def find(self, conv: Conv) -> tuple[Choice, ...]:
        """What ``cudnnFindConvolution…AlgorithmEx`` times, once each; every algorithm has been warmed before."""
        count, perf = ctypes.c_int(), perf_array()
        try:
            current = self._set(conv)
            self._warm_rest(current)
            workspace = (self._gpu.workspace, self._gpu.workspace_bytes)
            arguments = current.direction.find_arguments(
                self._handle, self._descriptors.by_role, current.pointers, count, perf, workspace
            )
            self._library.check(current.direction.find_function, *arguments)
            self._gpu.synchronize()
        except (CudnnError, MemoryError, GpuFaultError):
            settle(self._gpu)
            return ()
        return tuple(_choice(conv, entry) for entry in perf[: count.value])

    def conditions(self) -> Mapping[str, float]:
        """Clocks, temperature, power, throttle reasons."""
        return self._bench.conditions()

    def close(self) -> None:
        """Destroy descriptors and handle, and switch the instruments off."""
        self._descriptors.close()
        self._bench.close()

    def relative_error(self, conv: Conv, algorithm: str) -> float:
        """Error of one forward run against float64 on the same operands: it tells which arithmetic ran.

        Raises `InputError` for a backward problem, `CudnnError`, `MemoryError` or `GpuFaultError` where it cannot run.
        """
        if conv.direction != "fwd":
            raise InputError(
                f"direction {conv.direction} cannot be checked; the check is of forward problems"
            )
        current = self._set(conv)
        workspace_bytes = self._workspace_bytes(current, algorithm)
        if workspace_bytes > self._gpu.workspace_bytes:
            raise MemoryError(f"the workspace needs {workspace_bytes} bytes")
        self.stopwatch.warm(self._call(current, algorithm, workspace_bytes))
        sizes = tensor_sizes_bytes(conv)
        x, w, y = (self._gpu.read(current.pointers[role], sizes[role]) for role in ("x", "w", "y"))
        return forward_error(conv, x, w, y)

    def _errors(self, conv: Conv) -> dict[str, float | None]:
        """Algorithm → relative error on ``conv``, of those that run; None where it is not finite (JSON has no NaN)."""
        found: dict[str, float | None] = {}
        for algorithm in enums.ALGORITHMS[conv.direction]:
            try:
                error = self.relative_error(conv, algorithm)
                found[algorithm] = error if isfinite(error) else None
            except (CudnnError, MemoryError, GpuFaultError):
                settle(self._gpu)
        return found

    def measure(self, conv: Conv, algorithm: str, policy: RepeatPolicy) -> Measurement:
        """Workspace, warm-up, repeats. Raises `DeviceLostError` after a sticky CUDA error, nothing else."""
        known = enums.ALGORITHMS[conv.direction]
        if algorithm not in known:
            raise InputError(
                f"algorithm {algorithm!r} is unknown; known: {', '.join(known)}{nearest(algorithm, known)}"
            )
        deterministic = (conv.direction, algorithm) not in enums.NON_DETERMINISTIC
        workspace_bytes: int | None = None
        try:
            current = self._set(conv)
            current.warmed.add(algorithm)
            workspace_bytes = self._workspace_bytes(current, algorithm)
            if workspace_bytes > self._gpu.workspace_bytes:
                over = f"{workspace_bytes} bytes exceed the limit of {self._gpu.workspace_bytes}"
                return Measurement("workspace_too_large", over, workspace_bytes=workspace_bytes)
            call = self._call(current, algorithm, workspace_bytes)
            return self.stopwatch.time(call, policy, workspace_bytes, deterministic)
        except CudnnError as error:
            settle(self._gpu, error.code)
            return Measurement(error.status, str(error), workspace_bytes=workspace_bytes)
        except (GpuFaultError, MemoryError) as error:
            settle(self._gpu)
            return Measurement("failed", str(error), workspace_bytes=workspace_bytes)

    def _warm_rest(self, current: _Current) -> None:
        """Run once what has not run on this problem yet in this process (after a restart, say)."""
        for algorithm in enums.ALGORITHMS[current.conv.direction]:
            if algorithm in current.warmed:
                continue
            current.warmed.add(algorithm)
            try:
                workspace_bytes = self._workspace_bytes(current, algorithm)
                if workspace_bytes <= self._gpu.workspace_bytes:
                    self.stopwatch.warm(self._call(current, algorithm, workspace_bytes))
            except CudnnError as error:
                settle(self._gpu, error.code)
            except GpuFaultError:
                settle(self._gpu)

    def _call(self, current: _Current, algorithm: str, workspace_bytes: int) -> Callable[[], None]:
        """What launches the algorithm once on the current problem."""
        number = enums.ALGORITHMS[current.conv.direction][algorithm]
        workspace = (self._gpu.workspace, workspace_bytes)
        arguments = current.direction.run_arguments(
            self._handle, self._descriptors.by_role, current.pointers, number, workspace, current.scales
        )
        return lambda: self._library.check(current.direction.run_function, *arguments)

    def _workspace_bytes(self, current: _Current, algorithm: str) -> int:
        size = ctypes.c_size_t()
        number = enums.ALGORITHMS[current.conv.direction][algorithm]
        arguments = current.direction.workspace_arguments(
            self._handle, self._descriptors.by_role, number, size
        )
        self._library.check(current.direction.workspace_function, *arguments)
        return size.value

    def _set(self, conv: Conv) -> _Current:
        """Descriptors and tensors of ``conv``, made anew only when the problem changes."""
        if self._current is not None and self._current.conv == conv:
            return self._current
        self._current = None
        self._descriptors.set(conv)
        direction = DIRECTIONS[conv.direction]
        sizes = tensor_sizes_bytes(conv)
        placed = self._gpu.place([sizes[role] for role in direction.roles], conv.dtype)
        pointers = dict(zip(direction.roles, placed, strict=True))
        self._current = _Current(conv, direction, pointers, _scales(conv.dtype), set())
        return self._current


def _scales(dtype: str) -> tuple[Any, Any]:
    """References to alpha = 1 and beta = 0: double for fp64, float for everything else."""
    number = ctypes.c_double if dtype == "fp64" else ctypes.c_float
    return ctypes.byref(number(1.0)), ctypes.byref(number(0.0))


def _choice(conv: Conv, entry: abi.AlgoPerf) -> Choice:
    """One entry of a ranking; cuDNN's time is in ms, negative where nothing was timed."""
    timed = entry.status == SUCCESS and entry.time >= 0
    return Choice(
        enums.algorithm_name(conv.direction, entry.algo),
        status_of(entry.status),
        1000.0 * entry.time if timed else None,
        int(entry.memory) if entry.status == SUCCESS else None,
        bool(entry.determinism),
        enums.math_name(entry.math_type),
    )
