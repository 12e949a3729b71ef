"""cuDNN's own list of engine configurations for a GPU that is not installed: its heuristic for a described device.

NVIDIA's ``nvidia-cudnn-frontend`` gets the list from libcudnn 9.11 to 9.26 without a driver (the extra ``heuristic``).
"""

import json
from typing import Any

from surrogate.collect.cudnn.graph import MODES, ListedConfigurations, load_frontend, refusals
from surrogate.collect.cudnn.library import HEURISTIC_REMEDY, Library
from surrogate.collect.device import DeviceInfo, HeuristicEntry, one_line
from surrogate.features import CUDNN_GRAPH, LIMITS, WARP_THREADS, Conv, Gpu, InputError, read_toml

FIRST_VERSION = 90800
"""The first cuDNN version that accepts a described device."""
SHARED = read_toml(__file__)
"""Properties with the same value for all described devices."""


class HeuristicDevice:
    """cuDNN's heuristic for one described GPU."""

    def __init__(self, gpu: Gpu) -> None:
        """Describe ``gpu`` to cuDNN.

        Raises `InputError` if cuDNN or its frontend is missing or too old, or if cuDNN cannot describe ``gpu``.
        """
        self.gpu = gpu
        description = properties_json(gpu)  # refuses an impossible GPU before cuDNN is loaded
        library = _library()
        self._version = library.version
        self._cudnn: Any = load_frontend(library)
        try:
            self._target = self._cudnn.create_device_properties(description)
        except refusals(self._cudnn) as error:
            cannot = f"cuDNN {self._version} cannot describe {gpu.name} ({one_line(error)})"
            raise InputError(f"{cannot}; {HEURISTIC_REMEDY}") from None

    def device_info(self) -> DeviceInfo:
        """Return the GPU, cuDNN's version, and the modes of the heuristic; no time is taken."""
        facts = {"deviceless": True, "heuristic_mode": "+".join(MODES)}
        return DeviceInfo(self.gpu.name, CUDNN_GRAPH, self._version, {"cudnn": self._version}, facts)

    def heuristic(self, conv: Conv) -> tuple[HeuristicEntry, ...]:
        """Return the engine configurations for ``conv``, best first; empty if cuDNN has none."""
        try:
            plans = ListedConfigurations(self._cudnn, conv, device_property=self._target)
        except refusals(self._cudnn):  # no engine of cuDNN supports the problem
            return ()
        return tuple(
            HeuristicEntry(name, "ok", workspace_bytes=plan.workspace_bytes, deterministic=plans.is_deterministic(name))
            for name, plan in plans.built.items()
        )

    def close(self) -> None:
        """Do nothing: the frontend's objects free themselves."""


def properties_json(gpu: Gpu) -> str:
    """Return the JSON that cuDNN needs, from the GPU's datasheet.

    The registry has no memory clock, only the bandwidth. So the memory clock is computed from the bandwidth of a
    5,120-bit interface with two transfers per clock. Raises `InputError` for a GPU that is not NVIDIA's, or too old.
    """
    if gpu.vendor != "nvidia" or gpu.compute_capability not in LIMITS:
        rule = f"it needs an NVIDIA GPU of compute capability {', '.join(map(str, LIMITS))}"
        raise InputError(f"GPU {gpu.name} cannot be described to cuDNN 9; {rule}")
    limits = LIMITS[gpu.compute_capability]
    properties = {
        **SHARED,
        "deviceVer": round(gpu.compute_capability * 100),
        "multiProcessorCount": gpu.sms,
        "maxSharedMemoryPerBlockOptin": int(limits.optin_bytes),
        "reservedSharedMemoryPerBlock": int(limits.reserved_bytes),
        "maxCtasPerSM": int(limits.blocks),
        "maxThreadsPerSM": int(limits.warps) * WARP_THREADS,
        "totalGlobalMem": gpu.memory_bytes,
        "smClockRateKHz": round(gpu.boost_mhz * 1e3),
        "memClockRateKHz": round(gpu.dram_gbs * 1e9 / (2 * 5120 / 8) / 1e3),
        "l2CacheSize": gpu.l2_bytes,
        "supportCoopLaunch": int(gpu.compute_capability >= 6.0),
        "deviceName": gpu.aliases[0] if gpu.aliases else gpu.name,
    }
    return json.dumps(properties)


def _library() -> Library:
    try:
        library = Library.load()
    except InputError as error:
        reason = str(error).split(";")[0]
        raise InputError(f"the heuristic needs cuDNN: {reason}; {HEURISTIC_REMEDY}") from None
    if library.version_number < FIRST_VERSION:
        raise InputError(f"cuDNN {library.version} cannot rank for a described GPU; {HEURISTIC_REMEDY}")
    return library
