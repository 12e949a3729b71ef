"""Join device activities to the calls that launched them.

A launch has the activity's correlation id, is made by its process, is of a kind that can launch it, and begins before
it. Profilers number the calls of every process from the same start, so the id alone identifies no call.
"""

import re
from typing import NamedTuple

import numpy as np

from surrogate.trace import events
from surrogate.trace.events.tables import NEVER, Columns, Ints, keep_rows

MAX_SKEW_NS = 1_000_000
"""The clocks of host and device differ by less, in ns. An activity that begins earlier before its launch is damaged."""
SKEW_NS = 2_000
"""The rounding of recorded times, in ns."""
_OWN_CALLS = {events.KERNEL: events.LAUNCH, events.COPY: events.COPY_CALL, events.MEMSET: events.MEMSET_CALL}
"""Kind of an activity → the kind of call that launches only this kind. A graph's launch and other calls may launch any
kind.
"""
_NO_LAUNCH = re.compile("query|get|set|create|destroy|capture|load|occupancy|error|instantiate|attribute|host", re.I)
ANY_PROCESS, OTHER_PROCESS = -1, -2
"""Processes of an activity: not in the trace, or one that wrote no calls."""
ANY_KIND = -1
"""The kind of a device event that any call may belong to."""


class Keys(NamedTuple):
    """The columns of calls or activities that decide which call launched which activity.

    ``process`` numbers the processes of the calls; an activity's may also be `ANY_PROCESS` or `OTHER_PROCESS`.
    """

    correlation: Ints
    start_ns: Ints
    kind: Ints
    process: Ints


def launching_kind(name: str) -> int:
    """Return the kind of a call as a launch: `OTHER_CALL` if it may launch anything, -1 if it launches nothing.

    HIP copies and fills with kernels, so its calls may launch anything.
    """
    kind = events.call_kind(name)
    if kind in (events.COPY_CALL, events.MEMSET_CALL) and name.startswith("hip"):
        return events.OTHER_CALL
    return -1 if kind == events.OTHER_CALL and _NO_LAUNCH.search(name) else kind


def launched_by(activities: Keys, calls: Keys) -> Ints:
    """Return the row of the call that launched each activity, -1 for none.

    Of several candidates, the last one that began before the activity is the answer, else the first one.
    """
    call = np.full(len(activities.correlation), -1, np.int64)
    ids = np.unique(calls.correlation[calls.correlation >= 0])
    count = int(calls.process.max(initial=-1)) + 2
    for kind in np.unique(activities.kind).tolist():
        kinds = (_OWN_CALLS.get(kind, events.GRAPH_LAUNCH), events.GRAPH_LAUNCH, events.OTHER_CALL)
        candidates = np.flatnonzero((calls.correlation >= 0) & ((kind == ANY_KIND) | np.isin(calls.kind, kinds)))
        of_kind = (activities.kind == kind) & np.isin(activities.correlation, ids)
        for by_process in (True, False):
            rows = np.flatnonzero(of_kind & ((activities.process >= 0) if by_process else activities.process == -1))
            sides = (activities, rows), (calls, candidates)
            keys = [np.searchsorted(ids, t.correlation[at]) * count + t.process[at] * by_process for t, at in sides]
            position = _last_before(keys[0], activities.start_ns[rows], keys[1], calls.start_ns[candidates])
            call[rows] = np.append(candidates, -1)[position]
    return call


def _last_before(key: Ints, time_ns: Ints, call_key: Ints, call_ns: Ints) -> Ints:
    """Return the last call with each key that began until the time, else the first one with the key, else -1."""
    order = np.lexsort((call_ns, call_key))
    keys, times = call_key[order], np.sort(call_ns)
    # The number of calls before a call or a time orders them like the times, and fits in one integer with the key.
    size = len(order) + 1
    codes = keys * size + np.searchsorted(times, call_ns[order], "left")
    at = np.searchsorted(codes, key * size + np.searchsorted(times, time_ns, "right"), "left") - 1
    at = np.maximum(at, np.searchsorted(keys, key, "left"))
    is_found = np.append(keys, -1)[at] == key
    return np.where(is_found, np.append(order, -1)[at], -1)


def drop_early(activities: Columns, calls: Keys) -> int:
    """Remove the activities that begin long before their launch call, and return how many; their times are wrong.

    If most begin long before it, the ids are wrong instead, and no activity has a launch.
    """
    call = activities["call"]
    early = (call >= 0) & (np.append(calls.start_ns, 0)[call] - activities["start_ns"] > MAX_SKEW_NS)
    if 2 * early.sum() > (call >= 0).sum():
        activities["call"] = np.where(early, -1, call)
        return 0
    return keep_rows(activities, ~early)


def clip_overlong(activities: Columns, calls: Keys, waits_ns: tuple[Ints, Ints], is_rocm: bool) -> list[str]:
    """End kernels at the start of their stream's next kernel, or when a wait for them returned, and return a note.

    A stream runs one kernel at a time, except the branches of a graph. ROCm's profiler records some ends too late. A
    kernel of CUDA may end after the next one starts (programmatic launch), but not after the next one's end.
    ``waits_ns`` are the starts and ends of calls that wait for all earlier work.
    """
    call, kernels = activities["call"], activities["kind"] == events.KERNEL
    in_graph = (activities["graph_node"] > 0) | (np.append(calls.kind, -1)[call] == events.GRAPH_LAUNCH)
    rows = np.flatnonzero(kernels)
    start_ns, end_ns = activities["start_ns"], activities["end_ns"]
    order = rows[np.lexsort([activities[name][rows] for name in ("start_ns", "stream", "device", "process")])]
    before, after = order[:-1], order[1:]
    same = [activities[name][before] == activities[name][after] for name in ("stream", "device", "process")]
    outlasts = np.logical_and.reduce(same) & ~in_graph[before] & (is_rocm | (end_ns[before] > end_ns[after]))
    limit_ns = np.full(len(call), NEVER)
    limit_ns[before[outlasts]] = start_ns[after[outlasts]]
    launched_ns = np.append(calls.start_ns, NEVER)[call]
    returned_ns = np.append(waits_ns[1], NEVER)[np.searchsorted(waits_ns[0], launched_ns)]
    is_late = kernels & (start_ns < returned_ns) & (end_ns > returned_ns + MAX_SKEW_NS)
    limit_ns = np.minimum(np.where(end_ns > limit_ns + SKEW_NS, limit_ns, NEVER), np.where(is_late, returned_ns, NEVER))
    over_ns = np.maximum(end_ns - limit_ns, 0)
    activities["end_ns"] = end_ns - over_ns
    count = int((over_ns > 0).sum())
    return [events.text("clipped", count=count, ms=over_ns.sum() / 1e6)] if count else []
