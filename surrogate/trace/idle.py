"""Idle time of the main device, by what the host did meanwhile.

Each idle gap ends with an activity. The part of the gap before the launch call of this activity has its cause on the
host: the event of the launching thread, or else of the main thread. The rest of the gap is launch latency or a wait for
other work of the device.
"""

import re
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pandas as pd

from surrogate.trace import events, profiling
from surrogate.trace.events.parts import OTHER, iteration_at, layer_type
from surrogate.trace.events.phases import captured_calls, launched_before, outermost_calls, start_up_calls
from surrogate.trace.events.tables import (
    NEVER,
    Activities,
    Ints,
    Nesting,
    Timed,
    Trace,
    enclosing,
    interval_at,
    joined,
    linked,
    merged,
    open_rows,
    take_rows,
    with_ancestors,
)
from surrogate.trace.graph.device import TOLERANCE_NS, UNEXPLAINED_US, blocking_copies, frees
from surrogate.trace.graph.host import main_thread
from surrogate.trace.graph.tasks import Mask
from surrogate.trace.profiling import Profile, TraceSource, steady
from surrogate.trace.result import ResultTable

START_UP, CAPTURE, BLOCKED, OPERATOR, CALL, RANGE, SYSTEM, LOADER, COLLECTION, PYTHON, UNKNOWN, LAUNCHED = range(12)
"""Causes of idle time, in the order in which evidence counts. `LAUNCHED` is time after the launch call began."""
CAUSES = (
    *("start-up", "graph capture", "blocking call", "operator", "runtime call", "range", "system call"),
    *("data loader", "garbage collection", "Python", "unknown", "launched"),
)
_WRAPPER = re.compile("DistributedDataParallel")
"""Matches ranges and modules around a whole model, which say less than the operators inside."""
_MIN_STEP = 0.9
"""Minimum share of an iteration that a range around the whole step covers."""
LATENCY = "launch latency"
"""The name of `LAUNCHED` time that is not longer than a launch usually takes."""
LOADER_RANGE = "enumerate(DataLoader)"
"""The beginning of the names of PyTorch's ranges around the DataLoader."""


def idle_table(source: TraceSource) -> ResultTable:
    """Return one row per cause and name of the main device's idle time in the counted iterations, the longest first.

    Parameters
    ----------
    source : Trace, Profile, str or Path
        A trace, its profile, its file, or the name of a trace that ships.

    Returns
    -------
    ResultTable
        ``cause`` is one of `CAUSES`, and ``name`` says which layer type, call, range or line of the program.
        ``time_us`` is the sum over all counted iterations; all rows add up to ``idle_ms`` of the summary.
        ``per_iteration_us`` is its mean, ``share_pct`` its share of the idle time, and ``pieces`` the number of idle
        gaps with this cause.

    Raises
    ------
    InputError
        If ``source`` is no trace.
    """
    profile = steady(profiling.profile(source))
    if not len(profile.trace.activities):
        return ResultTable("Idle time of the device: the trace holds no work of a device", ())
    by_cause = idle_pieces(profile).groupby(["cause", "name"], as_index=False)
    sums = by_cause.agg({"time_us": "sum", "gap": "nunique"}).sort_values("time_us", ascending=False, kind="stable")
    count, total_us = len(profile.layers.iterations), float(sums["time_us"].sum())
    rows = tuple(
        {"cause": CAUSES[cause], "name": name, "time_us": time_us, "per_iteration_us": time_us / count}
        | {"share_pct": 100 * time_us / total_us, "pieces": pieces}
        for cause, name, time_us, pieces in sums.itertuples(index=False)
    )
    title = f"Idle time of the device: {total_us / 1e3:,.3f} ms in {count:,} iteration{'s' * (count > 1)}"
    return ResultTable(title, rows)


def blocking_calls(trace: Trace) -> Mask:
    """Return a mask of the calls that block the host: synchronisations, blocking copies, and frees that wait.

    A free waits if it begins while the device works and ends after this work. A call inside a blocking call does not
    count again.
    """
    calls = trace.calls
    busy = merged(trace.activities.start_ns, trace.activities.end_ns)
    during = interval_at(calls.start_ns, *busy)
    waits = (during >= 0) & (linked(busy[1], during) <= calls.end_ns)
    blocks = (calls.kind == events.SYNC_CALL) | (frees(trace) & waits)
    blocks[list(blocking_copies(trace))] = True
    rows = np.flatnonzero(blocks)
    outer = outermost_calls(replace(trace, calls=take_rows(calls, rows)))
    blocks[rows[outer != np.arange(len(rows))]] = False
    return blocks


@lru_cache(maxsize=1)
def idle_pieces(profile: Profile) -> pd.DataFrame:
    """Return the pieces of the main device's idle time; without activities, of the iterations' whole time.

    Pieces are disjoint and in time order. ``start_ns`` and ``end_ns`` are their ends, ``time_us`` their length,
    ``iteration`` the position of their iteration, ``cause`` an index of `CAUSES` and ``name`` a text. ``call`` is the
    runtime call (row of ``trace.calls``) that was open on the host thread, ``system_call`` the call of the operating
    system (row of ``trace.frames``). ``gap`` numbers the idle gaps. ``following`` is the activity that ends the gap;
    its iteration may be another, and then it is -1. ``blocked`` is the blocking call in which the gap begins. A row of
    -1 means none.
    """
    trace, blocks = profile.trace, blocking_calls(profile.trace)
    parts = _parts(profile, _gaps(profile, blocks))
    start_ns, end_ns = parts["start_ns"].to_numpy(), parts["end_ns"].to_numpy()
    pieces = _host_evidence(profile, blocks, start_ns, parts["thread"].to_numpy())
    # After the launch call began, the device is the cause.
    is_launched = start_ns >= parts["launch_ns"].to_numpy()
    waits = np.where(parts["latency_us"] > UNEXPLAINED_US, "wait for other work", LATENCY)
    is_copy = np.isin(linked(trace.activities.kind, parts["following"].to_numpy()), events.MOVES)
    pieces.loc[is_launched, "name"] = np.where(is_copy, "copy", waits)[is_launched]
    pieces.loc[is_launched, ["cause", "call", "system_call"]] = LAUNCHED, -1, -1
    # Join neighbours that differ in nothing.
    pieces = pieces.join(parts[["gap", "iteration", "following", "blocked"]])
    is_first = (pieces != pieces.shift()).any(axis=1).to_numpy() | (start_ns != parts["end_ns"].shift().to_numpy())
    start_ns, end_ns = start_ns[is_first], end_ns[np.append(is_first, True)[1:]]
    pieces = pieces[is_first].assign(start_ns=start_ns, end_ns=end_ns, time_us=(end_ns - start_ns) / 1e3)
    return pieces.reset_index(drop=True)


def device_work(profile: Profile) -> Activities:
    """Return the main device's activities in the order of their starts, those of other iterations included."""
    activities = joined(profile.trace.activities, profile.trace.others)
    devices = np.array([stream.device for stream in profile.trace.streams] or [-1])
    return take_rows(activities, devices[activities.stream] == profile.device)


def _gaps(profile: Profile, blocks: Mask) -> pd.DataFrame:
    """Return the idle gaps from the first iteration's start to the last one's end.

    ``following`` is the activity that ends the gap (-1 for the last gap), ``launch_ns`` the time of its launch,
    ``latency_us`` the rest of the gap, and ``thread`` the launching thread. ``blocked`` is as in `idle_pieces`.
    """
    trace, iterations, work = profile.trace, profile.layers.iterations, device_work(profile)
    calls, activities = trace.calls, trace.activities
    first_ns, last_ns = min(part.start_ns for part in iterations), max(part.end_ns for part in iterations)
    busy_start, busy_end = merged(work.start_ns, work.end_ns)
    start_ns = np.append(first_ns, busy_end)
    end_ns = np.maximum(start_ns, np.append(busy_start, last_ns))
    rows = np.flatnonzero(profile.device_of == profile.device)
    at = np.searchsorted(activities.start_ns[rows], busy_start)
    is_other = linked(activities.start_ns[rows], at, NEVER) != busy_start
    following = np.append(np.where(is_other, -1, linked(rows, at)), -1)
    launch = linked(activities.call, following)
    # Work of other iterations, and work from before the recording, was launched earlier. Without a recorded launch, the
    # whole gap has its cause on the host. A call that starts up the runtime launches at its end.
    is_earlier = np.append(is_other, False) | linked(launched_before(trace), following, False)
    called_ns = linked(np.where(start_up_calls(trace), calls.end_ns, calls.start_ns), launch)
    launch_ns = np.where(is_earlier, start_ns, np.where(launch < 0, end_ns, called_ns)).clip(start_ns, end_ns)
    # A gap begins in a blocking call if the last one that has begun is open, within the tolerance of recorded times.
    begun = np.searchsorted(calls.start_ns[blocks], start_ns + TOLERANCE_NS, "right") - 1
    is_blocked = linked(calls.end_ns[blocks], begun) >= start_ns - TOLERANCE_NS
    gaps = pd.DataFrame({"start_ns": start_ns, "end_ns": end_ns, "following": following, "launch_ns": launch_ns})
    return gaps.assign(
        latency_us=(end_ns - launch_ns) / 1e3,
        thread=np.where(launch >= 0, linked(calls.thread, launch), main_thread(trace)),
        blocked=np.where(is_blocked, linked(np.flatnonzero(blocks), begun), -1),
    )


def _parts(profile: Profile, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of the gaps in which the host does one thing: between neighbouring bounds, in iterations."""
    trace, iterations = profile.trace, profile.layers.iterations
    threads = np.append(gaps["thread"], main_thread(trace))
    tables = (trace.ranges, trace.calls, trace.frames)
    ends = [(table.thread, end_ns) for table in tables for end_ns in (table.start_ns, table.end_ns)]
    bounds = np.concatenate([end_ns[np.isin(thread, threads)] for thread, end_ns in ends])
    gap_ns = gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy()
    bounds = bounds[interval_at(bounds, *gap_ns) >= 0]
    edges = np.array([(part.start_ns, part.end_ns) for part in iterations], np.int64).ravel()
    cuts = np.unique(np.concatenate([*gap_ns, gaps["launch_ns"], edges, bounds]))
    gap, iteration = interval_at(cuts[:-1], *gap_ns), iteration_at(iterations, cuts[:-1])
    rows = np.flatnonzero((gap >= 0) & (iteration >= 0))
    parts = gaps.take(gap[rows]).reset_index(drop=True)
    return parts.assign(start_ns=cuts[rows], end_ns=cuts[rows + 1], gap=gap[rows], iteration=iteration[rows])


def _host_evidence(profile: Profile, blocks: Mask, time_ns: Ints, thread: Ints) -> pd.DataFrame:
    """Return the evidence of the thread, or of the main thread if a thread of the same process has no event."""
    trace, main = profile.trace, main_thread(profile.trace)
    processes = np.array([each.process for each in trace.threads] or [""], object)
    again = np.flatnonzero((thread != main) & (processes[thread] == processes[main]))
    threads = np.append(thread, np.full(len(again), main))
    evidence = _evidence(profile, blocks, np.append(time_ns, time_ns[again]), threads)
    source, is_unknown = np.arange(len(time_ns)), evidence["cause"].to_numpy()[again] == UNKNOWN
    source[again[is_unknown]] = len(time_ns) + np.flatnonzero(is_unknown)
    return evidence.take(source).reset_index(drop=True)


def _evidence(profile: Profile, blocks: Mask, time_ns: Ints, thread: Ints) -> pd.DataFrame:
    """Return the first cause of `CAUSES` with evidence on a thread at each time, its name, and the open calls."""
    trace = profile.trace
    ranges, frames, calls = trace.ranges, trace.frames, trace.calls
    around, frame = (open_rows(table, time_ns, thread) for table in (ranges, frames))
    outermost = outermost_calls(trace) == np.arange(len(calls))
    blocking, call = (_call_at(trace, chosen, time_ns, thread) for chosen in (blocks, outermost))
    operator = _operators(profile, around, frame)
    is_label = np.isin(ranges.kind, (events.ANNOTATION, events.NVTX)) | trace.name_matches(ranges, _WRAPPER.match)
    label = linked(enclosing(ranges, is_label), around)
    is_step = linked(_step_ranges(profile), label, False)
    in_loader = trace.name_matches(ranges, lambda name: name.startswith(LOADER_RANGE))
    loading = linked(in_loader, label, False) | np.char.startswith(operator.astype(str), LOADER_RANGE)
    in_capture = trace.name_matches(ranges, lambda name: "captur" in name.lower())
    captured = (interval_at(time_ns, *_captures(trace)) >= 0) | linked(in_capture, label, False)
    starts_up = linked(start_up_calls(trace), call, False)
    system, loader, collection, line = (
        linked(enclosing(frames, frames.kind == kind, outermost=kind == events.LOADER), frame) for kind in _FRAMES
    )
    # Each cause, and its name if there is evidence of it; `np.select` takes the first.
    blocker, called, labels = _names(trace, calls, blocking), _names(trace, calls, call), _names(trace, ranges, label)
    is_inside = operator != ""
    found = (
        (START_UP, np.where(starts_up, called, "")),
        (CAPTURE, np.where(captured, np.where(is_inside, operator, "capture"), "")),
        (BLOCKED, np.where((blocking >= 0) & is_inside, blocker + " in " + operator, blocker)),
        (LOADER, np.where(loading, np.where(is_inside, operator, labels), "")),
        *((OPERATOR, operator), (CALL, called), (RANGE, np.where(is_step, "", labels))),
        *((SYSTEM, _names(trace, frames, system)), (LOADER, _names(trace, frames, loader))),
        *((COLLECTION, _names(trace, frames, collection)), (PYTHON, _names(trace, frames, line)), (RANGE, labels)),
    )
    causes, names = zip(*found, strict=True)
    masks = [name != "" for name in names]
    evidence = {"cause": np.select(masks, causes, UNKNOWN), "name": np.select(masks, names, "no recorded event")}
    return pd.DataFrame(evidence | {"call": np.where(blocking >= 0, blocking, call), "system_call": system})


def _step_ranges(profile: Profile) -> Mask:
    """Return a mask of the ranges that launch work and fill an iteration, so they say less than any event inside."""
    ranges, calls, iterations = profile.trace.ranges, profile.trace.calls, profile.layers.iterations
    launches = np.isin(calls.kind, (events.LAUNCH, events.GRAPH_LAUNCH))
    lengths_us = np.array([*(part.time_us for part in iterations), np.inf])
    fills = ranges.time_us > _MIN_STEP * lengths_us[iteration_at(iterations, ranges.start_ns)]
    return fills & with_ancestors(ranges, calls.range[launches])


def _operators(profile: Profile, around: Ints, frame: Ints) -> np.ndarray:
    """Return the layer type around open ranges and frames, else the module; "" outside of operators.

    Layers are operators, wrappers such as Optimizer.step, or modules; in other traces they are NVTX ranges. The wrapper
    of a whole model is no operator, but the operators inside are.
    """
    trace, layers, ranges = profile.trace, profile.layers, profile.trace.ranges
    layer = linked(layers.of_range, around)
    anchor = np.where(linked(layers.from_frame, layer) == 0, linked(layers.row, layer), -1)
    is_range = (anchor >= 0) & (linked(ranges.kind, anchor) != events.OPERATOR)
    layer = np.where(is_range & (linked(layers.phase_of_range, anchor) != OTHER), -1, layer)
    every_module = trace.name_matches(trace.frames, lambda name: name.startswith(events.MODULE))
    module = linked(enclosing(trace.frames, every_module), frame)
    types = np.array([*layers.type, ""], object)[layer]
    types = np.where(layer >= 0, types, _names(trace, trace.frames, module))
    is_wrapper = trace.name_matches(ranges, _WRAPPER.match)
    inner = enclosing(ranges, (ranges.kind == events.OPERATOR) & ~is_wrapper, outermost=True)
    is_whole = np.array([bool(_WRAPPER.match(name)) for name in types], np.bool_)
    return np.where(is_whole, _names(trace, ranges, linked(inner, around)), types)


VERSION = re.compile(r"_v\d+$")
"""Matches the version at the end of a call's name."""
_CAPTURE = re.compile("begincapture|endcapture|graphinstantiate", re.I)
_FRAMES = (events.SYSTEM_CALL, events.LOADER, events.COLLECTION, events.FRAME)


def _names(trace: Trace, table: Timed, rows: Ints) -> np.ndarray:
    """Return a name for each row of a table, "" for -1: of a range or a module without numbers, of a call without its
    version.
    """
    labels = np.full(len(trace.names) + 1, "", object)
    index = linked(table.name, rows)
    is_used = np.zeros(len(labels), np.bool_)
    is_used[index] = True
    for used in np.flatnonzero(is_used[:-1]).tolist():
        text = VERSION.sub("", trace.names[used]) if table is trace.calls else trace.names[used]
        labels[used] = (
            layer_type(text, trace.repeated) if table is trace.ranges or text.startswith(events.MODULE) else text
        )
    return labels[index]


def _call_at(trace: Trace, chosen: Mask, time_ns: Ints, thread: Ints) -> Ints:
    """Return which of the chosen calls, disjoint on a thread, is open on the thread at each time, -1 for none."""
    calls, none = trace.calls, np.full(len(chosen), -1, np.int64)
    rows = np.lexsort((calls.start_ns, calls.thread))
    nesting = Nesting(rows[chosen[rows]], calls.start_ns, calls.end_ns, calls.thread, none, none)
    return nesting.open_at(time_ns, thread)


def _captures(trace: Trace) -> tuple[Ints, Ints]:
    """Return the starts and ends of the captures of graphs, with the calls that begin, end and instantiate them."""
    calls = trace.calls
    captured = trace.name_matches(calls, _CAPTURE.search)
    captured |= captured_calls(trace) if captured.any() else False
    order = np.lexsort((calls.start_ns, calls.thread))
    is_next = captured[order][1:] & (np.diff(calls.thread[order]) == 0)
    pairs = np.flatnonzero(captured[order][:-1] & is_next)
    return merged(calls.start_ns[order[pairs]], calls.end_ns[order[pairs + 1]])
