"""The profiled program: it runs each pair once, after a marker with the pair's number.

Run it by ``python -m surrogate.collect.cudnn.profiled_program PAIRS END``: it begins no pair after END, a time of the
monotonic clock, which all processes share. Warm-up is outside the profiled range. So a profiler with
``--profile-from-start off`` records only the markers and the pairs' kernels. If the other end of its standard input
closes, the program ends within seconds: the profiler that runs it must not outlive the process that started it.
"""

import select
import sys
import threading
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
from surrogate.collect.open_device import end_with_parent
from surrogate.collect.plan import tensor_sizes_bytes

MAX_WORKSPACE_BYTES = 2 << 30
"""The limit of workspaces, which is lower than for times: a replay saves all memory of the program for each kernel.
98 % of the calls of SEER's mixture of problems need less. The other calls are not counted."""
_SOURCE = 'extern "C" __global__ void seer_marker() {}'


class CupyProfiler:
    """A profiled range around a call: cudaProfilerStart/Stop and the marker kernel, by CuPy."""

    def __init__(self, stream: Any) -> None:
        import cupy  # pyright: ignore[reportMissingImports]

        self._profiler = cupy.cuda.profiler
        self._stream = stream
        self._marker = cupy.RawKernel(_SOURCE, MARKER)
        self._marker.compile()

    @contextmanager
    def profiled(self, number: int):
        """Start profiling and launch the marker of ``number``; stop after the block."""
        self._profiler.start()
        with self._stream:
            self._marker((number + 1,), (1,), ())
        try:
            yield
        finally:
            self._stream.synchronize()
            self._profiler.stop()


class ProfiledStopwatch(Stopwatch):
    """A stopwatch that runs one profiled call after the warm-up. The profiler counts; the returned time is not used."""

    def __init__(self, gpu: CudaDevice, profiler: CupyProfiler) -> None:
        super().__init__(gpu, None)
        self._profiler = profiler
        self.number = 0

    def time(self, call: Callable[[], None], policy: RepeatPolicy) -> Measurement:
        """Warm up outside the profiled range of ``number``, then call once inside."""
        warm_us = self.warm(call)
        with self._profiler.profiled(self.number):
            call()
        return Measurement("ok", "", (warm_us,), (warm_us,), "events")


def run_pairs(pairs: Sequence[Pair], device: CudnnDevice, stopwatch: ProfiledStopwatch, end_s: float) -> int:
    """Run the pairs in order, the first one at least, until ``end_s`` (`time.monotonic`); return how many were begun.

    A failure ends only its pair. A lost device ends the process, and later pairs have no counters. ``device`` measures
    with ``stopwatch``; its ``number`` is set for each pair.
    """
    for number, pair in enumerate(pairs):
        if number and time.monotonic() >= end_s:
            return number
        stopwatch.number = number
        device.measure(pair.conv, pair.algorithm, RepeatPolicy())
    return len(pairs)


def main(words: Sequence[str]) -> None:
    """Run the pairs of the file in ``words`` until the time in ``words``."""
    # A profiler that gives no open pipe on ends the program by itself.
    if hasattr(select, "poll") and not select.select([sys.stdin], [], [], 0.0)[0]:
        threading.Thread(target=end_with_parent, args=(sys.stdin,), daemon=True).start()
    path, end_s = words
    pairs = read_pairs(Path(path))
    gpu = CudaDevice(max(max(tensor_sizes_bytes(pair.conv).values()) for pair in pairs), MAX_WORKSPACE_BYTES)
    # The profiler is the process's only CUPTI client, so the device's own CUPTI instrument stays off.
    device = CudnnDevice(gpu=gpu, activity=(None, "a profiler is attached"))
    stopwatch = ProfiledStopwatch(gpu, CupyProfiler(gpu.queue))
    device.stopwatch = stopwatch
    try:
        run_pairs(pairs, device, stopwatch, float(end_s))
    finally:
        device.close()


if __name__ == "__main__":
    main(sys.argv[1:])
