"""The program that is profiled: each pair once, behind a marker that says which pair follows.

``python -m surrogate.collect.cudnn.profiled_program PAIRS SECONDS``. Warm-up runs
outside the profiled range, so a profiler started with ``--profile-from-start off`` sees markers and the
pairs' kernels alone.
"""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from surrogate.collect.counting import MARKER, Pair, read_pairs
from surrogate.collect.cudnn.device import CudnnDevice
from surrogate.collect.cudnn.gpu import CudaDevice
from surrogate.collect.cudnn.instruments import Stopwatch
from surrogate.collect.device import Measurement, RepeatPolicy
from surrogate.collect.plan import GPU_CAPS, tensor_sizes_bytes

_SOURCE = 'extern "C" __global__ void seer_marker() {}'


class CupyProfiler:
    """Brackets a profiled call by cudaProfilerStart/Stop, the marker kernel and NVTX, all by CuPy."""

    def __init__(self, stream: Any) -> None:
        import cupy  # pyright: ignore[reportMissingImports]

        self._cupy = cupy
        self._stream = stream
        self._marker = cupy.RawKernel(_SOURCE, MARKER)
        self._marker.compile()

    @contextmanager
    def profiled(self, number: int, label: str):
        """Start profiling, launch the marker of ``number``, open the range ``label``; then stop."""
        cupy = self._cupy
        cupy.cuda.profiler.start()
        with self._stream:
            self._marker((number + 1,), (1,), ())
        cupy.cuda.nvtx.RangePush(label)
        try:
            yield
        finally:
            cupy.cuda.nvtx.RangePop()
            self._stream.synchronize()
            cupy.cuda.profiler.stop()


class ProfiledStopwatch(Stopwatch):
    """Times by one profiled call after the warm-up: the profiler counts, and the time is of no use."""

    def __init__(self, gpu: CudaDevice, profiler: CupyProfiler) -> None:
        super().__init__(gpu, None)
        self._profiler = profiler
        self.number = 0
        self.label = ""

    def time(self, call: Callable[[], None], policy: RepeatPolicy) -> Measurement:
        """Warm up outside the profiled range of ``number`` and ``label``, then call once inside."""
        warm_us = self.warm(call)
        with self._profiler.profiled(self.number, self.label):
            call()
        return Measurement("ok", "", (warm_us,), (warm_us,), "events")


def run_pairs(pairs: Sequence[Pair], device: CudnnDevice, stopwatch: ProfiledStopwatch, seconds: float) -> int:
    """Run the pairs in order within ``seconds``; returns how many were begun.

    A failure ends its pair alone; a device that is lost ends the process, and later pairs go uncounted. ``device`` has
    ``measure`` and times by ``stopwatch``, which takes ``number`` and ``label``.
    """
    end_s = time.monotonic() + seconds
    for number, pair in enumerate(pairs):
        if time.monotonic() >= end_s:
            return number
        stopwatch.number = number
        stopwatch.label = pair.key
        device.measure(pair.conv, pair.algorithm, RepeatPolicy())
    return len(pairs)


def main(words: Sequence[str]) -> None:
    """Run the list of pairs that ``words`` name."""
    path, seconds = words
    pairs = read_pairs(Path(path))
    tensors = (max(tensor_sizes_bytes(pair.conv).values()) for pair in pairs)
    largest = max([GPU_CAPS.max_tensor_bytes, *tensors])
    gpu = CudaDevice(largest, GPU_CAPS.max_workspace_bytes)
    # the profiler is the process's one client of CUPTI, so the device's own instrument stays off
    device = CudnnDevice(gpu=gpu, activity=(None, "a profiler is attached"))
    stopwatch = ProfiledStopwatch(gpu, CupyProfiler(gpu.queue))
    device.stopwatch = stopwatch
    try:
        run_pairs(pairs, device, stopwatch, float(seconds))
    finally:
        device.close()


if __name__ == "__main__":
    main(sys.argv[1:])
