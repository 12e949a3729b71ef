"""Predict iteration times from a trace: overheads, device times, and the iterations on a host and a device clock.

Lin et al. (HiPC 2022) divide the host time of an operator into overheads:

- T1: the gap between two neighbouring operators;
- T2: from the start of the operator to its first launch call;
- T3: from the end of its last launch call to the end of the operator;
- T4: a launch call;
- T5: the gap between two launch calls of the operator. In the paper, T5 is also the time of an operator without a
  launch call; here that time is the overhead ``alone``.

`surrogate.trace.iteration.overheads` measures them.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from surrogate.features.errors import InputError, check_choice, read_toml
from surrogate.features.gpu import Gpu, gpu as gpu_by_name, gpus
from surrogate.network.predict import Predictors, load_predictors
from surrogate.prediction.shipped import load_operators, shipped
from surrogate.report.tables import Table, TableResult
from surrogate.trace import events
from surrogate.trace.calls import batch_size
from surrogate.trace.events.read import as_trace
from surrogate.trace.events.tables import Trace, grouped
from surrogate.trace.graph.device import earlier_work
from surrogate.trace.iteration import overheads as host_overheads, times as kernel_times
from surrogate.trace.iteration.overheads import Action, HostStep, HostWork, Overheads, segments
from surrogate.trace.iteration.times import DeviceTimes, collectives, pageable_copies
from surrogate.trace.profiling import NO_DEVICE, counted, gpu_of, invalid_reason

KERNEL_GAP_US = 1.0
"""The gap between two activities of a stream, in µs. Source: Lin et al. (HiPC 2022)."""
KERNEL_TAIL_US = 5.0
"""The time in µs that is added to every kernel. Source: Lin et al. (HiPC 2022)."""
MAX_REPLAY_ERROR = 0.1
"""Maximum error of the replay of a trace's own times, as a share of the measured times, without a note."""
QUEUE = 1024
"""The number of launches that CUDA queues on a stream before the next call waits."""
_TEXTS = read_toml(__file__)


@dataclass(slots=True)
class StreamClocks:
    """The clocks of a replay in µs since its start: one per host thread, one per stream, one for collectives.

    Attributes
    ----------
    overheads
        Host overheads T1 to T5.
    time_us, stream, collective
        For every device activity its time, its stream, and whether it is a collective.
    event_us
        The profiler's cost per traced event, paid by the host; 0 without profiling.
    loading
        The factor on the recorded time of loading data.
    keeps_gaps
        Whether gaps above 200 µs between neighbouring operators count as measured.
    host_us, device_us, collective_us
        The clocks of the threads, of the streams, and of the collectives.
    last_arrival_us
        The times at which the last of several ranks reaches each collective.
    arrival_us
        The times at which this rank reaches each collective, in order.
    """

    overheads: Overheads
    time_us: NDArray[np.float64]
    stream: Sequence[int]
    collective: Sequence[bool]
    event_us: float = 0.0
    loading: float = 1.0
    keeps_gaps: bool = False
    gap_us: float = KERNEL_GAP_US
    tail_us: float = KERNEL_TAIL_US
    host_us: dict[int, float] = field(default_factory=dict)
    device_us: dict[int, float] = field(default_factory=dict)
    collective_us: float = 0.0
    last_arrival_us: Sequence[float] = ()
    arrival_us: list[float] = field(default_factory=list)
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
        """The latest clock of host and device."""
        return max(self.host_now_us, self.device_now_us)

    def run(self, steps: Iterable[HostStep]) -> None:
        """Advance the clocks by ``steps``, in their order."""
        for step in steps:
            self.advance(step)

    def advance(self, step: HostStep) -> None:
        """Advance the clocks by one step.

        The host's clock grows by T1 + T2, by T4 for each launch with T5 between launches, and by T3. A step without a
        launch adds T1 and its own time.
        """
        thread = step.thread
        previous_thread = host_overheads.handover_thread(step, self._ends_ns)
        cpu = self.host_us.get(thread, 0.0)
        if previous_thread is not None:
            cpu = max(cpu, self.host_us[previous_thread]) + self.overheads.us("handover", "")
        else:
            is_neighbour = self._parents.get(thread, step.parent) == step.parent
            gap_us = self.overheads.us("t1" if is_neighbour else "edge", step.name) + self.event_us * is_neighbour
            # A gap that is too long for T1 is other work of the program, and keeps its time.
            cpu += (self.keeps_gaps and step.idle_us) or gap_us
        self._parents[thread] = step.parent
        self._ends_ns[thread] = max(self._ends_ns.get(thread, -1), step.end_ns)
        if step.is_input:
            # The time of loading data is an input of the model, like the kernels' times.
            self.host_us[thread] = cpu + self.loading * step.time_us
        else:
            self.host_us[thread] = self._operator(step, cpu)

    def _operator(self, step: HostStep, cpu: float) -> float:
        us, name, parts = self.overheads.us, step.name, segments(step)
        collective = any(self.collective[row] for row in step.activities)
        count, launched = len(parts.launches), 0
        finer = host_overheads.finer_name(name, count)
        cpu += us("t2", name, finer) if count else us("alone", name)
        cpu += self.event_us * parts.first[1]
        for action in step.actions:
            if not action.launches:
                cpu = self._wait(step.thread, action, cpu, collective)
                continue
            if launched:
                cpu += us("t5", name, host_overheads.finer_name(name, count, launched - 1))
                cpu += self.event_us * parts.between[launched - 1][1]
            launched += 1
            cpu = self._launch(step.thread, action, cpu)
        return cpu + (us("t3", name, finer) + self.event_us * parts.last[1] if count else 0.0)

    def _launch(self, thread: int, action: Action, cpu: float) -> float:
        """Return the host's clock after a launch call, and run the call's activities on their streams."""
        ready = cpu + self.overheads.us("t4", action.name)
        end = 0.0
        for row in action.activities:
            stream, time_us = self.stream[row], float(self.time_us[row])
            if self.collective[row]:
                # Collectives run in order. From here on, compute may use the results of the one before.
                self._join_collectives()
                start = max(self.device_now_us + self.gap_us, ready)
                self.arrival_us.append(start)
                if len(self.arrival_us) <= len(self.last_arrival_us):
                    start = max(start, self.last_arrival_us[len(self.arrival_us) - 1])
                end = self.collective_us = start + time_us + self.tail_us
            else:
                start = max(self.device_us.get(stream, -self.gap_us) + self.gap_us, ready)
                end = self.device_us[stream] = start + time_us + self.tail_us
            self._last_stream[thread] = stream
        if action.activities:
            ready = self._queue(self.stream[action.activities[-1]], ready, end)
        return max(ready, end) if action.host_waits else ready

    def _queue(self, stream: int, cpu: float, end: float) -> float:
        """Return the host's clock after it has waited for the oldest of `QUEUE` unfinished launches."""
        queue = self._queued.setdefault(stream, deque())
        queue.append(end)
        return max(cpu, queue.popleft()) if len(queue) > QUEUE else cpu

    def _wait(self, thread: int, action: Action, cpu: float, collective: bool) -> float:
        """Return the host's clock after a synchronising call. A wait between streams changes no host clock."""
        if action.kind == events.WAIT_CALL:
            # If an operator issues a collective, the collectives' stream waits for compute, not the reverse.
            if not collective:
                self._join_collectives()
                self.device_us = dict.fromkeys(self.device_us, max(self.device_us.values(), default=0.0))
            return cpu
        stream = self._last_stream.get(thread)
        if stream is None or any(word in action.name for word in ("Device", "Ctx", "Event")):
            return max(cpu, self.device_now_us)
        return max(cpu, self.device_us.get(stream, self.collective_us))

    def _join_collectives(self) -> None:
        """Let compute continue when the collectives have ended."""
        for stream, clock in self.device_us.items():
            self.device_us[stream] = max(clock, self.collective_us)


SOURCES = ("measured", "surrogate")


@dataclass(frozen=True, slots=True)
class IterationTime:
    """The times of one iteration, in µs.

    Attributes
    ----------
    index, label
        The iteration's number and name in the trace.
    measured_us
        Host time from the start to the end of the iteration, as recorded.
    predicted_us
        The same as predicted, after the iterations before it, with the profiler's cost.
    error_pct
        Error of ``predicted_us`` against ``measured_us``; None if the GPU or the batch differs from the trace's.
    unprofiled_us
        ``predicted_us`` without the profiler's cost.
    alone_us
        max(host, device) with both clocks at 0 at its start and without the profiler's cost: the published formula.
    host_us
        The host's part of ``alone_us``.
    device_us, measured_device_us
        Sum of the activities' times, as used for the prediction and as recorded.
    input_us
        Time of loading input: as measured, in proportion to the batch.
    untraced_us
        Gaps above 200 µs between neighbouring operators, as measured, because T1 does not count them.
    coverage
        Predicted share of the device time; 1 if measured times were requested.
    host_coverage
        Share of host steps with overheads of their own name.
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
    """An outermost operator: host time as modelled, times of its activities and their sources; means per iteration."""

    operator: str
    calls: float
    launches: float
    host_us: float
    measured_us: float
    predicted_us: float
    source: str


@dataclass(frozen=True, slots=True, repr=False)
class IterationTimes(TableResult):
    """The iteration times of one trace.

    Attributes
    ----------
    trace
        The trace's file.
    gpu, batch
        The GPU and the batch size of the prediction; None if unknown.
    times
        Source of the kernel times: ``measured`` or ``surrogate``.
    iterations, operators
        A row per iteration, and one per outermost operator.
    unknown
        Operators without a predicted time.
    overheads
        Host overheads of the prediction.
    notes
        Remarks for the user.
    is_transferred
        Whether measured times were transferred to another GPU or batch.
    """

    trace: str
    gpu: str | None
    batch: int | None
    times: str
    iterations: tuple[IterationTime, ...]
    operators: tuple[OperatorRow, ...]
    unknown: tuple[kernel_times.UnpredictedOperator, ...]
    overheads: Overheads
    notes: tuple[str, ...] = ()
    is_transferred: bool = False

    def __len__(self) -> int:
        return len(self.iterations)

    def __iter__(self) -> Iterator[IterationTime]:
        return iter(self.iterations)

    @property
    def coverage(self) -> float:
        """The predicted share of the device time of all iterations; 1 if measured times were requested."""
        total_us = sum(part.device_us for part in self)
        return sum(part.device_us * part.coverage for part in self) / total_us if total_us else 1.0

    @property
    def error_geomean_pct(self) -> float | None:
        """Geometric mean of the absolute errors in %, each at least 0.01 %; None if nothing is comparable."""
        errors = [abs(part.error_pct) for part in self if part.error_pct is not None]
        return exp(sum(log(max(error, 0.01)) for error in errors) / len(errors)) if errors else None

    def table(self) -> Table:
        """Return the iterations as a titled table, with a note for every operator that was kept as measured."""
        target = ", ".join([self.gpu or "unknown GPU", *([f"batch {self.batch}"] if self.batch else [])])
        start = f"{self.unknown_title[0].lower()}{self.unknown_title[1:]}"
        unknown = [f"{start}: {_TEXTS['unknown'].format_map(asdict(entry))}" for entry in self.unknown]
        title = f"Iterations on {target}, {self.times} times"
        return Table([asdict(part) for part in self], title=title, notes=(*self.notes, *unknown))

    @property
    def unknown_title(self) -> str:
        """The title of ``unknown``: whether these operators keep their measured times or change by rates."""
        return _TEXTS["scaled" if self.is_transferred else "kept"]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; `overheads` are represented by their sources."""
        fields = ("trace", "gpu", "batch", "times", "coverage", "error_geomean_pct")
        values = {name: getattr(self, name) for name in fields}
        rows = ("iterations", "operators", "unknown")
        values |= {name: [asdict(row) for row in getattr(self, name)] for name in rows}
        return values | {"overheads": {"sources": list(self.overheads.sources)}, "notes": list(self.notes)}

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame with one row per iteration."""
        return pd.DataFrame([asdict(part) for part in self])


def iteration_times(trace: Trace | str | Path, *, iteration: int | None = None, **settings: Any) -> IterationTimes:
    """Return the times of the iterations of a trace without a warm-up (`steady_run`), or of one iteration.

    Parameters
    ----------
    trace : Trace, str or Path
        A trace, or the file or name of one.
    iteration : int, optional
        Index of the only iteration to return.
    **settings
        Options of `replay_trace`.

    Returns
    -------
    IterationTimes

    Raises
    ------
    InputError
        If `replay_trace` raises it, or if the trace has no such iteration.
    """
    part, note = (as_trace(trace), "") if iteration is not None else counted(as_trace(trace))
    result = replay_trace(part, **settings).result(iteration)
    return replace(result, notes=(*result.notes, note)) if note else result


def replay_trace(
    trace: Trace,
    *,
    times: str | None = None,
    gpu: str | None = None,
    batch: int | None = None,
    overheads: Overheads | None = None,
    leave_one_out: bool = False,
    bundle: str | Path | Predictors | None = None,
) -> "IterationReplay":
    """Return the iterations of ``trace`` with host overheads and kernel times, ready to replay (Lin et al.).

    Parameters
    ----------
    trace : Trace
        The trace.
    times : {"measured", "surrogate"}, optional
        Source of the kernel times. By default the surrogate's if ``gpu`` or ``batch`` differs from the trace's, else
        the measured ones.
    gpu : str, optional
        The target GPU; by default the GPU of the trace. The host stays the recorded one.
    batch : int, optional
        The target batch size; by default the trace's batch size.
    overheads : Overheads, optional
        Host overheads and collective models; by default measured in the trace itself.
    leave_one_out : bool
        Whether the overheads of each iteration come from the other iterations.
    bundle : path or Predictors, optional
        The bundle that predicts convolutions, or predictors that replace the shipped ones.

    Returns
    -------
    IterationReplay

    Raises
    ------
    InputError
        If the GPU or the source is unknown, the batch cannot be changed because no operator has a shape, measured times
        are requested for another GPU or batch, or the trace has no work of the host or of a device.
    """
    if not len(trace.activities):
        raise InputError(f"{trace.source}: {NO_DEVICE}")
    work = host_overheads.host_work(trace)
    if not any(step.iteration >= 0 for step in work.steps):
        raise InputError(f"{trace.source}: holds no operators or launches; record the host's operators, too")
    overheads_of, shared_overheads = _overheads(work, trace.source, overheads, leave_one_out)
    target = _target(trace, times, gpu, batch)
    device_times = DeviceTimes(trace.activities.time_us, (kernel_times.MEASURED,) * len(trace.activities))
    if target.times == "surrogate":
        trace_predictors = None
        if target.is_changed and target.trace_gpu and not isinstance(bundle, Predictors):
            trace_predictors = predictors_for(trace, target.trace_gpu, bundle)
        predictors = bundle if isinstance(bundle, Predictors) else predictors_for(trace, target.gpu, bundle)
        batches = target.trace_batch or 1, target.batch or 1
        models = shared_overheads.collective_models
        device_times = kernel_times.predicted_times(trace, predictors, *batches, models, trace_predictors)
    gpu = target.gpu.name if target.gpu else trace.device_name(_device_of(trace)) or None
    result_fields = {"gpu": gpu, "batch": target.batch, "times": target.times, "overheads": shared_overheads}
    loading = target.batch / target.trace_batch if target.batch and target.trace_batch else 1.0
    is_same = not target.is_changed
    return IterationReplay(trace, work, device_times, overheads_of, is_same, result_fields, loading=loading)


class _Target(NamedTuple):
    """The GPU and batch of the trace and of the prediction, and the source of the kernel times."""

    trace_gpu: Gpu | None
    gpu: Gpu | None
    trace_batch: int | None
    batch: int | None
    is_changed: bool
    times: str


def _device_of(trace: Trace) -> int:
    return trace.streams[int(trace.activities.stream[0])].device


def _target(trace: Trace, times: str | None, gpu: str | None, batch: int | None) -> _Target:
    """Return the target of a prediction. Raises `InputError` if an option is invalid for the trace."""
    trace_gpu = gpu_of(trace, _device_of(trace))
    target_gpu = gpu_by_name(gpu) if gpu else trace_gpu
    trace_batch = batch_size(trace)
    target_batch = trace_batch if batch is None else batch
    is_rescaled = target_batch != trace_batch
    is_changed = target_gpu != trace_gpu or is_rescaled
    if is_changed and (reason := invalid_reason(trace)):
        raise InputError(reason)
    times = times or ("surrogate" if is_changed else "measured")
    check_choice("times", times, SOURCES)
    if times == "measured" and is_changed:
        raise InputError("measured times hold for the trace's own GPU and batch only; use the surrogate's")
    if is_rescaled and trace_batch is None:
        raise InputError(_TEXTS["no_batch"].format(source=trace.source))
    return _Target(trace_gpu, target_gpu, trace_batch, target_batch, is_changed, times)


def _overheads(
    work: HostWork, source: str, overheads: Overheads | None, leave_one_out: bool
) -> tuple[list[Overheads], Overheads]:
    """Return the overheads of every iteration, and the overheads to keep in the result."""
    if overheads is not None and leave_one_out:
        raise InputError("overheads are given and also requested from the other iterations; choose one of the two")
    own_overheads = host_overheads.measure_overheads(work, source) if overheads is None else overheads
    every = range(len(work.iterations))
    if not leave_one_out:
        return [own_overheads] * len(every), own_overheads
    if len(every) < 2:
        raise InputError("the trace has one iteration; overheads of other iterations need two")
    return [host_overheads.measure_overheads(work, source, {*every} - {one}) for one in every], own_overheads


def predictors_for(trace: Trace, device: Gpu | None, bundle: str | Path | None) -> Predictors:
    """Return the predictors of a GPU. A model of convolutions is included only if the trace has convolutions with
    shapes.

    If the same chip was measured on another board with equal memory bandwidth, that board's predictors are used.
    """
    if device is None:
        raise InputError("the trace does not name a registered GPU; name it with --gpu")
    measured = {name for part in shipped() for name in part.gpus}
    same_chip = [board for board in gpus() if board.name in measured and _chip(board) == _chip(device)]
    device = device if device.name in measured or not same_chip else same_chip[0]
    if any("convolution" in name for name in trace.names) and (trace.ranges.shapes >= 0).any():
        return load_predictors(device.name, bundle)
    return Predictors(device, None, load_operators(device.name))


def _chip(board: Gpu) -> tuple[str, int, float, float, float]:
    """Return the properties that identify a chip and its clock, and its bandwidth rounded to 10 GB/s."""
    return board.architecture, board.sms, board.boost_mhz, board.fp16_tensor_tflops, round(board.dram_gbs, -1)


def _notes(replay: "IterationReplay") -> tuple[str, ...]:
    unattached = f"{len(replay.work.unattached):,} device activities have no launch call and are left out"
    sources = {replay.times.source[row] for row in np.flatnonzero(collectives(replay.trace)).tolist()}
    notes = {
        unattached: bool(replay.work.unattached),
        _TEXTS["host"]: not replay.comparable,
        _TEXTS["unpredicted"]: bool(replay.times.parts and replay.times.reasons),
        _TEXTS["pageable"]: bool(replay.times.parts and pageable_copies(replay.trace).any()),
        _TEXTS["interval"].format(factor=replay.times.factor_90): bool(replay.times.parts),
        _TEXTS["collectives"]: not replay.last_arrival_us and bool(sources - {kernel_times.MEASURED}),
    }
    return (*(note for note, applies in notes.items() if applies), *_replay_notes(replay))


def _replay_notes(replay: "IterationReplay") -> list[str]:
    """Return a note if the iterations, replayed with the trace's own device times, miss their measured times."""
    own_times = replace(replay.times, time_us=replay.trace.activities.time_us)
    own = replace(replay, times=own_times, last_arrival_us={}, loading=1.0)
    measured_us = sum(part.time_us for part in replay.work.iterations)
    error = sum(own.in_sequence(traced=True)[0]) / (measured_us or 1.0) - 1
    if abs(error) <= MAX_REPLAY_ERROR:
        return []
    return [_TEXTS["replay"].format(error=abs(error), side="below" if error < 0 else "above")]


@dataclass(frozen=True)
class IterationReplay:
    """The iterations of a trace on both clocks.

    ``comparable`` is True if the predicted iterations equal the measured ones. ``result_fields`` are fields of
    the result; ``loading`` is the target batch divided by the recorded one. If the trace is one of several ranks,
    ``last_arrival_us`` are the times at which the last rank reaches each collective, with the profiler's cost (True)
    and without it (False).
    """

    trace: Trace
    work: HostWork
    times: DeviceTimes
    overheads_of: list[Overheads]
    comparable: bool
    result_fields: Mapping[str, Any]
    last_arrival_us: Mapping[bool, Sequence[float]] = field(default_factory=dict)
    loading: float = 1.0

    def result(self, iteration: int | None = None) -> IterationTimes:
        """Return the times of all iterations, or of one. Raises `InputError` if the trace has no such iteration."""
        count = len(self.work.iterations)
        if iteration is not None and not 0 <= iteration < count:
            raise InputError(f"iteration {iteration} is not in the trace; it has {count}, from 0 on")
        chosen = list(range(count)) if iteration is None else [iteration]
        traced, unprofiled = (self.in_sequence(traced=traced)[0] for traced in (True, False))
        launched = {row for step in self._steps(chosen) for row in step.activities}
        return IterationTimes(
            trace=self.trace.source,
            iterations=tuple(self._row(i, traced[i], unprofiled[i]) for i in chosen),
            operators=self.operators(chosen),
            unknown=kernel_times.unpredicted(self.trace, self.times, launched),
            notes=_notes(self),
            is_transferred=bool(self.times.parts),
            **self.result_fields,
        )

    @cached_property
    def _columns(self) -> dict[str, Any]:
        """The columns of the trace's activities for `StreamClocks`."""
        stream, is_collective = self.trace.activities.stream.tolist(), collectives(self.trace).tolist()
        return {"time_us": self.times.time_us, "stream": stream, "collective": is_collective}

    @cached_property
    def collective_rows(self) -> list[int]:
        """Rows of the collectives that the iterations launch, in the order of the replay."""
        steps = self._steps(range(len(self.work.iterations)))
        return [row for step in steps for row in step.activities if self._columns["collective"][row]]

    @cached_property
    def _unpredicted(self) -> set[int]:
        """Rows of the activities without a prediction."""
        pageable = np.flatnonzero(pageable_copies(self.trace)).tolist() if self.times.parts else []
        return {row for row, _ in self.times.reasons}.union(pageable)

    def _steps(self, chosen: Sequence[int]) -> list[HostStep]:
        return [step for position in chosen for step in self.work.by_iteration[position]]

    def in_sequence(self, *, traced: bool) -> tuple[list[float], StreamClocks]:
        """Return the host time of every iteration, and the clocks at the end.

        If the whole trace is one iteration, its time ends when the device ends.
        """
        event_us = host_overheads.EVENT_US if traced else 0.0
        clocks = StreamClocks(self.overheads_of[0], **self._columns, loading=self.loading, event_us=event_us)
        clocks.last_arrival_us, clocks.keeps_gaps = self.last_arrival_us.get(traced, ()), True
        # Work that was launched before the first iteration occupies its streams.
        earlier = earlier_work(self.trace, self.work.iterations)
        for stream, rows in grouped(earlier.stream, np.arange(len(earlier))):
            clocks.device_us[stream] = int(earlier.end_ns[rows].max() - self.work.iterations[0].start_ns) / 1e3
        times, start = [], 0.0
        for position, iteration in enumerate(self.work.iterations):
            clocks.overheads = self.overheads_of[position]
            clocks.run(self._steps([position]))
            end = clocks.now_us if iteration.by == "whole" else clocks.host_now_us
            times.append(end - start)
            start = end
        return times, clocks

    def _row(self, position: int, predicted_us: float, unprofiled_us: float) -> IterationTime:
        iteration, overheads = self.work.iterations[position], self.overheads_of[position]
        steps = self._steps([position])
        clocks = StreamClocks(overheads, **self._columns, loading=self.loading)
        clocks.run(steps)
        rows = [row for step in steps for row in step.activities]
        measured_us, device_us = iteration.time_us, float(self.times.time_us[rows].sum())
        kept = [row for row in rows if row in self._unpredicted]
        with_samples = sum(step.is_input or overheads.has_samples(step.name) for step in steps)
        return IterationTime(
            index=iteration.index,
            label=iteration.label,
            measured_us=measured_us,
            predicted_us=predicted_us,
            error_pct=100 * (predicted_us / measured_us - 1) if self.comparable and measured_us else None,
            unprofiled_us=unprofiled_us,
            alone_us=clocks.now_us,
            host_us=clocks.host_now_us,
            device_us=device_us,
            measured_device_us=float(self.trace.activities.time_us[rows].sum()),
            input_us=self.loading * sum(step.time_us for step in steps if step.is_input),
            untraced_us=sum(step.idle_us for step in steps),
            coverage=1 - float(self.times.time_us[kept].sum()) / device_us if device_us else 1.0,
            host_coverage=with_samples / len(steps) if steps else 1.0,
        )

    def operators(self, chosen: Sequence[int]) -> tuple[OperatorRow, ...]:
        """Return means over the iterations in ``chosen``, sorted by device time, then host time, longest first."""
        measured, predicted = self.trace.activities.time_us, self.times.time_us
        # With device times of 0 only the host's T1 to T5 remain.
        idle = self._columns | {"time_us": np.zeros_like(predicted), "gap_us": 0.0, "tail_us": 0.0}
        sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(5))
        sources: dict[str, set[str]] = defaultdict(set)
        for step in self._steps(chosen):
            rows = step.activities
            clocks = StreamClocks(self.overheads_of[step.iteration], **idle)
            clocks.advance(step)
            figures = (len(step.launches), clocks.host_now_us, measured[rows].sum(), predicted[rows].sum())
            sums[step.name] += [1, *figures]
            sources[step.name].update(self.times.source[row] for row in rows)
        table = [
            OperatorRow(name, *(values / len(chosen)).tolist(), source=", ".join(sorted(sources[name])))
            for name, values in sums.items()
        ]
        return tuple(sorted(table, key=lambda row: (-row.predicted_us, -row.host_us, row.operator)))
