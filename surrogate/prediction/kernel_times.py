"""Kernels alone in a busy stream: what networks and traces add up.

Training data time isolated calls. Of such a call a busy stream hides the launch, so that it is taken off. A kind of
problem that was never measured goes by one that moves the same bytes, and among several libraries the one that was
measured most tells what a framework runs.
"""

from collections.abc import Sequence
from math import exp, inf
from typing import NamedTuple

from surrogate.features.families import AnyProblem, Family, Operator, family_of
from surrogate.features.families.operator import MemoryBound
from surrogate.features.gpu import Gpu
from surrogate.features.problem import HALF
from surrogate.models.launch import MIN_KERNEL_US, launch_of
from surrogate.prediction.ranking import Ranker, Ranking
from surrogate.prediction.resolve import Question, Resolver, is_problem
from surrogate.prediction.results import DATASHEET, ROOFLINE, Estimate, KernelTime
from surrogate.prediction.sources.datasheet import datasheet_models

WINDOW_RATE = 4.0
"""Elements of pooling windows that one SM takes in a clock cycle: 1.6 to 7 there."""
MAX_WITHIN = 2.5
"""How far above that most the upper end of an interval may lie: its windows' rate varies so much."""
CACHED = 4.0
"""How far below its traffic's time the lower end may lie, where the L2 cache holds it: its bandwidth over DRAM's."""
ROOFLINE_UPPER = 4.3
"""Upper end of the interval around a roofline time: nine of ten of PyTorch's operators over 100 µs stay below it."""
MIN_ROWS = 100
"""Rows from which measurements count as earnest: a larger table of a farther stand-in is then no better."""
REMEMBERED = 100_000


class FallbackChoice(NamedTuple):
    """Which of `fallbacks` of a problem answers for it, by its position, and the setting that it is asked in."""

    position: int
    ranker: Ranker


class FallbackRank(NamedTuple):
    """How much is known of a stand-in with a library; the greatest is the best."""

    enough_on_gpu: bool
    enough_rows: bool
    nearness: int
    rows: int


class KernelTimes:
    """Answers for one GPU, each remembered."""

    def __init__(self, resolver: Resolver, library: str | None) -> None:
        self._resolver = resolver
        self._library = library
        self._answers: dict[AnyProblem, KernelTime] = {}
        self._chosen: dict[tuple[Family, tuple[str, ...], bool], FallbackChoice | None] = {}

    def of(self, problems: Sequence[AnyProblem], target: Gpu) -> list[KernelTime]:
        """One answer for each problem, in order; equal ones are computed once, those of a setting together."""
        if len(self._answers) > REMEMBERED:
            self._answers.clear()
        by_setting: dict[Ranker, list[tuple[AnyProblem, AnyProblem]]] = {}
        for problem in dict.fromkeys(problems):
            if problem in self._answers:
                continue
            chosen = self._choice(problem, target)
            if (answer := self._by_law(problem, chosen, target)) is not None:
                self._answers[problem] = answer
            elif chosen is None:
                self._answers[problem] = self._by_roofline(problem, target)
            else:
                by_setting.setdefault(chosen.ranker, []).append((problem, problem.fallbacks()[chosen.position]))
        for ranker, pairs in by_setting.items():
            rankings = ranker.rank_many([like for _, like in pairs])
            for (problem, like), ranking in zip(pairs, rankings, strict=True):
                if ranking.estimates and ranking.estimates[0].source != ROOFLINE:
                    self._answers[problem] = self._kernel(ranker, problem, like, ranking)
                else:
                    self._answers[problem] = self._by_roofline(problem, target)
        return [self._answers[problem] for problem in problems]

    def _kernel(self, ranker: Ranker, problem: AnyProblem, like: AnyProblem, ranking: Ranking) -> KernelTime:
        """The best candidate's time without its launch; the interval keeps its width, but holds the time."""
        gpu = ranker.setting.gpu
        best = ranking.estimates[0]
        factor = exp(best.half_width)
        call_us = own_us = best.time_us
        bounds = 0.0, inf
        if ranker.setting.family.has_call_cost and self._resolver.bundle.launches:
            roofline_us = float(ranker.source.context.formula.problem(like).roofline_us)
            streaming = ranker.setting.family.is_streaming(ranker.setting.values)
            launch = launch_of(self._resolver.bundle.launches, gpu, best.candidate.library)
            own_us = launch.kernel_us(call_us, roofline_us, streaming)
            if isinstance(problem, MemoryBound) and (not best.in_domain or ranker.is_unmeasured):
                device = ranker.source.context.device
                min_us, max_us = _possible_us(problem, device)
                own_us = max(min(own_us, max_us), min_us)
                bounds = min(own_us, float(problem.traffic_us(device)) / CACHED), max(own_us, MAX_WITHIN * max_us)
        in_domain = like.kind == problem.kind and best.in_domain
        ends = (max(own_us / factor, bounds[0]), min(own_us * factor, bounds[1]))
        return _kernel_time(problem, gpu, own_us, ends, source=best.source, best=best, in_domain=in_domain)

    def _by_law(self, problem: AnyProblem, chosen: FallbackChoice | None, target: Gpu) -> KernelTime | None:
        """What the law of half-precision kernels says where memory bounds and nobody measured the type on the GPU."""
        datasheet = datasheet_models(target, problem.dtype) if problem.dtype in HALF else None
        if chosen is None:
            measured = any(key.gpu == target.name for key in self._resolver.bundle.launches)
        else:
            (reference,) = chosen.ranker.references.values()
            measured = reference._replace(gpu=target.name) in chosen.ranker.part.row_counts
        if datasheet is None or measured or not isinstance(problem, Operator):
            return None
        time_us = datasheet.model.streamed_us(problem, target)
        if time_us is None:
            return None
        if isinstance(problem, MemoryBound):
            time_us = max(time_us, problem.serial_us(target))
        factor = exp(datasheet.by_kind[""].half_width)
        return _kernel_time(problem, target.name, time_us, (time_us / factor, time_us * factor), source=DATASHEET)

    def _by_roofline(self, problem: AnyProblem, target: Gpu) -> KernelTime:
        """What streaming operators make of a roofline, where no model knows the problem."""
        if isinstance(problem, Operator):
            usual_us = float(problem.roofline_us(target))
            min_us = usual_us * problem.MIN_SHARE
        else:
            family = family_of(problem)
            formula = family.formula(family.setting_of(problem), target)
            usual_us = min_us = float(formula.problem(problem).roofline_us)
        launches = self._resolver.bundle.launches.items()
        own_slopes = [launch.slope for key, launch in launches if key.gpu == target.name]
        slope = min(own_slopes or [launch.slope for key, launch in launches if not key.gpu], default=1.0)
        ends = (max(min_us, MIN_KERNEL_US), ROOFLINE_UPPER * usual_us + 2 * MIN_KERNEL_US)
        time_us = slope * usual_us + MIN_KERNEL_US
        return _kernel_time(problem, target.name, time_us, ends, source=ROOFLINE)

    def _choice(self, problem: AnyProblem, target: Gpu) -> FallbackChoice | None:
        """The stand-in that the bundle knows, and the setting of the library with the most evidence for it."""
        if not is_problem(problem):  # a layer of which only the traffic is known
            return None
        family = family_of(problem)
        # What decides which kinds stand in: the setting, and whether there is a batch.
        key = (family, family.setting_of(problem), getattr(problem, "batch", 1) > 1)
        if key not in self._chosen:
            self._chosen[key] = self._max_evidence(problem, target)
        return self._chosen[key]

    def _max_evidence(self, problem: AnyProblem, target: Gpu) -> FallbackChoice | None:
        """The nearest with at least `MIN_ROWS` rows on this GPU, else on any, by the library of most rows."""
        evidence: list[tuple[FallbackRank, Question]] = []
        for index, like in enumerate(problem.fallbacks()):
            family = family_of(like)
            if family.name not in self._resolver.bundle.parts:
                continue
            asked = Question(family, target.name, family.setting_of(like), self._library)
            measured = self._resolver.measured(asked)
            part = self._resolver.bundle.part(family, target.name, measured.values)
            for library in part.domain.libraries if self._library is None else [self._library]:
                reference = part.domain.reference_key(library, measured.values)
                overall = part.row_counts.get(reference, 0)
                here = part.row_counts.get(reference._replace(gpu=target.name), 0)
                if overall:
                    known = FallbackRank(here >= MIN_ROWS, overall >= MIN_ROWS, -index, overall)
                    evidence.append((known, measured._replace(library=library)))
        if not evidence:
            return None
        maximum, question = max(evidence, key=lambda entry: entry[0])
        return FallbackChoice(-maximum.nearness, self._resolver.ranker(question))


def _possible_us(problem: MemoryBound, device: Gpu) -> tuple[float, float]:
    """What single blocks take at least, and memory at most, in µs: larger windows cost what is read in them again."""
    max_us = inf
    if problem.MAX_TRAFFIC:
        extents = problem.extents
        read = float((extents.outputs or 0) * extents.window * extents.window_w)
        traffic_us = float(problem.traffic_us(device)) + MIN_KERNEL_US
        max_us = problem.MAX_TRAFFIC * traffic_us + read / (WINDOW_RATE * device.sms * device.boost_mhz)
    return float(problem.serial_us(device)), max_us


def _kernel_time(
    problem: AnyProblem,
    gpu: str,
    time_us: float,
    ends: tuple[float, float],
    *,
    source: str,
    best: Estimate | None = None,
    in_domain: bool = False,
) -> KernelTime:
    """A time and its interval, of the ``best`` candidate's kernel; None: of no library's in particular."""
    library, algorithm = (best.candidate.library, best.candidate.name) if best else ("", "")
    call_us = best.time_us if best else time_us
    return KernelTime(problem, gpu, library, algorithm, time_us, *ends, call_us, source, in_domain)
