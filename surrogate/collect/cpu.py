"""Wall-clock times of the plain algorithms on this CPU, and its own data sheet, measured in under two seconds.

The figures say nothing about a GPU; the sheet is a CPU's row beside the GPUs'.
"""

import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from timeit import timeit

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from surrogate.collect.cpu_algorithms import ALGORITHMS, LIBRARY, CpuAlgorithm
from surrogate.collect.device import Device, DeviceInfo, Measurement, RepeatPolicy
from surrogate.collect.plan import CPU_CAPS, tensor_shapes
from surrogate.dataset.threads import usable_cores
from surrogate.features.conv import Conv
from surrogate.features.errors import require_known

FLUSH_BYTES = 64 << 20
"""Written between repeats, so that none finds its data in the cache."""
CPUINFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
GEMM_SIZE = 1024
LEAST_COPY_BYTES, MOST_COPY_BYTES = 64 * 2**20, 256 * 2**20
SECONDS = 0.5
"""Time for each of the two measurements; the copy's first touch of its memory comes on top."""
_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


class CpuDevice(Device):
    """A `Device` on this machine's CPU."""

    def __init__(
        self,
        algorithms: Mapping[str, CpuAlgorithm] = ALGORITHMS,
        spec: Mapping[str, object] | None = None,
        *,
        max_workspace_bytes: int = CPU_CAPS.max_workspace_bytes,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``algorithms``: as `ALGORITHMS`; the CPU's ``spec`` defaults to a measurement of about 2 s."""
        if spec is None:
            steady_threads()
            spec = measure_spec()
        self._algorithms = algorithms
        self._spec = dict(spec)
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

    def _times_us(self, algorithm: CpuAlgorithm, conv: Conv, policy: RepeatPolicy) -> tuple[float, ...]:
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
            x, w = (self._random.standard_normal(tensor_shapes(conv)[role], dtype=np.float32) for role in "xw")
            self._operands = conv, x, w
        return self._operands


def measure_spec() -> dict[str, object]:
    """Describe this machine and measure its two peaks; takes at most about two seconds.

    ``gemm_gflops``: best float32 GEMM of 1024³ (2 flops per multiply-add), with ``threads_used`` threads: the peak of
    the library, not of the silicon. ``copy_gbs``: best copy of one array to another, bytes read plus written, one
    thread, 1e9 bytes per GB. ``last_level_cache_bytes``: as the system states it, else 0.
    """
    cache_bytes = last_level_cache_bytes(CACHES)
    gflops = gemm_gflops(GEMM_SIZE, SECONDS)
    gbs = copy_gbs(min(max(LEAST_COPY_BYTES, 4 * cache_bytes), MOST_COPY_BYTES), SECONDS)
    speeds = {"gemm_gflops": gflops, "copy_gbs": gbs, "last_level_cache_bytes": cache_bytes}
    return {"name": cpu_name(CPUINFO), "threads_used": blas_threads(), **speeds}


def cpu_name(cpuinfo: Path) -> str:
    """The first "model name" of a file laid out as /proc/cpuinfo, else what the platform module knows."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next((name for name in names if name), platform.processor() or platform.machine() or "unknown")


def last_level_cache_bytes(caches: Path) -> int:
    """Size of the highest cache level under a folder laid out as sysfs does (index*/level, size), or 0."""
    level_sizes = [(0, 0)]
    for index in caches.glob("index*"):
        try:
            level, size = (index / "level").read_text().strip(), (index / "size").read_text().strip()
            level_sizes.append((int(level), 2**10 * int(size.removesuffix("K"))))  # sysfs counts in KiB
        except (OSError, ValueError):
            continue  # a virtual machine may hide some of the files
    return max(level_sizes)[1]


def blas_threads() -> int:
    """Threads of the BLAS that NumPy calls; SciPy may bring a second one of its own."""
    pools = [pool for pool in threadpool_info() if pool.get("user_api") == "blas"]
    numpy_pools = [pool for pool in pools if "numpy" in str(pool.get("filepath", ""))] or pools
    return int(numpy_pools[0]["num_threads"]) if numpy_pools else usable_cores()


def steady_threads() -> None:
    """One BLAS thread from here on, unless the environment names a number: more make short times vary."""
    if not any(os.environ.get(name) for name in _THREAD_VARIABLES):
        threadpool_limits(1, user_api="blas")


def gemm_gflops(size: int, seconds: float) -> float:
    """Best rate of a float32 GEMM of ``size``³ in 1e9 flops per second, over about ``seconds``."""
    generator = np.random.default_rng(0)
    a = generator.standard_normal((size, size), dtype=np.float32)
    b = generator.standard_normal((size, size), dtype=np.float32)
    out = np.empty_like(a)
    return 2 * size**3 / _best_seconds(lambda: np.matmul(a, b, out=out), seconds) / 1e9


def copy_gbs(nbytes: int, seconds: float) -> float:
    """Best rate of copying ``nbytes`` bytes in GB/s, counting each byte once read and once written."""
    source = np.ones(nbytes // 4, np.float32)
    target = np.ones_like(source)
    return 2 * source.nbytes / _best_seconds(lambda: np.copyto(target, source), seconds) / 1e9


def _best_seconds(action: Callable[[], object], seconds: float) -> float:
    """Shortest of the runs that fit into ``seconds``, after one to warm up; at least one is timed."""
    action()
    runs_s: list[float] = []
    while sum(runs_s) < seconds:
        runs_s.append(timeit(action, number=1))
    return min(runs_s)
