"""A GPU that is none, for the slices of the campaign."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.campaign import context as context_module
from experiments.campaign.context import Context
from surrogate.collect.device import DeviceInfo


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
def gpu(monkeypatch: pytest.MonkeyPatch, clock: Clock, fake_device: Any) -> Any:
    """The device of every slice, in place of cuDNN's; a measurement takes a second."""
    device = fake_device()
    facts = {"compute_capability": "9.0", "sms": 132, "timer": "cupti"}
    device.info = DeviceInfo("Fake GPU", "cudnn", "9.19.0", {"cuda_runtime": "13.0"}, facts)
    measure = device.measure

    def slowly(*arguments: Any) -> Any:
        clock.now_s += 1.0
        return measure(*arguments)

    device.measure = slowly
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
