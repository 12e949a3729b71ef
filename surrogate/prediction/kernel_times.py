"""Kernel times in a busy stream, which networks and traces add up.

Training data hold times of isolated calls. A busy stream hides the launch of a call, so the launch is subtracted. An
unmeasured kind of problem uses a fallback: a kind that moves the same bytes. If several libraries were measured, the
library with the most rows represents the framework.
"""

from collections.abc import Sequence
from math import exp, inf
from typing import NamedTuple

from surrogate.features.families import AnyProblem, Family, Operator, family_of
from surrogate.features.families.operator import MemoryBound
from surrogate.features.gpu import Gpu
from surrogate.features.problem import HALF
from surrogate.models.call_cost import MIN_KERNEL_US, call_cost_of
from surrogate.prediction.engines import has_engines, only_listed
from surrogate.prediction.ranking import Ranker, Ranking
from surrogate.prediction.resolve import Question, Resolver, is_problem
from surrogate.prediction.results import DATASHEET, MODEL, ROOFLINE, KernelTime
from surrogate.prediction.sources.datasheet import datasheet_models

WINDOW_RATE = 4.0
"""Elements of pooling windows that one SM reads in a clock cycle; measured: 1.6 to 7."""
MAX_UPPER_RATIO = 2.5
"""Maximum ratio of an interval's upper end to the longest possible time, because the rate of windows varies."""
L2_SPEEDUP = 4.0
"""Ratio of L2 to DRAM bandwidth. The lower end may be this factor below the DRAM time, if the L2 cache holds the
data."""
ROOFLINE_UPPER = 4.3
"""Upper end of an interval over its roofline time. 90 % of PyTorch's operators over 100 µs stay below it."""
MIN_ROWS = 100
"""Minimum rows for a GPU's own measurements to be preferred over the larger table of a more distant fallback."""
MAX_ANSWERS = 100_000
"""Maximum number of answers that are kept. An answer of a predictor takes about 2 KB."""


class FallbackChoice(NamedTuple):
    """The chosen fallback of a problem: its position in `fallbacks`, and the ranker of its setting."""

    position: int
    ranker: Ranker


class FallbackRank(NamedTuple):
    """The evidence for a fallback with one library; the largest is the best.

    ``enough_on_gpu`` and ``enough_rows``: at least `MIN_ROWS` rows on this GPU, and on any GPU.
    """

    enough_on_gpu: bool
    enough_rows: bool
    nearness: int
    rows: int


class KernelTimes:
    """Kernel times for one GPU; answers are kept."""

    def __init__(self, resolver: Resolver, library: str | None) -> None:
        self._resolver = resolver
        self._library = library
        self._answers: dict[AnyProblem, KernelTime] = {}
        self._chosen: dict[tuple[Family, tuple[str, ...], bool], FallbackChoice | None] = {}

    def of(self, problems: Sequence[AnyProblem], target: Gpu) -> list[KernelTime]:
        """Return one kernel time per problem, in order.

        Equal problems are computed once, problems of a setting together.
        """
        if len(self._answers) > MAX_ANSWERS:
            self._answers.clear()
        by_setting: dict[Ranker, list[tuple[AnyProblem, AnyProblem]]] = {}
        for problem in dict.fromkeys(problems):
            if problem in self._answers:
                continue
            chosen = self._fallback_choice(problem, target)
            if (answer := self._from_datasheet(problem, chosen, target)) is not None:
                self._answers[problem] = answer
            elif chosen is None:
                self._answers[problem] = self._from_roofline(problem, target)
            else:
                by_setting.setdefault(chosen.ranker, []).append((problem, problem.fallbacks()[chosen.position]))
        for ranker, pairs in by_setting.items():
            fallbacks = [fallback for _, fallback in pairs]
            rankings = ranker.rank_many(fallbacks)
            if has_engines(ranker):
                rankings = only_listed(ranker, fallbacks, rankings)
            for (problem, fallback), ranking in zip(pairs, rankings, strict=True):
                if ranking.estimates and ranking.estimates[0].source != ROOFLINE:
                    self._answers[problem] = self._candidate_time(ranker, problem, fallback, ranking)
                else:
                    self._answers[problem] = self._from_roofline(problem, target)
        return [self._answers[problem] for problem in problems]

    def _candidate_time(
        self, ranker: Ranker, problem: AnyProblem, fallback: AnyProblem, ranking: Ranking
    ) -> KernelTime:
        """Return the best candidate's time without its launch. The interval keeps its width and contains the time."""
        gpu = ranker.setting.gpu
        best = ranking.estimates[0]
        factor = exp(best.half_width)
        call_us = own_us = best.time_us
        bounds = 0.0, inf
        if ranker.setting.family.has_call_cost and self._resolver.bundle.call_costs:
            roofline_us = float(ranker.source.context.formula.problem(fallback).roofline_us)
            streaming = ranker.setting.family.is_streaming(ranker.setting.values)
            launch = call_cost_of(self._resolver.bundle.call_costs, gpu, best.candidate.library)
            own_us = launch.kernel_us(call_us, roofline_us, streaming)
            if isinstance(problem, MemoryBound) and (not best.in_domain or ranker.source_name != MODEL):
                device = ranker.source.context.device
                min_us, max_us = _possible_us(problem, device)
                own_us = max(min(own_us, max_us), min_us)
                bounds = (
                    min(own_us, float(problem.traffic_us(device)) / L2_SPEEDUP),
                    max(own_us, MAX_UPPER_RATIO * max_us),
                )
        in_domain = fallback.kind == problem.kind and best.in_domain
        ends = (max(own_us / factor, bounds[0]), min(own_us * factor, bounds[1]))
        names = best.candidate.library, best.candidate.name
        return KernelTime(problem, gpu, *names, own_us, *ends, call_us, best.source, in_domain)

    def _from_datasheet(self, problem: AnyProblem, chosen: FallbackChoice | None, target: Gpu) -> KernelTime | None:
        """Return a memory-bound half-precision kernel's analytical time, if the GPU was not measured in the type."""
        datasheet = datasheet_models(target, problem.dtype) if problem.dtype in HALF else None
        if chosen is None:
            measured = any(key.gpu == target.name for key in self._resolver.bundle.call_costs)
        else:
            (reference,) = chosen.ranker.references.values()
            measured = reference._replace(gpu=target.name) in chosen.ranker.family_model.row_counts
        if datasheet is None or measured or not isinstance(problem, Operator):
            return None
        time_us = datasheet.model.streamed_us(problem, target)
        if time_us is None:
            return None
        if isinstance(problem, MemoryBound):
            time_us = max(time_us, problem.serial_us(target))
        factor = exp(datasheet.by_kind[""].half_width)
        return _without_measurements(problem, target, time_us, (time_us / factor, time_us * factor), DATASHEET)

    def _from_roofline(self, problem: AnyProblem, target: Gpu) -> KernelTime:
        """Return the roofline time with the launch slope of streaming operators, for a problem that no model covers."""
        if isinstance(problem, Operator):
            roofline_us = float(problem.roofline_us(target))
            min_us = roofline_us * problem.MIN_SHARE
        else:
            family = family_of(problem)
            formula = family.formula(family.setting_of(problem), target)
            roofline_us = min_us = float(formula.problem(problem).roofline_us)
        costs = self._resolver.bundle.call_costs.items()
        own_slopes = [cost.slope for key, cost in costs if key.gpu == target.name]
        slope = min(own_slopes or [cost.slope for key, cost in costs if not key.gpu], default=1.0)
        ends = (max(min_us, MIN_KERNEL_US), ROOFLINE_UPPER * roofline_us + 2 * MIN_KERNEL_US)
        time_us = slope * roofline_us + MIN_KERNEL_US
        return _without_measurements(problem, target, time_us, ends, ROOFLINE)

    def _fallback_choice(self, problem: AnyProblem, target: Gpu) -> FallbackChoice | None:
        """Return the fallback with the most evidence in the bundle, or None if the bundle has no fallback."""
        if not is_problem(problem):  # a layer with known traffic only
            return None
        family = family_of(problem)
        # The fallbacks depend on the setting, and on whether there is a batch.
        key = (family, family.setting_of(problem), getattr(problem, "batch", 1) > 1)
        if key not in self._chosen:
            self._chosen[key] = self._find_choice(problem, target)
        return self._chosen[key]

    def _find_choice(self, problem: AnyProblem, target: Gpu) -> FallbackChoice | None:
        """Return the nearest fallback with `MIN_ROWS` rows on this GPU, else on any GPU.

        The library with most rows wins.
        """
        evidence: list[tuple[FallbackRank, Question]] = []
        for index, fallback in enumerate(problem.fallbacks()):
            family = family_of(fallback)
            if family.name not in self._resolver.bundle.family_models:
                continue
            measured = self._resolver.in_measured_type(
                Question(family, target.name, family.setting_of(fallback), self._library)
            )
            family_model = self._resolver.bundle.family_model(
                family, target.name, measured.setting_values, self._library
            )
            for library in family_model.domain.default_libraries if self._library is None else [self._library]:
                reference = family_model.domain.reference_key(library, measured.setting_values)
                rows = family_model.row_counts.get(reference, 0)
                gpu_rows = family_model.row_counts.get(reference._replace(gpu=target.name), 0)
                if rows:
                    rank = FallbackRank(gpu_rows >= MIN_ROWS, rows >= MIN_ROWS, -index, rows)
                    evidence.append((rank, measured._replace(library=library)))
        if not evidence:
            return None
        best, question = max(evidence, key=lambda entry: entry[0])
        return FallbackChoice(-best.nearness, self._resolver.ranker(question))


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


def _without_measurements(
    problem: AnyProblem, gpu: Gpu, time_us: float, ends: tuple[float, float], source: str
) -> KernelTime:
    """Return a time from the roofline or the datasheet; no candidate is predicted."""
    return KernelTime(problem, gpu.name, "", "", time_us, *ends, time_us, source, in_domain=False)
