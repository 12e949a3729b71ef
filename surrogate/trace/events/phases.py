"""Find the parts of a recording whose launches tell nothing about steady work: start-up, captures, and both ends."""

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from surrogate.trace import events
from surrogate.trace.events.tables import NEVER, Ints, Trace, grouped, linked, merged

Mask = NDArray[np.bool_]
_LAUNCHES = (events.LAUNCH, events.GRAPH_LAUNCH)
_STARTS_UP = (*_LAUNCHES, events.MEMORY_CALL, events.OTHER_CALL)
_LOADS = re.compile("moduleload|libraryload|modulegetfunction|linkcreate|linkadd", re.I)
_START_UP_US, _LOAD_US = 1000.0, 100.0
"""Minimum length in µs of a first call that starts up the runtime, and of a call that loads a module."""
_LONG = 10.0
"""A first call starts something up if it takes more than this multiple of the median launch of a known kernel."""
_MIN_SHARE = 0.05
"""Minimum share of the trace's time that makes start-up worth a note."""


def outermost_calls(trace: Trace) -> Ints:
    """Return for every call the row of its outermost call on its thread (a runtime call around driver calls)."""
    calls = trace.calls
    outer = np.arange(len(calls))
    for _, rows in grouped(calls.thread, np.arange(len(calls))):
        reach = np.maximum.accumulate(calls.end_ns[rows])
        first = np.append(True, calls.start_ns[rows[1:]] >= reach[:-1])
        outer[rows] = rows[np.maximum.accumulate(np.where(first, np.arange(len(rows)), 0))]
    return outer


def captured_calls(trace: Trace) -> Mask:
    """Return a mask of the calls inside a capture of a graph, such as after ``cudaStreamBeginCapture``.

    They are all calls of the capturing thread, and launches of other threads that have no activity. The recording may
    hold only one end of a capture.
    """
    calls = trace.calls
    begins = trace.name_matches(calls, lambda name: "begincapture" in name.lower())
    ends = trace.name_matches(calls, lambda name: "endcapture" in name.lower())
    mask = np.zeros(len(calls), np.bool_)
    launches, is_lost = launches_of(trace)
    lost = np.isin(np.arange(len(calls)), launches[is_lost])
    for thread in np.unique(calls.thread[begins | ends]).tolist():
        of_thread = calls.thread == thread
        captures = np.cumsum((begins.astype(int) - ends) * of_thread)  # below 0 if the first one began before the trace
        mask |= (captures - min(captures.min(), 0) > 0) & (of_thread | lost)
    return mask & ~begins & ~ends


def launches_of(trace: Trace) -> tuple[Ints, Mask]:
    """Return the outermost launches of kernels and graphs, and a mask of those that have no activity."""
    outer = outermost_calls(trace)
    launches = np.unique(outer[np.isin(trace.calls.kind, _LAUNCHES)])
    return launches, ~np.isin(launches, linked(outer, np.unique(trace.activities.call)))


def call_labels(trace: Trace) -> Ints:
    """Return a number for every call: of the name of its first activity, or of its own name."""
    calls, activities = trace.calls, trace.activities
    name = np.full(len(calls) + 1, -1)
    name[linked(outermost_calls(trace), activities.call)[::-1]] = activities.name[::-1]
    return np.where(name[:-1] >= 0, name[:-1], calls.name + len(trace.names))


def start_up_calls(trace: Trace) -> Mask:
    """Return a mask of the outermost calls that start up the runtime or load modules while the device is idle.

    They are calls that load a module, and long first calls: of each function, and of each kernel's launch. A first call
    is no start-up if later calls are as long.
    """
    calls, activities = trace.calls, trace.activities
    if not len(calls):
        return np.zeros(0, np.bool_)
    _, firsts, label = np.unique(call_labels(trace), return_index=True, return_inverse=True)
    is_first = np.isin(np.arange(len(calls)), firsts)
    again = calls.time_us[np.isin(calls.kind, _LAUNCHES) & ~is_first]
    long = calls.time_us > max(_START_UP_US, _LONG * np.median(again) if len(again) else 0.0)
    loads = trace.name_matches(calls, _LOADS.search) & (calls.time_us > _LOAD_US)
    busy_from, busy_to = merged(activities.start_ns, activities.end_ns)
    middle_ns = (calls.start_ns + calls.end_ns) // 2
    is_idle = linked(busy_to, np.searchsorted(busy_from, middle_ns, "right") - 1, -NEVER) <= middle_ns
    is_outer = outermost_calls(trace) == np.arange(len(calls))
    first = is_first & long & np.isin(calls.kind, _STARTS_UP)
    for row in np.flatnonzero(first & is_outer & is_idle).tolist():
        later_us = calls.time_us[(label == label[row]) & ~is_first]
        first[row] = calls.time_us[row] > _LONG * (np.median(later_us) if len(later_us) else 0)
    return is_outer & is_idle & (loads | first)


def launched_before(trace: Trace) -> Mask:
    """Return a mask of the activities that were launched before the recording.

    They have no launch call or range, and start before the first activity of their stream that has a launch call.
    """
    activities = trace.activities
    has_launch = activities.call >= 0
    if not has_launch.any():
        return has_launch
    first = np.full(int(activities.stream.max()) + 1, activities.start_ns[has_launch].min())
    rows = np.flatnonzero(has_launch)[::-1]
    first[activities.stream[rows]] = activities.start_ns[rows]
    return ~has_launch & (activities.range < 0) & (activities.start_ns < first[activities.stream])


def with_limits(trace: Trace) -> Trace:
    """Return the trace with `Trace.complete_ns` and a note for each of these phases."""
    launches, lost = launches_of(trace)
    free = ~captured_calls(trace)[launches]
    launches, lost = launches[free], lost[free] & (trace.activities.call >= 0).any()
    # Lengths of the runs of launches without an activity, before, between and after the others.
    ends = np.array([-1, *np.flatnonzero(~lost), len(launches)])
    runs = ends[1:] - ends[:-1] - 1
    first, last = (runs[at] * (len(runs) > 1 and runs[at] > max(runs[1:-1], default=0)) for at in (0, -1))
    starts = trace.calls.start_ns[launches]
    edges = (int(starts[first]) if first else -NEVER, int(starts[-last]) if last else NEVER)
    missing = [events.text("lost", lost=lost.sum(), launches=len(lost))] if lost.any() else []
    missing = [line + events.text("uncounted") * bool(first or last) for line in missing]
    return replace(trace, complete_ns=edges, notes=(*trace.notes, *missing, *_notes(trace)))


def _notes(trace: Trace) -> list[str]:
    """Return a note for each of these phases that the trace has, except the ends."""
    calls, start_up = trace.calls, start_up_calls(trace)
    captured = captured_calls(trace) & np.isin(calls.kind, _LAUNCHES)
    counts = {"before": launched_before(trace).sum(), "captured": captured.sum()}
    notes = [events.text(name, count=count) for name, count in counts.items() if count]
    start_up_us = float(calls.time_us[start_up].sum())
    if start_up_us > _MIN_SHARE * trace.span_us:
        names = ", ".join(dict.fromkeys(trace.names[name] for name in calls.name[start_up].tolist()))
        notes.append(events.text("start_up", ms=start_up_us / 1e3, of_ms=trace.span_us / 1e3, names=names))
    return notes + whole_graphs(trace)


def whole_graphs(trace: Trace) -> list[str]:
    """Return a note on the CUDA graphs that are recorded as one activity each, with their time; [] without any."""
    kind, time_us = trace.activities.kind, trace.activities.time_us
    is_graph, count = kind == events.GRAPH, int((kind == events.GRAPH).sum())
    of_ms = time_us[is_graph | (kind == events.KERNEL)].sum() / 1e3
    return [events.text("graphs", count=count, ms=time_us[is_graph].sum() / 1e3, of_ms=of_ms)] if count else []
