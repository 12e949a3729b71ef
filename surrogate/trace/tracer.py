"""A live tracer of spans, of a PyTorch model and of the kernels it launches, and leveled experiments (XSP, IPDPS 2020).

Measuring deeper slows a program (section III-C). Runs of one program, each recorded a level deeper than the one before,
make one timeline: the outer spans as the shallow runs measured them, inner ones placed where they lay between them.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from surrogate.collect.cudnn.activity import Activity
from surrogate.collect.device import demangled
from surrogate.features.errors import InputError
from surrogate.trace.events.tables import Trace
from surrogate.trace.result import ResultTable
from surrogate.trace.spans import LEVELS, Spans, in_time_order, level_number, parents_by_inclusion, trace_spans

if TYPE_CHECKING:
    import pandas as pd
    from torch.nn import Module

_Record = tuple[int, str, int, int, int, str, Mapping[str, object], int]
"""Level, name, start, end, thread, track, tags, number; what ran on the device has the number of the span around it."""
_DEVICE = -1
_CALL = LEVELS.index("call")
_OFF = nullcontext()
"""The span of a level that is off."""


class Tracer:
    """Collects spans of the levels that are on. Safe for use from many threads.

    A span of a level that is off costs one look-up and reads no clock. Switching an unknown level raises
    `InputError`; opening a span of one does nothing, since it can never be on.
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
        """Switch levels on; spans opened from now on count."""
        self._on |= {LEVELS[level_number(level)] for level in levels}

    def disable(self, *levels: str) -> None:
        """Switch levels off, all where none is named; spans already open are still recorded."""
        self._on -= {LEVELS[level_number(level)] for level in levels or LEVELS}

    def span(self, level: str, name: str, **tags: object) -> AbstractContextManager[None]:
        """A context manager that records its duration under ``name``, with ``tags``, if ``level`` is on."""
        return self._recorded(level, name, tags) if level in self._on else _OFF

    @contextmanager
    def _recorded(self, level: str, name: str, tags: dict[str, object]) -> Iterator[None]:
        """A span that is on; CUPTI, where it listens, is told by a label whose the launches inside are."""
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
        """Forget all recorded spans."""
        self._records.clear()

    @contextmanager
    def kernels(self) -> Iterator[None]:
        """Spans of level ``kernel``, where that is on, of what the spans inside launch on the GPU, by CUPTI.

        Wait for the GPU inside, as for any timing. Raises `InputError` where CUPTI (cupti-python) is missing, refuses,
        or loses records.
        """
        if "kernel" not in self.levels:
            yield
            return
        self._activity, why = Activity.open(0)
        if self._activity is None:
            raise InputError(
                f"kernels cannot be recorded: {why}; leave the level 'kernel' out, or install cupti-python"
            )
        from cupti import cupti  # pyright: ignore[reportMissingImports]

        first = next(self._numbers)
        clock_ns = time.perf_counter_ns() - cupti.get_timestamp()
        try:
            yield
        finally:
            activity = self._activity
            self._activity = None
            numbers = range(first, next(self._numbers))
            launched = activity.launches_by_label(numbers)
            lost = activity.dropped()
            why = activity.broken
            activity.close()
        for number, spans in zip(numbers, launched, strict=True):
            for span in spans:
                kernel = span.kernel
                times = (span.start_ns + clock_ns, span.end_ns + clock_ns)
                name = demangled(kernel.kernel_name) if kernel else "copy or memset"
                tags = kernel.to_dict() if kernel else {}
                self._records.append((level_number("kernel"), name, *times, _DEVICE, "GPU", tags, number))
        if lost or why:
            raise InputError(f"CUPTI lost {lost} records of kernels ({why or 'its buffers were full'}); record less")

    def spans(self) -> Spans:
        """The spans recorded so far with their parents, by inclusion one level up, each thread apart.

        The parent of what ran on the device is the innermost span that was open at its launch.
        """
        records = self._records.copy()
        columns = list(zip(*records, strict=True)) if records else [()] * 8
        level, start, end, thread = (np.array(columns[at], dtype=np.int64) for at in (0, 2, 3, 4))
        parent = parents_by_inclusion(level, start, end, thread)
        rows = {number: row for row, number in enumerate(columns[7]) if thread[row] != _DEVICE}
        for row in np.flatnonzero(thread == _DEVICE).tolist():
            parent[row] = rows.get(columns[7][row], -1)
        return in_time_order(columns[1], level, start, end, columns[5], parent, columns[6])


_shared = Tracer()
clear, disable, enable, recorded, span = (_shared.clear, _shared.disable, _shared.enable, _shared.spans, _shared.span)
"""The methods of one shared tracer, all of whose levels are off until one is enabled."""


@contextmanager
def module_spans(model: "Module", tracer: Tracer) -> Iterator[None]:
    """A span of level ``layer`` around every call of a leaf module of ``model``, named by its path (``features.0``).

    Tags: ``type``, the module's class, and ``shape``, the first input's. Hooks are removed at the end. A module
    whose forward raises leaves no span.
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
    """A span of level ``operator`` around every operator that PyTorch dispatches on this thread, both passes."""
    # The dispatch mode itself costs time, so a level that is off installs none.
    if "operator" not in tracer.levels:
        yield
        return
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self,
            func: Callable[..., object],
            types: object,
            args: tuple[object, ...] = (),
            kwargs: Mapping[str, object] | None = None,
        ) -> object:
            with tracer.span("operator", str(func)):
                return func(*args, **(kwargs or {}))

    with Mode():
        yield


@dataclass(frozen=True, slots=True)
class LevelRun:
    """The runs that measured down to ``level``: µs of each model span (a batch), spans of the median run."""

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


def leveled(
    run: Callable[[Tracer], object], levels: tuple[str, ...] = ("model", "layer"), *, repeats: int = 5, warmup: int = 1
) -> Leveled:
    """Call ``run(tracer)`` with ``levels[:1]`` on, then ``levels[:2]``, …, ``repeats`` times each.

    ``run`` opens the spans; it must open one of level ``levels[0]`` around everything, or around each batch. Depths
    take turns (1, 2, …, 1, 2, …), so that a drift of the machine's clock hits all alike.

    Raises `InputError` for unknown or unordered levels, fewer than 1 repeat, or a run without the outermost span.
    """
    numbers = [level_number(level) for level in levels]
    if not levels or numbers != sorted(set(numbers)):
        raise InputError(f"levels {', '.join(levels) or '(none)'} must go from the outside in: {', '.join(LEVELS)}")
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; at least 1 run per level is needed")
    for _ in range(warmup):
        run(Tracer(*levels))
    results: list[list[tuple[tuple[float, ...], Spans]]] = [[] for _ in levels]
    for _ in range(repeats):
        for depth, recorded in enumerate(results, start=1):
            tracer = Tracer(*levels[:depth])
            run(tracer)
            spans = tracer.spans()
            outer = spans.time_us[spans.level == numbers[0]]
            if not len(outer):
                raise InputError(f"the run opened no span of level {levels[0]!r}; open one around everything")
            recorded.append((tuple(outer.tolist()), spans))
    runs = []
    for level, recorded in zip(levels, results, strict=True):
        median = sorted(recorded, key=lambda result: sum(result[0]))[repeats // 2]
        runs.append(LevelRun(level, tuple(chain.from_iterable(times for times, _ in recorded)), median[1]))
    return Leveled(tuple(runs))


def leveled_traces(traces: Sequence[Trace], counters: "pd.DataFrame | None" = None) -> Leveled:
    """Traces of one program, each recorded with deeper levels than the one before, as a leveled experiment.

    A trace's level is its deepest one, its batches are its iterations; ``counters`` are the last one's. Raises
    `InputError` where a trace goes no deeper than the one before it.
    """
    runs: list[LevelRun] = []
    for trace in traces:
        spans = trace_spans(trace, counters if trace is traces[-1] else None)
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
    the backward pass) keeps its place in the iteration in proportion, one after the other on its track, but begins no
    earlier than its parent; behind a launch no earlier after that than it did, or when the call ends.
    """
    numbers: dict[tuple[_Path, int], int] = {}
    placed: dict[int, _Placed] = {}  # by the number that counterparts share
    reached = -1  # the deepest level that the runs so far have
    lost = 0
    for spans in runs:
        lost += _place(spans, reached, numbers, placed)
        reached = max(reached, int(spans.level.max(initial=-1)))
    rows = list(placed.values())
    merged = in_time_order(
        [row.spans.name[row.of] for row in rows],
        np.array([row.spans.level[row.of] for row in rows], np.int64),
        np.rint([row.start for row in rows]).astype(np.int64),
        end_ns=np.rint([row.end for row in rows]).astype(np.int64),
        track=[row.spans.track[row.of] for row in rows],
        parent=np.array([row.parent for row in rows], np.int64),
        tags=[row.spans.tags[row.of] for row in rows],
    )
    return merged, lost


def _place(spans: Spans, reached: int, numbers: dict[tuple["_Path", int], int], placed: dict[int, "_Placed"]) -> int:
    """Put a run's spans below level ``reached`` into ``placed``, in order; return how many have no place."""
    lost = 0
    number, top = _counterparts(spans, numbers)
    parent = spans.parent.tolist()
    start = spans.start_ns.tolist()
    end = spans.end_ns.tolist()
    track = spans.track
    inside = [p >= 0 and start[p] <= start[i] and end[i] <= end[p] for i, p in enumerate(parent)]
    # The spans of the levels that are new, those of an outer level first, as they hold the others.
    members = np.flatnonzero(spans.level > reached)
    members = members[np.argsort(spans.level[members], kind="stable")].tolist()
    # Per parent and track: the time of the spans inside, and where the last one ended, in its own run and here.
    busy = Counter[tuple[int, str]]()
    for i in members:
        busy[parent[i], track[i]] += (end[i] - start[i]) * inside[i]
    last: dict[tuple[int, str], tuple[float, float]] = {}
    for i in members:
        p = parent[i]
        at = float(start[i])
        key = (p if inside[i] else -1, track[i])
        if (p < 0 <= reached) or (p >= 0 and number[p] not in placed):
            lost += 1
            continue
        if p >= 0:
            # Gaps shrink by the share that the parent's time here, less its spans', is of that in the own run.
            outer = p if inside[i] else top[i]
            around = placed[number[outer]]
            gaps = end[outer] - start[outer] - busy[key]
            share = max(around.end - around.start - busy[key], 0) / gaps if gaps > 0 else 0.0
            ended, free = last.get(key, (start[outer], around.start))
            own = placed[number[p]]
            since = max(start[i] - start[p], 0) if spans.level[p] == _CALL else 0
            launched = own.start + min(since, own.end - own.start)
            behind = max(around.start + (at - start[outer]) * share, free, launched)
            at = free + (at - ended) * share if inside[i] else behind
        ends_at = at + end[i] - start[i]
        last[key] = (end[i], ends_at)
        above = placed[number[p]].row if p >= 0 else -1
        placed[number[i]] = _Placed(len(placed), at, ends_at, above, spans, i)
    return lost


class _Path(NamedTuple):
    """What tells a span from others: its parent's number, its level, and its name, where it is not an iteration."""

    parent: int
    level: int
    name: str


class _Placed(NamedTuple):
    """A span of the one timeline: its row there, its times and its parent's row; ``of``: its row in ``spans``."""

    row: int
    start: float
    end: float
    parent: int
    spans: Spans
    of: int


def _counterparts(spans: Spans, numbers: dict[tuple[_Path, int], int]) -> tuple[list[int], list[int]]:
    """(the number that each span shares with its counterparts in other runs, the row of the outermost span around)."""
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
