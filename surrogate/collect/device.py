"""The `Device` protocol of a measuring device, the rules of timing, and the frozen records that devices return.

The loop (`surrogate.collect.run`), the log and the merge use devices only through this protocol. So a recorded run
(`surrogate.collect.log`) or a CPU can replace a GPU. A call runs once to warm up, then 5 times. It runs 3 times if it
takes over 20 ms, and once if it takes over 100 ms. The time is the median of the repeats. The log keeps all repeats.
"""

import ctypes
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any, Protocol, Self

import msgspec

from surrogate.dataset.columns import STATUSES
from surrogate.features import Conv
from surrogate.features.caches import cached_texts

UNSTABLE_MAD = 0.05
"""A row is unstable if its MAD exceeds this share of its median (pyperf warns at a similar share of the mean)."""
UNSTABLE_SPREAD = 1.5
"""A row is also unstable if its slowest repeat exceeds its median by this factor."""
SLOW_CLOCK = 0.95
"""A row is flagged if its SM clock was below this share of the run's median SM clock."""
FMA_ERROR, WINOGRAD_ERROR = 1e-5, 1e-4
"""Bounds of the relative errors of fp32 FMA. They exclude TF32 (about 3e-4). Winograd's larger tiles lose digits."""
THROTTLES = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""Bits of nvmlClocksEventReasons… (nvml.h) for a slowed clock: power cap, hardware slowdown, software and hardware
thermal slowdown, power brake. Idle clocks and clocks set by the user do not count as throttling.
"""


@dataclass(frozen=True, slots=True)
class RepeatPolicy:
    """The number of repeats of a call, by its length."""

    repeats: int = 5
    slow_repeats: int = 3
    slow_us: float = 20_000.0
    slowest_repeats: int = 1
    slowest_us: float = 100_000.0

    def repeats_for(self, warm_us: float) -> int:
        """Return the number of repeats of a call if its warm-up took ``warm_us`` µs."""
        if warm_us > self.slowest_us:
            return self.slowest_repeats
        return self.slow_repeats if warm_us > self.slow_us else self.repeats


POLICY = RepeatPolicy()
"""The default policy."""


def summarise(times_us: Sequence[float]) -> dict[str, Any]:
    """Return the table columns that summarise the repeats of one measurement, in µs.

    The columns are median, extremes, median absolute deviation (unscaled), the number of repeats, and ``stable``.
    ``stable`` is False if the repeats scatter, and None for a single repeat. Without a time, only ``repeats`` has a
    value, 0.
    """
    if not times_us:
        return dict.fromkeys(("time_us", "time_us_min", "time_us_max", "time_us_mad", "stable")) | {"repeats": 0}
    median, minimum, maximum = statistics.median(times_us), min(times_us), max(times_us)
    mad = statistics.median(abs(time - median) for time in times_us)
    stable = mad <= UNSTABLE_MAD * median and maximum <= UNSTABLE_SPREAD * median
    times = {"time_us": median, "time_us_min": minimum, "time_us_max": maximum, "time_us_mad": mad}
    return {**times, "repeats": len(times_us), "stable": stable if len(times_us) > 1 else None}


def throttled(reasons: float | None) -> bool:
    """Return True if NVML's bit mask of ``reasons`` shows that the clock was slowed; False if the mask is unknown."""
    return bool(reasons and isfinite(reasons) and int(reasons) & THROTTLES)


class DeviceLostError(RuntimeError):
    """The error of a device that no longer answers in this process (a sticky CUDA error). A new process is needed."""


LOST = "device lost"
"""First words of the ``reason`` if a measurement lost the device. Such a measurement shows nothing about its kernel."""


def one_line(error: BaseException) -> str:
    """Return the text of a library's error in one line, or the error's class if it has no text."""
    return " ".join(str(error).split()) or type(error).__name__


@dataclass(frozen=True, slots=True)
class JsonRecord:
    """A record that the log and the messages between processes hold as JSON."""

    def to_dict(self) -> dict[str, object]:
        """Return field name → JSON value. Fields at their default are left out, which keeps the log small."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {each.name: values[each.name] for each in fields(self) if values[each.name] != each.default}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Return the record of a `to_dict`. Unknown keys, from a newer version, are ignored.

        Raises `ValueError` if a key is missing, or if a value has another type.
        """
        return msgspec.convert(values, cls)

    @classmethod
    def all_from(cls, entries: Iterable[Mapping[str, object]]) -> tuple[Self, ...]:
        """Return a record for each entry."""
        return msgspec.convert(entries, tuple[cls, ...])


@dataclass(frozen=True, slots=True)
class DeviceInfo(JsonRecord):
    """The description of a device in a run's header. The first three fields are part of each row's key."""

    gpu: str
    library: str
    library_version: str
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of all other software that can change a time: CUDA runtime, driver, instruments."""
    properties: Mapping[str, Any] = field(default_factory=dict)
    """JSON values: compute capability, SMs, memory, timer, limits; for a CPU its measured datasheet."""

    def inexact_algorithms(self, conv: Conv) -> dict[str, str]:
        """Return algorithm → the reason why it does not compute ``conv`` by fp32 FMA; empty for other arithmetic.

        Its relative error (in `properties`) exceeds FMA's, or is not finite.
        """
        if (conv.dtype, conv.math, conv.direction) != ("fp32", "fma", "fwd"):
            return {}
        errors: Mapping[str, float | None] = self.properties.get("relative_errors", {}).get("fma", {})
        limits = {name: WINOGRAD_ERROR if name.startswith("WINOGRAD") else FMA_ERROR for name in errors}
        wrong = {name: error for name, error in errors.items() if error is None or not error < limits[name]}
        return {name: f"relative error {error or 'not finite'}: this is no fp32 FMA" for name, error in wrong.items()}


@dataclass(frozen=True, slots=True)
class MeasuredKernel(JsonRecord):
    """One kernel of one call: its mangled name, its launch, and its median time in µs over the repeats."""

    kernel_name: str
    grid_x: int
    grid_y: int
    grid_z: int
    block_x: int
    block_y: int
    block_z: int
    registers_per_thread: int
    static_shared_bytes: int
    dynamic_shared_bytes: int
    time_us: float


@dataclass(frozen=True, slots=True)
class Measurement(JsonRecord):
    """The measurement of one (problem, algorithm) on one device.

    ``times_us`` holds every repeat in order of time. A repeat is the sum of its kernel times if kernels were recorded,
    else the time of the whole call. ``spans_us`` holds, for the same repeats, the time from the first kernel's start to
    the last kernel's end, with launch gaps.
    """

    status: str
    reason: str = ""
    times_us: tuple[float, ...] = ()
    spans_us: tuple[float, ...] = ()
    timer: str = ""
    """Instrument that took ``times_us``: ``cupti``, ``events`` or ``wall``."""
    workspace_bytes: int | None = None
    deterministic: bool | None = None
    kernels: tuple[MeasuredKernel, ...] = ()
    build_ms: float | None = None
    """Time to build an engine configuration's plan."""
    sm_clock_mhz: float | None = None
    """The SM clock while the repeats ran."""
    throttle_reasons: int | None = None
    """NVML's bit mask of the reasons for a slowed clock while the repeats ran."""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r} is unknown; known: {', '.join(STATUSES)}")
        if (self.status == "ok") != bool(self.times_us):
            raise ValueError(f"a measurement of status {self.status!r} has {len(self.times_us)} times; only ok has any")

    @property
    def lost(self) -> bool:
        """Return True if the device was lost. The log keeps such a record, tables do not, and the next run retries."""
        return self.status == "failed" and self.reason.startswith(LOST)

    @property
    def labels_differ(self) -> bool:
        """Return True if CUPTI's labels miss launches that the cache flushes separate; ``reason`` counts them."""
        return self.timer == "cupti" and bool(self.reason)


@dataclass(frozen=True, slots=True)
class HeuristicEntry(JsonRecord):
    """One entry of the library's own ranking: from cuDNN's ``Get…_v7``, its graph API, or the times of ``Find…Ex``."""

    algorithm: str
    status: str
    time_us: float | None = None
    workspace_bytes: int | None = None
    deterministic: bool | None = None
    math: str | None = None


@cached_texts(4096)
def demangled(kernel_name: str) -> str:
    """Return a kernel's demangled C++ name, as `surrogate.features.kernels` reads it; any other name unchanged.

    CUPTI and the profilers give mangled names, because only mangled names are the same in all tools.
    """
    if not kernel_name.startswith("_Z"):
        return kernel_name
    try:
        demangle = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
    except OSError:  # this system has no C++ runtime
        return kernel_name
    demangle.restype = ctypes.c_void_p
    text = demangle(kernel_name.encode(), None, None, None)
    if not text:
        return kernel_name
    try:
        return ctypes.string_at(text).decode(errors="replace")
    finally:
        ctypes.CDLL(None).free(ctypes.c_void_p(text))


class Device(Protocol):
    """A device that times one convolution algorithm at a time. Every method may raise `DeviceLostError`.

    By default `heuristic`, `find` and `conditions` are empty; a subclass overrides the ones that it supports.
    """

    def device_info(self) -> DeviceInfo:
        """Return the description of the device for the run's header."""
        ...

    def candidates(self, conv: Conv) -> tuple[str, ...]:
        """Return every algorithm that the library lists for this direction, in its order, supported or not."""
        ...

    def heuristic(self, conv: Conv) -> tuple[HeuristicEntry, ...]:
        """Return the library's ranking without measurements, best first; empty if the library has no ranking."""
        return ()

    def find(self, conv: Conv) -> tuple[HeuristicEntry, ...]:
        """Return the library's own one-shot times, fastest first; empty if the library takes no times."""
        return ()

    def measure(self, conv: Conv, algorithm: str, policy: RepeatPolicy) -> Measurement:
        """Return our own measurement of one algorithm. A failure becomes a status, not an exception."""
        ...

    def conditions(self) -> Mapping[str, float]:
        """Return the present clocks, temperature, power and throttle reasons from NVML; empty if unknown."""
        return {}

    def close(self) -> None:
        """Release the device. Called once."""
