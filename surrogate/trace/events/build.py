"""Raw rows → the sorted, linked tables of a `Trace`: ranges inside ranges, activities to the calls behind them."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from surrogate.trace.events import kinds, tables
from surrogate.trace.events.nesting import Nesting, nest
from surrogate.trace.events.raw import RawTrace
from surrogate.trace.events.tables import Ints, Ranges, Trace, linked

_WHOLE_US_NS = 1000
"""What rounding to whole µs can cut off the end of a range."""
Columns = dict[str, Ints]
"""Raw columns by name, sorted by start, with ``start_ns`` and ``end_ns``."""


def build(raw: RawTrace) -> Trace:
    """Drop rows without a usable time (counted in the notes), convert, sort, link, and shift the origin to 0."""
    parts = {name: table.columns() for name, table in raw.tables.items()}
    origin = min((int(part["start_ns"][0]) for part in parts.values() if len(part["start_ns"])), default=0)
    for part in parts.values():
        part["start_ns"] -= origin
        part["end_ns"] -= origin
    notes = [*raw.notes]
    if dropped := sum(table.dropped for table in raw.tables.values()):
        notes.append(f"{dropped:,} events without a usable time are left out")
    tolerance = _WHOLE_US_NS if all(table.whole_us for table in raw.tables.values()) else 0
    names = raw.names.distinct
    frames, _ = _ranges(parts["frames"], names, tolerance)
    ranges, nesting = _ranges(parts["ranges"], names, tolerance)
    calls = _calls(parts["calls"], names, ranges, nesting)
    device = _DeviceTables(raw, ranges, calls)
    activities = device.activities(parts["activities"])
    syncs = device.syncs(parts["syncs"])
    if raw.ends_early:
        launches = np.flatnonzero(np.isin(calls.kind, (kinds.LAUNCH, kinds.GRAPH_LAUNCH)))
        lost = np.setdiff1d(launches, activities.call)
        without = f", and {len(lost):,} of {len(launches):,} launches have no kernel" * bool(len(lost))
        notes.insert(0, f"the file ends early: what was recorded last is missing{without}")
    return Trace(
        source=raw.source,
        format=raw.format,
        origin_ns=origin,
        names=tuple(names),
        shapes=tuple(raw.shapes.distinct),
        types=tuple(raw.types.distinct),
        inputs=tuple(raw.inputs.distinct),
        threads=tuple(tables.Thread(*pair, name=raw.thread_names.get(pair, "")) for pair in raw.threads.distinct),
        ranges=ranges,
        frames=frames,
        calls=calls,
        activities=activities,
        syncs=syncs,
        allocations=_allocations(parts["allocations"], nesting),
        streams=tuple(device.streams),
        devices=tuple(raw.devices),
        rank=raw.rank,
        world_size=raw.world_size,
        notes=tuple(notes),
        ends_early=raw.ends_early,
        ignored=dict(raw.ignored),
    )


def _ranges(columns: Columns, names: Sequence[str], tolerance: int) -> tuple[Ranges, Nesting]:
    # The profiler's own range around an iteration is recognised by its name.
    steps = _lookup(names, columns["name"], lambda name: name.startswith("ProfilerStep"))
    is_step = (steps == 1) & (columns["kind"] != kinds.FRAME)
    columns["kind"] = np.where(is_step, kinds.STEP, columns["kind"])
    nesting = nest(
        columns["start_ns"], columns["end_ns"], columns["thread"], order=columns["external_id"], tolerance_ns=tolerance
    )
    return Ranges(**columns, parent=nesting.parent, depth=nesting.depth), nesting


def _calls(columns: Columns, names: Sequence[str], ranges: Ranges, nesting: Nesting) -> tables.Calls:
    columns["kind"] = _lookup(names, columns["name"], kinds.call_kind)
    around = nesting.open_at(columns["start_ns"], columns["thread"])
    # A profiler that numbers threads differently for calls and operators still gives the operator's id.
    around = np.where(around < 0, _by_external_id(columns, ranges), around)
    return tables.Calls(**columns, range=around)


def _allocations(columns: Columns, nesting: Nesting) -> tables.Allocations:
    time_ns, thread = columns["start_ns"], columns["thread"]
    around = nesting.open_at(time_ns, thread)
    return tables.Allocations(time_ns, columns["size"], columns["device"], thread, around, columns["total"])


class _DeviceTables:
    """Activities and synchronisations, joined to the calls that launched them; both share the ``streams``."""

    def __init__(self, raw: RawTrace, ranges: Ranges, calls: tables.Calls) -> None:
        self.names = raw.names.distinct
        self.ranges = ranges
        self.calls = calls
        self.streams: dict[tables.Stream, int] = {}
        self.processes = {name: i for i, name in enumerate(dict.fromkeys(name for name, _ in raw.threads.distinct))}
        of_thread = np.array([self.processes[name] for name, _ in raw.threads.distinct], dtype=np.int64)
        self.process_of_call = linked(of_thread, calls.thread)

    def activities(self, columns: Columns) -> tables.Activities:
        self._link(columns)
        directions = _lookup(self.names, columns["name"], kinds.copy_kind)
        directions = np.where(columns["copy_kind"] >= 0, columns["copy_kind"], directions)
        columns["copy_kind"] = np.where(columns["kind"] == kinds.COPY, directions, -1)
        columns["graph_node"] = np.maximum(columns["graph_node"], 0)
        by_id = _by_external_id(columns, self.ranges)
        around = np.where(columns["call"] < 0, by_id, linked(self.calls.range, columns["call"]))
        return tables.Activities(**columns, range=around)

    def syncs(self, columns: Columns) -> tables.Syncs:
        self._link(columns)
        by_name = _lookup(self.names, columns["name"], kinds.sync_kind)
        columns["kind"] = np.where(columns["kind"] >= 0, columns["kind"], by_name)
        return tables.Syncs(**columns)

    def _link(self, columns: Columns) -> None:
        """Replace device, stream and process by ``stream``, its index, and add ``call``, the launch."""
        values = (columns.pop("device"), columns["stream"], columns.pop("process"))
        rows = zip(*(column.tolist() for column in values), strict=True)
        keys = [(device, number, str(process) if process >= 0 else "") for device, number, process in rows]
        known = {key: self.streams.setdefault(tables.Stream(*key), len(self.streams)) for key in dict.fromkeys(keys)}
        columns["stream"] = np.array([known[key] for key in keys], np.int64)
        process = np.array([self.processes.get(name, -1) for _, _, name in keys], np.int64)
        columns["call"] = launched_by(
            columns["correlation"],
            columns["start_ns"],
            self.calls.correlation,
            self.calls.start_ns,
            process=process,
            call_process=self.process_of_call,
        )


def _lookup(names: Sequence[str], column: Ints, of: Callable[[str], int]) -> Ints:
    """``of(name)`` for every row, evaluated once per name that occurs."""
    table = np.full(len(names) + 1, -1, dtype=np.int64)
    for index in map(int, np.unique(column)):
        if index >= 0:
            table[index] = of(names[index])
    return table[column]


def _by_external_id(table: Mapping[str, Ints], ranges: Ranges) -> Ints:
    """The range with each row's id, -1 for none; newer profilers put the correlation id there, which names no range."""
    external_id = table["external_id"]
    numbered = np.flatnonzero(ranges.external_id > 0)
    if not len(numbered) or not len(external_id):
        return np.full(len(external_id), -1, np.int64)
    # A binary search of each id among those of the ranges; what is found counts where it is the same.
    order = numbered[np.argsort(ranges.external_id[numbered], kind="stable")]
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
    # Calls by id, then by start: those with an activity's id are order[low:high].
    order = usable[np.lexsort((call_start_ns[usable], call_correlation[usable]))]
    keys = call_correlation[order]
    low = np.searchsorted(keys, correlation, "left")
    high = np.searchsorted(keys, correlation, "right")
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
