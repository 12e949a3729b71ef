"""Repeats, medians, verdicts, clocks."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from surrogate.collect.cudnn.instruments import Clocks
from surrogate.collect.device import RepeatPolicy, summarise, throttled


@pytest.mark.parametrize(
    ("warm_us", "repeats"), [(1, 5), (20_000, 5), (20_001, 3), (100_000, 3), (100_001, 1), (1e9, 1)]
)
def test_long_calls_are_repeated_less(warm_us, repeats):
    assert RepeatPolicy().repeats_for(warm_us) == repeats


def test_a_summary_by_hand():
    summary = summarise([10.0, 11.0, 10.5, 30.0, 10.2])
    assert list(summary.values()) == [10.5, 10.0, 30.0, pytest.approx(0.5), 5, False]  # one took thrice as long
    # MAD is a sixth of the median in the second.
    many = ([10.0, 10.1, 10.2], [10.0, 12.0, 14.0], [10.0], [])
    assert [summarise(times_us)["stable"] for times_us in many] == [True, False, None, None]


def test_throttle_reasons():
    assert throttled(0x4 | 0x40) and throttled(0x21)
    assert not throttled(0x1) and not throttled(None)  # an idle GPU is not throttled


class NVMLError(Exception):
    """What NVML raises where a GPU does not answer."""


def board() -> SimpleNamespace:
    """As much of NVML as is asked, on a GPU that tells no power."""
    answers = {
        "nvmlDeviceGetTemperature": 45, "nvmlDeviceGetCurrentClocksThrottleReasons": 4, "nvmlDeviceGetMigMode": [0, 1],
        "nvmlDeviceGetComputeRunningProcesses": ["this one", "another"], "nvmlSystemGetDriverVersion": "570.86.15",
    }  # fmt: skip
    calls = {name: Mock(return_value=answer) for name, answer in answers.items()}
    calls |= {"nvmlShutdown": Mock(), "nvmlDeviceGetPowerUsage": Mock(side_effect=NVMLError)}
    clocks = {"nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1980, 2: 3201}[kind]}
    constants = {"NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2, "NVML_TEMPERATURE_GPU": 0}
    return SimpleNamespace(**calls, **clocks, **constants, NVMLError=NVMLError)


def test_clocks_leave_out_what_the_gpu_does_not_tell():
    nvml = board()
    clocks = Clocks(nvml, object())
    assert clocks.sample() == {
        "sm_clock_mhz": 1980, "memory_clock_mhz": 3201, "temperature_c": 45, "throttle_reasons": 4,
    }  # fmt: skip
    assert clocks.load() == {"sm_clock_mhz": 1980, "throttle_reasons": 4}
    assert clocks.facts() == {"mig": False, "other_processes": 1}  # the rest this binding does not know
    assert clocks.driver_version() == "570.86.15"
    clocks.close()
    nvml.nvmlShutdown.assert_called_once()
