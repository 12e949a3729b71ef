"""Kernel times in a busy stream, which networks and traces add up, and which answer for operators without candidates.

Training data hold times of isolated calls. A busy stream hides the launch of a call, so the launch is subtracted. An
unmeasured kind of problem uses a fallback: a kind that moves the same bytes. If several libraries were measured, the
library with the most rows represents the framework.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import exp, inf
from typing import NamedTuple

from surrogate.features import HALF, BoundedCache, Gpu, compute_us, has_fewer_flops, peak_tflops, roofline_us
from surrogate.features.families import AnyProblem, DescribedProblem, Family, NetworkProblem, Operator, family_of
from surrogate.features.families.operator import MemoryBound
from surrogate.models.call_cost import MIN_KERNEL_US, call_cost_of
from surrogate.prediction.ranking import Ranker, Ranking, rankings_of
from surrogate.prediction.resolve import Question, Resolver, is_problem
from surrogate.prediction.results import DATASHEET, MODEL, ROOFLINE, UNMEASURED_SOURCES, KernelTime
from surrogate.prediction.sources.datasheet import datasheet_models, sustained_share

WINDOW_RATE = 4.0
"""Elements of pooling windows that one SM reads in a clock cycle; measured: 1.6 to 7."""
MAX_UPPER_RATIO = 2.5
"""Maximum ratio of an interval's upper end to the longest possible time, because the rate of windows varies."""
L2_SPEEDUP = 4.0
"""Ratio of L2 to DRAM bandwidth. The lower end may be this factor below the DRAM time, if the L2 cache holds the
data."""
ROOFLINE_UPPER = 4.3
"""Upper end of an interval over its roofline time. 90 % of PyTorch's operators over 100 µs stay below it."""
VARIANT_FACTOR = 1.2
"""Factor of the 90 % interval of a variant's time by its own rate."""
MIN_ROWS = 100
"""Minimum rows for a GPU's own measurements to be preferred over the larger table of a more distant fallback."""
MAX_ANSWERS = 8192
"""Maximum number of times that are kept. A time takes about 1 KB."""
MAX_CHOICES = 1024
"""Maximum number of settings whose fallback is kept."""


class FallbackChoice(NamedTuple):
    """The chosen fallback of a problem: its position in `fallbacks`, and the question that finds its ranker."""

    position: int
    question: Question


class KernelTimes:
    """Kernel times for one GPU; answers are kept."""

    def __init__(self, resolver: Resolver, library: str | None) -> None:
        self._resolver = resolver
        self._library = library
        self._answers: BoundedCache[AnyProblem, KernelTime] = BoundedCache(MAX_ANSWERS)
        self._chosen: BoundedCache[tuple[Family, tuple[str, ...], bool], tuple[FallbackChoice | None]]
        self._chosen = BoundedCache(MAX_CHOICES)

    def of(self, problems: Sequence[AnyProblem], target: Gpu) -> list[KernelTime]:
        """Return one kernel time per problem, in order. Equal problems are computed once."""
        answers = {problem: self._answers.get(problem) for problem in problems}
        new = [problem for problem, kept in answers.items() if kept is None]
        for problem, answer in zip(new, self.computed(new, target), strict=True):
            answers[problem] = self._answers.put(problem, answer)
        return [answer for answer in map(answers.get, problems) if answer is not None]

    def computed(self, problems: Sequence[AnyProblem], target: Gpu) -> list[KernelTime]:
        """Return `of` without kept answers, for many problems. Problems of a setting are computed together."""
        answers: dict[int, KernelTime] = {}
        by_setting: dict[Ranker, list[tuple[int, AnyProblem]]] = {}
        for i, problem in enumerate(problems):
            if isinstance(problem, Operator) and (own_us := float(problem.variant_us(target))):
                ends = own_us / VARIANT_FACTOR, own_us * VARIANT_FACTOR
                answers[i] = _unmeasured(problem, target, own_us, ends, DATASHEET)
                continue
            chosen = self._fallback_choice(problem, target)
            ranker = None if chosen is None else self._resolver.ranker(chosen.question)
            if (answer := self._from_datasheet(problem, ranker, target)) is not None:
                answers[i] = answer
            elif chosen is None or ranker is None:
                answers[i] = self._from_roofline(problem, target)
            else:
                by_setting.setdefault(ranker, []).append((i, problem.fallbacks()[chosen.position]))
        for ranker, pairs in by_setting.items():
            fallbacks = [fallback for _, fallback in pairs]
            for (i, fallback), ranking in zip(pairs, rankings_of(ranker, fallbacks), strict=True):
                if ranking.estimates and ranking.estimates[0].source != ROOFLINE:
                    answers[i] = self._best_time(ranker, problems[i], fallback, ranking)
                else:
                    answers[i] = self._from_roofline(problems[i], target)
        return [answers[i] for i in range(len(problems))]

    def _best_time(self, ranker: Ranker, problem: AnyProblem, fallback: AnyProblem, ranking: Ranking) -> KernelTime:
        """Return the best candidate's time without its launch. The interval keeps its width and contains the time."""
        gpu = ranker.setting.gpu
        best = ranking.estimates[0]
        factor = exp(best.half_width)
        call_us = own_us = best.time_us
        bounds = 0.0, inf
        if ranker.setting.family.has_call_cost and self._resolver.bundle.call_costs:
            base_us = float(ranker.source.context.formula.problem(fallback).roofline_us)
            streaming = ranker.setting.family.is_streaming(ranker.setting.values)
            launch = call_cost_of(self._resolver.bundle.call_costs, gpu, best.candidate.library)
            own_us = launch.kernel_us(call_us, base_us, streaming, getattr(fallback, "CALLS", 1.0))
            if isinstance(problem, MemoryBound) and (not best.in_domain or ranker.source_name != MODEL):
                device = ranker.source.context.device
                min_us, max_us = _possible_us(problem, device)
                own_us = max(min(own_us, max_us), min_us)
                min_us = min(own_us, float(problem.traffic_us(device)) / L2_SPEEDUP)
                bounds = (min_us, max(own_us, MAX_UPPER_RATIO * max_us))
        in_domain = fallback.kind == problem.kind and best.in_domain
        lower_us, upper_us = (best.lower_us, best.upper_us) if own_us == call_us else (own_us / factor, own_us * factor)
        ends = max(lower_us, bounds[0]), min(upper_us, bounds[1])
        names = best.candidate.library, best.candidate.name
        return KernelTime(problem, gpu, *names, own_us, *ends, call_us, best.source, in_domain)

    def _from_datasheet(self, problem: AnyProblem, ranker: Ranker | None, target: Gpu) -> KernelTime | None:
        """Return a memory-bound kernel's analytical time in half precision or under autocast, if unmeasured."""
        datasheet = datasheet_models(target, problem.dtype if problem.dtype in HALF else "fp16")
        if ranker is None:
            measured = any(key.gpu == target.name for key in self._resolver.bundle.call_costs)
        else:
            (reference,) = ranker.references.values()
            measured = reference._replace(gpu=target.name) in ranker.family_model.row_counts
        if datasheet is None or measured or not isinstance(problem, Operator):
            return None
        time_us = datasheet.model.streamed_us(problem, target)
        if time_us is None:
            return None
        if isinstance(problem, MemoryBound):
            time_us = max(time_us, problem.serial_us(target))
        factor = exp(datasheet.by_kind[""].half_width)
        return _unmeasured(problem, target, time_us, (time_us / factor, time_us * factor), DATASHEET)

    def _from_roofline(self, problem: AnyProblem, target: Gpu) -> KernelTime:
        """Return the roofline time with the launch slope of streaming operators, for a problem that no model covers."""
        if isinstance(problem, Operator):
            base_us = float(problem.roofline_us(target))
            min_us = base_us * problem.MIN_SHARE
        else:
            family = family_of(problem)
            base_us = min_us = float(family.formula(family.setting_of(problem), target).problem(problem).roofline_us)
        costs = self._resolver.bundle.call_costs.items()
        own_slopes = [cost.slope for key, cost in costs if key.gpu == target.name]
        slope = min(own_slopes or [cost.slope for key, cost in costs if not key.gpu], default=1.0)
        ends = (max(min_us, MIN_KERNEL_US), ROOFLINE_UPPER * base_us + 2 * MIN_KERNEL_US)
        return _unmeasured(problem, target, slope * base_us + MIN_KERNEL_US, ends, ROOFLINE)

    def _fallback_choice(self, problem: AnyProblem, target: Gpu) -> FallbackChoice | None:
        """Return the fallback with the most evidence in the bundle, or None if the bundle has no fallback."""
        if not is_problem(problem):  # a layer with known traffic only
            return None
        family = family_of(problem)
        # The fallbacks depend on the setting, and on whether there is a batch.
        key = (family, family.setting_of(problem), getattr(problem, "batch", 1) > 1)
        (chosen,) = self._chosen.get(key) or self._chosen.put(key, (self._find_choice(problem, target),))
        return chosen

    def _find_choice(self, problem: AnyProblem, target: Gpu) -> FallbackChoice | None:
        """Return the nearest fallback with `MIN_ROWS` rows on this GPU, else on any GPU.

        The library with most rows wins.
        """
        ranked: dict[tuple[bool, bool, int, int], FallbackChoice] = {}
        for index, fallback in enumerate(problem.fallbacks()):
            family = family_of(fallback)
            if family.name not in self._resolver.bundle.family_models:
                continue
            question = Question(family, target.name, family.setting_of(fallback), self._library)
            question = self._resolver.with_vendor_kernels(question)
            measured = self._resolver.in_measured_type(question)
            family_model = self._resolver.family_model(measured)
            for library in family_model.domain.default_libraries if question.library is None else [question.library]:
                reference = family_model.domain.reference_key(library, measured.setting_values)
                rows = family_model.row_counts.get(reference, 0)
                gpu_rows = family_model.row_counts.get(reference._replace(gpu=target.name), 0)
                if rows:
                    choice = FallbackChoice(index, measured._replace(library=library))
                    ranked.setdefault((gpu_rows >= MIN_ROWS, rows >= MIN_ROWS, -index, rows), choice)
        return ranked[max(ranked)] if ranked else None


def _possible_us(problem: MemoryBound, device: Gpu) -> tuple[float, float]:
    """Return the shortest and the longest possible time in µs.

    The shortest time is the time of a single block. The longest time includes the traffic and the re-read windows.
    """
    max_us = inf
    if problem.MAX_TRAFFIC_RATIO:
        extents = problem.extents
        read = float((extents.outputs or 0) * extents.window * extents.window_w)
        traffic_us = float(problem.traffic_us(device)) + MIN_KERNEL_US
        max_us = problem.MAX_TRAFFIC_RATIO * traffic_us + read / (WINDOW_RATE * device.sms * device.boost_mhz)
    return float(problem.serial_us(device)), max_us


def _unmeasured(problem: AnyProblem, gpu: Gpu, time_us: float, ends: tuple[float, float], source: str) -> KernelTime:
    """Return a time from the roofline or the datasheet; no candidate is predicted."""
    return KernelTime(problem, gpu.name, "", "", time_us, *ends, time_us, source, in_domain=False)


def within_peaks(kernel: KernelTime, gpu: Gpu) -> KernelTime:
    """Return the time with a lower end that the GPU's peaks allow.

    Without measurements on the GPU, the time is at least the time at the peak's sustained share.
    """
    problem, factor = kernel.problem, 1.0
    if isinstance(problem, DescribedProblem):
        return kernel
    if kernel.source in UNMEASURED_SOURCES and problem.uses_tensor_cores:
        peak = peak_tflops(gpu, problem.dtype, True) * sustained_share(gpu)
        factor = max(compute_us(problem.flops, peak) / kernel.time_us, 1.0)
    time_us, lower_us, upper_us = (factor * us for us in (kernel.time_us, kernel.lower_us, kernel.upper_us))
    lower_us = limited_lower_us(time_us, lower_us, min_kernel_us(problem, gpu), kernel.source)
    return replace(kernel, time_us=time_us, lower_us=lower_us, upper_us=upper_us)


def limited_lower_us(time_us: float, lower_us: float, min_us: float, source: str) -> float:
    """Return the lower end of an interval, at least ``min_us``. Measured kernels may exceed the peaks of a board."""
    is_limited = min_us < time_us or source in UNMEASURED_SOURCES
    return max(lower_us, min(min_us, time_us)) if is_limited else lower_us


def min_kernel_us(problem: NetworkProblem, gpu: Gpu, algorithm: str | None = None) -> float:
    """Return the shortest time in µs that the GPU's peaks allow: all operations, and the weights that exceed L2.

    The operations do not count if ``algorithm`` needs fewer than a direct convolution. Other bytes give no bound: one
    kernel's result may still be in L2 for the next kernel, and a compiler removes kernels. Some measured passes of
    timm's networks are shorter than such bounds.
    """
    peak = peak_tflops(gpu, problem.dtype, problem.uses_tensor_cores) * max(sustained_share(gpu), 1.0)
    weight_bytes = problem.weight_bytes if isinstance(problem, Operator) else 0
    flops = 0 if has_fewer_flops(algorithm or "") else problem.flops
    return float(roofline_us(flops, max(weight_bytes - gpu.l2_bytes, 0), peak, gpu.dram_gbs))
