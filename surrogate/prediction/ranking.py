"""Rank the candidates of one setting: intervals, floors, rooflines, order and exclusions.

All computations are on arrays; a single problem is an array of length one. `surrogate.prediction.resolve` makes the
ranker of a setting when a question first needs it.

The candidates of library cudnn-graph are cuDNN's engine configurations. Only the configurations that cuDNN's own
heuristic lists for a problem and a GPU compete. The heuristic runs without a driver, in a child process. It must be of
the release that was measured, because every release has other engines.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from math import exp, inf, log
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from surrogate.bundle.bundle import FamilyModel
from surrogate.features import CUDNN_GRAPH, BoundedCache, Gpu, InputError, compute_us, nearest, version_key, where
from surrogate.features.families import AnyProblem
from surrogate.models.requirements import UNKNOWN
from surrogate.models.support import Release, Signature, Support
from surrogate.prediction.results import FLOOR, MODEL, NOTES, ROOFLINE, UNMEASURED_SOURCES, Estimate, Excluded
from surrogate.prediction.sources.source import LibraryCandidate, QuerySetting, Source, Times
from surrogate.report.tables import binary_size
from surrogate.uncertainty.domain import Domain, ReferenceKey, SettingKey, shape_hash
from surrogate.uncertainty.intervals import Widths

if TYPE_CHECKING:
    from surrogate.collect.device import HeuristicEntry

Reasons = tuple[str | None, ...]
"""Reason why each candidate is refused; None if it is expected to run."""
MAX_REASONS = 65_536
"""Maximum number of reasons that the rules of a setting keep."""


@dataclass(frozen=True, slots=True)
class SupportRules:
    """The refusals of a setting's candidates, cached by the traits of a problem, which decide them."""

    setting: QuerySetting
    candidates: tuple[LibraryCandidate, ...]
    support: Support
    device: Gpu
    _reasons: BoundedCache[tuple[int, ...], Reasons] = field(
        default_factory=lambda: BoundedCache(MAX_REASONS, len), repr=False, compare=False
    )

    def of(self, problem: AnyProblem) -> Reasons:
        """Return, for every candidate, the reason why it is refused for one problem, or None."""
        reasons = self._by_traits(problem)
        if not self.support.limits:
            return reasons
        signatures = map(self._signature, self.candidates)
        limits = (self.support.limit_refusal(self.setting.gpu, signature, problem) for signature in signatures)
        return tuple(reason or (rule if fails else None) for reason, (fails, rule) in zip(reasons, limits, strict=True))

    def _signature(self, candidate: LibraryCandidate, traits: tuple[int, ...] = ()) -> Signature:
        return Signature(candidate.library, self.setting.values, candidate.algorithm, traits)

    def _by_traits(self, problem: AnyProblem) -> Reasons:
        """Return the reasons that do not depend on the limits of sizes; they are kept."""
        family, gpu, versions, _ = self.setting
        is_refused, rule = family.size_rule(problem, self.device)
        if is_refused:
            return (rule,) * len(self.candidates)
        traits = family.traits(problem)
        if (kept := self._reasons.get(traits)) is not None:
            return kept
        release = {library: Release(gpu, version) for library, version in versions}
        numbers = tuple(map(int, traits))
        # Solvers of one algorithm are refused together; then each by the problems that it ran.
        signatures = [self._signature(each, numbers) for each in self.candidates]
        by_signature = {
            signature: self.support.refusal(family, signature, release[signature.library], problem)
            for signature in dict.fromkeys(signatures)
        }
        reasons = (
            by_signature[signature] or (self.support.solver_refusal(signature, c.solver) if c.solver else None)
            for signature, c in zip(signatures, self.candidates, strict=True)
        )
        return self._reasons.put(traits, tuple(reasons))

    def allowed(self, sizes: np.ndarray) -> np.ndarray:
        """Return whether the library is expected to run each candidate, (problems, candidates).

        ``sizes`` is (problems, sizes).
        """
        # 1. Problems with equal traits get one code (problems,). The first column is for families without traits.
        problems = self.setting.problem(sizes.T)
        is_refused, _ = self.setting.family.size_rule(problems, self.device)
        traits = self.setting.family.traits(problems)
        columns = [np.broadcast_to(column, len(sizes)) for column in (1 * is_refused, *traits)]
        _, first, code = np.unique(np.column_stack(columns), axis=0, return_index=True, return_inverse=True)
        # 2. The first valid problem of a code decides for all. Libraries also time invalid problems (a filter larger
        #    than its input). If all problems of a code are invalid, no candidate is refused.
        no_reasons: Reasons = (None,) * len(self.candidates)
        reasons = [
            self._of_any(sizes[start : start + 1]) or self._of_any(sizes[code == i]) or no_reasons
            for i, start in enumerate(first)
        ]
        # 3. The decisions (codes, candidates), expanded to the problems.
        table = np.array([[reason is None for reason in row] for row in reasons], dtype=bool)
        allowed = table.reshape(len(first), len(self.candidates))[code.ravel()]
        for i, candidate in enumerate(self.candidates if self.support.limits else ()):
            allowed[:, i] &= ~self.support.limit_refusal(self.setting.gpu, self._signature(candidate), problems)[0]
        return allowed

    def _of_any(self, sizes: np.ndarray) -> Reasons | None:
        """Return the reasons of the first valid problem among the sizes, or None if there is no valid problem."""
        for row in sizes.tolist():
            try:
                return self._by_traits(self.setting.problem(row))
            except InputError:
                continue
        return None


ROOFLINE_HALF_WIDTH = log(10.0)
"""Half width of a roofline time in log time. Kernels take up to about ten times their roofline time."""
MAX_ROOFLINES, MAX_OVERHEAD_US = 5.0, 100.0
"""Maximum upper end of an unmeasured product's interval: multiples of its roofline time, plus a time in µs.

99 % of the 2.6 million products of ai-dynamo/aiconfigurator are shorter, and 94 % or more in every element type.
"""
MIN_ARRAY_PROBLEMS = 12
"""Minimum number of problems for which arrays are faster than one problem after another."""


@dataclass(frozen=True, slots=True, eq=False)
class CandidateEvidence:
    """The evidence for each candidate of a setting; arrays (candidates,).

    Attributes
    ----------
    source : array of str
        Kind of evidence (`surrogate.prediction.results.SOURCES`).
    half_width : array of float
        Half width of the interval in log time, before the factors for distance and time.
    half_width_limits : array of float, (2, candidates)
        Minimum and maximum of the half width with these factors. They are equal if it comes from held-out GPUs at any
        distance.
    floor_us : array of float
        Time in µs that the harness adds to every measurement; 0 without a floor.
    unlisted : mapping
        Position → the value of a configuration that is not in the training data.
    counts_flops : array of int
        0 for algorithms that need fewer FLOPs than the problem has, else 1.
    outside : tuple
        Why the candidate's setting is outside the training data; None if it is inside.
    is_inside : array of bool
        Whether the candidate's setting is inside the training data.
    has_workspace : array of bool
        Whether a formula gives the candidate's workspace.
    """

    source: np.ndarray
    half_width: np.ndarray
    half_width_limits: np.ndarray
    floor_us: np.ndarray
    unlisted: Mapping[int, str]
    counts_flops: np.ndarray
    outside: tuple[str | None, ...]
    is_inside: np.ndarray
    has_workspace: np.ndarray

    def outside_of(self, domain: Domain, keys: Sequence[SettingKey], versions: Mapping[str, str]) -> Self:
        """Return the evidence with the reasons of a domain; ``versions``: library → version."""
        reasons = {key: domain.setting_reason(key, versions[key.library]) for key in dict.fromkeys(keys)}
        outside = tuple(reasons[key] or self.unlisted.get(i) for i, key in enumerate(keys))
        return replace(self, outside=outside, is_inside=np.array([reason is None for reason in outside]))


class AnswerRows(NamedTuple):
    """Answers in columns (rows,): row i is candidate ``candidate[i]`` on problem ``problem[i]``.

    ``half_width`` is in log time. ``in_domain`` marks rows inside the training data. ``fails`` marks candidates that
    are expected not to run. ``workspace_bytes`` is `UNKNOWN` if nothing states it.
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
        """Return the positions of the rows: problem after problem, the fastest first, ties in the order of the rows.

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
    """Ranks the candidates of a setting.

    Attributes
    ----------
    candidates : tuple of LibraryCandidate
        Candidates of all libraries of the setting.
    choosable : array of int
        Positions of the candidates that can be chosen.
    source_name : str
        Kind of evidence for the whole setting: `MODEL` if a library was measured in it on the GPU.
    references : mapping
        Library → the domain's key of the setting.
    library_of : array of int, (candidates,)
        Position of each candidate's library in ``references``.
    notes : mapping
        Library → caveats of all its answers.
    measured_groups : mapping
        Library → `Family.kernel_group_of` its measured problems in the setting on any GPU. A library is left out if
        measurements of every group exist, or if times do not come from its measurements.
    aligned_only : frozenset of str
        Libraries whose measured products have rows aligned to `ROW_BYTES`, if the setting uses tensor cores.
    device : Gpu
        The GPU. The source may have its tensor units without their caps.
    sustained_tflops : float
        TFLOP/s that no product exceeds without measurements in the setting on the GPU; infinite without a limit.
    max_rooflines : float
        `MAX_ROOFLINES` for products; infinite for other operators.
    unmeasured_value : str
        The first value of the setting that was never measured on the GPU, as in ``math fma``; "" for a measured setting
        or GPU.
    unmeasured_half_width : float
        Half width in log time if the GPU were not measured. Sizes outside those of the GPU, but inside those of other
        GPUs, have no larger one.
    """

    setting: QuerySetting
    candidates: tuple[LibraryCandidate, ...]
    choosable: np.ndarray
    source: Source
    rules: SupportRules
    family_model: FamilyModel
    evidence: CandidateEvidence
    source_name: str
    widths: Widths
    references: Mapping[str, ReferenceKey]
    library_of: np.ndarray
    notes: Mapping[str, tuple[str, ...]]
    measured_groups: Mapping[str, frozenset[str]]
    aligned_only: frozenset[str]
    device: Gpu
    sustained_tflops: float
    max_rooflines: float
    unmeasured_value: str
    unmeasured_half_width: float

    def rank(self, problem: AnyProblem) -> Ranking:
        """Return the ranking of the candidates that the library is expected to run on a problem."""
        reasons = self.rules.of(problem)
        rows = self._rows_of_one(problem, self.accepted(reasons))
        return self._ranking(problem, reasons, rows, rows.ranked())

    def rank_many(self, problems: Sequence[AnyProblem]) -> list[Ranking]:
        """Return the ranking of each problem; arrays are used if there are enough problems."""
        if len(problems) < MIN_ARRAY_PROBLEMS:
            return [self.rank(problem) for problem in problems]
        sizes = np.array([self.setting.family.sizes_of(problem) for problem in problems])
        reasons = [self.rules.of(problem) for problem in problems]
        accepted = [self.accepted(row) for row in reasons]
        problem_of_row = np.repeat(np.arange(len(problems)), [len(index) for index in accepted])
        rows = self.answers(sizes, problem_of_row, np.concatenate(accepted))
        ranked = rows.ranked()
        ends = np.searchsorted(rows.problem[ranked], np.arange(len(problems) + 1))
        return [self._ranking(each, reasons[i], rows, ranked[ends[i] : ends[i + 1]]) for i, each in enumerate(problems)]

    def accepted(self, reasons: Reasons) -> np.ndarray:
        """Return the positions of the candidates that can be chosen and that no rule refuses."""
        return np.array([i for i in self.choosable.tolist() if reasons[i] is None], dtype=np.int64)

    def fastest_us(self, sizes: np.ndarray) -> np.ndarray:
        """Return the time of the fastest candidate in µs, (problems,), or NaN; ``sizes`` is (problems, sizes)."""
        choosable = np.isin(np.arange(len(self.candidates)), self.choosable)
        rows = self.answers(sizes, *np.nonzero(self.rules.allowed(sizes) & choosable))
        fastest_us = np.full(len(sizes), np.nan)
        np.fmin.at(fastest_us, rows.problem[~rows.fails], rows.time_us[~rows.fails])
        return fastest_us

    def answers(self, sizes: np.ndarray, problem_of_row: np.ndarray, candidate_of_row: np.ndarray) -> AnswerRows:
        """Return the answers in row i for a candidate and a problem, by position; ``sizes`` is (problems, sizes)."""
        if len(sizes) == 1:
            return self._rows_of_one(self.setting.problem(sizes[0].tolist()), candidate_of_row)
        times = self.source.times(sizes, problem_of_row, candidate_of_row)
        return self.rows(sizes, problem_of_row, candidate_of_row, times, problems=self.setting.problem(sizes.T))

    def rows(
        self, sizes: np.ndarray, problem_of_row: np.ndarray, candidate_of_row: np.ndarray, times: Times, problems: Any
    ) -> AnswerRows:
        """Return the answers for the source's ``times``, with intervals, floors and rooflines.

        ``problems`` is one problem of numbers, or all of them in arrays.
        """
        time_us, evidence = times.time_us, self.evidence
        source = evidence.source[candidate_of_row]
        # 1. Half widths: base × factor for the distance × factor for the time, within limits, + extrapolation width.
        #    All candidates of a library have the same distance.
        distance, inside, extrapolation = self._distances(sizes)
        library = self.library_of[candidate_of_row]
        factor = self.widths.distance.at(distance)[library, problem_of_row] * self.widths.time_us.at(time_us)
        factor *= 1.0 if times.deviation is None else times.deviation
        half = np.clip(evidence.half_width[candidate_of_row] * factor, *evidence.half_width_limits[:, candidate_of_row])
        own, shared = extrapolation[:, problem_of_row]
        half = np.minimum(half + own, np.maximum(half, self.unmeasured_half_width) + shared)
        is_crossed = np.array(False)
        if self.aligned_only:
            unaligned_us = np.broadcast_to(self.setting.family.unaligned_us(problems, self.device), len(sizes))
            is_aligned_only = np.isin([*self.references], [*self.aligned_only])[library]
            unaligned_us = np.where(is_aligned_only, unaligned_us[problem_of_row], 0.0)
            half += np.log1p(unaligned_us / np.maximum(time_us, np.finfo(float).tiny))
            is_crossed = unaligned_us > 0
        if self.measured_groups:
            is_crossed = self._is_crossed(problems)[library, problem_of_row]
            half[is_crossed] = np.maximum(half[is_crossed], self.family_model.widths.unmeasured_group)
        decided = np.isfinite(times.half_width)
        half = np.where(decided, times.half_width, half)
        source = np.where(decided, times.source_name, source)
        # 2. A candidate without a time from the source gets its roofline time.
        unknown = np.flatnonzero(~((time_us > 0.0) & (time_us < inf)))
        if len(unknown):
            of_unknown = problem_of_row[unknown], candidate_of_row[unknown]
            time_us = self._with_rooflines(time_us, unknown, sizes, *of_unknown)
            source[unknown] = ROOFLINE
            half[unknown] = ROOFLINE_HALF_WIDTH
        if self.sustained_tflops < inf:
            min_us = np.broadcast_to(compute_us(problems.flops, self.sustained_tflops), len(sizes))[problem_of_row]
            time_us = np.where(np.isin(source, UNMEASURED_SOURCES), np.maximum(time_us, min_us), time_us)
        # 3. A time below the harness's floor is only an upper bound: the interval is widened up to the floor.
        floor_us = evidence.floor_us[candidate_of_row]
        at_floor = np.flatnonzero(time_us <= floor_us)
        if len(at_floor):
            source[at_floor] = FLOOR
            half[at_floor] = np.maximum(half[at_floor], np.log(floor_us[at_floor] / time_us[at_floor]))
        # 4. The interval; its lower end is no shorter than the GPU's peaks allow. Measured boards may exceed them.
        spread = np.exp(half)
        min_us = self._min_us(sizes, problems)[evidence.counts_flops[candidate_of_row], problem_of_row]
        exceeded_us = 0.0 if self.source_name == MODEL else time_us
        lower_us = np.maximum(time_us / spread, np.where(min_us < time_us, min_us, exceeded_us))
        upper_us = time_us * spread
        if self.max_rooflines < inf:
            longest_us = self.max_rooflines * problems.roofline_us(self.device) + MAX_OVERHEAD_US
            longest_us = np.broadcast_to(longest_us, len(sizes))[problem_of_row]
            is_limited = np.isin(source, UNMEASURED_SOURCES) & (longest_us > time_us)
            upper_us = np.where(is_limited, np.minimum(upper_us, longest_us), upper_us)
        in_domain = inside[library, problem_of_row] & evidence.is_inside[candidate_of_row] | decided
        in_domain[at_floor] = False
        in_domain &= ~is_crossed
        # 5. A candidate fails if its workspace does not fit beside the tensors.
        free_bytes = self._free_bytes(problems)
        workspace = self._workspace_bytes(sizes, problem_of_row, candidate_of_row, times)
        needs_more = workspace > (free_bytes if np.ndim(free_bytes) == 0 else free_bytes[problem_of_row])
        rows = AnswerRows(
            problem=problem_of_row,
            candidate=candidate_of_row,
            time_us=time_us,
            lower_us=lower_us,
            upper_us=upper_us,
            half_width=half,
            workspace_bytes=workspace,
            source=source,
            in_domain=in_domain,
            fails=needs_more if times.fails is None else needs_more | times.fails,
        )
        if times.answers is None:
            return rows
        lower_us, upper_us, source = times.answers
        half = np.log(upper_us / time_us)
        return rows._replace(lower_us=lower_us, upper_us=upper_us, half_width=half, source=source)

    def _workspace_bytes(
        self, sizes: np.ndarray, problem_of_row: np.ndarray, candidate_of_row: np.ndarray, times: Times
    ) -> np.ndarray:
        """Return the workspaces in bytes, (rows,), by the training data, else by the source's formula."""
        workspace = np.where(self.evidence.has_workspace[candidate_of_row], times.workspace_bytes, UNKNOWN).astype(int)
        if (stated := self.family_model.requirements) is not None:
            for candidate in np.unique(candidate_of_row).tolist():
                rows = np.flatnonzero(candidate_of_row == candidate)
                key = (self.setting.gpu, self.candidates[candidate].key, *self.setting.values)
                found = stated.workspace_bytes(key, sizes[problem_of_row[rows]])
                workspace[rows] = np.where(found == UNKNOWN, workspace[rows], found)
        return workspace

    def estimate(self, problem: AnyProblem, index: np.ndarray) -> tuple[Estimate, str | None]:
        """Return the fastest of the candidates at ``index``, and why it does not run (None if it runs)."""
        rows = self._rows_of_one(problem, index)
        first = rows.ranked()[:1]
        fastest = int(rows.candidate[first[0]])
        failure = self.failures(problem, rows, first)[0] if rows.fails[first[0]] else None
        return self._estimates(rows, first)[0], self.rules.of(problem)[fastest] or failure

    def _rows_of_one(self, problem: AnyProblem, candidates: np.ndarray) -> AnswerRows:
        """Return the answers for the ``candidates`` (rows,) on one problem."""
        times = self.source.one(problem, candidates) if len(candidates) else Times(np.empty(0), np.empty(0))
        sizes = np.array([self.setting.family.sizes_of(problem)])
        return self.rows(sizes, np.zeros(len(candidates), dtype=np.int64), candidates, times, problems=problem)

    def _ranking(self, problem: AnyProblem, reasons: Reasons, rows: AnswerRows, ranked: np.ndarray) -> Ranking:
        """Return the ranking of a problem from its ``ranked`` rows."""
        failing = ranked[rows.fails[ranked]]
        estimates = self._estimates(rows, ranked[: len(ranked) - len(failing)])
        above_floor = [estimate for estimate in estimates if estimate.source != FLOOR]
        at_floor = estimates[len(above_floor) :] if above_floor else []
        choosable = set(self.choosable.tolist())
        excluded = [
            Excluded(candidate.name, reason or NOTES["never_measured"])
            for i, (candidate, reason) in enumerate(zip(self.candidates, reasons, strict=True))
            if reason is not None or i not in choosable
        ]
        if len(failing):
            failing = failing[np.argsort(rows.candidate[failing])]
            names = [self.candidates[i].name for i in rows.candidate[failing].tolist()]
            excluded += map(Excluded, names, self.failures(problem, rows, failing))
        floors = dict(zip(self.candidates, self.evidence.floor_us.tolist(), strict=True)) if at_floor else {}
        at_floor.sort(key=lambda estimate: self.candidates.index(estimate.candidate))
        excluded += [Excluded(e.candidate.name, NOTES["at_floor"].format(floors[e.candidate])) for e in at_floor]
        return Ranking(tuple(above_floor or estimates), tuple(excluded))

    def failures(self, problem: AnyProblem, rows: AnswerRows, failing: np.ndarray) -> list[str]:
        """Return why each of the rows at ``failing`` does not run."""
        texts = self.source.failures(problem, rows.candidate[failing].tolist())
        pairs = zip(rows.workspace_bytes[failing].tolist(), texts, strict=True)
        return [self.memory_refusal(problem, workspace_bytes) or text for workspace_bytes, text in pairs]

    def memory_refusal(self, problem: AnyProblem, workspace_bytes: int | None) -> str | None:
        """Return the reason if the workspace does not fit into the GPU's memory beside the tensors, else None."""
        if workspace_bytes is None or workspace_bytes <= self._free_bytes(problem):
            return None
        device, tensor_bytes = self.device, self.setting.family.tensor_bytes(problem)
        sizes = (*map(binary_size, (workspace_bytes, tensor_bytes, device.memory_bytes)), device.name)
        return NOTES["workspace_exceeds_memory"].format(*sizes)

    def _free_bytes(self, problems: Any) -> Any:
        """Return the bytes of memory beside the tensors; the entire memory if even the tensors do not fit."""
        memory_bytes = self.device.memory_bytes or inf
        free_bytes = memory_bytes - self.setting.family.tensor_bytes(problems)
        return where(free_bytes < 0, memory_bytes, free_bytes)

    def notes_of(self, problem: AnyProblem, library: str) -> tuple[str, ...]:
        """Return the caveats of an answer: those of its library, and whether the tensors exceed the GPU's memory."""
        if not self.tensors_exceed_memory(problem):
            return self.notes[library]
        device = self.device
        sizes = map(binary_size, (int(self.setting.family.tensor_bytes(problem)), device.memory_bytes))
        return (*self.notes[library], NOTES["tensors_exceed_memory"].format(*sizes, device.name))

    def tensors_exceed_memory(self, problems: Any) -> Any:
        """Return whether the tensors of one problem, or of each problem of arrays, exceed the GPU's memory."""
        return self.setting.family.tensor_bytes(problems) > (self.device.memory_bytes or inf)

    def _is_crossed(self, problems: Any) -> np.ndarray:
        """Return True (libraries, problems) if the problem's kernel group was never measured in the setting."""
        groups = np.atleast_1d(self.setting.family.kernel_group(problems))
        measured = [self.measured_groups.get(name) for name in self.references]
        return np.array([np.zeros(len(groups), bool) if m is None else ~np.isin(groups, [*m]) for m in measured])

    def _estimates(self, rows: AnswerRows, ranked: np.ndarray) -> list[Estimate]:
        """Return the estimates of the ``ranked`` rows. `AnswerRows` has its columns in the order of `Estimate`."""
        _, candidate, *columns, _ = (column[ranked].tolist() for column in rows)
        position = Estimate._fields.index("workspace_bytes") - 1
        columns[position] = [None if size == UNKNOWN else size for size in columns[position]]
        return list(map(Estimate, (self.candidates[i] for i in candidate), *columns))

    def _distances(self, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return distances to training shapes, whether sizes are inside the training data, and extrapolation widths.

        The first two are (libraries, problems). The third is the width that sizes add outside the measured ones of the
        GPU and of all GPUs, (2, problems).
        """
        domain, gpu = self.family_model.domain, self.setting.gpu
        extrapolation = np.array([domain.extrapolation_width(sizes, each) for each in (gpu, None)])
        distances = np.empty((len(self.references), len(sizes)))
        inside = np.zeros(distances.shape, dtype=bool)
        for i, key in enumerate(self.references.values()):
            references = domain.references.get(key)
            distances[i] = domain.distances(key, sizes)
            if references is None:
                continue
            own = domain.references.get(key._replace(gpu=gpu), references)
            inside[i] = own.inside(sizes) & (extrapolation == 0.0).all(axis=0)
            for row in np.flatnonzero(inside[i] & (distances[i] > references.reach)).tolist():
                inside[i, row] = shape_hash(domain.family, sizes[row].tolist()) in domain.shapes
        return distances, inside, extrapolation

    def _with_rooflines(
        self, time_us: np.ndarray, unknown: np.ndarray, sizes: np.ndarray, problems: np.ndarray, candidates: np.ndarray
    ) -> np.ndarray:
        """Return the times with roofline times at the ``unknown`` rows, of these ``problems`` and ``candidates``.

        Raises `InputError` if one of them is not NaN: an intact model gives no time that is zero, negative or infinite.
        """
        wrong = time_us[unknown][~np.isnan(time_us[unknown])]
        if len(wrong):
            raise InputError(f"the bundle's model gives {wrong[0]} µs; it is damaged, train it again with `seer train`")
        filled = time_us.copy()
        filled[unknown] = self.source.roofline_us(sizes, problems, candidates)
        return filled

    def _min_us(self, sizes: np.ndarray, problem: Any) -> np.ndarray:
        """Return the shortest possible times in µs, (2, problems), of candidates with fewer FLOPs and of all others.

        For a described kernel it is `Source.min_us`.
        """
        if self.setting.family.parameter_names:
            return np.array(2 * [[self.source.min_us(self.setting.problem(row)) for row in sizes.tolist()]])
        family, values, device = self.setting.family, self.setting.by_name, self.device
        ends = [family.shortest_us(problem, values, device, counts_flops=counts) for counts in (False, True)]
        if len(sizes) == 1:  # faster without broadcasting
            return np.array(ends, dtype=np.float64).reshape(2, 1)
        return np.array([np.broadcast_to(end, len(sizes)) for end in ends])

    def has(self, name: str) -> bool:
        """Return whether a candidate has this name."""
        return any(candidate.name == name for candidate in self.candidates)

    def positions_of(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Return name → the positions of the first candidate of this name in each library.

        Raises `InputError`, with the nearest names, if no candidate has one of the names.
        """
        positions: dict[str, dict[str, int]] = {name: {} for name in names}
        for i, candidate in enumerate(self.candidates):
            if (found := positions.get(candidate.name)) is not None:
                found.setdefault(candidate.library, i)
        if unknown := [name for name, found in positions.items() if not found]:
            candidate_names = [candidate.name for candidate in self.candidates]
            where = " ".join(filter(None, (self.setting.versions[0][0], *self.setting.values[:1])))
            one_of = f"give one of: {', '.join(candidate_names)}{nearest(unknown[0], candidate_names)}"
            raise InputError(f"algorithm {unknown[0]!r} is not one of {where}; {one_of}")
        return {name: np.array([*found.values()], dtype=np.int64) for name, found in positions.items()}

    def reason(self, problem: AnyProblem, estimate: Estimate | None) -> str | None:
        """Return why the ``estimate`` (None: the question) is outside the training data; None if it is inside."""
        if estimate is not None and estimate.in_domain:
            return None
        candidate = estimate.candidate if estimate else self.candidates[0]
        position = next(i for i, each in enumerate(self.candidates) if each.key == candidate.key)
        at_floor = estimate is not None and estimate.source == FLOOR
        return self.outside_reason(problem, position, at_floor)

    def outside_reason(self, problem: AnyProblem, position: int, at_floor: bool) -> str | None:
        """Return why the candidate at a ``position`` is outside the training data; ``at_floor``: of its harness."""
        candidate = self.candidates[position]
        if self.measured_groups and self._is_crossed(problem)[self.library_of[position], 0]:
            place = " ".join(filter(None, (candidate.library, *self.setting.values)))
            group = str(self.setting.family.kernel_group(problem))
            return NOTES["group_never_measured"].format(group, place, exp(self.family_model.widths.unmeasured_group))
        if reason := self.evidence.outside[position]:
            return reason
        if candidate.library in self.aligned_only and self.setting.family.unaligned_us(problem, self.device):
            return NOTES["unaligned"].format(candidate.library, *self.setting.values[:2])
        sizes = self.setting.family.sizes_of(problem)
        reason = self.family_model.domain.size_reason(self.references[candidate.library], sizes, self.setting.gpu)
        if reason is None and at_floor:
            return NOTES["at_floor"].format(self.evidence.floor_us[position])
        return reason


Listed = Mapping[str, "HeuristicEntry"]
"""Name → entry of the configurations that cuDNN's heuristic lists for a problem."""


def listed_configurations(ranker: Ranker, problems: Sequence[Any]) -> list[Listed]:
    """Return the configurations of each problem on the ranker's GPU.

    Raises `InputError` if cuDNN or its frontend is missing, crashes, or is not of the release that was measured.
    """
    from surrogate.collect.device import DeviceLostError
    from surrogate.collect.open_device import open_ranking

    version = dict(ranker.setting.versions)[CUDNN_GRAPH]
    measured = ranker.family_model.domain.versions_of(CUDNN_GRAPH)
    with closing(open_ranking(ranker.setting.gpu)) as ranking:
        try:
            installed = ranking.device_info().library_version
            if version not in measured or installed != version:
                releases = ", ".join(sorted(measured, key=version_key))
                rule = f"configurations of cuDNN {releases} were measured"
                raise InputError(f"{rule}; ask for that release and install it, {installed} is installed")
            distinct = dict.fromkeys(problems)
            lists = {problem: {each.algorithm: each for each in ranking.heuristic(problem)} for problem in distinct}
            return [lists[problem] for problem in problems]
        except DeviceLostError as error:
            raise InputError(f"cuDNN's heuristic failed: {error}") from None


def has_engines(ranker: Ranker) -> bool:
    """Return whether engine configurations are candidates."""
    return any(library == CUDNN_GRAPH for library, _ in ranker.setting.versions)


def is_listed(ranker: Ranker, sizes: np.ndarray) -> np.ndarray:
    """Return False (problems, candidates) for configurations that cuDNN's heuristic does not list."""
    listed = listed_configurations(ranker, [ranker.setting.problem(row) for row in sizes.tolist()])
    return np.array([[c.library != CUDNN_GRAPH or c.algorithm in names for c in ranker.candidates] for names in listed])


def rankings_of(ranker: Ranker, problems: Sequence[AnyProblem]) -> list[Ranking]:
    """Return the rankings without unlisted configurations. Listed ones that were never measured are excluded.

    A listed configuration has the workspace and the determinism that cuDNN states for the problem.
    """
    rankings = ranker.rank_many(problems)
    if not has_engines(ranker):
        return rankings
    measured = {each.algorithm for each in ranker.candidates if each.library == CUDNN_GRAPH}
    answers = []
    for problem, ranking, listed in zip(problems, rankings, listed_configurations(ranker, problems), strict=True):
        unlisted = measured - listed.keys()
        estimates = [_as_listed(each, listed) for each in ranking.estimates if each.candidate.name not in unlisted]
        excluded = [each for each in ranking.excluded if each.algorithm not in unlisted]
        excluded += [Excluded(name, NOTES["never_measured"]) for name in listed if name not in measured]
        refusals = [ranker.memory_refusal(problem, estimate.workspace_bytes) for estimate in estimates]
        pairs = list(zip(estimates, refusals, strict=True))
        excluded += [Excluded(estimate.candidate.name, reason) for estimate, reason in pairs if reason]
        answers.append(Ranking(tuple(estimate for estimate, reason in pairs if not reason), tuple(excluded)))
    return answers


def _as_listed(estimate: Estimate, listed: Listed) -> Estimate:
    """Return the estimate with the workspace and the determinism of its entry, if it has one."""
    entry = listed.get(estimate.candidate.name)
    if entry is None:
        return estimate
    candidate = replace(estimate.candidate, deterministic=entry.deterministic)
    return estimate._replace(candidate=candidate, workspace_bytes=entry.workspace_bytes)
