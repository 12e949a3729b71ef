"""Collect the rows that a reader finds in a trace file, and build the sorted, linked tables of a `Trace`.

Readers append one tuple per event to a table of a `RawTrace`, with values as the file holds them. A table converts its
rows into NumPy columns. The conversion is fast if every value is a plain number; if the file is damaged, values are
converted one by one.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from surrogate.features.errors import read_toml
from surrogate.trace import events
from surrogate.trace.events import launches, tables
from surrogate.trace.events.launches import ANY_PROCESS, Keys
from surrogate.trace.events.phases import with_limits
from surrogate.trace.events.ranks import keep_one_rank
from surrogate.trace.events.tables import Columns, Ints, Nesting, Ranges, Trace, TraceGpu, keep_rows, linked, nest

T = TypeVar("T")
EventRow = tuple[object, ...]

COLUMNS = {table: tuple(columns.split()) for table, columns in read_toml(__file__).items()}
"""Table → the columns of its raw rows, in order; ``ts`` and ``dur`` are the start and the length."""

PACKED_ROWS = 20_000
"""The number of rows of a table that are converted into columns together."""
MAX_NAME = 20_000
"""The maximum length of a name in characters; templated kernel names reach a few thousand."""
_CONTROL = dict.fromkeys([*range(32), *range(127, 160)], " ")
_MAX_TIME_US = 3e15  # the year 2065 in µs since 1970; later times are damaged
_MAX_START_NS = 3 * 10**18
_MAX_LENGTH_NS = 10**18  # 31 years; the sum of two starts and a length fits in 64 bits
_LIMIT = 2**63 - 1
_INVALID_NS = _LIMIT // 2
_DAMAGE = (ValueError, TypeError, OverflowError)
"""The exceptions of NumPy, `int` and `float` for a value that is not a number."""


class Interner(dict[Hashable, int], Generic[T]):
    """A map of each distinct value to an index, in the order of first occurrence; ``clean`` converts new values."""

    def __init__(self, clean: Callable[[Any], T]) -> None:
        self._clean = clean
        self._by_clean: dict[T, int] = {}
        self.distinct: list[T] = []

    def index(self, key: Hashable, value: object = None) -> int:
        """Return the index of ``key``, which is cleaned from ``value``, or from the key itself."""
        if key in self:
            return self[key]
        clean = self._clean(key if value is None else value)
        self[key] = index = self._by_clean.setdefault(clean, len(self.distinct))
        if index == len(self.distinct):
            self.distinct.append(clean)
        return index

    __missing__ = index


def clean_name(value: object) -> str:
    """Return printable text of at most `MAX_NAME` characters, without lone surrogates and control characters."""
    text = value if isinstance(value, str) else repr(value)
    return text[:MAX_NAME].translate(_CONTROL).encode("utf-8", "replace").decode("utf-8")


def clean_texts(values: object) -> tuple[str, ...]:
    """Return a list of any values as a tuple of printable texts; () for a value that is not a list."""
    return tuple(map(clean_name, values)) if isinstance(values, list | tuple) else ()


def clean_shapes(values: object) -> tuple[object, ...]:
    """Return an operator's list of shapes as nested tuples.

    The answer is () for a value that is not a list, and -1 for a size that is not an integer.
    """

    def clean(value: object, depth: int) -> object:
        if isinstance(value, list | tuple):
            return tuple(clean(inner, depth + 1) for inner in value) if depth < 8 else ()
        is_integer = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
        return value if is_integer else -1

    return tuple(clean(value, 1) for value in values) if isinstance(values, list | tuple) else ()


class RawTable:
    """The rows of one table. A reader appends to ``rows``; `pack` converts them into columns, which take less memory.

    A row is valid if its start and length are numbers in a plausible range and its length is not negative. ``dropped``
    counts the others. ``integer_us`` is True if all times are whole µs.
    """

    def __init__(self, names: tuple[str, ...], exact_ns: bool) -> None:
        self.names = names
        self.exact_ns = exact_ns
        self.rows: list[EventRow] = []
        self.dropped = 0
        self.integer_us = not exact_ns
        self._packed: list[dict[str, Ints]] = []

    def extend(self, rows: Iterable[EventRow]) -> None:
        """Add rows; convert them into columns in batches."""
        rows = iter(rows)
        while batch := list(islice(rows, PACKED_ROWS)):
            self.rows += batch
            self.pack()

    def pack(self) -> None:
        """Convert the rows into columns."""
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.names)
        self.rows.clear()
        values = dict(zip(self.names, columns, strict=True))
        ts = values.pop("ts")
        dur = values.pop("dur", (0,) * len(ts))
        if self.exact_ns:
            start, length = integers(ts, _INVALID_NS), integers(dur, _INVALID_NS)
        else:
            (start, start_is_integer), (length, length_is_integer) = map(nanoseconds, (ts, dur))
            self.integer_us = self.integer_us and start_is_integer and length_is_integer
        valid = (length >= 0) & (length <= _MAX_LENGTH_NS) & (np.abs(start) <= _MAX_START_NS)
        packed = {name: _CONVERTED.get(name, integers)(column) for name, column in values.items()}
        packed |= {"start_ns": start, "length_ns": length}
        self._packed.append({name: column[valid] for name, column in packed.items()})
        self.dropped += len(ts) - int(valid.sum())

    def columns(self) -> dict[str, Ints]:
        """Return the columns of all rows, with ``start_ns`` and ``end_ns`` instead of ``ts`` and ``dur``.

        Rows are sorted by start. If rows start together, the longest comes first because it encloses the others. Rows
        of equal time keep the order of the file.
        """
        self.pack()
        packed, self._packed = self._packed, []
        columns = {name: np.concatenate([part.pop(name) for part in packed]) for name in list(packed[0])}
        length = columns.pop("length_ns")
        order = np.lexsort((-length, columns["start_ns"]))
        columns["end_ns"] = columns["start_ns"] + length
        return {name: columns.pop(name)[order] for name in list(columns)}


@dataclass(slots=True)
class RawTrace:
    """Rows in the column orders of `COLUMNS`, and the values that the indices in them refer to."""

    source: str
    format: str
    exact_ns: bool = False
    """True if rows give ``ts`` and ``dur`` in integer ns; otherwise they are in µs."""
    names: Interner[str] = field(default_factory=lambda: Interner(clean_name))
    shapes: Interner[tuple[object, ...]] = field(default_factory=lambda: Interner(clean_shapes))
    types: Interner[tuple[str, ...]] = field(default_factory=lambda: Interner(clean_texts))
    inputs: Interner[tuple[str, ...]] = field(default_factory=lambda: Interner(clean_texts))
    threads: Interner[tuple[str, ...]] = field(default_factory=lambda: Interner(clean_texts))
    places: Interner[str] = field(default_factory=lambda: Interner(clean_name))
    """The processes that JSON events of the device name; ``process`` of activities and synchronisations is an index."""
    thread_names: dict[tuple[str, ...], str] = field(default_factory=dict)
    tables: dict[str, RawTable] = field(init=False)
    devices: list[TraceGpu] = field(default_factory=list)
    rank: int | None = None
    world_size: int | None = None
    notes: list[str] = field(default_factory=list)
    ends_early: bool = False
    ignored: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.tables = {name: RawTable(columns, self.exact_ns) for name, columns in COLUMNS.items()}


def integers(values: Sequence[object], default: int = -1) -> Ints:
    """Return an int64 column, with ``default`` for values that are not 64-bit numbers."""
    return _column(values, int, np.int64, default)


def _column(values: Sequence[object], convert: Callable[[Any], Any], dtype: Any, default: float) -> NDArray[Any]:
    """Convert all values at once if each is a number, else one by one, with ``default`` for damaged values."""

    def number(value: Any) -> float:
        try:
            converted = convert(value)
        except _DAMAGE:
            return default
        return converted if abs(converted) <= _LIMIT else default

    try:
        return np.array(values, dtype).reshape(len(values))
    except _DAMAGE:
        return np.fromiter(map(number, values), dtype, len(values))


def triples(values: Sequence[object]) -> Ints:
    """Return a column of (x, y, z), shape (rows, 3), at least 0; zeros for values that are not such a list."""
    try:
        sizes = np.array(values, np.int64).reshape(len(values), 3)
    except _DAMAGE:
        rows = [v if isinstance(v, list | tuple) and len(v) == 3 else (0, 0, 0) for v in values]
        sizes = integers([size for row in rows for size in row], 0).reshape(-1, 3)
    return np.maximum(sizes, 0)


def numbers(values: Sequence[object]) -> Ints:
    """Return a column of device or stream numbers. Old traces write ``stream 7``, newer ones 7."""
    return integers(values if set(map(type, values)) == {int} else [*map(_number, values)])


def _number(value: object) -> int:
    if type(value) is str:
        last = value.rpartition(" ")[2]
        return int(last) if last.isascii() and last.isdigit() and len(last) < 18 else -1
    return value if type(value) is int else -1


_CONVERTED: dict[str, Callable[[Sequence[object]], Ints]] = {
    **dict.fromkeys(("grid", "block"), triples),
    **dict.fromkeys(("device", "stream"), numbers),
    **dict.fromkeys(("size", "graph_node"), partial(integers, default=0)),
}
"""The conversions of columns that are not plain numbers, or that replace damaged values by another number than -1."""


def nanoseconds(values: Sequence[object]) -> tuple[Ints, bool]:
    """Convert times in µs to ns, `_INVALID_NS` for damaged values. Return the times, and whether all are whole µs.

    Rounding to whole µs may split nested ranges. A float of µs since 1970 resolves only 0.25 µs, so the integer and the
    fractional part are converted separately.
    """
    numbers = _column(values, float, np.float64, np.nan)
    valid = np.abs(numbers) <= _MAX_TIME_US
    numbers = np.where(valid, numbers, 0.0)
    integer = np.floor(numbers)
    part = np.rint((numbers - integer) * 1000)
    return np.where(valid, integer.astype(np.int64) * 1000 + part.astype(np.int64), _INVALID_NS), not part.any()


_ROUNDING_NS = 1000
"""The maximum time that rounding to whole µs cuts off the end of a range, in ns."""
_ROCM = re.compile("hip|AMD|Radeon|gfx")
"""Matches the names of ROCm's calls and GPUs."""
_FAR_NS = 24 * 3600 * 10**9
"""No trace is longer, in ns. An event that is this far from the median one has no usable time."""
_ZERO_NS, _ABSOLUTE_NS = 10**9, 10**11
"""An event before the first time, in ns, has no usable time if all others are after the second."""


def build_trace(raw: RawTrace) -> Trace:
    """Return the trace of the rows, converted, sorted and linked, with its first event at time 0.

    Rows without a usable time are dropped and counted in the notes.
    """
    parts = {name: table.columns() for name, table in raw.tables.items()}
    names = raw.names.distinct
    _mark_steps(parts["ranges"], names)
    dropped = sum(table.dropped for table in raw.tables.values()) + _drop_distant(parts, raw.exact_ns)
    notes = [*raw.notes]
    if dropped:
        notes.append(events.text("no_time", count=dropped))
    notes += _join_launches(raw, parts)
    origin = min((int(part["start_ns"][0]) for part in parts.values() if len(part["start_ns"])), default=0)
    for part in parts.values():
        part["start_ns"] -= origin
        part["end_ns"] -= origin
    tolerance = _ROUNDING_NS if all(table.integer_us for table in raw.tables.values()) else 0
    frames, _ = _ranges(parts["frames"], tolerance)
    ranges, nesting = _ranges(parts["ranges"], tolerance)
    calls = _calls(parts["calls"], names, ranges, nesting)
    streams: dict[tables.Stream, int] = {}
    for part in (parts["activities"], parts["syncs"]):
        _place(part, streams)
    activities = _activities(parts["activities"], names, ranges, calls)
    if raw.ends_early:
        notes.insert(0, events.text("ends_early"))
    values: Any = {name: tuple(getattr(raw, name).distinct) for name in ("names", "shapes", "types", "inputs")}
    values |= {name: getattr(raw, name) for name in ("source", "format", "rank", "world_size", "ends_early")}
    values |= {"ranges": ranges, "frames": frames, "calls": calls, "activities": activities}
    values |= {"streams": tuple(streams), "devices": tuple(raw.devices), "notes": tuple(notes)}
    trace = Trace(
        **values,
        origin_ns=origin,
        threads=tuple(tables.Thread(*pair, name=raw.thread_names.get(pair, "")) for pair in raw.threads.distinct),
        syncs=_syncs(parts["syncs"], names),
        allocations=_allocations(parts["allocations"], nesting),
        ignored=dict(raw.ignored),
        repeated=_repeated(parts["ranges"], names),
    )
    return with_limits(trace)


def _repeated(ranges: Columns, names: Sequence[str]) -> frozenset[str]:
    """Return the operators, and the labels that occur twice; a label that differs in numbers, if any, is between."""
    operators = np.unique(ranges["name"][ranges["kind"] == events.OPERATOR]).tolist()
    label = ranges["name"][np.isin(ranges["kind"], (events.ANNOTATION, events.NVTX))]
    forms: dict[str, int] = {}
    form_of = _lookup(
        names, np.arange(len(names)), lambda name: forms.setdefault(events.NUMBER.sub("#", name), len(forms))
    )
    used = np.bincount(label, minlength=len(names))
    is_alone = np.bincount(form_of[used > 0], minlength=len(forms))[form_of] == 1
    label = label[np.argsort(form_of[label], kind="stable")]
    is_new = np.append(True, label[1:] != label[:-1])[: len(label)]
    runs = np.bincount(label[is_new], minlength=len(names))
    recurring = np.flatnonzero((runs > 1) | (is_alone & (used > 1))).tolist()
    return frozenset(names[row] for row in (*operators, *recurring))


def _mark_steps(ranges: Columns, names: Sequence[str]) -> None:
    """Set the kind of the profiler's own ranges around iterations, which have a known prefix."""
    steps = _lookup(names, ranges["name"], lambda name: name.startswith("ProfilerStep"))
    ranges["kind"] = np.where(steps == 1, events.STEP, ranges["kind"])


def _drop_distant(parts: Mapping[str, Columns], exact_ns: bool) -> int:
    """Remove the rows far from all others, such as those at time 0 or -1 in a trace of absolute times; return a count.

    An Nsight trace counts from the start of the recording, so that events in its first second may be right.
    """
    starts = np.concatenate([part["start_ns"] for part in parts.values()])
    if not len(starts):
        return 0
    median = int(np.median(starts))
    later = starts[(starts >= _ZERO_NS) & (np.abs(starts - median) <= _FAR_NS)]
    first_ns = _ZERO_NS if not exact_ns and len(later) and later.min() > _ABSOLUTE_NS else median - _FAR_NS
    count = 0
    for part in parts.values():
        count += keep_rows(part, (part["start_ns"] >= first_ns) & (np.abs(part["start_ns"] - median) <= _FAR_NS))
    return count


def _join_launches(raw: RawTrace, parts: dict[str, Columns]) -> list[str]:
    """Add ``call``, the launch call, to the columns of activities and synchronisations, and return notes.

    If several ranks wrote the file, only one of them is kept.
    """
    processes = {name: i for i, name in enumerate(dict.fromkeys(name for name, _ in raw.threads.distinct))}
    process_of = np.array([processes[name] for name, _ in raw.threads.distinct], np.int64)

    def keys_of_calls() -> Keys:
        columns = parts["calls"]
        kind = _lookup(raw.names.distinct, columns["name"], launches.launching_kind)
        return Keys(columns["correlation"], columns["start_ns"], kind, linked(process_of, columns["thread"]))

    notes = []
    if raw.format == "kineto":
        names = [*processes, *raw.places.distinct]
        parts["activities"]["process"] += len(processes)
        notes += keep_one_rank(raw.source, parts, process_of, names, keys_of_calls())
        for name in ("activities", "syncs"):
            parts[name]["process"][:] = ANY_PROCESS
    calls = keys_of_calls()
    for name in ("activities", "syncs"):
        columns = parts[name]
        # Number the processes of the device's events like those of the calls.
        ids, position = np.unique(columns["process"], return_inverse=True)
        numbers = [processes.get(str(i), launches.OTHER_PROCESS) if i >= 0 else ANY_PROCESS for i in ids.tolist()]
        process = np.array(numbers, np.int64)[position]
        kind = columns["kind"] if name == "activities" else np.full(len(position), launches.ANY_KIND)
        columns["call"] = launches.launched_by(Keys(columns["correlation"], columns["start_ns"], kind, process), calls)
    if count := launches.drop_early(parts["activities"], calls):
        notes.append(events.text("early", count=count))
    used = {raw.names.distinct[i] for i in np.unique(parts["calls"]["name"]).tolist()}
    is_rocm = any(map(_ROCM.match, [*used, *(gpu.name for gpu in raw.devices)]))
    return notes + launches.clip_overlong(parts["activities"], calls, _waits(parts, calls, raw.names.distinct), is_rocm)


def _waits(parts: Mapping[str, Columns], keys: Keys, names: Sequence[str]) -> tuple[Ints, Ints]:
    """Return the starts and ends of the calls that wait for all earlier work, if one process uses one device."""
    calls, activities = parts["calls"], parts["activities"]
    devices, streams = (len(np.unique(activities[name])) for name in ("device", "stream"))
    waits_for = "device|ctx|stream" if streams == 1 else "device|ctx"
    waits = _lookup(names, calls["name"], lambda name: bool(re.search(f"({waits_for})synchronize", name.lower())))
    rows = np.flatnonzero((waits == 1) & (devices == 1 == len(np.unique(keys.process))))
    return calls["start_ns"][rows], calls["end_ns"][rows]


def _ranges(columns: Columns, tolerance: int) -> tuple[Ranges, Nesting]:
    nesting = nest(*(columns[name] for name in ("start_ns", "end_ns", "thread", "external_id")), tolerance_ns=tolerance)
    return Ranges(**columns, parent=nesting.parent, depth=nesting.depth), nesting


def _calls(columns: Columns, names: Sequence[str], ranges: Ranges, nesting: Nesting) -> tables.Calls:
    columns["kind"] = _lookup(names, columns["name"], events.call_kind)
    around = nesting.open_at(columns["start_ns"], columns["thread"])
    # Some profilers number threads differently for calls and operators, but give the operator's id.
    around = np.where(around < 0, _by_external_id(columns, ranges), around)
    return tables.Calls(**columns, range=around)


def _allocations(columns: Columns, nesting: Nesting) -> tables.Allocations:
    time_ns, thread = columns["start_ns"], columns["thread"]
    around = nesting.open_at(time_ns, thread)
    return tables.Allocations(time_ns, columns["size"], columns["device"], thread, around, columns["total"])


def _place(columns: Columns, streams: dict[tables.Stream, int]) -> None:
    """Replace device, stream and process by an index in ``streams``, to which new streams are added."""
    values = (columns.pop("device"), columns["stream"], columns.pop("process"))
    rows = zip(*(column.tolist() for column in values), strict=True)
    keys = [(device, number, str(process) if process >= 0 else "") for device, number, process in rows]
    index = {key: streams.setdefault(tables.Stream(*key), len(streams)) for key in dict.fromkeys(keys)}
    columns["stream"] = np.array([index[key] for key in keys], np.int64)


def _activities(columns: Columns, names: Sequence[str], ranges: Ranges, calls: tables.Calls) -> tables.Activities:
    directions = _lookup(names, columns["name"], events.copy_kind)
    directions = np.where(columns["copy_kind"] >= 0, columns["copy_kind"], directions)
    columns["copy_kind"] = np.where(columns["kind"] == events.COPY, directions, -1)
    columns["graph_node"] = np.maximum(columns["graph_node"], 0)
    around = np.where(columns["call"] < 0, _by_external_id(columns, ranges), linked(calls.range, columns["call"]))
    return tables.Activities(**columns, range=around)


def _syncs(columns: Columns, names: Sequence[str]) -> tables.Syncs:
    columns["kind"] = np.where(columns["kind"] >= 0, columns["kind"], _lookup(names, columns["name"], events.sync_kind))
    return tables.Syncs(**columns)


def _lookup(names: Sequence[str], column: Ints, of: Callable[[str], int]) -> Ints:
    """Return ``of(name)`` for every row. ``of`` is called once per name that occurs."""
    table = np.full(len(names) + 1, -1, dtype=np.int64)
    for index in map(int, np.unique(column)):
        if index >= 0:
            table[index] = of(names[index])
    return table[column]


def _by_external_id(table: Mapping[str, Ints], ranges: Ranges) -> Ints:
    """Return the range with each row's external id, -1 for none.

    Newer profilers write the correlation id there, which identifies no range.
    """
    external_id = table["external_id"]
    numbered = np.flatnonzero(ranges.external_id > 0)
    # Find each id among the ranges' ids by binary search; a result is valid if the ids are equal.
    ids, first = np.unique(ranges.external_id[numbered], return_index=True)
    nearest = np.searchsorted(ids, external_id)
    is_found = (linked(ids, nearest) == external_id) & (external_id != table["correlation"])
    return np.where(is_found, linked(numbered[first], nearest), -1)
