"""The `reference` device: this machine's CPU and the NumPy algorithms of `surrogate.collect.reference`.

It proves the whole path from plan to model on any machine; its figures say nothing about a GPU.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from surrogate.collect.caps import CPU_CAPS
from surrogate.collect.device import Choice, DeviceInfo, Measurement
from surrogate.collect.protocol import RepeatPolicy
from surrogate.features.conv import Conv
from surrogate.features.errors import InputError, nearest

LIBRARY = "reference"
FLUSH_BYTES = 64 << 20
"""Written between repeats, so that none finds its data in the cache."""


class ReferenceAlgorithm(Protocol):
    """One algorithm of the reference library."""

    @property
    def name(self) -> str:
        """Its name, cuDNN's."""
        ...

    def unsupported_reason(self, conv: Conv) -> str | None:
        """Why it cannot run ``conv``; None where it can."""
        ...

    def workspace_bytes(self, conv: Conv) -> int:
        """Buffers beyond input, filter and output, in bytes."""
        ...

    def run(self, x: np.ndarray, w: np.ndarray, conv: Conv) -> np.ndarray:
        """The output (n, k, p, q) of x (n, c, h, w) and w (k, c/groups, r, s), float32."""
        ...


@dataclass(slots=True)
class _Inputs:
    """Random normal input and filter of the problem measured last, made once for all its algorithms."""

    conv: Conv | None = None
    x: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    w: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))


class ReferenceDevice:
    """Wall-clock times of the reference algorithms on this CPU."""

    def __init__(
        self,
        algorithms: Mapping[str, ReferenceAlgorithm] | None = None,
        spec: Mapping[str, Any] | None = None,
        *,
        max_workspace_bytes: int = CPU_CAPS.max_workspace_bytes,
        seed: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``algorithms`` and the CPU's ``spec`` default to the reference library and a measurement of about 2 s."""
        if algorithms is None:
            from surrogate.collect.reference import ALGORITHMS

            algorithms = ALGORITHMS
        if spec is None:
            from surrogate.collect.reference.spec import measure_spec, steady_threads

            steady_threads()
            spec = measure_spec().to_dict()
        self._algorithms = algorithms
        self._spec = dict(spec)
        self._max_workspace_bytes = max_workspace_bytes
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._clock = clock
        self._inputs = _Inputs()
        self._flush = np.zeros(FLUSH_BYTES, np.uint8)

    def describe(self) -> DeviceInfo:
        """The CPU by its name; its measured spec is among the properties."""
        major, minor = np.__version__.split(".")[:2]
        name = str(self._spec.get("name") or "CPU")
        return DeviceInfo(name, LIBRARY, f"numpy {major}.{minor}", {"numpy": np.__version__}, self._spec)

    def candidates(self, conv: Conv) -> tuple[str, ...]:
        """All algorithms, in cuDNN's order."""
        return tuple(self._algorithms)

    def heuristic(self, conv: Conv) -> tuple[Choice, ...]:
        """None: the reference library has no opinion."""
        return ()

    def find(self, conv: Conv) -> tuple[Choice, ...]:
        """None, likewise."""
        return ()

    def conditions(self) -> Mapping[str, float]:
        """Unknown."""
        return {}

    def close(self) -> None:
        """Nothing to give back."""

    def measure(self, conv: Conv, algorithm: str, policy: RepeatPolicy) -> Measurement:
        """Warm once, then the policy's repeats, the cache flushed before each. An exception is status ``failed``."""
        if algorithm not in self._algorithms:
            raise InputError(
                f"algorithm {algorithm!r} is unknown; known: {', '.join(self._algorithms)}"
                f"{nearest(algorithm, self._algorithms)}"
            )
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

    def _times_us(self, algorithm: ReferenceAlgorithm, conv: Conv, policy: RepeatPolicy) -> tuple[float, ...]:
        x, w = self._data(conv)
        repeats = policy.repeats_for(self._call_us(algorithm, x, w, conv))
        times: list[float] = []
        for _ in range(repeats):
            self._flush += 1
            times.append(self._call_us(algorithm, x, w, conv))
        return tuple(times)

    def _call_us(self, algorithm: ReferenceAlgorithm, x: np.ndarray, w: np.ndarray, conv: Conv) -> float:
        began = self._clock()
        algorithm.run(x, w, conv)
        return 1e6 * (self._clock() - began)

    def _data(self, conv: Conv) -> tuple[np.ndarray, np.ndarray]:
        if self._inputs.conv != conv:
            x = self._random.standard_normal((conv.n, conv.c, conv.h, conv.w), dtype=np.float32)
            w = self._random.standard_normal(
                (conv.k, conv.c // conv.groups, conv.r, conv.s), dtype=np.float32
            )
            self._inputs = _Inputs(conv, x, w)
        return self._inputs.x, self._inputs.w
