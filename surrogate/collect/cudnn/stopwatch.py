"""Timing any GPU call by the protocol: warm up, flush the L2, repeat; kernels by CUPTI, else events."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from surrogate.collect.cudnn.activity import Traced, traced
from surrogate.collect.device import Measurement
from surrogate.collect.protocol import RepeatPolicy


class Stopwatch:
    """The instruments of one GPU: ``gpu`` (`surrogate.collect.cudnn.gpu.Gpu`) and CUPTI's ``activity``, if any."""

    def __init__(self, gpu: Any, activity: Any) -> None:
        self._gpu = gpu
        self._activity = activity
        self._label = 0

    def time(
        self,
        call: Callable[[], None],
        policy: RepeatPolicy,
        workspace_bytes: int | None = None,
        deterministic: bool | None = None,
    ) -> Measurement:
        """Times of ``call``, which launches on the GPU's stream. What it raises passes through."""
        warm_us = self.warm(call)
        if warm_us > policy.slow_us:  # the first call also loads the kernels' code: judge by a second
            warm_us = self.warm(call)
        labels, events = [], []
        for _ in range(policy.repeats_for(warm_us)):
            self._gpu.flush()
            self._label += 1
            labels.append(self._label)
            with self._activity.label(self._label) if self._activity else nullcontext():
                start = self._gpu.event()
                call()
                events.append((start, self._gpu.event()))
        self._gpu.synchronize()
        spans_us = tuple(self._gpu.elapsed_us(start, end) for start, end in events)
        seen, why_not = self._traced(labels) if self._activity else (None, "")
        if seen is None:
            return Measurement("ok", why_not, spans_us, spans_us, "events", workspace_bytes, deterministic)
        return Measurement(
            "ok", "", seen.times_us, seen.spans_us, "cupti", workspace_bytes, deterministic, seen.kernels
        )

    def _traced(self, labels: Sequence[int]) -> tuple[Traced | None, str]:
        """The repeats as CUPTI saw them; None and why where it lost records: sums without them would be too small."""
        repeats = self._activity.collect(labels)
        dropped = self._activity.dropped()
        if self._activity.broken:
            return None, f"CUPTI: {self._activity.broken}; timed by events"
        if dropped:
            return None, f"CUPTI dropped {dropped} records; timed by events"
        seen = traced(repeats)
        return seen, "" if seen else "CUPTI saw no kernel; timed by events"

    def warm(self, call: Callable[[], None]) -> float:
        """Run once, untraced; the length in µs."""
        start = self._gpu.event()
        call()
        end = self._gpu.event()
        self._gpu.synchronize()
        return self._gpu.elapsed_us(start, end)
