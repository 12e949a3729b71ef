"""Return times of a trace's device activities: measured, predicted, or transferred to another GPU.

Predictions come from the sizes of the operators that launched the activities.
"""

import re
from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, exp, hypot, inf, log, sqrt
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from surrogate.features.families import NetworkProblem, Operator, operator
from surrogate.features.families.transfer import Collective
from surrogate.features.gpu import Gpu, gpus
from surrogate.features.problem import HALF
from surrogate.features.roofline import peak_tflops, roofline_us
from surrogate.network.aten_call import UnsupportedError
from surrogate.network.operators import with_default_math
from surrogate.network.predict import Predictors
from surrogate.prediction.sources.datasheet import sustained_share
from surrogate.trace import events
from surrogate.trace.calls import CallReader, is_shape, kernels_by_owner, rebatched, sizes_of_batch
from surrogate.trace.events.tables import Floats, Trace, enclosing
from surrogate.trace.iteration.overheads import CollectiveModels, collective_model_us

MEASURED, MODEL, ROOFLINE, COLLECTIVE_MODEL, RATES = "measured", "model", "roofline", "law", "rates"
SHORTEST_US = {"nvidia": 1.6, "amd": 3.9}
"""Vendor → the time in µs of a kernel with few elements. Values: medians of PyTorch's elementwise kernels below 0.1 MB
in traces of an H100 and of an MI300X (ResNet, 719 kernels).
"""
UNMEASURED_FACTOR = {True: 1.5, False: 2.1}
"""Whether vendor and arithmetic units are the same → the factor that bounds the error of times by `RATES` in nine of
ten cases, by kinds of kernels. Source: eager PyTorch on the memory-bound programs of ScalingIntelligence/KernelBench
(MIT). From A100 to H100 the factors are 1.2 and 1.55 on its first two levels; from A100 or H100 to one die of an MI250X
they are 1.6 to 2.2. No kernels were measured for the change from plain units to TF32. The published training of
ResNet-50 on a V100 and an A100 is slower there than the prediction by a factor of 1.15.
"""
BOARD_FACTOR = {"chip": 1.0, "stacked": 2.5, "other": 3.0, "vendors": 3.1}
"""Minimum factor of the interval of times that were transferred between two boards: of one chip, of one vendor with
stacked memory (HBM) on both, of one vendor with another memory on one of them, of two vendors. An error of a board's
rates is common to all kernels. Source: eager programs of ScalingIntelligence/KernelBench (MIT) on 13 boards
(`experiments/small_networks.py`). Nine of ten transfers of half of the programs need 2.4, 2.9 and 2.8. The last two are
wider, because groups of the other half held 88 and 86 % only. The intervals hold 90 % of 3,484 transfers of the other
half, 88 to 92 % by group; without the factors, 55 %.
"""
MAX_DISAGREEMENT = 10.0
"""Maximum factor between a prediction that replaces a measured time and this time's transfer by rates. Source: 453
transfers of the same programs to a T4, the only measured target. Predictions are more accurate than rates: nine of ten
are within factors of 1.95 and 3.45. A bound of 10 changes neither, and no correct prediction exceeded it.
"""
STACKED_BITS = 2048
"""Minimum width of a board's memory bus in bits with stacked memory."""
SURE_FACTOR = 2.5
"""The widest prediction interval, as a factor, at which a prediction is more accurate than rates. The interval of an
element type without measurements on the GPU is wider, even if the GPU's other types were measured.
"""
UNALIGNED = re.compile(r"tensorop.*align[12](?!\d)")
"""Matches the names of NVIDIA's matrix-unit kernels for rows that do not begin at a multiple of 16 bytes. AMD's kernels
have no penalty for such rows. Evidence: 99 products of rocBLAS's published times on MI60 and Navi 21 with odd rows and
at least 0.5 GFLOP. Each takes 1.00 times the time per FLOP of its nearest aligned neighbour (median; eight in ten 0.94
to 1.06).
"""
Group = tuple[tuple[NetworkProblem, ...], tuple[NetworkProblem, ...], list[int]]
"""The problems of an operator, its problems at the new batch, and the activities that it launched."""


class PredictedTime(NamedTuple):
    """The predicted time of a problem: µs, source, half width of the 90 % interval in log time, kind of problem."""

    time_us: float
    source: str
    half_width: float = 0.0
    kind: str = ""


@dataclass(frozen=True, slots=True)
class UnpredictedOperator:
    """An operator with measured times instead of predictions: the missing fact, number of activities, time in µs."""

    operator: str
    lacks: str
    count: int
    time_us: float


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTimes:
    """The times in µs and their sources, one per row of ``trace.activities``.

    ``reasons`` are pairs of a row without a prediction and the missing fact. ``parts`` are the transferred times of the
    operators, if the times were transferred to another GPU; ``board_factor`` is then the minimum of `factor_90`.
    """

    time_us: Floats
    source: tuple[str, ...]
    reasons: tuple[tuple[int, str], ...] = ()
    parts: tuple[PredictedTime, ...] = ()
    board_factor: float = 1.0

    @property
    def factor_90(self) -> float:
        """The factor that bounds the error of the summed transferred times in nine of ten cases.

        Errors of kernels of one kind are added; errors of different kinds are independent.
        """
        errors: dict[str, float] = defaultdict(float)
        for part in self.parts:
            errors[part.kind] += part.time_us * part.half_width
        total_us = sum(part.time_us for part in self.parts) or 1.0
        return max(exp(sqrt(sum(error**2 for error in errors.values())) / total_us), self.board_factor)


def answers_of(predictors: Predictors, requested: set[NetworkProblem]) -> "dict[NetworkProblem, PredictedTime | str]":
    """Return the predicted time of every problem, or the missing fact as text."""
    problems = sorted(requested, key=str)
    lacks = "a model of convolutions" if predictors.algorithm_predictor is None else "an algorithm that runs it"
    times: dict[NetworkProblem, PredictedTime | str] = dict.fromkeys(problems, lacks)
    for problem, answer in predictors.answers(problems, predictors.selections(problems)).items():
        half_width = answer.common_share * answer.half_width
        times[problem] = PredictedTime(answer.time_us, answer.source, half_width, problem.kind)
    return times


def predicted_times(
    trace: Trace,
    predictors: Predictors,
    trace_batch: int = 1,
    target_batch: int = 1,
    collective_models: CollectiveModels | None = None,
    trace_predictors: Predictors | None = None,
) -> DeviceTimes:
    """Return the times of the trace's device activities, predicted from the operators that launched them.

    The times of an operator's activities add up to the operator's prediction, in the measured proportions. Problem
    sizes that contain ``trace_batch`` change to ``target_batch``. A roofline ignores kernel launches, so an operator
    that is predicted by it takes at least the shortest kernel time for each of its activities. A collective takes the
    time of ``collective_models`` if its kind has a model; this time contains no wait for other ranks. An activity that
    cannot be predicted keeps its measured time and is listed in ``reasons``.

    ``trace_predictors`` predicts for the GPU of the trace. If it is given, measured times are transferred to the target
    GPU (`transferred`), so that errors that both predictions share cancel. Activities that cannot be predicted then
    change like other kernels of the same name, or like copies. Copies of pageable memory keep their measured time per
    byte, because the host's staging bounds them, not the GPU or its link. The penalty for misaligned rows of a matrix
    product is dropped if the target vendor's kernels have none.
    """
    groups, reasons = _groups(trace, trace_batch, target_batch)
    shortest = operator("fill", n=1)
    trace_gpu = trace_predictors.gpu if trace_predictors else predictors.gpu
    own_problems = {problem: with_default_math(problem, trace_gpu) for before, _, _ in groups for problem in before}
    target_problems = {
        problem: with_default_math(problem, predictors.gpu) for _, after, _ in groups for problem in after
    }
    target_answers = answers_of(predictors, {shortest, *target_problems.values()})
    own_answers = answers_of(trace_predictors, set(own_problems.values())) if trace_predictors else {}
    minimum = target_answers[shortest]
    for problem in target_answers:
        model_us = collective_model_us(collective_models or {}, problem) if isinstance(problem, Collective) else None
        if model_us is not None:
            target_answers[problem] = PredictedTime(model_us, COLLECTIVE_MODEL, 0.0, problem.kind)
    activities, time_us = trace.activities, trace.activities.time_us.copy()
    source, parts = np.full(len(time_us), MEASURED, dtype=object), list[PredictedTime]()
    drops_penalty = trace_predictors is not None and trace_gpu.vendor != predictors.gpu.vendor == "amd"
    unaligned = trace.name_matches(activities, UNALIGNED.search) & drops_penalty
    is_pageable = pageable_copies(trace) & (trace_predictors is not None)
    for before, after, rows in groups:
        if is_pageable[rows[0]]:
            time_us[rows] *= after[0].dram_bytes / before[0].dram_bytes
            kept_us = float(time_us[rows].sum())
            parts.append(PredictedTime(kept_us, MEASURED, log(UNMEASURED_FACTOR[True]), "pageable"))
            continue
        problems = [own_problems[problem] for problem in before], [target_problems[problem] for problem in after]
        missing = [answer for problem in problems[1] if isinstance(answer := target_answers[problem], str)]
        if missing:
            reasons.extend((row, missing[0]) for row in rows)
            continue
        predictions = [answer for problem in problems[1] if not isinstance(answer := target_answers[problem], str)]
        measured_us, sources = float(time_us[rows].sum()), {answer.source for answer in predictions}
        predicted_us = sum(answer.time_us for answer in predictions)
        source[rows] = ROOFLINE if ROOFLINE in sources else COLLECTIVE_MODEL if COLLECTIVE_MODEL in sources else MODEL
        if trace_predictors and predictions and not isinstance(after[0], Collective):
            kernels = max(int((activities.kind[rows] == events.KERNEL).sum()), 1)
            aligned = [own_answers[problem] for problem in problems[0]] if unaligned[rows].any() else []
            aligned_us = sum(answer.time_us if isinstance(answer, PredictedTime) else measured_us for answer in aligned)
            own_us = min(measured_us, aligned_us or measured_us)
            own = OperatorOnGpu.of(trace_gpu, problems[0], own_answers)
            target = OperatorOnGpu.of(predictors.gpu, problems[1], target_answers)
            parts.append(transferred(own_us, kernels, own, target))
            predicted_us, source[rows] = parts[-1].time_us, parts[-1].source
        elif ROOFLINE in sources and not isinstance(minimum, str):
            predicted_us = max(predicted_us, len(rows) * minimum.time_us)
        time_us[rows] = predicted_us * (time_us[rows] / measured_us if measured_us else 1 / len(rows))
    if trace_predictors and (scaled := [row for row, _ in reasons if not is_pageable[row]]):
        parts.append(_scaled_by_name(trace, time_us, scaled, (trace_gpu, predictors.gpu)))
        source[scaled] = RATES
    return DeviceTimes(
        time_us, tuple(source), tuple(reasons), tuple(parts), BOARD_FACTOR[pair_kind(trace_gpu, predictors.gpu)]
    )


def pair_kind(own: Gpu, target: Gpu) -> str:
    """Return the key of `BOARD_FACTOR` for a transfer between two boards."""
    chips = {(board.architecture, board.sms, board.fp16_tensor_tflops) for board in (own, target)}
    is_stacked = min(own.memory_bus_bits, target.memory_bus_bits) >= STACKED_BITS
    kind = "vendors" if own.vendor != target.vendor else "stacked" if is_stacked else "other"
    return kind if len(chips) > 1 else "chip"


def _scaled_by_name(trace: Trace, time_us: Floats, rows: Sequence[int], gpus: tuple[Gpu, Gpu]) -> PredictedTime:
    """Scale the ``time_us`` of ``rows`` as other kernels of the same name change, or as copies change."""
    own, target = gpus
    lacking = np.isin(np.arange(len(time_us)), rows)
    sums = [np.bincount(trace.activities.name, column * ~lacking) for column in (trace.activities.time_us, time_us)]
    copy_ratio = np.full(len(sums[0]), own.dram_share * own.dram_gbs / (target.dram_share * target.dram_gbs))
    time_us[lacking] *= np.divide(sums[1], sums[0], out=copy_ratio, where=sums[0] > 0)[trace.activities.name[lacking]]
    half_width = log(UNMEASURED_FACTOR[own.vendor == target.vendor])
    return PredictedTime(float(time_us[lacking].sum()), RATES, half_width, "unknown")


class OperatorOnGpu(NamedTuple):
    """An operator on one GPU: its problems as PyTorch runs them there, and the sum of the predictions that exist.

    ``half_width`` is their largest half width in log time. If every problem has a prediction, ``is_predicted`` is True;
    if also every prediction comes from measurements on this GPU, ``is_measured`` is True.
    """

    gpu: Gpu
    problems: Sequence[NetworkProblem]
    predicted_us: float
    half_width: float
    is_predicted: bool
    is_measured: bool

    @classmethod
    def of(
        cls, gpu: Gpu, problems: Sequence[NetworkProblem], answers: "dict[NetworkProblem, PredictedTime | str]"
    ) -> Self:
        """Return the operator with the predictions among ``answers``; a text is a missing fact."""
        found = [answer for problem in problems if not isinstance(answer := answers[problem], str)]
        half_width = max((each.half_width for each in found), default=inf)
        is_predicted = len(found) == len(problems)
        is_measured = is_predicted and all(each.source in (MODEL, MEASURED) for each in found)
        return cls(gpu, problems, sum(each.time_us for each in found), half_width, is_predicted, is_measured)

    @property
    def is_sure(self) -> bool:
        """Return True if the prediction interval is at most `SURE_FACTOR` wide."""
        return self.half_width <= log(SURE_FACTOR)


def transferred(measured_us: float, kernels: int, own: OperatorOnGpu, target: OperatorOnGpu) -> PredictedTime:
    """Return an operator's time on the target GPU, transferred from its time on ``own``, the GPU of the trace.

    The rules, in order:

    1. If both GPUs were measured and both predictions are within `SURE_FACTOR`, the measured time is multiplied by the
    ratio of the predictions.

    2. If only the target was measured and its prediction is within `SURE_FACTOR`, the prediction is the answer. It is
    also the answer if the operator changes between plain units and matrix units. The share of the peak that a kernel
    reached on one kind of units is no evidence for the other. The answer differs from the time by rule 4 by at most
    `MAX_DISAGREEMENT`.

    3. On the same GPU at another batch, the measured time is multiplied by the ratio of the predictions, as their
    errors cancel.

    4. Otherwise the shortest kernel time (`SHORTEST_US`) is the target's, and the rest changes with the rates that long
    kernels reach on both GPUs. If only the GPU of the trace was measured and the target's prediction is within
    `SURE_FACTOR`, the ratio of the predictions replaces the ratio of the rates.
    """
    kind = target.problems[0].kind
    shortest_us, target_shortest_us = (
        kernels * SHORTEST_US.get(each.gpu.vendor, SHORTEST_US["amd"]) for each in (own, target)
    )
    # The shortest kernel time on either GPU, scaled down if the operator took less.
    minimum_us = min(measured_us / shortest_us, 1.0) * target_shortest_us
    same_gpu = own.gpu == target.gpu
    same_vendor = own.gpu.vendor == target.gpu.vendor
    own_units, units = (getattr(each.problems[0], "uses_tensor_cores", False) for each in (own, target))
    rates_half_width = log(UNMEASURED_FACTOR[same_vendor and own_units == units])
    if own.is_measured and target.is_measured and own.is_sure and target.is_sure:
        time_us = max(measured_us * target.predicted_us / own.predicted_us, minimum_us)
        half_width = hypot(own.half_width, target.half_width)
        return PredictedTime(time_us, MODEL, min(half_width, rates_half_width) if same_gpu else half_width, kind)
    own_rates_us, rates_us = (sum(_at_rates_us(part, each.gpu) for part in each.problems) for each in (own, target))
    ratio = rates_us / own_rates_us
    long_us = max(measured_us - shortest_us, 0.0)
    # Entering matrix units was judged on NVIDIA's TF32 only.
    changes_units = own_units != units and (own_units or same_vendor)
    if (changes_units and target.is_predicted) or (target.is_measured and target.is_sure):
        time_us, by_rates_us = max(target.predicted_us, minimum_us), minimum_us + ratio * long_us
        bounded_us = min(max(time_us, by_rates_us / MAX_DISAGREEMENT), by_rates_us * MAX_DISAGREEMENT)
        half_width = max(target.half_width, abs(log(bounded_us / time_us)) if bounded_us else 0.0)
        return PredictedTime(bounded_us, MODEL if target.is_measured else RATES, half_width, kind)
    if same_gpu and own.is_predicted:
        return PredictedTime(measured_us * target.predicted_us / own.predicted_us, RATES, rates_half_width, kind)
    if own.is_measured and target.is_sure:
        ratio = target.predicted_us / own.predicted_us
    time_us = minimum_us + ratio * long_us
    if own.predicted_us and target.predicted_us:
        # The interval includes the ratio of the predictions, too.
        rates_half_width = max(rates_half_width, abs(log(target.predicted_us / own.predicted_us / ratio)))
    return PredictedTime(time_us, RATES, rates_half_width, kind)


def _at_rates_us(problem: NetworkProblem, gpu: Gpu) -> float:
    """Return the roofline time of a problem in µs, at the rates that long kernels reach on the GPU.

    AMD's tables list 16-bit algorithms as ``fma``, but they run on matrix units. The power limit applies only to 16-bit
    types, for which the energy of a FLOP is known, also from a board with the same chip and peak. In TF32, H100 SXM's
    kernels reach 93 % of the peak (training of VGG13); its 700 W would allow 74 %.
    """
    if problem.HAS_ALGORITHMS and problem.dtype in HALF and gpu.vendor == "amd" and gpu.fp16_tensor_tflops:
        problem = replace(problem, math="tensor_op")
    # This also holds for fp32 on AMD's matrix units.
    if isinstance(problem, Operator) and (problem.dtype == "fp32" or not problem.uses_tensor_cores):
        return float(problem.roofline_us(gpu))
    peak = peak_tflops(gpu, problem.dtype, problem.uses_tensor_cores)
    power_limited = _power_limited(gpu) if problem.dtype in HALF else replace(gpu, tensor_pj_per_flop=0.0)
    peak = peak * sustained_share(power_limited) if problem.uses_tensor_cores else gpu.sustained_tflops(peak)
    return float(roofline_us(problem.flops, int(problem.dram_bytes), peak, gpu.dram_share * gpu.dram_gbs))


@lru_cache(maxsize=256)
def _power_limited(gpu: Gpu) -> Gpu:
    """Return the GPU with the energy of a FLOP, from a board with the same chip and peak if its own is unknown."""
    key = gpu.architecture, gpu.bf16_tensor_tflops
    boards = [
        each for each in gpus() if each.tensor_pj_per_flop and (each.architecture, each.bf16_tensor_tflops) == key
    ]
    if gpu.tensor_pj_per_flop or not boards:
        return gpu
    watts = gpu.board_watts or boards[0].board_watts
    return replace(gpu, tensor_pj_per_flop=boards[0].tensor_pj_per_flop, board_watts=watts)


def pageable_copies(trace: Trace) -> NDArray[np.bool_]:
    """Return a mask of the copies between the device and pageable memory of the host, by their names."""
    over_pcie = np.isin(trace.activities.copy_kind, events.OVER_PCIE)
    return trace.name_matches(trace.activities, re.compile("(?i)pageable").search) & over_pcie


def collectives(trace: Trace) -> NDArray[np.bool_]:
    """Return a mask of the activities that are collectives, by the kernel's name."""
    activities = trace.activities
    return trace.name_matches(activities, events.COLLECTIVE_NAME.search) & (activities.kind == events.KERNEL)


def _groups(trace: Trace, old: int, new: int) -> tuple[list[Group], list[tuple[int, str]]]:
    """Return the activities grouped by the problems that they compute, and the reasons for the other activities."""
    reader = CallReader(trace)
    batch_sizes = sizes_of_batch(trace, old) if old != new else ()
    is_update = trace.name_matches(trace.ranges, lambda name: "Optimizer." in name or "AccumulateGrad" in name)
    updates = enclosing(trace.ranges, is_update) >= 0
    over_pcie = np.isin(trace.activities.copy_kind, events.OVER_PCIE)
    owners = kernels_by_owner(reader, np.flatnonzero(~over_pcie).tolist())
    # Activities without a rule, and copies between host and device, are timed one by one from their bytes.
    single = [(-1, [row]) for row in (*np.flatnonzero(over_pcie).tolist(), *owners.pop(-1, []))]
    groups: list[Group] = []
    reasons: list[tuple[int, str]] = []
    for owner, rows in (*single, *owners.items()):
        try:
            before = reader.problems(owner) if owner >= 0 else (_transfer(trace, rows[0], old, old),)
            after = before if owner >= 0 or old == new else (_transfer(trace, rows[0], old, new),)
            if owner >= 0 and old != new and not updates[owner]:
                after = tuple(rebatched(problem, old, new, batch_sizes) for problem in before)
        except UnsupportedError as reason:
            reasons += [(row, str(reason)) for row in rows]
            continue
        groups.append((before, after, rows))
    return groups, reasons


def _transfer(trace: Trace, activity: int, old: int, new: int) -> Operator:
    """Return the problem of a copy or memset, from its bytes. Raises `UnsupportedError` for kernels.

    It is also raised if the batch's part of the bytes is unknown.
    """
    activities, row = trace.activities, int(trace.activities.range[activity])
    size, kind = int(activities.bytes[activity]), int(activities.kind[activity])
    if kind not in events.MOVES:
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
    if activities.copy_kind[activity] in events.OVER_PCIE:
        return operator("memcpy", elements=elements)
    return operator("copy" if kind == events.COPY else "fill", n=elements)


def unpredicted(trace: Trace, times: DeviceTimes, rows: Container[int]) -> tuple[UnpredictedOperator, ...]:
    """Return the operators among the activities ``rows`` that kept measured times, the longest total time first."""
    sums: dict[tuple[str, str], list[float]] = defaultdict(list)
    activities, time_us = trace.activities, trace.activities.time_us.tolist()
    for row, reason in times.reasons:
        if row in rows:
            around = int(activities.range[row])
            name = trace.name_of(trace.ranges, around) if around >= 0 else trace.name_of(activities, row)
            sums[name, reason].append(time_us[row])
    operators = [UnpredictedOperator(*key, len(values), sum(values)) for key, values in sums.items()]
    return tuple(sorted(operators, key=lambda entry: (-entry.time_us, entry.operator, entry.lacks)))
