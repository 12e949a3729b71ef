"""When a device works and when it waits: unions of intervals, and the idle time before each activity."""

import numpy as np

from surrogate.trace.events.tables import Activities, Ints, Trace


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
