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
from surrogate.features.operators import Collective
from surrogate.trace.events import kinds
from surrogate.trace.events.tables import Ints, Trace, grouped, linked
from surrogate.trace.iteration.collectives import messages
from surrogate.trace.iteration.times import collectives
from surrogate.trace.profiling import union_us
from surrogate.trace.result import ResultTable, Row

KERNEL_DELAY_US = 30.0
"""A shorter idle time between two launches that were ready in time is the cost of starting a kernel (HTA's default)."""
_WAITS = ("host_wait_us", "kernel_wait_us", "other_wait_us")


@dataclass(frozen=True, slots=True)
class RanksSummary:
    """A row per rank, per stream of a rank, and per collective; the rank that the others wait for longest, if any.

    Of a rank, in µs from the first start to the last end on its device (``time_us``): ``compute_us``,
    ``communication_us`` and ``memory_us`` (copies and memsets), in which at least one such activity runs, so that they
    may overlap; ``idle_us``, in which nothing runs; ``non_compute_us``, the rest beside compute and idle time;
    ``overlap_pct``, the share of the communication that is hidden behind compute. Idle time counts as host wait where
    the next activity was launched after the one before had ended, as kernel wait below `KERNEL_DELAY_US`, else as other
    wait. Of a stream these times are from one of its activities to its next.

    A collective ends on all ranks together, so the rank that takes least time reached it ``last``. ``waiting_us`` is
    what a rank spends in collectives beyond that, ``awaited_us`` how long the others wait for it, on average, in those
    that it reached last. Collectives are matched by kernel name and order; None where they are not the same on all.
    """

    ranks: ResultTable
    streams: ResultTable
    collectives: ResultTable
    straggler: int | None

    def spread(self) -> list[Row]:
        """The mean of every figure over the ranks, and the largest less the smallest."""
        figures = pd.DataFrame(self.ranks.rows).drop(columns=["rank", "trace", "straggler"]).astype(float)
        rows = {"mean": figures.mean(), "spread": figures.max() - figures.min()}
        return [{"rank": name, **row.to_dict()} for name, row in rows.items()]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        mean, spread = ({key: None if value != value else value for key, value in row.items()} for row in self.spread())
        tables = {name: list(getattr(self, name)) for name in ("ranks", "streams", "collectives")}
        return {**tables, "mean": mean, "spread": spread, "straggler": self.straggler, "notes": list(self.ranks.notes)}


def are_ranks(traces: Sequence[Trace]) -> bool:
    """True where every trace names another rank, or where none names one and all hold collectives."""
    named = {trace.rank for trace in traces}
    if named == {None}:
        return all(collectives(trace).any() for trace in traces)
    return len(named - {None}) == len(traces)


def rank_summary(traces: Sequence[Trace]) -> RanksSummary:
    """What the ranks of one run spend their time on, from a trace of each; unnamed ranks count in the given order.

    Raises `InputError` for a trace without device activity.
    """
    numbers = [at if trace.rank is None else trace.rank for at, trace in enumerate(traces)]
    by_rank = dict(sorted(zip(numbers, traces, strict=True), key=lambda pair: pair[0]))
    world = max(len(traces), *(trace.world_size or 0 for trace in traces))
    times_us, known, left_out = _matched(by_rank, world)
    waits = times_us.sub(times_us.min(axis=1), axis=0)
    apart = tuple(
        {
            "index": index, "collective": problem.kind if problem else name,
            "message_bytes": problem and int(problem.dram_bytes), "shortest_us": float(own.min()),
            "longest_us": float(own.max()), "waiting_us": float(waits.loc[name, nth].sum()) / (len(by_rank) - 1),
            "last": int(own.idxmin()),
        }
        for index, (((name, nth), own), problem) in enumerate(zip(times_us.iterrows(), known, strict=True))
    )  # fmt: skip
    for_rank = {rank: sum((row["waiting_us"] for row in apart if row["last"] == rank), 0.0) for rank in by_rank}
    straggler = max(for_rank, key=lambda rank: for_rank[rank]) if any(for_rank.values()) else None
    rows = tuple(
        {
            **_row(rank, trace), "waiting_us": float(waits[rank].sum()) if apart else None,
            "awaited_us": for_rank[rank] if apart else None, "straggler": rank == straggler,
        }
        for rank, trace in by_rank.items()
    )  # fmt: skip
    notes = [f"{left_out:,} kernels of collectives are not the same on all ranks, or run on fewer"] if left_out else []
    if world > len(traces):
        notes.append(f"{len(traces)} of {world} ranks are given; the others may be waited for, too")
    title = f"{len(rows)} ranks, {len(apart)} collectives"
    if straggler is not None:
        title += f"; the others wait longest for rank {straggler}: {for_rank[straggler]:,.0f} µs each on average"
    streams = tuple(
        {"rank": rank, "stream": trace.streams[stream].stream, **_idle(trace, own)}
        for rank, trace in by_rank.items()
        for stream, own in grouped(trace.activities.stream, np.arange(len(trace.activities)))
    )
    return RanksSummary(
        ResultTable(title, rows, tuple(notes)), ResultTable("Idle time of streams", streams),
        ResultTable("Collectives", apart), straggler,
    )  # fmt: skip


def _row(rank: int, trace: Trace) -> Row:
    activities = trace.activities
    starts, ends = activities.start_ns, activities.end_ns
    if not len(activities):
        raise InputError(f"{trace.source}: holds no device activity; give a trace of each rank's GPU")
    is_communication, is_memory = collectives(trace), np.isin(activities.kind, (kinds.COPY, kinds.MEMSET))
    is_compute = ~is_communication & ~is_memory
    whole_us, busy_us = float(ends.max() - starts[0]) / 1e3, union_us(starts, ends)
    compute_us, communication_us, memory_us, either_us = (
        union_us(starts[own], ends[own])
        for own in (is_compute, is_communication, is_memory, is_compute | is_communication)
    )
    parts = {"compute": compute_us, "communication": communication_us, "memory": memory_us, "idle": whole_us - busy_us}
    hidden_us = compute_us + communication_us - either_us
    return {
        "rank": rank, "trace": Path(trace.source).name, "time_us": whole_us,
        **{f"{name}_us": us for name, us in parts.items()},
        **{f"{name}_pct": 100 * us / whole_us if whole_us else None for name, us in parts.items()},
        "non_compute_us": busy_us - compute_us,
        "overlap_pct": 100 * hidden_us / communication_us if communication_us else None,
        **_idle(trace, np.arange(len(activities))),
    }  # fmt: skip


def _idle(trace: Trace, rows: Ints) -> Row:
    """Why nothing of ``rows``, activities in the order of their starts, ran between the first and the last of them."""
    activities = trace.activities
    reach = np.maximum.accumulate(activities.end_ns[rows])[:-1]
    idle_us = np.maximum(activities.start_ns[rows][1:] - reach, 0) / 1e3
    by_host = linked(trace.calls.start_ns, activities.call[rows][1:]) > reach
    by_kernel = ~by_host & (idle_us < KERNEL_DELAY_US)
    causes = (by_host, by_kernel, ~by_host & ~by_kernel)
    return {name: float(idle_us[cause].sum()) for name, cause in zip(_WAITS, causes, strict=True)}


def _matched(traces: dict[int, Trace], world: int) -> tuple[pd.DataFrame, list[Collective | None], int]:
    """Times of the collectives that all ranks share, a column each; what they send; how many kernels are left out.

    Those of a name count where all ranks launched equally many of them, each among all ranks (``world``).
    """
    columns: dict[int, pd.Series] = {}
    sent: dict[Any, Collective | None] = {}
    launched = 0
    for rank, trace in traces.items():
        rows = np.flatnonzero(collectives(trace))
        rows = rows[np.argsort(linked(trace.calls.start_ns, trace.activities.call[rows]), kind="stable")]
        launched += len(rows)
        known = dict(zip(rows.tolist(), messages(trace, rows.tolist()), strict=True))
        rows = [row for row, problem in known.items() if problem is None or problem.ranks >= world]
        name = pd.Series([trace.name_of(trace.activities, row) for row in rows], dtype=object)
        place = pd.MultiIndex.from_arrays([name, name.groupby(name).cumcount()])
        columns[rank] = pd.Series(trace.activities.time_us[rows], place)
        sent = {**dict(zip(place, map(known.__getitem__, rows), strict=True)), **sent}
    table = pd.concat(columns, axis=1)
    names = table.index.get_level_values(0)
    table = table[~names.isin(names[table.isna().any(axis=1)])]
    return table, [sent[place] for place in table.index], launched - table.size
