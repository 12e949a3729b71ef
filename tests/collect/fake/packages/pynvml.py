"""A fake of NVML's binding (nvidia-ml-py); FAKE_GPU=none has no driver, and a fault "clock" throttles the GPU."""

import os
import tomllib
from pathlib import Path

from cuda_runtime import LIBRARY

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
HARDWARE_SLOWDOWN = 0x8


class NVMLError(Exception):
    """The base class of NVML's errors."""


_CLOCKS = {NVML_CLOCK_SM: 1980, NVML_CLOCK_MEM: 2619}
_ANSWERS: dict[str, object] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""The answer of each function; the only process is this one."""


def __getattr__(name: str) -> object:
    if name == "nvmlDeviceGetMaxClockInfo":
        return lambda handle, kind: _CLOCKS[kind]
    if name == "nvmlDeviceGetClockInfo":
        return lambda handle, kind: _CLOCKS[kind] * (0.6 if LIBRARY.fake_held_down() else 1)
    if name == "nvmlDeviceGetCurrentClocksEventReasons":
        return lambda handle: HARDWARE_SLOWDOWN if LIBRARY.fake_held_down() else 0
    if name not in _ANSWERS:
        raise AttributeError(name)
    return lambda *arguments: _answer(name)


def _answer(name: str) -> object:
    if os.environ.get("FAKE_GPU") == "none":
        raise NVMLError("NVML Shared Library Not Found")
    return _ANSWERS[name]
