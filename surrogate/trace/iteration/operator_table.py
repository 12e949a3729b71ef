"""Time by operator: host time as modelled, device time as measured and as predicted."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from surrogate.trace.events.tables import Trace
from surrogate.trace.iteration.overheads import Overheads, place
from surrogate.trace.iteration.result import OperatorRow
from surrogate.trace.iteration.times import DeviceTimes
from surrogate.trace.iteration.units import Unit


def host_us(unit: Unit, overheads: Overheads) -> float:
    """T1 to T5 of one unit in µs, without waiting for the device; an input wait takes as long as it took."""
    us, name = overheads.us, unit.name
    if unit.is_input:
        return us("t1", name) + (unit.end_ns - unit.start_ns) / 1e3
    launches = unit.launches
    if not launches:
        return us("t1", name) + us("alone", name)
    count = len(launches)
    fine = place(name, count)
    between = sum(us("t5", name, place(name, count, at)) for at in range(count - 1))
    calls = sum(us("t4", one.name) for one in launches)
    return us("t1", name) + us("t2", name, fine) + calls + between + us("t3", name, fine)


def operator_rows(
    trace: Trace,
    units: Sequence[Unit],
    times: DeviceTimes,
    overheads_of: Callable[[int], Overheads],
    iterations: int,
) -> tuple[OperatorRow, ...]:
    """Means over ``iterations``, the most device time first, then the most host time."""
    sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(5))
    sources: dict[str, dict[str, None]] = defaultdict(dict)
    measured, predicted = trace.activities.time_us, times.time_us
    for unit in units:
        rows = [row for one in unit.actions for row in one.activities]
        host = host_us(unit, overheads_of(unit.iteration))
        sums[unit.name] += [1, len(unit.launches), host, measured[rows].sum(), predicted[rows].sum()]
        sources[unit.name].update(dict.fromkeys(times.source[row] for row in rows))
    found = []
    for name, values in sums.items():
        calls, launches, host, before, after = (float(one) for one in values / iterations)
        found.append(
            OperatorRow(name, calls, launches, host, before, after, ", ".join(sorted(sources[name])))
        )
    return tuple(sorted(found, key=lambda row: (-row.predicted_us, -row.host_us, row.operator)))
