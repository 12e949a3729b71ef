"""Leveled experiments (XSP, IPDPS 2020, section III-C): each level's time from the run that measured only down to it.

Measuring deeper slows a program. Runs of one program, each recorded a level deeper than the one before, make one
timeline: the outer spans as the shallow runs measured them, inner ones placed where they lay between them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.features.errors import InputError
from surrogate.trace.events.tables import Trace
from surrogate.trace.result import ResultTable
from surrogate.trace.spans import LEVELS, Spans, in_time_order, level_number, trace_spans
from surrogate.trace.tracer import Tracer


@dataclass(frozen=True, slots=True)
class LevelRun:
    """The runs that measured down to ``level``: time of the model span in µs per repeat, spans of the median run."""

    level: str
    model_us: tuple[float, ...]
    spans: Spans

    @property
    def median_us(self) -> float:
        """Median of the model's time."""
        return float(np.median(self.model_us))


@dataclass(frozen=True, slots=True, repr=False)
class Leveled:
    """A leveled experiment: one `LevelRun` per depth, from the model alone down to the deepest level."""

    runs: tuple[LevelRun, ...]

    def __repr__(self) -> str:
        return repr(self.rows())

    def merged(self) -> tuple[Spans, int]:
        """One timeline of all runs by `merge_levels`, and how many spans have no counterpart."""
        return merge_levels([run.spans for run in self.runs])

    def rows(self) -> ResultTable:
        """Per level: the model's time when measured down to it, the overhead it adds, its spans and their time."""
        rows, shallow_us = [], self.runs[0].median_us
        for before, run in zip((self.runs[0], *self.runs), self.runs, strict=False):
            added = run.median_us - before.median_us
            on_level = run.spans.level == LEVELS.index(run.level)
            rows.append(
                {
                    "level": run.level,
                    "model_us": run.median_us,
                    "overhead_us": added,
                    "overhead_pct": 100 * added / shallow_us if shallow_us else None,
                    "spans": int(on_level.sum()),
                    "spans_us": float(run.spans.time_us[on_level].sum()),
                }
            )
        return ResultTable(f"Leveled experiment, {len(self.runs[0].model_us)} runs each", tuple(rows))


def leveled(
    run: Callable[[Tracer], object], levels: tuple[str, ...] = ("model", "layer"), *, repeats: int = 5, warmup: int = 1
) -> Leveled:
    """Call ``run(tracer)`` with ``levels[:1]`` on, then ``levels[:2]``, …, ``repeats`` times each.

    ``run`` opens the spans; it must open one of level ``levels[0]`` around everything. Depths take turns (1, 2, …,
    1, 2, …), so that a drift of the machine's clock hits all alike.

    Raises `InputError` for unknown or unordered levels, fewer than 1 repeat, or a run without the outermost span.
    """
    numbers = [level_number(level) for level in levels]
    if not levels or numbers != sorted(set(numbers)):
        raise InputError(f"levels {', '.join(levels) or '(none)'} must go from the outside in: {', '.join(LEVELS)}")
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; at least 1 run per level is needed")
    for _ in range(warmup):
        run(Tracer(*levels))
    results: list[list[tuple[float, Spans]]] = [[] for _ in levels]
    for _ in range(repeats):
        for depth, recorded in enumerate(results, start=1):
            tracer = Tracer(*levels[:depth])
            run(tracer)
            spans = tracer.spans()
            outer = spans.time_us[spans.level == numbers[0]]
            if not len(outer):
                raise InputError(f"the run opened no span of level {levels[0]!r}; open one around everything")
            recorded.append((float(outer.sum()), spans))
    runs = []
    for level, recorded in zip(levels, results, strict=True):
        median = sorted(recorded, key=lambda result: result[0])[repeats // 2]
        runs.append(LevelRun(level, tuple(time_us for time_us, _ in recorded), median[1]))
    return Leveled(tuple(runs))


def leveled_traces(traces: Sequence[Trace]) -> Leveled:
    """Traces of one program, each recorded with deeper levels than the one before, as a leveled experiment.

    A trace's level is its deepest one, its repeats are its iterations. Raises `InputError` where a trace goes no deeper
    than the one before it.
    """
    runs: list[LevelRun] = []
    for trace in traces:
        spans = trace_spans(trace)
        deepest = LEVELS[int(spans.level.max())]
        if runs and LEVELS.index(deepest) <= LEVELS.index(runs[-1].level):
            raise InputError(
                f"{trace.source}: recorded down to {deepest}, the one before it to {runs[-1].level}; give traces of one"
                " program from the outermost level in"
            )
        runs.append(LevelRun(deepest, tuple(spans.time_us[spans.level == 0].tolist()), spans))
    return Leveled(tuple(runs))


def merge_levels(runs: Sequence[Spans]) -> tuple[Spans, int]:
    """(one timeline, how many spans of deeper runs have no counterpart to lie in and are left out).

    Each run gives the levels that the runs before it lack; its other spans only say where those lie: the n-th span of a
    name inside its parent is the n-th of that name there, iterations count by their order alone. Spans keep the time
    that their own run measured. Those inside their parent keep their order; the gaps between them, which hold the cost
    of measuring, shrink so that they fill the parent's shorter time. What runs behind its parent (kernels on a stream,
    the backward pass) keeps its place in the iteration in proportion, one after the other on its track.
    """
    numbers: dict[Any, int] = {}
    placed: dict[int, tuple[int, float, float]] = {}  # number → place in ``rows``, start, end
    rows: list[tuple[Any, ...]] = []
    reached, lost = -1, 0
    for spans in runs:
        number, top = _counterparts(spans, numbers)
        parent, start, end, track = spans.parent.tolist(), spans.start_ns.tolist(), spans.end_ns.tolist(), spans.track
        inside = [p >= 0 and start[p] <= start[i] and end[i] <= end[p] for i, p in enumerate(parent)]
        members = np.flatnonzero(spans.level > reached)
        members = members[np.argsort(spans.level[members], kind="stable")].tolist()
        # Per parent and track: the time of the spans inside, and where the last one ended, there and here.
        busy = Counter[Any]()
        for i in members:
            busy[parent[i], track[i]] += (end[i] - start[i]) * inside[i]
        last: dict[Any, tuple[float, float]] = {}
        for i in members:
            p, at, key = parent[i], float(start[i]), (parent[i] if inside[i] else -1, track[i])
            if (p < 0 <= reached) or (p >= 0 and number[p] not in placed):
                lost += 1
                continue
            if p >= 0:
                outer = p if inside[i] else top[i]
                _, begin, stop = placed[number[outer]]
                length, taken = end[outer] - start[outer], busy[key]
                share = max(stop - begin - taken, 0) / (length - taken) if length > taken else 0.0
                ended, free = last.get(key, (start[outer], begin))
                at = free + (at - ended) * share if inside[i] else max(begin + (at - start[outer]) * share, free)
            last[key] = end[i], at + end[i] - start[i]
            placed[number[i]] = len(rows), at, last[key][1]
            above = placed[number[p]][0] if p >= 0 else -1
            rows.append((spans.name[i], spans.level[i], at, last[key][1], track[i], above, spans.tags[i]))
        reached = max(reached, int(spans.level.max(initial=-1)))
    columns = list(zip(*rows, strict=True))
    level, starts, ends, parents = (np.rint(np.array(columns[index], float)).astype(np.int64) for index in (1, 2, 3, 5))
    return in_time_order(columns[0], level, starts, ends, columns[4], parents, columns[6]), lost


def _counterparts(spans: Spans, numbers: dict[Any, int]) -> tuple[list[int], list[int]]:
    """(the number that each span shares with its counterparts in other runs, the row of the outermost span around)."""
    number, top, seen = list[int](), list[int](), Counter[Any]()
    for row, parent in enumerate(spans.parent.tolist()):
        name = spans.name[row] if parent >= 0 else ""
        path = (number[parent] if parent >= 0 else -1, int(spans.level[row]), name)
        number.append(numbers.setdefault((*path, seen[path]), len(numbers)))
        top.append(top[parent] if parent >= 0 else row)
        seen[path] += 1
    return number, top
