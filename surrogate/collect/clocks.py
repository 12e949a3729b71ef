"""Clocks, temperature, power and throttle reasons of an NVIDIA GPU, by NVML. Read only: no clock is ever set."""

from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from typing import Any, Self

THROTTLES: Mapping[int, str] = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bit of nvmlClocksEventReasons… (nvml.h) → what slowed the clock. Idle and user settings are no throttling."""


class Clocks:
    """NVML's view of one GPU, named by its PCI bus id (``CUDA_VISIBLE_DEVICES`` renumbers CUDA's devices,
    not NVML's).
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
        reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        questions = {
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,
            "throttle_reasons": lambda: (reasons or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(handle),
        }
        found: dict[str, float] = {}
        for name, ask in questions.items():
            try:
                found[name] = ask()
            except nvml.NVMLError:
                continue
        return found

    def close(self) -> None:
        """Give NVML back."""
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()


def throttles(mask: float | None) -> tuple[str, ...]:
    """What slowed the clock, by name; empty for none or unknown."""
    bits = int(mask) if mask and isfinite(mask) else 0
    return tuple(name for bit, name in THROTTLES.items() if bits & bit)
