"""What every measuring device on the current GPU holds: cuDNN's handle, the GPU's arena, CUPTI, NVML, the stopwatch."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from surrogate.collect.clocks import Clocks
from surrogate.collect.cudnn import abi
from surrogate.collect.cudnn.activity import Activity
from surrogate.collect.cudnn.gpu import FLUSH_BYTES, Gpu
from surrogate.collect.cudnn.library import Library
from surrogate.collect.cudnn.status import CudnnError
from surrogate.collect.cudnn.stopwatch import Stopwatch
from surrogate.collect.device import DeviceInfo
from surrogate.features.errors import InputError


@dataclass(frozen=True, slots=True)
class Parts:
    """Stand-ins for parts of `Instruments`, for tests and the profiled child; None: the real one.

    ``activity`` is CUPTI (or None) and why it is missing.
    """

    library: Any = None
    gpu: Any = None
    activity: tuple[Any, str] | None = None
    clocks: Any = None


class Instruments:
    """cuDNN started on the current GPU, and all that times it."""

    def __init__(self, max_workspace_bytes: int, max_tensor_bytes: int, parts: Parts) -> None:
        """Raises `InputError` where libcudnn, CuPy or a GPU is missing, or cuDNN does not start."""
        self.library = parts.library or Library.load()
        # CUPTI must be on before the CUDA context exists, or it misses what the context launches first
        self.activity, self._why_no_activity = parts.activity or Activity.open(FLUSH_BYTES)
        self.gpu = parts.gpu or Gpu(max_tensor_bytes, max_workspace_bytes)
        self._clocks = parts.clocks or Clocks.open(self.gpu.pci_bus_id)
        self.handle = abi.Handle()
        try:
            self.library.check("cudnnCreate", ctypes.byref(self.handle))
            self.library.check("cudnnSetStream", self.handle, self.gpu.stream)
        except CudnnError as error:
            raise self.does_not_start(error) from None
        self.stopwatch = Stopwatch(self.gpu, self.activity)

    def does_not_start(self, error: Exception) -> InputError:
        """The user's error for a cuDNN that refuses its first calls."""
        return InputError(f"cuDNN {self.library.version} does not start here: {error}")

    def describe(self, library: str, **properties: Any) -> DeviceInfo:
        """The driver's name of the GPU, cuDNN's version, and everything that could change a time."""
        versions = {**self.gpu.versions(), "cudnn": self.library.version}
        driver = self._clocks.driver_version() if self._clocks else ""
        if driver:
            versions["driver"] = driver
        timer = {"timer": "events", "cupti_missing": self._why_no_activity}
        if self.activity:
            timer = {"timer": "cupti"}
        known = {**self.gpu.properties(), **timer, **properties}
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
