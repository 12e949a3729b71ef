"""The kernels of a call, from CUPTI's activity records (cupti-python; optional).

A measurement synchronises the stream and empties CUPTI's buffers at its start and end. A flush of the L2 cache, a
memset of fixed size, precedes each repeat. Every kernel, memset and memcpy between two flushes belongs to one repeat.

External correlation ids also mark the repeats, as a check. CUPTI writes such an id only before the record of an API
call, so the kinds RUNTIME and DRIVER are enabled. cupti-python 12.8 refuses RUNTIME; launches through that API then
have no id. A process can have only one CUPTI client: ncu, nsys and torch.profiler cannot run at the same time.
"""

import ctypes
import os
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Self

from surrogate.collect.device import MeasuredKernel, one_line
from surrogate.features import check_choice

BUFFER_BYTES = 8 << 20
LAUNCH = (*(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"), "registers_per_thread")
LAUNCH += ("static_shared_memory", "dynamic_shared_memory")
"""Fields of CUPTI's record in the order of `MeasuredKernel`'s."""
FORCED = 1
"""CUPTI_ACTIVITY_FLAG_FLUSH_FORCED."""
TIMER = "SEER_TIMER"
"""Environment variable with the instrument of times: ``cupti``, or ``events`` to leave CUPTI out."""
AFTER_LOSSES = "lost"
"""Value that leaves CUPTI out of a process that replaces lost ones."""
LEFT_OUT = {"events": f"left out by {TIMER}=events", AFTER_LOSSES: "left out, because two processes were lost with it"}
"""Value of `TIMER` → the reason why CUPTI is missing."""
NEEDED_KINDS = ("CONCURRENT_KERNEL", "EXTERNAL_CORRELATION", "MEMSET", "MEMCPY", "DRIVER")


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One launch recorded by CUPTI, with times in ns of the GPU's clock. A memset or memcpy has no kernel."""

    start_ns: int
    end_ns: int
    kernel: MeasuredKernel | None = None
    correlation: int = 0
    """The correlation id of the API call that launched it."""


@dataclass(frozen=True, slots=True)
class TracedRepeats:
    """All repeats of one measurement: sums and spans in µs, and the kernels with their median times."""

    times_us: tuple[float, ...]
    spans_us: tuple[float, ...]
    kernels: tuple[MeasuredKernel, ...]


class Activity:
    """CUPTI, enabled for this process.

    ``flush_bytes`` is the size of the memset before each repeat. After an error of CUPTI, ``broken`` holds its text and
    CUPTI is not called again. The caller must then use CUDA events.
    """

    def __init__(self, cupti: Any, flush_bytes: int = 0) -> None:
        self._cupti = cupti
        self._kinds = cupti.ActivityKind
        self._errors = (RuntimeError, getattr(cupti, "cuptiError", RuntimeError))
        self._flush_bytes = flush_bytes
        self._spans: list[LaunchRecord] = []
        self._labels: dict[int, int] = {}
        self._flushes_ns: list[int] = []
        self._enabled: list[Any] = []
        self.broken = ""
        self._try(cupti.activity_register_callbacks, lambda: (BUFFER_BYTES, 0), self._completed)
        for name in NEEDED_KINDS:
            if self._try(cupti.activity_enable, getattr(self._kinds, name)):
                self._enabled.append(getattr(self._kinds, name))
        if not self.broken:
            with suppress(*self._errors):  # cupti-python 12 may refuse it
                cupti.activity_enable(self._kinds.RUNTIME)
                self._enabled.append(self._kinds.RUNTIME)

    @classmethod
    def open(cls, flush_bytes: int) -> tuple[Self | None, str]:
        """Return the instrument and an empty text, or None and the reason why CUPTI is missing."""
        check_choice(TIMER, timer := os.environ.get(TIMER) or "cupti", ("cupti", *LEFT_OUT))
        if timer in LEFT_OUT:
            return None, LEFT_OUT[timer]
        try:
            from cupti import cupti  # pyright: ignore[reportMissingImports]
        except (ImportError, RuntimeError, OSError) as error:
            # CUPTI's library may be missing, or may not support the driver.
            return None, "cupti-python is not installed" if isinstance(error, ModuleNotFoundError) else one_line(error)
        activity = cls(cupti, flush_bytes)
        if activity.broken:  # no driver, another client, or no permission
            activity.close()
            return None, activity.broken
        return activity, ""

    @contextmanager
    def label(self, number: int) -> Iterator[None]:
        """Attribute the launches inside to the label ``number``."""
        kind = int(self._cupti.ExternalCorrelationKind.CUSTOM0)
        pushed = self._try(self._cupti.activity_push_external_correlation_id, kind, number)
        try:
            yield
        finally:
            if pushed:
                self._try(self._cupti.activity_pop_external_correlation_id, kind)

    def clear(self) -> None:
        """Delete all records so far. The stream must be synchronised before, as for `collect`."""
        self._try(self._cupti.activity_flush_all, FORCED)
        self._spans.clear()
        self._labels.clear()
        self._flushes_ns.clear()

    def collect(self, labels: Sequence[int]) -> tuple[list[list[LaunchRecord]], int]:
        """Return the launches after each cache flush, in order of start, and how many of them have the right label.

        Since `clear`, one flush preceded each of ``labels``. If CUPTI recorded no flush as such, the labels separate
        the launches, provided that launches by both APIs have one. If it recorded another number of flushes, or a
        launch without an end, the result has no launches.
        """
        self._try(self._cupti.activity_flush_all, FORCED)
        flushes_ns = sorted(self._flushes_ns)
        repeats: list[list[LaunchRecord]] = [[] for _ in flushes_ns]
        for span in sorted(self._spans, key=lambda span: span.start_ns):
            before = bisect_right(flushes_ns, span.start_ns)
            if before:
                repeats[before - 1].append(span)
        if not flushes_ns and self._kinds.RUNTIME in self._enabled:
            repeats = self.launches_by_label(labels)
        is_complete = len(repeats) == len(labels) and all(span.end_ns for span in self._spans)
        repeats = repeats if is_complete else []
        of_label = zip(labels, repeats, strict=is_complete)
        labelled = sum(self._labels.get(span.correlation) == label for label, spans in of_label for span in spans)
        return repeats, labelled

    def launches_by_label(self, labels: Sequence[int]) -> list[list[LaunchRecord]]:
        """Return the launches of each label, in order of start; an empty list for a label without launches.

        Use this for launches without cache flushes, which only labels can separate.
        """
        self._try(self._cupti.activity_flush_all, FORCED)
        by_label: dict[int, list[LaunchRecord]] = {label: [] for label in labels}
        for span in sorted(self._spans, key=lambda span: span.start_ns):
            label = self._labels.get(span.correlation)
            if label in by_label:
                by_label[label].append(span)
        return list(by_label.values())

    def dropped(self) -> int:
        """Return the number of records that CUPTI lost since the last call because its buffers were full."""
        count = ctypes.c_size_t()
        self._try(self._cupti.activity_get_num_dropped_records, 0, 0, ctypes.addressof(count))
        return count.value

    def close(self) -> None:
        """Disable CUPTI's records."""
        for kind in self._enabled:
            with suppress(*self._errors):
                self._cupti.activity_disable(kind)
        self._enabled.clear()

    def _try(self, call: Callable[..., object], *arguments: object) -> bool:
        """Return True if the call of CUPTI succeeds. An error is kept in ``broken`` and prevents later calls."""
        if self.broken:
            return False
        try:
            call(*arguments)
        except self._errors as error:
            self.broken = one_line(error)
            return False
        return True

    def _completed(self, activities: Iterable[Any]) -> None:
        """Copy CUPTI's records; this is its callback, and CUPTI reuses the memory of the records."""
        kinds = self._kinds
        for record in activities:
            kind = record.kind
            if kind == kinds.EXTERNAL_CORRELATION:
                self._labels[record.correlation_id] = record.external_id
            elif kind in (kinds.CONCURRENT_KERNEL, kinds.KERNEL):
                self._spans.append(launch_record(record))
            elif kind == kinds.MEMSET and record.bytes == self._flush_bytes:
                self._flushes_ns.append(int(record.start))
            elif kind in (kinds.MEMSET, kinds.MEMCPY):
                self._spans.append(LaunchRecord(int(record.start), int(record.end), correlation=record.correlation_id))


def launch_record(record: Any) -> LaunchRecord:
    """Return a copy of one kernel record (CUpti_ActivityKernel…), with its mangled name."""
    launch = [int(getattr(record, name)) for name in LAUNCH]
    start_ns, end_ns = int(record.start), int(record.end)
    kernel = MeasuredKernel(str(record.name), *launch, time_us=(end_ns - start_ns) / 1e3)
    return LaunchRecord(start_ns, end_ns, kernel, int(record.correlation_id))


def trace_repeats(repeats: Sequence[Sequence[LaunchRecord]]) -> TracedRepeats | None:
    """Return the times and kernels of the repeats; None if a repeat has no launch (records were lost)."""
    if not repeats or not all(repeats):
        return None
    sums = tuple(sum(span.end_ns - span.start_ns for span in spans) / 1e3 for spans in repeats)
    spans_us = tuple((max(s.end_ns for s in spans) - spans[0].start_ns) / 1e3 for spans in repeats)
    kernels = [[span.kernel for span in spans if span.kernel] for spans in repeats]
    return TracedRepeats(sums, spans_us, _kernels(kernels))


def _kernels(repeats: Sequence[Sequence[MeasuredKernel]]) -> tuple[MeasuredKernel, ...]:
    """Return the commonest sequence of kernels. Times are medians over the repeats with this sequence."""
    sequences = [tuple(kernel.kernel_name for kernel in kernels) for kernels in repeats]
    commonest, _ = Counter(sequences).most_common(1)[0]
    matching = [kernels for kernels, sequence in zip(repeats, sequences, strict=True) if sequence == commonest]
    return tuple(
        replace(launches[0], time_us=statistics.median(kernel.time_us for kernel in launches))
        for launches in zip(*matching, strict=True)
    )
