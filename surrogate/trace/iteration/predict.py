"""From a trace to iteration times: the walk of its iterations through both clocks, and the result."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from surrogate.features.errors import InputError
from surrogate.features.gpu import Gpu
from surrogate.features.gpu import gpu as gpu_named
from surrogate.trace.events.tables import Trace
from surrogate.trace.iteration.clocks import clocks_for
from surrogate.trace.iteration.overheads import SIBLING_GAP_US, Overheads, measure_overheads, place
from surrogate.trace.iteration.times import (
    MEASURED,
    DeviceTimes,
    Lack,
    Surrogates,
    lacking,
    measured_times,
    predicted_times,
)
from surrogate.trace.iteration.units import HostWork, Unit, host_work
from surrogate.trace.profiling import gpu_of
from surrogate.trace.result import ResultTable, Row


@dataclass(frozen=True, slots=True)
class IterationTime:
    """One iteration, times in µs.

    ``predicted_us`` runs from the host's start of the iteration to its end, as ``measured_us`` does, behind the
    iterations before it and with the profiler's own cost; ``unprofiled_us`` without that cost; ``alone_us`` is
    max(host, device) with both clocks at 0 at its start and without that cost, the published formula. ``host_us`` is
    the host's part of ``alone_us``, ``device_us`` the sum of the activities' times. ``error_pct`` compares predicted
    with measured, None where the GPU or the batch is another.

    ``coverage`` is the share of device time that was not lacking (0 where the trace holds no device activity),
    ``host_coverage`` the share of host work with overheads of its own name. ``untraced_us`` is what the T1 rule leaves
    out: gaps between siblings above 200 µs. ``input_us`` is input loading, as measured.
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
class IterationTimes:
    """Iterations of one trace; ``gpu`` and ``batch`` as predicted for (None where unknown), ``times`` their source."""

    trace: str
    gpu: str | None
    batch: int | None
    times: str
    iterations: tuple[IterationTime, ...]
    operators: tuple[OperatorRow, ...]
    unknown: tuple[Lack, ...]
    overheads: Overheads
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.iterations)

    def __iter__(self) -> Iterator[IterationTime]:
        return iter(self.iterations)

    @property
    def coverage(self) -> float:
        """The share of device time that was not lacking, over all iterations."""
        whole = sum(one.device_us for one in self.iterations)
        return (
            sum(one.device_us * one.coverage for one in self.iterations) / whole
            if whole
            else min(one.coverage for one in self.iterations)
        )

    @property
    def error_geomean_pct(self) -> float | None:
        """Geometric mean of the absolute errors in %, each at least 0.01 %; None where nothing is comparable."""
        errors = [abs(one.error_pct) for one in self.iterations if one.error_pct is not None]
        return exp(sum(log(max(one, 0.01)) for one in errors) / len(errors)) if errors else None

    @property
    def table(self) -> ResultTable:
        """The iterations as titled rows."""
        where = ", ".join([self.gpu or "unknown GPU", *([f"batch {self.batch}"] if self.batch else [])])
        return ResultTable(f"Iterations on {where}, {self.times} times", self._rows(), self._notes())

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `overheads` by their sources alone."""
        return {
            "trace": self.trace,
            "gpu": self.gpu,
            "batch": self.batch,
            "times": self.times,
            "coverage": self.coverage,
            "error_geomean_pct": self.error_geomean_pct,
            "iterations": list(self._rows()),
            "operators": [asdict(one) for one in self.operators],
            "unknown": [asdict(one) for one in self.unknown],
            "overheads": {"sources": list(self.overheads.sources)},
            "notes": list(self.notes),
        }

    def to_frame(self) -> Any:
        """One row per iteration as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(list(self._rows()), columns=[field.name for field in fields(IterationTime)])

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()

    def _rows(self) -> tuple[Row, ...]:
        return tuple(asdict(one) for one in self.iterations)

    def _notes(self) -> tuple[str, ...]:
        lacking = [
            f"kept as measured: {one.operator}, {one.count} activities, {one.time_us:.1f} µs in the trace: lacks"
            f" {one.lacks}"
            for one in self.unknown
        ]
        return (*self.notes, *lacking)


def host_us(unit: Unit, overheads: Overheads) -> float:
    """T1 to T5 of one unit in µs, without waiting for the device; an input wait takes as long as it took."""
    us, name = overheads.us, unit.name
    if unit.is_input:
        return us("t1", name) + (unit.end_ns - unit.start_ns) / 1e3
    launches = unit.launches
    if not launches:
        return us("t1", name) + us("alone", name)
    count = len(launches)
    fine = place(name, count)
    between = sum(us("t5", name, place(name, count, at)) for at in range(count - 1))
    calls = sum(us("t4", one.name) for one in launches)
    return us("t1", name) + us("t2", name, fine) + calls + between + us("t3", name, fine)


def operator_rows(
    trace: Trace,
    units: Sequence[Unit],
    times: DeviceTimes,
    overheads_of: Callable[[int], Overheads],
    iterations: int,
) -> tuple[OperatorRow, ...]:
    """Means over ``iterations``, the most device time first, then the most host time."""
    sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(5))
    sources: dict[str, dict[str, None]] = defaultdict(dict)
    measured, predicted = trace.activities.time_us, times.time_us
    for unit in units:
        rows = [row for one in unit.actions for row in one.activities]
        host = host_us(unit, overheads_of(unit.iteration))
        sums[unit.name] += [1, len(unit.launches), host, measured[rows].sum(), predicted[rows].sum()]
        sources[unit.name].update(dict.fromkeys(times.source[row] for row in rows))
    found = []
    for name, values in sums.items():
        calls, launches, host, before, after = (float(one) for one in values / iterations)
        found.append(
            OperatorRow(name, calls, launches, host, before, after, ", ".join(sorted(sources[name])))
        )
    return tuple(sorted(found, key=lambda row: (-row.predicted_us, -row.host_us, row.operator)))


OverheadsOf = Callable[[int], Overheads]
"""Position of an iteration → its overheads."""


@dataclass(frozen=True, slots=True)
class Walk:
    """Iterations of a trace through both clocks; ``comparable`` where they are those that were measured."""

    trace: Trace
    work: HostWork
    times: DeviceTimes
    overheads_of: OverheadsOf
    comparable: bool

    def activities(self, chosen: Sequence[int]) -> frozenset[int]:
        """Rows of the device activities that the iterations of ``chosen`` launch."""
        wanted = set(chosen)
        return frozenset(
            row
            for unit in self.work.units
            if unit.iteration in wanted
            for action in unit.actions
            for row in action.activities
        )

    def rows(self, chosen: Sequence[int]) -> tuple[IterationTime, ...]:
        """The iterations of ``chosen`` (positions), walked behind those before them."""
        by_iteration: dict[int, list[Unit]] = defaultdict(list)
        for unit in self.work.units:
            by_iteration[unit.iteration].append(unit)
        traced = self._in_sequence(by_iteration, traced=True)
        plain = self._in_sequence(by_iteration, traced=False)
        return tuple(self._row(at, by_iteration[at], traced[at], plain[at]) for at in chosen)

    def _in_sequence(self, units: dict[int, list[Unit]], *, traced: bool) -> list[float]:
        """Host time of every iteration; in a trace that is one iteration, until the device ends too."""
        clocks = clocks_for(self.trace, self.overheads_of(0), self.times.time_us, traced=traced)
        found, start = [], 0.0
        for at, one in enumerate(self.work.iterations):
            clocks.overheads = self.overheads_of(at)
            clocks.run(units[at])
            end = clocks.now_us if one.by == "whole" else clocks.host_now_us
            found.append(end - start)
            start = end
        return found

    def _row(self, at: int, units: list[Unit], predicted_us: float, unprofiled_us: float) -> IterationTime:
        one, overheads = self.work.iterations[at], self.overheads_of(at)
        alone = clocks_for(self.trace, overheads, self.times.time_us)
        alone.run(units)
        rows = [row for unit in units for action in unit.actions for row in action.activities]
        device, kept = self.times.time_us[rows], self._kept(rows)
        busy = float(device.sum())
        known = sum(unit.is_input or overheads.knows(unit.name) for unit in units)
        return IterationTime(
            index=one.index,
            label=one.label,
            measured_us=one.time_us,
            predicted_us=predicted_us,
            error_pct=100 * (predicted_us / one.time_us - 1) if self.comparable and one.time_us else None,
            unprofiled_us=unprofiled_us,
            alone_us=alone.now_us,
            host_us=alone.host_now_us,
            device_us=busy,
            measured_device_us=float(self.trace.activities.time_us[rows].sum()),
            input_us=sum(unit.end_ns - unit.start_ns for unit in units if unit.is_input) / 1e3,
            untraced_us=_untraced_us(units),
            coverage=float(device[~kept].sum() / busy) if busy else float(len(self.trace.activities) > 0),
            host_coverage=known / len(units) if units else 1.0,
        )

    def _kept(self, rows: Sequence[int]) -> np.ndarray:
        """Which activities the surrogate left as measured."""
        if not self.times.reasons:
            return np.zeros(len(rows), np.bool_)
        return np.array([self.times.source[row] == MEASURED for row in rows], np.bool_)


def _untraced_us(units: Sequence[Unit]) -> float:
    last: dict[int, Unit] = {}
    total = 0
    for unit in units:
        before = last.get(unit.thread)
        others = max((one.end_ns for one in last.values()), default=0)
        if before is not None and before.parent == unit.parent:
            gap = unit.start_ns - max(before.end_ns, others)  # another thread's work is no gap
            total += gap if gap > SIBLING_GAP_US[1] * 1e3 else 0
        last[unit.thread] = unit
    return total / 1e3


SOURCES = ("measured", "surrogate")
_BATCHED = ("aten::conv2d", "aten::convolution", "aten::linear", "aten::addmm", "aten::cudnn_convolution")


def iteration_times(
    trace: Trace,
    *,
    times: str | None = None,
    gpu: str | None = None,
    batch: int | None = None,
    overheads: Overheads | None = None,
    leave_one_out: bool = False,
    iteration: int | None = None,
    surrogates: Surrogates | None = None,
    bundle: str | Path | None = None,
) -> IterationTimes:
    """Times of the iterations of ``trace`` from host overheads and the times of its kernels (Lin et al.).

    ``times``: ``measured`` (the trace's) or ``surrogate``; by default the surrogate's where ``gpu`` or ``batch`` is
    another than the trace's. ``overheads`` come from the trace itself unless given; with ``leave_one_out`` those of an
    iteration come from the other ones. ``iteration`` reports that one alone. ``surrogates`` (else those shipped for the
    GPU, convolutions by ``bundle``) predict. The host stays the traced one, whatever the GPU.

    Raises `InputError` for an unknown GPU, source or iteration, a batch without shapes to rescale, measured times of
    another GPU or batch, and a trace without host work.
    """
    work = host_work(trace)
    if not any(unit.iteration >= 0 for unit in work.units):
        raise InputError(f"{trace.source}: holds no operators or launches, so there is no iteration to walk")
    chosen = _chosen(work, iteration)
    overheads_of, shown = _overheads(work, trace.source, overheads, leave_one_out)
    device = trace.streams[int(trace.activities.stream[0])].device if len(trace.activities) else 0
    here = gpu_of(trace, device)
    there = gpu_named(gpu) if gpu else here
    old = batch_of(trace)
    elsewhere = there is not None and (here is None or there.name != here.name) and gpu is not None
    rescaled = batch is not None and batch != old
    source = _source(times, elsewhere or rescaled)
    if rescaled and old is None:
        raise InputError(
            f"{trace.source}: no convolution or linear operator has a shape, so the batch size is not known;"
            " record shapes, or leave --batch out"
        )
    found = measured_times(trace)
    if source == "surrogate":
        by = surrogates or load_surrogates(there, bundle, needs_convs=_has_convolutions(trace))
        found = predicted_times(trace, by, old or 1, (batch if rescaled else old) or 1)
    walk = Walk(trace, work, found, overheads_of, comparable=not (elsewhere or rescaled))
    units = [unit for unit in work.units if unit.iteration in chosen]
    return IterationTimes(
        trace=trace.source,
        gpu=there.name if there else trace.device_name(device) or None,
        batch=batch if batch is not None else old,
        times=source,
        iterations=walk.rows(chosen),
        operators=operator_rows(trace, units, found, overheads_of, len(chosen)),
        unknown=lacking(trace, found, walk.activities(chosen)),
        overheads=shown,
        notes=_notes(trace, work, elsewhere or rescaled),
    )


def load_surrogates(
    device: Gpu | None, bundle: str | Path | None = None, *, needs_convs: bool = True
) -> Surrogates:
    """The predictors of a GPU. Raises `InputError` without a GPU, or where no bundle serves it and ``needs_convs``."""
    if device is None:
        raise InputError("the trace does not name a known GPU; say which one with --gpu")
    from surrogate.operators import OperatorPredictor
    from surrogate.prediction.predictor import load

    convs = None
    if needs_convs:
        convs = load(device.name) if bundle is None else load(Path(bundle), gpu=device.name)
    return Surrogates(device, convs, OperatorPredictor.load(device))


def batch_of(trace: Trace) -> int | None:
    """The leading size of the first convolution's or linear layer's input; None where no shape tells."""
    ranges = trace.ranges
    wanted = np.array([name in _BATCHED for name in trace.names] or [False])[ranges.name] & (
        ranges.shapes >= 0
    )
    for row in np.flatnonzero(wanted).tolist():
        shapes = trace.shapes_of(row) or ()
        first = shapes[1 if trace.name_of(ranges, row) == "aten::addmm" else 0] if len(shapes) > 1 else ()
        if isinstance(first, tuple) and len(first) >= 2 and isinstance(first[0], int) and first[0] > 0:
            return first[0]
    return None


def _chosen(work: HostWork, iteration: int | None) -> list[int]:
    every = list(range(len(work.iterations)))
    if iteration is None:
        return every
    found = [at for at in every if work.iterations[at].index == iteration]
    if not found:
        raise InputError(f"iteration {iteration} is not in the trace; it has {len(every)}, from 0 on")
    return found


def _overheads(
    work: HostWork, source: str, given: Overheads | None, leave_one_out: bool
) -> tuple[OverheadsOf, Overheads]:
    """Iteration → its overheads, and those to keep."""
    if given is not None:
        if leave_one_out:
            raise InputError(
                "overheads were given, so none can come from the other iterations; leave out one of the two"
            )
        return (lambda at: given), given
    every = measure_overheads(work, source)
    if not leave_one_out:
        return (lambda at: every), every
    count = len(work.iterations)
    if count < 2:
        raise InputError("the trace has one iteration, so none is left to take the overheads from")
    others = [
        measure_overheads(work, source, [other for other in range(count) if other != at])
        for at in range(count)
    ]
    return (lambda at: others[at] if at >= 0 else every), every


def _source(times: str | None, elsewhere: bool) -> str:
    if times is not None and times not in SOURCES:
        raise InputError(f"times {times!r} is unknown; known: {', '.join(SOURCES)}")
    if times == "measured" and elsewhere:
        raise InputError(
            "measured times are those of the trace's GPU and batch; use the surrogate's for another"
        )
    return times or ("surrogate" if elsewhere else "measured")


def _has_convolutions(trace: Trace) -> bool:
    return any("convolution" in name and "::" in name for name in trace.names) and bool(
        (trace.ranges.shapes >= 0).any()
    )


def _notes(trace: Trace, work: HostWork, elsewhere: bool) -> tuple[str, ...]:
    notes = []
    if not len(trace.activities):
        notes.append("the trace holds no device activity: the host's clock alone")
    if work.unattached:
        notes.append(f"{len(work.unattached):,} device activities have no launch call and are left out")
    if elsewhere:
        notes.append("host overheads and input loading are those of the traced run")
    return tuple(notes)
