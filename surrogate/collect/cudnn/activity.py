"""Kernels behind a call, by CUPTI's activity records (cupti-python; optional).

Each call is bracketed by an external correlation id; CUPTI then tells which kernels it launched. One CUPTI
client per process: not together with ncu, nsys or torch.profiler.
"""

import ctypes
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from surrogate.collect.device import Kernel

BUFFER_BYTES = 8 << 20
FORCED = 1
"""CUPTI_ACTIVITY_FLAG_FLUSH_FORCED."""


@dataclass(frozen=True, slots=True)
class KernelSpan:
    """One kernel launch as CUPTI recorded it, times in ns of the GPU's clock."""

    start_ns: int
    end_ns: int
    kernel_name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers_per_thread: int
    static_shared_bytes: int
    dynamic_shared_bytes: int


@dataclass(frozen=True, slots=True)
class Traced:
    """All repeats of one measurement: sums and spans in µs, and the kernels with their median times."""

    times_us: tuple[float, ...]
    spans_us: tuple[float, ...]
    kernels: tuple[Kernel, ...]


class Activity:
    """CUPTI switched on for this process: kernel records and external correlations."""

    def __init__(self, cupti: Any) -> None:
        self._cupti = cupti
        self._kinds = cupti.ActivityKind
        self._spans: dict[int, list[KernelSpan]] = {}
        self._labels: dict[int, int] = {}
        cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), self._completed)
        cupti.activity_enable(self._kinds.CONCURRENT_KERNEL)
        cupti.activity_enable(self._kinds.EXTERNAL_CORRELATION)

    @classmethod
    def open(cls) -> tuple[Self | None, str]:
        """The instrument and nothing, or None and why it is missing."""
        try:
            from cupti import cupti  # pyright: ignore[reportMissingImports]
        except ImportError:
            return None, "cupti-python is not installed"
        try:
            return cls(cupti), ""
        except RuntimeError as error:  # no driver, another client, or no permission
            return None, " ".join(str(error).split())

    @contextmanager
    def label(self, number: int) -> Iterator[None]:
        """What is launched inside belongs to ``number``."""
        kind = int(self._cupti.ExternalCorrelationKind.CUSTOM0)
        self._cupti.activity_push_external_correlation_id(kind, number)
        try:
            yield
        finally:
            self._cupti.activity_pop_external_correlation_id(kind)

    def collect(self, labels: Sequence[int]) -> list[list[KernelSpan]]:
        """The launches under each label, in order of start; the stream must have been waited for.

        Empties the records. A label without any launch has an empty list.
        """
        self._cupti.activity_flush_all(0)
        if not set(labels) <= {self._labels.get(correlation) for correlation in self._spans}:
            self._cupti.activity_flush_all(FORCED)
        by_label: dict[int, list[KernelSpan]] = {label: [] for label in labels}
        for correlation, spans in self._spans.items():
            label = self._labels.get(correlation)
            if label in by_label:
                by_label[label].extend(spans)
        self._spans.clear()
        self._labels.clear()
        return [sorted(by_label[label], key=lambda span: span.start_ns) for label in labels]

    def dropped(self) -> int:
        """Records lost since the last question for want of buffer space."""
        count = ctypes.c_size_t()
        self._cupti.activity_get_num_dropped_records(0, 0, ctypes.addressof(count))
        return count.value

    def close(self) -> None:
        """Switch CUPTI's records off."""
        self._cupti.activity_disable(self._kinds.CONCURRENT_KERNEL)
        self._cupti.activity_disable(self._kinds.EXTERNAL_CORRELATION)

    def _completed(self, activities: Iterable[Any]) -> None:
        """CUPTI's callback: the records' memory is its own, so everything is copied."""
        for record in activities:
            kind = record.kind
            if kind == self._kinds.EXTERNAL_CORRELATION:
                self._labels[record.correlation_id] = record.external_id
            elif kind in (self._kinds.CONCURRENT_KERNEL, self._kinds.KERNEL):
                self._spans.setdefault(record.correlation_id, []).append(span_of(record))


def span_of(record: Any) -> KernelSpan:
    """A copy of one kernel record (CUpti_ActivityKernel…)."""
    return KernelSpan(
        int(record.start),
        int(record.end),
        str(record.name),
        (int(record.grid_x), int(record.grid_y), int(record.grid_z)),
        (int(record.block_x), int(record.block_y), int(record.block_z)),
        int(record.registers_per_thread),
        int(record.static_shared_memory),
        int(record.dynamic_shared_memory),
    )


def traced(repeats: Sequence[Sequence[KernelSpan]]) -> Traced | None:
    """What the repeats' launches say; None where a repeat shows none (records lost: the events must do)."""
    if not repeats or not all(repeats):
        return None
    sums = tuple(sum(span.end_ns - span.start_ns for span in spans) / 1e3 for spans in repeats)
    spans_us = tuple((max(s.end_ns for s in spans) - spans[0].start_ns) / 1e3 for spans in repeats)
    return Traced(sums, spans_us, _kernels(repeats))


def _kernels(repeats: Sequence[Sequence[KernelSpan]]) -> tuple[Kernel, ...]:
    """The first repeat's launches; times are medians over those repeats that launched the same kernels."""
    first = repeats[0]
    names = [span.kernel_name for span in first]
    alike = [spans for spans in repeats if [span.kernel_name for span in spans] == names]
    return tuple(
        Kernel(
            span.kernel_name, *span.grid, *span.block, span.registers_per_thread, span.static_shared_bytes,
            span.dynamic_shared_bytes,
            statistics.median((spans[index].end_ns - spans[index].start_ns) / 1e3 for spans in alike),
        )
        for index, span in enumerate(first)
    )  # fmt: skip


def facts(activity: Activity | None, why_missing: str) -> Mapping[str, Any]:
    """For the run's header: which instrument times, and why the better one does not."""
    return {"timer": "cupti"} if activity else {"timer": "events", "cupti_missing": why_missing}
