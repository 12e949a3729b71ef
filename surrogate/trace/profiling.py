"""One trace with what its analyses share: layers, work, device, GPU, busy and idle times."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu
from surrogate.features.gpu import gpu as gpu_named
from surrogate.features.kernels import identify
from surrogate.trace import events
from surrogate.trace.calls import CallReader, kernels_by_owner
from surrogate.trace.events.parts import Layers, find_layers, steady_run, trim
from surrogate.trace.events.read import as_trace
from surrogate.trace.events.tables import Activities, Floats, Ints, Trace, grouped, linked, merged

NO_DEVICE = "holds no work of a device; record it with ProfilerActivity.CUDA among torch.profiler's activities"
_PREPARING = {"offsets", "layout", "fft_filter", "winograd_filter", "xmma_setup"}
"""Families of kernels that prepare an operator's work without doing any of it."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Profile:
    """A trace with what the analyses share, one entry per device activity where an array.

    ``flops`` and ``dram_bytes`` are NaN where they cannot be derived from shapes; an operator's work is spread over
    its kernels by their time, kernels that only prepare it left out. ``dtype`` is "" where the work is unknown.
    ``gpu`` is None where the registry does not know the device: then there are no peaks and no bounds. ``counters`` are
    those of `surrogate.trace.kernels`, NaN where a run did not count them. ``left_out`` says which iterations are.
    """

    trace: Trace
    layers: Layers
    gpu: Gpu | None
    device: int
    device_of: Ints
    idle_us: Floats
    flops: Floats
    dram_bytes: Floats
    dtype: tuple[str, ...]
    counters: pd.DataFrame | None = None
    left_out: str = ""

    def __repr__(self) -> str:
        return f"Profile({self.trace!r}, {len(self.layers)} layers, {self.gpu.name if self.gpu else 'no known GPU'})"

    @property
    def total_us(self) -> float:
        """Time of all device activities together, in µs."""
        return float(self.trace.activities.time_us.sum())

    def fact(self, name: str) -> float:
        """``compute_capability`` or ``sms`` of the device, by the trace or the registry; 0 where neither knows."""
        recorded = [getattr(d, name) for d in self.trace.devices if d.index == self.device]
        return next(filter(None, recorded), getattr(self.gpu, name) if self.gpu else 0)


TraceSource = Trace | Profile | str | Path
"""What analyses take: a trace, its profile or file, or the name of one that ships."""


def profile(trace: TraceSource, gpu: str | None = None) -> Profile:
    """Find layers and derive work, of a trace, its file or the name of one that ships; a profile stays as it is.

    ``gpu`` names the device for peaks where the trace does not, or overrides it. Raises `InputError` for an unknown
    ``gpu``, and for what is no trace.
    """
    if isinstance(trace, Profile):
        return trace
    trace = as_trace(trace)
    devices = np.array([stream.device for stream in trace.streams], dtype=np.int64)
    device_of = linked(devices, trace.activities.stream)
    device = main_device(trace, device_of)
    idle_us = idle_before_us(trace.activities, device_of)
    shown = gpu_of(trace, device, gpu)
    return Profile(trace, find_layers(trace), shown, device, device_of, idle_us, *_spread_work(trace))


def steady(given: Profile) -> Profile:
    """The profile of `steady_run`'s iterations, so that a warm-up counts in none.

    A profile of steady iterations, or of those that were asked for, stays as it is.
    """
    kept, text = steady_run(given.layers.iterations)
    if given.trace.chosen or not text:
        return given
    part = trim(given.trace, iterations_kept=kept)
    return replace(profile(part, given.gpu.name if given.gpu else None), left_out=text)


def invalid_reason(trace: Trace) -> str:
    """Why no change to the trace can be simulated, "" where one can."""
    kernels = trace.activities.kind == events.KERNEL
    lost = int((kernels & (trace.activities.call < 0)).sum())
    if trace.ends_early:
        return f"{trace.source}: {trace.notes[0]}, so that a replay would tell nothing; record the trace again"
    if lost > kernels.sum() / 2 and np.isin(trace.calls.kind, (events.LAUNCH, events.GRAPH_LAUNCH)).any():
        return (
            f"{trace.source}: {lost:,} of {kernels.sum():,} kernels follow no launch (correlation ids are missing), so"
            " that none waits for the host in a replay; record the trace again"
        )
    return ""


def gpu_of(trace: Trace, device: int, name: str | None = None) -> Gpu | None:
    """The registry's GPU for a device of the trace, or the one of ``name``; None where the registry has none.

    A trace that describes devices of one name alone, under other numbers (ROCm), has all its devices from these.

    Raises `InputError` where ``name`` is given and unknown.
    """
    if name:
        return gpu_named(name)
    names = {known.name for known in trace.devices}
    recorded = trace.device_name(device) or ("".join(names) if len(names) == 1 else "")
    try:
        return gpu_named(recorded) if recorded else None
    except InputError:
        return None


def renamed_note(profile: Profile) -> str:
    """That the trace names another GPU than the one whose peaks count, "" where it does not."""
    own = gpu_of(profile.trace, profile.device)
    if own is None or profile.gpu is None or own == profile.gpu:
        return ""
    return (
        f"{profile.trace.source}: was recorded on {own.name}; peaks and bandwidths are those of {profile.gpu.name}, all"
        f" times the trace's; what it would take there is asked by seer trace whatif FILE gpu={profile.gpu.name}"
    )


def main_device(trace: Trace, device_of: Ints) -> int:
    """The device with the most activity time, from that of every activity; the first or 0 where there is none."""
    if not len(device_of):
        return trace.devices[0].index if trace.devices else 0
    values, position = np.unique(device_of, return_inverse=True)
    return int(values[np.bincount(position, weights=trace.activities.time_us).argmax()])


def union_us(start_ns: Ints, end_ns: Ints) -> float:
    """Length in µs of the union of intervals, in any order, overlapping or not."""
    starts, ends = merged(start_ns, end_ns)
    return float((ends - starts).sum()) / 1e3


def idle_before_us(activities: Activities, device: Ints) -> Floats:
    """For every activity the time in µs that its device was idle right before it; 0 for a device's first.

    Per device the idle times and the busy time (`union_us`) add up to the span from first start to last end.
    """
    idle = np.zeros(len(activities))
    for _, rows in grouped(device, np.argsort(activities.start_ns, kind="stable")):
        reach = np.maximum.accumulate(activities.end_ns[rows])
        idle[rows[1:]] = np.maximum(activities.start_ns[rows[1:]] - reach[:-1], 0) / 1e3
    return idle


def _spread_work(trace: Trace) -> tuple[Floats, Floats, tuple[str, ...]]:
    """FLOPs, bytes and dtype of every activity: its operator's, by its share of the operator's kernel time."""
    activities = trace.activities
    reader = CallReader(trace)
    flops, dram_bytes = np.full(len(activities), np.nan), np.full(len(activities), np.nan)
    dtype = [""] * len(activities)
    prepares = trace.name_matches(activities, _prepares)
    kernels = np.flatnonzero((activities.kind == events.KERNEL) & (activities.range >= 0) & ~prepares)
    time_us = np.maximum(activities.time_us, 1e-3)
    for owner, rows in kernels_by_owner(reader, kernels.tolist()).items():
        if work := reader.flops_bytes_dtype(owner):
            time = time_us[rows]
            share = time / time.sum()
            flops[rows], dram_bytes[rows] = work[0] * share, work[1] * share
            for row in rows:
                dtype[row] = work[2]
    return flops, dram_bytes, tuple(dtype)


def _prepares(name: str) -> bool:
    kernel = identify(name)
    return kernel is not None and kernel.family in _PREPARING
