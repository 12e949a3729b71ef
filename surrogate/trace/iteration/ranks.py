"""Several ranks of one run together: a collective ends when the last of them has reached it (Lin et al., TPDS 2024)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from surrogate.features.errors import InputError
from surrogate.trace.events.tables import Floats, Trace
from surrogate.trace.iteration.collectives import fit_laws, messages, unseen_us
from surrogate.trace.iteration.overheads import Overheads, pooled
from surrogate.trace.iteration.predict import IterationTimes, Walk, walk_of
from surrogate.trace.iteration.times import LAW, MEASURED, collectives
from surrogate.trace.result import ResultTable, Row


@dataclass(frozen=True, slots=True)
class RanksTime:
    """A row per rank and per collective, the iterations of each rank, the ranks' pooled overheads and fitted laws.

    Of a rank, in µs per iteration: ``start_us``, when it begins after the first to begin, as traced; ``waiting_us``,
    its time in collectives before the last rank reaches them, which ``device_us`` holds as the measured one does;
    ``slowest``, whether it ends last as predicted. Of a collective: ``measured_us`` of the last rank to reach it, which
    waits for nobody, ``predicted_us`` likewise, and ``last``, that rank as predicted.
    """

    ranks: ResultTable
    collectives: ResultTable
    results: tuple[IterationTimes, ...]
    overheads: Overheads

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "ranks": list(self.ranks),
            "collectives": list(self.collectives),
            "laws": {kind: asdict(law) for kind, law in self.overheads.laws.items()},
            "iterations": [result.to_dict() for result in self.results],
        }


def rank_times(traces: Sequence[Trace], **settings: Any) -> RanksTime:
    """Iteration times of all ranks of one run, from a trace of each; ``settings`` are those of `walk_of`.

    With predicted times a collective takes what the laws of the given overheads say; without them, what the law says
    that is fitted on the measured collectives of other message sizes, so that none has seen itself. With measured times
    it takes the shortest of the ranks' times. How far apart the ranks begin is an input, like loading data.

    Raises `InputError` where the ranks' collectives differ in number.
    """
    walks = [walk_of(trace, **settings) for trace in sorted(traces, key=lambda trace: trace.rank or 0)]
    rows = _collectives(walks)
    traced_us = np.array([walk.trace.activities.time_us[own] for walk, own in zip(walks, rows, strict=True)])
    shortest_us = traced_us.min(axis=0)  # the last rank to reach a collective waits for nobody
    sent = messages(walks[0].trace, rows[0])
    overheads = pooled([walk.facts["overheads"] for walk in walks])
    known = [at for at, problem in enumerate(sent) if problem]
    measured = [problem for problem in sent if problem], shortest_us[known].tolist()
    unseen: dict[int, float | None] = {}
    if not overheads.laws:
        overheads = replace(overheads, laws=fit_laws(*measured))
        unseen = dict(zip(known, unseen_us(*measured), strict=True))
    own = [(unseen.get(at), us) for at, us in enumerate(shortest_us.tolist())]
    walks = [_without_waits(walk, apart, own) for walk, apart in zip(walks, rows, strict=True)]
    starts = _starts(walks, rows)
    met = {traced: _met(walks, starts, traced=traced) for traced in (True, False)}
    waits = met[True][1]
    results = tuple(
        replace(walk, latest_us={traced: latest - start for traced, (latest, _) in met.items()}).result()
        for walk, start in zip(walks, starts, strict=True)
    )
    last = int(np.argmax(starts + [sum(one.predicted_us for one in own) for own in results]))
    ranks = [at if walk.trace.rank is None else walk.trace.rank for at, walk in enumerate(walks)]
    times = zip(ranks, results, starts.tolist(), (traced_us - shortest_us).sum(axis=1), waits.sum(axis=1), strict=True)
    table = tuple(_rank(*one) | {"slowest": one[0] == ranks[last]} for one in times)
    apart = tuple(
        {
            "index": at,
            "collective": problem and problem.kind,
            "message_bytes": problem and int(problem.dram_bytes),
            "measured_us": float(shortest_us[at]),
            "predicted_us": float(walks[0].times.time_us[row]),
            "source": walks[0].times.source[row],
            "last": ranks[int(np.argmin(waits[:, at]))],
        }
        for at, (row, problem) in enumerate(zip(rows[0], sent, strict=True))
    )
    title = f"{len(walks)} ranks, {walks[0].facts['times']} times; rank {ranks[last]} ends last"
    return RanksTime(ResultTable(title, table), ResultTable("Collectives, without waits", apart), results, overheads)


def _rank(rank: int, result: IterationTimes, start_us: float, before_us: float, after_us: float) -> Row:
    """One rank's row from its iterations and its waits in them, as traced and as predicted."""
    count = len(result)
    names = ("measured_us", "predicted_us", "measured_device_us", "device_us")
    measured, predicted, device, after = (float(sum(getattr(one, name) for one in result)) / count for name in names)
    after += after_us / count
    comparable = result.iterations[0].error_pct is not None
    return {
        "rank": rank, "trace": Path(result.trace).name, "start_us": start_us, "measured_us": measured,
        "predicted_us": predicted, "error_pct": 100 * (predicted / measured - 1) if comparable else None,
        "measured_waiting_us": float(before_us / count), "waiting_us": float(after_us / count),
        "measured_device_us": device, "device_us": after,
        "device_error_pct": 100 * (after / device - 1) if comparable else None, "coverage": result.coverage,
    }  # fmt: skip


def _collectives(walks: Sequence[Walk]) -> list[list[int]]:
    """Of each rank the rows of the collectives that its iterations launch, in the order of the walk."""
    rows = []
    for walk in walks:
        apart = collectives(walk.trace)
        units = (unit for position in range(len(walk.work.iterations)) for unit in walk.work.by_iteration[position])
        rows.append([row for unit in units for row in unit.activities if apart[row]])
        if not rows[0] or len(rows[-1]) != len(rows[0]):
            raise InputError(
                f"{walk.trace.source} has {len(rows[-1])} collectives and {walks[0].trace.source} has {len(rows[0])};"
                " give the traces of all ranks of one run, over the same iterations"
            )
    return rows


def _without_waits(walk: Walk, rows: Sequence[int], own: Sequence[tuple[float | None, float]]) -> Walk:
    """The walk with its collectives' shortest time where it was measured, with that by a law where there is one."""
    time_us, source = walk.times.time_us.copy(), list(walk.times.source)
    for row, (by_law, shortest) in zip(rows, own, strict=True):
        if source[row] == MEASURED:
            time_us[row] = shortest
        elif by_law is not None:
            time_us[row], source[row] = by_law, LAW
    return replace(walk, times=replace(walk.times, time_us=time_us, source=tuple(source)))


def _starts(walks: Sequence[Walk], rows: Sequence[Sequence[int]]) -> Floats:
    """When each rank begins, in µs after the first: a collective ends at one time on all, whatever their clocks say."""
    ends = [
        (walk.trace.activities.end_ns[own] - walk.work.iterations[0].start_ns) / 1e3
        for walk, own in zip(walks, rows, strict=True)
    ]
    return np.array([np.median(max(ends, key=np.median) - own) for own in ends])


def _met(walks: Sequence[Walk], starts: Floats, *, traced: bool) -> tuple[Floats, Floats]:
    """When the last rank reaches each collective, in µs of the common clock, and how long each rank waits for it.

    Ranks are walked again until nobody comes later: each turn settles one more collective at least.
    """
    latest: Floats = np.empty(0)
    while True:
        clocks = [
            replace(walk, latest_us={traced: latest - start}).in_sequence(traced=traced)[1]
            for walk, start in zip(walks, starts, strict=True)
        ]
        reached = np.array([own.reached_us for own in clocks]) + starts[:, None]
        before, latest = latest, reached.max(axis=0)
        if len(before) and np.allclose(before, latest, rtol=0, atol=1e-3, equal_nan=True):
            return latest, latest - reached
