"""From a device's name to the device, and the limits that a plan keeps on it."""

from pathlib import Path

from surrogate.collect.caps import CPU_CAPS, GPU_CAPS, Caps
from surrogate.collect.device import Device
from surrogate.collect.worker import WorkerDevice, command_for
from surrogate.features.errors import InputError

DEVICES = ("cudnn", "reference", "replay")


def caps_for(name: str) -> Caps:
    """The caps of a plan for the device called ``name``. A recording may hold anything."""
    return {"reference": CPU_CAPS, "replay": Caps(0.0, float("inf"), 1 << 62, 1 << 62)}.get(name, GPU_CAPS)


def open_device(name: str, *, recording: str | Path | None = None, caps: Caps | None = None) -> Device:
    """The device called ``name``; ``recording`` is the run that ``replay`` serves.

    cuDNN runs in a process of its own, so that a sticky CUDA error costs one measurement. Raises `InputError`
    where the device cannot be had.
    """
    caps = caps or caps_for(name)
    if name == "cudnn":
        return WorkerDevice(command_for("cudnn", str(caps.max_workspace_bytes), str(caps.max_tensor_bytes)))
    if name == "reference":
        from surrogate.collect.reference_device import ReferenceDevice

        return ReferenceDevice(max_workspace_bytes=caps.max_workspace_bytes)
    if name == "replay":
        from surrogate.collect.replay import ReplayDevice

        if recording is None:
            raise InputError("device replay serves a recorded run; name it by --recording RUN.jsonl")
        return ReplayDevice(recording)
    raise InputError(f"device {name!r} is unknown; known: {', '.join(DEVICES)}")
