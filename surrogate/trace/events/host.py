"""Host tables: ranges nested in each other, calls and allocations inside ranges."""

from collections.abc import Sequence

import numpy as np

from surrogate.trace.events import kinds
from surrogate.trace.events.columns import Ints, integers, lookup
from surrogate.trace.events.link import nest
from surrogate.trace.events.rows import ALLOCATION, CALL, RANGE, Columns
from surrogate.trace.events.tables import Allocations, Calls, Ranges

_LAST = 2**62


def ranges_table(table: Columns, names: Sequence[str], tolerance: int) -> Ranges:
    columns = {name: table[name] for name in RANGE[2:]}
    columns["kind"] = _by_name(names, columns["name"], columns["kind"])
    parent, depth = nest(
        table.start_ns, table.end_ns, columns["thread"], columns["external_id"],
        np.ones(len(table.start_ns), np.bool_), tolerance,
    )  # fmt: skip
    return Ranges(table.start_ns, table.end_ns, **columns, parent=parent, depth=depth)


def _by_name(names: Sequence[str], name: Ints, kind: Ints) -> Ints:
    steps = lookup(names, name, lambda text: kinds.range_kind(text, -1))
    return np.where((steps >= 0) & (kind != kinds.FRAME), steps, kind)


def calls_table(table: Columns, names: Sequence[str], ranges: Ranges, tolerance: int) -> Calls:
    columns = {name: table[name] for name in CALL[2:]}
    columns["kind"] = lookup(names, columns["name"], kinds.call_kind)
    held = within(table.start_ns, table.end_ns, columns["thread"], ranges, tolerance)
    lost = np.flatnonzero(held < 0)
    # A profiler that numbers threads differently for calls and operators still gives the operator's id.
    held[lost] = by_external_id(columns["external_id"][lost], columns["correlation"][lost], ranges)
    return Calls(table.start_ns, table.end_ns, **columns, range=held)


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


def by_external_id(external_id: Ints, correlation: Ints, ranges: Ranges) -> Ints:
    """The range with that id, -1 for none; newer profilers put the correlation id in the field, which means nothing."""
    found = np.full(len(external_id), -1, np.int64)
    known = np.flatnonzero(ranges.external_id > 0)
    if not len(known) or not len(found):
        return found
    order = known[np.argsort(ranges.external_id[known], kind="stable")]
    at = np.minimum(np.searchsorted(ranges.external_id[order], external_id), len(order) - 1)
    good = (ranges.external_id[order[at]] == external_id) & (external_id != correlation)
    return np.where(good, order[at], -1)


def allocations_table(table: Columns, ranges: Ranges) -> Allocations:
    columns = {name: table[name] for name in ALLOCATION[2:]}
    size = integers(table.values["bytes"], 0)
    held = within(table.start_ns, table.end_ns, columns["thread"], ranges)
    return Allocations(time_ns=table.start_ns, bytes=size, **columns, range=held)
