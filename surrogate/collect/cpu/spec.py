"""The CPU's own data sheet, measured in under two seconds: a CPU's row beside the GPUs'."""

import os
import platform
from collections.abc import Callable
from pathlib import Path
from timeit import timeit
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

CPUINFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
GEMM_SIZE = 1024
LEAST_COPY_BYTES, MOST_COPY_BYTES = 64 * 2**20, 256 * 2**20
SECONDS = 0.5
"""Time for each of the two measurements; the copy's first touch of its memory comes on top."""
_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def measure_spec() -> dict[str, Any]:
    """Describe this machine and measure its two peaks; takes at most about two seconds.

    ``gemm_gflops``: best float32 GEMM of 1024³ (2 flops per multiply-add), with ``threads_used`` threads: the peak of
    the library, not of the silicon. ``copy_gbs``: best copy of one array to another, bytes read plus written, one
    thread, 1e9 bytes per GB. ``last_level_cache_bytes``: as the system states it, else 0.
    """
    cache_bytes = last_level_cache_bytes(CACHES)
    return {
        "name": cpu_name(CPUINFO),
        "threads_used": blas_threads(),
        "gemm_gflops": gemm_gflops(GEMM_SIZE, SECONDS),
        "copy_gbs": copy_gbs(min(max(LEAST_COPY_BYTES, 4 * cache_bytes), MOST_COPY_BYTES), SECONDS),
        "last_level_cache_bytes": cache_bytes,
    }


def cpu_name(cpuinfo: Path) -> str:
    """The first "model name" of a file laid out as /proc/cpuinfo, else what the platform module knows."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next((name for name in names if name), platform.processor() or platform.machine() or "unknown")


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
