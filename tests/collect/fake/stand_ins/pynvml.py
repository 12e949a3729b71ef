"""NVML's binding (nvidia-ml-py) as far as the product asks; FAKE_GPU=none has no driver."""

import os

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0


class NVMLError(Exception):
    """nvmlReturn_t."""


class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818
    """A question that this GPU does not answer."""


class NVMLError_LibraryNotFound(NVMLError):  # noqa: N801, N818
    """No driver."""


def nvmlInit() -> None:  # noqa: N802
    if os.environ.get("FAKE_GPU") == "none":
        raise NVMLError_LibraryNotFound("NVML Shared Library Not Found")


def nvmlShutdown() -> None:  # noqa: N802
    pass


def nvmlDeviceGetHandleByPciBusId(bus: str) -> object:  # noqa: N802
    if bus != "0000:01:00.0":
        raise NVMLError("Not Found")
    return object()


_ANSWERS = {
    "nvmlSystemGetDriverVersion": "575.57.08",
    "nvmlDeviceGetTemperature": 41,
    "nvmlDeviceGetPowerUsage": 312_000,
    "nvmlDeviceGetPowerManagementLimit": 700_000,
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
    "nvmlDeviceGetCurrentClocksEventReasons": 0,
    "nvmlDeviceGetEccMode": [1, 1],
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetComputeMode": 0,
    "nvmlDeviceGetComputeRunningProcesses": [object()],  # this one
    "nvmlDeviceGetMPSComputeRunningProcesses": [],
    "nvmlDeviceGetGraphicsRunningProcesses": [],
    "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
}


def __getattr__(name: str) -> object:
    if name not in _ANSWERS:
        raise AttributeError(name)
    return lambda *_: _ANSWERS[name]


def nvmlDeviceGetClockInfo(handle: object, kind: int) -> int:  # noqa: N802
    return {NVML_CLOCK_SM: 1980, NVML_CLOCK_MEM: 2619}[kind]


def nvmlDeviceGetMaxClockInfo(handle: object, kind: int) -> int:  # noqa: N802
    return nvmlDeviceGetClockInfo(handle, kind)
