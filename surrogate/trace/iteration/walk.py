"""The walk of iterations one behind the other, and of each alone."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from surrogate.trace.events.tables import Trace
from surrogate.trace.iteration.clocks import clocks_for
from surrogate.trace.iteration.overheads import SIBLING_GAP_US, Overheads
from surrogate.trace.iteration.result import IterationTime
from surrogate.trace.iteration.times import MEASURED, DeviceTimes
from surrogate.trace.iteration.units import HostWork, Unit

OverheadsOf = Callable[[int], Overheads]
"""Position of an iteration → its overheads."""


@dataclass(frozen=True, slots=True)
class Walk:
    """Iterations of a trace through both clocks; ``comparable`` where they are those that were measured."""

    trace: Trace
    work: HostWork
    times: DeviceTimes
    overheads_of: OverheadsOf
    comparable: bool

    def activities(self, chosen: Sequence[int]) -> frozenset[int]:
        """Rows of the device activities that the iterations of ``chosen`` launch."""
        wanted = set(chosen)
        return frozenset(
            row
            for unit in self.work.units
            if unit.iteration in wanted
            for action in unit.actions
            for row in action.activities
        )

    def rows(self, chosen: Sequence[int]) -> tuple[IterationTime, ...]:
        """The iterations of ``chosen`` (positions), walked behind those before them."""
        by_iteration: dict[int, list[Unit]] = defaultdict(list)
        for unit in self.work.units:
            by_iteration[unit.iteration].append(unit)
        traced = self._in_sequence(by_iteration, traced=True)
        plain = self._in_sequence(by_iteration, traced=False)
        return tuple(self._row(at, by_iteration[at], traced[at], plain[at]) for at in chosen)

    def _in_sequence(self, units: dict[int, list[Unit]], *, traced: bool) -> list[float]:
        """Host time of every iteration; in a trace that is one iteration, until the device ends too."""
        clocks = clocks_for(self.trace, self.overheads_of(0), self.times.time_us, traced=traced)
        found, start = [], 0.0
        for at, one in enumerate(self.work.iterations):
            clocks.overheads = self.overheads_of(at)
            clocks.run(units[at])
            end = clocks.now_us if one.by == "whole" else clocks.host_now_us
            found.append(end - start)
            start = end
        return found

    def _row(self, at: int, units: list[Unit], predicted_us: float, unprofiled_us: float) -> IterationTime:
        one, overheads = self.work.iterations[at], self.overheads_of(at)
        alone = clocks_for(self.trace, overheads, self.times.time_us)
        alone.run(units)
        rows = [row for unit in units for action in unit.actions for row in action.activities]
        device, kept = self.times.time_us[rows], self._kept(rows)
        busy = float(device.sum())
        known = sum(unit.is_input or overheads.knows(unit.name) for unit in units)
        return IterationTime(
            index=one.index,
            label=one.label,
            measured_us=one.time_us,
            predicted_us=predicted_us,
            error_pct=100 * (predicted_us / one.time_us - 1) if self.comparable and one.time_us else None,
            unprofiled_us=unprofiled_us,
            alone_us=alone.now_us,
            host_us=alone.host_now_us,
            device_us=busy,
            measured_device_us=float(self.trace.activities.time_us[rows].sum()),
            input_us=sum(unit.end_ns - unit.start_ns for unit in units if unit.is_input) / 1e3,
            untraced_us=_untraced_us(units),
            coverage=float(device[~kept].sum() / busy) if busy else float(len(self.trace.activities) > 0),
            host_coverage=known / len(units) if units else 1.0,
        )

    def _kept(self, rows: Sequence[int]) -> np.ndarray:
        """Which activities the surrogate left as measured."""
        if not self.times.reasons:
            return np.zeros(len(rows), np.bool_)
        return np.array([self.times.source[row] == MEASURED for row in rows], np.bool_)


def _untraced_us(units: Sequence[Unit]) -> float:
    last: dict[int, Unit] = {}
    total = 0
    for unit in units:
        before = last.get(unit.thread)
        others = max((one.end_ns for one in last.values()), default=0)
        if before is not None and before.parent == unit.parent:
            gap = unit.start_ns - max(before.end_ns, others)  # another thread's work is no gap
            total += gap if gap > SIBLING_GAP_US[1] * 1e3 else 0
        last[unit.thread] = unit
    return total / 1e3
