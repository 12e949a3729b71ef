"""Tables of a trace: layers, layer types, copies, iterations, a summary, and sweeps over batch sizes."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pandas as pd

from surrogate.features.errors import read_toml
from surrogate.report.tables import format_number
from surrogate.trace import events, profiling
from surrogate.trace.calls import batch_size, is_shape
from surrogate.trace.events.parts import BACKWARD, FORWARD
from surrogate.trace.events.read import distinct_names
from surrogate.trace.events.tables import Floats, Ints, grouped, linked, merged, open_rows
from surrogate.trace.graph import bound, path_us, simulate
from surrogate.trace.graph.build import shared_graph
from surrogate.trace.graph.tasks import Mask, Timeline, longest_wait
from surrogate.trace.idle import BLOCKED, LAUNCHED, blocking_calls, device_work, idle_pieces
from surrogate.trace.profiling import Profile, TraceSource, invalid_reason, steady, step_times_us
from surrogate.trace.result import ResultTable, Row, short_names

TEXTS: dict[str, dict[str, str]] = read_toml(__file__)
STEP_PARTS = TEXTS["parts"]
"""Part of a step → the device's activity in that part."""
_FIGURES = (
    *("runs", "total_us", "share_pct", "per_iteration_us", "forward_us", "backward_us", "idle_us", "host_us"),
    *("backward_host_us", "kernels", "alloc_mb", "gflop"),
)
"""Columns of layers and layer types, in the order of display."""


def layer_table(source: TraceSource) -> ResultTable:
    """Return one row per layer, in the order of first use, with sums over all iterations.

    Parameters
    ----------
    source : Trace, Profile, str or Path
        A trace, its profile, its file, or the name of a trace that ships.

    Returns
    -------
    ResultTable
        Times are in µs. ``total_us`` is the time of the device activities that the layer launched; the totals of all
        rows add up to the trace's. ``forward_us`` and ``backward_us`` are parts of it. ``idle_us`` is the device's idle
        time directly before these activities. ``host_us`` is the layer's time on the host in the forward pass, and
        ``backward_host_us`` in the backward pass. ``alloc_mb`` is the mean of the memory that a run allocates.
        ``source`` is the line that called the layer, if stacks were recorded.

    Raises
    ------
    InputError
        If ``source`` is no trace.
    """
    profile = steady(profiling.profile(source))
    types = dict(zip(profile.layers.name, profile.layers.type, strict=True))
    shapes, sources = _shapes(profile), sources_by_layer(profile)
    rows = [
        {"layer": label, "type": types.get(label, ""), "shape": shapes.get(label)}
        | {**figures, "source": sources.get(label)}
        for label, figures in _figures(profile, "layer")
    ]
    title = f"Layers: {len(rows):,}, {profile.total_us / 1e3:.3f} ms on the device"
    return ResultTable(title, tuple(rows), _notes(profile))


def type_table(source: TraceSource) -> ResultTable:
    """Return one row per layer type, the longest total first: number of layers, times, memory.

    Parameters
    ----------
    source : Trace, Profile, str or Path
        A trace, its profile, its file, or the name of a trace that ships.

    Returns
    -------
    ResultTable
        Columns as in `layer_table`.

    Raises
    ------
    InputError
        If ``source`` is no trace.
    """
    profile = steady(profiling.profile(source))
    counts = Counter(dict(zip(profile.layers.name, profile.layers.type, strict=True)).values())
    rows: list[Row] = [
        {"type": label, "layers": counts[label] or None, **figures} for label, figures in _figures(profile, "type")
    ]
    rows.sort(key=lambda row: (-row["total_us"], -row["host_us"]))
    return ResultTable(f"Layer types: {len(rows)}", tuple(rows), _notes(profile))


def _figures(profile: Profile, by: str) -> list[tuple[str, Row]]:
    """Return for each label the sums of all figures over its layers, without labels that take no time."""
    layers = profile.layers
    labels, of_layer = layers.labels(by)

    def sums(layer: Ints, **columns: Ints | Floats) -> pd.DataFrame:
        """Return the sums of the columns by the label of their layer (-1: outside layers)."""
        return pd.DataFrame(columns).groupby(of_layer[layer]).sum().reindex(range(len(labels)), fill_value=0)

    activity_layer, time, phase = layers.of_activity, profile.trace.activities.time_us, layers.phase_of_activity
    host_us = (layers.end_ns - layers.start_ns) / 1e3
    # The backward pass has no range of its own, so sum its outermost ranges on all threads.
    ranges, of_range, allocations = profile.trace.ranges, layers.of_range, profile.trace.allocations
    in_backward = (layers.phase_of_range == BACKWARD) & (linked(layers.phase_of_range, ranges.parent) != BACKWARD)
    table = sums(
        activity_layer,
        total_us=time,
        per_iteration_us=step_times_us(profile),
        forward_us=time * ((activity_layer >= 0) & (phase == FORWARD)),
        backward_us=time * (phase == BACKWARD),
        idle_us=profile.idle_us,
        kernels=profile.trace.activities.kind == events.KERNEL,
        gflop=np.nan_to_num(profile.flops) / 1e9,
    ).join(
        [
            sums(np.arange(len(layers)), runs=np.ones(len(layers), np.int64), host_us=host_us),
            sums(of_range[in_backward], backward_host_us=ranges.time_us[in_backward]),
            sums(linked(of_range, allocations.range), allocated=np.maximum(allocations.bytes, 0)),
        ]
    )
    table["runs"] = [*table["runs"][:-1], int((activity_layer < 0).any())]
    total_us = profile.total_us
    figures: list[tuple[str, Row]] = []
    for label, row in zip(labels, table.to_dict("records"), strict=True):
        if row["runs"] and (row["total_us"] or not total_us):
            row["share_pct"] = 100 * row["total_us"] / total_us if total_us else None
            row["alloc_mb"] = row["allocated"] / row["runs"] / 1e6 if len(allocations) else None
            row["gflop"] = row["gflop"] or None
            figures.append((label, {name: row[name] for name in _FIGURES}))
    return figures


def _shapes(profile: Profile) -> dict[str, str]:
    """Return layer → the first tensor shape among the inputs of its forward operators, ``32x3x224x224``."""

    def text(row: int) -> str:
        shapes = profile.trace.shapes_of(row) or ()
        return "x".join(map(str, next((shape for shape in shapes if shape and is_shape(shape)), ())))

    is_forward = profile.layers.phase_of_range == FORWARD
    return _first_by_layer(profile, (profile.trace.ranges.shapes >= 0) & is_forward, text)


def sources_by_layer(profile: Profile) -> dict[str, str]:
    """Return layer → the line that called it: the first line outside torch, if call stacks or frames were recorded."""
    trace = profile.trace
    ranges = trace.ranges
    is_module = trace.name_matches(trace.frames, lambda name: name.startswith(events.MODULE))
    is_line = (trace.frames.kind == events.FRAME) & ~is_module
    frame = open_rows(trace.frames, ranges.start_ns, ranges.thread, is_line)

    def text(row: int) -> str:
        if frame[row] >= 0:
            return trace.name_of(trace.frames, frame[row])
        stack = trace.names[int(ranges.stack[row])].split(";")
        return next((line for line in stack if "/torch/" not in line), stack[0])

    return _first_by_layer(profile, (ranges.stack >= 0) | (frame >= 0), text)


def _first_by_layer(profile: Profile, chosen: np.ndarray, text: Callable[[int], str]) -> dict[str, str]:
    """Return layer → the first text that is not empty among its chosen ranges."""
    texts = {}
    for row in np.flatnonzero((profile.layers.of_range >= 0) & chosen).tolist():
        name = profile.layers.name[int(profile.layers.of_range[row])]
        if not texts.get(name):
            texts[name] = text(row)
    return {name: text for name, text in texts.items() if text}


def _notes(profile: Profile) -> tuple[str, ...]:
    by = Counter(iteration.by for iteration in profile.layers.iterations if iteration.by != "whole")
    counts = ", ".join(f"{count} by {how}" for how, count in by.items())
    sums = f"iterations: {counts}; per_iteration_us is a mean step, and other sums cover the whole trace"
    return ("; ".join(filter(None, [sums, profile.left_out])),) if counts else ()


def copy_table(source: TraceSource) -> ResultTable:
    """Return one row per kind of copy (direction and memory) or memset, the longest total first.

    Parameters
    ----------
    source : Trace, Profile, str or Path
        A trace, its profile, its file, or the name of a trace that ships.

    Returns
    -------
    ResultTable
        ``gbs`` is bytes over time. For copies between host and device, ``pcie_pct`` is its share of one direction of
        the link (the registry's ``pcie_gbs``). ``time_pct`` is the share of the time of all device activities.

    Raises
    ------
    InputError
        If ``source`` is no trace.
    """
    profile = profiling.profile(source)
    activities, total_us, gpu = profile.trace.activities, profile.total_us, profile.gpu
    moving = np.flatnonzero(np.isin(activities.kind, events.MOVES))
    rows: list[Row] = []
    for name, members in grouped(activities.name, moving):
        times_us, direction = activities.time_us[members], int(activities.copy_kind[members[0]])
        time_us, moved = float(times_us.sum()), int(np.maximum(activities.bytes[members], 0).sum())
        gbs = moved / time_us / 1e3 if time_us and moved else None
        link = gpu.pcie_gbs if gpu and direction in events.OVER_PCIE else 0.0
        direction_name = events.COPY_KINDS[direction] if direction >= 0 else "memset"
        row: Row = {"copy": profile.trace.names[name], "direction": direction_name, "calls": len(members)}
        row |= {"total_us": time_us, "time_pct": 100 * time_us / total_us if total_us else None}
        row |= {"total_mb": moved / 1e6, "avg_us": time_us / len(members), "max_us": float(times_us.max())}
        rows.append(row | {"gbs": gbs, "pcie_pct": 100 * gbs / link if gbs and link else None})
    rows.sort(key=lambda row: -row["total_us"])
    total_ms = activities.time_us[moving].sum() / 1e3
    return ResultTable(f"Copies and memsets: {len(moving):,}, {total_ms:.3f} ms", tuple(rows))


def step_table(source: TraceSource) -> ResultTable:
    """Return one row per iteration: the main device's time from the iteration's start to its end on the host.

    Parameters
    ----------
    source : Trace, Profile, str or Path
        A trace, its profile, its file, or the name of a trace that ships.

    Returns
    -------
    ResultTable
        The parts of the iteration in µs, `STEP_PARTS`, which add up to its time. Communication and copies count only
        while nothing else runs. Idle time before the launch call of the next activity counts as synchronisation or copy
        while the host is blocked in such a call, else as the host's. Idle time after the launch call is latency or a
        wait for another stream. If the next activity is a copy, it counts as the copy's.

    Raises
    ------
    InputError
        If ``source`` is no trace.
    """
    profile = steady(profiling.profile(source))
    trace, iterations, work = profile.trace, profile.layers.iterations, device_work(profile)
    edges_ns = np.array([[part.start_ns, part.end_ns] for part in iterations])
    moves = np.isin(work.kind, events.MOVES)
    computes = ~moves & ~trace.name_matches(work, events.COLLECTIVE_NAME.search)

    def inside(chosen: Mask) -> Floats:
        """Return the time in µs of each iteration in which one of the chosen activities runs."""
        return np.diff(covered_us(work.start_ns[chosen], work.end_ns[chosen], edges_ns)).ravel()

    # Each set includes the one before: computing kernels, all kernels, all activities.
    compute, kernel, busy = map(inside, (computes, ~moves, moves | ~moves))
    # An activity without a recorded launch has no known cause. Time in blocking calls is synchronisation or a copy.
    pieces = idle_pieces(profile)
    cause, call, following = (pieces[name].to_numpy() for name in ("cause", "call", "following"))
    has_launch = (following < 0) | (linked(trace.activities.call, following) >= 0)
    is_launched, is_blocked = cause == LAUNCHED, (cause == BLOCKED) & has_launch
    copies = np.isin(linked(trace.activities.kind, following), events.MOVES) & is_launched
    copies |= is_blocked & (linked(trace.calls.kind, call) == events.COPY_CALL)
    sync, launched, unknown = is_blocked & ~copies, is_launched & ~copies, ~has_launch & ~is_launched
    part_of = np.select([sync, copies, launched, unknown], [1, 2, 3, 4], 0)
    idle_us = pieces["time_us"].groupby([part_of, pieces["iteration"].to_numpy()]).sum()
    idle_parts = idle_us.unstack(fill_value=0).reindex(index=range(5), columns=range(len(iterations)), fill_value=0)
    busy_parts = (compute, kernel - compute, busy - kernel)
    rows = [
        {"iteration": part.label, "time_us": part.time_us, **dict(zip(STEP_PARTS, times, strict=True))}
        for part, times in zip(iterations, np.column_stack([*busy_parts, *idle_parts.to_numpy()]).tolist(), strict=True)
    ]
    share = 100 * pieces["time_us"][pieces["blocked"] >= 0].sum() / max(pieces["time_us"].sum(), 1e-3)
    notes = (TEXTS["notes"]["blocked"].format(share), TEXTS["notes"]["profiler"])
    return ResultTable(f"Iterations: {len(rows)}", tuple(rows), notes)


def idle_of_step(step: Row) -> float:
    """Return the idle time in µs of a row of `step_table`."""
    return sum(step[name] for name in STEP_PARTS if name.startswith("idle_"))


def covered_us(starts: Ints, ends: Ints, times_ns: Ints) -> Floats:
    """Return how much of the time before each of ``times_ns`` the union of the intervals covers, in µs."""
    starts, ends = merged(starts, ends)
    if not len(starts):
        return np.zeros(times_ns.shape)
    before = np.cumsum(ends - starts) - (ends - starts)
    covered = np.column_stack([before, before + ends - starts])
    return np.interp(times_ns, np.column_stack([starts, ends]).ravel(), covered.ravel()) / 1e3


def step_bound(steps: ResultTable, timeline: Timeline) -> str | None:
    """Return the bound of steps by their critical path, and the three largest parts of the device's time.

    They may differ. A device that computes half of the time is no bound if it always waits for the host. ``steps``
    is the `step_table`, and ``timeline`` the simulation of the unchanged graph.
    """
    longest = bound(path_us(timeline))
    total_us = sum(row["time_us"] for row in steps)
    if not longest or not total_us:
        return None
    shares = {part: 100 * sum(row[name] for row in steps) / total_us for name, part in STEP_PARTS.items()}
    largest = sorted(shares, key=lambda part: -shares[part])[:3]
    largest_parts = ", ".join(f"{part} {shares[part]:.0f} %" for part in largest if shares[part] >= 0.5)
    remark, remarks = "", TEXTS["remarks"]
    if longest == "waiting":
        wait_us, name = longest_wait(timeline)
        remark = remarks["waiting"].format(format_number(wait_us / 1e3), short_names([name])[name])
    elif behind_us := timeline.device_lag_us:
        remark = remarks["behind"].format(format_number(behind_us / 1e3))
    bound_by = f"{TEXTS['bounds'].get(longest, longest)} (largest share of the critical path)"
    return f"{bound_by}. The device's time: {largest_parts}{remark}"


def summary(source: TraceSource, batch: int | None = None) -> Row:
    """Return the figures of one trace: its contents, its iteration times, and the parts of the device's time.

    A warm-up is left out (`surrogate.trace.profiling.steady`), and ``notes`` say so.

    Parameters
    ----------
    source : Trace, Profile, str or Path
        A trace, its profile, its file, or the name of a trace that ships.
    batch : int, optional
        The batch size; it replaces the batch size from shapes.

    Returns
    -------
    dict
        ``iteration_ms`` is the median over the iterations. ``step_ms`` is the mean time of an iteration in a replay,
        from which what-ifs and findings count; ``samples_per_s`` is the batch over it. ``idle_ms`` is the sum of the
        device's idle time over the iterations, each from its start to its end on the host (`step_table`). ``busy_ms``
        is the rest of this time, and ``busy_pct`` its share. ``wait_ms`` is the host's time in synchronising calls and
        blocking copies. ``activity_ms`` is the sum over all activities, including overlapping ones and those after the
        last iteration's end. ``batch`` is the first dimension of the first convolution or linear operator; it is None
        if these rows are a server's tokens.

    Raises
    ------
    InputError
        If ``source`` is no trace.
    """
    profile = steady(profiling.profile(source))
    trace, activities, total_us = profile.trace, profile.trace.activities, profile.total_us
    time, kind, has_device = activities.time_us, activities.kind, len(activities) > 0
    times_us = [iteration.time_us for iteration in profile.layers.iterations]
    batch = batch or batch_size(trace)
    invalid = invalid_reason(trace)
    timeline = None if invalid else simulate(shared_graph(trace, profile.layers))
    step_us = timeline.per_iteration_us if timeline else float(np.median(times_us))
    notes = [*trace.notes, "" if trace.ends_early else invalid, profile.left_out]
    if trace.format == "kineto" and not (trace.ranges.shapes >= 0).any():
        notes.append(TEXTS["notes"]["shapes"])
    steps = step_table(profile)
    span_us, idle_us = (sum(times_us), sum(map(idle_of_step, steps))) if has_device else (0.0, 0.0)
    return {
        "bound": step_bound(steps, timeline) if has_device and timeline else None,
        "notes": "; ".join(filter(None, notes)) or None,
        "trace": Path(trace.source).name,
        "format": trace.format,
        "rank": trace.rank,
        "gpu": profile.gpu.name if profile.gpu else trace.device_name(profile.device) or None,
        "compute_capability": profile.fact("compute_capability") or None,
        "sms": profile.fact("sms") or None,
        "devices": len(np.unique(profile.device_of)),
        "streams": len(np.unique(activities.stream)),
        "iterations": len(times_us),
        "iterations_by": profile.layers.iterations[0].by,
        "iteration_ms": float(np.median(times_us)) / 1e3,
        "iteration_min_ms": min(times_us) / 1e3,
        "iteration_max_ms": max(times_us) / 1e3,
        "batch": batch,
        "step_ms": step_us / 1e3,
        "samples_per_s": batch / step_us * 1e6 if batch and step_us else None,
        "operators": int(np.sum(trace.ranges.kind == events.OPERATOR)),
        "calls": len(trace.calls),
        "launches": int(np.isin(trace.calls.kind, (events.LAUNCH, events.GRAPH_LAUNCH)).sum()),
        "kernels": int(np.sum(kind == events.KERNEL)),
        "activity_ms": total_us / 1e3,
        "kernel_ms": float(time[kind == events.KERNEL].sum()) / 1e3,
        "copy_ms": float(time[np.isin(kind, events.MOVES)].sum()) / 1e3,
        "busy_ms": (span_us - idle_us) / 1e3,
        "idle_ms": idle_us / 1e3,
        "busy_pct": 100 * (1 - idle_us / span_us) if span_us else None,
        "wait_ms": float(trace.calls.time_us[blocking_calls(trace)].sum()) / 1e3,
        "unattributed_pct": 100 * float(time[profile.layers.of_activity < 0].sum()) / total_us if total_us else None,
    }


def headline(facts: Row) -> str:
    """Return the first lines of a `summary`: its notes, and the bound of a step."""
    return "\n".join(filter(None, [facts["notes"], facts["bound"] and f"Bound by {facts['bound']}"]))


def batch_sweep(profiles: Sequence[Profile], batches: Sequence[int | None] = ()) -> ResultTable:
    """Return one row per trace of one model at several batch sizes: latency, throughput, and the best batch.

    Parameters
    ----------
    profiles : sequence of Profile
        Profiles of the same model.
    batches : sequence of int or None
        Batch size of each profile; it replaces the batch size from shapes.

    Returns
    -------
    ResultTable
        The columns of `summary`, in the order of the batch size. ``best`` is true for the smallest batch within 5 % of
        the highest throughput.

    References
    ----------
    XSP (IPDPS 2020): after the optimal batch, doubling the batch gains less than 5 %.
    """
    names = distinct_names([profile.trace.source for profile in profiles])
    inputs = zip_longest(profiles, batches[: len(profiles)])
    rows = [
        {**summary(profile, batch), "trace": name, "best": False}
        for name, (profile, batch) in zip(names, inputs, strict=True)
    ]
    rows.sort(key=lambda row: (row["batch"] is None, row["batch"] or 0))
    rates = [row["samples_per_s"] or 0.0 for row in rows]
    if highest := max(rates, default=0.0):
        rows[next(i for i, rate in enumerate(rates) if rate >= 0.95 * highest)]["best"] = True
    return ResultTable(f"{len(rows)} traces by batch size", tuple(rows))
