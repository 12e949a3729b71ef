"""A live tracer of spans, spans of a PyTorch model, and of the kernels it launches (XSP, IPDPS 2020, section III)."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from surrogate.collect.cudnn.activity import Activity
from surrogate.collect.device import demangled
from surrogate.features.errors import InputError
from surrogate.trace.spans import LEVELS, Spans, in_time_order, level_number, parents_by_inclusion

_Record = tuple[int, str, int, int, int, str, Mapping[str, Any], int]
"""Level, name, start, end, thread, track, tags, number; what ran on the device has the number of the span around it."""
_DEVICE = -1
_OFF = nullcontext()
"""The span of a level that is off."""


@dataclass(slots=True)
class _Open:
    """A span that is on; ``label`` tells CUPTI, where it listens, whose the launches inside are."""

    records: list[_Record]
    level: int
    name: str
    tags: Mapping[str, Any]
    number: int
    label: AbstractContextManager[None]
    start_ns: int = 0

    def __enter__(self) -> None:
        self.label.__enter__()
        self.start_ns = time.perf_counter_ns()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        end_ns, thread = time.perf_counter_ns(), threading.current_thread()
        tags = {**self.tags, "error": kind.__name__} if kind else self.tags
        record = (self.level, self.name, self.start_ns, end_ns, thread.ident or 0, thread.name, tags, self.number)
        self.records.append(record)  # one append per span: safe between threads without a lock
        self.label.__exit__(None, None, None)


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
        depth, activity = self._on.get(level), self._activity
        if depth is None:
            return _OFF
        number = next(self._numbers)
        return _Open(self._records, depth, name, tags, number, activity.label(number) if activity else _OFF)

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

        first, clock_ns = next(self._numbers), time.perf_counter_ns() - cupti.get_timestamp()
        try:
            yield
        finally:
            activity, self._activity = self._activity, None
            numbers = range(first, next(self._numbers))
            launched = activity.collect(numbers)
            lost, why = activity.dropped(), activity.broken
            activity.close()
        for number, spans in zip(numbers, launched, strict=True):
            for span in spans:
                kernel, times = span.kernel, (span.start_ns + clock_ns, span.end_ns + clock_ns)
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
clear, disable, enable, recorded, span = (
    _shared.clear, _shared.disable, _shared.enable, _shared.spans, _shared.span,
)  # fmt: skip
"""The methods of one shared tracer, all of whose levels are off until one is enabled."""


@contextmanager
def module_spans(model: Any, tracer: Tracer) -> Iterator[None]:
    """A span of level ``layer`` around every call of a leaf module of ``model``, named by its path (``features.0``).

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
            opened = tracer.span("layer", name or kind, type=kind, shape=shape)
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
def operator_spans(tracer: Tracer) -> Iterator[None]:
    """A span of level ``operator`` around every operator that PyTorch dispatches on this thread, both passes."""
    # The dispatch mode itself costs time, so a level that is off installs none.
    if "operator" not in tracer.levels:
        yield
        return
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with tracer.span("operator", str(func)):
                return func(*args, **(kwargs or {}))

    with Mode():
        yield
