"""What every slice is given: where to write, how long, on which device."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from surrogate.collect.device import Device
from surrogate.collect.open_device import caps_for, open_device
from surrogate.collect.plan import Caps
from surrogate.collect.run import Progress

WRITING_SHARE = 0.06
"""Share of a slice's time kept for its tables."""


@dataclass(frozen=True, slots=True)
class Context:
    """One campaign. ``minutes`` is a slice's whole time, its writing included."""

    out: Path
    minutes: float = 7.5
    device: str = "cudnn"
    seed: int = 0
    problems: int | None = None
    """Number of shapes instead of each slice's own; small for a dry run."""
    earlier: Path | None = None
    """Folder that holds the packed logs of an earlier part of the campaign."""
    progress: Progress | None = None
    clock: Callable[[], float] = time.monotonic

    @property
    def caps(self) -> Caps:
        """Limits of the device's plans."""
        return caps_for(self.device)

    @property
    def measuring_minutes(self) -> float:
        """A slice's time without that of writing its tables."""
        return self.minutes * (1.0 - WRITING_SHARE)

    def open_convolutions(self) -> Device:
        """The device of the convolution slices."""
        return open_device(self.device, caps=self.caps)
