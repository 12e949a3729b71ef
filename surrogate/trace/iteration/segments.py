"""The parts of an operator's host time: before the first launch, between launches, after the last."""

from dataclasses import dataclass
from itertools import pairwise

from surrogate.trace.events import kinds
from surrogate.trace.iteration.units import Action, Unit

Part = tuple[float, int]
"""Host time in µs without waiting for the device, and how many traced events it holds."""


@dataclass(frozen=True, slots=True)
class Segments:
    """``first`` is T2 (without a launch: all), ``between`` T5, ``last`` T3; ``launches`` with T4 in µs."""

    first: Part
    between: tuple[Part, ...]
    last: Part
    launches: tuple[tuple[Action, float], ...]


def segments(unit: Unit) -> Segments:
    """The parts of ``unit`` as traced; waiting calls and copies count without their wait, which the device decides."""
    launches = unit.launches
    if not launches:
        return Segments(_part(unit, unit.start_ns, unit.end_ns), (), (0.0, 0), ())
    first = _part(unit, unit.start_ns, launches[0].start_ns)
    last = _part(unit, launches[-1].end_ns, unit.end_ns)
    between = tuple(_part(unit, one.end_ns, other.start_ns) for one, other in pairwise(launches))
    calls = tuple((one, max((one.end_ns - one.start_ns) / 1e3 - one.blocked_us, 0.0)) for one in launches)
    return Segments(first, between, last, calls)


def _part(unit: Unit, start_ns: int, end_ns: int) -> Part:
    waiting = sum(
        max(min(one.end_ns, end_ns) - max(one.start_ns, start_ns), 0)
        for one in unit.actions
        if one.kind == kinds.SYNC_CALL
    )
    return max(end_ns - start_ns - waiting, 0) / 1e3, unit.events_between(start_ns, end_ns)
