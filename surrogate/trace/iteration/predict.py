"""From a trace to iteration times: overheads, device times, the walk of the iterations through both clocks."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surrogate.features.errors import InputError, check_choice
from surrogate.features.gpu import Gpu, gpus
from surrogate.features.gpu import gpu as gpu_named
from surrogate.network.predict import Predictors, load_predictors
from surrogate.prediction.shipped import load_operators, shipped
from surrogate.report.tables import Table, TableResult
from surrogate.trace import events
from surrogate.trace.calls import batch_size
from surrogate.trace.events.read import as_trace
from surrogate.trace.events.tables import Trace
from surrogate.trace.iteration import times as kernel_times
from surrogate.trace.iteration.overheads import (
    EVENT_US,
    NEIGHBOUR_GAP_US,
    Action,
    HostWork,
    Overheads,
    Unit,
    finer_name,
    handed_over,
    host_work,
    measure_overheads,
    segments,
)
from surrogate.trace.iteration.times import DeviceTimes, collectives
from surrogate.trace.profiling import NO_DEVICE, gpu_of, invalid_reason

KERNEL_GAP_US = 1.0
"""Between two activities of a stream. Source: Lin et al. (HiPC 2022)."""
KERNEL_TAIL_US = 5.0
"""Added to every kernel's time. Source: the same."""
QUEUE = 1024
"""Launches that CUDA queues on a stream before the next call waits."""


@dataclass(slots=True)
class StreamClocks:
    """Clocks in µs since the start: ``host_us`` per thread, ``device_us`` per stream, ``collective_us`` of collectives.

    ``time_us`` are the activities' times, ``stream`` and ``collective`` their streams and whether they are collectives.
    With ``event_us`` the host also pays for being traced, as much per event. Loading takes ``loading`` times as long as
    it did. ``latest_us`` are the times at which the
    last of several ranks reaches each collective, ``reached_us`` those at which this one does, in their order.
    """

    overheads: Overheads
    time_us: NDArray[np.float64]
    stream: Sequence[int]
    collective: Sequence[bool]
    event_us: float = 0.0
    loading: float = 1.0
    gap_us: float = KERNEL_GAP_US
    tail_us: float = KERNEL_TAIL_US
    host_us: dict[int, float] = field(default_factory=dict)
    device_us: dict[int, float] = field(default_factory=dict)
    collective_us: float = 0.0
    latest_us: Sequence[float] = ()
    reached_us: list[float] = field(default_factory=list)
    _ends_ns: dict[int, int] = field(default_factory=dict)
    _parents: dict[int, int] = field(default_factory=dict)
    _last_stream: dict[int, int] = field(default_factory=dict)
    _queued: dict[int, deque[float]] = field(default_factory=dict)

    @property
    def host_now_us(self) -> float:
        """The latest host clock."""
        return max(self.host_us.values(), default=0.0)

    @property
    def device_now_us(self) -> float:
        """The latest device clock, collectives included."""
        return max([*self.device_us.values(), self.collective_us])

    @property
    def now_us(self) -> float:
        """max(host, device)."""
        return max(self.host_now_us, self.device_now_us)

    def run(self, units: Iterable[Unit]) -> None:
        """Walk ``units`` in their order."""
        for unit in units:
            self.step(unit)

    def alone_us(self, unit: Unit, overheads: Overheads) -> float:
        """The host's time of one unit from clocks at 0 on a device without gaps and tails."""
        clocks = StreamClocks(overheads, self.time_us, self.stream, self.collective, gap_us=0.0, tail_us=0.0)
        clocks.step(unit)
        return clocks.host_now_us

    def step(self, unit: Unit) -> None:
        """One unit: cpu += T1 + T2, per launch T4 with T5 between, + T3; without a launch T1 + its own time."""
        thread = unit.thread
        giver = handed_over(unit, self._ends_ns)
        cpu = self.host_us.get(thread, 0.0)
        if giver is not None:
            cpu = max(cpu, self.host_us[giver]) + self.overheads.us("handover", "")
        else:
            sibling = self._parents.get(thread, unit.parent) == unit.parent
            cpu += self.overheads.us("t1" if sibling else "edge", unit.name) + self.event_us * sibling
        self._parents[thread] = unit.parent
        self._ends_ns[thread] = max(self._ends_ns.get(thread, -1), unit.end_ns)
        if unit.is_input:
            # Loading data is an input of the model like the kernels' times.
            self.host_us[thread] = cpu + self.loading * unit.time_us
        else:
            self.host_us[thread] = self._operator(unit, cpu)

    def _operator(self, unit: Unit, cpu: float) -> float:
        us = self.overheads.us
        name = unit.name
        parts = segments(unit)
        collective = any(self.collective[row] for row in unit.activities)
        count = len(parts.launches)
        launched = 0
        finer = finer_name(name, count)
        cpu += us("t2", name, finer) if count else us("alone", name)
        cpu += self.event_us * parts.first[1]
        for action in unit.actions:
            if not action.launches:
                cpu = self._wait(unit.thread, action, cpu, collective)
                continue
            if launched:
                cpu += us("t5", name, finer_name(name, count, launched - 1))
                cpu += self.event_us * parts.between[launched - 1][1]
            launched += 1
            cpu = self._launch(unit.thread, action, cpu)
        return cpu + (us("t3", name, finer) + self.event_us * parts.last[1] if count else 0.0)

    def _launch(self, thread: int, action: Action, cpu: float) -> float:
        """The host after a launch call; its activities run on their streams."""
        call_us = self.overheads.us("t4", action.name)
        ready = cpu + call_us
        end = 0.0
        for row in action.activities:
            stream = self.stream[row]
            time_us = float(self.time_us[row])
            if self.collective[row]:
                # In order with the collective before it, whose results compute may use from here on.
                self._join_collectives()
                compute = max(self.device_us.values(), default=0.0)
                start = max(self.collective_us + self.gap_us, compute + self.gap_us, ready)
                self.reached_us.append(start)
                if len(self.reached_us) <= len(self.latest_us):
                    start = max(start, self.latest_us[len(self.reached_us) - 1])
                end = self.collective_us = start + time_us + self.tail_us
            else:
                start = max(self.device_us.get(stream, -self.gap_us) + self.gap_us, ready)
                end = self.device_us[stream] = start + time_us + self.tail_us
            self._last_stream[thread] = stream
        if action.activities:
            ready = self._queue(self.stream[action.activities[-1]], ready, end)
        return max(ready, end) if action.joins else ready

    def _queue(self, stream: int, cpu: float, end: float) -> float:
        """The host waits for the oldest of `QUEUE` launches that have not ended."""
        queue = self._queued.setdefault(stream, deque())
        queue.append(end)
        return max(cpu, queue.popleft()) if len(queue) > QUEUE else cpu

    def _wait(self, thread: int, action: Action, cpu: float, collective: bool) -> float:
        """The host after a synchronising call; a wait between streams moves no host clock."""
        if action.kind == events.WAIT_CALL:
            # Where an operator issues a collective, the collectives' stream waits for compute, not compute for it.
            if not collective:
                self._join_collectives()
                latest = max(self.device_us.values(), default=0.0)
                self.device_us = dict.fromkeys(self.device_us, latest)
            return cpu
        stream = self._last_stream.get(thread)
        if stream is None or any(word in action.name for word in ("Device", "Ctx", "Event")):
            return max(cpu, self.device_now_us)
        return max(cpu, self.device_us.get(stream, self.collective_us))

    def _join_collectives(self) -> None:
        """Compute goes on when the collectives have ended."""
        for stream, clock in self.device_us.items():
            self.device_us[stream] = max(clock, self.collective_us)


def clocks_for(
    trace: Trace, overheads: Overheads, time_us: NDArray[np.float64], *, traced: bool = False
) -> StreamClocks:
    """Clocks at 0 for ``trace``'s activities with these times; ``traced``: the host pays for the profiler."""
    stream = trace.activities.stream.tolist()
    is_collective = collectives(trace).tolist()
    return StreamClocks(overheads, time_us, stream, is_collective, EVENT_US if traced else 0.0)


SOURCES = ("measured", "surrogate")


@dataclass(frozen=True, slots=True)
class IterationTime:
    """One iteration, times in µs.

    ``predicted_us`` runs from the host's start of the iteration to its end, as ``measured_us`` does, behind the
    iterations before it and with the profiler's own cost; ``unprofiled_us`` without that cost; ``alone_us`` is
    max(host, device) with both clocks at 0 at its start and without that cost, the published formula. ``host_us`` is
    the host's part of ``alone_us``, ``device_us`` the sum of the activities' times. ``error_pct`` compares predicted
    with measured, None where the GPU or the batch is another.

    ``coverage`` is the share of device time that was not lacking,
    ``host_coverage`` the share of host work with overheads of its own name. ``untraced_us`` is what the T1 rule leaves
    out: gaps between siblings above 200 µs. ``input_us`` is input loading, as measured, in proportion to the batch.
    """

    index: int
    label: str
    measured_us: float
    predicted_us: float
    error_pct: float | None
    unprofiled_us: float
    alone_us: float
    host_us: float
    device_us: float
    measured_device_us: float
    input_us: float
    untraced_us: float
    coverage: float
    host_coverage: float


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """An outermost operator, means per iteration: ``host_us`` as modelled, times of its activities, their sources."""

    operator: str
    calls: float
    launches: float
    host_us: float
    measured_us: float
    predicted_us: float
    source: str


@dataclass(frozen=True, slots=True, repr=False)
class IterationTimes(TableResult):
    """Iterations of one trace; ``gpu`` and ``batch`` as predicted for (None where unknown), ``times`` their source."""

    trace: str
    gpu: str | None
    batch: int | None
    times: str
    iterations: tuple[IterationTime, ...]
    operators: tuple[OperatorRow, ...]
    unknown: tuple[kernel_times.UnpredictedOperator, ...]
    overheads: Overheads
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.iterations)

    def __iter__(self) -> Iterator[IterationTime]:
        return iter(self.iterations)

    @property
    def coverage(self) -> float:
        """The share of device time that was not lacking, over all iterations."""
        whole = sum(part.device_us for part in self)
        if not whole:
            return min(part.coverage for part in self)
        return sum(part.device_us * part.coverage for part in self) / whole

    @property
    def error_geomean_pct(self) -> float | None:
        """Geometric mean of the absolute errors in %, each at least 0.01 %; None where nothing is comparable."""
        errors = [abs(part.error_pct) for part in self if part.error_pct is not None]
        return exp(sum(log(max(error, 0.01)) for error in errors) / len(errors)) if errors else None

    def table(self) -> Table:
        """The iterations as titled rows, and what was kept as measured."""
        where = ", ".join([self.gpu or "unknown GPU", *([f"batch {self.batch}"] if self.batch else [])])
        lines = [
            f"kept as measured: {entry.operator}, {entry.count} activities, {entry.time_us:.1f} µs in the trace: lacks"
            f" {entry.lacks}"
            for entry in self.unknown
        ]
        title = f"Iterations on {where}, {self.times} times"
        return Table([asdict(part) for part in self], title=title, notes=(*self.notes, *lines))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `overheads` by their sources alone."""
        facts = ("trace", "gpu", "batch", "times", "coverage", "error_geomean_pct")
        values = {name: getattr(self, name) for name in facts}
        rows = {"iterations": self.iterations, "operators": self.operators, "unknown": self.unknown}
        values |= {name: [asdict(row) for row in part] for name, part in rows.items()}
        return values | {"overheads": {"sources": list(self.overheads.sources)}, "notes": list(self.notes)}

    def to_frame(self) -> Any:
        """One row per iteration as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame([asdict(part) for part in self])


def iteration_times(trace: Trace | str | Path, *, iteration: int | None = None, **settings: Any) -> IterationTimes:
    """Times of the iterations of ``trace``, or of that one alone; ``settings`` are those of `walk_of`.

    Raises `InputError` like it, and for an iteration that is not there.
    """
    return walk_of(as_trace(trace), **settings).result(iteration)


def walk_of(
    trace: Trace,
    *,
    times: str | None = None,
    gpu: str | None = None,
    batch: int | None = None,
    overheads: Overheads | None = None,
    leave_one_out: bool = False,
    bundle: str | Path | Predictors | None = None,
) -> "Walk":
    """The iterations of ``trace`` from host overheads and the times of its kernels (Lin et al.), ready to be walked.

    ``times``: ``measured`` (the trace's) or ``surrogate``; by default the surrogate's where ``gpu`` or ``batch`` is
    another than the trace's. ``overheads`` come from the trace itself unless given; with ``leave_one_out`` those of an
    iteration come from the other ones. Predictors are those shipped for the GPU, convolutions by ``bundle``, or given
    in its place; collectives go by the laws of given overheads. The host stays the traced one, whatever the GPU.

    Raises `InputError` for an unknown GPU or source, a batch without shapes to rescale, measured times of another GPU
    or batch, and a trace without host work or without a device's.
    """
    if not len(trace.activities):
        raise InputError(f"{trace.source}: {NO_DEVICE}")
    work = host_work(trace)
    if not any(unit.iteration >= 0 for unit in work.units):
        raise InputError(f"{trace.source}: holds no operators or launches, so there is no iteration to walk")
    overheads_of, shown = _overheads(work, trace.source, overheads, leave_one_out)
    device = trace.streams[int(trace.activities.stream[0])].device
    here = gpu_of(trace, device)
    there = gpu_named(gpu) if gpu else here
    old = batch_size(trace)
    is_other_gpu = there is not None and (here is None or there.name != here.name) and gpu is not None
    rescaled = batch is not None and batch != old
    changed = is_other_gpu or rescaled
    if changed and (why := invalid_reason(trace)):
        raise InputError(why)
    check_choice("times", times or "measured", SOURCES)
    if times == "measured" and changed:
        raise InputError("measured times are of the trace's own GPU and batch; use the surrogate's")
    source = times or ("surrogate" if changed else "measured")
    if rescaled and old is None:
        raise InputError(
            f"{trace.source}: no convolution or linear operator has a shape, so the batch size is not known;"
            " record shapes, or leave --batch out"
        )
    device_times = kernel_times.measured_times(trace)
    if source == "surrogate":
        given = isinstance(bundle, Predictors)
        by = bundle if given else predictors_for(trace, there, bundle)
        base = predictors_for(trace, here, bundle) if changed and here and not given else None
        new = (batch if rescaled else old) or 1
        device_times = kernel_times.predicted_times(trace, by, old or 1, new, shown.collective_models, base)
    named = there.name if there else trace.device_name(device) or None
    facts = {"gpu": named, "batch": batch if batch is not None else old, "times": source, "overheads": shown}
    loading = batch / old if batch and old else 1.0
    return Walk(trace, work, device_times, overheads_of, not changed, facts, loading=loading)


def _overheads(
    work: HostWork, source: str, overheads: Overheads | None, leave_one_out: bool
) -> tuple[list[Overheads], Overheads]:
    """Those of every iteration, and those to keep."""
    if overheads is not None and leave_one_out:
        raise InputError("overheads were given, so none come from other iterations; leave one out")
    own_overheads = measure_overheads(work, source) if overheads is None else overheads
    count = len(work.iterations)
    if not leave_one_out:
        return [own_overheads] * count, own_overheads
    if count < 2:
        raise InputError("the trace has one iteration, so none is left to take the overheads from")
    others = [
        measure_overheads(work, source, [other for other in range(count) if other != position])
        for position in range(count)
    ]
    return others, own_overheads


def predictors_for(trace: Trace, device: Gpu | None, bundle: str | Path | None) -> Predictors:
    """The predictors of a GPU; those of convolutions only where the trace has some with shapes.

    Where the chip was measured on another board, with memory as fast, that one stands for it.
    """
    if device is None:
        raise InputError("the trace does not name a known GPU; say which one with --gpu")
    measured = {name for part in shipped() for name in part.gpus}
    alike = [board for board in gpus() if board.name in measured and _chip(board) == _chip(device)]
    device = device if device.name in measured or not alike else alike[0]
    if any("convolution" in name for name in trace.names) and (trace.ranges.shapes >= 0).any():
        return load_predictors(device.name, bundle)
    return Predictors(device, None, load_operators(device.name))


def _chip(board: Gpu) -> tuple[str, int, float, float, float]:
    """What tells a chip and its clock from others, and its bandwidth to 10 GB/s."""
    return board.architecture, board.sms, board.boost_mhz, board.fp16_tensor_tflops, round(board.dram_gbs, -1)


def _notes(walk: "Walk") -> tuple[str, ...]:
    trace, work, notes = walk.trace, walk.work, []
    if work.unattached:
        notes.append(f"{len(work.unattached):,} device activities have no launch call and are left out")
    if not walk.comparable:
        notes.append(
            "the host is the traced one, by overheads T1 to T5, and loads data in proportion to the batch; whatif"
            " replays it as recorded, so that its steps differ by the error of T1 to T5"
        )
    if walk.times.parts:
        notes.append("what could not be predicted follows kernels of its name, or copies")
    apart = np.flatnonzero(kernel_times.collectives(trace))
    if not walk.latest_us and any(walk.times.source[row] != kernel_times.MEASURED for row in apart.tolist()):
        notes.append("predicted collectives hold no wait for other ranks; give the traces of all ranks together")
    return tuple(notes)


@dataclass(frozen=True, slots=True)
class Walk:
    """Iterations of a trace through both clocks; ``comparable`` where they are those that were measured.

    ``facts`` are fields of the result, ``loading`` is the new batch over the traced one. ``latest_us``: when the last
    rank reaches each collective, with the profiler's cost (True) and without it, of a trace that is one of several
    ranks.
    """

    trace: Trace
    work: HostWork
    times: DeviceTimes
    overheads_of: list[Overheads]
    comparable: bool
    facts: Mapping[str, Any]
    latest_us: Mapping[bool, Sequence[float]] = field(default_factory=dict)
    loading: float = 1.0

    def result(self, iteration: int | None = None) -> IterationTimes:
        """All iterations, or that one. Raises `InputError` for one that is not there."""
        count = len(self.work.iterations)
        if iteration is not None and not 0 <= iteration < count:
            raise InputError(f"iteration {iteration} is not in the trace; it has {count}, from 0 on")
        chosen = list(range(count)) if iteration is None else [iteration]
        return IterationTimes(
            trace=self.trace.source,
            iterations=self.rows(chosen),
            operators=self.operators(chosen),
            unknown=kernel_times.unpredicted(self.trace, self.times, self.activities(chosen)),
            notes=_notes(self),
            **self.facts,
        )

    def _units(self, chosen: Sequence[int]) -> list[Unit]:
        return [unit for position in chosen for unit in self.work.by_iteration[position]]

    def activities(self, chosen: Sequence[int]) -> frozenset[int]:
        """Rows of the device activities that the iterations of ``chosen`` launch."""
        return frozenset(row for unit in self._units(chosen) for row in unit.activities)

    def rows(self, chosen: Sequence[int]) -> tuple[IterationTime, ...]:
        """The iterations of ``chosen`` (positions), walked behind those before them."""
        traced, plain = self.in_sequence(traced=True)[0], self.in_sequence(traced=False)[0]
        return tuple(self._row(i, traced[i], plain[i]) for i in chosen)

    def in_sequence(self, *, traced: bool) -> tuple[list[float], StreamClocks]:
        """Host time of every iteration; in a trace that is one iteration, until the device ends too. The clocks."""
        clocks = clocks_for(self.trace, self.overheads_of[0], self.times.time_us, traced=traced)
        clocks.latest_us = self.latest_us.get(traced, ())
        clocks.loading = self.loading
        times, start = [], 0.0
        for position, iteration in enumerate(self.work.iterations):
            clocks.overheads = self.overheads_of[position]
            clocks.run(self._units([position]))
            end = clocks.now_us if iteration.by == "whole" else clocks.host_now_us
            times.append(end - start)
            start = end
        return times, clocks

    def _row(self, position: int, predicted_us: float, unprofiled_us: float) -> IterationTime:
        iteration, overheads = self.work.iterations[position], self.overheads_of[position]
        units = self._units([position])
        alone = clocks_for(self.trace, overheads, self.times.time_us)
        alone.loading = self.loading
        alone.run(units)
        rows = [row for unit in units for row in unit.activities]
        device = self.times.time_us[rows]
        busy = float(device.sum())
        # Where nothing is lacking, measured times are what was asked for; else they are what the surrogate left.
        unpredicted = [bool(self.times.reasons) and self.times.source[row] == kernel_times.MEASURED for row in rows]
        known = sum(unit.is_input or overheads.has_samples(unit.name) for unit in units)
        measured_us, device_us = iteration.time_us, self.trace.activities.time_us
        known_us = float(device[~np.array(unpredicted, np.bool_)].sum())
        return IterationTime(
            index=iteration.index,
            label=iteration.label,
            measured_us=measured_us,
            predicted_us=predicted_us,
            error_pct=100 * (predicted_us / measured_us - 1) if self.comparable and measured_us else None,
            unprofiled_us=unprofiled_us,
            alone_us=alone.now_us,
            host_us=alone.host_now_us,
            device_us=busy,
            measured_device_us=float(device_us[rows].sum()),
            input_us=self.loading * sum(unit.time_us for unit in units if unit.is_input),
            untraced_us=_untraced_us(units),
            coverage=known_us / busy if busy else 1.0,
            host_coverage=known / len(units) if units else 1.0,
        )

    def operators(self, chosen: Sequence[int]) -> tuple[OperatorRow, ...]:
        """Means over the iterations of ``chosen``, the most device time first, then the most host time."""
        # Per operator: calls, launches, host time, measured and predicted device time.
        sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(5))
        sources: dict[str, dict[str, None]] = defaultdict(dict)
        measured, predicted = self.trace.activities.time_us, self.times.time_us
        # A device that takes no time leaves the host's own T1 to T5.
        idle = clocks_for(self.trace, self.overheads_of[0], np.zeros_like(predicted))
        for unit in self._units(chosen):
            rows = unit.activities
            host = idle.alone_us(unit, self.overheads_of[unit.iteration])
            sums[unit.name] += [1, len(unit.launches), host, measured[rows].sum(), predicted[rows].sum()]
            sources[unit.name].update(dict.fromkeys(self.times.source[row] for row in rows))
        table = []
        for name, values in sums.items():
            calls, launches, host, before, after = (values / len(chosen)).tolist()
            listed = ", ".join(sorted(sources[name]))
            table.append(OperatorRow(name, calls, launches, host, before, after, listed))
        return tuple(sorted(table, key=lambda row: (-row.predicted_us, -row.host_us, row.operator)))


def _untraced_us(units: Sequence[Unit]) -> float:
    last: dict[int, Unit] = {}
    total = 0
    for unit in units:
        before = last.get(unit.thread)
        others = max((other.end_ns for other in last.values()), default=0)
        if before is not None and before.parent == unit.parent:
            gap = unit.start_ns - max(before.end_ns, others)  # another thread's work is no gap
            total += gap if gap > NEIGHBOUR_GAP_US[1] * 1e3 else 0
        last[unit.thread] = unit
    return total / 1e3
