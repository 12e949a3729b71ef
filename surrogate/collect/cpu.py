"""The CPU device: seven convolution algorithms on NumPy and SciPy, their wall-clock times, and the CPU's datasheet.

The algorithms use the methods of cuDNN's algorithms, in fp32, NCHW and the forward direction. They test the path from
plan to model on any machine; their times do not apply to a GPU. Each takes x (n, c, h, w) and w (k, c/groups, r, s) and
returns y (n, k, p, q). `surrogate.features.algorithms` lists the problems that each supports. The CPU's datasheet is
measured in under two seconds, and describes the CPU as the registry describes GPUs.
"""

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from timeit import timeit
from typing import Any

import numpy as np
import scipy.fft
from numpy.lib.stride_tricks import sliding_window_view
from threadpoolctl import threadpool_info, threadpool_limits

from surrogate.collect.device import Device, DeviceInfo, Measurement, RepeatPolicy
from surrogate.collect.plan import CPU_CAPS, tensor_shapes
from surrogate.dataset.threads import usable_cores
from surrogate.features import Conv, ceil_div, check_choice, read_toml, unsupported_reason

LIBRARY = "reference"
TILE = 32
"""Inputs per tile and axis of FFT_TILING."""


@dataclass(frozen=True, slots=True)
class CpuAlgorithm:
    """A convolution algorithm on the CPU.

    ``run(x, w, conv)`` returns y. ``workspace_bytes(conv)`` returns the bytes of its larger intermediate arrays.
    """

    name: str
    run: Callable[[np.ndarray, np.ndarray, Conv], np.ndarray] = field(repr=False)
    workspace_bytes: Callable[[Conv], int] = field(repr=False)

    def unsupported_reason(self, conv: Conv) -> str | None:
        """Return the reason why ``run`` does not support ``conv``, or None."""
        for name, supported in (("direction", "fwd"), ("dtype", "fp32"), ("layout", "NCHW")):
            if getattr(conv, name) != supported:
                return f"{name} {getattr(conv, name)}: the CPU device runs {supported} only"
        if conv.math not in ("fma", "default"):
            return f"math {conv.math}: the CPU device has no tensor cores"
        problem: Any = conv  # the rules' protocol also accepts arrays, and asks for settable fields
        return unsupported_reason(self.name, problem, library=LIBRARY)


def direct(x: np.ndarray, w: np.ndarray, conv: Conv) -> np.ndarray:
    """Return the exact result in float64: y[n,k,p,q] = Σ_{c,r,s} x[n,c,p·u+r·l−pad_h,q·v+s·j−pad_w] · w[k,c,r,s]."""
    windows = _windows(_padded(x.astype(np.float64), conv), conv)
    # Channels are split by group: windows (n, groups, c/groups, p, q, r, s), taps (groups, k/groups, c/groups, r, s).
    windows = windows.reshape(conv.n, conv.groups, -1, *windows.shape[2:])
    taps = w.astype(np.float64).reshape(conv.groups, conv.k // conv.groups, *w.shape[1:])
    y = np.einsum("ngcpqrs,gkcrs->ngkpq", windows, taps, optimize=True)
    return y.reshape(conv.n, conv.k, conv.out_h, conv.out_w)


def relative_error(y: np.ndarray, reference: np.ndarray) -> float:
    """Return ‖y − reference‖ / ‖reference‖ (Frobenius norms in float64); the norm of ``y`` if the reference is zero."""
    norm = float(np.linalg.norm(reference))
    return float(np.linalg.norm(y.astype(np.float64) - reference)) / (norm or 1.0)


def _padded(x: np.ndarray, conv: Conv, height: int = 0, width: int = 0) -> np.ndarray:
    """Return x with its padding, and with more zeros below and right up to ``height`` × ``width`` at least."""
    below = max(conv.pad_h, height - conv.pad_h - conv.h)
    right = max(conv.pad_w, width - conv.pad_w - conv.w)
    return np.pad(x, ((0, 0), (0, 0), (conv.pad_h, below), (conv.pad_w, right)))


def _windows(padded: np.ndarray, conv: Conv) -> np.ndarray:
    """Return the input window of each output, as a view (n, c, p, q, r, s)."""
    reach = conv.dilation_h * (conv.r - 1) + 1, conv.dilation_w * (conv.s - 1) + 1
    strides = slice(None, None, conv.stride_h), slice(None, None, conv.stride_w)
    dilations = slice(None, None, conv.dilation_h), slice(None, None, conv.dilation_w)
    return sliding_window_view(padded, reach, axis=(2, 3))[:, :, *strides, *dilations]


def implicit_gemm(x: np.ndarray, w: np.ndarray, conv: Conv) -> np.ndarray:
    """Return y as a sum of small GEMMs, one per image and filter tap, on the tap's inputs."""
    groups, c, k = conv.groups, conv.c // conv.groups, conv.k // conv.groups
    windows = _windows(_padded(x, conv), conv)
    taps = np.ascontiguousarray(w.reshape(groups, k, c, conv.r, conv.s).transpose(3, 4, 0, 1, 2))
    y = np.zeros((conv.n, groups, k, conv.out_h * conv.out_w), np.float32)
    for image in range(conv.n):
        for r, s in np.ndindex(conv.r, conv.s):
            y[image] += taps[r, s] @ windows[image, ..., r, s].reshape(groups, c, -1)
    return y.reshape(conv.n, conv.k, conv.out_h, conv.out_w)


def implicit_precomp_gemm(x: np.ndarray, w: np.ndarray, conv: Conv) -> np.ndarray:
    """Return y by one gather and one GEMM per group for each image; the input offsets are computed once."""
    padded = _padded(x, conv)
    plane = np.arange(padded[0, 0].size).reshape(1, 1, *padded.shape[2:])
    offsets = _windows(plane, conv)[0, 0].transpose(2, 3, 0, 1).reshape(-1)  # taps, then positions
    weights = w.reshape(conv.groups, conv.k // conv.groups, -1)
    y = np.empty((conv.n, conv.groups, conv.k // conv.groups, conv.out_h * conv.out_w), np.float32)
    for image in range(conv.n):
        columns = np.take(padded[image].reshape(conv.c, -1), offsets, axis=1)
        np.matmul(weights, columns.reshape(conv.groups, weights.shape[2], -1), out=y[image])
    return y.reshape(conv.n, conv.k, conv.out_h, conv.out_w)


def gemm(x: np.ndarray, w: np.ndarray, conv: Conv) -> np.ndarray:
    """Return y by a product with the complete im2col matrix (n, c, r, s, p, q), which is written to memory first."""
    columns = np.ascontiguousarray(_windows(_padded(x, conv), conv).transpose(0, 1, 4, 5, 2, 3))
    weights = w.reshape(conv.groups, conv.k // conv.groups, -1)
    y = weights @ columns.reshape(conv.n, conv.groups, weights.shape[2], -1)
    return y.reshape(conv.n, conv.k, conv.out_h, conv.out_w)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Overlapping input tiles of ``height`` × ``width``. Each tile gives ``step_h`` × ``step_w`` outputs."""

    height: int
    width: int
    step_h: int
    step_w: int
    rows: int
    columns: int

    @classmethod
    def of(cls, conv: Conv, height: int, width: int) -> "_Tiles":
        step_h, step_w = height - conv.r + 1, width - conv.s + 1
        return cls(height, width, step_h, step_w, ceil_div(conv.out_h, step_h), ceil_div(conv.out_w, step_w))

    def cut(self, x: np.ndarray, conv: Conv) -> np.ndarray:
        """Return the tiles of x as a view (n, c, rows, columns, height, width)."""
        height = (self.rows - 1) * self.step_h + self.height
        width = (self.columns - 1) * self.step_w + self.width
        windows = sliding_window_view(_padded(x, conv, height, width), (self.height, self.width), axis=(2, 3))
        return windows[:, :, :: self.step_h, :: self.step_w]

    def join(self, parts: np.ndarray, conv: Conv) -> np.ndarray:
        """Return y from the tiles' outputs (n, k, rows, columns, step_h, step_w), cut to the size of y."""
        n, k = parts.shape[:2]
        y = parts.transpose(0, 1, 2, 4, 3, 5).reshape(n, k, self.rows * self.step_h, self.columns * self.step_w)
        return np.ascontiguousarray(y[:, :, : conv.out_h, : conv.out_w])


def _fft_tiles(conv: Conv, tile: int | None) -> _Tiles:
    """Return tiles of ``tile`` × ``tile``, or one over the padded image, with a length that SciPy transforms fast."""
    sizes = (tile or conv.h + 2 * conv.pad_h, tile or conv.w + 2 * conv.pad_w)
    fast: Any = scipy.fft.next_fast_len
    return _Tiles.of(conv, *(fast(size, real=True) for size in sizes))


def fft(x: np.ndarray, w: np.ndarray, conv: Conv, tile: int | None = None) -> np.ndarray:
    """Return y by Fourier transforms of tiles and filter, with one complex GEMM per frequency.

    The filter's conjugate spectrum makes the product a correlation. The correlation is circular, so only the outputs
    with a window fully inside the tile are kept (overlap-save).
    """
    tiles = _fft_tiles(conv, tile)
    shape = tiles.height, tiles.width
    # Frequencies are the first axes, so the spectra are stacks of matrices: (tiles × c) and (c × k).
    cut = np.ascontiguousarray(tiles.cut(x, conv).transpose(4, 5, 0, 2, 3, 1)).reshape(*shape, -1, conv.c)
    taps = np.ascontiguousarray(w.transpose(2, 3, 1, 0))
    spectra: Any = scipy.fft.rfft2(cut, axes=(0, 1))
    filters: Any = scipy.fft.rfft2(taps, s=shape, axes=(0, 1))
    product = spectra @ np.conjugate(filters, out=filters)
    parts: Any = scipy.fft.irfft2(product, s=shape, axes=(0, 1))
    step = tiles.step_h, tiles.step_w
    parts = parts[: step[0], : step[1]].reshape(*step, conv.n, tiles.rows, tiles.columns, conv.k)
    return tiles.join(parts.transpose(2, 5, 3, 4, 0, 1), conv)


def _fft_workspace(conv: Conv, tile: int | None = None) -> int:
    """Return the bytes of the spectra of tiles, filters and products, complex64."""
    tiles = _fft_tiles(conv, tile)
    count = conv.n * tiles.rows * tiles.columns
    frequencies = tiles.height * (tiles.width // 2 + 1)
    return 8 * frequencies * (count * conv.c + conv.c * conv.k + count * conv.k)


WINOGRAD: Mapping[int, tuple[np.ndarray, ...]] = {
    int(m): tuple(
        (np.array(rows[name]) / (rows["over"] if name == "g" else 1)).astype(np.float32) for name in ("at", "g", "bt")
    )
    for m, rows in read_toml(__file__, "winograd.toml").items()
}
"""m → (Aᵀ, G, Bᵀ) of F(m×m, 3×3)."""


def winograd(x: np.ndarray, w: np.ndarray, conv: Conv, m: int, fused: bool) -> np.ndarray:
    """Return y by minimal filtering F(m×m, 3×3): y = Aᵀ[(G g Gᵀ) ⊙ (Bᵀ d B)]A per tile, with one GEMM per point.

    If ``fused``, each image goes through all stages before the next image. Else each stage processes the whole batch.
    """
    at, g, bt = WINOGRAD[m]
    groups = conv.groups
    tiles = _Tiles.of(conv, m + 2, m + 2)
    # The points of a transformed tile are the first axis, so each point is one GEMM.
    # Filters have shape (points, groups, k/groups, c/groups).
    filters = _transformed(g, w.transpose(2, 3, 0, 1))
    filters = filters.reshape((m + 2) ** 2, groups, conv.k // groups, conv.c // groups)
    images = 1 if fused else conv.n
    parts = []
    for start in range(0, conv.n, images):
        cut = tiles.cut(x[start : start + images], conv)
        inputs = _transformed(bt, cut.transpose(4, 5, 1, 0, 2, 3))
        # (points, groups, k/groups, tiles)
        product = filters @ inputs.reshape((m + 2) ** 2, groups, conv.c // groups, -1)
        outputs = _transformed(at, product.reshape(m + 2, m + 2, -1))
        outputs = outputs.reshape(m, m, conv.k, images, tiles.rows, tiles.columns)
        parts.append(outputs.transpose(3, 2, 4, 5, 0, 1))
    return tiles.join(np.concatenate(parts), conv)


def _transformed(matrix: np.ndarray, tiles: np.ndarray) -> np.ndarray:
    """Return ``matrix`` (a × t) applied to the first two axes of ``tiles`` (t, t, …), by two GEMMs: (a, a, rest)."""
    a, t = matrix.shape
    rows = matrix @ np.ascontiguousarray(tiles).reshape(t, -1)
    return matrix @ rows.reshape(a, t, -1)


def _winograd_workspace(conv: Conv, m: int, fused: bool) -> int:
    """Return the bytes of the transformed filters, inputs and products, float32."""
    tiles = _Tiles.of(conv, m + 2, m + 2)
    count = (1 if fused else conv.n) * tiles.rows * tiles.columns
    return 4 * (m + 2) ** 2 * (conv.k * conv.c // conv.groups + count * (conv.c + conv.k))


def _implicit_workspace(conv: Conv) -> int:
    """Return the bytes of one tap's inputs of one image, and of their product."""
    return 4 * conv.out_h * conv.out_w * (conv.c + conv.k)


def _precomp_workspace(conv: Conv) -> int:
    """Return the bytes of the offsets, and of the columns of one image."""
    return conv.r * conv.s * conv.out_h * conv.out_w * (8 + 4 * conv.c)


def _gemm_workspace(conv: Conv) -> int:
    """Return the bytes of the im2col matrix of the whole batch."""
    return 4 * conv.n * conv.c * conv.r * conv.s * conv.out_h * conv.out_w


ALGORITHMS: Mapping[str, CpuAlgorithm] = {
    name: CpuAlgorithm(name, compute, workspace)
    for name, compute, workspace in (
        ("IMPLICIT_GEMM", implicit_gemm, _implicit_workspace),
        ("IMPLICIT_PRECOMP_GEMM", implicit_precomp_gemm, _precomp_workspace),
        ("GEMM", gemm, _gemm_workspace),
        ("FFT", fft, _fft_workspace),
        ("FFT_TILING", partial(fft, tile=TILE), partial(_fft_workspace, tile=TILE)),
        ("WINOGRAD", partial(winograd, m=2, fused=True), partial(_winograd_workspace, m=2, fused=True)),
        ("WINOGRAD_NONFUSED", partial(winograd, m=4, fused=False), partial(_winograd_workspace, m=4, fused=False)),
    )
}
"""Name → algorithm, in the order of cudnnConvolutionFwdAlgo_t (without 3, DIRECT, which no library implements)."""


FLUSH_BYTES = 64 << 20
"""Bytes written between repeats, so that no repeat finds its data in the cache."""
CPUINFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
GEMM_SIZE = 1024
MIN_COPY_BYTES, MAX_COPY_BYTES = 64 * 2**20, 256 * 2**20
PEAK_SECONDS = 0.5
"""Seconds for each of the two measured peaks. The first run of each is a warm-up and is not counted."""
_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


class CpuDevice(Device):
    """A `Device` on this machine's CPU."""

    def __init__(
        self,
        algorithms: Mapping[str, CpuAlgorithm] = ALGORITHMS,
        datasheet: Mapping[str, object] | None = None,
        *,
        max_workspace_bytes: int = CPU_CAPS.max_workspace_bytes,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Open the CPU. ``algorithms`` is as `ALGORITHMS`. The default ``datasheet`` is measured in about 2 s."""
        if datasheet is None:
            limit_blas_threads()
            datasheet = measure_datasheet()
        self._algorithms = algorithms
        self._datasheet = dict(datasheet)
        self._max_workspace_bytes = max_workspace_bytes
        self._random = np.random.Generator(np.random.PCG64(0))
        self._clock = clock
        self._operands: tuple[Conv, np.ndarray, np.ndarray] | None = None
        self._flush = np.zeros(FLUSH_BYTES, np.uint8)

    def device_info(self) -> DeviceInfo:
        """Return the CPU's name, with its measured datasheet as the properties."""
        major, minor = np.__version__.split(".")[:2]
        name = str(self._datasheet.get("name") or "CPU")
        return DeviceInfo(name, LIBRARY, f"numpy {major}.{minor}", {"numpy": np.__version__}, self._datasheet)

    def candidates(self, conv: Conv) -> tuple[str, ...]:
        """Return all algorithms, in cuDNN's order."""
        return tuple(self._algorithms)

    def measure(self, conv: Conv, algorithm: str, policy: RepeatPolicy) -> Measurement:
        """Run once to warm up, then time the repeats, each after a cache flush. An exception is status ``failed``."""
        check_choice("algorithm", algorithm, self._algorithms)
        measured = self._algorithms[algorithm]
        reason = measured.unsupported_reason(conv)
        if reason is not None:
            return Measurement("not_supported", reason=reason)
        workspace_bytes = measured.workspace_bytes(conv)
        if workspace_bytes > self._max_workspace_bytes:
            over = f"{workspace_bytes} bytes exceed the limit of {self._max_workspace_bytes}"
            return Measurement("workspace_too_large", reason=over, workspace_bytes=workspace_bytes)
        try:
            times_us = self._times_us(measured, conv, policy)
        except (MemoryError, ValueError, ArithmeticError) as error:
            return Measurement("failed", reason=f"{type(error).__name__}: {error}")
        return Measurement("ok", "", times_us, times_us, "wall", workspace_bytes, True)

    def _times_us(self, algorithm: CpuAlgorithm, conv: Conv, policy: RepeatPolicy) -> tuple[float, ...]:
        x, w = self._operands_of(conv)

        def call_us() -> float:
            began_s = self._clock()
            algorithm.run(x, w, conv)
            return 1e6 * (self._clock() - began_s)

        times: list[float] = []
        for _ in range(policy.repeats_for(call_us())):
            self._flush += 1
            times.append(call_us())
        return tuple(times)

    def _operands_of(self, conv: Conv) -> tuple[np.ndarray, np.ndarray]:
        """Return random normal x and w, the same for all algorithms of a problem."""
        if self._operands is None or self._operands[0] != conv:
            x, w = (self._random.standard_normal(tensor_shapes(conv)[role], dtype=np.float32) for role in "xw")
            self._operands = conv, x, w
        return self._operands[1:]


def measure_datasheet() -> dict[str, object]:
    """Return this machine's datasheet with two measured peaks; this takes about two seconds at most.

    - ``gemm_gflops``: the best float32 GEMM of 1024³ (2 flops per multiply-add) with ``threads_used`` threads. It is
      the peak of the library, not of the hardware.
    - ``copy_gbs``: the best copy of one array to another by one thread, bytes read plus written, 1e9 bytes per GB.
    - ``last_level_cache_bytes``: as the system states it, else 0.
    """
    cache_bytes = last_level_cache_bytes(CACHES)
    gflops = gemm_gflops(GEMM_SIZE, PEAK_SECONDS)
    gbs = copy_gbs(min(max(MIN_COPY_BYTES, 4 * cache_bytes), MAX_COPY_BYTES), PEAK_SECONDS)
    speeds = {"gemm_gflops": gflops, "copy_gbs": gbs, "last_level_cache_bytes": cache_bytes}
    return {"name": cpu_name(CPUINFO), "threads_used": blas_threads(), **speeds}


def cpu_name(cpuinfo: Path) -> str:
    """Return the first "model name" in a file like /proc/cpuinfo, else the name from the platform module."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next((name for name in names if name), platform.processor() or platform.machine() or "unknown")


def last_level_cache_bytes(caches: Path) -> int:
    """Return the size of the highest cache level in a folder like sysfs's (index*/level, size), or 0."""
    level_sizes = [(0, 0)]
    for index in caches.glob("index*"):
        try:
            level, size = (index / "level").read_text().strip(), (index / "size").read_text().strip()
            level_sizes.append((int(level), 2**10 * int(size.removesuffix("K"))))  # sysfs counts in KiB
        except (OSError, ValueError):
            continue  # a virtual machine may hide some of the files
    return max(level_sizes)[1]


def blas_threads() -> int:
    """Return the number of threads of NumPy's BLAS; SciPy may load a second BLAS."""
    pools = [pool for pool in threadpool_info() if pool.get("user_api") == "blas"]
    numpy_pools = [pool for pool in pools if "numpy" in str(pool.get("filepath", ""))] or pools
    return int(numpy_pools[0]["num_threads"]) if numpy_pools else usable_cores()


def limit_blas_threads() -> None:
    """Limit BLAS to one thread, unless the environment sets a number: with more threads short times vary."""
    if not any(os.environ.get(name) for name in _THREAD_VARIABLES):
        threadpool_limits(1, user_api="blas")


def gemm_gflops(size: int, seconds: float) -> float:
    """Return the best rate of a float32 GEMM of ``size``³ over about ``seconds``, in 1e9 flops per second."""
    generator = np.random.default_rng(0)
    a = generator.standard_normal((size, size), dtype=np.float32)
    b = generator.standard_normal((size, size), dtype=np.float32)
    out = np.empty_like(a)
    return 2 * size**3 / _best_seconds(lambda: np.matmul(a, b, out=out), seconds) / 1e9


def copy_gbs(nbytes: int, seconds: float) -> float:
    """Return the best rate of a copy of ``nbytes`` bytes in GB/s. Each byte counts as one read and one write."""
    source = np.ones(nbytes // 4, np.float32)
    target = np.ones_like(source)
    return 2 * source.nbytes / _best_seconds(lambda: np.copyto(target, source), seconds) / 1e9


def _best_seconds(action: Callable[[], object], seconds: float) -> float:
    """Return the shortest run within ``seconds``, after a warm-up; at least one run is timed."""
    action()
    runs_s: list[float] = []
    while sum(runs_s) < seconds:
        runs_s.append(timeit(action, number=1))
    return min(runs_s)
