"""What a reader found → the sorted, linked tables of a `Trace`."""

from typing import Any

from surrogate.trace.events.device import Processes, activities_table, syncs_table
from surrogate.trace.events.host import allocations_table, calls_table, ranges_table
from surrogate.trace.events.names import Interner
from surrogate.trace.events.rows import ACTIVITY, ALLOCATION, CALL, RANGE, SYNC, Parts, columns_of
from surrogate.trace.events.tables import Stream, Thread, Trace

_WHOLE_US_NS = 1000
"""What rounding to whole µs can cut off the end of a range."""


def build(parts: Parts) -> Trace:
    """Drop rows without a usable time (counted in the notes), convert, sort, link, and shift the origin to 0."""
    tables = {
        "ranges": columns_of(parts.ranges, RANGE, parts.exact_ns),
        "frames": columns_of(parts.frames, RANGE, parts.exact_ns),
        "calls": columns_of(parts.calls, CALL, parts.exact_ns),
        "activities": columns_of(parts.activities, ACTIVITY, parts.exact_ns),
        "syncs": columns_of(parts.syncs, SYNC, parts.exact_ns),
        "allocations": columns_of(parts.allocations, ALLOCATION, parts.exact_ns),
    }
    starts = [int(t.start_ns.min()) for t in tables.values() if len(t.start_ns)]
    origin = min(starts, default=0)
    for table in tables.values():
        table.start_ns, table.end_ns = table.start_ns - origin, table.end_ns - origin
    dropped = sum(t.dropped for t in tables.values())
    notes = [*parts.notes]
    if dropped:
        notes.append(
            f"{dropped:,} events without a usable time (missing, negative or out of range) are left out"
        )
    tolerance = _WHOLE_US_NS if all(t.whole_us for t in tables.values()) else 0
    names = parts.names.values
    streams: Interner[Any] = Interner(lambda key: key)
    ranges, frames = (
        ranges_table(tables["ranges"], names, tolerance),
        ranges_table(tables["frames"], names, tolerance),
    )
    calls = calls_table(tables["calls"], names, ranges, tolerance)
    processes = Processes(parts.threads.values)
    activities = activities_table(tables["activities"], names, streams, ranges, calls, processes)
    return Trace(
        source=parts.source, format=parts.format, origin_ns=origin, names=tuple(names),
        shapes=tuple(parts.shapes.values), types=tuple(parts.types.values), inputs=tuple(parts.inputs.values),
        threads=tuple(
            Thread(*pair, name=parts.thread_names.get(pair, "")) for pair in parts.threads.values
        ),
        ranges=ranges, frames=frames, calls=calls, activities=activities,
        syncs=syncs_table(tables["syncs"], names, streams, calls, processes),
        allocations=allocations_table(tables["allocations"], ranges),
        streams=tuple(Stream(*key) for key in streams.values), devices=tuple(parts.devices),
        rank=parts.rank, world_size=parts.world_size, notes=tuple(notes), ignored=dict(parts.ignored),
    )  # fmt: skip
