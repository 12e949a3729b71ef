"""The events of a trace as columns: one frozen table per kind of event, and the nesting of intervals on threads.

The tables share names, threads and streams.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
"""A column of integers; -1 means "not in the trace"."""
NEVER = 2**62
"""A time in ns after all events."""
Floats = NDArray[np.float64]
Columns = dict[str, Ints]
"""Raw columns by name, sorted by start, with ``start_ns`` and ``end_ns``."""


@dataclass(frozen=True, slots=True)
class Thread:
    """A host thread, by the ids that the profiler printed."""

    process: str
    thread: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Stream:
    """A queue of one device. ``process`` is "" if the trace does not name the process (PyTorch's never does)."""

    device: int
    stream: int
    process: str = ""

    @property
    def label(self) -> str:
        """A readable name, such as ``GPU 0 stream 7``."""
        return f"GPU {self.device} stream {self.stream}"


@dataclass(frozen=True, slots=True)
class TraceGpu:
    """A GPU as the trace describes it; 0 for properties that the trace does not hold."""

    index: int
    name: str
    compute_capability: float = 0.0
    sms: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """The columns of all tables with a duration.

    ``start_ns`` and ``end_ns`` count from the trace's origin. ``name`` is an index into ``Trace.names``, ``kind`` a
    code of `surrogate.trace.events`.
    """

    start_ns: Ints
    end_ns: Ints
    name: Ints
    kind: Ints

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def time_us(self) -> NDArray[np.float64]:
        """Durations in µs."""
        return (self.end_ns - self.start_ns) / 1e3


@dataclass(frozen=True, slots=True, eq=False)
class Ranges(Timed):
    """Host ranges: operators, annotations, profiler steps, NVTX ranges (`surrogate.trace.events`), or modules' frames.

    ``name`` and ``stack`` are indices into the trace's tuple ``names``; ``shapes``, ``types``, ``inputs`` and
    ``thread`` are indices into ``shapes``, ``types``, ``inputs`` and ``threads``. ``parent`` is the innermost enclosing
    range of the same thread, ``depth`` the number of enclosing ranges. ``sequence`` and ``forward_thread`` are
    autograd's: a backward operator has the sequence number of its forward operator and a forward thread above 0.
    """

    thread: Ints
    external_id: Ints
    sequence: Ints
    forward_thread: Ints
    shapes: Ints
    types: Ints
    inputs: Ints
    stack: Ints
    parent: Ints
    depth: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Calls(Timed):
    """CUDA (or HIP) runtime and driver calls. ``range`` is the innermost row of `Trace.ranges` around the call."""

    thread: Ints
    correlation: Ints
    external_id: Ints
    range: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Activities(Timed):
    """Kernels, copies, memsets and graphs on the device (`surrogate.trace.events`).

    ``call`` is the row of `Trace.calls` that launched the activity; all kernels of one CUDA graph share one call.
    ``range`` is the innermost row of `Trace.ranges` around that call. ``grid`` and ``block`` have shape (rows, 3), in
    blocks and threads, 0 if unknown. ``shared_bytes`` is the static plus dynamic shared memory of a block.
    ``graph_node`` is above 0 for a kernel of a CUDA graph. ``bytes`` and ``copy_kind`` belong to copies and memsets.
    """

    stream: Ints
    correlation: Ints
    external_id: Ints
    grid: Ints
    block: Ints
    registers: Ints
    shared_bytes: Ints
    bytes: Ints
    copy_kind: Ints
    graph_node: Ints
    call: Ints
    range: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Syncs(Timed):
    """Synchronisation records (`SYNC_KINDS`)."""

    stream: Ints
    correlation: Ints
    call: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Allocations:
    """Allocations (``bytes`` > 0) and frees (``bytes`` < 0).

    ``total`` is the number of bytes allocated at that time. ``device`` is -1 for host memory. ``range`` is the
    enclosing range.
    """

    time_ns: Ints
    bytes: Ints
    device: Ints
    thread: Ints
    range: Ints
    total: Ints

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration: host events that start in ``[start_ns, end_ns)`` and the device activities they launched.

    ``by`` is the evidence for it: ``step`` (ProfilerStep), ``optimizer``, ``repetition`` or ``whole`` (the whole
    trace).
    """

    index: int
    label: str
    start_ns: int
    end_ns: int
    by: str

    @property
    def time_us(self) -> float:
        """Host time from the start of the iteration to the start of the next one, in µs."""
        return (self.end_ns - self.start_ns) / 1e3


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Trace:
    """All events of one trace; every table is sorted by start.

    `surrogate.trace.events` documents the tables.

    Attributes
    ----------
    source, format
        The file, and ``kineto`` or ``nsys``.
    origin_ns
        The recorded time of time 0.
    names, shapes, types, inputs, threads, streams
        The values that indices in the tables refer to.
    devices
        The GPUs that the trace describes.
    ranges, frames, calls, activities, syncs, allocations
        The tables.
    rank, world_size
        The rank of the process and the number of ranks; None if unknown.
    notes
        Remarks on events that were left out.
    ends_early
        Whether the file was cut.
    complete_ns
        The host times from and until which launches have their activities in the file.
    chosen
        The iterations that `trim` kept; () for a trace that was not trimmed.
    others
        Device activities of other iterations, which may run during the chosen ones. They have no launch calls.
    ignored
        Number of events without a table, by category.
    repeated
        The texts of labels that occur again after others like them; their numbers are part of the name.
    """

    source: str
    format: str
    origin_ns: int
    names: tuple[str, ...]
    shapes: tuple[Any, ...]
    types: tuple[tuple[str, ...], ...]
    inputs: tuple[tuple[str, ...], ...]
    threads: tuple[Thread, ...]
    streams: tuple[Stream, ...]
    devices: tuple[TraceGpu, ...]
    ranges: Ranges
    frames: Ranges
    calls: Calls
    activities: Activities
    syncs: Syncs
    allocations: Allocations
    rank: int | None = None
    world_size: int | None = None
    notes: tuple[str, ...] = ()
    ends_early: bool = False
    complete_ns: tuple[int, int] = (-NEVER, NEVER)
    chosen: tuple[Iteration, ...] = ()
    others: Activities | None = None
    ignored: Mapping[str, int] = field(default_factory=dict)
    repeated: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        counts = f"{len(self.ranges):,} ranges, {len(self.calls):,} calls, {len(self.activities):,} device activities"
        return f"Trace({self.source}: {counts}, {self.span_us / 1e3:.1f} ms)"

    @property
    def span_ns(self) -> tuple[int, int]:
        """Earliest start and latest end of all events except frames, in ns from the origin; (0, 0) if empty."""
        tables = [t for t in (self.ranges, self.calls, self.activities, self.syncs) if len(t)]
        if not tables:
            return (0, 0)
        return min(int(t.start_ns[0]) for t in tables), max(int(t.end_ns.max()) for t in tables)

    @property
    def span_us(self) -> float:
        """Time from the first start to the last end, in µs."""
        first, last = self.span_ns
        return (last - first) / 1e3

    def name_of(self, table: Timed, row: int) -> str:
        """Return the name in ``row`` of a table of this trace."""
        return self.names[int(table.name[row])]

    def name_matches(self, table: Timed, test: Callable[[str], object]) -> NDArray[np.bool_]:
        """Return a mask of the rows with a name that passes ``test``. ``test`` is called once per name."""
        return np.array([bool(test(name)) for name in self.names] or [False])[table.name]

    def shapes_of(self, row: int) -> tuple[Any, ...] | None:
        """Return the input shapes of a row of ``ranges``, one tuple per argument; None if not recorded."""
        index = int(self.ranges.shapes[row])
        return None if index < 0 else self.shapes[index]

    def device_name(self, device: int) -> str:
        """Return the name of a device, "" if the trace does not describe it."""
        return next((gpu.name for gpu in self.devices if gpu.index == device), "")


T = TypeVar("T")


def take_rows(table: T, rows: NDArray[Any]) -> T:
    """Return the table with only the given rows (indices or a mask)."""
    columns = {f.name: getattr(table, f.name)[rows] for f in fields(table)}  # type: ignore[arg-type]
    return replace(table, **columns)  # type: ignore[type-var]


def keep_rows(columns: Columns, rows: NDArray[np.bool_]) -> int:
    """Remove the other rows from raw columns, and return how many."""
    columns |= {name: column[rows] for name, column in columns.items()}
    return int((~rows).sum())


def joined(table: T, other: T | None) -> T:
    """Return the rows of both tables, sorted by start."""
    if other is None:
        return table
    columns = {f.name: np.concatenate([getattr(table, f.name), getattr(other, f.name)]) for f in fields(table)}  # type: ignore[arg-type]
    order = np.argsort(columns["start_ns"], kind="stable")
    return replace(table, **{name: column[order] for name, column in columns.items()})  # type: ignore[type-var]


def linked(column: NDArray[Any], links: Ints, missing: Any = -1) -> NDArray[Any]:
    """Return ``column[links]``, with ``missing`` for links of -1. The column may be empty."""
    return np.append(column, missing)[links]


def merged(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return the starts and ends of the union of intervals, sorted. Intervals that touch or overlap become one."""
    if not len(starts):
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    reach = np.maximum.accumulate(ends[order])
    # An interval starts a new interval of the union if it starts after the ends of all intervals before it.
    new = np.flatnonzero(starts[1:] > reach[:-1]) + 1
    return starts[np.concatenate([[0], new])], reach[np.concatenate([new - 1, [len(reach) - 1]])]


def interval_at(time_ns: Ints, starts: Ints, ends: Ints) -> Ints:
    """Return which of the sorted, disjoint intervals [start, end) each time is in, -1 for none."""
    at = np.searchsorted(starts, time_ns, "right") - 1
    return np.where((at >= 0) & (linked(ends, at) > time_ns), at, -1)


def enclosing(ranges: Ranges, chosen: NDArray[np.bool_], *, outermost: bool = False) -> Ints:
    """Return for every range the innermost (or outermost) chosen range among itself and its ancestors, -1 if none."""
    ancestor = np.where(chosen, np.arange(len(ranges)), -1)
    for _, rows in grouped(ranges.depth, np.arange(len(ranges))):  # outer ranges first
        parents = ranges.parent[rows]
        current = ancestor[rows]
        above = np.where(parents >= 0, ancestor[parents], -1)
        ancestor[rows] = np.where((above >= 0) & (outermost | (current < 0)), above, current)
    return ancestor


def with_ancestors(ranges: Ranges, inner: Ints) -> NDArray[np.bool_]:
    """Return a mask of the ranges in the rows ``inner`` (-1: none) and of all ranges around them."""
    mask = np.zeros(len(ranges) + 1, np.bool_)  # the last entry is for the index -1
    mask[inner] = True
    for _, rows in reversed(grouped(ranges.depth, np.arange(len(ranges)))):  # inner ranges first
        mask[ranges.parent[rows[mask[rows]]]] = True
    return mask[:-1]


def grouped(column: Ints, rows: Ints) -> list[tuple[int, Ints]]:
    """Return (value, rows with this value in ``column``) pairs; values ascend, rows keep their order."""
    order = rows[np.argsort(column[rows], kind="stable")]
    values, starts = np.unique(column[order], return_index=True)
    return list(zip(values.tolist(), np.split(order, starts[1:]), strict=True)) if len(rows) else []


@dataclass(frozen=True, slots=True, eq=False)
class Nesting:
    """The nesting of intervals on threads: ``parent`` and ``depth`` of each, and its end, cut to its parent's end.

    ``rows`` are the intervals thread by thread in the order of their starts; of two that start together, the outer
    comes first.
    """

    rows: Ints
    start_ns: Ints
    end_ns: Ints
    thread: Ints
    parent: Ints
    depth: Ints

    def open_at(self, time_ns: Ints, thread: Ints) -> Ints:
        """Return the innermost interval that is open on a thread at each time, -1 for none."""
        if not len(self.rows) or not len(time_ns):
            return np.full(len(time_ns), -1, np.int64)
        # Intervals and times as one sorted column, in which an interval comes before a time that equals its start.
        count = len(self.rows)
        times = np.concatenate([self.start_ns[self.rows], time_ns])
        order = np.lexsort((times, np.concatenate([self.thread[self.rows], thread])))
        # The innermost open interval is the last one that began before the time, or one of its ancestors.
        last = np.empty(len(order), np.int64)
        last[order] = np.maximum.accumulate(np.where(order < count, order, -1))
        begun = self.rows[last[count:]]
        innermost = np.where((last[count:] >= 0) & (self.thread[begun] == thread), begun, -1)
        over = np.flatnonzero(innermost >= 0)
        while len(over := over[self.end_ns[innermost[over]] <= time_ns[over]]):
            innermost[over] = self.parent[innermost[over]]
            over = over[innermost[over] >= 0]
        return innermost


def nest(start_ns: Ints, end_ns: Ints, thread: Ints, order: Ints, tolerance_ns: int = 0) -> Nesting:
    """Return the nesting of intervals on threads, in linear time.

    ``order`` breaks ties of the start: the outer range was opened first and has the smaller id. Intervals that overlap
    without inclusion do not nest; a later interval that outlasts an open one has the same parent. ``tolerance_ns`` is
    the amount by which rounding to whole µs may cut the end of a parent.
    """
    # Lists are faster than arrays for reads one by one.
    rows = np.lexsort((-end_ns, order, start_ns, thread))
    parent = [-1] * len(rows)
    depth = [0] * len(rows)
    starts, ends, threads = start_ns.tolist(), end_ns.tolist(), thread.tolist()
    stack: list[int] = []  # ends never grow towards the top
    current = None
    for row in rows.tolist():
        if threads[row] != current:
            current = threads[row]
            stack = []
        start, end = starts[row], ends[row]
        # An interval that ends before this row does cannot be its parent, nor a better parent of later rows.
        while stack and (ends[stack[-1]] + tolerance_ns < end or ends[stack[-1]] <= start):
            stack.pop()
        if stack:
            parent[row] = stack[-1]
            depth[row] = len(stack)
            ends[row] = min(end, ends[stack[-1]])
        stack.append(row)
    end_ns, parents, depths = (np.array(column, np.int64) for column in (ends, parent, depth))
    return Nesting(rows, start_ns, end_ns, thread, parents, depths)


def open_rows(ranges: Ranges, time_ns: Ints, thread: Ints, chosen: NDArray[np.bool_] | None = None) -> Ints:
    """Return the innermost range, or chosen range, that is open on a thread at each time, -1 for none."""
    order = np.lexsort((ranges.depth, ranges.start_ns, ranges.thread))
    nesting = Nesting(order, ranges.start_ns, ranges.end_ns, ranges.thread, ranges.parent, ranges.depth)
    innermost = nesting.open_at(time_ns, thread)
    return innermost if chosen is None else linked(enclosing(ranges, chosen), innermost)
