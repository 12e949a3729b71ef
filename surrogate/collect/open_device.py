"""From a device's name to the device: in this process, or in one of its own, which this module also is.

``python -m surrogate.collect.open_device NAME WORDS…`` serves a device to its parent (`surrogate.collect.worker`).
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from surrogate.collect.device import Device
from surrogate.collect.plan import CPU_CAPS, GPU_CAPS, Caps
from surrogate.collect.worker import WorkerDevice, WorkerOperators, serve
from surrogate.features.errors import InputError

DEVICES = ("cudnn", "cpu", "replay")
ALIASES = {"reference": "cpu"}


def caps_for(name: str) -> Caps:
    """The caps of a plan for the device called ``name``. A recording may hold anything."""
    anything = Caps(0.0, float("inf"), 1 << 62, 1 << 62)
    return {"cpu": CPU_CAPS, "replay": anything}.get(ALIASES.get(name, name), GPU_CAPS)


def open_device(name: str, *, recording: str | Path | None = None) -> Device:
    """The device called ``name``; ``recording`` is the run that ``replay`` serves.

    cuDNN runs in a process of its own, so that a sticky CUDA error costs one measurement. Raises `InputError` where the
    device cannot be had.
    """
    name = ALIASES.get(name, name)
    if name == "cudnn":
        return WorkerDevice(command_for("cudnn"))
    if name == "cpu":
        from surrogate.collect.cpu.device import CpuDevice

        return CpuDevice()
    if name == "replay":
        from surrogate.collect.replay import ReplayDevice

        if recording is None:
            raise InputError("device replay serves a recorded run; name it by --recording RUN.jsonl")
        return ReplayDevice(recording)
    raise InputError(f"device {name!r} is unknown; known: {', '.join(DEVICES)}")


def open_operators(name: str) -> WorkerOperators:
    """The operators' device: cuDNN's GPU in a process of its own. Raises `InputError` for another."""
    if name != "cudnn":
        raise InputError(f"operators are not measured on device {name}; give --device cudnn")
    return WorkerOperators(command_for("operators"))


def command_for(device: str, *words: str) -> list[str]:
    """The command that serves ``device`` to this process."""
    return [sys.executable, "-m", "surrogate.collect.open_device", device, *words]


def main(device: str, *words: str) -> None:
    """Serve ``device``. Whatever a library writes to standard output goes to standard error."""

    def opened() -> Any:
        if device == "operators":
            from surrogate.collect.operators.gpu import GpuOperators

            return GpuOperators()
        if device == "deviceless":
            from surrogate.collect.deviceless import Deviceless
            from surrogate.features.gpu import gpu

            return Deviceless(gpu(words[0]))
        from surrogate.collect.cudnn.device import CudnnDevice

        return CudnnDevice()

    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(opened, sys.stdin, replies)


if __name__ == "__main__":
    arguments: Sequence[str] = sys.argv[1:]
    main(*arguments)
