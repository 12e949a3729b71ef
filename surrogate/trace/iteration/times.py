"""Times of a trace's device activities: measured, or predicted from the sizes of the operators that launched them."""

from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surrogate.features.conv import Conv
from surrogate.features.gpu import Gpu
from surrogate.features.operators import Memcpy, Operator, operator
from surrogate.trace.events import kinds
from surrogate.trace.events.tables import Trace
from surrogate.trace.iteration.call import LackingError
from surrogate.trace.iteration.clocks import collectives
from surrogate.trace.iteration.sizes import Problem, known_names, problems, rebatched
from surrogate.trace.operands import WorkFinder

MEASURED, MODEL, ROOFLINE = "measured", "model", "roofline"
TF32_FROM = 8.0
"""Compute capability from which PyTorch's convolutions use TF32 by default (its matrix products do not)."""


@dataclass(frozen=True, slots=True)
class Lack:
    """An operator whose times were kept as measured: what the trace does not say, how often, how much time in µs."""

    operator: str
    lacks: str
    count: int
    time_us: float


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTimes:
    """``time_us`` per row of ``trace.activities``, ``source`` of each; ``reasons``: (row, what is lacking)."""

    time_us: NDArray[np.float64]
    source: tuple[str, ...]
    reasons: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Surrogates:
    """Predictors of one GPU: ``convs`` of convolutions (None: these count as lacking), ``operators`` of all others."""

    gpu: Gpu
    convs: Any
    operators: Any


def measured_times(trace: Trace) -> DeviceTimes:
    """The trace's own times."""
    return DeviceTimes(trace.activities.time_us, (MEASURED,) * len(trace.activities))


def predicted_times(trace: Trace, by: Surrogates, old_batch: int = 1, new_batch: int = 1) -> DeviceTimes:
    """Times of one operator's activities sum up to its prediction, shared among them as measured.

    Sizes change from ``old_batch`` to ``new_batch`` where they hold it. What cannot be predicted keeps its measured
    time and is listed.
    """
    groups, reasons = _groups(trace, by.gpu, old_batch, new_batch)
    found = _ask(by, {problem for questions, _ in groups for problem in questions})
    time_us = trace.activities.time_us.copy()
    source = np.full(len(time_us), MEASURED, dtype=object)
    for questions, rows in groups:
        answers = [found[question] for question in questions]
        failed = next((answer for answer in answers if isinstance(answer, str)), None)
        if failed is not None:
            reasons.extend((row, failed) for row in rows)
            continue
        whole = sum(answer[0] for answer in answers)
        share = time_us[rows] / time_us[rows].sum() if time_us[rows].sum() else 1 / len(rows)
        time_us[rows] = whole * share
        source[rows] = ROOFLINE if any(answer[1] == ROOFLINE for answer in answers) else MODEL
    return DeviceTimes(time_us, tuple(source), tuple(reasons))


Reasons = list[tuple[int, str]]
Groups = list[tuple[tuple[Problem, ...], list[int]]]


def _groups(trace: Trace, gpu: Gpu, old: int, new: int) -> tuple[Groups, Reasons]:
    """Activities by the problem that they compute, and (activity, what is lacking) of the others."""
    reader = _Reader(trace, gpu, old, new)
    by_row: dict[int, list[int]] = defaultdict(list)
    groups: Groups = []
    reasons: Reasons = []
    apart = collectives(trace)
    for row in range(len(trace.activities)):
        if apart[row]:
            reasons.append((row, "message size of the collective"))
            continue
        owner = reader.owner(row)
        if owner >= 0 and not reader.crosses(row):
            by_row[owner].append(row)
            continue
        try:
            groups.append(((reader.transfer(row),), [row]))
        except LackingError as lack:
            reasons.append((row, str(lack)))
    for owner, rows in by_row.items():
        try:
            groups.append((reader.problems(owner), rows))
        except LackingError as lack:
            reasons.extend((row, str(lack)) for row in rows)
    return groups, reasons


class _Reader:
    """Problems of a trace's operators and copies; equal calls are read once."""

    def __init__(self, trace: Trace, gpu: Gpu, old: int, new: int) -> None:
        self.trace, self.old, self.new = trace, old, new
        self._known, self._work = known_names(trace), WorkFinder(trace)
        self._conv_math = "default" if gpu.compute_capability >= TF32_FROM else "fma"
        updates = np.array(["Optimizer." in n or "AccumulateGrad" in n for n in trace.names] or [False])
        self._updates = updates[trace.ranges.name] if len(trace.ranges) else updates
        self._cache: dict[tuple[Any, ...], tuple[Problem, ...] | LackingError] = {}

    def owner(self, activity: int) -> int:
        """The innermost operator with a rule around an activity's launch, -1 for none."""
        return self._around(int(self.trace.activities.range[activity]), self._known)

    def crosses(self, activity: int) -> bool:
        """True for a copy between host and device."""
        return self.trace.activities.copy_kind[activity] in (kinds.TO_DEVICE, kinds.TO_HOST)

    def problems(self, row: int) -> tuple[Problem, ...]:
        """What the operator in ``row`` computes at the new batch."""
        ranges, trace = self.trace.ranges, self.trace
        work = self._work.of(row) if "convolution" in trace.name_of(ranges, row) else None
        flops = work.flops if work is not None and work.row == row else None
        around = int(ranges.parent[row])
        outside = int(ranges.shapes[around]) if around >= 0 else -1
        update = self._within_update(row)
        key = (int(ranges.name[row]), int(ranges.shapes[row]), int(ranges.types[row]), int(ranges.inputs[row]),
               outside, flops, update)  # fmt: skip
        found = self._cache.get(key)
        if found is None:
            try:
                plain = problems(trace, row, conv_math=self._conv_math, gemm_math="fma", flops=flops)
                found = tuple(rebatched(one, self.old, self.new, in_optimizer=update) for one in plain)
            except LackingError as lack:
                found = lack
            self._cache[key] = found
        if isinstance(found, LackingError):
            raise found
        return found

    def transfer(self, activity: int) -> Operator:
        """A copy or memset by its bytes. Raises `LackingError` for kernels, and where the batch's part is not known."""
        activities, row = self.trace.activities, int(self.trace.activities.range[activity])
        size, kind = int(activities.bytes[activity]), int(activities.kind[activity])
        if kind not in (kinds.COPY, kinds.MEMSET):
            name = self.trace.name_of(self.trace.ranges, row) if row >= 0 else ""
            raise LackingError("a rule for this operator" if name else "the operator of this launch")
        if size <= 0:
            raise LackingError("bytes")
        if self.old != self.new:
            shapes = (self.trace.shapes_of(row) if row >= 0 else None) or ()
            first = next((s for s in shapes if isinstance(s, tuple) and s), ())
            if not first or first[0] != self.old:
                raise LackingError("batch dimension")
            size = size // self.old * self.new
        elements = ceil(size / 4)
        if self.crosses(activity):
            return Memcpy(elements=elements)
        return operator("copy" if kind == kinds.COPY else "fill", n=elements)

    def _within_update(self, row: int) -> bool:
        return self._around(row, self._updates, of_name=False) >= 0

    def _around(self, row: int, wanted: NDArray[np.bool_], *, of_name: bool = True) -> int:
        ranges = self.trace.ranges
        while row >= 0 and not wanted[ranges.name[row] if of_name else row]:
            row = int(ranges.parent[row])
        return row


def _ask(by: Surrogates, wanted: set[Problem]) -> dict[Problem, Any]:
    """Problem → (time in µs, source), or what is lacking."""
    convs = sorted((one for one in wanted if isinstance(one, Conv)), key=str)
    others = sorted((one for one in wanted if not isinstance(one, Conv)), key=str)
    found: dict[Problem, Any] = {}
    if by.convs is None:
        found.update(dict.fromkeys(convs, "a model of convolutions"))
    elif convs:
        for conv, selection in zip(convs, by.convs.select_many(convs), strict=True):
            best: Sequence[Any] = selection.estimates
            found[conv] = (best[0].time_us, MODEL) if best else "an algorithm that runs it"
    if others:
        for one, answer in zip(others, by.operators.predict(others), strict=True):
            found[one] = (answer.time_us, answer.source)
    return found


def lacking(trace: Trace, times: DeviceTimes, rows: Container[int]) -> tuple[Lack, ...]:
    """What was kept as measured among the activities ``rows``, by operator and reason, the most time first."""
    sums: dict[tuple[str, str], list[float]] = defaultdict(list)
    activities, ranges = trace.activities, trace.ranges
    measured = activities.time_us
    for row, reason in times.reasons:
        if row not in rows:
            continue
        around = int(activities.range[row])
        name = trace.name_of(ranges, around) if around >= 0 else trace.name_of(activities, row)
        sums[name, reason].append(float(measured[row]))
    found = [Lack(name, reason, len(values), sum(values)) for (name, reason), values in sums.items()]
    return tuple(sorted(found, key=lambda one: (-one.time_us, one.operator, one.lacks)))
