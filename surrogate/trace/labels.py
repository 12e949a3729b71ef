"""Labels: the ranges that a program names itself, with PyTorch's ``record_function`` or with NVTX.

Ranges that the profiler makes are no labels: steps, and the wrappers that are layers (``Optimizer.step``). Labels that
differ only in numbers are one label, with ``#`` for the numbers.
"""

from dataclasses import dataclass

import numpy as np

from surrogate.trace import profiling
from surrogate.trace.events.parts import label_rows, layer_type, numbered
from surrogate.trace.events.tables import Ints, Trace, enclosing, grouped, linked, merged, open_rows
from surrogate.trace.graph.host import main_thread
from surrogate.trace.idle import idle_pieces
from surrogate.trace.profiling import TraceSource, steady
from surrogate.trace.result import ResultTable, Row
from surrogate.trace.tables import covered_us

OUTSIDE_LABELS = "(outside labels)"


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """The instances of labels in time order, one per run.

    Attributes
    ----------
    names
        The distinct labels, then `OUTSIDE_LABELS`.
    row
        The row of each instance in ``trace.ranges``.
    name
        Its index in ``names``; the last entry belongs to instance -1.
    parent
        The instance around it, -1 for none.
    of_activity
        The innermost instance that launched each device activity, -1 for none.
    """

    names: tuple[str, ...]
    row: Ints
    name: Ints
    parent: Ints
    of_activity: Ints

    def __len__(self) -> int:
        return len(self.row)


def find_labels(trace: Trace) -> Labels:
    """Return the labels of a trace.

    Autograd launches the work of the backward pass on threads of its own. A launch there belongs to the label that is
    open on the main thread, unless its own thread has a label.
    """
    ranges, calls, activities = trace.ranges, trace.calls, trace.activities
    rows = label_rows(trace)
    texts = [layer_type(trace.name_of(ranges, row), trace.repeated) for row in rows.tolist()]
    names, name = numbered(texts, OUTSIDE_LABELS)
    instance = np.full(len(ranges), -1)
    instance[rows] = np.arange(len(rows))
    around = linked(instance, enclosing(ranges, instance >= 0))
    of_activity = linked(around, activities.range)
    engines = np.unique(ranges.thread[ranges.forward_thread > 0])
    lost = np.flatnonzero((of_activity < 0) & np.isin(linked(calls.thread, activities.call), engines))
    main = np.full(len(lost), main_thread(trace))
    open_range = open_rows(ranges, calls.start_ns[activities.call[lost]], main, instance >= 0)
    of_activity[lost] = linked(instance, open_range)
    return Labels(tuple(names), rows, name, linked(around, ranges.parent[rows]), of_activity)


def label_table(source: TraceSource) -> ResultTable:
    """Return one row per label, with sums over the counted iterations, the longest device time first.

    Parameters
    ----------
    source : Trace, Profile, str or Path
        A trace, its profile, its file, or the name of a trace that ships.

    Returns
    -------
    ResultTable
        Times are in µs. ``runs`` counts the label's ranges, ``host_us`` is their time on the host, and ``device_us``
        the time of the device activities launched inside. ``idle_us`` is the main device's idle time between their
        starts and ends. Work inside a label also counts for the labels around it, so rows do not add up.

    Raises
    ------
    InputError
        If ``source`` is no trace.
    """
    profile = steady(profiling.profile(source))
    ranges, time_us = profile.trace.ranges, profile.trace.activities.time_us
    labels = find_labels(profile.trace)
    # A label inside itself counts once: only its outermost instances have times.
    is_outer = np.ones(len(labels) + 1, np.bool_)
    above = labels.parent
    while (above >= 0).any():
        is_outer[:-1] &= labels.name[above] != labels.name[:-1]
        above = linked(labels.parent, above)
    device_us = np.zeros(len(labels.names))
    inside = labels.of_activity
    while (inside >= 0).any():
        counts = is_outer[inside] & (inside >= 0)
        np.add.at(device_us, labels.name[inside[counts]], time_us[counts])
        inside = linked(labels.parent, inside)
    idle_from_ns, idle_to_ns = idle_pieces(profile)[["start_ns", "end_ns"]].to_numpy().T
    rows: list[Row] = []
    for name, instances in grouped(labels.name[:-1], np.arange(len(labels))):
        outer = labels.row[instances[is_outer[instances]]]
        bounds_ns = np.column_stack(merged(ranges.start_ns[outer], ranges.end_ns[outer]))
        idle_us = float(np.diff(covered_us(idle_from_ns, idle_to_ns, bounds_ns)).sum())
        row: Row = {"label": labels.names[name], "runs": len(instances), "host_us": float(ranges.time_us[outer].sum())}
        if len(time_us):
            share = 100 * device_us[name] / profile.total_us if profile.total_us else None
            row |= {"device_us": float(device_us[name]), "share_pct": share, "idle_us": idle_us}
        rows.append(row)
    rows.sort(key=lambda row: (-row.get("device_us", 0), -row["host_us"]))
    note = "work inside a label also counts for the labels around it, so rows do not add up"
    return ResultTable(f"Labels: {len(rows):,}", tuple(rows), (note,) if rows else ())
