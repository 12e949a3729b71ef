"""Kernels alone in a busy stream: what networks and traces add up.

Training data time isolated calls. Of such a call a busy stream hides the launch, so that it is taken off. A kind of
problem that was never measured goes by one that moves the same bytes, and among several libraries the one that was
measured most tells what a framework runs.
"""

from collections.abc import Sequence
from math import exp
from typing import TYPE_CHECKING, Any

from surrogate.features.families import FAMILY_OF_KIND, AnyProblem, Family, family_of
from surrogate.features.gpu import Gpu
from surrogate.features.operators import Operator, stand_ins
from surrogate.prediction.engine import specification_of
from surrogate.prediction.prepared import PreparedSetting, Ranking, SettingCache
from surrogate.prediction.results import ROOFLINE, SPEC, KernelTime

if TYPE_CHECKING:
    from surrogate.bundle.bundle import Bundle

MOST_STREAMING = 1.8
"""Most that a streaming operator takes on a GPU never measured, in times of its traffic's: on measured GPUs, operators
of the same traffic agree within a factor of two."""
ROOFLINE_UPPER = 4.3
"""Upper end of the interval around a roofline time: nine of ten of PyTorch's operators over 100 µs stay below it."""
EARNEST_ROWS = 100
"""Rows from which measurements count as earnest: a larger table of a farther stand-in is then no better."""
REMEMBERED = 100_000


class KernelTimes:
    """Answers for one GPU, each remembered."""

    def __init__(self, bundle: "Bundle", settings: SettingCache, library: str | None) -> None:
        self._bundle, self._settings, self._library = bundle, settings, library
        self._answers: dict[AnyProblem, KernelTime] = {}
        self._chosen: dict[tuple[Any, ...], tuple[int, PreparedSetting] | None] = {}

    def of(self, problems: Sequence[AnyProblem], target: Gpu) -> list[KernelTime]:
        """One answer for each problem, in order; equal ones are computed once, those of a setting together."""
        if len(self._answers) > REMEMBERED:
            self._answers.clear()
        by_setting: dict[PreparedSetting, list[tuple[AnyProblem, AnyProblem]]] = {}
        for problem in dict.fromkeys(problems):
            if problem in self._answers:
                continue
            chosen = self._choice(problem, target)
            if (answer := self._by_law(problem, chosen, target)) is not None:
                self._answers[problem] = answer
            elif chosen is None:
                self._answers[problem] = self._by_roofline(problem, target)
            else:
                index, prepared = chosen
                by_setting.setdefault(prepared, []).append((problem, stand_ins(problem)[index]))
        for prepared, pairs in by_setting.items():
            rankings = prepared.rank_many([like for _, like in pairs])
            for (problem, like), ranking in zip(pairs, rankings, strict=True):
                if ranking.estimates and ranking.estimates[0].source != ROOFLINE:
                    self._answers[problem] = self._kernel(prepared, problem, like, ranking)
                else:
                    self._answers[problem] = self._by_roofline(problem, target)
        return [self._answers[problem] for problem in problems]

    def _kernel(self, prepared: PreparedSetting, problem: AnyProblem, like: AnyProblem, ranking: Ranking) -> KernelTime:
        """The best candidate's time without its launch; the interval keeps its width, but holds the time."""
        gpu, best = prepared.setting.gpu, ranking.estimates[0]
        library = best.candidate.library
        call_us, factor, own_us = best.time_us, exp(best.half_width), best.time_us
        if prepared.setting.family.has_call_cost and self._bundle.launches:
            from surrogate.models.launch import KERNEL_LEAST_US, launch_of  # needs pandas

            roofline_us = float(prepared.engine.formula.problem(like).roofline_us)
            streaming = prepared.setting.family.is_streaming(prepared.setting.values)
            own_us = launch_of(self._bundle.launches, gpu, library).kernel_us(call_us, roofline_us, streaming)
            if streaming and best.source == SPEC:
                own_us = min(own_us, MOST_STREAMING * (roofline_us + KERNEL_LEAST_US))
        known = like.kind == problem.kind and not prepared.reason(like, best.candidate, ranking.distances)
        ends = own_us / factor, own_us * factor
        name = best.candidate.name
        return KernelTime(problem, gpu, library, name, own_us, *ends, call_us, best.source, known)

    def _by_law(
        self, problem: AnyProblem, chosen: tuple[int, PreparedSetting] | None, target: Gpu
    ) -> KernelTime | None:
        """What the law of half-precision kernels says where memory bounds and nobody measured the type on the GPU."""
        known = specification_of(target, problem.dtype)
        if chosen is None:
            measured = any(key.startswith(f"{target.name}|") for key in self._bundle.launches)
        else:
            (reference,) = chosen[1].references.values()
            measured = f"{target.name}|{reference}" in chosen[1].part.row_counts
        if known is None or measured or not isinstance(problem, Operator):
            return None
        time_us = known.law.streamed_us(problem, target)
        if time_us is None:
            return None
        factor = exp(known.half_width)
        ends = time_us / factor, time_us * factor
        return KernelTime(problem, target.name, "", "", time_us, *ends, time_us, SPEC, False)

    def _by_roofline(self, problem: AnyProblem, target: Gpu) -> KernelTime:
        """What streaming operators make of a roofline, where no model knows the problem."""
        from surrogate.models.launch import KERNEL_LEAST_US  # needs pandas

        if isinstance(problem, Operator):
            least_us = float(problem.roofline_us(target))
        else:
            kind = family_of(problem)
            formula = kind.formula(kind.setting_of(problem), target)
            least_us = float(formula.problem(problem).roofline_us)
        slopes = [(key.split("|")[0], launch.slope) for key, launch in self._bundle.launches.items()]
        own_slopes = [slope for name, slope in slopes if name == target.name]
        slope = min(own_slopes or [slope for name, slope in slopes if not name], default=1.0)
        ends = max(least_us, KERNEL_LEAST_US), ROOFLINE_UPPER * least_us + 2 * KERNEL_LEAST_US
        time_us = slope * least_us + KERNEL_LEAST_US
        return KernelTime(problem, target.name, "", "", time_us, *ends, time_us, ROOFLINE, False)

    def _choice(self, problem: AnyProblem, target: Gpu) -> tuple[int, PreparedSetting] | None:
        """Which of `stand_ins` the bundle knows, and the setting of the library with the most evidence for it."""
        if problem.kind not in FAMILY_OF_KIND:  # a layer of which only the traffic is known
            return None
        kind = family_of(problem)
        # What decides which kinds stand in: the setting, and whether there is a batch.
        key = (kind, kind.setting_of(problem), getattr(problem, "batch", 1) > 1)
        if key not in self._chosen:
            self._chosen[key] = self._most_evidence(problem, target)
        return self._chosen[key]

    def _most_evidence(self, problem: AnyProblem, target: Gpu) -> tuple[int, PreparedSetting] | None:
        """The nearest with at least `EARNEST_ROWS` rows on this GPU, else on any, by the library of most rows."""
        known: list[tuple[tuple[bool, bool, int, int], tuple[Family, tuple[str, ...], str]]] = []
        for index, like in enumerate(stand_ins(problem)):
            kind = family_of(like)
            if kind.name not in self._bundle.parts:
                continue
            values = self._settings.measured_values(kind, target.name, kind.setting_of(like), self._library)
            part = self._bundle.part(kind, target.name, values)
            for library in part.domain.libraries:
                if self._library not in (None, library):
                    continue
                reference = part.domain.reference_key(library, values)
                overall = part.row_counts.get(reference, 0)
                here = part.row_counts.get(f"{target.name}|{reference}", 0)
                if overall:
                    evidence = (here >= EARNEST_ROWS, overall >= EARNEST_ROWS, -index, overall)
                    known.append((evidence, (kind, values, library)))
        if not known:
            return None
        evidence, (kind, values, library) = max(known, key=lambda entry: entry[0])
        return -evidence[2], self._settings.prepared(kind, target.name, values, library)
