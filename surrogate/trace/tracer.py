"""Trace live programs: spans of a PyTorch model and of its kernels, and leveled experiments (XSP, IPDPS 2020).

Deeper measurements slow a program down (section III-C). Therefore a program is run several times, each time recorded
one level deeper, and the runs are merged into one timeline. Outer spans keep the times of the shallow runs; inner spans
are placed at the same relative positions inside them.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from surrogate.collect.cudnn.activity import Activity
from surrogate.collect.device import demangled
from surrogate.trace import events
from surrogate.trace.events.tables import Trace
from surrogate.trace.result import ResultTable, Row
from surrogate.trace.spans import LEVELS, Spans, level_number, parents_by_inclusion, trace_spans

if TYPE_CHECKING:
    import pandas as pd
    from torch.nn import Module

_Record = tuple[int, str, int, int, int, str, Mapping[str, object], int]
"""Level, name, start, end, thread, track, tags, number. A device record has the number of the span around its launch.
"""
_DEVICE = -1
_CALL = LEVELS.index("call")
_OFF = nullcontext()
"""The span of a level that is off."""
CLOCK_READINGS = 10
"""Number of comparisons of the host's clock with CUPTI's."""


class Tracer:
    """A collector of spans of the levels that are on. It may be used from many threads.

    A span of a level that is off costs one look-up and reads no clock.

    Parameters
    ----------
    *levels : str
        The levels to switch on (`LEVELS`).

    Raises
    ------
    InputError
        If a level to switch on or off is unknown. Opening a span of an unknown level does nothing.
    """

    __slots__ = ("_activity", "_numbers", "_on", "_records")

    def __init__(self, *levels: str) -> None:
        self._records: list[_Record] = []
        self._numbers = count()
        self._activity: Activity | None = None
        self._on: frozenset[str] = frozenset()
        self.enable(*levels)

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels that are on, outermost first."""
        return tuple(level for level in LEVELS if level in self._on)

    def enable(self, *levels: str) -> None:
        """Switch levels on. Spans that are opened from now on are recorded."""
        self._on |= {LEVELS[level_number(level)] for level in levels}

    def disable(self, *levels: str) -> None:
        """Switch levels off; without arguments, all levels. Spans that are already open are still recorded."""
        self._on -= {LEVELS[level_number(level)] for level in levels or LEVELS}

    def span(self, level: str, name: str, **tags: object) -> AbstractContextManager[None]:
        """Return a context manager that records its duration if ``level`` is on.

        Parameters
        ----------
        level : str
            The level of the span.
        name : str
            The name of the span.
        **tags
            Further facts about the span.
        """
        return self._recorded(level, name, tags) if level in self._on else _OFF

    @contextmanager
    def _recorded(self, level: str, name: str, tags: dict[str, object]) -> Iterator[None]:
        """An open span. If CUPTI is recording, a label attributes the launches inside to it."""
        number = next(self._numbers)
        thread = threading.current_thread()
        with self._activity.label(number) if self._activity else _OFF:
            start_ns = time.perf_counter_ns()
            try:
                yield
            except BaseException as error:
                tags["error"] = type(error).__name__
                raise
            finally:
                times = (start_ns, time.perf_counter_ns())
                # One append per span: safe between threads without a lock.
                self._records.append((level_number(level), name, *times, thread.ident or 0, thread.name, tags, number))

    def clear(self) -> None:
        """Delete all recorded spans."""
        self._records.clear()

    @contextmanager
    def kernels(self) -> Iterator[None]:
        """Record spans of level ``kernel`` for the GPU work that the spans inside launch, with CUPTI.

        Nothing is recorded if the level is off. The caller must wait for the GPU inside, as for any timing. Raises
        `InputError` if CUPTI (cupti-python) is missing, refuses, or loses records.
        """
        if "kernel" not in self.levels:
            yield
            return
        self._activity, reason = Activity.open(0)
        if self._activity is None:
            raise events.refusal("no_kernels", reason=reason)
        from cupti import cupti  # pyright: ignore[reportMissingImports]

        first = next(self._numbers)
        # A pause between the two readings makes the difference too small, so the largest of several is the best.
        clock_ns = max(time.perf_counter_ns() - cupti.get_timestamp() for _ in range(CLOCK_READINGS))
        try:
            yield
        finally:
            activity, self._activity = self._activity, None
            numbers = range(first, next(self._numbers))
            launched = activity.launches_by_label(numbers)
            lost, reason = activity.dropped(), activity.broken
            activity.close()
        for number, spans in zip(numbers, launched, strict=True):
            for span in spans:
                kernel = span.kernel
                times = (span.start_ns + clock_ns, span.end_ns + clock_ns)
                name, tags = (demangled(kernel.kernel_name), kernel.to_dict()) if kernel else ("copy or memset", {})
                self._records.append((level_number("kernel"), name, *times, _DEVICE, "GPU", tags, number))
        if lost or reason:
            raise events.refusal("records_lost", lost=lost, reason=reason or "its buffers were full")

    def spans(self) -> Spans:
        """Return the spans recorded so far. The parent of a span is the innermost span of an upper level around it.

        Spans of the same thread are preferred as parents (`surrogate.trace.spans.parents_by_inclusion`). The parent of
        a device span is the innermost span that was open at its launch.
        """
        records = self._records.copy()
        columns = list(zip(*records, strict=True)) if records else [()] * 8
        level, start, end, thread = (np.array(columns[at], dtype=np.int64) for at in (0, 2, 3, 4))
        parent = parents_by_inclusion(level, start, end, thread)
        rows = {number: row for row, number in enumerate(columns[7]) if thread[row] != _DEVICE}
        for row in np.flatnonzero(thread == _DEVICE).tolist():
            parent[row] = rows.get(columns[7][row], -1)
        return Spans(columns[1], level, start, end, columns[5], parent, columns[6]).in_time_order()


_shared = Tracer()
clear, disable, enable, recorded, span = (_shared.clear, _shared.disable, _shared.enable, _shared.spans, _shared.span)
"""The methods of one shared tracer. All its levels are off until one is enabled."""


@contextmanager
def module_spans(model: "Module", tracer: Tracer) -> Iterator[None]:
    """Record a span of level ``layer`` around every call of a leaf module, named by its path (``features.0``).

    The tags are ``type``, the module's class, and ``shape``, the shape of the first input. Hooks are removed at the
    end. If a module's forward raises, its span is not recorded.

    Parameters
    ----------
    model : torch.nn.Module
        The model to observe.
    tracer : Tracer
        The tracer that records the spans.
    """
    handles = []
    open_spans: dict[int, list[AbstractContextManager[None]]] = {}
    for name, module in model.named_modules():
        if next(module.children(), None) is not None:
            continue

        def before(module: "Module", inputs: Sequence[object], name: str = name) -> None:
            shape = tuple(getattr(inputs[0], "shape", ())) if inputs else ()
            kind = type(module).__name__
            opened = tracer.span("layer", name or kind, type=kind, shape=shape)
            opened.__enter__()
            open_spans.setdefault(id(module), []).append(opened)

        def after(module: "Module", inputs: object, output: object) -> None:
            open_spans[id(module)].pop().__exit__(None, None, None)

        handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def operator_spans(tracer: Tracer) -> Iterator[None]:
    """Record a span of level ``operator`` around every operator that PyTorch dispatches on this thread.

    Operators of the forward and of the backward pass are recorded.

    Parameters
    ----------
    tracer : Tracer
        The tracer that records the spans.
    """
    # The dispatch mode itself costs time, so it is not installed if the level is off.
    if "operator" not in tracer.levels:
        yield
        return
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Callable[..., object], types: object, args: Sequence[object] = (), kwargs: Any = None
        ) -> object:
            with tracer.span("operator", str(func)):
                return func(*args, **(kwargs or {}))

    with Mode():
        yield


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
        rows, first = list[Row](), self.runs[0]
        for before, run in zip((first, *self.runs), self.runs, strict=False):
            added_us = run.median_us - before.median_us
            own_us = run.spans.time_us[run.spans.level == LEVELS.index(run.level)]
            share = 100 * added_us / first.median_us if first.median_us else None
            times = {"model_us": run.median_us, "overhead_us": added_us, "overhead_pct": share}
            rows.append({"level": run.level, **times, "spans": len(own_us), "spans_us": float(own_us.sum())})
        return ResultTable(f"Leveled experiment, {len(first.model_us)} batches each", tuple(rows))


def leveled(
    run: Callable[[Tracer], object], levels: tuple[str, ...] = ("model", "layer"), *, repeats: int = 5, warmup: int = 1
) -> Leveled:
    """Run a program with ``levels[:1]`` on, then ``levels[:2]``, …, ``repeats`` times each.

    The depths alternate (1, 2, …, 1, 2, …), so a drift of the machine's clock affects all of them equally.

    Parameters
    ----------
    run : callable
        Called with a `Tracer`. It opens the spans, and must open one of level ``levels[0]`` around everything, or
        around each batch.
    levels : tuple of str
        Levels from the outside in.
    repeats, warmup : int
        Number of recorded runs per depth, and of runs before them.

    Returns
    -------
    Leveled

    Raises
    ------
    InputError
        If levels are unknown or unordered, ``repeats`` is below 1, or a run opens no span of the outermost level.
    """
    numbers = [level_number(level) for level in levels]
    if not levels or numbers != sorted(set(numbers)):
        raise events.refusal("levels", given=", ".join(levels) or "(none)", levels=", ".join(LEVELS))
    if repeats < 1:
        raise events.refusal("repeats", repeats=repeats)
    for _ in range(warmup):
        run(Tracer(*levels))
    recorded: list[list[LevelRun]] = [[] for _ in levels]
    for _ in range(repeats):
        for depth, level in enumerate(levels):
            tracer = Tracer(*levels[: depth + 1])
            run(tracer)
            recorded[depth].append(_level_run(level, tracer.spans(), numbers[0]))
            if not recorded[depth][-1].model_us:
                raise events.refusal("no_outer", level=levels[0])
    runs = []
    for each in recorded:
        median = sorted(each, key=lambda one: sum(one.model_us))[repeats // 2]
        runs.append(replace(median, model_us=tuple(chain.from_iterable(one.model_us for one in each))))
    return Leveled(tuple(runs))


def _level_run(level: str, spans: Spans, outermost: int = 0) -> LevelRun:
    """Return the run that recorded the spans, with the times of those on the outermost level."""
    return LevelRun(level, tuple(spans.time_us[spans.level == outermost].tolist()), spans)


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
            raise events.refusal("not_deeper", source=trace.source, level=deepest, before=runs[-1].level)
        runs.append(_level_run(deepest, spans))
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
        The timeline. A note counts the spans that do not fit into their parent.
    int
        The number of spans of deeper runs that have no counterpart and are left out.
    """
    numbers: dict[tuple[_Path, int], int] = {}
    placed: dict[int, _Placed] = {}  # by the number that counterparts share
    reached = -1  # the deepest level that the runs so far have
    lost = late = 0
    for spans in runs:
        without_place, outside = _place(spans, reached, numbers, placed)
        lost, late = lost + without_place, late + outside
        reached = max(reached, int(spans.level.max(initial=-1)))
    columns: list[Any] = list(zip(*placed.values(), strict=True)) or [()] * len(_Placed._fields)
    name, level, start, end, track, parent, tags, _ = columns
    first, last = (np.rint(column).astype(np.int64) for column in (start, end))
    notes = (events.text("late", late=late, spans=len(placed)),) if late else ()
    merged = Spans(name, np.array(level, np.int64), first, last, track, np.array(parent, np.int64), tags, notes)
    return merged.in_time_order(), lost


def _place(
    spans: Spans, reached: int, numbers: dict[tuple["_Path", int], int], placed: dict[int, "_Placed"]
) -> tuple[int, int]:
    """Add a run's spans below level ``reached`` to ``placed``, in order.

    Return the number of spans without a place, and of spans that end after the parent that includes them in the run.
    """
    lost = late = 0
    number, top = _counterparts(spans, numbers)
    parent, start, end = (column.tolist() for column in (spans.parent, spans.start_ns, spans.end_ns))
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
        late += inside[i] and new_end > placed[number[p]].end + 0.5
        above = placed[number[p]].row if p >= 0 else -1
        times = new_start, new_end, spans.track[i], above, spans.tags[i], len(placed)
        placed[number[i]] = _Placed(spans.name[i], int(spans.level[i]), *times)
    return lost, late


class _Path(NamedTuple):
    """The identity of a span: its parent's number, its level, and its name (empty for an iteration)."""

    parent: int
    level: int
    name: str


class _Placed(NamedTuple):
    """A span of the merged timeline, with the columns of `Spans`, and its row."""

    name: str
    level: int
    start: float
    end: float
    track: str
    parent: int
    tags: Mapping[str, object]
    row: int


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
