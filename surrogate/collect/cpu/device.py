"""Wall-clock times of the plain algorithms on this CPU; its figures say nothing about a GPU."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from surrogate.collect.cpu.algorithms import ALGORITHMS, LIBRARY
from surrogate.collect.device import Device, DeviceInfo, Measurement, RepeatPolicy
from surrogate.collect.plan import CPU_CAPS, tensor_shapes
from surrogate.features.conv import Conv
from surrogate.features.errors import require_known

FLUSH_BYTES = 64 << 20
"""Written between repeats, so that none finds its data in the cache."""


class CpuDevice(Device):
    """A `Device` on this machine's CPU."""

    def __init__(
        self,
        algorithms: Mapping[str, Any] = ALGORITHMS,
        spec: Mapping[str, Any] | None = None,
        *,
        max_workspace_bytes: int = CPU_CAPS.max_workspace_bytes,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``algorithms``: as `ALGORITHMS`; the CPU's ``spec`` defaults to a measurement of about 2 s."""
        if spec is None:
            from surrogate.collect.cpu import spec as sheet

            sheet.steady_threads()
            spec = sheet.measure_spec()
        self._algorithms, self._spec = algorithms, dict(spec)
        self._max_workspace_bytes = max_workspace_bytes
        self._random = np.random.Generator(np.random.PCG64(0))
        self._clock = clock
        self._operands: tuple[Conv, np.ndarray, np.ndarray] | None = None
        self._flush = np.zeros(FLUSH_BYTES, np.uint8)

    def describe(self) -> DeviceInfo:
        """The CPU by its name; its measured spec is among the properties."""
        major, minor = np.__version__.split(".")[:2]
        name = str(self._spec.get("name") or "CPU")
        return DeviceInfo(name, LIBRARY, f"numpy {major}.{minor}", {"numpy": np.__version__}, self._spec)

    def candidates(self, conv: Conv) -> tuple[str, ...]:
        """All algorithms, in cuDNN's order."""
        return tuple(self._algorithms)

    def measure(self, conv: Conv, algorithm: str, policy: RepeatPolicy) -> Measurement:
        """Warm once, then the policy's repeats, the cache flushed before each. An exception is status ``failed``."""
        require_known("algorithm", algorithm, self._algorithms)
        chosen = self._algorithms[algorithm]
        reason = chosen.unsupported_reason(conv)
        if reason is not None:
            return Measurement("not_supported", reason=reason)
        workspace_bytes = chosen.workspace_bytes(conv)
        if workspace_bytes > self._max_workspace_bytes:
            over = f"{workspace_bytes} bytes exceed the limit of {self._max_workspace_bytes}"
            return Measurement("workspace_too_large", reason=over, workspace_bytes=workspace_bytes)
        try:
            times_us = self._times_us(chosen, conv, policy)
        except (MemoryError, ValueError, ArithmeticError) as error:
            return Measurement("failed", reason=f"{type(error).__name__}: {error}")
        return Measurement("ok", "", times_us, times_us, "wall", workspace_bytes, True)

    def _times_us(self, algorithm: Any, conv: Conv, policy: RepeatPolicy) -> tuple[float, ...]:
        _, x, w = self._placed(conv)

        def call_us() -> float:
            began_s = self._clock()
            algorithm.run(x, w, conv)
            return 1e6 * (self._clock() - began_s)

        times: list[float] = []
        for _ in range(policy.repeats_for(call_us())):
            self._flush += 1
            times.append(call_us())
        return tuple(times)

    def _placed(self, conv: Conv) -> tuple[Conv, np.ndarray, np.ndarray]:
        """Random normal x and w, made once for all algorithms of a problem."""
        if self._operands is None or self._operands[0] != conv:
            shapes = tensor_shapes(conv)
            x, w = (self._random.standard_normal(shapes[role], dtype=np.float32) for role in "xw")
            self._operands = conv, x, w
        return self._operands
