"""A GPU that is none, for the slices of the campaign."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.campaign import context as context_module
from experiments.campaign.context import Context
from surrogate.collect.device import Choice, DeviceInfo, Kernel, Measurement
from surrogate.features.conv import Conv

ALGORITHMS = ("GEMM", "WINOGRAD", "FFT")


class FakeGpu:
    """Times follow from the problem; FFT is not supported; ``clock`` advances by a second a measurement."""

    def __init__(self, clock: Any = None) -> None:
        self.clock, self.closed = clock, 0

    def describe(self) -> DeviceInfo:
        facts = {"compute_capability": "9.0", "sms": 132, "timer": "cupti"}
        return DeviceInfo("Fake GPU", "cudnn", "9.19.0", {"cuda_runtime": "13.0"}, facts)

    def candidates(self, conv: Conv) -> tuple[str, ...]:
        return ALGORITHMS

    def heuristic(self, conv: Conv) -> tuple[Choice, ...]:
        return (Choice("WINOGRAD", "ok"),)

    def find(self, conv: Conv) -> tuple[Choice, ...]:
        return ()

    def conditions(self) -> dict[str, float]:
        return {"sm_clock_mhz": 1980.0}

    def close(self) -> None:
        self.closed += 1

    def measure(self, conv: Conv, algorithm: str, policy: Any) -> Measurement:
        if self.clock is not None:
            self.clock.now_s += 1.0
        if algorithm == "FFT":
            return Measurement("not_supported", "no FFT here")
        time_us = conv.flops / 1e6 * (1.0 if algorithm == "GEMM" else 0.5)
        names = [f"void {algorithm.lower()}_{at}<float, 128>(float *, int)" for at in range(2)]
        kernels = tuple(Kernel(name, 40, 1, 1, 256, 1, 1, 128, 0, 0, time_us / 2) for name in names)
        return Measurement("ok", "", (time_us,) * 5, (time_us + 1,) * 5, "cupti", 64, True, kernels)


class Clock:
    """Seconds that measuring advances."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> FakeGpu:
    """The device of every slice, in place of cuDNN's."""
    device = FakeGpu(clock)
    monkeypatch.setattr(context_module, "open_device", lambda name, **_: device)
    return device


@pytest.fixture
def context(tmp_path: Path, clock: Clock) -> Context:
    """Eight problems a slice, and time enough."""
    return Context(tmp_path, minutes=60.0, problems=8, clock=clock)


@pytest.fixture
def shorter(context: Context) -> Context:
    """Twelve seconds a slice."""
    return replace(context, minutes=0.2)
