"""Profiles: a trace with its layers, work, device, GPU, and busy and idle times, which all analyses share."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from surrogate.features.errors import UnknownGpuError, read_toml
from surrogate.features.gpu import Gpu, gpu as gpu_by_name
from surrogate.features.kernels import kernel_family
from surrogate.trace import events
from surrogate.trace.calls import CallReader, kernels_by_owner
from surrogate.trace.events.parts import Layers, find_layers, iterations, steady_run, trim, without_work
from surrogate.trace.events.phases import captured_calls, launches_of
from surrogate.trace.events.read import as_trace
from surrogate.trace.events.tables import Activities, Floats, Ints, Trace, grouped, linked, merged
from surrogate.trace.graph.tasks import device_lag_us

_TEXTS = read_toml(__file__)
NO_DEVICE: str = _TEXTS["no_device"]
PREPARING = {"offsets", "layout", "fft_filter", "winograd_filter", "xmma_setup"}
"""Families of kernels that prepare an operator's work and do no part of it."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Profile:
    """A trace with the results that its analyses share. Arrays have one entry per device activity.

    An operator's work is spread over its kernels by their time, except over kernels that only prepare it.

    Attributes
    ----------
    trace : Trace
        The trace.
    layers : Layers
        Its layers and iterations.
    gpu : Gpu or None
        The GPU of the registry; None if the registry does not have it. Then there are no peaks and no bounds.
    device : int
        Number of the device with the most activity time.
    device_of : numpy.ndarray
        Device of each activity.
    idle_us : numpy.ndarray
        Time in µs for which the device was idle directly before each activity.
    flops, dram_bytes : numpy.ndarray
        Work of each activity; NaN if shapes do not give it.
    dtype : tuple of str
        Data type of each activity; "" if its work is unknown.
    counters : pandas.DataFrame or None
        Hardware counters of `surrogate.trace.with_counters`; NaN for activities that a run did not count.
    left_out : str
        A note on the iterations that are left out, or "".
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
        """Sum of the times of all device activities, in µs."""
        return float(self.trace.activities.time_us.sum())

    def fact(self, name: str) -> float:
        """Return ``compute_capability`` or ``sms`` of the device from the trace or the registry; 0 if unknown."""
        recorded = [getattr(d, name) for d in self.trace.devices if d.index == self.device]
        return next(filter(None, recorded), getattr(self.gpu, name) if self.gpu else 0)


TraceSource = Trace | Profile | str | Path
"""The input of analyses: a trace, its profile, its file, or the name of a trace that ships."""


def profile(trace: TraceSource, gpu: str | None = None) -> Profile:
    """Return the profile of a trace: find its layers and derive the work of its kernels.

    Parameters
    ----------
    trace : Trace, Profile, str or Path
        A trace, its file, or the name of a trace that ships. A profile is returned unchanged.
    gpu : str, optional
        The GPU that gives the peaks. It replaces the device that the trace names.

    Returns
    -------
    Profile
        The profile of the whole trace.

    Raises
    ------
    InputError
        If ``gpu`` is unknown, or ``trace`` is no trace.
    """
    if isinstance(trace, Profile):
        return trace
    trace = as_trace(trace)
    device_of = linked(np.array([stream.device for stream in trace.streams], dtype=np.int64), trace.activities.stream)
    device = main_device(trace, device_of)
    idle_us = idle_before_us(trace.activities, device_of)
    registered = gpu_of(trace, device, gpu)
    return Profile(trace, find_layers(trace), registered, device, device_of, idle_us, *_spread_work(trace))


def steady(given: Profile) -> Profile:
    """Return the profile of the iterations of `steady_run`, without a warm-up.

    A profile is returned unchanged if all iterations are steady or the user chose the iterations.
    """
    part, note = counted(given.trace)
    if part is given.trace:
        return replace(given, left_out=note) if note != given.left_out and not part.chosen else given
    return replace(profile(part, given.gpu.name if given.gpu else None), left_out=note)


def counted(trace: Trace) -> tuple[Trace, str]:
    """Return the trace of the iterations of `steady_run`, and a note on those left out or without work, else ""."""
    if trace.chosen:
        return trace, ""
    kept, note = steady_run(iterations(trace))
    empty = without_work(trace, tuple(kept))
    idle = events.text("no_work", count=len(empty), numbers=", ".join(map(str, empty))) if empty else ""
    return trim(trace, iterations_kept=[part.index for part in kept]) if note else trace, "; ".join(
        filter(None, [note, idle])
    )


def invalid_reason(trace: Trace) -> str:
    """Return why a changed trace cannot be simulated, or "" if it can."""
    kernels = trace.activities.kind == events.KERNEL
    lost = int((kernels & (trace.activities.call < 0)).sum())
    if trace.ends_early:
        return _TEXTS["cut"].format(source=trace.source, note=trace.notes[0])
    has_launches = np.isin(trace.calls.kind, (events.LAUNCH, events.GRAPH_LAUNCH)).any()
    if lost > kernels.sum() / 2 and (has_launches or (trace.ranges.kind == events.OPERATOR).any()):
        return _TEXTS["unlinked"].format(source=trace.source, lost=lost, kernels=kernels.sum())
    launches, is_lost = launches_of(trace)
    first_ns, last_ns = trace.complete_ns
    starts_ns = trace.calls.start_ns[launches]
    kept = ~captured_calls(trace)[launches] & (starts_ns >= first_ns) & (starts_ns < last_ns)
    if len(trace.activities) and kept.any() and is_lost[kept].mean() > 0.5:
        return _TEXTS["lost"].format(source=trace.source)
    return ""


def gpu_of(trace: Trace, device: int, name: str | None = None) -> Gpu | None:
    """Return the registry's GPU for a device of the trace, or for ``name``; None if the registry does not have it.

    ROCm's traces describe devices under other numbers. If all described devices have one name, every device has it.

    Raises `InputError` if ``name`` is given and unknown, or if the file in ``SEER_GPUS`` is unreadable.
    """
    if name:
        return gpu_by_name(name)
    names = {described.name for described in trace.devices}
    recorded = trace.device_name(device) or ("".join(names) if len(names) == 1 else "")
    try:
        return gpu_by_name(recorded) if recorded else None
    except UnknownGpuError:
        return None


def renamed_note(profile: Profile) -> str:
    """Return a note if the trace names another GPU than the one that gives the peaks, else ""."""
    traced_gpu = gpu_of(profile.trace, profile.device)
    if traced_gpu is None or profile.gpu is None or traced_gpu == profile.gpu:
        return ""
    return _TEXTS["renamed"].format(source=profile.trace.source, traced=traced_gpu.name, gpu=profile.gpu.name)


def main_device(trace: Trace, device_of: Ints) -> int:
    """Return the device with the most activity time; without activities the first device, or 0."""
    if not len(device_of):
        return trace.devices[0].index if trace.devices else 0
    values, position = np.unique(device_of, return_inverse=True)
    return int(values[np.bincount(position, weights=trace.activities.time_us).argmax()])


def step_times_us(profile: Profile) -> Floats:
    """Return the part of every activity's time that counts in the mean step, in µs; the sum is the time of a step.

    Activities of counted iterations count, divided by their number. If the device falls further behind the host with
    each iteration, the steps are the device's. Then the time counts from the end of its first iteration to the end of
    its last. So no part of a step on one stream is longer than the step.
    """
    layers, activities = profile.layers, profile.trace.activities
    is_counted = layers.iteration_of_activity >= 0
    time_us, behind_us = activities.time_us * is_counted, layers.device_behind_us(activities)
    count = len(behind_us)
    if len(behind_us) > 1 and device_lag_us(layers.iterations, behind_us):
        ends_ns = [part.end_ns + 1e3 * lag_us for part, lag_us in zip(layers.iterations, behind_us, strict=True)]
        inside_ns = np.minimum(activities.end_ns, ends_ns[-1]) - np.maximum(activities.start_ns, ends_ns[0])
        time_us, count = np.maximum(inside_ns, 0.0) / 1e3 * is_counted, len(behind_us) - 1
    return time_us / max(count, 1)


def union_us(start_ns: Ints, end_ns: Ints) -> float:
    """Return the length in µs of the union of intervals, which may overlap and have any order."""
    starts, ends = merged(start_ns, end_ns)
    return float((ends - starts).sum()) / 1e3


def idle_before_us(activities: Activities, device: Ints) -> Floats:
    """Return for every activity how long its device was idle directly before it, in µs; 0 for a device's first.

    For each device, the idle times and the busy time (`union_us`) add up to the time from first start to last end.
    """
    idle = np.zeros(len(activities))
    for _, rows in grouped(device, np.argsort(activities.start_ns, kind="stable")):
        reach = np.maximum.accumulate(activities.end_ns[rows])
        idle[rows[1:]] = np.maximum(activities.start_ns[rows[1:]] - reach[:-1], 0) / 1e3
    return idle


def _spread_work(trace: Trace) -> tuple[Floats, Floats, tuple[str, ...]]:
    """Return FLOPs, bytes and dtype of every activity: its operator's, by its share of the operator's kernel time."""
    activities = trace.activities
    reader = CallReader(trace)
    flops, dram_bytes = np.full(len(activities), np.nan), np.full(len(activities), np.nan)
    dtype = np.full(len(activities), "", object)
    prepares = trace.name_matches(activities, lambda name: kernel_family(name) in PREPARING)
    kernels = np.flatnonzero((activities.kind == events.KERNEL) & (activities.range >= 0) & ~prepares)
    time_us = np.maximum(activities.time_us, 1e-3)
    for owner, rows in kernels_by_owner(reader, kernels.tolist()).items():
        if work := reader.flops_bytes_dtype(owner):
            time = time_us[rows]
            share = time / time.sum()
            flops[rows], dram_bytes[rows] = work[0] * share, work[1] * share
            dtype[rows] = work[2]
    return flops, dram_bytes, tuple(dtype)
