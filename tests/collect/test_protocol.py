"""The timing protocol: number of repeats, summary of times, throttle reasons and clocks."""

from unittest.mock import Mock

import pytest

from surrogate.collect.cudnn.instruments import GpuClocks
from surrogate.collect.device import RepeatPolicy, summarise, throttled


@pytest.mark.parametrize(
    ("warm_us", "repeats"), [(1, 5), (20_000, 5), (20_001, 3), (100_000, 3), (100_001, 1), (1e9, 1)]
)
def test_long_calls_are_repeated_less(warm_us, repeats):
    assert RepeatPolicy().repeats_for(warm_us) == repeats


def test_summarise_computes_median_range_and_stability():
    summary = summarise([10.0, 11.0, 10.5, 30.0, 10.2])
    # It is unstable, because one call took three times as long.
    assert list(summary.values()) == [10.5, 10.0, 30.0, pytest.approx(0.5), 5, False]
    # The median absolute deviation of the second list is a sixth of its median.
    repeats = ([10.0, 10.1, 10.2], [10.0, 12.0, 14.0], [10.0], [])
    assert [summarise(times_us)["stable"] for times_us in repeats] == [True, False, None, None]


def test_throttled_ignores_the_idle_reason():
    assert throttled(0x4 | 0x40) and throttled(0x21)
    assert not throttled(0x1) and not throttled(None)  # an idle GPU is not throttled


def test_clocks_omit_unreadable_values(chain):
    """NVML reads neither power nor ECC here; an older binding has another name for the throttle reasons."""
    import pynvml  # pyright: ignore[reportMissingImports]

    unreadable = Mock(side_effect=pynvml.NVMLError)
    changed = {"PowerUsage": unreadable, "EccMode": unreadable, "CurrentClocksEventReasons": None}
    for name, answer in {**changed, "CurrentClocksThrottleReasons": lambda handle: 4}.items():
        chain.setattr(pynvml, f"nvmlDeviceGet{name}", answer, raising=False)
    clocks = GpuClocks.open("0000:01:00.0")
    under_load = {"sm_clock_mhz": 1980, "throttle_reasons": 4}
    assert clocks.under_load() == under_load
    assert clocks.sample() == under_load | {"memory_clock_mhz": 2619, "temperature_c": 41}
    assert "ecc" not in clocks.facts() and clocks.facts()["other_processes"] == 0
    assert clocks.versions() == {"driver": "575.57.08"}
    clocks.close()
