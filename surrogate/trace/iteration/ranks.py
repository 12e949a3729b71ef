"""Analyse several ranks of one run: device use, waits for the slowest rank, and iteration times of all ranks together.

Compute, communication, idle time and their overlap are defined as in HolisticTraceAnalysis 0.5 (temporal breakdown,
communication computation overlap, idle time breakdown). One difference: the last profiler step counts, too. A
collective ends when the last of the ranks has reached it (Lin et al., TPDS 2024).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from surrogate.features.errors import InputError
from surrogate.features.families.transfer import Collective
from surrogate.network.aten_call import UnsupportedError
from surrogate.trace import events
from surrogate.trace.calls import CallReader
from surrogate.trace.events.parts import iteration_at, iterations
from surrogate.trace.events.read import distinct_names
from surrogate.trace.events.tables import Floats, Ints, Trace, grouped, linked, take_rows
from surrogate.trace.iteration.overheads import Overheads, cross_validated_us, fit_collective_models, pooled
from surrogate.trace.iteration.predict import IterationReplay, IterationTimes, replay_trace
from surrogate.trace.iteration.times import COLLECTIVE_MODEL, MEASURED, collectives
from surrogate.trace.profiling import union_us
from surrogate.trace.result import ResultTable, Row

KERNEL_DELAY_US = 30.0
"""The longest idle time, in µs, that counts as the cost of starting a kernel if both launches were ready in time
(default of HolisticTraceAnalysis).
"""


@dataclass(frozen=True, slots=True)
class RanksTime:
    """The iteration times of several ranks.

    Attributes
    ----------
    ranks
        A row per rank, in µs per iteration. ``start_us`` is its recorded start after the first rank's start.
        ``waiting_us`` is its time in collectives before the last rank reaches them; ``device_us`` includes it, as the
        measured time does. ``slowest`` marks the rank that ends last in the prediction.
    collectives
        A row per collective, without waits. ``measured_us`` and ``predicted_us`` are times of the last rank to reach
        it, ``last`` is that rank in the prediction.
    results
        The iterations of each rank.
    overheads
        The pooled overheads and the collective models of the ranks.
    """

    ranks: ResultTable
    collectives: ResultTable
    results: tuple[IterationTimes, ...]
    overheads: Overheads

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        rows = {"ranks": list(self.ranks), "collectives": list(self.collectives)}
        iterations = [result.to_dict() for result in self.results]
        return {**rows, "laws": self.overheads.to_dict()["laws"], "iterations": iterations}


def rank_times(traces: Sequence[Trace], **settings: Any) -> RanksTime:
    """Return the iteration times of all ranks of one run, from one trace per rank.

    With predicted times, a collective takes the time of the given overheads' collective models. Without given models,
    it takes the time of a model that is fitted on the measured collectives of other message sizes (cross-validation).
    With measured times, it takes the shortest of the ranks' times. The different starts of the ranks are an input, like
    the time of loading data.

    Parameters
    ----------
    traces : sequence of Trace
        One trace per rank.
    **settings
        Options of `replay_trace`.

    Returns
    -------
    RanksTime

    Raises
    ------
    InputError
        If `replay_trace` raises it, or if the ranks differ in their number of collectives or have none.
    """
    replays = [replay_trace(trace, **settings) for trace in sorted(traces, key=lambda trace: trace.rank or 0)]
    rows = replays[0].collective_rows
    _check_collectives(replays)
    # Times of collectives, shape (ranks, collectives).
    traced_us = np.array([replay.trace.activities.time_us[replay.collective_rows] for replay in replays])
    shortest_us = traced_us.min(axis=0)  # the last rank to reach a collective does not wait
    messages = _messages(replays[0].trace, rows)
    overheads = pooled([replay.result_fields["overheads"] for replay in replays])
    # Fit collective models to the recorded messages, unless models of another run are given.
    sized = {index: problem for index, problem in enumerate(messages) if problem}
    model_times_us: dict[int, float | None] = {}
    if not overheads.collective_models:
        samples = list(sized.values()), shortest_us[list(sized)].tolist()
        overheads = replace(overheads, collective_models=fit_collective_models(*samples))
        model_times_us = dict(zip(sized, cross_validated_us(*samples), strict=True))
    # First, collectives take their times without waits. Then each rank waits for the last rank to reach each one.
    without_waits_us = [(model_times_us.get(index), us) for index, us in enumerate(shortest_us.tolist())]
    replays = [_without_waits(replay, without_waits_us) for replay in replays]
    starts = _starts(replays)
    arrivals = {traced: _last_arrivals(replays, starts, traced=traced) for traced in (True, False)}
    waits = arrivals[True][1]
    results = tuple(
        replace(replay, last_arrival_us={traced: last - start for traced, (last, _) in arrivals.items()}).result()
        for replay, start in zip(replays, starts, strict=True)
    )
    last = int(np.argmax(starts + [sum(iteration.predicted_us for iteration in result) for result in results]))
    ranks = [index if replay.trace.rank is None else replay.trace.rank for index, replay in enumerate(replays)]
    waited_us = (traced_us - shortest_us).sum(axis=1)
    counts = [len(result) for result in results]
    columns = {"start_us": starts, "measured_waiting_us": waited_us / counts, "waiting_us": waits.sum(axis=1) / counts}
    names = distinct_names([result.trace for result in results])
    rank_waits = [dict(zip(columns, row, strict=True)) for row in np.stack([*columns.values()], axis=1).tolist()]
    rows_of_ranks = zip(ranks, names, results, rank_waits, strict=True)
    table = tuple(_rank(*row) | {"slowest": row[0] == ranks[last]} for row in rows_of_ranks)
    collective_table = tuple(
        {"index": index, "collective": problem and problem.kind, "message_bytes": problem and int(problem.dram_bytes)}
        | {"measured_us": float(shortest_us[index]), "predicted_us": float(replays[0].times.time_us[row])}
        | {"source": replays[0].times.source[row], "last": ranks[int(np.argmin(waits[:, index]))]}
        for index, (row, problem) in enumerate(zip(rows, messages, strict=True))
    )
    title = f"{len(replays)} ranks, {replays[0].result_fields['times']} times; rank {ranks[last]} ends last"
    tables = ResultTable(title, table), ResultTable("Collectives, without waits", collective_table)
    return RanksTime(*tables, results, overheads)


def _rank(rank: int, trace: str, result: IterationTimes, waits: Row) -> Row:
    """Return a rank's row: means of its iterations, its start, and its recorded and predicted waits per iteration."""
    names = ["measured_us", "predicted_us", "measured_device_us", "device_us"]
    measured, predicted, measured_device, device = result.to_frame()[names].mean().tolist()
    device += waits["waiting_us"]
    comparable = result.iterations[0].error_pct is not None
    return {
        **{"rank": rank, "trace": trace, "start_us": waits.pop("start_us")},
        **{"measured_us": measured, "predicted_us": predicted},
        **{"error_pct": 100 * (predicted / measured - 1) if comparable else None, **waits},
        **{"measured_device_us": measured_device, "device_us": device},
        "device_error_pct": 100 * (device / measured_device - 1) if comparable else None,
        "coverage": result.coverage,
    }


def _check_collectives(replays: Sequence[IterationReplay]) -> None:
    """Raise `InputError` if the ranks differ in their number of collectives, or have none."""
    names, counts = zip(*((replay.trace.source, len(replay.collective_rows)) for replay in replays), strict=True)
    for name, count in zip(names, counts, strict=True):
        if count != counts[0]:
            reason = f"{name} has {count} collectives, and {names[0]} has {counts[0]}"
            raise InputError(f"{reason}; give the traces of all ranks of one run, over the same iterations")
    if not counts[0]:
        raise InputError("the ranks have no collectives; give the traces of all ranks of one distributed run")


def _messages(trace: Trace, rows: Sequence[int]) -> list[Collective | None]:
    """Return the collectives in ``rows``, None if the trace does not record the message."""
    reader = CallReader(trace)
    messages: list[Collective | None] = []
    for owner in linked(reader.owners, trace.activities.range[rows]).tolist():
        try:
            problems = reader.problems(owner)
        except UnsupportedError:
            problems = ()
        messages.append(next((problem for problem in problems if isinstance(problem, Collective)), None))
    return messages


def _without_waits(replay: IterationReplay, times_us: Sequence[tuple[float | None, float]]) -> IterationReplay:
    """Return the replay with times of collectives that contain no waits.

    Measured times become the shortest of the ranks' times. Predicted times become the
    times of the collective model, if it exists.
    """
    time_us, source = replay.times.time_us.copy(), list(replay.times.source)
    for row, (model_us, shortest) in zip(replay.collective_rows, times_us, strict=True):
        if source[row] == MEASURED:
            time_us[row] = shortest
        elif model_us is not None:
            time_us[row], source[row] = model_us, COLLECTIVE_MODEL
    return replace(replay, times=replace(replay.times, time_us=time_us, source=tuple(source)))


def _starts(replays: Sequence[IterationReplay]) -> Floats:
    """Return the start of each rank in µs after the first rank's start.

    A collective ends at the same time on all ranks, so differences between the ranks' clocks cancel.
    """
    ends = [
        (replay.trace.activities.end_ns[replay.collective_rows] - replay.work.iterations[0].start_ns) / 1e3
        for replay in replays
    ]
    return np.array([np.median(max(ends, key=np.median) - rank_ends) for rank_ends in ends])


def _last_arrivals(replays: Sequence[IterationReplay], starts: Floats, *, traced: bool) -> tuple[Floats, Floats]:
    """Return when the last rank reaches each collective, in µs of the common clock, and how long each rank waits for
    it.

    The ranks are replayed again until no arrival changes. Each pass fixes the arrival of at least one more collective.
    """
    last_arrival: Floats = np.empty(0)
    while True:
        clocks = [
            replace(replay, last_arrival_us={traced: last_arrival - start}).in_sequence(traced=traced)[1]
            for replay, start in zip(replays, starts, strict=True)
        ]
        arrival = np.array([clock.arrival_us for clock in clocks]) + starts[:, None]
        before = last_arrival
        last_arrival = arrival.max(axis=0)
        if len(before) and np.allclose(before, last_arrival, rtol=0, atol=1e-3, equal_nan=True):
            return last_arrival, last_arrival - arrival


@dataclass(frozen=True, slots=True)
class RanksSummary:
    """A row per rank, per stream of a rank and per collective; the rank that the others wait for longest, if any.

    Attributes
    ----------
    ranks
        Times per rank in µs, from the first start to the last end on its device (``time_us``). ``compute_us``,
        ``communication_us`` and ``memory_us`` (copies and memsets) are times in which at least one such activity runs,
        so they may overlap. ``idle_us`` is the time in which nothing runs, ``non_compute_us`` the rest besides compute
        and idle time. ``overlap_pct`` is the share of the communication that runs during compute. ``waiting_us`` is the
        rank's time in collectives above the shortest rank's. ``awaited_us`` is the time that the others wait for the
        rank in the collectives that it reached last, on average. From the end of the first iteration's work to
        the end of the last one's, the device computes ``steps_compute_us`` and idles ``steps_idle_us`` of
        ``steps_us``; with a single iteration, these are figures of the whole trace.
    streams
        Idle time per stream, between the stream's own activities. Idle time is host wait if the next activity was
        launched after the previous one had ended, kernel wait if it is below `KERNEL_DELAY_US`, and other wait
        otherwise. The same holds for the idle time of a rank.
    collectives
        A collective ends on all ranks together, so the rank with the shortest time reached it ``last``. Collectives are
        matched by kernel name and order. A collective that differs between ranks, or that only some of the ranks take
        part in, is not counted.
    straggler
        The rank that the others wait for longest; None without waits.
    notes
        Remarks for the user.
    """

    title: str
    ranks: tuple[Row, ...]
    streams: tuple[Row, ...]
    collectives: tuple[Row, ...]
    straggler: int | None
    notes: tuple[str, ...]

    def spread(self) -> list[Row]:
        """Return two rows: the mean of every figure over the ranks, and the largest minus the smallest."""
        figures = pd.DataFrame(self.ranks).assign(rank=np.nan, trace=np.nan).astype(float)
        return [{**figures.mean(), "rank": "mean"}, {**(figures.max() - figures.min()), "rank": "spread"}]


def rank_summary(traces: Sequence[Trace]) -> RanksSummary:
    """Return how the ranks of one run spend their time.

    Parameters
    ----------
    traces : sequence of Trace
        One trace per rank; each names its rank.

    Returns
    -------
    RanksSummary

    Raises
    ------
    InputError
        If a trace has no device activity.
    """
    by_rank = {trace.rank or 0: trace for trace in sorted(traces, key=lambda trace: trace.rank or 0)}
    world = max(trace.world_size or len(traces) for trace in traces)
    notes = []
    if world > len(traces):
        notes.append(f"{len(traces)} of {world} ranks are given; they may also wait for the missing ones")
    launched = {rank: _collective_frame(trace, world) for rank, trace in by_rank.items()}
    times_us = pd.concat({rank: table["us"] for rank, table in launched.items()}, axis=1)
    differs = times_us.isna().groupby("kernel").transform("any").any(axis=1)
    if differs.any():
        notes.append(f"{differs.sum():,} collectives differ between the ranks; waits in them are not counted")
    times_us = times_us[~differs]
    shortest_us = times_us.min(axis=1)  # the last rank to reach a collective does not wait
    waits_us = times_us.sub(shortest_us, axis=0)
    first = next(iter(launched.values())).drop(columns="us").reindex(times_us.index)
    means = {"waiting_us": waits_us.sum(axis=1) / max(len(by_rank) - 1, 1), "last": times_us.idxmin(axis=1)}
    by_collective: Any = first.assign(shortest_us=shortest_us, longest_us=times_us.max(axis=1), **means)
    awaited_us = by_collective.groupby("last")["waiting_us"].sum().reindex(list(by_rank), fill_value=0.0)
    straggler = max(by_rank, key=lambda rank: awaited_us[rank]) if awaited_us.any() else None
    waiting_us = waits_us.sum()
    names = distinct_names([trace.source for trace in by_rank.values()])
    rows = tuple(
        {"rank": rank, "trace": name, **_device_use(trace), **_whole_steps(trace)}
        | {"waiting_us": float(waiting_us[rank]), "awaited_us": float(awaited_us[rank])}
        for name, (rank, trace) in zip(names, by_rank.items(), strict=True)
    )
    title = f"{len(rows)} ranks, {len(by_collective)} collectives"
    if straggler is not None:
        title += f"; the others wait longest for rank {straggler}: {awaited_us[straggler]:,.0f} µs each on average"
    streams = tuple(
        {"rank": rank, "stream": trace.streams[stream].stream, **_idle(trace, members)}
        for rank, trace in by_rank.items()
        for stream, members in grouped(trace.activities.stream, np.arange(len(trace.activities)))
    )
    return RanksSummary(title, rows, streams, tuple(by_collective.to_dict("records")), straggler, tuple(notes))


def _collective_frame(trace: Trace, world: int) -> pd.DataFrame:
    """Return the collectives of a rank in the order of their launches, by the kernel's name and its number."""
    activities = trace.activities
    rows = np.flatnonzero(collectives(trace))
    rows = rows[np.argsort(linked(trace.calls.start_ns, activities.call[rows]), kind="stable")]
    kernels = [trace.name_of(activities, row) for row in rows]
    messages = [
        (problem.kind, int(problem.dram_bytes), problem.ranks) if problem else (kernel, None, world)
        for kernel, problem in zip(kernels, _messages(trace, rows.tolist()), strict=True)
    ]
    table = pd.DataFrame(messages, columns=["collective", "message_bytes", "ranks"], dtype=object)
    table = table.assign(kernel=kernels, us=activities.time_us[rows])[table["ranks"] >= world].drop(columns="ranks")
    return table.assign(nth=table.groupby("kernel").cumcount()).set_index(["kernel", "nth"])


def _device_use(trace: Trace) -> Row:
    activities = trace.activities
    starts, ends = activities.start_ns, activities.end_ns
    if not len(activities):
        raise InputError(f"{trace.source}: has no device activity; give a trace of each rank's GPU")
    is_communication = collectives(trace)
    is_memory = np.isin(activities.kind, events.MOVES)
    kind = {"compute": ~is_communication & ~is_memory, "communication": is_communication, "memory": is_memory}
    span_us = float(ends.max() - starts[0]) / 1e3
    busy_us = union_us(starts, ends)
    us = {name: union_us(starts[mask], ends[mask]) for name, mask in kind.items()} | {"idle": span_us - busy_us}
    hidden_us = us["compute"] + us["communication"] - union_us(starts[~is_memory], ends[~is_memory])
    return {
        "time_us": span_us,
        **{f"{name}_us": time for name, time in us.items()},
        **{f"{name}_pct": 100 * time / span_us if span_us else None for name, time in us.items()},
        "non_compute_us": busy_us - us["compute"],
        "overlap_pct": 100 * hidden_us / us["communication"] if us["communication"] else None,
        **_idle(trace, np.arange(len(activities))),
    }


def _whole_steps(trace: Trace) -> Row:
    """Return the number of iterations with work, and the device's use between the ends of the first and the last."""
    activities = trace.activities
    number = iteration_at(iterations(trace), linked(trace.calls.start_ns, activities.call))
    worked = np.unique(number[number >= 0])
    rows, lead_us = np.arange(len(activities)), 0.0
    if len(worked) > 1:
        # Begin with the last activity of the first iteration, because the idle time after it counts.
        rows = np.flatnonzero((activities.end_ns >= activities.end_ns[number == worked[0]].max()) & (number >= 0))
        lead_us = float(activities.time_us[rows[0]])
    use = _device_use(replace(trace, activities=take_rows(activities, rows)))
    times = {f"steps_{name}": use[name] for name in ("compute_us", "idle_us")}
    return {"iterations": max(len(worked), 1), "steps_us": use["time_us"] - lead_us, **times}


def _idle(trace: Trace, rows: Ints) -> Row:
    """Return the causes of the idle time between ``rows``, activities in the order of their starts."""
    reach = np.maximum.accumulate(trace.activities.end_ns[rows])[:-1]
    idle_us = np.maximum(trace.activities.start_ns[rows][1:] - reach, 0) / 1e3
    by_host = linked(trace.calls.start_ns, trace.activities.call[rows][1:]) > reach
    by_kernel = ~by_host & (idle_us < KERNEL_DELAY_US)
    causes = {"host_wait_us": by_host, "kernel_wait_us": by_kernel, "other_wait_us": ~by_host & ~by_kernel}
    return {name: float(idle_us[cause].sum()) for name, cause in causes.items()}
