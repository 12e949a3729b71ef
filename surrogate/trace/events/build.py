"""Raw rows → the sorted, linked tables of a `Trace`: ranges inside ranges, activities to the calls behind them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surrogate.trace.events import kinds, tables
from surrogate.trace.events.raw import COLUMNS, Columns, Interner, RawTrace, columns_of, integers, triples
from surrogate.trace.events.tables import Ints, Ranges, Trace, linked

_WHOLE_US_NS = 1000
"""What rounding to whole µs can cut off the end of a range."""
_LAST = 2**62


def build(raw: RawTrace) -> Trace:
    """Drop rows without a usable time (counted in the notes), convert, sort, link, and shift the origin to 0."""
    parts = {name: columns_of(getattr(raw, name), COLUMNS[name], raw.exact_ns) for name in COLUMNS}
    origin = min((int(table.start_ns[0]) for table in parts.values() if len(table.start_ns)), default=0)
    for table in parts.values():
        table.start_ns, table.end_ns = table.start_ns - origin, table.end_ns - origin
    notes = [*raw.notes]
    if dropped := sum(table.dropped for table in parts.values()):
        notes.append(f"{dropped:,} events without a usable time are left out")
    tolerance = _WHOLE_US_NS if all(table.whole_us for table in parts.values()) else 0
    names = raw.names.values
    ranges, frames = (_ranges(parts[name], names, tolerance) for name in ("ranges", "frames"))
    calls = _calls(parts["calls"], names, ranges, tolerance)
    device = _DeviceTables(names, raw.threads.values, ranges, calls)
    activities, syncs = device.activities(parts["activities"]), device.syncs(parts["syncs"])
    return Trace(
        source=raw.source, format=raw.format, origin_ns=origin, names=tuple(names), shapes=tuple(raw.shapes.values),
        types=tuple(raw.types.values), inputs=tuple(raw.inputs.values),
        threads=tuple(tables.Thread(*pair, name=raw.thread_names.get(pair, "")) for pair in raw.threads.values),
        ranges=ranges, frames=frames, calls=calls, activities=activities, syncs=syncs,
        allocations=_allocations(parts["allocations"], ranges),
        streams=tuple(tables.Stream(*key) for key in device.streams.values), devices=tuple(raw.devices),
        rank=raw.rank, world_size=raw.world_size, notes=tuple(notes), ignored=dict(raw.ignored),
    )  # fmt: skip


def _ranges(table: Columns, names: Sequence[str], tolerance: int) -> Ranges:
    columns = table.integers()
    # The profiler's own range around an iteration is recognised by its name.
    steps = _lookup(names, columns["name"], lambda name: name.startswith("ProfilerStep"))
    is_step = (steps == 1) & (columns["kind"] != kinds.FRAME)
    columns["kind"] = np.where(is_step, kinds.STEP, columns["kind"])
    holds = np.ones(len(table.start_ns), np.bool_)
    times = table.start_ns, table.end_ns
    parent, depth = nest(*times, columns["thread"], columns["external_id"], holds, tolerance)
    return Ranges(*times, **columns, parent=parent, depth=depth)


def _calls(table: Columns, names: Sequence[str], ranges: Ranges, tolerance: int) -> tables.Calls:
    columns = table.integers()
    columns["kind"] = _lookup(names, columns["name"], kinds.call_kind)
    around = within(table.start_ns, table.end_ns, columns["thread"], ranges, tolerance)
    # A profiler that numbers threads differently for calls and operators still gives the operator's id.
    around = np.where(around < 0, _by_external_id(columns, ranges), around)
    return tables.Calls(table.start_ns, table.end_ns, **columns, range=around)


def _allocations(table: Columns, ranges: Ranges) -> tables.Allocations:
    columns = table.integers() | {"bytes": integers(table.values["bytes"], 0)}
    around = within(table.start_ns, table.end_ns, columns["thread"], ranges)
    return tables.Allocations(time_ns=table.start_ns, **columns, range=around)


class _DeviceTables:
    """Activities and synchronisations, joined to the calls that launched them; both share the ``streams``."""

    def __init__(
        self, names: Sequence[str], threads: Sequence[tuple[str, str]], ranges: Ranges, calls: tables.Calls
    ) -> None:
        self.names, self.ranges, self.calls = names, ranges, calls
        self.streams: Interner[Any] = Interner(lambda key: key)
        self.processes = {name: i for i, name in enumerate(dict.fromkeys(process for process, _ in threads))}
        of_thread = np.array([self.processes[process] for process, _ in threads], dtype=np.int64)
        self.process_of_call = linked(of_thread, calls.thread)

    def activities(self, table: Columns) -> tables.Activities:
        columns = self._linked(table)
        directions = _lookup(self.names, columns["name"], kinds.copy_kind)
        directions = np.where(columns["copy_kind"] >= 0, columns["copy_kind"], directions)
        columns["copy_kind"] = np.where(columns["kind"] == kinds.COPY, directions, -1)
        columns |= {name: triples(table.values[name]) for name in ("grid", "block")}
        columns["graph_node"] = np.maximum(integers(table.values["graph_node"], 0), 0)
        by_id = _by_external_id(columns, self.ranges)
        around = np.where(columns["call"] < 0, by_id, linked(self.calls.range, columns["call"]))
        return tables.Activities(table.start_ns, table.end_ns, **columns, range=around)

    def syncs(self, table: Columns) -> tables.Syncs:
        columns = self._linked(table)
        by_name = _lookup(self.names, columns["name"], kinds.sync_kind)
        columns["kind"] = np.where(columns["kind"] >= 0, columns["kind"], by_name)
        return tables.Syncs(table.start_ns, table.end_ns, **columns)

    def _linked(self, table: Columns) -> dict[str, Ints]:
        """The columns of numbers, with ``stream`` as its index and ``call``, the launch."""
        columns, processes = table.integers("device", "stream", "process", "grid", "block"), table.values["process"]
        process = np.fromiter((self.processes.get(p, -1) for p in processes), np.int64, len(processes))
        devices, streams = (list(map(_number, table.values[column])) for column in ("device", "stream"))
        keys = zip(devices, streams, processes, strict=True)
        columns["stream"] = np.fromiter((self.streams.index(key) for key in keys), np.int64, len(devices))
        columns["call"] = launched_by(
            columns["correlation"], table.start_ns, self.calls.correlation, self.calls.start_ns, process,
            self.process_of_call,
        )  # fmt: skip
        return columns


def _number(value: Any) -> int:
    """A device or stream number; old traces write ``stream 7`` where newer ones write 7."""
    if type(value) is int:
        return value if abs(value) < _LAST else -1
    if type(value) is str:
        last = value.rpartition(" ")[2]
        return int(last) if last.isascii() and last.isdigit() and len(last) < 18 else -1
    return -1


def _lookup(names: Sequence[str], column: Ints, of: Callable[[str], int]) -> Ints:
    """``of(name)`` for every row, evaluated once per name that occurs."""
    table = np.full(len(names) + 1, -1, dtype=np.int64)
    for index in map(int, np.unique(column)):
        if index >= 0:
            table[index] = of(names[index])
    return table[column]


def nest(
    start_ns: Ints, end_ns: Ints, thread: Ints, order: Ints, holds: NDArray[np.bool_], tolerance_ns: int
) -> tuple[Ints, Ints]:
    """(parent, depth): the innermost row of the same thread that holds each row, -1 for none; linear time.

    ``order`` breaks ties of the start (the outer range was opened first, so it has the smaller id). Rows where
    ``holds`` is False have parents but are none. Overlap without inclusion makes no child: a later range that
    outlasts an open one is its sibling. ``tolerance_ns`` forgives what rounding to whole µs cuts off a parent.
    """
    rows = np.lexsort((-end_ns, order, start_ns, thread)).tolist()
    parent, depth = np.full(len(rows), -1, np.int64), np.zeros(len(rows), np.int64)
    starts, ends, threads, holding = start_ns.tolist(), end_ns.tolist(), thread.tolist(), holds.tolist()
    stack: list[tuple[int, int]] = []  # (row, its end, cut to its parent's); ends never grow towards the top
    current = None
    for row in rows:
        if threads[row] != current:
            current, stack = threads[row], []
        start, end = starts[row], ends[row]
        # What ends before this row does can hold neither it nor, better than this row, anything later.
        while stack and (stack[-1][1] + tolerance_ns < end or stack[-1][1] <= start):
            if not holding[row] and stack[-1][1] > start:
                break
            stack.pop()
        if stack and (stack[-1][1] + tolerance_ns >= end or not holding[row]):
            parent[row], depth[row] = stack[-1][0], len(stack)
            end = min(end, stack[-1][1])
        if holding[row]:
            stack.append((row, end))
    return parent, depth


def within(start_ns: Ints, end_ns: Ints, thread: Ints, ranges: Ranges, tolerance: int = 0) -> Ints:
    """The innermost row of ``ranges`` that is open on the same thread when each interval starts, -1 for none."""
    count, more = len(ranges), len(start_ns)
    if not count or not more:
        return np.full(more, -1, np.int64)
    parent, _ = nest(
        np.concatenate([ranges.start_ns, start_ns]),
        np.concatenate([ranges.end_ns, end_ns]),
        np.concatenate([ranges.thread, thread]),
        np.concatenate([ranges.external_id, np.full(more, _LAST, np.int64)]),
        np.concatenate([np.ones(count, np.bool_), np.zeros(more, np.bool_)]),
        tolerance,
    )
    return parent[count:]


def _by_external_id(table: Mapping[str, Ints], ranges: Ranges) -> Ints:
    """The range with each row's id, -1 for none; newer profilers put the correlation id there, which names no range."""
    external_id, known = table["external_id"], np.flatnonzero(ranges.external_id > 0)
    if not len(known) or not len(external_id):
        return np.full(len(external_id), -1, np.int64)
    order = known[np.argsort(ranges.external_id[known], kind="stable")]
    at = np.minimum(np.searchsorted(ranges.external_id[order], external_id), len(order) - 1)
    good = (ranges.external_id[order[at]] == external_id) & (external_id != table["correlation"])
    return np.where(good, order[at], -1)


def launched_by(
    correlation: Ints, start_ns: Ints, call_correlation: Ints, call_start_ns: Ints, process: Ints, call_process: Ints
) -> Ints:
    """The call (row) that launched each activity, -1 for none, by correlation id.

    Ids can repeat in a file that several processes wrote: of the calls with the id (and the process, where the
    activity has one, not -1) the last that began before the activity counts, else the first.
    """
    call = np.full(len(correlation), -1, np.int64)
    usable = np.flatnonzero(call_correlation >= 0)
    if not len(usable) or not len(correlation):
        return call
    order = usable[np.lexsort((call_start_ns[usable], call_correlation[usable]))]
    keys = call_correlation[order]
    low, high = np.searchsorted(keys, correlation, "left"), np.searchsorted(keys, correlation, "right")
    count = np.where(correlation >= 0, high - low, 0)
    unique = count == 1
    call[unique] = order[low[unique]]
    for row in np.flatnonzero(count > 1).tolist():
        candidates = order[low[row] : high[row]]
        if process[row] >= 0:
            same_process = candidates[call_process[candidates] == process[row]]
            candidates = same_process if len(same_process) else candidates
        before = candidates[: np.searchsorted(call_start_ns[candidates], start_ns[row], "right")]
        call[row] = before[-1] if len(before) else candidates[0]
    return call
