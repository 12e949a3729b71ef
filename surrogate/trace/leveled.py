"""Leveled experiments: recordings of one program with more and more levels, merged into one timeline (XSP, IPDPS 2020).

Deeper measurements slow a program down (section III-C). Therefore a program is recorded several times, each time one
level deeper, and the recordings are merged. Outer spans keep the times of the shallow recordings; inner spans are
placed at the same relative positions inside them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from surrogate.features.errors import InputError
from surrogate.trace.events.tables import Trace
from surrogate.trace.result import ResultTable
from surrogate.trace.spans import LEVELS, Spans, trace_spans

if TYPE_CHECKING:
    import pandas as pd

_CALL = LEVELS.index("call")


@dataclass(frozen=True, slots=True)
class LevelRun:
    """The runs that measured down to ``level``: µs of each model span (a batch), and spans of the median run."""

    level: str
    model_us: tuple[float, ...]
    spans: Spans

    @property
    def median_us(self) -> float:
        """Median of the model's time, in µs."""
        return float(np.median(self.model_us))


@dataclass(frozen=True, slots=True, repr=False)
class Leveled:
    """A leveled experiment: one `LevelRun` per depth, from the model down to the deepest level."""

    runs: tuple[LevelRun, ...]

    def __repr__(self) -> str:
        return repr(self.rows())

    def merged(self) -> tuple[Spans, int]:
        """Return one timeline of all runs by `merge_levels`, and the number of spans without a counterpart."""
        return merge_levels([run.spans for run in self.runs])

    def rows(self) -> ResultTable:
        """Return per level the model's time, the overhead that the level adds, its number of spans, and their time."""
        rows = []
        shallow_us = self.runs[0].median_us
        for before, run in zip((self.runs[0], *self.runs), self.runs, strict=False):
            added = run.median_us - before.median_us
            on_level = run.spans.level == LEVELS.index(run.level)
            figures = {"level": run.level, "model_us": run.median_us, "overhead_us": added}
            share = 100 * added / shallow_us if shallow_us else None
            counts = {"spans": int(on_level.sum()), "spans_us": float(run.spans.time_us[on_level].sum())}
            rows.append({**figures, "overhead_pct": share, **counts})
        return ResultTable(f"Leveled experiment, {len(self.runs[0].model_us)} batches each", tuple(rows))


def leveled_traces(traces: Sequence[Trace], counters: "pd.DataFrame | None" = None) -> Leveled:
    """Return traces of one program, each recorded down to a deeper level, as a leveled experiment.

    Parameters
    ----------
    traces : sequence of Trace
        The traces, shallow ones first. The level of a trace is its deepest one, its batches are its iterations.
    counters : DataFrame, optional
        Counters of the last trace's kernels.

    Returns
    -------
    Leveled

    Raises
    ------
    InputError
        If a trace is not deeper than the one before it.
    """
    runs: list[LevelRun] = []
    for trace in traces:
        spans = trace_spans(trace, counters if trace is traces[-1] else None)
        deepest = LEVELS[int(spans.level.max())]
        if runs and LEVELS.index(deepest) <= LEVELS.index(runs[-1].level):
            raise InputError(
                f"{trace.source}: recorded down to {deepest}, the one before it to {runs[-1].level}; give traces of one"
                " program, the shallowest first"
            )
        runs.append(LevelRun(deepest, tuple(spans.time_us[spans.level == 0].tolist()), spans))
    return Leveled(tuple(runs))


def merge_levels(runs: Sequence[Spans]) -> tuple[Spans, int]:
    """Merge runs of one program into one timeline.

    Each run supplies the levels that the runs before it lack. Its other spans only determine the positions of these:
    the n-th span of a name inside its parent corresponds to the n-th span of that name in the other runs. Iterations
    correspond by order. Spans keep the durations of their own run.

    Spans inside their parent keep their order. The gaps between them contain the cost of measuring, so they shrink
    until the spans fit into the parent's shorter time. A span outside its parent's time (a kernel on a stream, the
    backward pass) keeps its relative position in the iteration. Such spans follow each other on their track and begin
    no earlier than their parent. If the parent is a launch call, they also keep their delay after the start of the
    call, up to the end of the call.

    Parameters
    ----------
    runs : sequence of Spans
        The spans of each run, shallow runs first.

    Returns
    -------
    Spans
        The timeline.
    int
        The number of spans of deeper runs that have no counterpart and are left out.
    """
    numbers: dict[tuple[_Path, int], int] = {}
    placed: dict[int, _Placed] = {}  # by the number that counterparts share
    reached = -1  # the deepest level that the runs so far have
    lost = 0
    for spans in runs:
        lost += _place(spans, reached, numbers, placed)
        reached = max(reached, int(spans.level.max(initial=-1)))
    rows = list(placed.values())
    merged = Spans(
        name=tuple(row.spans.name[row.span_row] for row in rows),
        level=np.array([row.spans.level[row.span_row] for row in rows], np.int64),
        start_ns=np.rint([row.start for row in rows]).astype(np.int64),
        end_ns=np.rint([row.end for row in rows]).astype(np.int64),
        track=tuple(row.spans.track[row.span_row] for row in rows),
        parent=np.array([row.parent for row in rows], np.int64),
        tags=tuple(row.spans.tags[row.span_row] for row in rows),
    )
    return merged.in_time_order(), lost


def _place(spans: Spans, reached: int, numbers: dict[tuple["_Path", int], int], placed: dict[int, "_Placed"]) -> int:
    """Add a run's spans below level ``reached`` to ``placed``, in order. Return the number of spans without a place."""
    lost = 0
    number, top = _counterparts(spans, numbers)
    parent = spans.parent.tolist()
    start = spans.start_ns.tolist()
    end = spans.end_ns.tolist()
    inside = [p >= 0 and start[p] <= start[i] and end[i] <= end[p] for i, p in enumerate(parent)]
    # Select the spans of new levels, outer levels first, because they contain the others.
    members = np.flatnonzero(spans.level > reached)
    members = members[np.argsort(spans.level[members], kind="stable")].tolist()
    # Per parent and track: the time of the spans inside, and the end of the last one in its run and in the timeline.
    busy = Counter[tuple[int, str]]()
    for i in members:
        busy[parent[i], spans.track[i]] += (end[i] - start[i]) * inside[i]
    last: dict[tuple[int, str], tuple[float, float]] = {}
    for i in members:
        p = parent[i]
        new_start = float(start[i])
        key = (p if inside[i] else -1, spans.track[i])
        if (p < 0 <= reached) or (p >= 0 and number[p] not in placed):
            lost += 1
            continue
        if p >= 0:
            # Gaps shrink by the ratio of the parent's time without its spans: in the timeline, over that in the run.
            outer = p if inside[i] else top[i]
            around = placed[number[outer]]
            gaps = end[outer] - start[outer] - busy[key]
            share = max(around.end - around.start - busy[key], 0) / gaps if gaps > 0 else 0.0
            ended, free = last.get(key, (start[outer], around.start))
            parent_span = placed[number[p]]
            since = max(start[i] - start[p], 0) if spans.level[p] == _CALL else 0
            launched = parent_span.start + min(since, parent_span.end - parent_span.start)
            earliest = max(around.start + (new_start - start[outer]) * share, free, launched)
            new_start = free + (new_start - ended) * share if inside[i] else earliest
        new_end = new_start + end[i] - start[i]
        last[key] = (end[i], new_end)
        above = placed[number[p]].row if p >= 0 else -1
        placed[number[i]] = _Placed(len(placed), new_start, new_end, above, spans, i)
    return lost


class _Path(NamedTuple):
    """The identity of a span: its parent's number, its level, and its name (empty for an iteration)."""

    parent: int
    level: int
    name: str


class _Placed(NamedTuple):
    """A span of the merged timeline: its row, its times, its parent's row, and its row ``span_row`` in ``spans``."""

    row: int
    start: float
    end: float
    parent: int
    spans: Spans
    span_row: int


def _counterparts(spans: Spans, numbers: dict[tuple[_Path, int], int]) -> tuple[list[int], list[int]]:
    """Return the number that each span shares with its counterparts, and the row of the outermost span around it."""
    number: list[int] = []
    top: list[int] = []
    seen = Counter[_Path]()
    for row, parent in enumerate(spans.parent.tolist()):
        name = spans.name[row] if parent >= 0 else ""
        path = _Path(number[parent] if parent >= 0 else -1, int(spans.level[row]), name)
        number.append(numbers.setdefault((path, seen[path]), len(numbers)))
        top.append(top[parent] if parent >= 0 else row)
        seen[path] += 1
    return number, top
