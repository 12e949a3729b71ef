"""How a time is taken and what is said of it: repeats, median, MAD, stability, clocks, drift of the anchors.

Warm once, then 5 repeats; 3 where a call takes over 20 ms, 1 over 100 ms. The time is the median of the
repeats; all are kept in the log. Pure functions: the devices bring the clock.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

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


@dataclass(frozen=True, slots=True)
class Summary:
    """What the repeats of one measurement say, in µs."""

    median_us: float
    min_us: float
    max_us: float
    mad_us: float
    repeats: int
    stable: bool
    """False where the repeats scatter, or where a single repeat leaves nothing to judge by."""


def summarise(times_us: Sequence[float]) -> Summary:
    """Median, extremes, median absolute deviation (unscaled) and the verdict; at least one time is needed."""
    median = statistics.median(times_us)
    mad = statistics.median(abs(time - median) for time in times_us)
    stable = len(times_us) > 1 and mad <= UNSTABLE_MAD * median and max(times_us) <= UNSTABLE_SPREAD * median
    return Summary(median, min(times_us), max(times_us), mad, len(times_us), stable)


def throttled(reasons: float | None) -> bool:
    """True where NVML's bit mask says that something slowed the clock; False for none or unknown."""
    return bool(reasons and isfinite(reasons) and int(reasons) & THROTTLES)
