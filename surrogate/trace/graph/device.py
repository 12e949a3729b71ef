"""Device activities as tasks: lanes of their streams, and how long after what they start.

Three things let a device task start: its stream's previous task, its launch call, awaited tasks of other streams. The
one that came last, allowing each its typical delay, is charged with the measured delay; the others keep the typical
one, so that a changed trace waits a plausible time where it waits for something else than before.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surrogate.trace.events import kinds
from surrogate.trace.events.tables import Ints, Trace
from surrogate.trace.graph.waits import TOLERANCE_NS

Floats = NDArray[np.float64]
UNEXPLAINED_US = 20.0
_EARLY_US = 20.0
_DEFAULT_LATENCY_US, _DEFAULT_GAP_US = 5.0, 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """``lane`` of every activity, ``previous`` on its lane (-1: none), ``branch``: the task of another lane of its
    stream that it follows (-1: none). Lanes from 0; ``stream`` of each lane. More than one per stream only where
    activities of one stream overlap, as those of a CUDA graph's branches do."""

    lane: Ints
    previous: Ints
    branch: Ints
    stream: tuple[int, ...]


def lanes_of(trace: Trace) -> Lanes:
    """Activities of one stream in as few lanes as hold them without overlap (beyond 2 µs of rounding)."""
    activities = trace.activities
    lane = np.full(len(activities), -1)
    previous, branch = lane.copy(), lane.copy()
    streams: list[int] = []
    for stream in np.unique(activities.stream).tolist():
        rows = np.flatnonzero(activities.stream == stream)
        start, end = activities.start_ns[rows], activities.end_ns[rows]
        if (start[1:] >= end[:-1] - TOLERANCE_NS).all():
            lane[rows] = len(streams)
            previous[rows[1:]] = rows[:-1]
            streams.append(stream)
            continue
        last: list[int] = []
        for row in rows.tolist():
            begins = int(activities.start_ns[row]) + TOLERANCE_NS
            free = [i for i, other in enumerate(last) if activities.end_ns[other] <= begins]
            at = free[0] if free else len(last)
            latest = max(free, key=lambda i: int(activities.end_ns[last[i]]), default=-1)
            if latest >= 0 and latest != at:
                branch[row] = last[latest]
            if at == len(last):
                last.append(row)
            else:
                previous[row] = last[at]
            lane[row], last[at] = len(streams) + at, row
        streams += [stream] * len(last)
    return Lanes(lane, previous, branch, tuple(streams))


@dataclass(frozen=True, slots=True, eq=False)
class Delays:
    """µs per activity: ``gap_us`` after the previous of its lane (first: after the origin), ``launch_us`` after its
    launch call's start (NaN without one), ``event_us`` after the latest awaited activity (NaN without one)."""

    gap_us: Floats
    launch_us: Floats
    event_us: Floats
    latency_us: float
    typical_gap_us: float
    unexplained_us: Floats


def delays_of(trace: Trace, lanes: Lanes, awaited_end_ns: Floats) -> Delays:
    """``awaited_end_ns``: end of the latest activity of other lanes that each one waits for, NaN for none."""
    activities = trace.activities
    start = activities.start_ns.astype(float)
    launched = activities.call >= 0
    launch = np.where(launched, trace.calls.start_ns[activities.call] if len(trace.calls) else 0, np.nan)
    follows = lanes.previous >= 0
    before = np.where(follows, activities.end_ns[lanes.previous] if len(activities) else 0, np.nan)
    gap, latency, event = ((start - other) / 1e3 for other in (before, launch, awaited_end_ns))
    typical_gap, typical_latency = _typical(trace, gap, latency)
    least = np.stack([
        np.minimum(gap, typical_gap), np.minimum(latency, typical_latency), np.minimum(event, typical_gap),
    ])  # fmt: skip
    ready = np.stack([before, launch, awaited_end_ns]) / 1e3 + least
    known = ~np.isnan(ready).all(axis=0)
    # Nothing to wait for: an absolute time.
    ready[0, ~known], least[0, ~known] = 0.0, 0.0
    filled = np.where(np.isnan(ready), -np.inf, ready)
    binding = filled.argmax(axis=0)
    residual = np.maximum(start / 1e3 - filled.max(axis=0), 0.0) if len(start) else start
    least[binding, np.arange(len(start))] += residual
    gap_us = np.where(follows | ~known, least[0], 0.0)
    unexplained = np.where(known & (residual > UNEXPLAINED_US), residual, 0.0)
    return Delays(np.nan_to_num(gap_us), least[1], least[2], typical_latency, typical_gap, unexplained)


def _typical(trace: Trace, gap: Floats, latency: Floats) -> tuple[float, float]:
    """Medians of kernels: the gap where the launch came 20 µs or more before, the latency where the stream was idle."""
    kernel = trace.activities.kind == kinds.KERNEL
    with np.errstate(invalid="ignore"):
        early = kernel & (latency - gap > _EARLY_US) & (gap < _EARLY_US)
        idle = kernel & ((gap > latency) | (np.isnan(gap) & ~np.isnan(latency)))
    found_gap = float(np.median(gap[early])) if early.any() else _DEFAULT_GAP_US
    found_latency = float(np.median(latency[idle])) if idle.any() else _DEFAULT_LATENCY_US
    return max(found_gap, 0.0), max(found_latency, 0.0)
