"""Tables of a trace: layers, layer types, copies, the whole model in one row, and sweeps over batch sizes."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from surrogate.trace.calls import batch_size
from surrogate.trace.events import kinds
from surrogate.trace.events.tables import Ints, Trace
from surrogate.trace.layers import BACKWARD, FORWARD, OUTSIDE
from surrogate.trace.profiling import Profile, union_us
from surrogate.trace.result import ResultTable, Row

_SUMS = (
    "total_us",
    "forward_us",
    "backward_us",
    "idle_us",
    "kernels",
    "copy_us",
    "host_us",
    "gflop",
    "alloc_bytes",
)


def layer_table(profile: Profile) -> ResultTable:
    """One row per layer in the order of first use: sums over the trace, ``avg_us`` per iteration.

    ``total_us`` is the time of the device activities the layer launched, ``forward_us`` and ``backward_us`` parts
    of it, ``idle_us`` how long the device waited right before them, ``host_us`` the layer's own host window
    (forward), ``alloc_mb`` what it allocated on average per run, ``source`` the line that called it where stacks
    were recorded. The rows' totals add up to the trace's.
    """
    names = profile.layers.name
    labels = [*dict.fromkeys(names), OUTSIDE]
    sums = _sums(profile, names, labels)
    shapes, types = _shapes(profile), dict(zip(names, profile.layers.type, strict=True))
    sources = _sources(profile)
    rows = [
        {
            "layer": label,
            "type": types.get(label, ""),
            "shape": shapes.get(label),
            **_figures(profile, sums, at),
            "source": sources.get(label),
        }
        for at, label in enumerate(labels)
        if sums["runs"][at] and (sums["total_us"][at] or not profile.total_us)
    ]
    title = f"Layers: {len(rows):,}, {profile.total_us / 1e3:.3f} ms on the device"
    return ResultTable(title, tuple(rows), _notes(profile))


def type_table(profile: Profile) -> ResultTable:
    """Layer types, the longest first: how many layers, time, share, memory; sums as in `layer_table`."""
    types = profile.layers.type
    labels = [*dict.fromkeys(types), OUTSIDE]
    sums = _sums(profile, types, labels)
    rows: list[Row] = []
    for at, label in enumerate(labels):
        if not sums["runs"][at] or not (sums["total_us"][at] or not profile.total_us):
            continue
        count = len({n for n, t in zip(profile.layers.name, types, strict=True) if t == label}) or None
        rows.append({"type": label, "layers": count, **_figures(profile, sums, at)})
    rows.sort(key=lambda row: (-row["total_us"], -row["host_us"]))
    return ResultTable(f"Layer types: {len(rows)}", tuple(rows), _notes(profile))


def _sums(profile: Profile, label_of: tuple[str, ...], labels: list[str]) -> dict[str, Any]:
    """Per label the sum of every figure over its instances."""
    trace, layers = profile.trace, profile.layers
    place = {label: at for at, label in enumerate(labels)}
    of_layer = np.array([*(place[name] for name in label_of), place[OUTSIDE]], dtype=np.int64)
    size = len(labels)

    def add(rows: Ints, weights: Any) -> np.ndarray:
        return np.bincount(of_layer[rows], weights=weights, minlength=size)

    activities, of_activity = trace.activities, layers.of_activity
    time, phase = activities.time_us, layers.phase_of_activity
    inside = of_activity >= 0
    held = trace.allocations.range
    of_memory = np.where(held >= 0, layers.of_range[held] if len(layers.of_range) else -1, -1)
    sums = {
        "total_us": add(of_activity, time),
        "forward_us": add(of_activity, time * (inside & (phase == FORWARD))),
        "backward_us": add(of_activity, time * (phase == BACKWARD)),
        "idle_us": add(of_activity, profile.idle_us),
        "kernels": add(of_activity, activities.kind == kinds.KERNEL),
        "copy_us": add(of_activity, time * (activities.kind == kinds.COPY)),
        "gflop": add(of_activity, np.nan_to_num(profile.flops) / 1e9),
        "host_us": add(np.arange(len(layers)), (layers.end_ns - layers.start_ns) / 1e3),
        "alloc_bytes": add(of_memory, np.maximum(trace.allocations.bytes, 0)),
        "runs": add(np.arange(len(layers)), None).astype(np.int64),
    }
    sums["runs"][place[OUTSIDE]] = int((~inside).any())
    return sums


def _figures(profile: Profile, sums: dict[str, Any], at: int) -> Row:
    found = {key: float(sums[key][at]) for key in _SUMS}
    runs = max(int(sums["runs"][at]), 1)
    rounds = max(sum(one.by != "whole" for one in profile.layers.iterations), 1)
    return {
        "runs": runs,
        "total_us": found["total_us"],
        "share_pct": 100 * found["total_us"] / profile.total_us if profile.total_us else None,
        "avg_us": found["total_us"] / rounds,
        "forward_us": found["forward_us"],
        "backward_us": found["backward_us"],
        "idle_us": found["idle_us"],
        "host_us": found["host_us"],
        "kernels": int(found["kernels"]),
        "alloc_mb": found["alloc_bytes"] / runs / 1e6 if len(profile.trace.allocations) else None,
        "gflop": found["gflop"] or None,
    }


def _shapes(profile: Profile) -> dict[str, str]:
    """Layer → the first tensor shape its forward operators were given, ``32x3x224x224``."""
    ranges, layers = profile.trace.ranges, profile.layers
    rows = np.flatnonzero((layers.of_range >= 0) & (ranges.shapes >= 0) & (layers.phase_of_range == FORWARD))
    found: dict[str, str] = {}
    for row in rows.tolist():
        name = layers.name[int(layers.of_range[row])]
        if name not in found and (text := _first_shape(profile.trace, row)):
            found[name] = text
    return found


def _sources(profile: Profile) -> dict[str, str]:
    """Layer → the line of the program that called it, where call stacks were recorded: the first outside torch."""
    ranges, layers = profile.trace.ranges, profile.layers
    found: dict[str, str] = {}
    for row in np.flatnonzero((layers.of_range >= 0) & (ranges.stack >= 0)).tolist():
        name = layers.name[int(layers.of_range[row])]
        if name not in found:
            lines = profile.trace.names[int(ranges.stack[row])].split(";")
            found[name] = next((line for line in lines if "/torch/" not in line), lines[0])
    return found


def _first_shape(trace: Trace, row: int) -> str:
    shapes = trace.shapes_of(row) or ()
    first = next((s for s in shapes if isinstance(s, tuple) and s and all(isinstance(v, int) for v in s)), ())
    return "x".join(map(str, first))


def _notes(profile: Profile) -> tuple[str, ...]:
    by = defaultdict(int)
    for one in profile.layers.iterations:
        by[one.by] += 1
    words = ", ".join(f"{count} by {how}" for how, count in by.items() if how != "whole")
    return (f"iterations: {words}",) if words else ()


_OVER_PCIE = (kinds.TO_DEVICE, kinds.TO_HOST)


def copy_table(profile: Profile) -> ResultTable:
    """Copies by name (direction and kind of memory) and memsets, the longest first.

    ``gbs`` is bytes over time; ``pcie_pct`` its share of one direction of the link (the registry's ``pcie_gbs``),
    for copies between host and device; ``time_pct`` the share of all device activity.
    """
    activities = profile.trace.activities
    moving = np.flatnonzero((activities.kind == kinds.COPY) | (activities.kind == kinds.MEMSET))
    rows: list[Row] = []
    for name in np.unique(activities.name[moving]).tolist():
        members = moving[activities.name[moving] == name]
        time_us = float(activities.time_us[members].sum())
        moved = int(np.maximum(activities.bytes[members], 0).sum())
        direction = int(activities.copy_kind[members[0]])
        gbs = moved / time_us / 1e3 if time_us and moved else None
        link = profile.gpu.pcie_gbs if profile.gpu and direction in _OVER_PCIE else 0.0
        rows.append(
            {
                "copy": profile.trace.names[name],
                "direction": kinds.COPY_KINDS[direction] if direction >= 0 else "memset",
                "calls": len(members),
                "total_us": time_us,
                "time_pct": 100 * time_us / profile.total_us if profile.total_us else None,
                "total_mb": moved / 1e6,
                "avg_us": time_us / len(members),
                "max_us": float(activities.time_us[members].max()),
                "gbs": gbs,
                "pcie_pct": 100 * gbs / link if gbs and link else None,
            }
        )
    rows.sort(key=lambda row: -row["total_us"])
    total = float(activities.time_us[moving].sum())
    return ResultTable(f"Copies and memsets: {len(moving):,}, {total / 1e3:.3f} ms", tuple(rows))


def summary(profile: Profile) -> Row:
    """The figures of one trace: what it holds, iteration times, and how the device's time is spent.

    ``iteration_ms`` is the median over the iterations. ``busy_pct`` is the share of the device's span, from its
    first activity to its last end, in which anything ran; times of several streams may overlap, so
    ``activity_ms`` can exceed it. ``batch`` is the leading size of the first convolution or linear operator.
    """
    trace, layers = profile.trace, profile.layers
    activities = trace.activities
    own = np.flatnonzero(profile.device_of == profile.device)
    time, kind = activities.time_us, activities.kind
    busy_us = union_us(activities.start_ns[own], activities.end_ns[own])
    span_us = (
        (int(activities.end_ns[own].max()) - int(activities.start_ns[own].min())) / 1e3 if len(own) else 0.0
    )
    rounds, how = [one.time_us for one in layers.iterations], layers.iterations[0].by
    batch = batch_size(trace)
    middle_us = float(np.median(rounds))
    return {
        "trace": Path(trace.source).name,
        "format": trace.format,
        "rank": trace.rank,
        "gpu": profile.gpu.name if profile.gpu else trace.device_name(profile.device) or None,
        "compute_capability": profile.compute_capability or None,
        "sms": profile.sms or None,
        "devices": len(np.unique(profile.device_of)),
        "streams": len(np.unique(activities.stream)),
        "iterations": len(rounds),
        "iterations_by": how,
        "iteration_ms": middle_us / 1e3,
        "iteration_min_ms": min(rounds) / 1e3,
        "iteration_max_ms": max(rounds) / 1e3,
        "batch": batch,
        "samples_per_s": batch / middle_us * 1e6 if batch and middle_us else None,
        "operators": int(np.sum(trace.ranges.kind == kinds.OPERATOR)),
        "calls": len(trace.calls),
        "launches": int(np.isin(trace.calls.kind, (kinds.LAUNCH, kinds.GRAPH_LAUNCH)).sum()),
        "kernels": int(np.sum(kind == kinds.KERNEL)),
        "activity_ms": profile.total_us / 1e3,
        "kernel_ms": float(time[kind == kinds.KERNEL].sum()) / 1e3,
        "copy_ms": float(time[(kind == kinds.COPY) | (kind == kinds.MEMSET)].sum()) / 1e3,
        "busy_ms": busy_us / 1e3,
        "idle_ms": (span_us - busy_us) / 1e3,
        "busy_pct": 100 * busy_us / span_us if span_us else None,
        "wait_ms": float(trace.calls.time_us[trace.calls.kind == kinds.SYNC_CALL].sum()) / 1e3,
        "unattributed_pct": _unattributed(profile),
    }


def batch_sweep(profiles: Sequence[Profile], batches: Sequence[int | None] = ()) -> ResultTable:
    """Several traces of one model by batch size: latency, throughput, and which batch is the best.

    ``batches`` overrides what the shapes say. The best batch is the smallest within 5 % of the highest throughput
    (XSP's optimal batch: beyond it doubling gains less than that).
    """
    rows: list[dict[str, Any]] = []
    for at, one in enumerate(profiles):
        found = summary(one)
        batch = batches[at] if at < len(batches) and batches[at] else found["batch"]
        time_ms = found["iteration_ms"]
        rate = batch / time_ms * 1e3 if batch and time_ms else None
        rows.append({**found, "batch": batch, "samples_per_s": rate})
    rows.sort(key=lambda row: (row["batch"] is None, row["batch"] or 0))
    rates = [row["samples_per_s"] for row in rows if row["samples_per_s"]]
    good = [row for row in rows if row["samples_per_s"] and row["samples_per_s"] >= 0.95 * max(rates)]
    for row in rows:
        row["best"] = bool(good) and row is good[0]
    return ResultTable(f"{len(rows)} traces by batch size", tuple(rows))


def _unattributed(profile: Profile) -> float | None:
    """Share of the activity time that belongs to no layer, in %."""
    if not profile.total_us:
        return None
    time = profile.trace.activities.time_us
    return 100 * float(time[profile.layers.of_activity < 0].sum()) / profile.total_us
