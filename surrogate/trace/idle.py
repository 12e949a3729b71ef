"""Idle time of the main device, by what the host did meanwhile.

Each idle gap ends with an activity. The part of the gap before the launch call of this activity has its cause on the
host: the event of the launching thread, or else of the main thread. The rest of the gap is launch latency or a wait for
other work of the device.
"""

import re
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pandas as pd

from surrogate.trace import events, profiling
from surrogate.trace.events.parts import OTHER, iteration_at, layer_type
from surrogate.trace.events.phases import captured_calls, launched_before, outermost_calls, start_up_calls
from surrogate.trace.events.tables import Ints, Nesting, Timed, Trace, enclosing, linked, merged, open_rows, take_rows
from surrogate.trace.graph.device import TOLERANCE_NS, UNEXPLAINED_US, blocking_copies
from surrogate.trace.graph.host import main_thread
from surrogate.trace.graph.tasks import Mask
from surrogate.trace.profiling import Profile, TraceSource, steady
from surrogate.trace.result import ResultTable

START_UP, CAPTURE, BLOCKED, OPERATOR, CALL, RANGE, SYSTEM, LOADER, COLLECTION, PYTHON, UNKNOWN, LAUNCHED = range(12)
"""Causes of idle time, in the order in which evidence counts. `LAUNCHED` is time after the launch call began."""
CAUSES = (
    *(
        "start-up",
        "graph capture",
        "blocking call",
        "operator",
        "runtime call",
        "range",
        "system call",
        "data loader",
        "garbage collection",
    ),
    *("Python", "unknown", "launched"),
)
_WHOLE_MODEL = "DistributedDataParallel"
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
        ``per_iteration_us`` is its mean, ``share_pct`` its share of the idle time, and ``pieces`` its number of parts.

    Raises
    ------
    InputError
        If ``source`` is no trace.
    """
    profile = steady(profiling.profile(source))
    pieces = idle_pieces(profile)
    if not len(profile.trace.activities):
        return ResultTable("Idle time of the device: the trace holds no work of a device", ())
    sums = pieces.groupby(["cause", "name"])["time_us"].agg(["sum", "size"]).sort_values("sum", ascending=False)
    total_us, count = float(pieces["time_us"].sum()), len(profile.layers.iterations)
    rows = tuple(
        {
            "cause": CAUSES[cause],
            "name": name,
            "time_us": time_us,
            "per_iteration_us": time_us / count,
            "share_pct": 100 * time_us / total_us,
            "pieces": size,
        }
        for (cause, name), time_us, size in zip(sums.index, sums["sum"].tolist(), sums["size"].tolist(), strict=True)
    )
    return ResultTable(
        f"Idle time of the device: {total_us / 1e3:,.3f} ms in {count:,} iteration{'s' * (count > 1)}", rows
    )


def blocking_calls(trace: Trace) -> Mask:
    """Return a mask of the calls that block the host: synchronisations, blocking copies, and frees that wait.

    A free waits if it begins while the device works and ends after this work. A call inside a blocking call does not
    count again.
    """
    calls = trace.calls
    busy = merged(trace.activities.start_ns, trace.activities.end_ns)
    during = _interval_at(calls.start_ns, *busy)
    waits = (during >= 0) & (linked(busy[1], during) <= calls.end_ns)
    frees = trace.name_matches(calls, lambda name: "free" in name.lower() and "async" not in name.lower())
    blocks = (calls.kind == events.SYNC_CALL) | ((calls.kind == events.MEMORY_CALL) & frees & waits)
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
    system (row of ``trace.frames``). ``following`` is the activity that ends the gap; its iteration may be another, and
    then it is -1. ``blocked`` is the blocking call in which the gap begins. A row of -1 means none.
    """
    trace, iterations = profile.trace, profile.layers.iterations
    gaps, main, blocks = _gaps(profile), main_thread(trace), blocking_calls(trace)
    thread = np.where(gaps.launch >= 0, linked(trace.calls.thread, gaps.launch), main)
    # Between two neighbouring bounds, the host does one thing.
    bounds = _host_bounds(trace, np.append(thread, main))
    bounds = bounds[_interval_at(bounds, gaps.start_ns, gaps.end_ns) >= 0]
    edges = np.array([edge for part in iterations for edge in (part.start_ns, part.end_ns)], np.int64)
    cuts = np.unique(np.concatenate([gaps.start_ns, gaps.end_ns, gaps.launch_ns, edges, bounds]))
    low, high = cuts[:-1], cuts[1:]
    gap, iteration = _interval_at(low, gaps.start_ns, gaps.end_ns), iteration_at(iterations, low)
    chosen = (gap >= 0) & (iteration >= 0)
    low, high, gap, iteration = (column[chosen] for column in (low, high, gap, iteration))
    # If the launching thread has no event, the main thread of the same process gives the evidence.
    processes = np.array([each.process for each in trace.threads] or [""], object)
    again = np.flatnonzero((thread[gap] != main) & (processes[thread[gap]] == processes[main]))
    threads = np.append(thread[gap], np.full(len(again), main))
    evidence = _evidence(profile, blocks, np.append(low, low[again]), threads)
    source, is_unknown = np.arange(len(low)), evidence["cause"].to_numpy()[again] == UNKNOWN
    source[again[is_unknown]] = len(low) + np.flatnonzero(is_unknown)
    pieces = evidence.take(source).reset_index(drop=True)
    # After the launch call began, the device is the cause.
    is_launched = low >= gaps.launch_ns[gap]
    waits = np.where(gaps.end_ns - gaps.launch_ns > 1e3 * UNEXPLAINED_US, "wait for other work", LATENCY)
    is_copy = np.isin(linked(trace.activities.kind, gaps.following), events.MOVES)
    pieces.loc[is_launched, "name"] = np.where(is_copy, "copy", waits)[gap[is_launched]]
    pieces.loc[is_launched, ["cause", "call", "system_call"]] = LAUNCHED, -1, -1
    # A gap begins in a blocking call if the last one that has begun is open, within the tolerance of recorded times.
    rows = np.flatnonzero(blocks)
    begun = linked(rows, np.searchsorted(trace.calls.start_ns[rows], gaps.start_ns + TOLERANCE_NS, "right") - 1)
    blocked = np.where(linked(trace.calls.end_ns, begun) >= gaps.start_ns - TOLERANCE_NS, begun, -1)
    pieces = pieces.assign(iteration=iteration, following=gaps.following[gap], blocked=blocked[gap])
    # Join neighbours that differ in nothing.
    same = (pieces == pieces.shift()).all(axis=1).to_numpy() & np.append(False, low[1:] == high[:-1])[: len(low)]
    start_ns, end_ns = low[~same], high[np.append(~same, True)[1:]]
    joined = pieces[~same].assign(start_ns=start_ns, end_ns=end_ns, time_us=(end_ns - start_ns) / 1e3)
    return joined.reset_index(drop=True)


@dataclass(frozen=True, slots=True, eq=False)
class _Gaps:
    """The idle gaps of the main device: the activity that ends each, its launch call, and when it was launched."""

    start_ns: Ints
    end_ns: Ints
    following: Ints
    launch: Ints
    launch_ns: Ints


def _gaps(profile: Profile) -> _Gaps:
    """Return the gaps from the first iteration's start to the last one's end; no activity ends the last gap."""
    trace, iterations = profile.trace, profile.layers.iterations
    activities, calls = trace.activities, trace.calls
    others = take_rows(activities, np.empty(0, np.int64)) if trace.others is None else trace.others
    stream, start_ns, end_ns = (
        np.concatenate([getattr(table, name) for table in (activities, others)])
        for name in ("stream", "start_ns", "end_ns")
    )
    device_of = np.array([each.device for each in trace.streams] or [-1])[stream]
    on_device = np.flatnonzero(device_of == profile.device)
    on_device = on_device[np.argsort(start_ns[on_device], kind="stable")]
    first_ns, last_ns = min(part.start_ns for part in iterations), max(part.end_ns for part in iterations)
    busy_start, busy_end = merged(start_ns[on_device], end_ns[on_device])
    gap_start = np.append(first_ns, busy_end)
    gap_end = np.maximum(gap_start, np.append(busy_start, last_ns))
    following = np.append(on_device[np.searchsorted(start_ns[on_device], busy_start)], -1)
    # Work of other iterations, and work from before the recording, was launched earlier.
    is_earlier = np.concatenate([launched_before(trace), np.ones(len(others), np.bool_), [False]])[following]
    following = np.where(following < len(activities), following, -1)
    launch = linked(activities.call, following)
    # Without a recorded launch, the whole gap has its cause on the host. A call that starts up the runtime launches at
    # its end.
    called_ns = linked(np.where(start_up_calls(trace), calls.end_ns, calls.start_ns), launch)
    launch_ns = np.where(is_earlier, gap_start, np.where(launch < 0, gap_end, called_ns))
    return _Gaps(gap_start, gap_end, following, launch, np.clip(launch_ns, gap_start, gap_end))


def _evidence(profile: Profile, blocks: Mask, time_ns: Ints, thread: Ints) -> pd.DataFrame:
    """Return the first cause of `CAUSES` with evidence on a thread at each time, its name, and the open calls."""
    trace, layers = profile.trace, profile.layers
    ranges, frames, calls = trace.ranges, trace.frames, trace.calls
    around, frame = (open_rows(table, time_ns, thread) for table in (ranges, frames))
    blocking = _call_at(trace, np.flatnonzero(blocks), time_ns, thread)
    call = _call_at(trace, np.flatnonzero(outermost_calls(trace) == np.arange(len(calls))), time_ns, thread)
    # Layers are operators, wrappers such as Optimizer.step, or modules; in other traces they are NVTX ranges.
    layer = linked(layers.of_range, around)
    types = np.array([*layers.type, ""], object)
    anchor = np.where(linked(layers.from_frame, layer) == 0, linked(layers.row, layer), -1)
    is_range = (anchor >= 0) & (linked(ranges.kind, anchor) != events.OPERATOR)
    layer = np.where(is_range & (linked(layers.phase_of_range, anchor) != OTHER), -1, layer)
    every_module = trace.name_matches(frames, lambda name: name.startswith(events.MODULE))
    module = linked(enclosing(frames, every_module), frame)
    operator = np.where(layer >= 0, types[layer], _names(trace, frames, module))
    # The wrapper of a whole model says less than the operators inside.
    inner = linked(enclosing(ranges, ranges.kind == events.OPERATOR, outermost=True), around)
    is_whole = np.char.startswith(operator.astype(str), _WHOLE_MODEL) & (inner >= 0)
    operator = np.where(is_whole, _names(trace, ranges, inner), operator)
    label = linked(enclosing(ranges, np.isin(ranges.kind, (events.ANNOTATION, events.NVTX))), around)
    rows = {kind: linked(enclosing(frames, frames.kind == kind), frame) for kind in _FRAMES}
    loader = linked(enclosing(frames, frames.kind == events.LOADER, outermost=True), frame)
    in_loader = trace.name_matches(ranges, lambda name: name.startswith(LOADER_RANGE))
    in_capture = trace.name_matches(ranges, lambda name: "captur" in name.lower())
    captured = _interval_at(time_ns, *_captures(trace)) >= 0
    by_range = linked(in_loader, label, False) | np.char.startswith(operator.astype(str), LOADER_RANGE)
    system = rows[events.SYSTEM_CALL]
    inside = np.where(operator == "", "", " in ") + operator
    # Each cause, whether there is evidence of it, and its name; `np.select` takes the first.
    found = {
        START_UP: (linked(start_up_calls(trace), call, False), _names(trace, calls, call) + inside),
        CAPTURE: (captured | linked(in_capture, label, False), np.where(operator == "", "capture", operator)),
        BLOCKED: (blocking >= 0, _names(trace, calls, blocking) + inside),
        LOADER: (by_range, np.where(operator == "", _names(trace, ranges, label), operator)),
        OPERATOR: (operator != "", operator),
        CALL: (call >= 0, _names(trace, calls, call)),
        RANGE: (label >= 0, _names(trace, ranges, label)),
        SYSTEM: (system >= 0, _names(trace, frames, system)),
        -LOADER: (loader >= 0, _names(trace, frames, loader)),
        COLLECTION: (rows[events.COLLECTION] >= 0, _names(trace, frames, rows[events.COLLECTION])),
        PYTHON: (rows[events.FRAME] >= 0, _names(trace, frames, rows[events.FRAME])),
    }
    masks, names = zip(*found.values(), strict=True)
    cause = np.select(masks, list(map(abs, found)), UNKNOWN)
    name = np.select(masks, names, "no recorded event")
    call = np.where(blocking >= 0, blocking, call)
    return pd.DataFrame({"cause": cause, "name": name, "call": call, "system_call": system})


VERSION = re.compile(r"_v\d+$")
"""Matches the version at the end of a call's name."""
_CAPTURE = re.compile("begincapture|endcapture|graphinstantiate", re.I)
_FRAMES = (events.SYSTEM_CALL, events.COLLECTION, events.FRAME)


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
        labels[used] = layer_type(text) if table is trace.ranges or text.startswith(events.MODULE) else text
    return labels[index]


def _call_at(trace: Trace, rows: Ints, time_ns: Ints, thread: Ints) -> Ints:
    """Return which of the calls in ``rows``, disjoint on a thread, is open on the thread at each time, -1 for none."""
    calls = take_rows(trace.calls, rows)
    none = np.full(len(rows), -1, np.int64)
    order = np.lexsort((calls.start_ns, calls.thread))
    nesting = Nesting(order, calls.start_ns, calls.end_ns, calls.thread, none, np.zeros(len(rows), np.int64))
    return linked(rows, nesting.open_at(time_ns, thread))


def _host_bounds(trace: Trace, threads: Ints) -> Ints:
    """Return the starts and ends of all events of some host threads."""
    tables = (trace.ranges, trace.calls, trace.frames)
    rows = [np.isin(table.thread, threads) for table in tables]
    columns = [
        column[mask] for table, mask in zip(tables, rows, strict=True) for column in (table.start_ns, table.end_ns)
    ]
    return np.concatenate(columns)


def _captures(trace: Trace) -> tuple[Ints, Ints]:
    """Return the starts and ends of the captures of graphs, with the calls that begin, end and instantiate them."""
    calls = trace.calls
    captured = trace.name_matches(calls, _CAPTURE.search)
    captured |= captured_calls(trace) if captured.any() else False
    order = np.lexsort((calls.start_ns, calls.thread))
    is_next = captured[order][1:] & (np.diff(calls.thread[order]) == 0)
    pairs = np.flatnonzero(captured[order][:-1] & is_next)
    return merged(calls.start_ns[order[pairs]], calls.end_ns[order[pairs + 1]])


def _interval_at(time_ns: Ints, starts: Ints, ends: Ints) -> Ints:
    """Return which of the sorted, disjoint intervals [start, end) each time is in, -1 for none."""
    at = np.searchsorted(starts, time_ns, "right") - 1
    return np.where((at >= 0) & (linked(ends, at) > time_ns), at, -1)
