"""A live tracer: ``with span("layer", "conv1"): …`` on any thread, levels switched on and off while running."""

import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np

from surrogate.trace.spans.table import LEVELS, Spans, in_time_order, level_number, parents_by_inclusion

_now = time.perf_counter_ns
_Record = tuple[int, str, int, int, int, str, Mapping[str, Any]]


class _Nothing:
    """The span of a level that is off."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


_NOTHING = _Nothing()


class _Open:
    __slots__ = ("level", "name", "records", "start_ns", "tags")

    def __init__(self, records: list[_Record], level: int, name: str, tags: Mapping[str, Any]) -> None:
        self.records, self.level, self.name, self.tags = records, level, name, tags

    def __enter__(self) -> None:
        self.start_ns = _now()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        end_ns = _now()
        thread = threading.current_thread()
        tags = {**self.tags, "error": kind.__name__} if kind else self.tags
        # One append per span: safe between threads without a lock.
        self.records.append(
            (self.level, self.name, self.start_ns, end_ns, thread.ident or 0, thread.name, tags)
        )


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

    def span(self, level: str, name: str, **tags: Any) -> "_Open | _Nothing":
        """A context manager that records its duration under ``name``, with ``tags``, if ``level`` is on."""
        number = self._on.get(level)
        return _NOTHING if number is None else _Open(self._records, number, name, tags)

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


tracer = Tracer()
"""The tracer behind `surrogate.trace.span`; all its levels are off until one is enabled."""
