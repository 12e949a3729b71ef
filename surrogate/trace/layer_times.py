"""Layers and layer types: device time, share, idle time, memory, shape."""

from collections import defaultdict
from typing import Any

import numpy as np

from surrogate.trace.events import kinds
from surrogate.trace.events.tables import Ints, Trace
from surrogate.trace.layers import BACKWARD, FORWARD, OUTSIDE
from surrogate.trace.profiling import Profile
from surrogate.trace.result import Row, Rows

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


def layer_table(profile: Profile) -> Rows:
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
    return Rows(title, tuple(rows), _notes(profile))


def type_table(profile: Profile) -> Rows:
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
    return Rows(f"Layer types: {len(rows)}", tuple(rows), _notes(profile))


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
