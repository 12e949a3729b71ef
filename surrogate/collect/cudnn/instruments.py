"""What every measuring device on the current GPU holds: cuDNN's handle, the GPU's arena, CUPTI, NVML, the stopwatch."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, Self

from surrogate.collect.cudnn.activity import Activity, Traced, traced
from surrogate.collect.cudnn.gpu import FLUSH_BYTES, Gpu
from surrogate.collect.cudnn.library import CudnnError, Handle, Library
from surrogate.collect.device import DeviceInfo, Measurement, RepeatPolicy
from surrogate.features.errors import InputError

FIRST_WITHOUT_VOLTA = [9, 11]
"""From this cuDNN on, its kernels are for compute capability 7.5 and newer."""
OLDER_CUDNN = "for this GPU: pip install 'nvidia-cudnn-cu12<9.11'"


class Instruments:
    """cuDNN started on the current GPU, and all that times it; the devices on that GPU are made of them."""

    def __init__(
        self,
        max_workspace_bytes: int,
        max_tensor_bytes: int,
        *,
        library: Any = None,
        gpu: Any = None,
        activity: tuple[Any, str] | None = None,
        clocks: Any = None,
    ) -> None:
        """Raises `InputError` where libcudnn, CuPy or a GPU is missing, or cuDNN does not start.

        ``library``, ``gpu``, ``activity`` (CUPTI, or None and why it is missing) and ``clocks`` stand in for the real
        ones in tests and in the profiled child.
        """
        self.library = library or Library.load()
        # CUPTI must be on before the CUDA context exists, or it misses what the context launches first
        self.activity, self._why_no_activity = activity or Activity.open(FLUSH_BYTES)
        self.gpu = gpu or Gpu(max_tensor_bytes, max_workspace_bytes)
        self._clocks = clocks or Clocks.open(self.gpu.pci_bus_id)
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
        capability = float(self.gpu.properties().get("compute_capability", 9.0))
        if capability < 7.5 and [int(part) for part in self.library.version.split(".")] >= FIRST_WITHOUT_VOLTA:
            text += f"; {OLDER_CUDNN}"
        return InputError(text)

    def facts(self, library: str, **properties: Any) -> DeviceInfo:
        """The driver's name of the GPU, cuDNN's version, and everything that could change a time."""
        versions = {**self.gpu.versions(), "cudnn": self.library.version}
        driver = self._clocks.driver_version() if self._clocks else ""
        if driver:
            versions["driver"] = driver
        timer = {"timer": "cupti"}
        if not self.activity:
            timer = {"timer": "events", "cupti_missing": self._why_no_activity}
        facts = {"library_path": self.library.path, "flush_bytes": FLUSH_BYTES}
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
    """The instruments of one GPU: ``gpu`` (`surrogate.collect.cudnn.gpu.Gpu`), CUPTI's ``activity`` and NVML's
    ``clocks``, if any.
    """

    def __init__(self, gpu: Any, activity: Any, clocks: Any = None) -> None:
        self._gpu = gpu
        self._activity = activity
        self._clocks = clocks
        self._label = 0

    def time(self, call: Callable[[], None], policy: RepeatPolicy) -> Measurement:
        """Times of ``call``, which launches on the GPU's stream. What it raises passes through."""
        warm_us = self.warm(call)
        if warm_us > policy.slow_us:  # the first call also loads the kernels' code: judge by a second
            warm_us = self.warm(call)
        labels, events = [], []
        for _ in range(policy.repeats_for(warm_us)):
            self._gpu.flush()
            self._label += 1
            labels.append(self._label)
            with self._activity.label(self._label) if self._activity else nullcontext():
                start = self._gpu.event()
                call()
                events.append((start, self._gpu.event()))
        load = self._clocks.load() if self._clocks else {}  # before the stream is waited for: the GPU is at work
        self._gpu.synchronize()
        spans_us = tuple(self._gpu.elapsed_us(start, end) for start, end in events)
        seen, why_not = self._traced(labels) if self._activity else (None, "")
        if seen is None:
            return Measurement("ok", why_not, spans_us, spans_us, "events", **load)
        return Measurement("ok", "", seen.times_us, seen.spans_us, "cupti", kernels=seen.kernels, **load)

    def _traced(self, labels: Sequence[int]) -> tuple[Traced | None, str]:
        """The repeats as CUPTI saw them; None and why where it lost records: sums without them would be too small."""
        repeats = self._activity.collect(labels)
        dropped = self._activity.dropped()
        if self._activity.broken:
            return None, f"CUPTI: {self._activity.broken}; timed by events"
        if dropped:
            return None, f"CUPTI dropped {dropped} records; timed by events"
        seen = traced(repeats)
        return seen, "" if seen else "CUPTI saw no kernel; timed by events"

    def warm(self, call: Callable[[], None]) -> float:
        """Run once, untraced; the length in µs."""
        start = self._gpu.event()
        call()
        end = self._gpu.event()
        self._gpu.synchronize()
        return self._gpu.elapsed_us(start, end)


class Clocks:
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
        try:
            return str(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError:
            return ""

    def sample(self) -> dict[str, float]:
        """What NVML answers now; a question that this GPU does not answer is left out.

        Keys: sm_clock_mhz, memory_clock_mhz, temperature_c, power_w, throttle_reasons (NVML's bit mask).
        """
        nvml, handle = self._nvml, self._handle
        return {
            **self.load(),
            **self._answers(
                memory_clock_mhz=lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
                temperature_c=lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
                power_w=lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,
            ),
        }

    def load(self) -> dict[str, Any]:
        """The two quick questions that tell whether the GPU keeps its clock: sm_clock_mhz, throttle_reasons."""
        nvml, handle = self._nvml, self._handle
        reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        return self._answers(
            sm_clock_mhz=lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            throttle_reasons=lambda: (reasons or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(handle),
        )

    def facts(self) -> dict[str, Any]:
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
