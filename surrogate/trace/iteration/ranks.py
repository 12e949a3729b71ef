"""Several ranks of one run together: a collective ends when the last of them has reached it (Lin et al., TPDS 2024)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from surrogate.features.errors import InputError
from surrogate.features.operators import AllReduce
from surrogate.network.call import UnsupportedError
from surrogate.trace.calls import CallReader
from surrogate.trace.events.tables import Floats, Trace
from surrogate.trace.iteration.collectives import Laws, Measured, fit_laws, unseen_us
from surrogate.trace.iteration.predict import IterationTimes, Walk, walk_of
from surrogate.trace.iteration.times import LAW, MEASURED, collectives
from surrogate.trace.result import ResultTable


@dataclass(frozen=True, slots=True)
class RankTime:
    """One rank, times in µs per iteration.

    ``start_us`` is when it begins after the first to begin, as in the traces, whose clocks are aligned by the ends of
    their collectives. ``waiting_us`` is the time in collectives before the last rank reaches them; ``device_us`` holds
    it, as the measured one does. ``slowest``: its last iteration ends last, as predicted.
    """

    rank: int
    trace: str
    start_us: float
    measured_us: float
    predicted_us: float
    error_pct: float | None
    measured_waiting_us: float
    waiting_us: float
    measured_device_us: float
    device_us: float
    device_error_pct: float | None
    coverage: float
    slowest: bool


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One collective of all ranks: the largest rank's ``message_bytes``, times in µs without waiting.

    ``measured_us`` is the shortest of the ranks' times, that of the last to reach it; ``predicted_us`` the one used;
    ``last`` the rank that reaches it last, as predicted.
    """

    index: int
    collective: str
    message_bytes: int | None
    measured_us: float
    predicted_us: float
    source: str
    last: int


@dataclass(frozen=True, slots=True)
class RanksTime:
    """All ranks of a run, their collectives, the ``laws`` of these, and the iterations of each rank (``results``)."""

    ranks: tuple[RankTime, ...]
    collectives: tuple[CollectiveRow, ...]
    laws: Laws
    results: tuple[IterationTimes, ...]

    def __len__(self) -> int:
        return len(self.ranks)

    def __iter__(self) -> Iterator[RankTime]:
        return iter(self.ranks)

    @property
    def table(self) -> ResultTable:
        """The ranks as titled rows."""
        slowest = next(one for one in self.ranks if one.slowest)
        title = f"{len(self.ranks)} ranks, {self.results[0].times} times; the slowest is rank {slowest.rank}"
        return ResultTable(title, tuple(asdict(one) for one in self.ranks))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "ranks": [asdict(one) for one in self.ranks],
            "collectives": [asdict(one) for one in self.collectives],
            "laws": {kind: asdict(law) for kind, law in self.laws.items()},
            "iterations": [result.to_dict() for result in self.results],
        }


def rank_times(traces: Sequence[Trace], *, laws: Laws | None = None, **settings: Any) -> RanksTime:
    """Iteration times of all ranks of one run, from a trace of each; ``settings`` are those of `iteration_times`.

    With predicted times a collective takes what ``laws`` say; without them what the law says that is fitted on the
    measured collectives of other message sizes, so that none has seen itself. With measured times it takes the shortest
    of the ranks' times. How far apart the ranks begin is an input, like the time that loading data takes.

    Raises `InputError` for fewer than two traces, and where the ranks' collectives differ in number.
    """
    if len(traces) < 2:
        raise InputError(f"{len(traces)} trace came; ranks that wait for each other need two at least")
    ordered = sorted(traces, key=lambda trace: -1 if trace.rank is None else trace.rank)
    walks = [walk_of(trace, laws=laws, **settings) for trace in ordered]
    rows = _collectives(walks)
    problems = _problems(walks, rows)
    traced_us = np.array([walk.trace.activities.time_us[own] for walk, own in zip(walks, rows, strict=True)])
    own_us = traced_us.min(axis=0)  # the last rank to reach a collective waits for nobody
    known = [at for at, problem in enumerate(problems) if problem is not None]
    measured = [Measured(problem, own_us[at]) for at, problem in enumerate(problems) if problem is not None]
    fitted = fit_laws(measured) if laws is None else laws
    unseen = dict(zip(known, unseen_us(measured), strict=True)) if laws is None else {}
    walks = [_timed(walk, own, own_us, unseen) for walk, own in zip(walks, rows, strict=True)]
    starts = _starts(walks, rows)
    latest, waits = _met(walks, starts, traced=True)
    plain, _ = _met(walks, starts, traced=False)
    results = [
        replace(walk, latest_us={True: latest - start, False: plain - start}).result()
        for walk, start in zip(walks, starts, strict=True)
    ]
    ends = [start + sum(one.predicted_us for one in result) for start, result in zip(starts, results, strict=True)]
    before_us, after_us = (traced_us - own_us).sum(axis=1).tolist(), waits.sum(axis=1).tolist()
    ranks = tuple(
        _rank(at, ordered[at].rank, result, float(starts[at]), before_us[at], after_us[at], at == np.argmax(ends))
        for at, result in enumerate(results)
    )
    table = tuple(
        CollectiveRow(
            index=at,
            collective=problem.kind if problem else "not known",
            message_bytes=int(problem.dram_bytes) if problem else None,
            measured_us=float(own_us[at]),
            predicted_us=max(float(walk.times.time_us[own[at]]) for walk, own in zip(walks, rows, strict=True)),
            source=walks[0].times.source[rows[0][at]],
            last=ranks[int(np.argmin(waits[:, at]))].rank,
        )
        for at, problem in enumerate(problems)
    )
    return RanksTime(ranks, table, fitted, tuple(results))


def _rank(
    at: int, rank: int | None, result: IterationTimes, start_us: float, before_us: float, after_us: float, last: bool
) -> RankTime:
    """Means of one rank's iterations; waits in µs of all of them, as traced and as predicted."""
    count = len(result)
    names = ("measured_us", "predicted_us", "measured_device_us", "device_us")
    measured, predicted, measured_device, device = (
        float(sum(getattr(one, name) for one in result)) / count for name in names
    )
    device += after_us / count
    comparable = result.iterations[0].error_pct is not None
    return RankTime(
        rank=at if rank is None else rank,
        trace=result.trace,
        start_us=start_us,
        measured_us=measured,
        predicted_us=predicted,
        error_pct=100 * (predicted / measured - 1) if comparable else None,
        measured_waiting_us=before_us / count,
        waiting_us=after_us / count,
        measured_device_us=measured_device,
        device_us=device,
        device_error_pct=100 * (device / measured_device - 1) if comparable and measured_device else None,
        coverage=result.coverage,
        slowest=bool(last),
    )


def _collectives(walks: Sequence[Walk]) -> list[list[int]]:
    """Of each rank the rows of the collectives that its iterations launch, in the order of the walk."""
    rows = []
    for walk in walks:
        apart = collectives(walk.trace)
        units = (unit for position in range(len(walk.work.iterations)) for unit in walk.work.by_iteration[position])
        rows.append([row for unit in units for row in unit.activities if apart[row]])
    first, counts = walks[0].trace.source, [len(own) for own in rows]
    for walk, count in zip(walks, counts, strict=True):
        if count != counts[0] or not count:
            raise InputError(
                f"{walk.trace.source} has {count} collectives and {first} has {counts[0]}; give the traces of all"
                " ranks of one run, over the same iterations"
            )
    return rows


def _problems(walks: Sequence[Walk], rows: Sequence[Sequence[int]]) -> list[AllReduce | None]:
    """Every collective with the largest message of the ranks; None where no trace holds it."""
    largest: list[AllReduce | None] = [None] * len(rows[0])
    for walk, own in zip(walks, rows, strict=True):
        reader, ranges = CallReader(walk.trace), walk.trace.activities.range
        for at, row in enumerate(own):
            try:
                problem = reader.problems(reader.owner(int(ranges[row])))[0]
            except (UnsupportedError, IndexError):
                continue
            before = largest[at]
            if isinstance(problem, AllReduce) and (before is None or problem.dram_bytes > before.dram_bytes):
                largest[at] = problem
    return largest


def _timed(walk: Walk, rows: Sequence[int], own_us: Floats, unseen: Mapping[int, float | None]) -> Walk:
    """The walk with collectives that wait for nobody: by a law where predicted, else the shortest of all ranks'."""
    time_us, source = walk.times.time_us.copy(), list(walk.times.source)
    for at, row in enumerate(rows):
        by_law = unseen.get(at)
        if source[row] == MEASURED:
            time_us[row] = own_us[at]
        elif by_law is not None:
            time_us[row], source[row] = by_law, LAW
    return replace(walk, times=replace(walk.times, time_us=time_us, source=tuple(source)))


def _starts(walks: Sequence[Walk], rows: Sequence[Sequence[int]]) -> Floats:
    """When each rank begins, in µs after the first: as its collectives end at the same time on all ranks."""
    ends = [
        (walk.trace.activities.end_ns[own] - walk.work.iterations[0].start_ns) / 1e3
        for walk, own in zip(walks, rows, strict=True)
    ]
    starts = np.array([np.median(ends[0] - own) for own in ends])
    return starts - starts.min()


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
