"""The whole model in one row, and several traces side by side: latency and throughput by batch size."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from surrogate.trace.device_time import union_us
from surrogate.trace.events import kinds
from surrogate.trace.profiling import Profile
from surrogate.trace.result import Row, Rows

_BATCHED = ("conv", "linear", "addmm", "embedding")


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
    batch = batch_size(profile)
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


def batch_size(profile: Profile) -> int | None:
    """The leading size of the first convolution, linear or embedding layer's input; None where no shape tells."""
    trace, layers = profile.trace, profile.layers
    wanted = np.array([any(w in name.lower() for w in _BATCHED) for name in trace.names] or [False])
    rows = np.flatnonzero(wanted[trace.ranges.name] & (trace.ranges.shapes >= 0) & (layers.of_range >= 0))
    for row in rows.tolist():
        shapes = trace.shapes_of(row) or ()
        first: Any = next(iter(shapes), ())
        if isinstance(first, tuple) and 2 <= len(first) <= 5 and all(isinstance(size, int) for size in first):
            return int(first[0])
    return None


def batch_sweep(profiles: Sequence[Profile], batches: Sequence[int | None] = ()) -> Rows:
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
    return Rows(f"{len(rows)} traces by batch size", tuple(rows))


def _unattributed(profile: Profile) -> float | None:
    """Share of the activity time that belongs to no layer, in %."""
    if not profile.total_us:
        return None
    time = profile.trace.activities.time_us
    return 100 * float(time[profile.layers.of_activity < 0].sum()) / profile.total_us
