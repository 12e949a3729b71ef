"""Several ranks of one run together: a collective ends when the last of them has reached it (Lin et al., TPDS 2024)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from surrogate.features.errors import InputError
from surrogate.features.operators import AllReduce
from surrogate.network.call import UnsupportedError
from surrogate.trace.calls import CallReader
from surrogate.trace.events.tables import Floats, Trace
from surrogate.trace.iteration.collectives import fit_laws, unseen_us
from surrogate.trace.iteration.overheads import Overheads, pooled
from surrogate.trace.iteration.predict import IterationTimes, Walk, walk_of
from surrogate.trace.iteration.times import LAW, MEASURED, collectives
from surrogate.trace.result import ResultTable, Row

_MEANS = ("measured_us", "predicted_us", "measured_device_us", "device_us")


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
    own_us = traced_us.min(axis=0)
    messages = _messages(walks[0].trace, rows[0])
    problems, times = list(messages.values()), own_us[list(messages)].tolist()
    overheads = pooled([walk.facts["overheads"] for walk in walks])
    unseen: dict[int, float | None] = {}
    if not overheads.laws:
        overheads = replace(overheads, laws=fit_laws(problems, times))
        unseen = dict(zip(messages, unseen_us(problems, times), strict=True))
    for at, own in enumerate(rows):
        walks[at] = _without_waits(walks[at], own, [(unseen.get(i), us) for i, us in enumerate(own_us)])
    # Clocks of ranks differ; a collective ends at the same time on all of them.
    ends = [
        (walk.trace.activities.end_ns[own] - walk.work.iterations[0].start_ns) / 1e3
        for walk, own in zip(walks, rows, strict=True)
    ]
    starts = np.array([np.median(max(ends, key=np.median) - own) for own in ends])
    met = {traced: _met(walks, starts, traced=traced) for traced in (True, False)}
    waits = met[True][1]
    results = tuple(
        replace(walk, latest_us={traced: latest - start for traced, (latest, _) in met.items()}).result()
        for walk, start in zip(walks, starts, strict=True)
    )
    last = int(np.argmax(starts + [sum(one.predicted_us for one in own) for own in results]))
    names = [at if walk.trace.rank is None else walk.trace.rank for at, walk in enumerate(walks)]
    table = []
    for at, (result, name) in enumerate(zip(results, names, strict=True)):
        count = len(result)
        row: Row = {"rank": name, "trace": result.trace, "start_us": float(starts[at])}
        row |= {key: float(sum(getattr(one, key) for one in result)) / count for key in _MEANS}
        before, after = (float(part.sum()) / count for part in (traced_us[at] - own_us, waits[at]))
        row |= {"measured_waiting_us": before, "waiting_us": after, "device_us": row["device_us"] + after}
        for error, key in (("error_pct", "predicted_us"), ("device_error_pct", "device_us")):
            known = row["measured_us" if key == "predicted_us" else "measured_device_us"]
            row[error] = 100 * (row[key] / known - 1) if walks[at].comparable and known else None
        table.append(row | {"coverage": result.coverage, "slowest": at == last})
    apart = [
        {
            "index": at,
            "collective": messages[at].kind if at in messages else None,
            "message_bytes": int(messages[at].dram_bytes) if at in messages else None,
            "measured_us": float(own_us[at]),
            "predicted_us": float(walks[0].times.time_us[row]),
            "source": walks[0].times.source[row],
            "last": names[int(np.argmin(waits[:, at]))],
        }
        for at, row in enumerate(rows[0])
    ]
    title = f"{len(walks)} ranks, {walks[0].facts['times']} times; rank {names[last]} ends last"
    return RanksTime(
        ResultTable(title, tuple(table)), ResultTable("Collectives, without waits", tuple(apart)), results, overheads
    )


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


def _messages(trace: Trace, rows: Sequence[int]) -> dict[int, AllReduce]:
    """Position among ``rows`` → the collective, where the trace holds its message."""
    reader, messages = CallReader(trace), {}
    for at, row in enumerate(rows):
        try:
            problems = reader.problems(reader.owner(int(trace.activities.range[row])))
        except UnsupportedError:
            continue
        if isinstance(problems[0], AllReduce):
            messages[at] = problems[0]
    return messages


def _without_waits(walk: Walk, rows: Sequence[int], times: Sequence[tuple[float | None, float]]) -> Walk:
    """The walk with collectives' (time by the law, if any; shortest measured time): the latter where not predicted."""
    time_us, source = walk.times.time_us.copy(), list(walk.times.source)
    for row, (by_law, shortest) in zip(rows, times, strict=True):
        if source[row] == MEASURED:
            time_us[row] = shortest
        elif by_law is not None:
            time_us[row], source[row] = by_law, LAW
    return replace(walk, times=replace(walk.times, time_us=time_us, source=tuple(source)))


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
        if len(before) and np.allclose(before, latest, rtol=0, atol=1e-3):
            return latest, latest - reached
