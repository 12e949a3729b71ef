"""Kernels behind a call, by CUPTI's activity records (cupti-python; optional).

A measurement begins and ends with the stream waited for and CUPTI's buffers emptied, and a flush of the L2 cache, a
memset of known size, goes before each repeat: every kernel, memset and memcpy between two flushes is that repeat's.
External correlation ids, which bracket the repeats too, are the check. CUPTI writes one only in front of the record of
an API call, so the kinds RUNTIME and DRIVER are enabled; cupti-python 12.8 refuses RUNTIME, and launches through that
API then have none. One CUPTI client per process: not together with ncu, nsys or torch.profiler.
"""

import ctypes
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Self

from surrogate.collect.device import MeasuredKernel, one_line

BUFFER_BYTES = 8 << 20
LAUNCH = (*(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"), "registers_per_thread")
LAUNCH += ("static_shared_memory", "dynamic_shared_memory")
"""Fields of CUPTI's record in the order of `MeasuredKernel`'s."""
FORCED = 1
"""CUPTI_ACTIVITY_FLAG_FLUSH_FORCED."""
NEEDED_KINDS = ("CONCURRENT_KERNEL", "EXTERNAL_CORRELATION", "MEMSET", "MEMCPY", "DRIVER")


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One launch as CUPTI recorded it, times in ns of the GPU's clock. A memset or memcpy has no kernel."""

    start_ns: int
    end_ns: int
    kernel: MeasuredKernel | None = None
    correlation: int = 0
    """The number of the API's call that launched it."""


@dataclass(frozen=True, slots=True)
class TracedRepeats:
    """All repeats of one measurement: sums and spans in µs, and the kernels with their median times."""

    times_us: tuple[float, ...]
    spans_us: tuple[float, ...]
    kernels: tuple[MeasuredKernel, ...]


class Activity:
    """CUPTI switched on for this process.

    ``flush_bytes`` is the size of the memset before each repeat. After an error of CUPTI's, ``broken`` says which one,
    and nothing more is asked of it: the caller's events must do.
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
        """The instrument and nothing, or None and why it is missing."""
        try:
            from cupti import cupti  # pyright: ignore[reportMissingImports]
        except (ImportError, RuntimeError, OSError) as error:
            # its library may be missing, or refuse the driver
            missing = isinstance(error, ModuleNotFoundError)
            return None, "cupti-python is not installed" if missing else one_line(error)
        activity = cls(cupti, flush_bytes)
        if activity.broken:  # no driver, another client, or no permission
            activity.close()
            return None, activity.broken
        return activity, ""

    @contextmanager
    def label(self, number: int) -> Iterator[None]:
        """What is launched inside belongs to ``number``."""
        kind = int(self._cupti.ExternalCorrelationKind.CUSTOM0)
        pushed = self._try(self._cupti.activity_push_external_correlation_id, kind, number)
        try:
            yield
        finally:
            if pushed:
                self._try(self._cupti.activity_pop_external_correlation_id, kind)

    def empty(self) -> None:
        """Forget what was launched so far; the stream must have been waited for, as for `collect`."""
        self._try(self._cupti.activity_flush_all, FORCED)
        self._spans.clear()
        self._labels.clear()
        self._flushes_ns.clear()

    def collect(self, labels: Sequence[int]) -> tuple[list[list[LaunchRecord]], int]:
        """The launches after each flush of the cache, in order of start, and how many of them have the right label.

        One flush went before each of ``labels`` since `empty`; where CUPTI shows another number of flushes, or a launch
        without an end, there are no launches.
        """
        self._try(self._cupti.activity_flush_all, FORCED)
        flushes_ns = sorted(self._flushes_ns)
        repeats: list[list[LaunchRecord]] = [[] for _ in flushes_ns]
        for span in sorted(self._spans, key=lambda span: span.start_ns):
            before = bisect_right(flushes_ns, span.start_ns)
            if before:
                repeats[before - 1].append(span)
        whole = len(repeats) == len(labels) and all(span.end_ns for span in self._spans)
        repeats = repeats if whole else []
        of_label = zip(labels, repeats, strict=whole)
        labelled = sum(self._labels.get(span.correlation) == label for label, spans in of_label for span in spans)
        return repeats, labelled

    def under(self, labels: Sequence[int]) -> list[list[LaunchRecord]]:
        """The launches that CUPTI names each label of, in order of start; empty where it names none.

        What was launched without a flush of the cache goes by labels alone.
        """
        self._try(self._cupti.activity_flush_all, FORCED)
        by_label: dict[int, list[LaunchRecord]] = {label: [] for label in labels}
        for span in sorted(self._spans, key=lambda span: span.start_ns):
            label = self._labels.get(span.correlation)
            if label in by_label:
                by_label[label].append(span)
        return list(by_label.values())

    def dropped(self) -> int:
        """Records lost since the last question for want of buffer space."""
        count = ctypes.c_size_t()
        self._try(self._cupti.activity_get_num_dropped_records, 0, 0, ctypes.addressof(count))
        return count.value

    def close(self) -> None:
        """Switch CUPTI's records off."""
        for kind in self._enabled:
            with suppress(*self._errors):
                self._cupti.activity_disable(kind)
        self._enabled.clear()

    def _try(self, call: Callable[..., object], *arguments: object) -> bool:
        """True where the call of CUPTI succeeds; its error is kept in ``broken``, and no later call is made."""
        if self.broken:
            return False
        try:
            call(*arguments)
        except self._errors as error:
            self.broken = one_line(error)
            return False
        return True

    def _completed(self, activities: Iterable[Any]) -> None:
        """CUPTI's callback: the records' memory is its own, so everything is copied."""
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
    """A copy of one kernel record (CUpti_ActivityKernel…); the name is mangled."""
    launch = [int(getattr(record, name)) for name in LAUNCH]
    start_ns, end_ns = int(record.start), int(record.end)
    kernel = MeasuredKernel(str(record.name), *launch, time_us=(end_ns - start_ns) / 1e3)
    return LaunchRecord(start_ns, end_ns, kernel, int(record.correlation_id))


def trace_repeats(repeats: Sequence[Sequence[LaunchRecord]]) -> TracedRepeats | None:
    """What the repeats' launches say; None where a repeat shows none (records lost: the events must do)."""
    if not repeats or not all(repeats):
        return None
    sums = tuple(sum(span.end_ns - span.start_ns for span in spans) / 1e3 for spans in repeats)
    spans_us = tuple((max(s.end_ns for s in spans) - spans[0].start_ns) / 1e3 for spans in repeats)
    kernels = [[span.kernel for span in spans if span.kernel] for spans in repeats]
    return TracedRepeats(sums, spans_us, _kernels(kernels))


def _kernels(repeats: Sequence[Sequence[MeasuredKernel]]) -> tuple[MeasuredKernel, ...]:
    """The launches of most repeats; times are medians over those repeats that launched the same kernels."""
    names = [tuple(kernel.kernel_name for kernel in kernels) for kernels in repeats]
    usual, _ = Counter(names).most_common(1)[0]
    alike = [kernels for kernels, named in zip(repeats, names, strict=True) if named == usual]
    return tuple(
        replace(launches[0], time_us=statistics.median(kernel.time_us for kernel in launches))
        for launches in zip(*alike, strict=True)
    )
