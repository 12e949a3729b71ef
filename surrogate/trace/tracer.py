"""A live tracer of spans, spans of a PyTorch model, and leveled experiments (XSP, IPDPS 2020, section III)."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.features.errors import InputError
from surrogate.trace.result import ResultTable
from surrogate.trace.spans import LEVELS, Spans, in_time_order, level_number, parents_by_inclusion

_Record = tuple[int, str, int, int, int, str, Mapping[str, Any]]
_OFF = nullcontext()
"""The span of a level that is off."""


class _Open:
    __slots__ = ("level", "name", "records", "start_ns", "tags")

    def __init__(self, records: list[_Record], level: int, name: str, tags: Mapping[str, Any]) -> None:
        self.records, self.level, self.name, self.tags = records, level, name, tags

    def __enter__(self) -> None:
        self.start_ns = time.perf_counter_ns()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        end_ns, thread = time.perf_counter_ns(), threading.current_thread()
        tags = {**self.tags, "error": kind.__name__} if kind else self.tags
        record = (self.level, self.name, self.start_ns, end_ns, thread.ident or 0, thread.name, tags)
        self.records.append(record)  # one append per span: safe between threads without a lock


class Tracer:
    """Collects spans of the levels that are on. Safe for use from many threads.

    A span of a level that is off costs one look-up and reads no clock. Switching an unknown level raises
    `InputError`; opening a span of one does nothing, since it can never be on.
    """

    __slots__ = ("_on", "_records")

    def __init__(self, *levels: str) -> None:
        self._records: list[_Record] = []
        self._on: dict[str, int] = {}
        self.enable(*levels)

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels that are on, outermost first."""
        return tuple(level for level in LEVELS if level in self._on)

    def enable(self, *levels: str) -> None:
        """Switch levels on; spans opened from now on count."""
        self._on = {**self._on, **{level: level_number(level) for level in levels}}

    def disable(self, *levels: str) -> None:
        """Switch levels off, all where none is named; spans already open are still recorded."""
        named = {LEVELS[level_number(level)] for level in levels} or set(LEVELS)
        self._on = {level: number for level, number in self._on.items() if level not in named}

    def span(self, level: str, name: str, **tags: Any) -> AbstractContextManager[None]:
        """A context manager that records its duration under ``name``, with ``tags``, if ``level`` is on."""
        number = self._on.get(level)
        return _OFF if number is None else _Open(self._records, number, name, tags)

    def clear(self) -> None:
        """Forget all recorded spans."""
        self._records.clear()

    def spans(self) -> Spans:
        """The spans recorded so far with their parents, by inclusion one level up, each thread apart."""
        records = self._records.copy()
        columns = list(zip(*records, strict=True)) if records else [()] * 7
        level, start, end, thread = (np.array(columns[at], dtype=np.int64) for at in (0, 2, 3, 4))
        parent = parents_by_inclusion(level, start, end, thread)
        return in_time_order(columns[1], level, start, end, columns[5], parent, columns[6])


_shared = Tracer()
clear, disable, enable, recorded, span = (
    _shared.clear, _shared.disable, _shared.enable, _shared.spans, _shared.span,
)  # fmt: skip
"""The methods of one shared tracer, all of whose levels are off until one is enabled."""


@contextmanager
def module_spans(model: Any, tracer: Tracer, level: str = "layer") -> Iterator[None]:
    """A span of ``level`` around every call of a leaf module of ``model``, named by its path (``features.0``).

    Tags: ``type``, the module's class, and ``shape``, the first input's. Hooks are removed at the end. A module
    whose forward raises leaves no span.
    """
    handles, open_spans = [], {}
    for name, module in model.named_modules():
        if next(module.children(), None) is not None:
            continue

        def before(module: Any, inputs: Any, name: str = name) -> None:
            shape = tuple(getattr(inputs[0], "shape", ())) if inputs else ()
            kind = type(module).__name__
            opened = tracer.span(level, name or kind, type=kind, shape=shape)
            opened.__enter__()
            open_spans.setdefault(id(module), []).append(opened)

        def after(module: Any, inputs: Any, output: Any) -> None:
            open_spans[id(module)].pop().__exit__(None, None, None)

        handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def operator_spans(tracer: Tracer, level: str = "operator") -> Iterator[None]:
    """A span of ``level`` around every operator that PyTorch dispatches on this thread, forward and backward."""
    # The dispatch mode itself costs time, so a level that is off installs none.
    if level not in tracer.levels:
        yield
        return
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with tracer.span(level, str(func)):
                return func(*args, **(kwargs or {}))

    with Mode():
        yield


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

    def of(self, level: str) -> Spans:
        """The spans of ``level`` as measured by the run that went no deeper. Raises `InputError` if it was not run."""
        level_number(level)
        deepest = next((run for run in self.runs if run.level == level), None)
        if deepest is None:
            measured = ", ".join(run.level for run in self.runs)
            raise InputError(f"level {level!r} was not measured; measured: {measured}")
        return deepest.spans

    def rows(self) -> ResultTable:
        """Per level: the model's time when measured down to it, the overhead it adds, its spans and their time."""
        rows, shallow_us = [], self.runs[0].median_us
        before_us = shallow_us
        for run in self.runs:
            added = run.median_us - before_us
            own = run.spans.level == LEVELS.index(run.level)
            rows.append(
                {
                    "level": run.level,
                    "model_us": run.median_us,
                    "overhead_us": added,
                    "overhead_pct": 100 * added / shallow_us if shallow_us else None,
                    "spans": int(own.sum()),
                    "spans_us": float(run.spans.time_us[own].sum()),
                }
            )
            before_us = run.median_us
        return ResultTable(f"Leveled experiment, {len(self.runs[0].model_us)} runs each", tuple(rows))


def leveled(
    run: Callable[[Tracer], object],
    levels: tuple[str, ...] = ("model", "layer"),
    *,
    repeats: int = 5,
    warmup: int = 1,
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
