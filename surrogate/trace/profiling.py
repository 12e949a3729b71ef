"""One trace with what its analyses share: layers, work, device, GPU, busy and idle times."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu, gpu
from surrogate.features.kernels import identify
from surrogate.trace.events import kinds
from surrogate.trace.events.tables import Activities, Ints, Trace
from surrogate.trace.layers import Layers, find_layers
from surrogate.trace.work import WorkFinder


def union_us(start_ns: Ints, end_ns: Ints) -> float:
    """Length in µs of the union of intervals, in any order, overlapping or not."""
    if not len(start_ns):
        return 0.0
    order = np.argsort(start_ns, kind="stable")
    starts, reach = start_ns[order], np.maximum.accumulate(end_ns[order])
    gaps = np.maximum(starts[1:] - reach[:-1], 0).sum()
    return float(reach[-1] - starts[0] - gaps) / 1e3


def idle_before_us(activities: Activities, device: Ints) -> np.ndarray:
    """For every activity the time in µs that its device was idle right before it; 0 for a device's first.

    Per device the idle times and the busy time (`union_us`) add up to the span from first start to last end.
    """
    idle = np.zeros(len(activities))
    for one in np.unique(device).tolist():
        rows = np.flatnonzero(device == one)
        rows = rows[np.argsort(activities.start_ns[rows], kind="stable")]
        reach = np.maximum.accumulate(activities.end_ns[rows])
        idle[rows[1:]] = np.maximum(activities.start_ns[rows[1:]] - reach[:-1], 0) / 1e3
    return idle


def device_of(trace: Trace) -> Ints:
    """The device index of every activity."""
    devices = np.array([one.device for one in trace.streams] or [-1], dtype=np.int64)
    return devices[trace.activities.stream]


def main_device(trace: Trace) -> int:
    """The device with the most activity time; 0 where there is none."""
    device = device_of(trace)
    if not len(device):
        return trace.devices[0].index if trace.devices else 0
    values, place = np.unique(device, return_inverse=True)
    return int(values[np.bincount(place, weights=trace.activities.time_us).argmax()])


_PREPARING = {"offsets", "layout", "fft_filter", "winograd_filter", "xmma_setup"}
"""Families of kernels that prepare an operator's work without doing any of it."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Profile:
    """A trace with what the analyses share, one entry per device activity where an array.

    ``flops`` and ``dram_bytes`` are NaN where they cannot be derived from shapes; an operator's work is spread over
    its kernels by their time, kernels that only prepare it left out. ``dtype`` is "" where the work is unknown.
    ``gpu`` is None where the registry does not know the device: then there are no peaks and no bounds.
    """

    trace: Trace
    layers: Layers
    gpu: Gpu | None
    device: int
    device_of: Ints
    idle_us: NDArray[np.float64]
    flops: NDArray[np.float64]
    dram_bytes: NDArray[np.float64]
    dtype: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Profile({self.trace!r}, {len(self.layers)} layers, {self.gpu.name if self.gpu else 'no known GPU'})"

    @property
    def total_us(self) -> float:
        """Time of all device activities together, in µs."""
        return float(self.trace.activities.time_us.sum())

    @property
    def compute_capability(self) -> float:
        """The device's compute capability, by the trace or the registry; 0.0 where neither knows."""
        found = [
            d.compute_capability
            for d in self.trace.devices
            if d.index == self.device and d.compute_capability
        ]
        return found[0] if found else self.gpu.compute_capability if self.gpu else 0.0

    @property
    def sms(self) -> int:
        """The device's SMs; 0 where unknown."""
        found = [d.sms for d in self.trace.devices if d.index == self.device and d.sms]
        return found[0] if found else self.gpu.sms if self.gpu else 0


def profile(trace: Trace, gpu: str | None = None) -> Profile:
    """Find layers and derive work. ``gpu`` names the device for peaks where the trace does not, or overrides it.

    Raises `InputError` for an unknown ``gpu``.
    """
    device = main_device(trace)
    found = device_of(trace)
    flops, dram_bytes, dtype = _spread_work(trace)
    return Profile(
        trace=trace,
        layers=find_layers(trace),
        gpu=gpu_of(trace, device, gpu),
        device=device,
        device_of=found,
        idle_us=idle_before_us(trace.activities, found),
        flops=flops,
        dram_bytes=dram_bytes,
        dtype=dtype,
    )


def _spread_work(trace: Trace) -> tuple[NDArray[np.float64], NDArray[np.float64], tuple[str, ...]]:
    """FLOPs, bytes and dtype of every activity: its operator's, by its share of the operator's kernel time."""
    activities, finder = trace.activities, WorkFinder(trace)
    count = len(activities)
    flops, dram_bytes = np.full(count, np.nan), np.full(count, np.nan)
    dtype = [""] * count
    prepares = np.array([_prepares(name) for name in trace.names] or [False])[activities.name]
    kernels = np.flatnonzero((activities.kind == kinds.KERNEL) & (activities.range >= 0) & ~prepares)
    works = {row: finder.of(row) for row in np.unique(activities.range[kernels]).tolist()}
    owner = np.array(
        [work.row if (work := works[r]) else -1 for r in activities.range[kernels].tolist()], dtype=np.int64
    )
    kernels, owner = kernels[owner >= 0], owner[owner >= 0]
    time = np.maximum(activities.time_us[kernels], 1e-3)
    whole = np.bincount(owner, weights=time, minlength=len(trace.ranges)) if len(owner) else np.zeros(0)
    by_row = {work.row: work for work in works.values() if work}
    for at, row, part in zip(kernels.tolist(), owner.tolist(), (time / whole[owner]).tolist(), strict=True):
        work = by_row[row]
        flops[at], dram_bytes[at], dtype[at] = work.flops * part, work.dram_bytes * part, work.dtype
    return flops, dram_bytes, tuple(dtype)


def _prepares(name: str) -> bool:
    found = identify(name)
    return found is not None and found.family in _PREPARING


def gpu_of(trace: Trace, device: int, name: str | None = None) -> Gpu | None:
    """The registry's GPU for a device of the trace, or the one of ``name``; None where the registry has none.

    Raises `InputError` where ``name`` is given and unknown.
    """
    if name:
        return gpu(name)
    recorded = trace.device_name(device)
    try:
        return gpu(recorded) if recorded else None
    except InputError:
        return None
