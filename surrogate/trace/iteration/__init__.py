"""Iteration time from a trace: host overheads, kernel times measured or predicted, two clocks (Lin et al.).

``iteration_times(trace)`` walks the iterations of a trace; ``measure_overheads(host_work(trace))`` gives overheads that
other traces may use, ``Overheads.save`` and ``load_overheads`` keep them as JSON. Source: Lin et al., "Building a
performance model for deep learning recommendation model training on GPUs" (HiPC 2022, TPDS 2024).
"""

from surrogate.trace.iteration.clocks import Clocks, clocks_for
from surrogate.trace.iteration.overheads import Mean, Overheads, load_overheads, measure_overheads, pooled
from surrogate.trace.iteration.predict import IterationTime, IterationTimes, OperatorRow, iteration_times
from surrogate.trace.iteration.times import (
    DeviceTimes,
    UnpredictedOperator,
    measured_times,
    predicted_times,
)
from surrogate.trace.iteration.units import Action, HostWork, Unit, host_work

__all__ = [
    "Action", "Clocks", "DeviceTimes", "HostWork", "IterationTime", "IterationTimes", "Mean", "OperatorRow",
    "Overheads", "Unit", "UnpredictedOperator", "clocks_for", "host_work", "iteration_times",
    "load_overheads", "measure_overheads", "measured_times", "pooled", "predicted_times",
]  # fmt: skip
