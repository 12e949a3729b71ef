"""Rank the candidates of one setting: intervals, floors, rooflines, order and exclusions, once, on arrays.

`surrogate.prediction.resolve` makes the ranker of a setting when a question first needs it. One problem is an array of
one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log
from typing import NamedTuple, Self

import numpy as np

from surrogate.bundle.bundle import FamilyModel
from surrogate.features.errors import InputError, nearest
from surrogate.features.families import AnyProblem
from surrogate.features.roofline import compute_us, peak_tflops
from surrogate.prediction.results import FLOOR, MEASURED, MEASURED_HALF_WIDTH, ROOFLINE, Estimate, Excluded
from surrogate.prediction.sources.source import CandidateSetting, Setting, Source, Times
from surrogate.prediction.support_rules import Reasons, SupportRules
from surrogate.uncertainty.domain import Domain, ReferenceKey, SettingKey, shape_hash
from surrogate.uncertainty.intervals import Widths

ROOFLINE_HALF_WIDTH = log(10.0)
"""Half width in log time of a roofline time: all that is known is that kernels take up to some ten times as long."""
AT_FLOOR = "measured here at its harness's floor alone, up to {:,.0f} µs: what the kernel takes is not known"
NEVER_MEASURED = "never measured in the bundle's training data"
MIN_ARRAY_PROBLEMS = 12
"""Problems from which on arrays are faster than one problem after another."""


@dataclass(frozen=True, slots=True, eq=False)
class CandidateEvidence:
    """What is known of each candidate of a setting; arrays (candidates,).

    Attributes
    ----------
    source : texts, the kind of evidence (`surrogate.prediction.results.SOURCES`).
    half_width : of the interval in log time, before the factors for distance and time.
    is_fixed : True if no factor applies, since the width was found at any distance on GPUs left out of training.
    floor_us : a harness adds as much, so that the candidate was never timed below it; 0 if there is none.
    unlisted : position → which value of a configuration training never saw.
    outside : why training did not see the setting with the candidate, None if it did; ``is_inside`` marks the latter.
    """

    source: np.ndarray
    half_width: np.ndarray
    is_fixed: np.ndarray
    floor_us: np.ndarray
    unlisted: Mapping[int, str]
    outside: tuple[str | None, ...]
    is_inside: np.ndarray

    def outside_of(self, domain: Domain, keys: Sequence[SettingKey], versions: Mapping[str, str]) -> Self:
        """Return the evidence with the reasons of a domain; ``versions``: library → version."""
        reasons = {key: domain.setting_reason(key, versions[key.library]) for key in dict.fromkeys(keys)}
        outside = tuple(reasons[key] or self.unlisted.get(i) for i, key in enumerate(keys))
        return replace(self, outside=outside, is_inside=np.array([reason is None for reason in outside]))


class AnswerRows(NamedTuple):
    """Answers in columns (rows,): of candidate ``candidate[i]`` on problem ``problem[i]``.

    ``half_width`` is in log time. ``in_domain``: training saw anything like the row; ``fails``: the candidate is
    expected not to run.
    """

    problem: np.ndarray
    candidate: np.ndarray
    time_us: np.ndarray
    lower_us: np.ndarray
    upper_us: np.ndarray
    half_width: np.ndarray
    workspace_bytes: np.ndarray
    source: np.ndarray
    in_domain: np.ndarray
    fails: np.ndarray

    def ranked(self) -> np.ndarray:
        """Return the positions of the rows: problem after problem, the fastest first, ties in their order.

        A row at its harness's floor comes after the others of its problem, and rows that fail come last.
        """
        return np.lexsort((self.time_us, self.source == FLOOR, self.fails, self.problem))


@dataclass(frozen=True, slots=True)
class Ranking:
    """The estimates of a problem, the fastest first, and the excluded candidates."""

    estimates: tuple[Estimate, ...]
    excluded: tuple[Excluded, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Ranker:
    """The ``candidates`` of all libraries of a setting, of which those at ``choosable`` can be chosen.

    Attributes
    ----------
    source_name : the kind of evidence for the setting as a whole.
    is_unmeasured : True if no library of the setting was measured on the GPU.
    references : library → the domain's key of the setting, in the order of ``library_of`` (candidates,).
    notes : library → caveats of all its answers.
    """

    setting: Setting
    candidates: tuple[CandidateSetting, ...]
    choosable: np.ndarray
    source: Source
    rules: SupportRules
    part: FamilyModel
    evidence: CandidateEvidence
    source_name: str
    is_unmeasured: bool
    widths: Widths
    references: Mapping[str, ReferenceKey]
    library_of: np.ndarray
    notes: Mapping[str, tuple[str, ...]]

    def rank(self, problem: AnyProblem) -> Ranking:
        """Return the ranking of the candidates that the library is expected to run on a problem."""
        reasons = self.rules.of(problem)
        index = self.accepted(reasons)
        sizes = np.array([self.setting.family.sizes_of(problem)])
        times = self.source.one(problem, index) if len(index) else Times(np.empty(0), np.empty(0))
        rows = self.rows(sizes, np.zeros(len(index), dtype=np.int64), index, times)
        return self._ranking(problem, reasons, rows, rows.ranked())

    def rank_many(self, problems: Sequence[AnyProblem]) -> list[Ranking]:
        """Return `rank` of several problems, through arrays if there are enough of them."""
        if len(problems) < MIN_ARRAY_PROBLEMS:
            return [self.rank(problem) for problem in problems]
        sizes = np.array([self.setting.family.sizes_of(problem) for problem in problems])
        reasons = [self.rules.of(problem) for problem in problems]
        accepted = [self.accepted(row) for row in reasons]
        problem_of_row = np.repeat(np.arange(len(problems)), [len(index) for index in accepted])
        rows = self.answers(sizes, problem_of_row, np.concatenate(accepted))
        ranked = rows.ranked()
        ends = np.searchsorted(rows.problem[ranked], np.arange(len(problems) + 1))
        return [
            self._ranking(problem, reasons[i], rows, ranked[ends[i] : ends[i + 1]])
            for i, problem in enumerate(problems)
        ]

    def accepted(self, reasons: Reasons) -> np.ndarray:
        """Return the positions of the candidates that can be chosen and are not refused."""
        return np.array([i for i in self.choosable.tolist() if reasons[i] is None], dtype=np.int64)

    def answers(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray) -> AnswerRows:
        """Return the answers of candidate ``index[i]`` on problem ``problem[i]`` of ``sizes`` (problems, sizes)."""
        return self.rows(sizes, problem, index, self.source.times(sizes, problem, index))

    def rows(self, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray, times: Times) -> AnswerRows:
        """Return the answers that the source's ``times`` give: their intervals, floors and rooflines."""
        time_us, evidence = times.time_us, self.evidence
        source = evidence.source[index]
        # 1. Half widths: a base, times a factor for the distance, which a library's candidates share, times one for the
        #    time, and what sizes beyond the measured ones add.
        distance, inside, extrapolation = self._distances(sizes)
        library = self.library_of[index]
        factor = self.widths.distance.at(distance)[library, problem] * self.widths.time_us.at(time_us)
        half = evidence.half_width[index] * np.where(evidence.is_fixed[index], 1.0, factor) + extrapolation[problem]
        if times.measured is not None:
            half[times.measured] = MEASURED_HALF_WIDTH
            source[times.measured] = MEASURED
        # 2. The roofline answers if the source does not know the candidate.
        unknown = np.flatnonzero(~((time_us > 0.0) & (time_us < inf)))
        if len(unknown):
            time_us = self._with_rooflines(time_us, unknown, sizes=sizes, problem=problem, index=index)
            source[unknown] = ROOFLINE
            half[unknown] = ROOFLINE_HALF_WIDTH
        # 3. Below the floor of its harness nothing is known of a candidate.
        floor_us = evidence.floor_us[index]
        at_floor = np.flatnonzero(time_us <= floor_us)
        if len(at_floor):
            source[at_floor] = FLOOR
            half[at_floor] = np.maximum(half[at_floor], np.log(floor_us[at_floor] / time_us[at_floor]))
        # 4. The interval; its lower end is no shorter than the GPU's peak allows.
        spread = np.exp(half)
        lower_us = np.minimum(time_us, np.maximum(time_us / spread, self._min_us(sizes)[problem]))
        in_domain = inside[library, problem] & evidence.is_inside[index]
        in_domain[at_floor] = False
        return AnswerRows(
            problem=problem,
            candidate=index,
            time_us=time_us,
            lower_us=lower_us,
            upper_us=time_us * spread,
            half_width=half,
            workspace_bytes=times.workspace_bytes.astype(np.int64),
            source=source,
            in_domain=in_domain,
            fails=np.zeros(len(index), dtype=bool) if times.fails is None else times.fails,
        )

    def estimate(self, problem: AnyProblem, index: Sequence[int]) -> tuple[Estimate, str | None]:
        """Return the fastest of the candidates at ``index`` on a problem, and why it does not run; None: it does."""
        places = np.array(index, dtype=np.int64)
        sizes = np.array([self.setting.family.sizes_of(problem)])
        rows = self.rows(sizes, np.zeros(len(places), dtype=np.int64), places, self.source.one(problem, places))
        first = rows.ranked()[:1]
        place = int(rows.candidate[first[0]])
        failure = self.source.failures(problem, [place])[0] if rows.fails[first[0]] else None
        return self._estimates(rows, first)[0], self.rules.of(problem)[place] or failure

    def _ranking(self, problem: AnyProblem, reasons: Reasons, rows: AnswerRows, ranked: np.ndarray) -> Ranking:
        """Return the ranking of a problem from its ``ranked`` rows."""
        failing = ranked[rows.fails[ranked]]
        estimates = self._estimates(rows, ranked[: len(ranked) - len(failing)])
        above = [estimate for estimate in estimates if estimate.source != FLOOR]
        at_floor = estimates[len(above) :] if above else []
        choosable = set(self.choosable.tolist())
        excluded = [
            Excluded(candidate.name, reason or NEVER_MEASURED)
            for i, (candidate, reason) in enumerate(zip(self.candidates, reasons, strict=True))
            if reason is not None or i not in choosable
        ]
        if len(failing):
            places = sorted(rows.candidate[failing].tolist())
            why = self.source.failures(problem, places)
            excluded += [Excluded(self.candidates[i].name, text) for i, text in zip(places, why, strict=True)]
        floors = dict(zip(self.candidates, self.evidence.floor_us.tolist(), strict=True)) if at_floor else {}
        at_floor.sort(key=lambda estimate: self.candidates.index(estimate.candidate))
        excluded += [Excluded(each.candidate.name, AT_FLOOR.format(floors[each.candidate])) for each in at_floor]
        return Ranking(tuple(above or estimates), tuple(excluded))

    def _estimates(self, rows: AnswerRows, ranked: np.ndarray) -> list[Estimate]:
        """Return the estimates of the ``ranked`` rows; `AnswerRows` has its columns in the order of an estimate's."""
        _, candidate, *columns, _ = (column[ranked].tolist() for column in rows)
        return list(map(Estimate, (self.candidates[i] for i in candidate), *columns))

    def _distances(self, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the distances to the training shapes of each library (libraries, problems); whether training saw such
        sizes (libraries, problems); and what sizes beyond the measured ones add to half widths (problems,)."""
        domain = self.part.domain
        extrapolation = domain.extrapolation_width(sizes)
        distances = np.empty((len(self.references), len(sizes)))
        inside = np.zeros(distances.shape, dtype=bool)
        for i, key in enumerate(self.references.values()):
            references = domain.references.get(key)
            distances[i] = domain.distances(key, sizes)
            if references is None:
                continue
            inside[i] = references.inside(sizes) & (extrapolation == 0.0)
            for row in np.flatnonzero(inside[i] & (distances[i] > references.reach)).tolist():
                inside[i, row] = shape_hash(domain.family, sizes[row].tolist()) in domain.shapes
        return distances, inside, extrapolation

    def _with_rooflines(
        self, time_us: np.ndarray, unknown: np.ndarray, *, sizes: np.ndarray, problem: np.ndarray, index: np.ndarray
    ) -> np.ndarray:
        """Return the times with rooflines at the ``unknown`` positions. Raises `InputError` if one of them is a number,
        which no sound model gives."""
        wrong = time_us[unknown][~np.isnan(time_us[unknown])]
        if len(wrong):
            raise InputError(f"the bundle's model gives {wrong[0]} µs; it is damaged, train it again with `seer train`")
        filled = time_us.copy()
        filled[unknown] = self.source.roofline_us(sizes, problem[unknown], index[unknown])
        return filled

    def _min_us(self, sizes: np.ndarray) -> np.ndarray:
        """Return (problems,) lower bounds in µs: on a GPU that was never measured, the time of products at its peak; a
        described kernel's `Source.min_us`; 0 for everything else."""
        if self.setting.family.parameter_names:
            return np.array([self.source.min_us(self.setting.problem(row)) for row in sizes.tolist()])
        if not self.is_unmeasured:
            return np.zeros(len(sizes))
        problem = self.setting.problem(sizes.T)
        if not getattr(problem, "MULTIPLIES", False):
            return np.zeros(len(sizes))
        peak = peak_tflops(self.source.context.device, problem.dtype, problem.uses_tensor_cores)
        return np.broadcast_to(compute_us(problem.flops, peak), len(sizes))

    def has(self, name: str) -> bool:
        """Return whether a candidate has this name."""
        return any(candidate.name == name for candidate in self.candidates)

    def named(self, name: str) -> list[int]:
        """Return the positions of the candidates of this name, the first of each library.

        Raises `InputError`, with the nearest names, if there is none.
        """
        names = [candidate.name for candidate in self.candidates]
        if name in names:
            positions = [i for i, other in enumerate(names) if other == name]
            return sorted({self.candidates[i].library: i for i in reversed(positions)}.values())
        where = " ".join(filter(None, (self.setting.versions[0][0], *self.setting.values[:1])))
        raise InputError(f"algorithm {name!r} is none of {where}; known: {', '.join(names)}{nearest(name, names)}")

    def reason(self, problem: AnyProblem, candidate: CandidateSetting, estimate: Estimate | None = None) -> str | None:
        """Return what of the question training did not see, or why the ``estimate`` is none of it; None if it did."""
        place = next(i for i, each in enumerate(self.candidates) if each is candidate)
        if reason := self.evidence.outside[place]:
            return reason
        sizes = self.setting.family.sizes_of(problem)
        reason = self.part.domain.size_reason(self.references[candidate.library], sizes)
        if reason is None and estimate is not None and estimate.source == FLOOR:
            return AT_FLOOR.format(self.evidence.floor_us[place])
        return reason
