"""Host work of a trace as a sequence of units, and the parts of a unit's host time."""

import re
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from surrogate.trace.events import kinds
from surrogate.trace.events.iterations import Iteration, iteration_of, iterations
from surrogate.trace.events.tables import Ints, Trace, enclosing, holding

WRAPPER = re.compile(r"^(?:Optimizer\.|DistributedDataParallel|autograd::engine::thread_main)")
"""Ranges around many operators that older profilers write as operators themselves."""
LOADER = re.compile(r"^enumerate\(DataLoader\)")
LAUNCHES = (kinds.LAUNCH, kinds.GRAPH_LAUNCH, kinds.COPY_CALL, kinds.MEMSET_CALL)
_NUMBER = re.compile(r"\d+")
_ACTIONS = (*LAUNCHES, kinds.SYNC_CALL, kinds.WAIT_CALL)


@dataclass(frozen=True, slots=True)
class Action:
    """A runtime call that matters to the clocks: a launch, a synchronisation, or a wait of one stream for another.

    ``activities`` are rows of ``trace.activities`` in the order of their start. ``joins``: the host waits for the
    copy, ``blocked_us`` of the call's own time.
    """

    call: int
    name: str
    kind: int
    start_ns: int
    end_ns: int
    activities: tuple[int, ...] = ()
    joins: bool = False
    blocked_us: float = 0.0

    @property
    def launches(self) -> bool:
        """True for a call that puts work on the device."""
        return self.kind in LAUNCHES


@dataclass(frozen=True, slots=True)
class Unit:
    """One step of the host: an outermost operator, an input wait, or a call outside operators.

    ``row`` is its row in ``trace.ranges`` (-1 for a lone call), ``parent`` the range around it: units of one thread
    and parent are siblings. ``events_ns`` are the starts of what was traced inside, launches aside.
    """

    name: str
    thread: int
    start_ns: int
    end_ns: int
    row: int
    parent: int
    iteration: int
    is_input: bool
    is_operator: bool
    actions: tuple[Action, ...]
    events_ns: tuple[int, ...]

    @property
    def launches(self) -> list[Action]:
        """The actions that put work on the device."""
        return [action for action in self.actions if action.launches]

    @property
    def activities(self) -> list[int]:
        """Rows of the device activities that it launches."""
        return [row for action in self.actions for row in action.activities]

    @property
    def time_us(self) -> float:
        """From its start to its end, in µs."""
        return (self.end_ns - self.start_ns) / 1e3

    def events_between(self, first_ns: int, last_ns: int) -> int:
        """How many traced sub-events start in ``[first_ns, last_ns)``."""
        return bisect_left(self.events_ns, last_ns) - bisect_left(self.events_ns, first_ns)


@dataclass(frozen=True)
class HostWork:
    """All units of a trace in the order of their start; ``unattached`` activities no unit has launched."""

    units: tuple[Unit, ...]
    iterations: tuple[Iteration, ...]
    unattached: tuple[int, ...]

    @cached_property
    def by_iteration(self) -> dict[int, list[Unit]]:
        """Position of an iteration (-1: none) → its units."""
        units: dict[int, list[Unit]] = defaultdict(list)
        for unit in self.units:
            units[unit.iteration].append(unit)
        return units


def host_work(trace: Trace) -> HostWork:
    """The units of ``trace``. An operator inside another belongs to the outer one's unit."""
    every = iterations(trace)
    of_range, of_call, _ = iteration_of(every, trace)
    owner = _owners(trace)
    actions, unattached = _actions(trace)
    by_owner: dict[int, list[Action]] = defaultdict(list)
    events: dict[int, list[int]] = defaultdict(list)
    units: list[Unit] = []
    calls, ranges = trace.calls, trace.ranges
    for row in range(len(calls)):
        around = int(calls.range[row])
        unit_row = int(owner[around]) if around >= 0 else -1
        action = actions.get(row)
        if unit_row >= 0:
            if action is not None:
                by_owner[unit_row].append(action)
            if action is None or not action.launches:
                events[unit_row].append(int(calls.start_ns[row]))
        elif action is not None:
            where = int(calls.thread[row]), action.start_ns, action.end_ns, -1, around, int(of_call[row])
            units.append(Unit(action.name, *where, False, False, (action,), ()))
    for row in np.flatnonzero((owner >= 0) & (owner != np.arange(len(ranges)))).tolist():
        events[int(owner[row])].append(int(ranges.start_ns[row]))
    for row in np.flatnonzero(owner == np.arange(len(ranges))).tolist():
        name = trace.name_of(ranges, row)
        is_operator = bool(ranges.kind[row] == kinds.OPERATOR)
        is_input = bool(LOADER.match(name))
        # Annotations count their runs: "Step 10" and "Step 20" are one kind of work.
        label = name if is_operator else _NUMBER.sub("#", name)
        when = int(ranges.thread[row]), int(ranges.start_ns[row]), int(ranges.end_ns[row])
        where = row, int(ranges.parent[row]), int(of_range[row])
        inside = tuple(by_owner[row]), tuple(sorted(events[row]))
        units.append(Unit(label, *when, *where, is_input, is_operator, *inside))
    units.sort(key=lambda unit: (unit.start_ns, -unit.end_ns))
    return HostWork(tuple(units), every, unattached)


def _owners(trace: Trace) -> Ints:
    """For every range the row of the unit it belongs to, -1 for a range around units."""
    ranges = trace.ranges
    wraps, loads = trace.named(ranges, WRAPPER.match), trace.named(ranges, LOADER.match)
    stands = ((ranges.kind == kinds.OPERATOR) & ~wraps) | loads
    owner = enclosing(ranges, stands, outermost=True)
    acts = trace.calls.range[np.isin(trace.calls.kind, _ACTIONS)]
    filled = holding(ranges, np.concatenate([np.flatnonzero(owner >= 0), acts, ranges.parent]))
    # An annotation with nothing inside is host work that no operator shows, such as a module's bookkeeping.
    alone = ~filled & (ranges.kind != kinds.STEP)
    owner[alone] = np.flatnonzero(alone)
    return owner


def _actions(trace: Trace) -> tuple[dict[int, Action], tuple[int, ...]]:
    """Call row → action, and the activities without a call."""
    calls, activities = trace.calls, trace.activities
    launched: dict[int, list[int]] = defaultdict(list)
    for row, call in enumerate(activities.call.tolist()):
        launched[call].append(row)
    rows = np.flatnonzero(np.isin(calls.kind, _ACTIONS) | np.isin(np.arange(len(calls)), list(launched)))
    actions = {row: _action(trace, row, tuple(launched.get(row, ()))) for row in rows.tolist()}
    return actions, tuple(launched.get(-1, ()))


def _action(trace: Trace, row: int, launched: tuple[int, ...]) -> Action:
    """A copy to the host makes the host wait; one from pageable memory where the call outlasted it (CUDA stages it)."""
    calls, activities = trace.calls, trace.activities
    start = int(calls.start_ns[row])
    end = int(calls.end_ns[row])
    joins = False
    blocked = 0
    for activity in launched:
        if activities.kind[activity] != kinds.COPY:
            continue
        copied = int(activities.end_ns[activity])
        pageable = "Pageable" in trace.name_of(activities, activity) and copied <= end
        if activities.copy_kind[activity] == kinds.TO_HOST or pageable:
            joins = True
            blocked = max(blocked, min(copied, end) - start)
    # A call of unknown name that launched something is a launch.
    kind = int(calls.kind[row]) if calls.kind[row] in _ACTIONS else kinds.LAUNCH
    return Action(row, trace.name_of(calls, row), kind, start, end, launched, joins, max(blocked, 0) / 1e3)


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
    """The parts of ``unit`` as traced; waiting calls and copies count without their wait, which the device decides.

    The part that ends the unit also holds the unit's own event.
    """
    launches = unit.launches
    if not launches:
        return Segments(_part(unit, unit.start_ns, unit.end_ns, 1), (), (0.0, 0), ())
    first = _part(unit, unit.start_ns, launches[0].start_ns)
    last = _part(unit, launches[-1].end_ns, unit.end_ns, 1)
    between = tuple(_part(unit, before.end_ns, after.start_ns) for before, after in pairwise(launches))
    calls = tuple((call, max((call.end_ns - call.start_ns) / 1e3 - call.blocked_us, 0.0)) for call in launches)
    return Segments(first, between, last, calls)


def _part(unit: Unit, start_ns: int, end_ns: int, more: int = 0) -> Part:
    waiting = sum(
        max(min(action.end_ns, end_ns) - max(action.start_ns, start_ns), 0)
        for action in unit.actions
        if action.kind == kinds.SYNC_CALL
    )
    return max(end_ns - start_ns - waiting, 0) / 1e3, unit.events_between(start_ns, end_ns) + more
