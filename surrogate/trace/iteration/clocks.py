"""Host and device clocks: the time of an iteration from its operators, overheads and kernel times (Lin et al.)."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from surrogate.trace import events
from surrogate.trace.events.tables import Trace
from surrogate.trace.iteration.overheads import EVENT_US, Action, Overheads, Unit, finer_name, handed_over, segments
from surrogate.trace.iteration.times import collectives

KERNEL_GAP_US = 1.0
"""Between two activities of a stream. Source: Lin et al. (HiPC 2022)."""
KERNEL_TAIL_US = 5.0
"""Added to every kernel's time. Source: the same."""
QUEUE = 1024
"""Launches that CUDA queues on a stream before the next call waits."""


@dataclass(slots=True)
class Clocks:
    """Clocks in µs since the start: ``host_us`` per thread, ``device_us`` per stream, ``collective_us`` of collectives.

    ``time_us`` are the activities' times, ``stream`` and ``collective`` their streams and whether they are collectives.
    With ``event_us`` the host also pays for being traced, as much per event. Loading takes ``loading`` times as long as
    it did. ``latest_us`` are the times at which the
    last of several ranks reaches each collective, ``reached_us`` those at which this one does, in their order.
    """

    overheads: Overheads
    time_us: NDArray[np.float64]
    stream: Sequence[int]
    collective: Sequence[bool]
    event_us: float = 0.0
    loading: float = 1.0
    gap_us: float = KERNEL_GAP_US
    tail_us: float = KERNEL_TAIL_US
    host_us: dict[int, float] = field(default_factory=dict)
    device_us: dict[int, float] = field(default_factory=dict)
    collective_us: float = 0.0
    latest_us: Sequence[float] = ()
    reached_us: list[float] = field(default_factory=list)
    _ends_ns: dict[int, int] = field(default_factory=dict)
    _parents: dict[int, int] = field(default_factory=dict)
    _last_stream: dict[int, int] = field(default_factory=dict)
    _queued: dict[int, deque[float]] = field(default_factory=dict)

    @property
    def host_now_us(self) -> float:
        """The latest host clock."""
        return max(self.host_us.values(), default=0.0)

    @property
    def device_now_us(self) -> float:
        """The latest device clock, collectives included."""
        return max([*self.device_us.values(), self.collective_us])

    @property
    def now_us(self) -> float:
        """max(host, device)."""
        return max(self.host_now_us, self.device_now_us)

    def run(self, units: Iterable[Unit]) -> None:
        """Walk ``units`` in their order."""
        for unit in units:
            self.step(unit)

    def alone_us(self, unit: Unit, overheads: Overheads) -> float:
        """The host's time of one unit from clocks at 0 on a device without gaps and tails."""
        clocks = Clocks(overheads, self.time_us, self.stream, self.collective, gap_us=0.0, tail_us=0.0)
        clocks.step(unit)
        return clocks.host_now_us

    def step(self, unit: Unit) -> None:
        """One unit: cpu += T1 + T2, per launch T4 with T5 between, + T3; without a launch T1 + its own time."""
        thread = unit.thread
        giver = handed_over(unit, self._ends_ns)
        cpu = self.host_us.get(thread, 0.0)
        if giver is not None:
            cpu = max(cpu, self.host_us[giver]) + self.overheads.us("handover", "")
        else:
            sibling = self._parents.get(thread, unit.parent) == unit.parent
            cpu += self.overheads.us("t1" if sibling else "edge", unit.name) + self.event_us * sibling
        self._parents[thread] = unit.parent
        self._ends_ns[thread] = max(self._ends_ns.get(thread, -1), unit.end_ns)
        if unit.is_input:
            # Loading data is an input of the model like the kernels' times.
            self.host_us[thread] = cpu + self.loading * unit.time_us
        else:
            self.host_us[thread] = self._operator(unit, cpu)

    def _operator(self, unit: Unit, cpu: float) -> float:
        us = self.overheads.us
        name = unit.name
        parts = segments(unit)
        collective = any(self.collective[row] for row in unit.activities)
        count = len(parts.launches)
        launched = 0
        finer = finer_name(name, count)
        cpu += us("t2", name, finer) if count else us("alone", name)
        cpu += self.event_us * parts.first[1]
        for action in unit.actions:
            if not action.launches:
                cpu = self._wait(unit.thread, action, cpu, collective)
                continue
            if launched:
                cpu += us("t5", name, finer_name(name, count, launched - 1))
                cpu += self.event_us * parts.between[launched - 1][1]
            launched += 1
            cpu = self._launch(unit.thread, action, cpu)
        return cpu + (us("t3", name, finer) + self.event_us * parts.last[1] if count else 0.0)

    def _launch(self, thread: int, action: Action, cpu: float) -> float:
        """The host after a launch call; its activities run on their streams."""
        call_us = self.overheads.us("t4", action.name)
        ready = cpu + call_us
        end = 0.0
        for row in action.activities:
            stream = self.stream[row]
            time_us = float(self.time_us[row])
            if self.collective[row]:
                # In order with the collective before it, whose results compute may use from here on.
                self._join_collectives()
                compute = max(self.device_us.values(), default=0.0)
                start = max(self.collective_us + self.gap_us, compute + self.gap_us, ready)
                self.reached_us.append(start)
                if len(self.reached_us) <= len(self.latest_us):
                    start = max(start, self.latest_us[len(self.reached_us) - 1])
                end = self.collective_us = start + time_us + self.tail_us
            else:
                start = max(self.device_us.get(stream, -self.gap_us) + self.gap_us, ready)
                end = self.device_us[stream] = start + time_us + self.tail_us
            self._last_stream[thread] = stream
        if action.activities:
            ready = self._queue(self.stream[action.activities[-1]], ready, end)
        return max(ready, end) if action.joins else ready

    def _queue(self, stream: int, cpu: float, end: float) -> float:
        """The host waits for the oldest of `QUEUE` launches that have not ended."""
        queue = self._queued.setdefault(stream, deque())
        queue.append(end)
        return max(cpu, queue.popleft()) if len(queue) > QUEUE else cpu

    def _wait(self, thread: int, action: Action, cpu: float, collective: bool) -> float:
        """The host after a synchronising call; a wait between streams moves no host clock."""
        if action.kind == events.WAIT_CALL:
            # Where an operator issues a collective, the collectives' stream waits for compute, not compute for it.
            if not collective:
                self._join_collectives()
                latest = max(self.device_us.values(), default=0.0)
                self.device_us = dict.fromkeys(self.device_us, latest)
            return cpu
        stream = self._last_stream.get(thread)
        if stream is None or any(word in action.name for word in ("Device", "Ctx", "Event")):
            return max(cpu, self.device_now_us)
        return max(cpu, self.device_us.get(stream, self.collective_us))

    def _join_collectives(self) -> None:
        """Compute goes on when the collectives have ended."""
        for stream, clock in self.device_us.items():
            self.device_us[stream] = max(clock, self.collective_us)


def clocks_for(trace: Trace, overheads: Overheads, time_us: NDArray[np.float64], *, traced: bool = False) -> Clocks:
    """Clocks at 0 for ``trace``'s activities with these times; ``traced``: the host pays for the profiler."""
    stream = trace.activities.stream.tolist()
    is_collective = collectives(trace).tolist()
    return Clocks(overheads, time_us, stream, is_collective, EVENT_US if traced else 0.0)
