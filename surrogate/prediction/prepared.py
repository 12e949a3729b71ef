"""One setting of one bundle made ready to be asked: what a library refuses, and the ranking of what it accepts.

`surrogate.prediction.settings` makes each setting when it is first asked for.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf, log
from operator import attrgetter

import numpy as np

from surrogate.bundle.bundle import Part
from surrogate.features.elementwise import Number
from surrogate.features.errors import InputError, nearest
from surrogate.features.families import AnyProblem
from surrogate.features.roofline import compute_us, peak_tflops
from surrogate.models.support import Release, Signature, Support
from surrogate.prediction.engine import Candidate, Engine, Setting
from surrogate.prediction.results import FLOOR, MEASURED, MEASURED_HALF_WIDTH, ROOFLINE, UNSEEN, Estimate, Excluded
from surrogate.uncertainty.domain import ReferenceKey, SettingKey, shape_hash
from surrogate.uncertainty.intervals import Widths

ROOFLINE_HALF_WIDTH = log(10.0)
"""Half width in log time of a roofline time: nothing is known but that kernels take up to some ten times as long."""
AT_FLOOR = "measured here at its harness's floor alone, up to {:,.0f} µs: what the kernel takes is not known"
NEVER_MEASURED = "never measured in the bundle's training data"
ARRAYS_PAY = 12
"""Problems from which on arrays are faster than one problem after another."""
MOST_CODE = 2**30
"""Codes of combined columns are numbered afresh beyond this, so that they stay in the range of int64."""

Reasons = tuple[str | None, ...]
"""Of every candidate why it is refused, None where it is expected to run."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Of a problem: estimates, the fastest first; what is refused; library → distance to its training data."""

    estimates: tuple[Estimate, ...]
    excluded: tuple[Excluded, ...]
    distances: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SupportRules:
    """`Support.refusal` of a setting's candidates, remembered by the family's traits of a problem, which decide it."""

    setting: Setting
    candidates: tuple[Candidate, ...]
    support: Support
    _reasons: dict[tuple[int, ...], Reasons] = field(default_factory=dict, repr=False, compare=False)

    def of(self, problem: AnyProblem) -> Reasons:
        """Reason or None for every candidate, for one problem."""
        traits = self.setting.family.traits(problem)
        if traits not in self._reasons:
            family, gpu, versions, values = self.setting
            release = {library: Release(gpu, version) for library, version in versions}
            numbers = tuple(map(int, traits))
            # Solvers of one algorithm are refused together.
            signatures = [Signature(c.library, values, c.algorithm, numbers) for c in self.candidates]
            by_signature = {
                signature: self.support.refusal(family, signature, release[signature.library], problem)
                for signature in dict.fromkeys(signatures)
            }
            self._reasons[traits] = tuple(by_signature[signature] for signature in signatures)
        return self._reasons[traits]

    def allowed(self, sizes: np.ndarray) -> np.ndarray:
        """(problems, candidates) True where the library is expected to run it; ``sizes`` (problems, sizes)."""
        # 1. Problems of equal traits get one code (problems,): columns are joined one by one.
        traits = self.setting.family.traits(self.setting.problem(sizes.T)) if len(sizes) else ()
        code = np.zeros(len(sizes), dtype=np.int64)
        for column in traits:
            values = np.asarray(column, dtype=np.int64)
            code = code * (int(values.max()) + 1) + values
            if code.max() > MOST_CODE:
                code = np.unique(code, return_inverse=True)[1]
        _, first, code = np.unique(code, return_index=True, return_inverse=True)
        # 2. The first problem of a code answers for all. Libraries also time problems that are none (a filter larger
        #    than its input): then the next of them answers, and where all are none, nothing is known against them.
        none_known: Reasons = (None,) * len(self.candidates)
        reasons = [
            self._of_any(sizes[start : start + 1]) or self._of_any(sizes[code == i]) or none_known
            for i, start in enumerate(first)
        ]
        # 3. (codes, candidates), spread over the problems.
        table = np.array([[reason is None for reason in row] for row in reasons], dtype=bool)
        return table.reshape(len(first), len(self.candidates))[code]

    def _of_any(self, sizes: np.ndarray) -> Reasons | None:
        """`of` the first of these sizes that make a problem; None where none does."""
        for row in sizes.tolist():
            try:
                return self.of(self.setting.problem(row))
            except InputError:
                continue
        return None


@dataclass(frozen=True, slots=True, eq=False)
class PreparedSetting:
    """The ``candidates`` of all libraries, of which those at ``ranked`` can be chosen; training never saw the others.

    ``bases`` are their half widths by ``widths`` before distance and time count; where ``is_whole``, they are all of
    it, as they were found at any distance on GPUs left out. ``references``: library → the domain's key of the setting;
    ``notes``: library → what a reader must know of all its answers; ``floors``: position of a candidate → the time in
    µs up to which it was never timed here, since its harness adds as much.
    """

    setting: Setting
    candidates: tuple[Candidate, ...]
    ranked: tuple[int, ...]
    engine: Engine
    rules: SupportRules
    part: Part
    source: str
    widths: Widths
    bases: tuple[float, ...]
    is_whole: tuple[bool, ...]
    references: Mapping[str, ReferenceKey]
    notes: Mapping[str, tuple[str, ...]]
    floors: Mapping[int, float]
    _setting_reasons: dict[str, str | None] = field(default_factory=dict, repr=False, compare=False)

    def rank(self, problem: AnyProblem, wanted: Sequence[int] | None = None) -> Ranking:
        """The candidates at ``wanted``, by default all that the library accepts, by time (ties: as registered)."""
        reasons = self.rules.of(problem)
        wanted = self._accepted(reasons) if wanted is None else wanted
        answers = zip(wanted, *self.engine.one(problem, wanted), strict=True) if wanted else ()
        sizes = self.setting.family.sizes_of(problem)
        distances = {library: self.part.domain.distance(key, sizes) for library, key in self.references.items()}
        return self._ranking(sizes, reasons, answers, distances, self.engine.measured(problem, wanted))

    def rank_many(self, problems: Sequence[AnyProblem]) -> list[Ranking]:
        """`rank` of several problems: through arrays where there are enough of them."""
        if len(problems) < ARRAYS_PAY:
            return [self.rank(problem) for problem in problems]
        # 1. One row for every problem and candidate that is accepted for it, problem after problem.
        sizes = np.array([self.setting.family.sizes_of(problem) for problem in problems])
        reasons = [self.rules.of(problem) for problem in problems]
        accepted = [self._accepted(row) for row in reasons]
        problem_of_row = np.repeat(np.arange(len(problems)), [len(wanted) for wanted in accepted])
        index = np.array([i for wanted in accepted for i in wanted], dtype=int)
        time_us, workspace = self.engine.many(sizes, problem_of_row, index)
        # 2. Distances of all problems, library by library.
        distances = {library: self.part.domain.distances(key, sizes) for library, key in self.references.items()}
        by_problem = zip(*(column.tolist() for column in distances.values()), strict=True)
        # 3. Each ranking takes its own rows off the front.
        answers = zip(index.tolist(), time_us.tolist(), workspace.tolist(), strict=True)
        asked = zip(problems, sizes.tolist(), reasons, accepted, by_problem, strict=True)
        return [
            self._ranking(
                of_problem,
                refusals,
                islice(answers, len(wanted)),
                dict(zip(distances, near, strict=True)),
                self.engine.measured(problem, wanted),
            )
            for problem, of_problem, refusals, wanted, near in asked
        ]

    def _accepted(self, reasons: Reasons) -> list[int]:
        return [i for i in self.ranked if reasons[i] is None]

    def _ranking(
        self,
        sizes: Sequence[Number],
        reasons: Reasons,
        answers: Iterable[tuple[int, float, float]],
        distances: Mapping[str, float],
        measured: Collection[int] = (),
    ) -> Ranking:
        """The estimates of a problem of these sizes with their intervals.

        ``answers`` are positions of candidates, each with its time in µs and its workspace in bytes; ``distances`` as
        in `Ranking`; ``measured`` are positions of candidates whose times are measurements.
        """
        # 1. A half width is a base, times a factor for the distance, which a library's candidates share, times one for
        #    the time.
        near, by_time = self.widths.distance, self.widths.time_us
        factors = {library: near.values[bisect_right(near.edges, distance)] for library, distance in distances.items()}
        least_us = float(self._least_us(np.array([sizes]))[0])
        growth = float(self.part.domain.growth(np.array([sizes]))[0]) if self.setting.family.parameter_names else 0.0
        estimates: list[Estimate] = []
        failing: list[int] = []
        at_floor: list[int] = []
        for i, time_us, workspace in answers:
            candidate = self.candidates[i]
            source = self.source
            half = self.bases[i] + growth
            if not self.is_whole[i]:
                by_distance = factors[candidate.library]
                half = self.bases[i] * by_distance * by_time.values[bisect_right(by_time.edges, time_us)] + growth
            if time_us == inf:
                failing.append(i)
                continue
            if i in measured:
                half, source = MEASURED_HALF_WIDTH, MEASURED
            # 2. Where the model does not know the candidate, its roofline stands in.
            if not 0.0 < time_us < inf:
                time_us = float(self._stand_in(np.array([time_us]), np.array([sizes]), np.array([0]), np.array([i]))[0])
                half = ROOFLINE_HALF_WIDTH
                source = ROOFLINE
            # 3. Below the floor of its harness nothing is known of a candidate, so that it must not win.
            if time_us <= self.floors.get(i, 0.0):
                half, source = max(half, log(self.floors[i] / time_us)), FLOOR
                at_floor.append(i)
            estimates.append(Estimate(candidate, time_us, half, int(workspace), source=source, least_us=least_us))
        if len(at_floor) == len(estimates):
            at_floor = []  # nothing better is there
        elif at_floor:
            estimates = [estimate for estimate in estimates if estimate.source != FLOOR]
        estimates.sort(key=attrgetter("time_us"))
        ranked = set(self.ranked)
        refused = [i for i, reason in enumerate(reasons) if reason is not None or i not in ranked]
        excluded = tuple([Excluded(self.candidates[i].name, reasons[i] or NEVER_MEASURED) for i in refused])
        if failing:
            why = self.engine.failures(self.setting.problem(sizes), failing)
            excluded += tuple(Excluded(self.candidates[i].name, reason) for i, reason in zip(failing, why, strict=True))
        excluded += tuple([Excluded(self.candidates[i].name, AT_FLOOR.format(self.floors[i])) for i in at_floor])
        return Ranking(tuple(estimates), excluded, distances)

    def _least_us(self, sizes: np.ndarray) -> np.ndarray:
        """(problems,) what products of these ``sizes`` (problems, sizes) take at the GPU's peak, where answers go by
        its specification; `Engine.least_us` of a described kernel's; 0 for everything else.
        """
        if self.setting.family.parameter_names:
            return np.array([self.engine.least_us(self.setting.problem(row)) for row in sizes.tolist()])
        if self.source not in UNSEEN:
            return np.zeros(len(sizes))
        problem = self.setting.problem(sizes.T)
        if not getattr(problem, "MULTIPLIES", False):
            return np.zeros(len(sizes))
        peak = peak_tflops(self.engine.context.device, problem.dtype, problem.uses_tensor_cores)
        return np.broadcast_to(compute_us(problem.flops, peak), len(sizes))

    def _stand_in(self, time_us: np.ndarray, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> np.ndarray:
        """The rooflines' times (rows,) where the model does not know the candidates at ``index`` (rows,).

        Raises `InputError` for a ``time_us`` (rows,) that is not NaN.
        """
        if not np.isnan(time_us).all():
            raise InputError(
                f"the bundle's model gives {time_us[~np.isnan(time_us)][0]} µs; it is damaged, train it again with"
                " `seer train`"
            )
        return self.engine.roofline_us(sizes, problem, index)

    def has(self, name: str) -> bool:
        """Whether a candidate has this name."""
        return any(candidate.name == name for candidate in self.candidates)

    def named(self, name: str) -> list[int]:
        """The positions of candidates of this name: the first of each library.

        Raises `InputError`, with the nearest names, where there is none.
        """
        names = [candidate.name for candidate in self.candidates]
        if name in names:
            positions = [i for i, other in enumerate(names) if other == name]
            return sorted({self.candidates[i].library: i for i in reversed(positions)}.values())
        where = " ".join(filter(None, (self.setting.versions[0][0], *self.setting.values[:1])))
        raise InputError(f"algorithm {name!r} is none of {where}; known: {', '.join(names)}{nearest(name, names)}")

    def reason(self, problem: AnyProblem, candidate: Candidate, distances: Mapping[str, float]) -> str | None:
        """What of the question training did not see, or None; ``distances`` as in `Ranking`."""
        if reason := self._setting_reason(candidate):
            return reason
        sizes = self.setting.family.sizes_of(problem)
        library = candidate.library
        return self.part.domain.size_reason(self.references[library], sizes, distances[library])

    def _setting_reason(self, candidate: Candidate) -> str | None:
        """What of the setting training did not see with this candidate, or None."""
        if candidate.key not in self._setting_reasons:
            _, gpu, versions, values = self.setting
            key = SettingKey(gpu, candidate.library, values, candidate.algorithm)
            reason = self.part.domain.setting_reason(key, dict(versions)[candidate.library])
            self._setting_reasons[candidate.key] = reason
        return self._setting_reasons[candidate.key]

    def many(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> dict[str, np.ndarray]:
        """Columns (rows,) of `Predictions`, for candidate ``index[i]`` on problem ``problem[i]`` of ``sizes``."""
        time_us, workspace = self.engine.many(sizes, problem, index)
        # 1. Half widths; ``distance`` and ``inside`` are (libraries, problems).
        distance, inside = np.stack([self._near(sizes, key) for key in self.references.values()], axis=1)
        libraries = list(self.references)
        library = np.array([libraries.index(candidate.library) for candidate in self.candidates])[index]
        factors = self.widths.distance.at(distance)[library, problem] * self.widths.time_us.at(time_us)
        half = np.array(self.bases)[index] * np.where(np.array(self.is_whole)[index], 1.0, factors)
        half += self.part.domain.growth(sizes)[problem]
        # 2. What a described kernel's table holds is answered as it was measured; where the model does not know the
        #    candidate, its roofline stands in.
        failing = (time_us == inf) & bool(self.setting.family.parameter_names)
        unknown = np.flatnonzero(~((time_us > 0) & (time_us < inf)) & ~failing)
        source = np.full(len(index), self.source, dtype=object)
        for number in np.unique(problem).tolist() if self.setting.family.parameter_names else ():
            rows = np.flatnonzero(problem == number)
            measured = self.engine.measured(self.setting.problem(sizes[number].tolist()), index[rows].tolist())
            rows = rows[np.isin(index[rows], [*measured])]
            source[rows] = MEASURED
            half[rows] = MEASURED_HALF_WIDTH
        if len(unknown):
            source[unknown] = ROOFLINE
            time_us[unknown] = self._stand_in(time_us[unknown], sizes, problem[unknown], index[unknown])
            half[unknown] = ROOFLINE_HALF_WIDTH
        # 3. Below the floor of its harness nothing is known of a candidate.
        floor_us = np.array([self.floors.get(i, 0.0) for i in range(len(self.candidates))])[index]
        is_floor = time_us <= floor_us
        source[is_floor] = FLOOR
        half[is_floor] = np.maximum(half[is_floor], np.log(floor_us[is_floor] / time_us[is_floor]))
        # 4. The interval; no lower end is below what the GPU's peak allows.
        unseen = np.array([self._setting_reason(candidate) is not None for candidate in self.candidates])
        least_us = self._least_us(sizes)[problem]
        factor = np.exp(half)
        return {
            "predicted_us": time_us,
            "lower_us": np.minimum(time_us, np.maximum(time_us / factor, least_us)),
            "upper_us": time_us * factor,
            "in_domain": (inside[library, problem] > 0) & ~unseen[index] & ~is_floor,
            "workspace_bytes": workspace,
            "source": source,
        }

    def _near(self, sizes: np.ndarray, reference: ReferenceKey) -> tuple[np.ndarray, np.ndarray]:
        """(problems,) distances to a library's training shapes; 1.0 where in range, within reach or itself measured."""
        domain = self.part.domain
        distance = domain.distances(reference, sizes)
        references = domain.references.get(reference)
        if references is None:
            return distance, np.zeros(len(sizes))
        inside = references.inside(sizes)
        for row in np.flatnonzero(inside & (distance > references.reach)).tolist():
            inside[row] = shape_hash(domain.family, sizes[row].tolist()) in domain.shapes
        return distance, inside.astype(float)
