"""What a measuring device is: the `Device` protocol, how a time is taken, and the frozen records that pass through.

The loop (`surrogate.collect.run`), the log and the merge know devices only by this file, so that a recorded
run (`surrogate.collect.log`) or a CPU stands in wherever no GPU is at hand. A call is warmed once, then repeated 5
times; 3 where it takes over 20 ms, 1 over 100 ms. The time is the median of the repeats; all are kept in the log.
"""

import ctypes
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from math import isfinite
from typing import Any, Protocol, Self

from surrogate.dataset.columns import STATUSES
from surrogate.features.conv import Conv

UNSTABLE_MAD = 0.05
"""A row whose MAD exceeds this share of its median is called unstable (pyperf warns at a like share of the mean)."""
UNSTABLE_SPREAD = 1.5
"""… and one whose slowest repeat exceeds its median this many times."""
SLOW_CLOCK = 0.95
"""A row taken below this share of the run's median SM clock is flagged."""
THROTTLES = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""Bits of nvmlClocksEventReasons… (nvml.h) that slowed the clock: power cap, hardware slowdown, software and hardware
thermal slowdown, power brake. Idle and user settings are no throttling.
"""


@dataclass(frozen=True, slots=True)
class RepeatPolicy:
    """How many repeats a call of a given length gets."""

    repeats: int = 5
    slow_repeats: int = 3
    slow_us: float = 20_000.0
    slowest_repeats: int = 1
    slowest_us: float = 100_000.0

    def repeats_for(self, warm_us: float) -> int:
        """Repeats for a call whose warm-up took ``warm_us`` µs."""
        if warm_us > self.slowest_us:
            return self.slowest_repeats
        return self.slow_repeats if warm_us > self.slow_us else self.repeats


POLICY = RepeatPolicy()
"""The protocol's own."""


def summarise(times_us: Sequence[float]) -> dict[str, Any]:
    """What the repeats of one measurement say, as columns of a table in µs; without a time there are 0 repeats alone.

    Median, extremes, median absolute deviation (unscaled), their number, and ``stable``: False where they scatter, None
    for a single one, which leaves nothing to judge by.
    """
    if not times_us:
        return dict.fromkeys(("time_us", "time_us_min", "time_us_max", "time_us_mad", "stable")) | {"repeats": 0}
    median, minimum, greatest = statistics.median(times_us), min(times_us), max(times_us)
    mad = statistics.median(abs(time - median) for time in times_us)
    stable = mad <= UNSTABLE_MAD * median and greatest <= UNSTABLE_SPREAD * median
    times = {"time_us": median, "time_us_min": minimum, "time_us_max": greatest, "time_us_mad": mad}
    return {**times, "repeats": len(times_us), "stable": stable if len(times_us) > 1 else None}


def throttled(reasons: float | None) -> bool:
    """True where NVML's bit mask says that something slowed the clock; False for none or unknown."""
    return bool(reasons and isfinite(reasons) and int(reasons) & THROTTLES)


class DeviceLostError(RuntimeError):
    """The device answers no more in this process (a sticky CUDA error); only a new process can go on."""


LOST = "device lost"
"""What the reason of a measurement begins with that lost the device: it says nothing of what was to be measured."""


def one_line(error: BaseException) -> str:
    """What a library's error says, or its kind where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


@dataclass(frozen=True, slots=True)
class Record:
    """What the log and the exchange between processes hold as JSON."""

    def to_dict(self) -> dict[str, object]:
        """Field name → plain JSON value; fields at their default are left out, to keep the log small."""
        held = {each.name: getattr(self, each.name) for each in fields(self)}
        return {each.name: held[each.name] for each in fields(self) if held[each.name] != each.default}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """The inverse of `to_dict`; keys of a newer writer are ignored."""
        return cls(**{each.name: values[each.name] for each in fields(cls) if each.name in values})

    @classmethod
    def all_from(cls, entries: Iterable[Mapping[str, object]]) -> tuple[Self, ...]:
        """Such records read from a list."""
        return tuple(map(cls.from_dict, entries))


@dataclass(frozen=True, slots=True)
class DeviceInfo(Record):
    """What a run's header tells of its device. Rows are keyed by the first three fields."""

    gpu: str
    library: str
    library_version: str
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of everything else that can change a time: CUDA runtime, driver, instruments."""
    properties: Mapping[str, Any] = field(default_factory=dict)
    """Plain JSON facts: compute capability, SMs, memory, timer, limits; a CPU's measured spec."""


@dataclass(frozen=True, slots=True)
class MeasuredKernel(Record):
    """One kernel of one call: its mangled name, its launch, and its median time over the repeats in µs."""

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
class Measurement(Record):
    """One (problem, algorithm) on one device.

    ``times_us`` holds every repeat in the order taken: the sum of kernel times where kernels were seen, else
    the whole call. ``spans_us`` holds first start to last end of the same repeats, launch gaps included.
    """

    status: str
    reason: str = ""
    times_us: tuple[float, ...] = ()
    spans_us: tuple[float, ...] = ()
    timer: str = ""
    """Instrument behind ``times_us``: ``cupti``, ``events`` or ``wall``."""
    workspace_bytes: int | None = None
    deterministic: bool | None = None
    kernels: tuple[MeasuredKernel, ...] = ()
    sm_clock_mhz: float | None = None
    """The SM clock while the repeats ran; so is the next: NVML's bit mask of what held the clock down."""
    throttle_reasons: int | None = None

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r} is unknown; known: {', '.join(STATUSES)}")
        if (self.status == "ok") != bool(self.times_us):
            raise ValueError(f"a measurement of status {self.status!r} has {len(self.times_us)} times; only ok has any")

    @property
    def lost(self) -> bool:
        """True where the device was lost: the log holds it, no table does, and the next call tries again."""
        return self.status == "failed" and self.reason.startswith(LOST)

    @property
    def labels_differ(self) -> bool:
        """True where CUPTI's labels miss launches that the cache's flushes tell apart; ``reason`` counts them."""
        return self.timer == "cupti" and bool(self.reason)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`, with tuples in the place of JSON's lists."""
        lists = {name: tuple(values.get(name, ())) for name in ("times_us", "spans_us", "kernels")}
        lists["kernels"] = MeasuredKernel.all_from(lists["kernels"])
        return super(Measurement, cls).from_dict({**values, **lists})


@dataclass(frozen=True, slots=True)
class HeuristicEntry(Record):
    """One entry of the library's own ranking: cuDNN's ``Get…_v7`` order, its graph's, or what ``Find…Ex`` timed."""

    algorithm: str
    status: str
    time_us: float | None = None
    workspace_bytes: int | None = None
    deterministic: bool | None = None
    math: str | None = None


@lru_cache(maxsize=4096)
def demangled(kernel_name: str) -> str:
    """A kernel's C++ name as people and `surrogate.features.kernels` read it; any other name as it is.

    CUPTI and the profilers are asked for mangled names, which alone are the same everywhere.
    """
    if not kernel_name.startswith("_Z"):
        return kernel_name
    try:
        demangle = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
    except OSError:  # no C++ runtime here
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
    """Something that times convolution algorithms one at a time. Every method may raise `DeviceLostError`.

    One that inherits from it ranks nothing, times nothing on its own and knows no conditions unless it says otherwise.
    """

    def device_info(self) -> DeviceInfo:
        """Facts for the run's header."""
        ...

    def candidates(self, conv: Conv) -> tuple[str, ...]:
        """Every algorithm the library numbers for this direction, supported or not, in its own order."""
        ...

    def heuristic(self, conv: Conv) -> tuple[HeuristicEntry, ...]:
        """The library's ranking without measuring, best first; empty where it has none."""
        return ()

    def find(self, conv: Conv) -> tuple[HeuristicEntry, ...]:
        """The library's own one-shot timing, fastest first; empty where it has none."""
        return ()

    def measure(self, conv: Conv, algorithm: str, policy: RepeatPolicy) -> Measurement:
        """Our own timing of one algorithm. What goes wrong is a status, not an exception."""
        ...

    def conditions(self) -> Mapping[str, float]:
        """Clocks, temperature, power and throttle flags now (as NVML tells them); empty if unknown."""
        return {}

    def close(self) -> None:
        """Give the device back. Called once."""
