"""Several ranks of one run side by side: what each device does, and which rank the others wait for.

Compute, communication, idle time and their overlap are defined as in HolisticTraceAnalysis 0.5 (temporal breakdown,
communication computation overlap, idle time breakdown); unlike there, the last profiler step counts, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from surrogate.features.errors import InputError
from surrogate.trace.events import kinds
from surrogate.trace.events.tables import Ints, Trace, grouped, linked
from surrogate.trace.iteration.collectives import messages
from surrogate.trace.iteration.times import collectives
from surrogate.trace.profiling import union_us
from surrogate.trace.result import Row

KERNEL_DELAY_US = 30.0
"""A shorter idle time between two launches that were ready in time is the cost of starting a kernel (HTA's default)."""


@dataclass(frozen=True, slots=True)
class RanksSummary:
    """A row per rank, per stream of a rank, and per collective; the rank that the others wait for longest, if any.

    Of a rank, in µs from the first start to the last end on its device (``time_us``): ``compute_us``,
    ``communication_us`` and ``memory_us`` (copies and memsets), in which at least one such activity runs, so that they
    may overlap; ``idle_us``, in which nothing runs; ``non_compute_us``, the rest beside compute and idle time;
    ``overlap_pct``, the share of the communication that is hidden behind compute. Idle time counts as host wait where
    the next activity was launched after the one before had ended, as kernel wait below `KERNEL_DELAY_US`, else as other
    wait; of a stream, between its own activities.

    A collective ends on all ranks together, so the rank that takes least time reached it ``last``. ``waiting_us`` is
    what a rank spends in collectives beyond that, ``awaited_us`` how long the others wait for it, on average, in those
    that it reached last. They are matched by kernel name and order; what is not the same on all ranks, or is among
    fewer of them, does not count.
    """

    title: str
    ranks: tuple[Row, ...]
    streams: tuple[Row, ...]
    collectives: tuple[Row, ...]
    straggler: int | None
    notes: tuple[str, ...]

    def spread(self) -> list[Row]:
        """Two rows: of every figure the mean over the ranks, and the largest less the smallest."""
        figures = pd.DataFrame(self.ranks).assign(rank=np.nan, trace=np.nan).astype(float)
        return [{**figures.mean(), "rank": "mean"}, {**(figures.max() - figures.min()), "rank": "spread"}]


def are_ranks(traces: Sequence[Trace]) -> bool:
    """True where every trace names another rank."""
    return len({trace.rank for trace in traces} - {None}) == len(traces)


def rank_summary(traces: Sequence[Trace]) -> RanksSummary:
    """What the ranks of one run spend their time on, from a trace of each.

    Raises `InputError` for a trace without device activity.
    """
    by_rank = {trace.rank or 0: trace for trace in sorted(traces, key=lambda trace: trace.rank or 0)}
    world, notes = max(trace.world_size or len(traces) for trace in traces), []
    if world > len(traces):
        notes.append(f"{len(traces)} of {world} ranks are given; the others may be waited for, too")
    launched = {rank: _launched(trace, world) for rank, trace in by_rank.items()}
    times_us = pd.concat({rank: own["us"] for rank, own in launched.items()}, axis=1)
    differs = times_us.isna().groupby("kernel").transform("any").any(axis=1)
    if differs.any():
        notes.append(f"{differs.sum():,} collectives are not the same on all ranks; waits in them do not count")
    times_us = times_us[~differs]
    shortest_us = times_us.min(axis=1)  # the last rank to reach a collective waits for nobody
    waits_us = times_us.sub(shortest_us, axis=0)
    apart: Any = next(iter(launched.values())).drop(columns="us").reindex(times_us.index).assign(
        shortest_us=shortest_us, longest_us=times_us.max(axis=1),
        waiting_us=waits_us.sum(axis=1) / max(len(by_rank) - 1, 1), last=times_us.idxmin(axis=1),
    )  # fmt: skip
    awaited_us = apart.groupby("last")["waiting_us"].sum().reindex(list(by_rank), fill_value=0.0)
    straggler = max(by_rank, key=lambda rank: awaited_us[rank]) if awaited_us.any() else None
    rows: list[Row] = [
        {"rank": rank, **_row(trace), "waiting_us": float(waits_us[rank].sum()), "awaited_us": float(awaited_us[rank])}
        for rank, trace in by_rank.items()
    ]
    title = f"{len(rows)} ranks, {len(apart)} collectives"
    if straggler is not None:
        title += f"; the others wait longest for rank {straggler}: {awaited_us[straggler]:,.0f} µs each on average"
    streams = tuple(
        {"rank": rank, "stream": trace.streams[stream].stream, **_idle(trace, own)}
        for rank, trace in by_rank.items()
        for stream, own in grouped(trace.activities.stream, np.arange(len(trace.activities)))
    )
    return RanksSummary(title, tuple(rows), streams, tuple(apart.to_dict("records")), straggler, tuple(notes))


def _launched(trace: Trace, world: int) -> pd.DataFrame:
    """The collectives of a rank in the order of their launches, by the kernel's name and number among those of it."""
    activities = trace.activities
    rows = np.flatnonzero(collectives(trace))
    rows = rows[np.argsort(linked(trace.calls.start_ns, activities.call[rows]), kind="stable")]
    kernels = [trace.name_of(activities, row) for row in rows]
    sent = [
        (problem.kind, int(problem.dram_bytes), problem.ranks) if problem else (kernel, None, world)
        for kernel, problem in zip(kernels, messages(trace, rows.tolist()), strict=True)
    ]
    table = pd.DataFrame(sent, columns=["collective", "message_bytes", "ranks"], dtype=object)
    table = table.assign(kernel=kernels, us=activities.time_us[rows])[table["ranks"] >= world].drop(columns="ranks")
    return table.assign(nth=table.groupby("kernel").cumcount()).set_index(["kernel", "nth"])


def _row(trace: Trace) -> Row:
    activities = trace.activities
    starts, ends = activities.start_ns, activities.end_ns
    if not len(activities):
        raise InputError(f"{trace.source}: holds no device activity; give a trace of each rank's GPU")
    is_communication, is_memory = collectives(trace), np.isin(activities.kind, (kinds.COPY, kinds.MEMSET))
    kind = {"compute": ~is_communication & ~is_memory, "communication": is_communication, "memory": is_memory}
    whole_us, busy_us = float(ends.max() - starts[0]) / 1e3, union_us(starts, ends)
    us = {name: union_us(starts[own], ends[own]) for name, own in kind.items()} | {"idle": whole_us - busy_us}
    hidden_us = us["compute"] + us["communication"] - union_us(starts[~is_memory], ends[~is_memory])
    return {
        "trace": Path(trace.source).name, "time_us": whole_us, **{f"{name}_us": time for name, time in us.items()},
        **{f"{name}_pct": 100 * time / whole_us if whole_us else None for name, time in us.items()},
        "non_compute_us": busy_us - us["compute"],
        "overlap_pct": 100 * hidden_us / us["communication"] if us["communication"] else None,
        **_idle(trace, np.arange(len(activities))),
    }  # fmt: skip


def _idle(trace: Trace, rows: Ints) -> Row:
    """Why nothing of ``rows``, activities in the order of their starts, ran between the first and the last of them."""
    activities = trace.activities
    reach = np.maximum.accumulate(activities.end_ns[rows])[:-1]
    idle_us = np.maximum(activities.start_ns[rows][1:] - reach, 0) / 1e3
    by_host = linked(trace.calls.start_ns, activities.call[rows][1:]) > reach
    by_kernel = ~by_host & (idle_us < KERNEL_DELAY_US)
    causes = {"host_wait_us": by_host, "kernel_wait_us": by_kernel, "other_wait_us": ~by_host & ~by_kernel}
    return {name: float(idle_us[cause].sum()) for name, cause in causes.items()}
