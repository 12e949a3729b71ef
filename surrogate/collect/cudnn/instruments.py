"""The parts of every device on the current GPU: cuDNN's handle, the GPU's arena, CUPTI, NVML, and the stopwatch."""

import ctypes
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from statistics import median
from types import MappingProxyType
from typing import Any, Self

from surrogate.collect.cudnn.activity import Activity, TracedRepeats, trace_repeats
from surrogate.collect.cudnn.gpu import FLUSH_BYTES, CudaDevice
from surrogate.collect.cudnn.library import CudnnError, Handle, Library
from surrogate.collect.device import SLOW_CLOCK, DeviceInfo, Measurement, RepeatPolicy, throttled
from surrogate.features import InputError

FIRST_WITHOUT_VOLTA = [9, 11]
"""The first cuDNN version without kernels for compute capabilities below 7.5."""
OLDER_CUDNN = "for this GPU: pip install 'nvidia-cudnn-cu12<9.11'"
MAX_TRIES = 3
"""Maximum number of measurements of a call while the clock is throttled."""
PAUSE_S = 0.1
"""Seconds between two such measurements."""
TRIES_AT_FIRST, TRIES_PER_ROW = 20.0, 0.05
"""Repeated measurements allowed in a run: at its start, and more for each row. Some boards always throttle."""
CLOCKS_KEPT = 101
"""Number of last measurements that give the usual clock, as their median."""


class Instruments:
    """cuDNN on the current GPU, with the instruments that time it; the base class of the devices on that GPU."""

    def __init__(
        self,
        max_workspace_bytes: int,
        max_tensor_bytes: int,
        *,
        gpu: CudaDevice | None = None,
        activity: tuple[Activity | None, str] | None = None,
    ) -> None:
        """Start cuDNN and the instruments.

        ``gpu`` and ``activity`` (CUPTI, or None and why it is missing) are given by the profiled child process. Raises
        `InputError` if libcudnn, CuPy or a GPU is missing, or if cuDNN does not start.
        """
        self.library = Library.load()
        # CUPTI must be enabled before the CUDA context exists; otherwise it misses the context's first launches.
        self.activity, self._why_no_activity = activity or Activity.open(FLUSH_BYTES)
        self.gpu = gpu or CudaDevice(max_tensor_bytes, max_workspace_bytes)
        self._clocks = GpuClocks.open(self.gpu.pci_bus_id)
        self.handle = Handle()
        try:
            self.library.check("cudnnCreate", ctypes.byref(self.handle))
            self.library.check("cudnnSetStream", self.handle, self.gpu.stream)
        except CudnnError as error:
            raise self.does_not_start(error) from None
        self.stopwatch = Stopwatch(self.gpu, self.activity, self._clocks)

    def does_not_start(self, error: Exception) -> InputError:
        """Return the error for the user if cuDNN's first calls fail."""
        text = f"cuDNN {self.library.version} does not start here: {error}"
        capability = float(str(self.gpu.properties().get("compute_capability", 9.0)))
        if capability < 7.5 and [int(part) for part in self.library.version.split(".")] >= FIRST_WITHOUT_VOLTA:
            text += f"; {OLDER_CUDNN}"
        return InputError(text)

    def facts(self, library: str, **properties: object) -> DeviceInfo:
        """Return the driver's name of the GPU, cuDNN's version, and everything else that can change a time."""
        versions = {**self.gpu.versions(), "cudnn": self.library.version}
        versions |= self._clocks.versions() if self._clocks else {}
        timer = {"timer": "cupti"} if self.activity else {"timer": "events", "cupti_missing": self._why_no_activity}
        facts: dict[str, object] = {"library_path": self.library.path, "flush_bytes": FLUSH_BYTES}
        facts |= self._clocks.facts() if self._clocks else {}
        all_properties = {**self.gpu.properties(), **facts, **timer, **properties}
        return DeviceInfo(self.gpu.name, library, self.library.version, versions, all_properties)

    def conditions(self) -> Mapping[str, float]:
        """Return clocks, temperature, power and throttle reasons."""
        return self._clocks.sample() if self._clocks else {}

    def close(self) -> None:
        """Destroy the handle and close the instruments."""
        self.library.call("cudnnDestroy", self.handle)
        for instrument in (self.activity, self._clocks):
            if instrument:
                instrument.close()


class Stopwatch:
    """The stopwatch of one GPU, ``gpu``, with CUPTI's ``activity`` and NVML's ``clocks`` if they are available."""

    def __init__(self, gpu: CudaDevice, activity: Activity | None, clocks: "GpuClocks | None" = None) -> None:
        self._gpu = gpu
        self._activity = activity
        self._clocks = clocks
        self._label = 0
        self._clocks_mhz: deque[float] = deque(maxlen=CLOCKS_KEPT)
        self._tries = TRIES_AT_FIRST

    def time(self, call: Callable[[], None], policy: RepeatPolicy) -> Measurement:
        """Return the times of ``call``, which launches on the GPU's stream. Errors of ``call`` are not caught.

        If the clock was throttled or dropped, the call is timed again, `MAX_TRIES` times at most; the last times count.
        """
        warm_us = self.warm(call)
        if warm_us > policy.slow_us:  # the first call also loads the kernels' code, so a second call decides
            warm_us = self.warm(call)
        repeats = policy.repeats_for(warm_us)
        measurement = self._repeated(call, repeats)
        self._tries += TRIES_PER_ROW
        for _ in range(MAX_TRIES - 1):
            if not self._is_slowed(measurement) or self._tries < 1.0:
                break
            self._tries -= 1.0
            time.sleep(PAUSE_S)
            measurement = self._repeated(call, repeats, self._clocks.under_load() if self._clocks else {})
        return measurement

    def _is_slowed(self, measurement: Measurement) -> bool:
        """Return True if the clock was throttled, or lower than usual."""
        clock = measurement.sm_clock_mhz
        usual = median(self._clocks_mhz or (0.0,))
        if clock:
            self._clocks_mhz.append(clock)
        return throttled(measurement.throttle_reasons) or bool(clock and clock < SLOW_CLOCK * usual)

    def _repeated(
        self, call: Callable[[], None], repeats: int, before: Mapping[str, Any] = MappingProxyType({})
    ) -> Measurement:
        """Return the times of ``repeats`` calls, each after a flush of the cache, with no other work on the GPU.

        ``before`` holds NVML's answers just before, if the call is timed again. Otherwise only one answer is read.
        """
        if self._activity:
            self._activity.clear()
        labels, events = [], []
        for _ in range(repeats):
            self._gpu.flush()
            with self._labelled(labels):
                start = self._gpu.event()
                call()
                events.append((start, self._gpu.event()))
        load = self._clocks.under_load() if self._clocks else {}  # before the synchronisation, while the GPU is busy
        self._gpu.synchronize()
        if "throttle_reasons" in load:
            load["throttle_reasons"] |= before.get("throttle_reasons", 0)
        spans_us = tuple(self._gpu.elapsed_us(start, end) for start, end in events)
        seen, note = _traced(self._activity, labels) if self._activity else (None, "")
        if seen is None:
            return Measurement("ok", note, times_us=spans_us, spans_us=spans_us, timer="events", **load)
        times = {"times_us": seen.times_us, "spans_us": seen.spans_us, "kernels": seen.kernels}
        return Measurement("ok", note, timer="cupti", **times, **load)

    def _labelled(self, labels: list[int]) -> AbstractContextManager[None]:
        """Give the launches inside a new label, which is added to ``labels``."""
        self._label += 1
        labels.append(self._label)
        return self._activity.label(self._label) if self._activity else nullcontext()

    def warm(self, call: Callable[[], None]) -> float:
        """Run ``call`` once without CUPTI, and return its time in µs."""
        start = self._gpu.event()
        call()
        end = self._gpu.event()
        self._gpu.synchronize()
        return self._gpu.elapsed_us(start, end)


def _traced(activity: Activity, labels: Sequence[int]) -> tuple[TracedRepeats | None, str]:
    """Return the repeats that CUPTI recorded, and a note if its labels differ; None and the reason if records are lost.

    Sums without the lost records would be too small.
    """
    repeats, labelled = activity.collect(labels)
    dropped = activity.dropped()
    if activity.broken:
        return None, f"CUPTI: {activity.broken}; timed by events"
    if dropped:
        return None, f"CUPTI dropped {dropped} records; timed by events"
    seen = trace_repeats(repeats)
    if seen is None:
        return None, "CUPTI's records lack a launch or a flush; timed by events"
    launches = sum(map(len, repeats))
    differ = 0 < labelled < launches
    return seen, f"CUPTI labels {labelled} of {launches} launches; cache flushes separate them" if differ else ""


class GpuClocks:
    """Clocks, temperature, power and throttle reasons from NVML. Nothing is ever set.

    The PCI bus id identifies the GPU, because ``CUDA_VISIBLE_DEVICES`` renumbers CUDA's devices but not NVML's.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    @classmethod
    def open(cls, pci_bus_id: str) -> Self | None:
        """Return the clocks of a GPU; None if NVML or its Python binding (nvidia-ml-py) is missing."""
        try:
            import pynvml  # pyright: ignore[reportMissingImports]
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            return cls(pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id))
        except pynvml.NVMLError:
            return None

    def versions(self) -> dict[str, str]:
        """Return the ``driver``'s version, for example ``570.86.15``; empty if NVML does not report it."""
        return self._answers(driver=lambda: str(self._nvml.nvmlSystemGetDriverVersion()))

    def sample(self) -> dict[str, float]:
        """Return NVML's present values. A value that this GPU does not report is left out.

        Keys: sm_clock_mhz, memory_clock_mhz, temperature_c, power_w, throttle_reasons (NVML's bit mask).
        """
        nvml, handle = self._nvml, self._handle
        return self.under_load() | self._answers(
            memory_clock_mhz=lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            temperature_c=lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            power_w=lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,
        )

    def under_load(self) -> dict[str, Any]:
        """Return the two values that are quick to read and show throttling: sm_clock_mhz, throttle_reasons."""
        nvml, handle = self._nvml, self._handle
        reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        return self._answers(
            sm_clock_mhz=lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            throttle_reasons=lambda: (reasons or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(handle),
        )

    def facts(self) -> dict[str, object]:
        """Return the board's state for a run's header. Call it while no other process should use the GPU.

        Keys: max_sm_clock_mhz, power_limit_w, default_power_limit_w, ecc, mig, mps, other_processes.
        """
        nvml, handle = self._nvml, self._handle
        return self._answers(
            max_sm_clock_mhz=lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
            power_limit_w=lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000.0,
            default_power_limit_w=lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1000.0,
            ecc=lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0]),
            mig=lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]),
            mps=lambda: bool(nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)),
            # One of them is this process. Its id does not identify it, because the id differs inside a container.
            other_processes=lambda: max(len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)) - 1, 0),
        )

    def _answers(self, **questions: Callable[[], Any]) -> dict[str, Any]:
        """Return name → answer. A question that this GPU, driver or binding does not answer is left out."""
        answers: dict[str, Any] = {}
        for name, ask in questions.items():
            with suppress(self._nvml.NVMLError, AttributeError):
                answers[name] = ask()
        return answers

    def close(self) -> None:
        """Shut NVML down."""
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()
