"""The convolutions of a trace as problems, with the algorithm that ran and the one that the surrogate would pick."""

from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import numpy as np

from surrogate.features.conv import Conv
from surrogate.features.errors import InputError
from surrogate.features.kernels import identify_call
from surrogate.trace.events import kinds
from surrogate.trace.events.tables import Trace
from surrogate.trace.graph.tasks import Graph
from surrogate.trace.whatif.primitives import scale, select
from surrogate.trace.whatif.setting import Change, Setting
from surrogate.trace.work import WorkFinder

_FORWARD = ("aten::cudnn_convolution", "aten::miopen_convolution", "aten::convolution", "aten::_convolution")
_HALVES = {
    "aten::cudnn_convolution_backward_input": "bwd_data",
    "aten::cudnn_convolution_backward_weight": "bwd_filter",
}
_WHOLE = "aten::cudnn_convolution_backward"
_BOTH = "aten::convolution_backward"
_NUMBERED = {"IMPLICIT_GEMM": "ALGO_0", "IMPLICIT_PRECOMP_GEMM": "ALGO_1"}
_PARTS = {"dgrad": "bwd_data", "wgrad": "bwd_filter"}


@dataclass(frozen=True, slots=True)
class Run:
    """One convolution that ran: its problem, the algorithm by its kernels' names (None: they do not tell), and the rows
    of those kernels in ``trace.activities``."""

    conv: Conv
    algorithm: str | None
    activities: tuple[int, ...]


def convolutions_of(trace: Trace) -> tuple[list[Run], int]:
    """All convolutions whose problem the shapes give, and how many others there are.

    Padding and stride come from the sizes of input, filter and output, so traces without scalar arguments do too.
    """
    finder = WorkFinder(trace)
    owners = {name: place for place, name in enumerate(trace.names) if name in (*_FORWARD, *_HALVES, _BOTH)}
    kernels: dict[tuple[int, str], list[int]] = {}
    rows = np.flatnonzero((trace.activities.kind == kinds.KERNEL) & (trace.activities.range >= 0))
    chosen = set(owners.values())
    for row in rows.tolist():
        owner = int(trace.activities.range[row])
        while owner >= 0 and int(trace.ranges.name[owner]) not in chosen:
            owner = int(trace.ranges.parent[owner])
        if owner >= 0:
            kernels.setdefault((owner, _direction(trace, owner, row)), []).append(row)
    runs, lost = [], 0
    for (owner, direction), own in kernels.items():
        if all("elementwise" in trace.name_of(trace.activities, row) for row in own):
            continue  # the bias is added by a kernel of its own
        conv = _problem(trace, finder, owner, direction) if direction else None
        if conv is None:
            lost += 1
            continue
        runs.append(Run(conv, _algorithm(trace, own, direction), tuple(own)))
    return runs, lost


def _algorithm(trace: Trace, kernels: list[int], direction: str) -> str | None:
    """By the kernels' names; the backward algorithms of the same method have numbers in cuDNN."""
    found = identify_call(trace.name_of(trace.activities, row) for row in kernels)
    return found if direction == "fwd" or found is None else _NUMBERED.get(found, found)


def _direction(trace: Trace, owner: int, kernel: int) -> str:
    """Of a backward operator that makes both gradients the kernel's name tells; "" where it does not."""
    name = trace.name_of(trace.ranges, owner)
    if name in _HALVES:
        return _HALVES[name]
    if name != _BOTH:
        return "fwd"
    kernel_name = trace.name_of(trace.activities, kernel).lower()
    return next((part for mark, part in _PARTS.items() if mark in kernel_name), "")


def _problem(trace: Trace, finder: WorkFinder, owner: int, direction: str) -> Conv | None:
    name, source = trace.name_of(trace.ranges, owner), owner
    if name in _HALVES:
        source = int(trace.ranges.parent[owner])
        if source < 0 or trace.name_of(trace.ranges, source) != _WHOLE:
            return None
    work, shapes = finder.of(owner), trace.shapes_of(source)
    if work is None or not shapes or len(shapes) < 2 or work.dtype not in ("fp32", "fp16", "bf16"):
        return None
    if direction == "fwd":
        image, weight, output = shapes[0], shapes[1], None
    elif name == _BOTH:
        output, image, weight = shapes[:3]
    else:
        image, output, weight = shapes[:3]
    if not all(isinstance(s, tuple) and len(s) == 4 for s in (image, weight)):
        return None
    if output is None:
        area = work.flops / (2.0 * prod(weight[1:]) * image[0] * weight[0])
        high = round(sqrt(area * image[2] / image[3]))
        output = (image[0], weight[0], high, round(area / high) if high else 0)
    sides = [_step(image[i], weight[i], output[i]) for i in (2, 3)]
    if any(side is None for side in sides) or image[1] % weight[1]:
        return None
    (stride_h, pad_h), (stride_w, pad_w) = sides  # type: ignore[misc]
    try:
        return Conv(
            n=image[0], c=image[1], h=image[2], w=image[3], k=weight[0], r=weight[2], s=weight[3], pad_h=pad_h,
            pad_w=pad_w, stride_h=stride_h, stride_w=stride_w, groups=image[1] // weight[1], dtype=work.dtype,
            direction=direction,
        )  # fmt: skip
    except InputError:
        return None


def _step(size: int, kernel: int, output: int) -> tuple[int, int] | None:
    """(stride, padding) of one side: the stride nearest to input / output, the least padding that fits."""
    if output < 1:
        return None
    guess = max(1, round(size / output))
    for stride in (guess, guess + 1, max(guess - 1, 1)):
        for pad in range(kernel):
            if (size + 2 * pad - kernel) // stride + 1 == output:
                return stride, pad
    return None


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
    factors = np.ones((3, len(trace.activities)))
    unknown, swapped = 0, 0
    cache: dict[tuple[Conv, str], tuple[float, float, float] | None] = {}
    for run in runs:
        key = (run.conv, run.algorithm or "")
        if key not in cache:
            cache[key] = _ratio(setting.predictor, run)
        found = cache[key]
        unknown += found is None
        if found is not None and found[0] < 1:
            swapped += 1
            factors[:, list(run.activities)] = np.array(found)[:, None]
    tasks = select(graph, kind="kernel") & (graph.row >= 0)
    of_task = np.ones((3, len(graph)))
    of_task[:, tasks] = factors[:, graph.row[tasks]]
    middle, low, high = (scale(graph, tasks, one) for one in of_task)
    notes = [f"{swapped:,} of {len(runs):,} convolutions get another algorithm"]
    if unknown or lost:
        notes.append(
            f"{unknown + lost:,} stay: their problem or algorithm is unknown to the trace or the surrogate"
        )
    return Change(middle, low, high, tuple(notes))


def _ratio(predictor: Any, run: Run) -> tuple[float, float, float] | None:
    """Best / own predicted time and its interval, in [0, 1]: nobody would swap for a slower one."""
    try:
        candidates = predictor.select(run.conv).candidates
    except InputError:
        return None
    own = next((one for one in candidates if one.algorithm == run.algorithm), None)
    if own is None:
        return None
    best = candidates[0]
    if best.algorithm == own.algorithm:
        return 1.0, 1.0, 1.0
    ratio = best.time_us / own.time_us
    spread = np.hypot(np.log(best.upper_us / best.time_us), np.log(own.upper_us / own.time_us))
    return ratio, min(1.0, ratio * float(np.exp(-spread))), min(1.0, ratio * float(np.exp(spread)))
