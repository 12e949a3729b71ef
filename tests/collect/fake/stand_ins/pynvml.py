"""NVML's binding (nvidia-ml-py) as far as the product asks; FAKE_GPU=none has no driver."""

import os

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0


class NVMLError(Exception):
    """nvmlReturn_t, of which every other error is a kind."""


_CLOCKS = {NVML_CLOCK_SM: 1980, NVML_CLOCK_MEM: 2619}
_ANSWERS = {
    "nvmlInit": None, "nvmlShutdown": None, "nvmlDeviceGetHandleByPciBusId": object(),
    "nvmlSystemGetDriverVersion": "575.57.08", "nvmlDeviceGetTemperature": 41, "nvmlDeviceGetPowerUsage": 312_000,
    "nvmlDeviceGetPowerManagementLimit": 700_000, "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
    "nvmlDeviceGetCurrentClocksEventReasons": 0, "nvmlDeviceGetEccMode": [1, 1], "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetMPSComputeRunningProcesses": [], "nvmlDeviceGetComputeRunningProcesses": [object()],  # this one
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name in ("nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo"):
        return lambda handle, kind: _CLOCKS[kind]
    if name not in _ANSWERS:
        raise AttributeError(name)
    return lambda *arguments: _answer(name)


def _answer(name: str) -> object:
    if os.environ.get("FAKE_GPU") == "none":
        raise NVMLError("NVML Shared Library Not Found")
    return _ANSWERS[name]
