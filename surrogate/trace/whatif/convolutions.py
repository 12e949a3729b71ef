"""The convolutions of a trace as problems, with the algorithm that ran and the one that the surrogate would pick."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.kernels import identify_call
from surrogate.network.call import UnsupportedError
from surrogate.trace.calls import CallReader, kernels_by_owner
from surrogate.trace.events import kinds
from surrogate.trace.events.tables import Trace
from surrogate.trace.graph.tasks import Graph
from surrogate.trace.whatif.primitives import scale, select
from surrogate.trace.whatif.setting import Change, Setting

_NUMBERED = {"IMPLICIT_GEMM": "ALGO_0", "IMPLICIT_PRECOMP_GEMM": "ALGO_1"}
"""Forward algorithm → the number that cuDNN gives the backward ones of the same method."""
_MARKS = {"dgrad": "bwd_data", "wgrad": "bwd_filter"}


@dataclass(frozen=True, slots=True)
class ConvRun:
    """One convolution that ran: its problem, the algorithm by its kernels' names (None: they do not tell), and the rows
    of those kernels in ``trace.activities``."""

    conv: Conv
    algorithm: str | None
    activities: tuple[int, ...]


def convolutions_of(trace: Trace) -> tuple[list[ConvRun], int]:
    """All convolutions whose problem the shapes give, and how many others there are."""
    reader, activities = CallReader(trace), trace.activities
    kernels = np.flatnonzero((activities.kind == kinds.KERNEL) & (activities.range >= 0))
    is_conv = trace.named(trace.ranges, lambda name: "conv" in name)
    runs: list[ConvRun] = []
    lost = 0
    for owner, rows in kernels_by_owner(reader, kernels.tolist()).items():
        if owner < 0 or not is_conv[owner]:
            continue
        try:
            convs = {work.direction: work for work in reader.problems(owner) if isinstance(work, Conv)}
        except UnsupportedError:
            convs = {}
        # Of an operator that makes both gradients the kernel's name tells which.
        of_direction: dict[str | None, list[int]] = {}
        for row in rows:
            name = trace.name_of(activities, row)
            marked = next((part for mark, part in _MARKS.items() if mark in name.lower()), None)
            of_direction.setdefault(marked if len(convs) > 1 else next(iter(convs), None), []).append(row)
        for direction, own in of_direction.items():
            if direction is None or direction not in convs:
                lost += 1
                continue
            algorithm = identify_call(trace.name_of(activities, row) for row in own)
            if direction != "fwd" and algorithm is not None:
                algorithm = _NUMBERED.get(algorithm, algorithm)
            runs.append(ConvRun(convs[direction], algorithm, tuple(own)))
    return runs, lost


def best_convolutions(graph: Graph, setting: Setting, value: float | None) -> Change:
    """Every convolution with the algorithm that the surrogate predicts to be the fastest.

    A convolution's kernels take predicted best / predicted own of their measured time, so that an error common to both
    cancels; the interval is that of the ratio where both err alone. One whose own algorithm is unknown stays.
    """
    del value
    trace = setting.profile.trace
    runs, lost = convolutions_of(trace)
    if not runs:
        raise InputError("best-convolution: no shape in this trace gives a convolution; record shapes")
    factors = np.ones((3, len(trace.activities)))  # the ratio, its lower and its upper end
    unknown = swapped = 0
    ratios: dict[tuple[Conv, str | None], tuple[float, float, float] | None] = {}
    for run in runs:
        key = (run.conv, run.algorithm)
        if key not in ratios:
            ratios[key] = _ratio(setting.predictor, run)
        ratio = ratios[key]
        unknown += ratio is None
        if ratio is not None and ratio[0] < 1:
            swapped += 1
            factors[:, list(run.activities)] = np.array(ratio)[:, None]
    tasks = select(graph, kind="kernel") & (graph.row >= 0)
    of_task = np.ones((3, len(graph)))
    of_task[:, tasks] = factors[:, graph.row[tasks]]
    middle, low, high = (scale(graph, tasks, factor) for factor in of_task)
    notes = [f"{swapped:,} of {len(runs):,} convolutions get another algorithm"]
    if unknown or lost:
        notes.append(
            f"{unknown + lost:,} stay: their problem or algorithm is unknown to the trace or the surrogate"
        )
    return Change(middle, low, high, tuple(notes))


def _ratio(predictor: Any, run: ConvRun) -> tuple[float, float, float] | None:
    """Best / own predicted time and its interval, in [0, 1]: nobody would swap for a slower one."""
    try:
        candidates = predictor.select(run.conv).candidates
    except InputError:
        return None
    own = next((candidate for candidate in candidates if candidate.algorithm == run.algorithm), None)
    if own is None:
        return None
    best = candidates[0]
    if best.algorithm == own.algorithm:
        return 1.0, 1.0, 1.0
    ratio = best.time_us / own.time_us
    # Independent errors of numerator and denominator add up in squares, on the scale of logarithms.
    spread = np.hypot(np.log(best.upper_us / best.time_us), np.log(own.upper_us / own.time_us))
    return ratio, min(1.0, ratio * float(np.exp(-spread))), min(1.0, ratio * float(np.exp(spread)))
