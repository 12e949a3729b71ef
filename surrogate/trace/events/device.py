"""Device tables: activities and synchronisations, joined to the calls that launched them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from surrogate.trace.events import kinds
from surrogate.trace.events.columns import Ints, floats, integers, lookup, triples
from surrogate.trace.events.host import by_external_id
from surrogate.trace.events.link import launched_by
from surrogate.trace.events.names import Interner
from surrogate.trace.events.rows import Columns
from surrogate.trace.events.tables import Activities, Calls, Ranges, Syncs

_PLAIN = ("name", "kind", "correlation", "external_id", "registers", "shared_bytes", "bytes", "copy_kind")
_LAST = 2**62


class Processes:
    """Process of a thread or an activity as a number, for traces where several processes share correlation ids."""

    def __init__(self, threads: Sequence[tuple[str, str]]) -> None:
        self.numbers = {
            process: number for number, process in enumerate(dict.fromkeys(p for p, _ in threads))
        }
        self.of_thread = np.array([self.numbers[p] for p, _ in threads] or [-1], dtype=np.int64)

    def of(self, processes: Sequence[Any]) -> Ints:
        return np.fromiter((self.numbers.get(p, -1) for p in processes), np.int64, len(processes))


def _stream_column(table: Columns, streams: Interner[Any]) -> Ints:
    devices = [_digits(value) for value in table.values["device"]]
    numbers = [_digits(value) for value in table.values["stream"]]
    keys = zip(devices, numbers, table.values["process"], strict=True)
    return np.fromiter((streams.index(key) for key in keys), np.int64, len(devices))


def _digits(value: Any) -> int:
    """A device or stream number; old traces write ``stream 7`` where newer ones write 7."""
    if type(value) is int:
        return value if abs(value) < _LAST else -1
    if type(value) is str:
        last = value.rpartition(" ")[2]
        return int(last) if last.isascii() and last.isdigit() and len(last) < 18 else -1
    return -1


def activities_table(
    table: Columns,
    names: Sequence[str],
    streams: Interner[Any],
    ranges: Ranges,
    calls: Calls,
    processes: Processes,
) -> Activities:
    columns = {name: table[name] for name in _PLAIN}
    kind = columns["kind"]
    directions = lookup(names, columns["name"], kinds.copy_kind)
    given = columns["copy_kind"] >= 0
    columns["copy_kind"] = np.where(kind == kinds.COPY, np.where(given, columns["copy_kind"], directions), -1)
    call = _launches(table, columns["correlation"], calls, processes)
    held = np.where(call >= 0, calls.range[call] if len(calls) else -1, -1)
    lost = np.flatnonzero(call < 0)
    held[lost] = by_external_id(columns["external_id"][lost], columns["correlation"][lost], ranges)
    return Activities(
        table.start_ns, table.end_ns, **columns,
        stream=_stream_column(table, streams),
        grid=triples(table.values["grid"]), block=triples(table.values["block"]),
        graph_node=np.maximum(integers(table.values["graph_node"], 0), 0),
        occupancy_pct=floats(table.values["occupancy_pct"]), call=call, range=held,
    )  # fmt: skip


def _launches(table: Columns, correlation: Ints, calls: Calls, processes: Processes) -> Ints:
    return launched_by(
        correlation, table.start_ns, calls.correlation, calls.start_ns,
        processes.of(table.values["process"]), processes.of_thread[calls.thread] if len(calls) else calls.thread,
    )  # fmt: skip


def syncs_table(
    table: Columns, names: Sequence[str], streams: Interner[Any], calls: Calls, processes: Processes
) -> Syncs:
    name, kind, correlation = table["name"], table["kind"], table["correlation"]
    kind = np.where(kind >= 0, kind, lookup(names, name, kinds.sync_kind))
    return Syncs(
        table.start_ns, table.end_ns, name, kind, _stream_column(table, streams), correlation,
        table["wait_correlation"], _launches(table, correlation, calls, processes),
    )  # fmt: skip
