"""Times of a trace's device activities: measured, predicted from the sizes of the operators that launched them, or
carried over to another GPU.

This is the only file of `surrogate.trace.iteration` that knows the predictors.
"""

import re
from collections import defaultdict
from collections.abc import Container
from dataclasses import dataclass, replace
from math import ceil, exp, hypot, log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from surrogate.features.conv import Conv
from surrogate.features.gpu import Gpu
from surrogate.features.operators import Collective, Memcpy, Operator, operator
from surrogate.network.call import UnsupportedError
from surrogate.network.network import Work
from surrogate.network.predict import Predictors, sustained_us
from surrogate.trace.calls import CallReader, is_shape, kernels_by_owner, rebatched
from surrogate.trace.events import kinds
from surrogate.trace.events.tables import Floats, Trace, enclosing
from surrogate.trace.iteration.collectives import Laws, law_us

MEASURED, MODEL, ROOFLINE, LAW, RATES = "measured", "model", "roofline", "law", "rates"
SHORTEST_US = {"nvidia": 1.6, "amd": 3.9}
"""What a kernel of a few elements takes, µs: medians of PyTorch's elementwise kernels below 0.1 MB in traces of an H100
and of an MI300X (ResNet, 719 of them)."""
UNMEASURED_FACTOR = {True: 1.5, False: 2.1}
"""Same vendor or not → what times by `RATES` are off by at most in nine of ten cases, one kind of kernel at a time.
Source: eager PyTorch on ScalingIntelligence/KernelBench's memory-bound programs (MIT), A100 to H100 (1.2 and 1.55 on
its first two levels) and A100 or H100 to one die of an MI250X (1.6 to 2.2)."""
TF32_FROM = 8.0
"""Compute capability from which PyTorch's convolutions use TF32 by default (its matrix products do not)."""
_OVER_PCIE = (kinds.TO_DEVICE, kinds.TO_HOST)
_COLLECTIVE = re.compile(r"nccl|rccl", re.IGNORECASE)
Group = tuple[tuple[Work, ...], tuple[Work, ...], list[int]]
"""What an operator computed, what it computes at the new batch, and the activities that it launched."""


class Answer(NamedTuple):
    """A predicted time in µs, its source, the half width of its 90 % interval in log time, its kind of problem."""

    time_us: float
    source: str
    half_width: float = 0.0
    kind: str = ""


@dataclass(frozen=True, slots=True)
class UnpredictedOperator:
    """An operator whose times were kept as measured: what the trace does not say, how often, how much time in µs."""

    operator: str
    lacks: str
    count: int
    time_us: float


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTimes:
    """``time_us`` per row of ``trace.activities``, ``source`` of each; ``reasons``: (row, what is lacking).

    ``parts``: what the times consist of where they were carried over to another GPU.
    """

    time_us: Floats
    source: tuple[str, ...]
    reasons: tuple[tuple[int, str], ...] = ()
    parts: tuple[Answer, ...] = ()

    @property
    def factor_90(self) -> float:
        """What the sum of carried times is off by at most in nine of ten cases.

        Kernels of a kind err together, kinds each for itself.
        """
        errors: dict[str, float] = defaultdict(float)
        for part in self.parts:
            errors[part.kind] += part.time_us * part.half_width
        return exp(sqrt(sum(error**2 for error in errors.values())) / (sum(part.time_us for part in self.parts) or 1.0))


def answers_of(by: Predictors, wanted: set[Work]) -> "dict[Work, Answer | str]":
    """Problem → its predicted time, or what is lacking."""
    convs = sorted((problem for problem in wanted if isinstance(problem, Conv)), key=str)
    others = sorted((problem for problem in wanted if not isinstance(problem, Conv)), key=str)
    answers: dict[Work, Answer | str] = {
        problem: Answer(found.time_us, found.source, log(found.upper_us / found.time_us), problem.kind)
        for problem, found in by.timed(others).items()
    }
    if by.convs is None:
        return answers | dict.fromkeys(convs, "a model of convolutions")
    for conv, selection in by.ranked(convs).items():
        best = next(iter(selection.estimates), None)
        lacks = "an algorithm that runs it"
        answers[conv] = Answer(best.time_us, best.source, best.half_width, conv.kind) if best else lacks
    return answers


def measured_times(trace: Trace) -> DeviceTimes:
    """The trace's own times."""
    return DeviceTimes(trace.activities.time_us, (MEASURED,) * len(trace.activities))


def predicted_times(
    trace: Trace, by: Predictors, old_batch: int = 1, new_batch: int = 1, laws: Laws | None = None,
    base: Predictors | None = None,
) -> DeviceTimes:  # fmt: skip
    """Times of one operator's activities sum up to its prediction, shared among them as measured.

    Sizes change from ``old_batch`` to ``new_batch`` where they hold it. By a roofline, which knows nothing of kernels,
    an operator takes no less than its activities at the shortest kernel's time. Collectives go by ``laws`` where their
    kind has one, and wait for nobody. What cannot be predicted keeps its measured time and is listed.

    With ``base``, which predicts for the GPU of the trace, measured times are carried over (`_carried`), so that what
    predictions miss on both GPUs cancels; what cannot be predicted follows other kernels of its name, or copies.
    """  # fmt: skip
    groups, reasons = _groups(trace, old_batch, new_batch)
    shortest = operator("fill", n=1)
    there = answers_of(by, {shortest, *(_as_run(problem, by.gpu) for _, after, _ in groups for problem in after)})
    here = answers_of(base, {_as_run(p, base.gpu) for before, _, _ in groups for p in before}) if base else {}
    least = there[shortest]
    for problem in there:
        if isinstance(problem, Collective) and (by_law := law_us(laws or {}, problem)) is not None:
            there[problem] = Answer(by_law, LAW, 0.0, problem.kind)
    time_us = trace.activities.time_us.copy()
    source = np.full(len(time_us), MEASURED, dtype=object)
    parts: list[Answer] = []
    kernels = trace.activities.kind == kinds.KERNEL
    for before, after, rows in groups:
        own = [there[_as_run(problem, by.gpu)] for problem in after]
        known = [answer for answer in own if not isinstance(answer, str)]
        if len(known) < len(own):
            missing = next(answer for answer in own if isinstance(answer, str))
            reasons.extend((row, missing) for row in rows)
            continue
        whole, sources = float(time_us[rows].sum()), {answer.source for answer in known}
        if base and known and LAW not in sources:
            on_base = [here[_as_run(problem, base.gpu)] for problem in before]
            work = [(_as_run(p, base.gpu), _as_run(q, by.gpu)) for p, q in zip(before, after, strict=True)]
            part = _carried(whole, max(int(kernels[rows].sum()), 1), base.gpu, by.gpu, on_base, known, work)
            predicted_us = part.time_us
            source[rows] = part.source
            parts.append(part)
        else:
            predicted_us = sum(answer.time_us for answer in known)
            if ROOFLINE in sources and not isinstance(least, str):
                predicted_us = max(predicted_us, len(rows) * least.time_us)
            source[rows] = ROOFLINE if ROOFLINE in sources else LAW if LAW in sources else MODEL
        time_us[rows] = predicted_us * (time_us[rows] / whole if whole else 1 / len(rows))
    if base:
        parts += _like_others(trace, [row for row, _ in reasons], time_us, base.gpu, by.gpu)
    return DeviceTimes(time_us, tuple(source), tuple(reasons), tuple(parts))


def _carried(
    measured_us: float, kernels: int, own: Gpu, target: Gpu, here: list["Answer | str"], there: list[Answer],
    work: list[tuple[Work, Work]],
) -> Answer:  # fmt: skip
    """An operator's time on the target GPU by its time on the trace's own.

    Where both GPUs were measured it changes as predictions do. Else the kernels' least time (`SHORTEST_US`) is the
    target's, and the rest follows the rates that long kernels reach on both; where the trace's own GPU alone was
    measured the geometric mean of that ratio and the predictions'. That mean was chosen by ResNet-50's published
    training on A100 and V100.
    """
    known = [answer for answer in here if not isinstance(answer, str)]
    measured = [
        len(side) == len(work) and all(answer.source in (MODEL, MEASURED) for answer in side) for side in (known, there)
    ]
    predicted = sum(answer.time_us for answer in there) / (sum(answer.time_us for answer in known) or 1.0)
    if all(measured):
        time_us = max(predicted * measured_us, kernels * _shortest_us(target))
        return Answer(time_us, MODEL, hypot(known[0].half_width, there[0].half_width), there[0].kind)
    ratio = sum(sustained_us(after, target) for _, after in work) / sum(sustained_us(before, own) for before, _ in work)
    ratio = sqrt(ratio * predicted) if measured[0] else ratio
    return _by_rates(measured_us, kernels, own, target, ratio, there[0].kind)


def _by_rates(measured_us: float, kernels: int, own: Gpu, target: Gpu, ratio: float, kind: str) -> Answer:
    rest_us = max(measured_us - kernels * _shortest_us(own), 0.0)
    least_us = min(measured_us / (kernels * _shortest_us(own)), 1.0) * kernels * _shortest_us(target)
    half_width = log(UNMEASURED_FACTOR[own.vendor == target.vendor])
    return Answer(least_us + ratio * rest_us, RATES, half_width, kind)


def _shortest_us(gpu: Gpu) -> float:
    return SHORTEST_US.get(gpu.vendor, max(SHORTEST_US.values()))


def _like_others(trace: Trace, rows: list[int], time_us: Floats, own: Gpu, target: Gpu) -> list[Answer]:
    """Carry over the activities ``rows``, in place: as much longer or shorter as known ones of their name are."""
    activities, parts = trace.activities, []
    unknown = np.zeros(len(time_us), np.bool_)
    unknown[rows] = True
    count = len(trace.names)
    before, after = (
        np.bincount(activities.name[~unknown], column[~unknown], count) for column in (activities.time_us, time_us)
    )
    copied = own.dram_share * own.dram_gbs / (target.dram_share * target.dram_gbs)
    for row in np.flatnonzero(unknown).tolist():
        name, measured_us = int(activities.name[row]), float(time_us[row])
        part = _by_rates(measured_us, 1, own, target, copied, trace.name_of(activities, row))
        if before[name]:
            part = part._replace(time_us=measured_us * float(after[name] / before[name]))
        time_us[row] = part.time_us
        parts.append(part)
    return parts


def collectives(trace: Trace) -> NDArray[np.bool_]:
    """Which activities are collectives, by the library's name in the kernel's."""
    return trace.named(trace.activities, _COLLECTIVE.search) & (trace.activities.kind == kinds.KERNEL)


def _groups(trace: Trace, old: int, new: int) -> tuple[list[Group], list[tuple[int, str]]]:
    """Activities by the problems that they compute at the old and at the new batch, and what the others lack."""
    reader = CallReader(trace)
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
            before = reader.problems(owner) if owner >= 0 else (_transfer(trace, rows[0], old, old),)
            after = before if owner >= 0 or old == new else (_transfer(trace, rows[0], old, new),)
            if owner >= 0 and old != new and not updates[owner]:
                after = tuple(rebatched(problem, old, new) for problem in before)
        except UnsupportedError as reason:
            reasons += [(row, str(reason)) for row in rows]
            continue
        groups.append((before, after, rows))
    return groups, reasons


def _as_run(problem: Work, gpu: Gpu) -> Work:
    """The problem as PyTorch runs it on the GPU: convolutions in TF32 where there is one."""
    in_tf32 = isinstance(problem, Conv) and problem.dtype == "fp32" and gpu.compute_capability >= TF32_FROM
    return replace(problem, math="default") if in_tf32 else problem


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
