"""Times of a trace's device activities: measured, or predicted from the sizes of the operators that launched them.

This is the only file of `surrogate.trace.iteration` that knows the predictors.
"""

import re
from collections import defaultdict
from collections.abc import Container
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from surrogate.features.conv import Conv
from surrogate.features.gpu import Gpu
from surrogate.features.operators import Collective, Memcpy, Operator, operator
from surrogate.network.call import UnsupportedError
from surrogate.network.network import Work
from surrogate.network.predict import Predictors
from surrogate.trace.calls import CallReader, is_shape, kernels_by_owner, rebatched
from surrogate.trace.events import kinds
from surrogate.trace.events.tables import Floats, Trace, enclosing
from surrogate.trace.iteration.collectives import Laws, law_us

MEASURED, MODEL, ROOFLINE, LAW = "measured", "model", "roofline", "law"
TF32_FROM = 8.0
"""Compute capability from which PyTorch's convolutions use TF32 by default (its matrix products do not)."""
_OVER_PCIE = (kinds.TO_DEVICE, kinds.TO_HOST)
_COLLECTIVE = re.compile(r"nccl|rccl", re.IGNORECASE)
Group = tuple[tuple[Work, ...], list[int]]
"""What an operator computes, and the activities that it launched."""


@dataclass(frozen=True, slots=True)
class UnpredictedOperator:
    """An operator whose times were kept as measured: what the trace does not say, how often, how much time in µs."""

    operator: str
    lacks: str
    count: int
    time_us: float


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTimes:
    """``time_us`` per row of ``trace.activities``, ``source`` of each; ``reasons``: (row, what is lacking)."""

    time_us: Floats
    source: tuple[str, ...]
    reasons: tuple[tuple[int, str], ...] = ()


def answers_of(by: Predictors, wanted: set[Work]) -> "dict[Work, tuple[float, str] | str]":
    """Problem → (time in µs, source), or what is lacking."""
    convs = sorted((problem for problem in wanted if isinstance(problem, Conv)), key=str)
    others = sorted((problem for problem in wanted if not isinstance(problem, Conv)), key=str)
    answers: dict[Work, tuple[float, str] | str] = {
        problem: (prediction.time_us, prediction.source) for problem, prediction in by.timed(others).items()
    }
    if by.convs is None:
        return answers | dict.fromkeys(convs, "a model of convolutions")
    for conv, selection in by.ranked(convs).items():
        best = selection.estimates
        answers[conv] = (best[0].time_us, MODEL) if best else "an algorithm that runs it"
    return answers


def measured_times(trace: Trace) -> DeviceTimes:
    """The trace's own times."""
    return DeviceTimes(trace.activities.time_us, (MEASURED,) * len(trace.activities))


def predicted_times(
    trace: Trace, by: Predictors, old_batch: int = 1, new_batch: int = 1, laws: Laws | None = None
) -> DeviceTimes:
    """Times of one operator's activities sum up to its prediction, shared among them as measured.

    Sizes change from ``old_batch`` to ``new_batch`` where they hold it. By a roofline, which knows nothing of kernels,
    an operator takes no less than its activities at the shortest kernel's time. Collectives go by ``laws`` where their
    kind has one, and wait for nobody. What cannot be predicted keeps its measured time and is listed.
    """
    groups, reasons = _groups(trace, by.gpu, old_batch, new_batch)
    shortest = operator("fill", n=1)
    answers = answers_of(by, {shortest, *(problem for problems, _ in groups for problem in problems)})
    least = answers[shortest]
    for problem in answers:
        if isinstance(problem, Collective) and (by_law := law_us(laws or {}, problem)) is not None:
            answers[problem] = by_law, LAW
    time_us = trace.activities.time_us.copy()
    source = np.full(len(time_us), MEASURED, dtype=object)
    for problems, rows in groups:
        own = [answers[problem] for problem in problems]
        known = [answer for answer in own if not isinstance(answer, str)]
        if len(known) < len(own):
            missing = next(answer for answer in own if isinstance(answer, str))
            reasons.extend((row, missing) for row in rows)
            continue
        whole = float(time_us[rows].sum())
        predicted_us, roofline = sum(time for time, _ in known), any(kind == ROOFLINE for _, kind in known)
        if roofline and not isinstance(least, str):
            predicted_us = max(predicted_us, len(rows) * least[0])
        time_us[rows] = predicted_us * (time_us[rows] / whole if whole else 1 / len(rows))
        source[rows] = ROOFLINE if roofline else LAW if any(kind == LAW for _, kind in known) else MODEL
    return DeviceTimes(time_us, tuple(source), tuple(reasons))


def collectives(trace: Trace) -> NDArray[np.bool_]:
    """Which activities are collectives, by the library's name in the kernel's."""
    return trace.named(trace.activities, _COLLECTIVE.search) & (trace.activities.kind == kinds.KERNEL)


def _groups(trace: Trace, gpu: Gpu, old: int, new: int) -> tuple[list[Group], list[tuple[int, str]]]:
    """Activities by the problems that they compute at the new batch, and what is lacking of the others."""
    reader, uses_tf32 = CallReader(trace), gpu.compute_capability >= TF32_FROM
    updates = trace.named(trace.ranges, lambda name: "Optimizer." in name or "AccumulateGrad" in name)
    updates = enclosing(trace.ranges, updates) >= 0
    crosses = np.isin(trace.activities.copy_kind, _OVER_PCIE)
    owners = kernels_by_owner(reader, np.flatnonzero(~crosses).tolist())
    # What has no rule, and copies between host and device, go by their bytes, each for itself.
    alone = [(-1, [row]) for row in (*np.flatnonzero(crosses).tolist(), *owners.pop(-1, []))]
    groups: list[Group] = []
    reasons: list[tuple[int, str]] = []
    for owner, rows in (*alone, *owners.items()):
        try:
            problems = reader.problems(owner) if owner >= 0 else (_transfer(trace, rows[0], old, new),)
            if owner >= 0 and old != new and not updates[owner]:
                problems = tuple(rebatched(problem, old, new) for problem in problems)
        except UnsupportedError as reason:
            reasons += [(row, str(reason)) for row in rows]
            continue
        groups.append((tuple(_in_tf32(problem) for problem in problems) if uses_tf32 else problems, rows))
    return groups, reasons


def _in_tf32(problem: Work) -> Work:
    fp32 = isinstance(problem, Conv) and problem.dtype == "fp32"
    return replace(problem, math="default") if fp32 else problem


def _transfer(trace: Trace, activity: int, old: int, new: int) -> Operator:
    """A copy or memset by its bytes; raises `UnsupportedError` for kernels, and where the batch's part is not known."""
    activities, row = trace.activities, int(trace.activities.range[activity])
    size, kind = int(activities.bytes[activity]), int(activities.kind[activity])
    if kind not in (kinds.COPY, kinds.MEMSET):
        raise UnsupportedError("a rule for this operator" if row >= 0 else "the operator of this launch")
    if size <= 0:
        raise UnsupportedError("bytes")
    if old != new:
        shapes = (trace.shapes_of(row) if row >= 0 else None) or ()
        first = next((shape for shape in shapes if is_shape(shape) and shape), ())
        if not first or first[0] != old:
            raise UnsupportedError("batch dimension")
        size = size // old * new
    elements = ceil(size / 4)
    if activities.copy_kind[activity] in _OVER_PCIE:
        return Memcpy(elements=elements)
    return operator("copy" if kind == kinds.COPY else "fill", n=elements)


def unpredicted(trace: Trace, times: DeviceTimes, rows: Container[int]) -> tuple[UnpredictedOperator, ...]:
    """What was kept as measured among the activities ``rows``, by operator and reason, the most time first."""
    sums: dict[tuple[str, str], list[float]] = defaultdict(list)
    activities, ranges = trace.activities, trace.ranges
    measured = activities.time_us
    for row, reason in times.reasons:
        if row in rows:
            around = int(activities.range[row])
            name = trace.name_of(ranges, around) if around >= 0 else trace.name_of(activities, row)
            sums[name, reason].append(float(measured[row]))
    kept = [UnpredictedOperator(*key, len(values), sum(values)) for key, values in sums.items()]
    return tuple(sorted(kept, key=lambda entry: (-entry.time_us, entry.operator, entry.lacks)))
