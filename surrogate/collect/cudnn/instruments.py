"""What every measuring device on the current GPU holds: cuDNN's handle, the GPU's arena, CUPTI, NVML, the stopwatch."""

import ctypes
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from statistics import median
from typing import Any, Self

from surrogate.collect.cudnn.activity import Activity, TracedRepeats, trace_repeats
from surrogate.collect.cudnn.gpu import FLUSH_BYTES, CudaDevice
from surrogate.collect.cudnn.library import CudnnError, Handle, Library
from surrogate.collect.device import SLOW_CLOCK, DeviceInfo, Measurement, RepeatPolicy, throttled
from surrogate.features.errors import InputError

FIRST_WITHOUT_VOLTA = [9, 11]
"""From this cuDNN on, its kernels are for compute capability 7.5 and newer."""
OLDER_CUDNN = "for this GPU: pip install 'nvidia-cudnn-cu12<9.11'"
MAX_TRIES = 3
"""Times that a call is measured while something holds the clock down, `PAUSE_S` apart …"""
PAUSE_S = 0.1
TRIES_AT_FIRST, TRIES_PER_ROW = 20.0, 0.05
"""… as long as the run has tries left: these at its start, and more with each row, for some boards are always held."""
CLOCKS_KEPT = 101
"""Measurements whose median clock is the usual one."""


class Instruments:
    """cuDNN started on the current GPU, and all that times it; the devices on that GPU are made of them."""

    def __init__(
        self,
        max_workspace_bytes: int,
        max_tensor_bytes: int,
        *,
        gpu: CudaDevice | None = None,
        activity: tuple[Activity | None, str] | None = None,
    ) -> None:
        """Raises `InputError` where libcudnn, CuPy or a GPU is missing, or cuDNN does not start.

        ``gpu`` and ``activity`` (CUPTI, or None and why it is missing) are given by the profiled child.
        """
        self.library = Library.load()
        # CUPTI must be on before the CUDA context exists, or it misses what the context launches first
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
        """The user's error for a cuDNN that refuses its first calls."""
        text = f"cuDNN {self.library.version} does not start here: {error}"
        capability = float(str(self.gpu.properties().get("compute_capability", 9.0)))
        if capability < 7.5 and [int(part) for part in self.library.version.split(".")] >= FIRST_WITHOUT_VOLTA:
            text += f"; {OLDER_CUDNN}"
        return InputError(text)

    def facts(self, library: str, **properties: object) -> DeviceInfo:
        """The driver's name of the GPU, cuDNN's version, and everything that could change a time."""
        versions = {**self.gpu.versions(), "cudnn": self.library.version}
        driver = self._clocks.driver_version() if self._clocks else ""
        if driver:
            versions["driver"] = driver
        timer = {"timer": "cupti"}
        if not self.activity:
            timer = {"timer": "events", "cupti_missing": self._why_no_activity}
        facts: dict[str, object] = {"library_path": self.library.path, "flush_bytes": FLUSH_BYTES}
        if unlabelled := self.stopwatch.unlabelled():
            facts["cupti_unlabelled"] = unlabelled
        facts |= self._clocks.facts() if self._clocks else {}
        known = {**self.gpu.properties(), **facts, **timer, **properties}
        return DeviceInfo(self.gpu.name, library, self.library.version, versions, known)

    def conditions(self) -> Mapping[str, float]:
        """Clocks, temperature, power, throttle reasons."""
        return self._clocks.sample() if self._clocks else {}

    def close(self) -> None:
        """Destroy the handle and switch everything off."""
        self.library.call("cudnnDestroy", self.handle)
        for instrument in (self.activity, self._clocks):
            if instrument:
                instrument.close()


class Stopwatch:
    """The instruments of one GPU: ``gpu`` (`surrogate.collect.cudnn.gpu.CudaDevice`), CUPTI's ``activity`` and NVML's
    ``clocks``, if any.
    """

    def __init__(self, gpu: CudaDevice, activity: Activity | None, clocks: "GpuClocks | None" = None) -> None:
        self._gpu = gpu
        self._activity = activity
        self._clocks = clocks
        self._label = 0
        self._clocks_mhz: deque[float] = deque(maxlen=CLOCKS_KEPT)
        self._tries = TRIES_AT_FIRST

    def time(self, call: Callable[[], None], policy: RepeatPolicy) -> Measurement:
        """Times of ``call``, which launches on the GPU's stream. What it raises passes through.

        Where the clock was held down or fell meanwhile, they are taken again, and again; the last ones count.
        """
        warm_us = self.warm(call)
        if warm_us > policy.slow_us:  # the first call also loads the kernels' code: judge by a second
            warm_us = self.warm(call)
        repeats = policy.repeats_for(warm_us)
        taken = self._repeated(call, repeats)
        self._tries += TRIES_PER_ROW
        for _ in range(MAX_TRIES - 1):
            if not self._held_down(taken) or self._tries < 1.0:
                break
            self._tries -= 1.0
            time.sleep(PAUSE_S)
            taken = self._repeated(call, repeats)
        return taken

    def _held_down(self, taken: Measurement) -> bool:
        """True where something held the clock down, or it fell below the usual one."""
        clock = taken.sm_clock_mhz
        usual = median(self._clocks_mhz or (0.0,))
        if clock:
            self._clocks_mhz.append(clock)
        return throttled(taken.throttle_reasons) or bool(clock and clock < SLOW_CLOCK * usual)

    def _repeated(self, call: Callable[[], None], repeats: int) -> Measurement:
        """Times of so many calls, each behind a flush of the cache; nothing else is at work."""
        if self._activity:
            self._activity.empty()
        before = self._clocks.load() if self._clocks else {}
        labels, events = [], []
        for _ in range(repeats):
            self._gpu.flush()
            with self._labelled(labels):
                start = self._gpu.event()
                call()
                events.append((start, self._gpu.event()))
        load = self._clocks.load() if self._clocks else {}  # before the stream is waited for: the GPU is at work
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
        """What is launched inside has a new label, which joins ``labels``."""
        self._label += 1
        labels.append(self._label)
        return self._activity.label(self._label) if self._activity else nullcontext()

    def unlabelled(self) -> list[str]:
        """The APIs of CUDA whose launches CUPTI sees without their label: a small launch by each is tried."""
        without = []
        activity = self._activity
        if not activity:
            return without
        for api, launch in self._gpu.launches().items():
            labels: list[int] = []
            with suppress(RuntimeError):  # CUDA's own, and a device that is lost: the next call meets it, too
                self._gpu.synchronize()
                activity.empty()
                self._gpu.flush()
                with self._labelled(labels):
                    launch()
                self._gpu.synchronize()
                launches, labelled = activity.collect(labels)
                without += [api] if any(launches) and not labelled else []
        return without

    def warm(self, call: Callable[[], None]) -> float:
        """Run once, untraced; the length in µs."""
        start = self._gpu.event()
        call()
        end = self._gpu.event()
        self._gpu.synchronize()
        return self._gpu.elapsed_us(start, end)


def _traced(activity: Activity, labels: Sequence[int]) -> tuple[TracedRepeats | None, str]:
    """The repeats as CUPTI saw them, and where its labels differ; None and why where it lost records.

    Sums without those would be too small.
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
    return seen, f"CUPTI labels {labelled} of {launches} launches; the cache's flushes split them" if differ else ""


class GpuClocks:
    """Clocks, temperature, power and throttle reasons by NVML. Read only: no clock is ever set.

    The GPU is named by its PCI bus id: ``CUDA_VISIBLE_DEVICES`` renumbers CUDA's devices, not NVML's.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    @classmethod
    def open(cls, pci_bus_id: str) -> Self | None:
        """None where NVML or its Python binding (nvidia-ml-py) is missing."""
        try:
            import pynvml  # pyright: ignore[reportMissingImports]
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            return cls(pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id))
        except pynvml.NVMLError:
            return None

    def driver_version(self) -> str:
        """The driver's version, as in ``570.86.15``; empty where NVML does not tell."""
        return str(self._answers(version=lambda: self._nvml.nvmlSystemGetDriverVersion()).get("version", ""))

    def sample(self) -> dict[str, float]:
        """What NVML answers now; a question that this GPU does not answer is left out.

        Keys: sm_clock_mhz, memory_clock_mhz, temperature_c, power_w, throttle_reasons (NVML's bit mask).
        """
        nvml, handle = self._nvml, self._handle
        return self.load() | self._answers(
            memory_clock_mhz=lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            temperature_c=lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            power_w=lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,
        )

    def load(self) -> dict[str, Any]:
        """The two quick questions that tell whether the GPU keeps its clock: sm_clock_mhz, throttle_reasons."""
        nvml, handle = self._nvml, self._handle
        reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        return self._answers(
            sm_clock_mhz=lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            throttle_reasons=lambda: (reasons or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(handle),
        )

    def facts(self) -> dict[str, object]:
        """What a run's header must tell of the board's state; asked while this process, and no other, should hold it.

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
            # one of them is this process, whose number inside a container is another
            other_processes=lambda: max(len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)) - 1, 0),
        )

    def _answers(self, **questions: Callable[[], Any]) -> dict[str, Any]:
        """Name → answer; a question that this GPU, driver or binding does not answer is left out."""
        answers: dict[str, Any] = {}
        for name, ask in questions.items():
            with suppress(self._nvml.NVMLError, AttributeError):
                answers[name] = ask()
        return answers

    def close(self) -> None:
        """Give NVML back."""
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()
